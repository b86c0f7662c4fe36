"""What all pictures share: colours, bare axes, files.

The colours can be told apart with any kind of colour vision (Okabe and Ito).
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from o2nc_experiments.record import write_bytes

BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
PINK, ORANGE, SKY, BLACK = "#CC79A7", "#E69F00", "#56B4E9", "#000000"


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
