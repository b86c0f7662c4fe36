"""The climber drawn: where the first steps land, and F and certificates over the steps."""

import math
from collections.abc import Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from o2nc.problems import Climber
from o2nc_experiments.demo.climber import SCALED, UNSCALED, C, Run
from o2nc_experiments.demo.numbers import span
from o2nc_experiments.figures import BLUE, GREY, SKY, VERMILION
from o2nc_experiments.record import write_bytes

WINDOW = 12.5  # how far to the left of the start places are drawn
LANDING = {
    UNSCALED: "without scaling: the same place on\nevery tooth, a little higher each time",
    SCALED: "with scaling: anywhere",
}
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 10.5, "handlelength": 1.8, "columnspacing": 1.5}


def plot(results: Sequence[Run], path: Path) -> None:
    """Draw where the first steps land in one dimension; then F and the certificate, one row per dimension."""
    dimensions = sorted({r.dimension for r in results})
    figure = Figure(figsize=(9.0, 4.2 + 2.2 * len(dimensions)), dpi=150, layout="constrained")
    grid = figure.add_gridspec(1 + len(dimensions), 2, height_ratios=[1.2] + [1.0] * len(dimensions))
    top = figure.add_subplot(grid[0, :])
    draw_path(top, [r for r in results if r.dimension == 1])
    top.set_title("The slope F, and where the first steps land on it  (1 dimension)", fontsize=12)
    for x, y, method, colour in ((0.02, 0.1, UNSCALED, VERMILION), (0.66, 0.8, SCALED, BLUE)):
        if any(r.method == method for r in results):
            top.text(x, y, LANDING[method], color=colour, fontsize=12, transform=top.transAxes)
    for i, d in enumerate(dimensions, 1):
        runs = [r for r in results if r.dimension == d]
        left, right = (figure.add_subplot(grid[i, j]) for j in (0, 1))
        draw_values(left, runs)
        draw_certificates(right, runs)
        left.set_ylabel(f"{d} dimension{'s' if d > 1 else ''}", fontsize=12)
        if i == 1:
            left.set_title("The value F  (lower is better)", fontsize=12)
            right.set_title(f"The certificate ‖ḡ‖ + cV  (c = {C:g}, log scale)", fontsize=12)
        if i < len(dimensions):
            left.set_xlabel("")
            right.set_xlabel("")
    figure.suptitle("Momentum walks uphill; one random number per step sets it free", fontsize=14, fontweight="bold")
    figure.legend(handles=legend(results), loc="outside lower center", ncols=4, **LEGEND)
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    write_bytes(path, drawn.getbuffer())


def draw_values(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw F over the steps."""
    _draw(axes, runs, [r.values for r in runs])


def draw_certificates(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw ‖ḡ‖ + C·V over the steps."""
    axes.set_yscale("log")
    _draw(axes, runs, [r.certificates for r in runs])


def draw_path(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw F in one dimension, and where the first steps land: without scaling, and of one seed with it."""
    problem = Climber(1)
    shown = [next(r for r in runs if r.method == method) for method in dict.fromkeys(r.method for r in runs)]
    start = problem.start().item()
    right = max(1.0, *(x for r in shown for x in r.path)) + 0.2
    line = torch.arange(start - WINDOW, right, 0.01, dtype=torch.float64)
    axes.plot(line, problem.value(line[:, None]), color=GREY, linewidth=1.0)
    for r, style in reversed(list(zip(shown, _styles(shown), strict=True))):  # few points above many
        x = torch.tensor([x for x in r.path if x > line[0]], dtype=torch.float64)
        axes.plot(x, problem.value(x[:, None]), "o", color=style["color"], markersize=5.0, alpha=0.75)
    place: dict[str, Any] = {"xytext": (8, 36), "textcoords": "offset points", "arrowprops": {"arrowstyle": "->"}}
    axes.annotate("start", (start, problem.value(problem.start()).item()), **place)
    axes.set_xlabel("x")
    axes.set_ylabel("F")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)


def legend(runs: Sequence[Run]) -> list[Line2D]:
    """Return a line for every method and seed."""
    found: dict[str, Line2D] = {}
    for r, style in zip(runs, _styles(runs), strict=True):
        label = "without scaling, any seed" if r.method == UNSCALED else f"with scaling, seed {r.seed}"
        found.setdefault(label, Line2D([], [], label=label, **style))
    return list(found.values())


def _styles(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return how to draw every run: a colour per method, a shade of it per seed."""
    shades: Any = cycle(({"color": BLUE}, {"color": SKY}, {"color": BLUE, "linestyle": (0, (3, 1))}))
    free = {
        seed: next(shades) | {"linewidth": 1.1} for seed in dict.fromkeys(r.seed for r in runs if r.seed is not None)
    }
    return [{"color": VERMILION, "linewidth": 2.6} if r.seed is None else free[r.seed] for r in runs]


def _draw(axes: Axes, runs: Sequence[Run], curves: Sequence[list[float]]) -> None:
    """Draw one curve per run, with the last value of every method at the right end."""
    for r, curve, style in zip(runs, curves, _styles(runs), strict=True):
        axes.plot(r.steps, curve, **style)
    for method, colour in ((UNSCALED, VERMILION), (SCALED, BLUE)):
        ends = [curve[-1] for r, curve in zip(runs, curves, strict=True) if r.method == method]
        if ends:
            middle = math.sqrt(min(ends) * max(ends))
            text = span(ends).replace(" to ", "\nto ")
            place: dict[str, Any] = {
                "xy": (runs[0].steps[-1], middle),
                "xytext": (6, 0),
                "textcoords": "offset points",
            }
            axes.annotate(text, **place, color=colour, fontsize=11, va="center", annotation_clip=False)
    axes.set_xlabel("steps")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0)
