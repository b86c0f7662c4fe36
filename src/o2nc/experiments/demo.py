"""The climber: momentum that walks uphill for ever, and the same momentum with random scaling.

Both are `ScaledSGDM` with the same arguments on the same objective (`o2nc.problems.Climber`), from the same start; the
one difference is ``scaling``. Without it nothing is random, so one run stands for all seeds.
"""

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.table import Table

import o2nc
from o2nc.problems import Climber

DIMENSIONS = (1, 10)
MOMENTUM = 0.9  # and the dampening: the buffer is a mean of gradients
AVERAGE = 0.999  # the certificate looks back over about 1000 steps
C = 1e-5  # the price of spread: ten periods away from the mean cost 0.001, about what ‖ḡ‖ is with scaling
POINTS = 200  # recorded per run

Progress = Callable[[int], object]
PLAIN, SCALED = "without scaling", "with scaling"


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


def plan(seeds: Sequence[int], dimensions: Sequence[int] = DIMENSIONS) -> list[tuple[int, str, int | None]]:
    """Return dimension, method and seed of every run, in order."""
    methods = [(PLAIN, None), *((SCALED, seed) for seed in seeds)]
    return [(d, method, seed) for d in dimensions for method, seed in methods]


def climb(
    dimension: int, method: str, seed: int | None, steps: int, progress_callback: Progress | None = None
) -> Run:
    """Make one run, one line of `plan`; the other arguments are those of `run`."""
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
        The runs, in the order of `plan`.

    Example:
        >>> plain, scaled = run(seeds=[0], steps=50, dimensions=[1])
        >>> f"{plain.values[0]:.2f} -> {plain.values[-1]:.2f}"  # 0.1 uphill in every step
        '0.53 -> 5.53'
    """
    return [climb(*trial, steps, progress_callback) for trial in plan(seeds, dimensions)]


def table(results: Sequence[Run]) -> Table:
    """Return one row per run."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, caption_justify="left")
    grid.caption = (
        f"Certificate: ‖ḡ‖ + cV with c = {C:g}. Progress: the optimizer's own estimate of the change of F.\n"
        "Seed any: without scaling nothing is random, every seed gives this run."
    )
    grid.add_column("d", justify="right")
    grid.add_column("method", no_wrap=True)
    for name in ("seed", "F start", "F end", "‖ḡ‖", "V", "certificate", "progress"):
        grid.add_column(name, justify="right", no_wrap=True)
    for i, r in enumerate(results):
        last_of_dimension = i + 1 < len(results) and results[i + 1].dimension != r.dimension
        grid.add_row(
            f"{r.dimension}",
            r.method,
            "any" if r.seed is None else f"{r.seed}",
            f"{r.values[0]:.2f}",
            f"{r.values[-1]:.2f}",
            f"{r.gradients[-1]:.4f}",
            f"{r.spreads[-1]:.4g}",
            f"{r.certificates[-1]:.4f}",
            f"{r.progress:+.1f}",
            style="bold" if r.method == PLAIN else "",
            end_section=last_of_dimension,
        )
    return grid


VERMILION, BLUES = "#D55E00", ("#0072B2", "#56B4E9", "#003F66")  # told apart by all common kinds of colour vision


def plot(results: Sequence[Run], path: Path) -> None:
    """Draw F and the certificate over the steps, one row per dimension."""
    dimensions = sorted({r.dimension for r in results})
    figure = Figure(figsize=(8.5, 0.9 + 2.75 * len(dimensions)), dpi=150, layout="constrained")
    panels = figure.subplots(len(dimensions), 2, sharex=True, squeeze=False)
    for row, d in zip(panels, dimensions, strict=True):
        runs = [r for r in results if r.dimension == d]
        _draw(row[0], runs, [r.values for r in runs])
        _draw(row[1], runs, [r.certificates for r in runs])
        row[0].set_ylabel(f"{d} dimension{'s' if d > 1 else ''}\n", fontweight="bold")
    panels[0][0].set_title("Objective F: lower is better")
    panels[0][1].set_title(f"Certificate ‖ḡ‖ + cV, c = {C:g}: lower is better")
    for axes in panels[-1]:
        axes.set_xlabel("steps")
    figure.savefig(path)


def _draw(axes: Axes, runs: Sequence[Run], curves: Sequence[list[float]]) -> None:
    blues = iter(BLUES * len(runs))
    for r, curve in zip(runs, curves, strict=True):
        if r.method == PLAIN:
            axes.plot(r.steps, curve, color=VERMILION, linewidth=2.5)
        else:
            axes.plot(r.steps, curve, color=next(blues), linewidth=1.1)
    axes.set_yscale("log")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def circumstances(seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """Return what is needed to make the results again."""
    return {
        "command": f"o2nc demo --seed {seeds[0]} --steps {steps}",
        "seeds": list(seeds),
        "steps": steps,
        "c": C,
        "momentum": MOMENTUM,
        "average": AVERAGE,
        "o2nc": o2nc.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
    }
