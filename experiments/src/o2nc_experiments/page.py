"""Results as one page of HTML that needs nothing else, ``report.html``: no scripts, in the reader's light or dark.

Every command writes its results as a record (`o2nc_experiments.record`): a JSON file with its circumstances. Each
experiment has a function that turns its record into an `Article` of words, tables and pictures (`ARTICLES`), and
`write` puts the page of some records beside them. Pictures are drawn again from the numbers, so that any record can
be shown at any time.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from o2nc_experiments import figures
from o2nc_experiments.record import write_text
from o2nc_experiments.tables import Table

NAME = "report.html"
ARTICLES = {  # the modules whose function `article` shows a command's record
    "demo": "o2nc_experiments.demo.command",
    "verify": "o2nc_experiments.verify.command",
    "rates": "o2nc_experiments.rates.article",
    "cifar10": "o2nc_experiments.cifar10.view",
    "gpt": "o2nc_experiments.gpt.view",
    "nonsmooth": "o2nc_experiments.nonsmooth.view",
    "bench": "o2nc_experiments.bench.command",
}
# a picture is drawn once: what is black or white in it, and our colours, are the page's to choose
ROLES = {figures.BLACK: "currentColor", "#ffffff": "var(--card)"} | {
    getattr(figures, name).lower(): f"var(--{name.lower()})"
    for name in ("BLUE", "VERMILION", "GREEN", "GREY", "PINK", "ORANGE", "SKY")
}
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "o2nc"}
STYLE |= {"font.size": 10.5, "xtick.labelsize": 9.5, "ytick.labelsize": 9.5}

Records = Mapping[Path, dict[str, Any]]


@dataclass(frozen=True)
class Picture:
    """One pair of axes."""

    title: str  # what is drawn
    caption: str  # what one sees, in plain words
    draw: Callable[[Axes], object]  # draws into empty axes, without title and legend
    size: tuple[float, float] = (4.4, 3.0)  # width and height in inches; all of a section should be as wide


@dataclass(frozen=True)
class Section:
    """Words, then pictures beside each other as far as there is room, then tables, the same as in the terminal."""

    title: str  # what it is about
    text: str  # what there is to see, in plain words; a line is a paragraph
    code: str = ""  # lines to copy
    pictures: Sequence[Picture] = ()  # all of about one size
    legend: Sequence[Line2D] = ()  # of all of them
    tables: Sequence[Table] = ()  # as wide as they like


@dataclass(frozen=True)
class Article:
    """What is to be shown of a record."""

    title: str  # the experiment
    summary: str  # what came out, in a sentence or two; a line is a paragraph
    sections: Sequence[Section]  # the rest


class Part(NamedTuple):
    """A record's part of the page: its name there, the file, the title, and the HTML."""

    name: str
    place: str
    title: str
    html: Markup


def kind_of(record: Any) -> str | None:
    """Return which command made a record, None if none of ours did.

    Example:
        >>> kind_of({"circumstances": {"command": "o2nc verify --seed 0"}})
        'verify'
    """
    try:
        command = record["circumstances"]["command"].split()
    except (TypeError, KeyError, AttributeError):
        return None
    return command[1] if len(command) > 1 and command[0] == "o2nc" and command[1] in ARTICLES else None


def article(record: dict[str, Any]) -> Article:
    """Return what is to be shown of a record of ours."""
    kind = kind_of(record)
    assert kind is not None
    return import_module(ARTICLES[kind]).article(record)


def write(places: Sequence[Path], path: Path | None = None) -> Path:
    """Write the page of these folders or files; in the folder itself if there is but one and nothing else is said.

    OSError says that there is nothing to show, or nowhere to write it.
    """
    if path is None:
        path = places[0] / NAME if len(places) == 1 and places[0].is_dir() else Path(NAME)
    records = find(places)
    if path.resolve() in {record.resolve() for record in records}:
        raise OSError(f"{path} is one of the results to be shown; the page needs another name")
    write_text(path, page(records))
    return path


def find(places: Iterable[Path]) -> Records:
    """Return the records in folders, which may have other files beside them, or in files that are named."""
    found: dict[Path, Any] = {}
    for place in places:
        records: dict[Path, Any] = {}
        for path in sorted(place.glob("*.json")) if place.is_dir() else [place]:
            try:
                record = _read(path)
            except OSError as error:
                if path == place:
                    raise
                print(f"o2nc: left out: {error}", file=sys.stderr)
                continue
            if kind_of(record) is not None:
                records[path] = record
        if not records:
            raise OSError(f"{place} has no results of o2nc {', '.join(ARTICLES)}")
        found |= records
    return found


def _read(path: Path) -> Any:
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path} is damaged: {error}") from error


def page(records: Records) -> str:
    """Return the page of these records; those of one kind stand beside each other, where there is room.

    OSError names the file of a record that is not as this version makes them.
    """
    clean: Any = {"trim_blocks": True, "lstrip_blocks": True, "autoescape": True, "undefined": StrictUndefined}
    environment = Environment(loader=PackageLoader("o2nc_experiments"), **clean)
    environment.filters |= {"svg": svg, "strokes": strokes, "about": about}
    groups: dict[str | None, list[Part]] = {}
    several = len(records) > 1
    level = 3 if several else 2  # of the sections' headings
    for i, ((path, record), place) in enumerate(zip(records.items(), _places(records), strict=True)):
        kind, known = kind_of(record), {"name": f"record-{i}", "place": place, "several": several, "level": level}
        try:
            shown = article(record)
            html = environment.get_template("record.html").render(article=shown, record=record, **known)
        except Exception as error:  # whatever somebody has written into it
            raise OSError(f"{path} is no record of o2nc {kind} that this version can show ({error!r})") from error
        groups.setdefault(kind, []).append(Part(f"record-{i}", place, shown.title, Markup(html)))
    title = f"Results: {', '.join(map(str, groups))}" if several else shown.title
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
        picture.draw(figure.subplots())
        return _inline(figure)


def strokes(legend: Sequence[Line2D]) -> list[tuple[Markup, str]]:
    """Draw a stroke for every line of a legend, and say what it is."""
    drawn = []
    for line in legend:
        figure = Figure(figsize=(0.5, 0.18), facecolor="none")
        copy = Line2D([0.0, 0.5, 1.0], [0.5, 0.5, 0.5], transform=figure.transFigure)
        copy.update_from(line)
        copy.set_markevery([1])
        figure.add_artist(copy)
        drawn.append((_inline(figure), str(line.get_label())))
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


def about(record: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Return the circumstances of a record, name by name."""
    for name, value in record["circumstances"].items():
        if value is not None and name != "command":
            yield name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else str(value)
