"""``o2nc paper nonsmooth``: what a random scalar s costs and buys on 13 non-smooth problems and on the traps.

Every arm's learning rate is chosen on seeds of its own and reported on others; F is compared with that of plain
momentum (SGDM) with a linear decay, by the geometric mean over the problems.

Result (docs/randomness.md; torch 2.13 on a CPU, 10 seeds, 8 others to tune, ± std of the logarithm over the seeds):
after 2,000 steps F is 3.41 ± 0.39 of SGDM's with s ~ Exp(1), 1.15 ± 0.27 with Gamma(16), 0.47 ± 0.66 with Nesterov's
lead and Gamma(16); of 210 runs on the traps 39 end above their start without scaling, none with Exp(1) or Gamma(16).
At a constant learning rate x̄ by t^12 has 3.0, 8.0 and 9.7 times SGDM's F after 500, 2,000 and 4,000 steps.

Arms that this script no longer has (random queries, anchors, restarts, fading, rare and two-point laws, schedule-free
AdamW, and ``--others``) ran at commit cf6f9b7; docs/randomness.md and docs/no-schedule.md keep their tables.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from o2nc import Exponential, Gamma, Law, Uniform, problems
from o2nc.problems import Additive, Climber, Oracle, Resonance, Subsampled
from o2nc_experiments import kit
from o2nc_experiments.nonsmooth_runs import Arm, Row, deconvolution, factorisation, run
from o2nc_experiments.runs import in_processes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HORIZONS = (500, 2000, 4000)
TUNING_SEED, TUNING_SEEDS = 1000, 8  # the first, counted from --seed, and how many
COARSE, WIDENINGS = range(-10, 7, 2), 5  # exponents of 2 of the learning rate, and how often the grid may grow
FLOOR = {"F": 1e-12, "certificate": 1e-3}  # in units of F* and G: less counts as that, since kinks may cancel
TRAP_STEPS, TRAP_SEEDS, FACTORS = 5000, 3, [2 ** (k / 2) for k in range(-3, 4)]
WIDTHS, PATIENCE, FREE_SEEDS = (0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0), 20_000, 25


LAWS: dict[str, Law] = {
    "Exp(1)": Exponential(),
    "U(0, 2)": Uniform(0, 2),
    "U(½, 3/2)": Uniform(0.5, 1.5),
    "U(¾, 5/4)": Uniform(0.75, 1.25),
    "U(0.9, 1.1)": Uniform(0.9, 1.1),
    **{f"Gamma({k})": Gamma(float(k)) for k in (2, 4, 16, 64)},
}
REFERENCE = "SGDM"
RANDOM = {  # with a linear decay: what randomness costs
    REFERENCE: Arm(),
    **{name: Arm(law) for name, law in LAWS.items()},
    "Nesterov": Arm(nesterov=True),
    **{f"Nesterov, {name}": Arm(LAWS[name], nesterov=True) for name in (*list(LAWS)[:4], "Gamma(16)")},
}
DECAYED = {"SGDM, last 20 % decayed": Arm(decay=0.2), "AdamW": Arm(adam=True)}
FREE = {  # without a horizon: one run, read wherever one likes
    "constant, last iterate": Arm(decay=None),
    **{f"constant, x̄ by t^{r}": Arm(decay=None, window=r) for r in (4, 8, 12)},
    "lr t^−½, last iterate": Arm(decay=None, power=0.5),
    "lr t^−½, x̄ by t^12": Arm(decay=None, power=0.5, window=12),
    "lr t^−¾, x̄ by t^12": Arm(decay=None, power=0.75, window=12),
}
ARMS = {**RANDOM, **DECAYED, **FREE}


# ---- the problems: inf F = 0 in all of them


PROBLEMS: dict[str, Oracle] = {
    "double well, d = 10": Additive(problems.DoubleWell(10), noise=0.0),
    "double well, d = 50, noise": Additive(problems.DoubleWell(50), noise=1.0),
    "kinks, d = 10, noise": Additive(problems.MultiKink(10), noise=1.0),
    "max-affine, d = 20": Additive(problems.MaxAffine(20, pieces=100), noise=0.0),
    "max-affine, d = 40, noise": Additive(problems.MaxAffine(40, pieces=100, seed=1), noise=0.5),
    "Chebyshev–Rosenbrock, d = 4": Additive(problems.ChebyshevRosenbrock(4), noise=0.0),
    "Chebyshev–Rosenbrock, d = 3, noise": Additive(problems.ChebyshevRosenbrock(3), noise=1.0),
    "phase retrieval, d = 10": Additive(problems.PhaseRetrieval(10, samples=60), noise=0.0),
    "phase retrieval, d = 30, batches": Subsampled(problems.PhaseRetrieval(30, samples=300, seed=1), batch=8),
    "ReLU net, d = 16": Additive(problems.ReluRegression(3, hidden=4, samples=40), noise=0.0),
    "ReLU net, d = 24, noise": Additive(problems.ReluRegression(5, hidden=4, samples=50, seed=1), noise=0.5),
    "ℓ1 factorisation, d = 40, noise": Additive(factorisation(10, rank=2), noise=0.1),
    "blind deconvolution, d = 20": Additive(deconvolution(10, samples=80), noise=0.0),
}
# by name: the trap, and whether the momentum buffer begins with the first gradient (and not with 0)
TRAPS: dict[str, tuple[Resonance | Climber, bool]] = {
    f"{name}, d = {d}": (make(d), primed)
    for name, make, primed in (
        ("T0", Resonance.buffer, True),
        ("Z0", Resonance.zero, False),
        ("Z0, momentum 0.5", partial(Resonance.zero, momentum=0.5), False),
        ("L1", Resonance.locked, True),
        ("climber", Climber, True),
    )
    for d in (1, 10)
}


# ---- tuning on some seeds, measuring on others


class Result(NamedTuple):
    """An arm on a problem at a horizon, by seed."""

    problem: str
    arm: str
    horizon: int
    tuned: str  # what lr was chosen for: "F", "certificate", or "all horizons" (F at all of them together)
    lr: float
    values: list[float | None]  # F − inf F
    certificates: list[float | None]  # ‖ḡ‖ + cV of the last tenth


def learning_rate(oracle: Oracle, arm: Arm, exponent: float) -> float:
    """Return 2^k in units that suit the problem: lr/(1 − β) in F*/G², or in F*/(G√d) where steps are Adam's."""
    problem = oracle.problem
    unit = problem.gap / problem.lipschitz
    if arm.adam:
        return 2**exponent * unit / math.sqrt(problem.dimension)
    return 2**exponent * unit / problem.lipschitz * (1 - arm.momentum)


def measure(
    oracle: Oracle, pairs: Sequence[tuple[str, float]], horizons: Sequence[int], seeds: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return F and certificate (pairs, seeds, horizons) of arms with exponents; c = G³/F*²."""
    rows = [Row(ARMS[name], learning_rate(oracle, ARMS[name], k), seed) for name, k in pairs for seed in seeds]
    found, c = run(oracle, rows, horizons), oracle.problem.lipschitz**3 / oracle.problem.gap**2
    shape = (len(pairs), len(seeds), len(horizons))
    return found.value.view(shape), (found.gradient + c * found.spread).view(shape)


def compare(
    name: str, arms: Sequence[str], horizons: Sequence[int], tuning: Sequence[int], seeds: Sequence[int]
) -> list[Result]:
    """Tune arms on one problem and measure them: a grid of factor 4 that is widened, then refined to 2 and √2."""
    oracle, scores = PROBLEMS[name], dict[str, dict[float, list[float]]]()

    def attempt(pairs: Sequence[tuple[str, float]]) -> None:
        new = [(arm, k) for arm, k in dict.fromkeys(pairs) if k not in scores.get(arm, {})]
        if not new:
            return
        means = [
            torch.where(part.isnan(), math.inf, part).clamp(min=1e-300).log().mean(1)
            for part in measure(oracle, new, horizons, tuning)
        ]
        last = means[1] if len(horizons) == 1 else means[0].sum(1, keepdim=True)
        for (arm, k), score in zip(new, torch.cat([means[0], last], dim=1).tolist(), strict=True):
            scores.setdefault(arm, {})[k] = score

    def best(arm: str) -> list[float]:
        """Return the best exponent for F at every horizon, then for the certificate or for all horizons together."""
        return [min(scores[arm], key=lambda k: scores[arm][k][i]) for i in range(len(horizons) + 1)]

    attempt([(arm, k) for arm in arms for k in COARSE])
    for _ in range(WIDENINGS):
        edges = {arm: {min(scores[arm]): -2.0, max(scores[arm]): 2.0} for arm in arms}
        attempt([(arm, k + edges[arm][k]) for arm in arms for k in best(arm) if k in edges[arm]])
    for step in (1.0, 0.5):
        attempt([(arm, k + sign * step) for arm in arms for k in best(arm) for sign in (-1, 1)])
    pairs = list(dict.fromkeys((arm, k) for arm in arms for k in best(arm)))
    values, certificates = measure(oracle, pairs, horizons, seeds)
    other, results = "certificate" if len(horizons) == 1 else "all horizons", []
    for arm in arms:
        for i, horizon in enumerate(horizons):
            for tuned, k in (("F", best(arm)[i]), (other, best(arm)[-1])):
                place, lr = pairs.index((arm, k)), learning_rate(oracle, ARMS[arm], k)
                found = [[_short(v) for v in part[place, :, i].tolist()] for part in (values, certificates)]
                results.append(Result(name, arm, horizon, tuned, float(f"{lr:.6g}"), *found))
    return results


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


# ---- the traps


class Trapped(NamedTuple):
    """An arm on a trap: of all learning rates and seeds, how many end above their start, how many are held."""

    trap: str
    arm: str
    runs: int
    above: int  # with a linear decay, F(end) > F(start)
    held: int  # at a constant learning rate, the mean gradient of the last tenth is half of the trap's slope or more
    ratio: float  # F(end)/F(start) with a linear decay, the geometric mean over the runs


def trap_rows(problem: Resonance | Climber, arm: Arm, factors: Sequence[float], seeds: Sequence[int]) -> list[Row]:
    """Return runs at multiples of the learning rate that is trapped; our buffer is a sum, the traps' a mean."""
    momentum = problem.momentum if isinstance(problem, Resonance) else 0.9
    unit = problem.lr * (1 - momentum)
    return [Row(replace(arm, momentum=momentum), unit * factor, seed) for factor in factors for seed in seeds]


def count_trapped(name: str, seeds: Sequence[int], steps: int) -> list[Trapped]:
    """Run all arms of RANDOM on one trap, decayed and at a constant learning rate."""
    problem, primed = TRAPS[name]
    start = problem.value(problem.start()).item()
    slope = problem.trap.slope - (problem.valley if isinstance(problem, Climber) else 0.0)
    decayed, constant = (
        run(
            Additive(problem, 0.0),
            [row for arm in RANDOM.values() for row in trap_rows(problem, replace(arm, decay=decay), FACTORS, seeds)],
            [steps],
            near=0.0,
            primed=primed,
        )
        for decay in (1.0, None)
    )
    ends, gradients = decayed.value.view(len(RANDOM), -1), constant.gradient.view(len(RANDOM), -1)
    ratios = (ends / start).clamp(min=1e-300).log().mean(1).exp().tolist()
    above, held = (ends > start + 1e-9).sum(1).tolist(), (gradients >= slope / 2).sum(1).tolist()
    runs = ends.shape[1]
    return [Trapped(name, arm, runs, *found) for arm, *found in zip(RANDOM, above, held, ratios, strict=True)]


def steps_to_freedom(width: float, seeds: Sequence[int], patience: int) -> list[float | None]:
    """Return by seed the steps until F of the climber is halved, s ~ U(1 − w, 1 + w), at the trapped lr."""
    problem = Climber(1)
    rows = trap_rows(problem, Arm(Uniform(1 - width, 1 + width), decay=None), [1.0], seeds)
    found = run(Additive(problem, 0.0), rows, [patience], near=0.0, primed=True, goal=problem.gap / 2)
    return [_short(value) for value in found.first.tolist()]


# ---- tables and pictures: logarithms of ratios to SGDM, seed by seed


class Ratio(NamedTuple):
    """A geometric mean over the problems, relative to SGDM with a linear decay."""

    log: float  # the mean of its logarithm over the seeds
    deviation: float  # and the standard deviation

    def __str__(self) -> str:
        if math.isnan(self.log):
            return kit.NONE
        if math.isinf(self.log):
            return "∞"
        value = math.exp(self.log)
        return f"{value:.{2 if value < 100 else 0}f} ± {self.deviation:.2f}"


class Findings:
    """Results by what they are of."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._by = {(r.arm, r.problem, r.horizon, r.tuned): r for r in results}
        self.problems = list(dict.fromkeys(r.problem for r in results))
        self.horizons = sorted({r.horizon for r in results})

    def logs(self, arm: str, problem: str, horizon: int, tuned: str = "F", what: str = "F") -> list[float]:
        """Return the logarithms of the ratio to SGDM, for every seed that both were run with."""
        wanted = "certificate" if tuned == "certificate" else "F"
        pair = self._by.get((arm, problem, horizon, tuned)), self._by.get((REFERENCE, problem, horizon, wanted))
        if pair[0] is None or pair[1] is None:
            return []
        of = PROBLEMS[problem].problem
        least = FLOOR[what] * (of.gap if what == "F" else of.lipschitz)
        columns = (
            [math.inf if v is None else max(v, least) for v in (r.values if what == "F" else r.certificates)]
            for r in pair
            if r is not None
        )
        return [math.log(a) - math.log(b) for a, b in zip(*columns, strict=False)]

    def ratio(self, arm: str, horizon: int, tuned: str = "F", what: str = "F") -> Ratio:
        """Return the geometric mean over all problems on which the arm was run."""
        known = [self.logs(arm, problem, horizon, tuned, what) for problem in self.problems]
        by_seed = [fmean(logs) for logs in zip(*filter(None, known), strict=True)]
        if not by_seed:
            return Ratio(math.nan, 0.0)
        spread = stdev(by_seed) if len(by_seed) > 1 and all(map(math.isfinite, by_seed)) else 0.0
        return Ratio(fmean(by_seed), spread)

    @property
    def law_horizons(self) -> list[int]:
        """The horizons at which laws were run."""
        return [h for h in self.horizons if not math.isnan(self.ratio("Exp(1)", h).log)]


def deviation(law: Any) -> float:
    """Return the standard deviation of a law of mean 1."""
    return math.sqrt(law.second_moment - 1)


def costs_table(found: Findings) -> kit.Table:
    """Return what randomness costs with a linear decay."""
    last, rows = found.law_horizons[-1], []
    for name, arm in RANDOM.items():
        law: Any = arm.law
        about = [kit.NONE] * 2 if law is None else [f"{deviation(law):.2f}", f"{law.price:.3g}"]
        cells = [found.ratio(name, h) for h in found.law_horizons]
        cells += [found.ratio(name, last, tuned, "certificate") for tuned in ("F", "certificate")]
        rows.append([name, *about, *map(str, cells)])
    head = ["", "std of s", "L", *(f"F, {h:,} steps" for h in found.law_horizons), "certificate", "the same, own lr"]
    notes = (
        "F, certificate: geometric mean over the problems against SGDM, both with a linear decay and a tuned lr; own "
        f"lr: for the certificate; ± std of its log; certificates below {FLOOR['certificate']:g}·G count as that"
    )
    return kit.Table(head, rows, "What randomness costs", notes)


def horizons_table(found: Findings) -> kit.Table:
    """Return how runs without a horizon compare with runs that were decayed to end there."""
    rows = []
    for name in (REFERENCE, "Nesterov", *DECAYED, *FREE):
        cells = [str(found.ratio(name, h)) for h in found.horizons]
        cells += [str(found.ratio(name, h, "all horizons")) for h in found.horizons]
        rows.append([name, *cells])
    head = ["F against SGDM", *(f"{h:,} steps{more}" for more in ("", ", one lr") for h in found.horizons)]
    notes = "SGDM has a linear decay to every horizon and an lr tuned for it; one lr: tuned for all horizons together"
    return kit.Table(head, rows, "Without a horizon", notes)


def traps_table(found: Sequence[Trapped], steps: int) -> kit.Table:
    """Return how many runs end above their start and how many are held, arm by arm."""
    kinds, rows = ("T0", "Z0", "L1", "climber"), []
    for arm in dict.fromkeys(t.arm for t in found):
        own = [t for t in found if t.arm == arm]
        ratios = [f"{t.ratio:.2g}" for t in own if t.trap.startswith("climber")]
        groups = [[t for t in own if t.trap.startswith(kind)] for kind in kinds]
        held = [
            f"{sum(t.held for t in part)} of {sum(t.runs for t in part)}" if part else kit.NONE for part in groups
        ]
        rows.append([arm, f"{sum(t.above for t in own)} of {sum(t.runs for t in own)}", *ratios, *held])
    head = ["", "ends above its start", "F, d = 1", "F, d = 10", *(f"held: {kind}" for kind in kinds)]
    notes = (
        f"{steps:,} steps, seven learning rates around the trapped one. Above, F(end)/F(start) of the climber: with "
        "a linear decay. Held: at a constant lr the mean gradient of the last tenth is half of the slope or more"
    )
    return kit.Table(head, rows, "The traps", notes)


def problems_table(found: Findings, horizon: int) -> kit.Table:
    """Return every arm's ratio of F to SGDM's, problem by problem."""
    rows = []
    for name in ARMS:
        logs = [found.logs(name, problem, horizon) for problem in found.problems]
        if any(logs):
            rows.append([name, *(f"{math.exp(min(fmean(own), 99.0)):.2g}" if own else kit.NONE for own in logs)])
    notes = "; ".join(f"{i}: {name}" for i, name in enumerate(found.problems, 1))
    head = ["", *(str(i) for i in range(1, len(found.problems) + 1))]
    return kit.Table(head, rows, f"F against SGDM's after {horizon:,} steps", notes)


def law_figure(found: Findings, freedom: Mapping[float, Sequence[float | None]]) -> "Figure":
    """Draw how long a trapped run takes to get free, and what a law costs as measured."""
    figure, last = kit.new_figure(9.4, 4.2), found.law_horizons[-1]
    left, right = figure.subplots(1, 2)
    spread = "standard deviation of s"
    medians = {w: median(math.inf if n is None else n for n in own) for w, own in freedom.items()}
    for is_free, mark, colour in ((True, "o-", "blue"), (False, "x", "red")):
        own = {deviation(Uniform(1 - w, 1 + w)): n for w, n in medians.items() if math.isfinite(n) == is_free}
        left.plot([*own], [min(n, PATIENCE) for n in own.values()], mark, color=kit.COLOURS[colour])
    kit.style_panel(left, "How long the climber is trapped (×: to the end)", spread, "steps until F is halved")
    for label, colour, mark, prefix, what in (
        ("F", "blue", "o", "", "F"),
        ("F, Nesterov", "black", "D", "Nesterov, ", "F"),
        ("certificate", "green", "^", "", "certificate"),
    ):
        names = [name for name in LAWS if prefix + name in RANDOM]
        values = [math.exp(found.ratio(prefix + name, last, "F", what).log) for name in names]
        right.plot([deviation(LAWS[name]) for name in names], values, mark, color=kit.COLOURS[colour], label=label)
    right.axhline(1.0, color=kit.COLOURS["grey"], linewidth=1.0)
    kit.style_panel(right, f"What it costs, {last:,} steps", spread, "against momentum without a law")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
        axes.set_xticks([0.05, 0.1, 0.2, 0.5, 1.0], ["0.05", "0.1", "0.2", "0.5", "1"])
        axes.xaxis.set_minor_formatter("")
    right.set_yticks([0.5, 1, 2, 3], ["0.5", "1", "2", "3"])
    right.yaxis.set_minor_formatter("")
    right.legend(frameon=False)
    return figure


def horizon_figure(found: Findings) -> "Figure":
    """Draw F of runs without a horizon against that of SGDM with a linear decay."""
    figure = kit.new_figure(8.6, 4.4)
    axes = figure.subplots()
    styles = {
        "constant, last iterate": ("grey", "--"),
        "constant, x̄ by t^12": ("blue", "-"),
        "lr t^−½, x̄ by t^12": ("sky", "-"),
        "SGDM, last 20 % decayed": ("orange", "s"),
        "Nesterov": ("black", "o"),
        "AdamW": ("green", "D"),
    }
    for name, (colour, line) in styles.items():
        ratios = {h: math.exp(found.ratio(name, h).log) for h in found.horizons}
        label = name if name in FREE else f"{name}, a run for every length"
        axes.plot([*ratios], [*ratios.values()], line, color=kit.COLOURS[colour], label=label)
    axes.axhline(1.0, color=kit.COLOURS["red"], linewidth=1.2, label="momentum, linear decay to every length")
    axes.set_yscale("log")
    kit.horizon_axis(axes, found.horizons)
    kit.style_panel(axes, "13 non-smooth problems, geometric mean", "steps", "F against momentum with a linear decay")
    figure.legend(frameon=False, fontsize=9, loc="outside right center")
    return figure


def main(
    out: Path, seed: int = 0, seeds: int = 10, quick: bool = False, workers: int = 2, quiet: bool = False
) -> None:
    """Tune and measure all arms on all problems, and count the traps."""
    if min(seed, seeds - 1, workers - 1) < 0:
        raise kit.UsageError("--seed is at least 0, --seeds and --workers at least 1")
    terminal, names = kit.Terminal(quiet), list(PROBLEMS)[2:6:3] if quick else list(PROBLEMS)
    horizons = (100, 200, 400) if quick else HORIZONS
    count = 2 if quick else TUNING_SEEDS
    tuning, own = range(seed + TUNING_SEED, seed + TUNING_SEED + count), range(seed, seed + (2 if quick else seeds))
    few = tuning[: -(-len(tuning) // 2)], own[: -(-len(own) // 2)]
    plans: dict[str, Any] = {f"laws, {h} steps": ([*RANDOM, *DECAYED], [h], tuning, own) for h in horizons[:-1]}
    plans["decays"] = ([REFERENCE, "Nesterov", *DECAYED], [horizons[-1]], *few)
    plans["no horizon"] = ([*FREE], horizons, *few)
    steps, patience = (TRAP_STEPS // 10, PATIENCE // 10) if quick else (TRAP_STEPS, PATIENCE)
    work: dict[str, Any] = {f"{name}: {plan}": (compare, name, *plans[plan]) for name in names for plan in plans}
    work |= {f"trap {t}": (count_trapped, t, range(1 if quick else TRAP_SEEDS), steps) for t in TRAPS}
    work |= {f"freedom {w}": (steps_to_freedom, w, range(3 if quick else FREE_SEEDS), patience) for w in WIDTHS}
    defaults = {"seed": 0, "seeds": 10, "quick": False}
    command = kit.written_command("o2nc paper nonsmooth", {"seed": seed, "seeds": seeds, "quick": quick}, defaults)
    about = kit.circumstances(command, seeds=[*own], tuning_seeds=[*tuning])
    kit.make_folder(out)
    store = kit.Store(out / "nonsmooth.json", {"seed": seed, "seeds": seeds, "quick": quick}, about)
    left = {key: job for key, job in work.items() if key not in store.runs}
    in_processes(left, workers, terminal, store.add)
    runs = {key: store.runs[key] for key in work}
    found = Findings([Result(*row) for key, rows in runs.items() if ": " in key for row in rows])
    trapped = [Trapped(*row) for key, rows in runs.items() if key.startswith("trap") for row in rows]
    freedom = {width: runs[f"freedom {width}"] for width in WIDTHS}
    tables = [costs_table(found), horizons_table(found), traps_table(trapped, steps)]
    details = [problems_table(found, horizon) for horizon in found.horizons]
    text = "\n\n".join(table.markdown() for table in [*tables, *details])
    kit.write_text(out / "nonsmooth.md", f"# Non-smooth problems\n\n`{command}`\n\n{text}\n")
    figures = {"nonsmooth_laws": law_figure(found, freedom), "nonsmooth_horizons": horizon_figure(found)}
    for name, figure in figures.items():
        kit.write_bytes(out / f"{name}.png", kit.draw(figure, "png"))
    pictures = [(figure, "") for figure in figures.values()]
    sections = [kit.Section("Costs, traps and horizons", pictures=pictures, tables=[*tables, *details])]
    lead = "Momentum with a law of s, tuned, against the same without one; and runs that need no horizon."
    kit.write_page(out / "report.html", "Non-smooth problems", lead, sections, about)
    for table in tables:
        terminal.table(table)
    terminal.say(f"written to {out}: nonsmooth.json, nonsmooth.md, pictures and report.html")


if __name__ == "__main__":
    kit.run_script(main)
