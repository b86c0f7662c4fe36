"""``o2nc paper rates``: certificates against steps and the theorems' bounds; guarantees, traps, the hard chain.

Result (docs/paper.md; two cores, torch 2.13, 8 seeds, N = 2¹⁰ … 2¹⁷): no bound is exceeded; the least bound/value
is 1.95 with the sharp constants and 3.77 with the printed ones. On the washboard 96 % of what is proved is attained.
Every trap holds momentum with s = 1 and none with s ~ Exp(1). The quickest of 15 settings needs 1.9 to 2.2 times the
steps that are proved necessary on the hard chain.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import o2nc
from o2nc import Exponential, Law, problems, theory
from o2nc.problems import Additive, Chain, Climber, Oracle, Resonance, Subsampled, Washboard, hard_instance
from o2nc_experiments import kit
from o2nc_experiments.runs import Setting, algorithm_2, in_processes
from o2nc_experiments.verify.theorems import best_energy, energy_bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, LARGEST = 8, 17  # seeds, and log₂ of the longest run
FEW = 3  # seeds of guarantees and traps


class Study(NamedTuple):
    """A problem with its noise, how c is chosen, and the exponent of N in the theorem's rate."""

    oracle: Oracle
    regime: str = "c"  # or "smoothness", "second_order"
    exponent: float = -2 / 7

    @property
    def constants(self) -> dict[str, Any]:
        """F*, G and σ, as plans take them."""
        problem = self.oracle.problem
        return {"gap": problem.gap, "lipschitz": problem.lipschitz, "noise": self.oracle.noise}

    def plan(self, steps: int, constants: str) -> theory.Plan:
        """Return the theorem's hyperparameters."""
        price = 1.0 if self.regime == "c" else getattr(self.oracle.problem, self.regime)
        options: dict[str, Any] = {self.regime: price, **self.constants}
        return theory.plan(steps, **options, constants=constants)


STUDIES = {
    "double well with kinks, d = 10": Study(Additive(problems.DoubleWell(10), 1.0)),
    "many kinks, d = 10": Study(Additive(problems.MultiKink(10), 1.0)),
    "max of affine pieces, d = 20": Study(Additive(problems.MaxAffine(20, 30), 1.0)),
    "Chebyshev–Rosenbrock, d = 5": Study(Additive(problems.ChebyshevRosenbrock(5), 1.0)),
    "phase retrieval, d = 5": Study(Subsampled(problems.PhaseRetrieval(5, 40), 4)),
    "cosines, c = ρ/2": Study(Additive(problems.Cosine(10), 1.0), "second_order"),
    "cosines, c = H²/ε": Study(Additive(problems.Cosine(10), 1.0), "smoothness", -1 / 4),
}
ARMS: dict[str, tuple[str, Law | None]] = {  # constants of the plan, law of s
    "sharp constants": ("sharp", Exponential()),
    "sharp constants, s = 1": ("sharp", None),
    "paper's constants": ("paper", Exponential()),
    "paper's constants, s = 1": ("paper", None),
}


class Curve(NamedTuple):
    """One arm of a study."""

    study: str
    arm: str
    steps: list[int]  # N
    values: list[list[float]]  # the mean certificate, by N and seed
    bounds: list[float] | None  # the theorem's bound for every N; None where no theorem speaks (s = 1)

    def slope(self, first: int = 0) -> tuple[float, float]:
        """Return the slope of log value over log N from the ``first``-th N on, and its 95 % half width."""
        slopes = np.polyfit(np.log(self.steps[first:]), np.log(np.array(self.values[first:])), 1)[0]
        if len(slopes) < 2:
            return float(slopes[0]), math.inf
        half = stats.t.ppf(0.975, len(slopes) - 1) * np.std(slopes, ddof=1) / math.sqrt(len(slopes))
        return float(np.mean(slopes)), float(half)

    @property
    def slack(self) -> float:
        """The least bound/value over N; inf where there is no bound."""
        return min((b / fmean(v) for b, v in zip(self.bounds or [], self.values, strict=False)), default=math.inf)


# ---- what is run; every function is one piece of work for a process


def curves(title: str, lengths: Sequence[int], seeds: Sequence[int]) -> list[Curve]:
    """Run Algorithm 2 on one study: all arms, for these numbers of steps."""
    study = STUDIES[title]
    plans = [[study.plan(n, constants) for constants, _ in ARMS.values()] for n in lengths]
    values = []
    for n, own in zip(lengths, plans, strict=True):
        settings = [Setting(p.lr, p.beta, p.c, p.decay, law) for p, (_, law) in zip(own, ARMS.values(), strict=True)]
        runs = algorithm_2(study.oracle, settings, n, seeds)
        values.append([getattr(runs, p.output).view(len(own), -1)[i].tolist() for i, p in enumerate(own)])
    return [
        Curve(
            title,
            arm,
            [*lengths],
            [row[i] for row in values],
            [row[i].bound for row in plans] if law is not None else None,
        )
        for i, (arm, (_, law)) in enumerate(ARMS.items())
    ]


# promised and attained: a problem (None: the washboard against the run that knows all), its noise, N
CASES: dict[str, tuple[problems.Problem | None, float, int]] = {
    "washboard, σ = 0, 27,000 steps": (None, 0.0, 27_000),
    "washboard, σ = 1, 20,000 steps": (None, 1.0, 20_000),
    "washboard, σ = 0": (None, 0.0, 1 << 14),
    "double well with kinks, σ = 1": (problems.DoubleWell(10), 1.0, 1 << 14),
    "many kinks, σ = 1": (problems.MultiKink(10), 1.0, 1 << 14),
    "max of affine pieces, σ = 1": (problems.MaxAffine(20, 30), 1.0, 1 << 14),
}
BELIEFS = {"G and σ known": 1.0, "believed × 10": 10.0, "believed × 0.1": 0.1}


def guarantees(title: str, seeds: Sequence[int]) -> list[tuple[str, str, float, float]]:
    """Return case, hyperparameters, bound with the true G and σ, and the mean certificate under the output law."""
    problem, noise, n = CASES[title]
    if problem is None:
        lr, beta, *_ = best_energy(n, 1.0, 1.0, 1.0, noise)
        problem = Washboard.against(lr, beta, n)
    gap, lipschitz = problem.gap, problem.lipschitz
    beliefs = BELIEFS if n == 1 << 14 else {"G and σ known": 1.0}
    settings = [best_energy(n, 1.0, gap, k * lipschitz, k * noise) for k in beliefs.values()]
    means = algorithm_2(Additive(problem, noise), settings, n, seeds).geometric.view(len(settings), -1).mean(1)
    found = [
        (title, f"OGD, {name}", energy_bound(setting, n, gap, lipschitz, noise, "geometric"), value)
        for (name, setting), value in zip(zip(beliefs, settings, strict=True), means.tolist(), strict=True)
    ]
    if len(beliefs) > 1:
        p = theory.adaptive_plan(n, 1.0, gap)
        runs = algorithm_2(Additive(problem, noise), [Setting(p.radius, p.beta)], n, seeds, adaptive=True)
        bound = p.bound(lipschitz=lipschitz, noise=noise)
        found.append((title, "BallAdaGrad, not told", bound, runs.geometric.mean().item()))
    return found


# by name: the trap, and whether the momentum buffer begins with 0 (and not with the first gradient)
TRAPS: dict[str, tuple[Resonance | Climber, bool]] = {
    "T0, zigzag": (Resonance.buffer(), False),
    "Z0, momentum 0.9": (Resonance.zero(), True),
    "Z0, momentum 0.5": (Resonance.zero(momentum=0.5), True),
    "L1, phase-locked": (Resonance.locked(), False),
    "L1, d = 10": (Resonance.locked(10), False),
    "climber": (Climber(1), False),
    "climber, d = 10": (Climber(10), False),
}
TRAP_STEPS, TRAP_BETA = 5000, 0.999


def trap(name: str, seeds: Sequence[int]) -> list[tuple[str, bool, float, float]]:
    """Return trap, whether s was random, mean ‖ḡ‖ over the second half, and F(last) − F(start), run by run."""
    problem, from_zero = TRAPS[name]
    momentum, found = problem.momentum if isinstance(problem, Resonance) else 0.9, []
    for seed in (None, *seeds):
        x, law = problem.start(), None if seed is None else Exponential()
        optimizer: o2nc.ExponentiatedO2NC | o2nc.ScaledSGDM
        if from_zero:  # the map of Section "Unraveling the update", read backwards
            lr = problem.lr * (1 - momentum) / momentum
            learner = o2nc.learners.OGD(lr=lr, decay=(TRAP_BETA / momentum - 1) / lr)
            optimizer = o2nc.ExponentiatedO2NC([x], learner, beta=TRAP_BETA, scaling=law, seed=seed or 0)
        else:
            options: dict[str, Any] = {"dampening": momentum, "scaling": law, "seed": seed or 0, "average": TRAP_BETA}
            optimizer = o2nc.ScaledSGDM([x], problem.lr, momentum, **options)
        before, gradients = problem.value(x).item(), []
        for t in range(1, TRAP_STEPS + 1):
            x.grad = problem.gradient(x)
            optimizer.step()
            if t > TRAP_STEPS // 2 and t % 10 == 0:
                gradients.append(optimizer.certificate().gradient)
        found.append((name, law is not None, fmean(gradients), problem.value(x).item() - before))
    return found


EPSILONS = (0.05, 0.03, 0.02)
CHAIN = {"c": 1.0, "gap": 400.0, "lipschitz": 10.0}
CHAIN_SEEDS = 24  # fewer could not tell a fair coin from a bad one


class Search(NamedTuple):
    """The hard instance at one ε."""

    eps: float
    links: int  # T, the length of the chain
    probability: float  # p, with which a query shows a new link
    needed: int  # steps before which no zero-respecting algorithm is done, as likely as not
    taken: float  # by the fastest setting, the median over the seeds
    early: int  # of the setting where they are most, the number of runs that took fewer than needed
    settings: int

    @property
    def agrees(self) -> bool:
        """Whether the early runs may be chance: what a fair coin gives, for all settings at once, at 0.1 %."""
        return float(stats.binom.sf(self.early - 1, CHAIN_SEEDS, 0.5)) * self.settings > 1e-3


def search(eps: float, seed: int) -> list[Search]:
    """Run Algorithm 2 with 15 settings on the hard instance, until ‖∇F(x̄)‖ <= ε."""
    oracle = hard_instance(eps, gap=CHAIN["gap"], smoothness=math.sqrt(CHAIN["c"] * eps), noise=CHAIN["lipschitz"])
    chain, p, needed = cast(Chain, oracle.problem), oracle.probability, oracle.steps(0.5)
    # a shown link has a derivative of about steepness/p and moves its coordinate by lr/(1 − β) times that
    settings = [
        Setting(reach * chain.width * (1 - beta) * p / chain.steepness, beta)
        for beta in (0.5, 0.9, 0.99)
        for reach in (0.03, 0.1, 0.3, 1.0, 3.0)
    ]

    def good(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(chain.gradient(x), dim=-1) <= eps

    found = algorithm_2(oracle, settings, 6 * needed, range(seed, seed + CHAIN_SEEDS), good=good)
    firsts = found.first.view(len(settings), -1).tolist()
    early = max(sum(n < needed for n in own) for own in firsts)
    return [Search(eps, chain.length, p, needed, min(map(median, firsts)), early, len(settings))]


# ---- tables and the picture


def curves_table(found: Sequence[Curve]) -> kit.Table:
    """Return one row per arm, study by study."""
    rows = []
    for curve in found:
        fits = (curve.slope(), curve.slope(len(curve.steps) // 2))
        slopes = [f"{middle:.3f} ± {half:.3f}" for middle, half in fits]
        ends = [f"{fmean(curve.values[i]):.4f}" for i in (0, -1)]
        last = [f"{STUDIES[curve.study].exponent:.3f}", f"{curve.slack:.2f}"] if curve.bounds else [kit.NONE] * 2
        rows.append([curve.study, curve.arm, *ends, *slopes, *last, "" if curve.slack >= 1 else "EXCEEDED"])
    steps = found[0].steps
    head = ["problem", "arm", f"N = {steps[0]:,}", f"{steps[-1]:,}", "slope", "tail", "theorem", "bound/value", ""]
    notes = (
        "slope: of the mean certificate over all N, tail: over the larger half, with 95 % intervals over the seeds; "
        "bound/value: the least over N. A bound promises no slope at finite N"
    )
    return kit.Table(head, rows, "Certificates against the number of steps", notes)


def guarantees_table(found: Sequence[tuple[str, str, float, float]]) -> kit.Table:
    """Return what is promised and what is attained."""
    rows = [[case, arm, f"{bound:.4f}", f"{value:.4f}", f"{bound / value:.2f}"] for case, arm, bound, value in found]
    notes = "guaranteed: with the true G and σ, whatever was believed; attained: the mean under the output law"
    head = ["problem", "hyperparameters", "guaranteed", "attained", "ratio"]
    return kit.Table(head, rows, "Promised and attained", notes)


def traps_table(found: Sequence[tuple[str, bool, float, float]]) -> kit.Table:
    """Return one row per trap, without scaling and with it side by side."""
    rows = []
    for name in dict.fromkeys(row[0] for row in found):
        cells = []
        for column in (2, 3):
            for scaled in (False, True):
                own = [cast(float, row[column]) for row in found if row[:2] == (name, scaled)]
                low, high = (f"{0.0 if abs(v) < 1e-9 else v:.2g}" for v in (min(own), max(own)))
                cells.append(low if low == high else f"{low} to {high}")
        rows.append([name, *cells])
    head = ["trap", "‖ḡ‖, s = 1", "‖ḡ‖, s ~ Exp(1)", "change of F, s = 1", "change of F, s ~ Exp(1)"]
    notes = f"‖ḡ‖ (β = {TRAP_BETA:g}): mean over the second half of {TRAP_STEPS:,} steps; range over the seeds"
    return kit.Table(head, rows, "Traps", notes)


def chain_table(found: Sequence[Search]) -> kit.Table:
    """Return one row per ε."""
    rows = [
        [f"{s.eps:g}", f"{s.links}", f"{s.probability:.4f}", f"{s.needed:,}", f"{s.taken:,.0f}", ratio, f"{s.early}"]
        for s, ratio in ((s, f"{s.taken / s.needed:.2f}") for s in found)
    ]
    notes = "needed: half of all runs take longer; taken: median of the fastest setting; early: its runs below needed"
    return kit.Table(["ε", "links", "p", "needed", "taken", "ratio", "early"], rows, "The hard instance", notes)


def least_error(steps: int, c: float, *, gap: float, lipschitz: float) -> float:
    """Return the ε that no algorithm can promise in fewer steps: Corollary lower-bound with the chain's constants.

    The hard instance with H = √(cε) and σ = G has T = F*H/(4·12·152ε²) links, found with probability (2·23ε/G)² each;
    half of T/p steps are not enough, as likely as not, and so N >= k·F*G²c^½ε^{−7/2} with k = 1/(8·12·152·46²).

    Example:
        >>> f"{least_error(10**6, 1.0, gap=1.0, lipschitz=1.0):.1e}"
        '1.4e-04'
    """
    return (gap * lipschitz**2 * math.sqrt(c) / (8 * 12 * 152 * 46**2 * steps)) ** (2 / 7)


def picture(found: Sequence[Curve]) -> "Figure":
    """Draw one panel per study: certificates against N, bounds dashed, the lower bound at the foot."""
    figure = kit.new_figure(14.4, 7.0)
    panels = figure.subplots(2, 4, sharex=True).flat
    lines = (("blue", "-"), ("blue", ":"), ("red", "-"), ("red", ":"))
    styles = dict(zip(ARMS, lines, strict=True))
    for axes, (title, study) in zip(panels, STUDIES.items(), strict=False):
        for curve in (curve for curve in found if curve.study == title):
            colour, line = styles[curve.arm]
            axes.plot(curve.steps, [*map(fmean, curve.values)], line, color=kit.COLOURS[colour], label=curve.arm)
            if curve.bounds:
                axes.plot(curve.steps, curve.bounds, "--", color=kit.COLOURS[colour], linewidth=0.9, alpha=0.8)
        problem, steps = study.oracle.problem, found[0].steps
        known = {"gap": problem.gap, "lipschitz": problem.lipschitz}
        floor = [least_error(n, study.plan(n, "sharp").c, **known) for n in steps]
        axes.plot(steps, floor, "-.", color=kit.COLOURS["grey"], linewidth=1.0, label="lower bound, hard instance")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        kit.style_panel(axes, title, "steps N", "mean of ‖ḡ‖ + cV")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.axes[-1].axis("off")
    figure.axes[-1].legend(handles, labels, loc="center", frameon=False, title="dashed: its theorem's bound")
    return figure


def main(
    out: Path, seed: int = 0, seeds: int = SEEDS, largest: int = LARGEST, workers: int = 2, quiet: bool = False
) -> None:
    """Measure certificates against steps, with bounds; then guarantees, traps and the hard chain."""
    if min(seed, seeds - 1, workers - 1) < 0 or not 12 <= largest <= 24:
        raise kit.UsageError("--seed is at least 0, --seeds and --workers at least 1, --largest 12 to 24")
    terminal, lengths, own = kit.Terminal(quiet), [2**k for k in range(10, largest + 1)], range(seed, seed + seeds)
    work: dict[str, Any] = {f"curves: {title}": (curves, title, lengths, own) for title in STUDIES}
    work |= {f"guarantee: {title}": (guarantees, title, own[:FEW]) for title in CASES}
    work |= {f"trap: {name}": (trap, name, own[:FEW]) for name in TRAPS}
    work |= {f"chain: {eps}": (search, eps, seed) for eps in EPSILONS}
    asked = {"seed": seed, "seeds": seeds, "largest": largest}
    command = kit.written_command("o2nc paper rates", asked, {"seed": 0, "seeds": SEEDS, "largest": LARGEST})
    about = kit.circumstances(command, seeds=[*own], steps=lengths)
    kit.make_folder(out)
    store = kit.Store(out / "rates.json", asked, about)
    left = {key: job for key, job in work.items() if key not in store.runs}
    in_processes(left, workers, terminal, store.add)

    def parts(begin: str) -> list[Any]:
        return [row for key in work if key.startswith(begin) for row in store.runs[key]]

    drawn = [Curve(*row) for row in parts("curves")]
    promises, escapes = ([tuple(row) for row in parts(begin)] for begin in ("guarantee", "trap"))
    searches = [Search(*row) for row in parts("chain")]
    tables = [curves_table(drawn), guarantees_table(promises), traps_table(escapes), chain_table(searches)]
    figure = picture(drawn)
    kit.write_bytes(out / "rates.png", kit.draw(figure, "png"))
    over = [f"{curve.study}, {curve.arm}" for curve in drawn if curve.slack < 1]
    over += [f"{case}, {arm}" for case, arm, bound, value in promises if value > bound]
    over += [f"hard chain at ε = {s.eps:g}" for s in searches if not s.agrees]
    lead = f"not respected: {'; '.join(over)}" if over else "All stay below the bounds of their theorems."
    sections = [kit.Section("Measured against the theorems", pictures=[(figure, "")], tables=tables)]
    kit.write_page(out / "report.html", "How fast, and against which bounds", lead, sections, about)
    for table in tables:
        terminal.table(table)
    terminal.say(f"{lead} Written to {out}: rates.json, rates.png, report.html")
    if over:
        raise SystemExit(1)


if __name__ == "__main__":
    kit.run_script(main)
