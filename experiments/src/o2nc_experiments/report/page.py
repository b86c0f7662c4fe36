"""Stories as one page of HTML: no scripts, no files beside it, in the reader's light or dark."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from o2nc_experiments import colours
from o2nc_experiments.report.stories import kind_of, tell
from o2nc_experiments.report.story import Picture

TONES = {"red": "wrong", "dim": "faint", "bold": "strong"}  # what a terminal has as a style
# a picture is drawn once: what is black or white in it, and our colours, are the page's to choose
ROLES = {colours.BLACK: "currentColor", "#ffffff": "var(--card)"} | {
    getattr(colours, name).lower(): f"var(--{name.lower()})"
    for name in ("BLUE", "VERMILION", "GREEN", "GREY", "PINK", "ORANGE", "SKY")
}
STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 10.5,
    "svg.hashsalt": "o2nc",
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
}


@dataclass(frozen=True)
class Told:
    """A record as a part of the page: its name there, the file, the title, and the whole of it."""

    name: str
    place: str
    title: str
    article: Markup


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
    environment = Environment(
        loader=PackageLoader("o2nc_experiments.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"lines": lines, "notes": notes, "head": head, "svg": svg, "about": about, "key": key}
    groups: dict[str | None, list[Told]] = {}
    several = len(records) > 1
    level = 3 if several else 2  # of the sections' headings
    for i, ((path, record), place) in enumerate(zip(records.items(), _places(records), strict=True)):
        kind, name = kind_of(record), f"record-{i}"
        try:
            story = tell(record)
            article = environment.get_template("record.html").render(
                name=name, place=place, story=story, record=record, several=several, level=level
            )
        except Exception as error:  # whatever somebody has written into it
            raise OSError(f"{path} is no record of o2nc {kind} that this version can show ({error!r})") from error
        groups.setdefault(kind, []).append(Told(name, place, story.title, Markup(article)))
    title = f"Results: {', '.join(map(str, groups))}" if several else story.title
    return environment.get_template("page.html").render(title=title, several=several, groups=list(groups.values()))


def _places(paths: Iterable[Path]) -> list[str]:
    """Return the ends of the paths, as long as it takes to tell them apart, folder and file at least."""
    whole = [path.resolve() for path in paths]
    ends = [path.parts[-2:] for path in whole]
    while len(set(ends)) < len(set(whole)):
        ends = [path.parts[-len(end) - 1 :] for path, end in zip(whole, ends, strict=True)]
    return [str(Path(*end)) for end in ends]


def svg(picture: Picture) -> Markup:
    """Draw a picture."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=picture.size, layout="constrained", facecolor="none")
        axes = figure.subplots()
        picture.draw(axes)
        return _inline(figure)


def key(legend: Sequence[Line2D]) -> list[tuple[Markup, str]]:
    """Draw a stroke for every line of a legend, and say what it is."""
    drawn = []
    for line in legend:
        figure = Figure(figsize=(0.5, 0.18), facecolor="none")
        copy = Line2D([0.0, 0.5, 1.0], [0.5, 0.5, 0.5], transform=figure.transFigure, markevery=[1])
        label = str(line.get_label())
        copy.update_from(line)
        copy.set_markevery([1])
        figure.add_artist(copy)
        drawn.append((_inline(figure), label))
    return drawn


def _inline(figure: Figure) -> Markup:
    """Return a figure as SVG in the page's colours."""
    drawn = StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda found: ROLES.get(found[0], found[0]), text)
    return Markup(text.replace("<svg ", '<svg role="img" ', 1))


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
