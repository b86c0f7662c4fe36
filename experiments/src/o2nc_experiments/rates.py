"""``o2nc paper rates``: certificates against the number of steps, beside the theorems' bounds.

    o2nc paper rates                # two cores: five minutes
    o2nc paper rates --seeds 3

Result (docs/paper.md; two cores, torch 2.13, 8 seeds, N = 2¹⁰ … 2¹⁷): no bound is exceeded; the least bound/value
is 1.95 with the sharp constants and 3.77 with the printed ones.

Promised and attained at beliefs of G and σ ("guarantees") ran at commit 48cebb2; Algorithm 1, the traps one by one
and the hard chain at cf6f9b7. docs/paper.md keeps their tables.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import stats

from o2nc import Exponential, Law, problems, theory
from o2nc.problems import Additive, Oracle, Subsampled
from o2nc_experiments import kit
from o2nc_experiments.runs import Setting, algorithm_2, in_processes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEEDS, LARGEST = 8, 17  # seeds, and log₂ of the longest run


class Study(NamedTuple):
    """A problem with its noise, how c is chosen, and the exponent of N in the theorem's rate."""

    oracle: Oracle
    regime: str = "c"  # or "smoothness", "second_order"
    exponent: float = -2 / 7

    def plan(self, steps: int, constants: str) -> theory.Plan:
        """Return the theorem's hyperparameters."""
        problem = self.oracle.problem
        options: dict[str, Any] = {self.regime: 1.0 if self.regime == "c" else getattr(problem, self.regime)}
        options |= {"gap": problem.gap, "lipschitz": problem.lipschitz, "noise": self.oracle.noise}
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
    out: Path = Path("o2nc-rates"),
    seed: int = 0,
    seeds: int = SEEDS,
    largest: int = LARGEST,
    workers: int = 2,
    quiet: bool = False,
) -> None:
    """Measure certificates against the number of steps; exit code 1 if a bound of a theorem is exceeded.

    Args:
        out: folder of the results; finished studies are not repeated.
        seed: the first seed.
        seeds: number of seeds.
        largest: the longest runs have 2^LARGEST steps.
        workers: processes.
        quiet: print nothing.
    """
    kit.at_least(0, seed=seed)
    kit.at_least(1, seeds=seeds, workers=workers)
    kit.at_least(12, largest=largest)
    terminal, lengths, own = kit.Terminal(quiet), [2**k for k in range(10, largest + 1)], range(seed, seed + seeds)
    asked = {"seed": seed, "seeds": seeds, "largest": largest}
    about = kit.circumstances(kit.written_command("o2nc paper rates", main, **asked), seeds=[*own], steps=lengths)
    store = kit.Store(kit.make_folder(out) / "rates.json", asked, about)
    work = {title: (curves, title, lengths, own) for title in STUDIES if title not in store.runs}
    in_processes(work, workers, terminal, store.add)
    found = [Curve(*row) for title in STUDIES for row in store.runs[title]]
    table = curves_table(found)
    kit.write_text(out / "rates.md", table.markdown() + "\n")
    kit.write_bytes(out / "rates.png", kit.draw(picture(found), "png"))
    over = [f"{curve.study}, {curve.arm}" for curve in found if curve.slack < 1]
    lead = f"not respected: {'; '.join(over)}" if over else "All stay below the bounds of their theorems."
    terminal.table(table)
    terminal.say(f"{lead} Written to {out}: rates.json, rates.md, rates.png")
    if over:
        raise SystemExit(1)


if __name__ == "__main__":
    kit.run_script(main)
