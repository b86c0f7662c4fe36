"""The climber: momentum that walks uphill for ever, and the same momentum with random scaling.

Both are `ScaledSGDM` with the same arguments on the same objective (`o2nc.problems.Climber`), from the same start;
the one difference is ``scaling``. Without it nothing is random, so one run stands for all seeds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import o2nc
from o2nc.problems import Climber
from o2nc_experiments.figures import BLUE, GREY, SKY, VERMILION, style_axes
from o2nc_experiments.pool import Progress, ignore
from o2nc_experiments.tables import Column, Table, signed, span

DIMENSIONS = (1, 10)
MOMENTUM = 0.9  # and the dampening: the buffer is a mean of gradients
AVERAGE = 0.999  # the certificate looks back over about 1000 steps
C = 1e-5  # the price of spread: ten periods away from the mean cost 0.001, about what ‖ḡ‖ is with scaling
POINTS = 200  # recorded per run
PATH = 40  # the first steps, of which every place is recorded

UNSCALED, SCALED = "unscaled", "scaled"
COLOURS = {UNSCALED: VERMILION, SCALED: BLUE}
WINDOW = 12.5  # how far to the left of the start places are drawn
LABELS = {
    UNSCALED: "without scaling: the same place on\nevery tooth, a little higher each time",
    SCALED: "with scaling: anywhere",
}
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 10.5, "handlelength": 1.8, "columnspacing": 1.5}


@dataclass(frozen=True)
class Run:
    """One run and what was recorded of it."""

    dimension: int  # d
    method: str  # with or without scaling
    seed: int | None  # of the scalars s; None where no random number enters, so that any seed gives this run
    steps: list[int]  # the numbers of steps after which was recorded, 0 included
    values: list[float]  # F at the iterate
    gradients: list[float]  # ‖ḡ‖ of the averages; at 0 the gradient's norm at the start
    spreads: list[float]  # V of the averages
    progress: float  # the optimizer's own estimate of F(x_N) − F(x_0)
    path: list[float]  # the first coordinate of x_0, x_1, … during the first steps

    @property
    def certificates(self) -> list[float]:
        """‖ḡ‖ + C·V."""
        return [g + C * v for g, v in zip(self.gradients, self.spreads, strict=True)]


def trials(seeds: Sequence[int]) -> list[tuple[int, str, int | None]]:
    """Return dimension, method and seed of every run, in order: once without scaling, with it for every seed."""
    methods = [(UNSCALED, None), *((SCALED, seed) for seed in seeds)]
    return [(d, method, seed) for d in DIMENSIONS for method, seed in methods]


def climb(dimension: int, method: str, seed: int | None, steps: int, progress: Progress = ignore) -> Run:
    """Make one run, one line of `trials`; the progress is called now and then with the steps since its last call.

    Example:
        >>> plain = climb(1, UNSCALED, None, steps=50)
        >>> f"{plain.values[0]:.2f} -> {plain.values[-1]:.2f}"  # 0.1 uphill in every step
        '0.53 -> 5.53'
    """
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
    recorded, path = [0], [x[0].item()]
    values, gradients, spreads = [problem.value(x).item()], [problem.gradient(x).norm().item()], [0.0]
    every = max(1, steps // POINTS)
    for t in range(1, steps + 1):
        x.grad = problem.gradient(x)
        optimizer.step()
        if t <= PATH:
            path.append(x[0].item())
        if t % every == 0 or t == steps:
            certificate = optimizer.certificate(C)
            values.append(problem.value(x).item())
            gradients.append(certificate.gradient)
            spreads.append(certificate.spread)
            progress(t - recorded[-1])
            recorded.append(t)
    return Run(dimension, method, seed, recorded, values, gradients, spreads, optimizer.progress, path)


def table(results: Sequence[Run]) -> Table:
    """Return one row per run; the dimension is left out if it is the same in all."""
    several = len({r.dimension for r in results}) > 1
    names = ("seed", "F start", "F end", "‖ḡ‖", "V", "certificate")
    columns = [*([Column("d")] * several), Column("method", "left"), *map(Column, names)]
    notes = f"certificate: ‖ḡ‖ + cV with c = {C:g}\nseed any: without scaling nothing is random"
    found = Table(columns, notes=notes)
    for i, r in enumerate(results):
        cells = [*([f"{r.dimension}"] * several), r.method, "any" if r.seed is None else f"{r.seed}"]
        cells += [f"{r.values[0]:.2f}", f"{r.values[-1]:.2f}", f"{r.gradients[-1]:.4f}"]
        cells += [f"{r.spreads[-1]:.3g}", f"{r.certificates[-1]:.4f}"]
        ruled = i + 1 < len(results) and results[i + 1].dimension != r.dimension
        found.add(*cells, style="red" if r.method == UNSCALED else "", ruled=ruled)
    return found


def summary(results: Sequence[Run]) -> str:
    """Return what was seen, one plain sentence per line."""
    sentences = []
    if stuck := [r for r in results if r.method == UNSCALED]:
        estimates = " and ".join(signed(r.progress, 1) for r in stuck)
        sentences.append(
            "Without scaling every step is one period long and meets the same slope again: F went "
            f"{changes(results)}, while the optimizer's own estimate of the change is {estimates}."
        )
    if any(r.method == SCALED for r in results):
        sentences.append(
            "With one random scalar s ~ Exp(1) per step, and nothing else changed, "
            f"F ends at {ends(results)}; its least value is 0."
        )
    return "\n".join(sentences)


def changes(results: Sequence[Run]) -> str:
    """Return from where to where F went without scaling."""
    return _by_dimension(results, UNSCALED, lambda own: f"from {own[0].values[0]:.2f} to {own[0].values[-1]:.2f}")


def ends(results: Sequence[Run]) -> str:
    """Return where F ended with scaling."""
    return _by_dimension(results, SCALED, lambda own: span([r.values[-1] for r in own]))


def _by_dimension(results: Sequence[Run], method: str, say: Callable[[list[Run]], str]) -> str:
    """Join what is said of a method's runs in each dimension, which is named if there are several."""
    own = [r for r in results if r.method == method]
    said = {d: say([r for r in own if r.dimension == d]) for d in sorted({r.dimension for r in own})}
    return " and ".join(f"{words} (d = {d})" if len(said) > 1 else words for d, words in said.items())


def plot(results: Sequence[Run]) -> Figure:
    """Draw where the first steps land in one dimension; then F and the certificate, one row per dimension."""
    dimensions = sorted({r.dimension for r in results})
    figure = Figure(figsize=(9.0, 4.2 + 2.2 * len(dimensions)), dpi=150, layout="constrained")
    grid = figure.add_gridspec(1 + len(dimensions), 2, height_ratios=[1.2] + [1.0] * len(dimensions))
    top = figure.add_subplot(grid[0, :])
    draw_path(top, [r for r in results if r.dimension == 1])
    top.set_title("The slope F, and where the first steps land on it  (1 dimension)", fontsize=12)
    for x, y, method in ((0.02, 0.1, UNSCALED), (0.66, 0.8, SCALED)):
        if any(r.method == method for r in results):
            top.text(x, y, LABELS[method], color=COLOURS[method], fontsize=12, transform=top.transAxes)
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
    return figure


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
    axes.set(xlabel="x", ylabel="F")
    style_axes(axes)
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
    seeds = dict.fromkeys(r.seed for r in runs if r.seed is not None)
    free = {seed: next(shades) | {"linewidth": 1.1} for seed in seeds}
    return [{"color": VERMILION, "linewidth": 2.6} if r.seed is None else free[r.seed] for r in runs]


def _draw(axes: Axes, runs: Sequence[Run], curves: Sequence[list[float]]) -> None:
    """Draw one curve per run, with the last value of every method at the right end."""
    for r, curve, style in zip(runs, curves, _styles(runs), strict=True):
        axes.plot(r.steps, curve, **style)
    for method, colour in COLOURS.items():
        ends = [curve[-1] for r, curve in zip(runs, curves, strict=True) if r.method == method]
        if ends:
            middle = math.sqrt(min(ends) * max(ends))
            text = span(ends).replace(" to ", "\nto ")
            place: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "annotation_clip": False}
            axes.annotate(text, (runs[0].steps[-1], middle), **place, color=colour, fontsize=11, va="center")
    axes.set_xlabel("steps")
    style_axes(axes)
    axes.margins(x=0)
