"""``o2nc paper rates``: certificates against the number of steps, beside the theorems' bounds; guarantees.

Result (docs/paper.md; two cores, torch 2.13, 8 seeds, N = 2¹⁰ … 2¹⁷): no bound is exceeded; the least bound/value
is 1.95 with the sharp constants and 3.77 with the printed ones. On the washboard 96 % of what is proved is attained.

Algorithm 1, the traps one by one and the hard chain ran at commit cf6f9b7; docs/paper.md keeps their tables.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import stats

from o2nc import Exponential, Law, problems, theory
from o2nc.problems import Additive, Oracle, Subsampled, Washboard
from o2nc_experiments import kit
from o2nc_experiments.runs import Setting, algorithm_2, in_processes
from o2nc_experiments.verify.theorems import best_energy, energy_bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, LARGEST = 8, 17  # seeds, and log₂ of the longest run
FEW = 3  # seeds of guarantees


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
    bounds = [None if law is None else [row[i].bound for row in plans] for i, (_, law) in enumerate(ARMS.values())]
    return [Curve(title, arm, [*lengths], [row[i] for row in values], bounds[i]) for i, arm in enumerate(ARMS)]


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
    notes = "slope: over all N, tail: over the larger half, with 95 % intervals; bound/value: the least over N"
    return kit.Table(head, rows, "Certificates against the number of steps", notes)


def guarantees_table(found: Sequence[tuple[str, str, float, float]]) -> kit.Table:
    """Return what is promised and what is attained."""
    rows = [[case, arm, f"{bound:.4f}", f"{value:.4f}", f"{bound / value:.2f}"] for case, arm, bound, value in found]
    notes = "guaranteed: with the true G and σ, whatever was believed; attained: the mean under the output law"
    head = ["problem", "hyperparameters", "guaranteed", "attained", "ratio"]
    return kit.Table(head, rows, "Promised and attained", notes)


def picture(found: Sequence[Curve]) -> "Figure":
    """Draw one panel per study: certificates against N, bounds dashed, the lower bound at the foot."""
    figure = kit.new_figure(14.4, 7.0)
    panels = figure.subplots(2, 4, sharex=True).flat
    lines = (("blue", "-"), ("blue", ":"), ("red", "-"), ("red", ":"))
    styles = dict(zip(ARMS, lines, strict=True))
    for axes, title in zip(panels, STUDIES, strict=False):
        for curve in (curve for curve in found if curve.study == title):
            colour, line = styles[curve.arm]
            axes.plot(curve.steps, [*map(fmean, curve.values)], line, color=kit.COLOURS[colour], label=curve.arm)
            if curve.bounds:
                axes.plot(curve.steps, curve.bounds, "--", color=kit.COLOURS[colour], linewidth=0.9, alpha=0.8)
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
    """Measure certificates against steps, with bounds; then what is promised and what is attained."""
    if min(seed, seeds - 1, workers - 1) < 0 or not 12 <= largest <= 24:
        raise kit.UsageError("--seed is at least 0, --seeds and --workers at least 1, --largest 12 to 24")
    terminal, lengths, own = kit.Terminal(quiet), [2**k for k in range(10, largest + 1)], range(seed, seed + seeds)
    work: dict[str, Any] = {f"curves: {title}": (curves, title, lengths, own) for title in STUDIES}
    work |= {f"guarantee: {title}": (guarantees, title, own[:FEW]) for title in CASES}
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
    promises = [tuple(row) for row in parts("guarantee")]
    tables = [curves_table(drawn), guarantees_table(promises)]
    figure = picture(drawn)
    kit.write_bytes(out / "rates.png", kit.draw(figure, "png"))
    over = [f"{curve.study}, {curve.arm}" for curve in drawn if curve.slack < 1]
    over += [f"{case}, {arm}" for case, arm, bound, value in promises if value > bound]
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
