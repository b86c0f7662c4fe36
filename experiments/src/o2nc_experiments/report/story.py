"""What a report is made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from rich.table import Table


@dataclass(frozen=True)
class Picture:
    """One pair of axes.

    Attributes:
        title: what is drawn.
        says: what one sees, in plain words.
        draw: draws into empty axes, without title and legend.
        size: width and height in inches; all of a section should be as wide.
    """

    title: str
    says: str
    draw: Callable[[Axes], object]
    size: tuple[float, float] = (4.4, 3.0)


@dataclass(frozen=True)
class Section:
    """Words, then pictures beside each other as far as there is room, then tables, the same as in the terminal.

    Attributes:
        title: what it is about.
        says: what there is to see, in plain words; a line is a paragraph.
        code: lines to copy.
        pictures: all of about one size.
        legend: of all of them.
        tables: for a terminal that is wide enough.
    """

    title: str
    says: str
    code: str = ""
    pictures: Sequence[Picture] = ()
    legend: Sequence[Line2D] = ()
    tables: Sequence[Table] = ()


@dataclass(frozen=True)
class Story:
    """What a record tells.

    Attributes:
        title: the experiment.
        says: what came out, in a sentence or two; a line is a paragraph.
        sections: the rest.
    """

    title: str
    says: str
    sections: Sequence[Section]
