"""Rates, traps and the hard chain as tables and as a picture."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich import box
from rich.table import Table

from o2nc_experiments.extremes import BETA, CHAIN, STEPS, C, Escape, Search
from o2nc_experiments.figures import BLUE, GREEN, GREY, VERMILION
from o2nc_experiments.rates import ARMS, ORIGINAL, Curve, Study, least_error, studies

STYLES: dict[str, tuple[str, Any, str | None]] = {
    "sharp": (BLUE, "-", "o"),
    "sharp, s = 1": (BLUE, ":", None),
    "paper": (VERMILION, "-", "s"),
    "paper, s = 1": (VERMILION, ":", None),
    ORIGINAL: (GREEN, "-", "^"),
}


def _grid(*columns: str, left: Sequence[str] = (), caption: str) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption=caption, caption_justify="left")
    for name in columns:
        grid.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return grid


WRONG = "[bold red]WRONG[/bold red]"
WIDE = 112  # columns of a terminal from which on nothing is left out


def rates_table(curves: Sequence[Curve], width: int = WIDE) -> Table:
    """Return one row per arm, study by study; a narrow terminal gets fewer columns."""
    caption = (
        "first, last: mean certificate at the fewest and the most steps; slope: over all N, tail: over the larger\n"
        "half, with 95 % intervals over the seeds; bound/value: the least over N, WRONG below 1\n"
        "shallow: the tail is flatter than the theorem's rate, which short runs may be: a bound promises no slope"
    )
    narrow = width < WIDE
    columns = ("arm", "first", "last", "slope", "tail", "theorem", "bound/value", "")
    kept = [i for i, name in enumerate(columns) if not (narrow and name in ("first", "slope", "theorem"))]
    grid = _grid(*(columns[i] for i in kept), left=("arm",), caption="" if narrow else caption)
    title = None
    for curve in curves:
        if curve.study != title:
            title = curve.study
            grid.add_row(f"[bold]{title}[/bold]")
        cells = (
            f"  {curve.arm}",
            f"{curve.means[0]:.4f}",
            f"{curve.means[-1]:.4f}",
            _interval(*curve.slope),
            _interval(*curve.tail),
            f"{curve.exponent:.3f}" if curve.bounds else "–",
            f"{curve.slack:.2f}" if curve.bounds else "–",
            "" if not curve.bounds else WRONG if not curve.agrees else "shallow" if curve.shallow else "ok",
        )
        grid.add_row(*(cells[i] for i in kept))
    return grid


def _interval(middle: float, half: float) -> str:
    return f"{middle:.3f} ± {half:.3f}" if math.isfinite(half) else f"{middle:.3f}"


def traps_table(found: Sequence[Escape], width: int = WIDE) -> Table:
    """Return one row per trap, without scaling (1) and with it (Exp) side by side; fewer columns if it is narrow."""
    caption = (
        f"‖ḡ‖, certificate ‖ḡ‖ + cV (c = {C:g}, β = {BETA:g}): means over the second half of {STEPS} steps;\n"
        "change: F(last) − F(start); (1): s = 1; (Exp): s ~ Exp(1), range over the seeds"
    )
    reads: dict[str, Callable[[Escape], float]] = {
        "‖ḡ‖": lambda e: e.gradient,
        "certificate": lambda e: e.certificate,
        "change": lambda e: e.change,
    }
    if width < WIDE:
        del reads["certificate"]
    columns = [f"{name} ({law})" for name in reads for law in ("1", "Exp")]
    grid = _grid("trap", *columns, left=("trap",), caption=caption if width >= WIDE else "")
    for name in dict.fromkeys(e.trap for e in found):
        groups = [[e for e in found if e.trap == name and e.scaled == scaled] for scaled in (False, True)]
        grid.add_row(name, *(_range([read(e) for e in group]) for read in reads.values() for group in groups))
    return grid


def _range(values: Sequence[float]) -> str:
    if not values:
        return "–"
    low, high = (f"{v:.2g}" if abs(v) < 10 else f"{v:.0f}" for v in (min(values), max(values)))
    low, high = ("0" if abs(float(v)) < 1e-9 else v for v in (low, high))
    return low if low == high else f"{low} to {high}"


def chain_table(found: Sequence[Search]) -> Table:
    """Return one row per ε."""
    caption = (
        f"F* = {CHAIN['gap']:g}, G = σ = {CHAIN['lipschitz']:g}, c = {CHAIN['c']:g}; "
        "needed: half of all runs take longer;\n"
        "taken: median of the fastest setting; early: a setting's runs below needed"
    )
    grid = _grid("ε", "links", "p", "needed", "taken", "taken/needed", "early", "runs", "", caption=caption)
    for s in sorted(found, key=lambda s: -s.eps):
        verdict = "ok" if s.agrees else WRONG
        runs = f"{s.settings} × {s.seeds}"
        ratio = f"{s.taken / s.needed:.2f}"
        cells = (f"{s.eps:g}", s.links, f"{s.probability:.4f}", s.needed, f"{s.taken:.0f}", ratio, s.early)
        grid.add_row(*map(str, cells), runs, verdict)
    return grid


def figure(curves: Sequence[Curve], *, complete: bool = True) -> Figure:
    """Draw one panel per study: certificates against N, bounds dashed, the lower bound at the foot."""
    names = titles(curves)
    columns = min(4, len(names) + 1)
    rows = -(-(len(names) + 1) // columns)
    picture = Figure(figsize=(3.6 * columns, 3.2 * rows + 0.5), dpi=150, layout="constrained")
    panels = list(picture.subplots(rows, columns, squeeze=False, sharex=True).flat)
    for i, (axes, name) in enumerate(zip(panels, names, strict=False)):
        panel(axes, name, [c for c in curves if c.study == name])
        axes.set_title(f"{name}\n{setting(name)}", fontsize=10)
        if i % columns == 0:
            axes.set_ylabel("mean of ‖ḡ‖ + cV")
        if i + columns >= len(names):
            axes.set_xlabel("steps N")
            axes.tick_params(labelbottom=True)
    for axes in panels[len(names) :]:
        axes.axis("off")
    panels[len(names)].legend(handles=legend(), loc="center", frameon=False, fontsize=10)
    title = "Measured certificates against the theorems' bounds" + ("" if complete else " (interrupted)")
    picture.suptitle(title, fontsize=14, fontweight="bold")
    return picture


def titles(curves: Sequence[Curve]) -> list[str]:
    """Return the studies that the curves belong to, in order."""
    return [study.title for study in studies() if any(c.study == study.title for c in curves)]


def setting(title: str) -> str:
    """Return c and σ of a study."""
    study = _study(title)
    chosen = {"smoothness": "c = H²/ε", "second_order": "c = ρ/2"}
    price = f"c = {study.c:g}" if study.c is not None else chosen[study.regime]
    return f"{price}, σ = {study.oracle.noise:.2g}"


def _study(title: str) -> Study:
    return next(s for s in studies() if s.title == title)


def panel(axes: Axes, title: str, curves: Sequence[Curve]) -> None:
    """Draw the curves of one study, with bounds, without a title."""
    for curve in curves:
        colour, line, marker = STYLES[curve.arm]
        values = np.array(curve.values)
        axes.plot(curve.steps, curve.means, color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1.6)
        if line == "-":
            axes.fill_between(curve.steps, values.min(1), values.max(1), color=colour, alpha=0.18, linewidth=0)
        if curve.bounds:
            axes.plot(curve.steps, curve.bounds, color=colour, linestyle="--", linewidth=1.0, alpha=0.8)
    problem, first = _study(title).oracle.problem, curves[0]
    floor = [
        least_error(n, c, gap=problem.gap, lipschitz=problem.lipschitz)
        for n, c in zip(first.steps, first.c, strict=True)
    ]
    axes.plot(first.steps, floor, color=GREY, linestyle="-.", linewidth=1.0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def legend() -> list[Line2D]:
    """Return what the lines are."""
    names = {
        "sharp": "sharp constants, s ~ Exp(1)",
        "sharp, s = 1": "sharp constants, s = 1",
        "paper": "paper's constants, s ~ Exp(1)",
        "paper, s = 1": "paper's constants, s = 1",
        ORIGINAL: "Algorithm 1",
    }
    lines = []
    for arm in (*ARMS, ORIGINAL):
        colour, line, marker = STYLES[arm]
        lines.append(Line2D([], [], color=colour, linestyle=line, marker=marker, markersize=4, label=names[arm]))
    lines.append(Line2D([], [], color="black", linestyle="--", linewidth=1.0, label="its theorem's bound"))
    lines.append(Line2D([], [], color=GREY, linestyle="-.", linewidth=1.0, label="lower bound, on the hard instance"))
    return lines


def save(picture: Figure, folder: Path) -> list[Path]:
    """Write the picture as PNG and SVG."""
    paths = [folder / "rates.png", folder / "rates.svg"]
    for path in paths:
        picture.savefig(path)
    return paths
