"""The climber: momentum that walks uphill for ever, and the same momentum with random scaling.

Both are `ScaledSGDM` with the same arguments on the same objective (`o2nc.problems.Climber`), from the same start;
the one difference is ``scaling``. Without it nothing is random, so one run stands for all seeds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

import o2nc
from o2nc.experiments.colours import BLUE, SKY, VERMILION
from o2nc.experiments.record import circumstances, write
from o2nc.problems import Climber

DIMENSIONS = (1, 10)
MOMENTUM = 0.9  # and the dampening: the buffer is a mean of gradients
AVERAGE = 0.999  # the certificate looks back over about 1000 steps
C = 1e-5  # the price of spread: ten periods away from the mean cost 0.001, about what ‖ḡ‖ is with scaling
POINTS = 200  # recorded per run

Progress = Callable[[int], object]
UNSCALED, SCALED = "unscaled", "scaled"


@dataclass(frozen=True)
class Run:
    """One run and what was recorded of it.

    Attributes:
        dimension: d.
        method: with or without scaling.
        seed: of the scalars s; None where no random number enters, so that any seed gives this run.
        steps: the numbers of steps after which was recorded, 0 included.
        values: F at the iterate.
        gradients: ‖ḡ‖ of the averages; at 0 the gradient's norm at the start.
        spreads: V of the averages.
        progress: the optimizer's own estimate of F(x_N) − F(x_0).
    """

    dimension: int
    method: str
    seed: int | None
    steps: list[int]
    values: list[float]
    gradients: list[float]
    spreads: list[float]
    progress: float

    @property
    def certificates(self) -> list[float]:
        """‖ḡ‖ + C·V."""
        return [g + C * v for g, v in zip(self.gradients, self.spreads, strict=True)]


def trials(seeds: Sequence[int], dimensions: Sequence[int] = DIMENSIONS) -> list[tuple[int, str, int | None]]:
    """Return dimension, method and seed of every run, in order."""
    methods = [(UNSCALED, None), *((SCALED, seed) for seed in seeds)]
    return [(d, method, seed) for d in dimensions for method, seed in methods]


def climb(
    dimension: int, method: str, seed: int | None, steps: int, progress_callback: Progress | None = None
) -> Run:
    """Make one run, one line of `trials`; the other arguments are those of `run`."""
    problem = Climber(dimension)
    x = problem.start()
    optimizer = o2nc.ScaledSGDM(
        [x],
        lr=problem.lr,
        momentum=MOMENTUM,
        dampening=MOMENTUM,
        scaling=o2nc.Exponential() if method == SCALED else None,
        seed=seed or 0,
        average=AVERAGE,
    )
    recorded = [0]
    values, gradients, spreads = [problem.value(x).item()], [problem.gradient(x).norm().item()], [0.0]
    every = max(1, steps // POINTS)
    for t in range(1, steps + 1):
        x.grad = problem.gradient(x)
        optimizer.step()
        if t % every == 0 or t == steps:
            certificate = optimizer.certificate(C)
            values.append(problem.value(x).item())
            gradients.append(certificate.gradient)
            spreads.append(certificate.spread)
            if progress_callback is not None:
                progress_callback(t - recorded[-1])
            recorded.append(t)
    return Run(dimension, method, seed, recorded, values, gradients, spreads, optimizer.progress)


def run(
    seeds: Sequence[int],
    steps: int,
    progress_callback: Progress | None = None,
    dimensions: Sequence[int] = DIMENSIONS,
) -> list[Run]:
    """Run the climber in every dimension, once without scaling and with scaling for every seed.

    Args:
        seeds: of the runs with scaling.
        steps: N, at least 1.
        progress_callback: called now and then with the number of steps made since its last call.
        dimensions: the d of the climbers.

    Returns:
        The runs, in the order of `trials`.

    Example:
        >>> plain, scaled = run(seeds=[0], steps=50, dimensions=[1])
        >>> f"{plain.values[0]:.2f} -> {plain.values[-1]:.2f}"  # 0.1 uphill in every step
        '0.53 -> 5.53'
    """
    return [climb(*trial, steps, progress_callback) for trial in trials(seeds, dimensions)]


def table(results: Sequence[Run]) -> Table:
    """Return one row per run."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    grid.caption = (
        f"certificate: ‖ḡ‖ + cV with c = {C:g}\n"
        "progress: own estimate of the change of F; unbiased (if noisy) with scaling\n"
        "seed any: without scaling nothing is random, every seed gives this run"
    )
    for name in ("d", "method", "seed", "F start", "F end", "‖ḡ‖", "V", "certificate", "progress"):
        grid.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for i, r in enumerate(results):
        grid.add_row(
            f"{r.dimension}",
            r.method,
            "any" if r.seed is None else f"{r.seed}",
            f"{r.values[0]:.2f}",
            f"{r.values[-1]:.2f}",
            f"{r.gradients[-1]:.4f}",
            f"{r.spreads[-1]:.3g}",
            f"{r.certificates[-1]:.4f}",
            f"{r.progress:+.1f}",
            style="bold" if r.method == UNSCALED else "",
            end_section=i + 1 < len(results) and results[i + 1].dimension != r.dimension,
        )
    return grid


def summary(results: Sequence[Run]) -> str:
    """Return what was seen, one plain sentence per line."""
    stuck = [r for r in results if r.method == UNSCALED]
    free = [r for r in results if r.method == SCALED]
    sentences = []
    if stuck:
        changes = " and ".join(f"from {r.values[0]:.2f} to {r.values[-1]:.2f} (d = {r.dimension})" for r in stuck)
        estimates = " and ".join(f"{r.progress:+.1f}" for r in stuck)
        sentences.append(
            "Without scaling every step is one period long and meets the same slope again: "
            f"F went {changes}, while the optimizer's own estimate of the change is {estimates}."
        )
    if free:
        ends = " and ".join(
            f"{_range([r.values[-1] for r in free if r.dimension == d])} (d = {d})"
            for d in sorted({r.dimension for r in free})
        )
        sentences.append(
            "With one random scalar s ~ Exp(1) per step, and nothing else changed, "
            f"F ends at {ends}; its least value is 0."
        )
    return "\n".join(sentences)


def _range(values: Sequence[float]) -> str:
    low, high = (f"{v:.1f}" if v >= 10 else f"{v:.2g}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


BLUES = (BLUE, SKY, "#003F66")
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 10.5, "handlelength": 1.4, "columnspacing": 1.5}


def plot(results: Sequence[Run], path: Path) -> None:
    """Draw F and the certificate over the steps, one row per dimension."""
    dimensions = sorted({r.dimension for r in results})
    figure = Figure(figsize=(9.0, 1.3 + 2.6 * len(dimensions)), dpi=150, layout="constrained")
    panels = figure.subplots(len(dimensions), 2, sharex=True, squeeze=False)
    for row, d in zip(panels, dimensions, strict=True):
        runs = [r for r in results if r.dimension == d]
        _draw(row[0], runs, [r.values for r in runs])
        _draw(row[1], runs, [r.certificates for r in runs])
        row[0].set_ylabel(f"{d} dimension{'s' if d > 1 else ''}", fontsize=12)
        row[1].set_yscale("log")
    panels[0][0].set_title("The objective F  (lower is better)", fontsize=12)
    panels[0][1].set_title(f"The certificate ‖ḡ‖ + cV  (c = {C:g}, log scale)", fontsize=12)
    for axes in panels[-1]:
        axes.set_xlabel("steps")
    figure.suptitle("Momentum walks uphill; one random number per step sets it free", fontsize=14, fontweight="bold")
    handles = {line.get_label(): line for line in panels[0][0].lines}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, **LEGEND)
    figure.savefig(path)


def _draw(axes: Axes, runs: Sequence[Run], curves: Sequence[list[float]]) -> None:
    """Draw one curve per run, with the last value of every method at the right end."""
    blues = cycle(BLUES)
    for r, curve in zip(runs, curves, strict=True):
        if r.method == UNSCALED:
            axes.plot(r.steps, curve, color=VERMILION, linewidth=2.6, label="without scaling, any seed")
        else:
            axes.plot(r.steps, curve, color=next(blues), linewidth=1.1, label=f"with scaling, seed {r.seed}")
    for method, colour in ((UNSCALED, VERMILION), (SCALED, BLUES[0])):
        ends = [curve[-1] for r, curve in zip(runs, curves, strict=True) if r.method == method]
        if ends:
            middle = math.sqrt(min(ends) * max(ends))
            text = _range(ends).replace(" to ", "\nto ")
            place: dict[str, Any] = {
                "xy": (runs[0].steps[-1], middle),
                "xytext": (6, 0),
                "textcoords": "offset points",
            }
            axes.annotate(text, **place, color=colour, fontsize=11, va="center", annotation_clip=False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)


def save(results: Sequence[Run], seeds: Sequence[int], steps: int, path: Path) -> None:
    """Write the runs and their circumstances as JSON."""
    command = f"o2nc demo --seed {seeds[0]} --steps {steps}"
    settings = {"seeds": list(seeds), "steps": steps, "c": C, "momentum": MOMENTUM, "average": AVERAGE}
    record = {
        "circumstances": circumstances(command, **settings),
        "complete": len(results) == len(trials(seeds)),
        "runs": [asdict(r) | {"certificates": r.certificates} for r in results],
    }
    write(path, record)
