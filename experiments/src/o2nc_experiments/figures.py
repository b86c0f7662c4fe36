"""What all pictures share: colours, bare axes, files; and the picture of one run against a run for every horizon.

The colours can be told apart with any kind of colour vision (Okabe and Ito).
"""

from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from o2nc_experiments.comparison import Line
from o2nc_experiments.record import write_bytes

BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
PINK, ORANGE, SKY, BLACK = "#CC79A7", "#E69F00", "#56B4E9", "#000000"
SOLID = (BLUE, SKY, GREEN, PINK, BLACK)  # of runs without a horizon
DECAYED = (VERMILION, ORANGE, PINK, GREEN, BLACK)  # of runs to a horizon
MARKERS = ("o", "s", "^", "D", "v")
L = TypeVar("L", bound=Line)


def style_axes(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Draw a faint grid along these axes, and leave out the frame's upper and right side."""
    axes.grid(axis=grid, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, folder: Path, name: str, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write the figure in these formats, each file whole or not at all; return their paths."""
    paths = [folder / f"{name}.{kind}" for kind in kinds]
    for path in paths:
        drawn = BytesIO()
        figure.savefig(drawn, format=path.suffix[1:])
        write_bytes(path, drawn.getbuffer())
    return paths


def line_styles(lines: Sequence[L]) -> list[tuple[L, dict[str, Any]]]:
    """Return how a line is drawn: one run as a line, what is aside dashed and grey, decayed runs as marks."""
    solid, marks, colours = cycle(SOLID), cycle(MARKERS), cycle(DECAYED)
    drawn = []
    for line in lines:
        style: dict[str, Any] = {"linestyle": (0, (3, 2)), "color": GREY, "linewidth": 1.2}
        if not line.is_one_run:
            style = {"linestyle": "none", "marker": next(marks), "color": next(colours), "markersize": 5.5}
        elif not line.is_aside:
            style = {"color": next(solid), "linewidth": 1.8}
        drawn.append((line, style))
    return drawn


def draw_points(axes: Axes, points: Mapping[int, Sequence[float]], style: Mapping[str, Any], *, bars: bool) -> None:
    """Draw means over seeds against the horizon, with bars of one standard deviation if wanted."""
    errors = [stdev(own) if len(own) > 1 else 0.0 for own in points.values()] if bars else None
    axes.errorbar(list(points), [*map(fmean, points.values())], yerr=errors, capsize=2, elinewidth=0.8, **style)


def style_horizons(axes: Axes, horizons: Sequence[int], unit: str) -> None:
    """Make the axis logarithmic, with a tick at every horizon."""
    axes.set_xscale("log")
    axes.set_xticks(horizons)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(unit)
    style_axes(axes)
