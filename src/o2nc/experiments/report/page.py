"""Stories as one page of HTML: no scripts, no files beside it, in the reader's light or dark."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from o2nc.experiments import colours
from o2nc.experiments.report.stories import kind_of, tell
from o2nc.experiments.report.story import Picture, Story

TONES = {"red": "wrong", "dim": "faint", "bold": "strong"}  # what a terminal has as a style
# a picture is drawn once: what is black or white in it, and our colours, are the page's to choose
ROLES = {
    colours.BLACK: "currentColor",
    "#ffffff": "var(--card)",
    **{getattr(colours, name): f"var(--{name.lower()})" for name in ("BLUE", "VERMILION", "GREEN", "GREY")},
    **{getattr(colours, name): f"var(--{name.lower()})" for name in ("PINK", "ORANGE", "SKY")},
}
STYLE = {"svg.fonttype": "none", "font.size": 10.0, "svg.hashsalt": "o2nc"}


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its text, and `wrong` or `faint` if it is."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Line:
    """A row of cells; a heading is one cell over all columns; a ruled one ends a part of the table."""

    cells: list[Cell]
    tone: str = ""
    ruled: bool = False
    heading: bool = False


def page(records: Mapping[Path, dict[str, Any]]) -> str:
    """Return the page of these records; those of one kind stand beside each other, where there is room.

    Raises:
        OSError: a record is not as this version makes them; the text names its file.
    """
    told: dict[str, list[tuple[Path, Story, dict[str, Any]]]] = {}
    for path, record in records.items():
        try:
            told.setdefault(str(kind_of(record)), []).append((path, tell(record), record))
        except ValueError as error:
            raise OSError(f"{path} is {error}") from error
    environment = Environment(
        loader=PackageLoader("o2nc.experiments.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"lines": lines, "notes": notes, "head": head, "svg": svg, "about": about}
    stories = [story for group in told.values() for _, story, _ in group]
    title = stories[0].title if len(stories) == 1 else "Results"
    return environment.get_template("page.html").render(title=title, groups=list(told.values()))


def svg(picture: Picture) -> Markup:
    """Draw a picture as SVG in the page's colours."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=picture.size, layout="constrained", facecolor="none")
        axes = figure.subplots()
        picture.draw(axes)
        handles = [*axes.get_legend_handles_labels()[0], *picture.legend]
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 3), frameon=False)
        drawn = StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: _roles().get(found[0], found[0]), text)
    return Markup(text.replace("<svg ", '<svg role="img" ', 1))


def _roles() -> dict[str, str]:
    return {colour.lower(): role for colour, role in ROLES.items()}


def head(table: Table) -> list[tuple[str, str]]:
    """Return the names of the columns and how they are set."""
    return [(_text(column.header).plain, column.justify) for column in table.columns]


def lines(table: Table) -> list[Line]:
    """Return the rows of a table that was made for the terminal."""
    found = []
    columns = [list(column.cells) for column in table.columns]
    for i, row in enumerate(table.rows):
        cells = [_text(column[i]) for column in columns]
        heading = len(cells) > 1 and bool(cells[0].plain.strip()) and not any(cell.plain for cell in cells[1:])
        made = [Cell(cell.plain, _tone(cell)) for cell in (cells[:1] if heading else cells)]
        found.append(Line(made, _tone(row.style), row.end_section, heading))
    return found


def notes(table: Table) -> list[str]:
    """Return what stands below a table, line by line."""
    return [] if table.caption is None else _text(table.caption).plain.splitlines()


def _text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))


def _tone(style: object) -> str:
    words = f"{style.style} {' '.join(str(s.style) for s in style.spans)}" if isinstance(style, Text) else str(style)
    return next(
        (tone for word, tone in (("red", "wrong"), ("dim", "faint"), ("bold", "strong")) if word in words), ""
    )


def about(record: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Return the circumstances of a record, name by name."""
    for name, value in record["circumstances"].items():
        if value is not None and name != "command":
            yield name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value)
