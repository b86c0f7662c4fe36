"""One table for a terminal, a Markdown document and a page of HTML.

    table = Table([Column("arm", "left"), Column("steps")], notes="of the longest run")
    table.add("sharp", "1024", style="bold red")

rich prints it and the templates of `page` take it as it is, `Table.markdown` writes it. A style is one of rich's;
the page has a class for what it means (`tone`). rich is imported when a table is printed, because
``python -m o2nc_experiments.bench`` does without it.
"""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

NONE = "–"  # stands where there is no number
NAME_WIDTH = 16  # columns of a terminal that are left for names, which are folded if they are longer
GAP = 2  # columns of a terminal that a column takes beside its cells
LONG = 40  # characters from which on the page breaks a cell into lines
TONES = (("red", "wrong"), ("dim", "faint"), ("bold", "strong"))


def tone(style: str) -> str:
    """Return the page's class for a style, "" for none.

    Example:
        >>> tone("bold red"), tone("dim"), tone("")
        ('wrong', 'faint', '')
    """
    return next((name for word, name in TONES if word in style), "")


class Column(NamedTuple):
    """The head of a column; where a terminal is too narrow, cells are broken into lines if ``wrap``."""

    name: str
    align: Literal["left", "center", "right"] = "right"
    wrap: bool = False


class Cell(NamedTuple):
    """A cell that has a style of its own."""

    text: str
    style: str = ""


class Line(NamedTuple):
    """A row; a heading has one cell, over all columns; a ruled one has a line below it."""

    cells: Sequence[Cell]
    style: str = ""
    ruled: bool = False
    heading: bool = False


class Table:
    """Rows under a head, with a title above and notes below; a name alone is a column of numbers.

    On a terminal the columns from ``fold`` on make a second block below the first, which 80 columns then hold. A
    table of another kind that is too wide breaks its names into lines, and if need be its columns into blocks, each
    with the names.
    No number is cut: where one would be, the table becomes a list.

    Example:
        >>> table = Table([Column("name", "left"), "value"])
        >>> table.add("a", "1")
        >>> print(table.markdown())
        | name | value |
        |---|--:|
        | a | 1 |
    """

    def __init__(self, columns: Sequence[Column | str], title: str = "", notes: str = "", fold: int = 0) -> None:
        self.columns = [Column(column) if isinstance(column, str) else column for column in columns]
        self.title, self.notes, self.fold = title, notes.splitlines(), fold
        self.lines: list[Line] = []

    def add(self, *cells: str | Cell, style: str = "", ruled: bool = False) -> None:
        """Add a row."""
        plain = [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]
        self.lines.append(Line(plain, style, ruled))

    def add_heading(self, text: str) -> None:
        """Add a line that heads the rows below it."""
        self.lines.append(Line([Cell(text, "bold")], heading=True))

    def markdown(self) -> str:
        """Return title and rows, without the notes."""
        marks = {"left": "---", "center": ":-:", "right": "--:"}
        head, *body = (f"| {' | '.join(map(_markdown, texts))} |" for texts in self._texts())
        rule = f"|{'|'.join(marks[column.align] for column in self.columns)}|"
        return "\n".join([*([f"**{self.title}**", ""] if self.title else []), head, rule, *body])

    def __html__(self) -> str:
        """Return all of it as HTML: templates put objects with this method in as they are."""
        names = "".join(f'<th class="{column.align}">{escape(column.name)}</th>' for column in self.columns)
        return "\n".join(
            [
                *([f'<p class="table-title">{escape(self.title)}</p>'] if self.title else []),
                f'<div class="scroll"><table>\n<thead><tr>{names}</tr></thead>\n<tbody>',
                *map(self._html_row, self.lines),
                "</tbody></table></div>",
                *(f'<p class="notes">{escape(note)}</p>' for note in self.notes),
            ]
        )

    def _html_row(self, line: Line) -> str:
        span = f' colspan="{len(self.columns)}"' if line.heading else ""
        cells = "".join(
            f'<td class="{column.align} {tone(cell.style)}{" long" * (len(cell.text) > LONG)}"{span}>'
            f"{escape(cell.text)}</td>"
            for column, cell in zip(self.columns, line.cells, strict=False)
        )
        kind = f"{tone(line.style)}{' ruled' * line.ruled}{' heading' * line.heading}"
        return f'<tr class="{kind}">{cells}</tr>'

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> Iterator[Any]:
        """Print the table, its blocks, or the list."""
        if self.fold:
            blocks = [[*range(self.fold)]] if self._least_width() <= options.max_width else []
        else:
            blocks = self._blocks(options.max_width)
        if not blocks:
            yield from self._as_list()
        for block in blocks:
            yield self._as_grid(block, is_first=block is blocks[0], is_last=block is blocks[-1])

    def _as_grid(self, block: Sequence[int], *, is_first: bool, is_last: bool) -> Any:
        from rich import box
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
        grid.title, grid.caption_justify = (self.title if is_first else "") or None, "left"
        grid.caption = ("\n".join(self.notes) if is_last else "") or None
        for i in block:
            grid.add_column(
                Text(self.columns[i].name),
                justify=self.columns[i].align,
                no_wrap=not self._wraps(i),
                overflow="fold" if self._wraps(i) else "ellipsis",
                vertical="bottom" if self.fold else "top",
            )

        def texts(cells: Sequence[Cell]) -> list[Text]:
            return [Text(cell.text, style=cell.style) for cell in cells]

        for line in self.lines:
            cells = line.cells if line.heading else [line.cells[i] for i in block]
            grid.add_row(*texts(cells), style=line.style, end_section=line.ruled)
        if self.fold:
            second = slice(self.fold, None)
            grid.add_section()
            grid.add_row(*(Text(column.name, style="bold") for column in (self.columns[0], *self.columns[second])))
            for line in self.lines:
                if any(cell.text != NONE for cell in line.cells[second]):
                    grid.add_row(*texts([line.cells[0], *line.cells[second]]), style=line.style)
        return grid

    def _as_list(self) -> Iterator[Any]:
        from rich.text import Text

        labels = [column.name.replace("\n", " ") for column in self.columns]
        if self.title:
            yield Text(self.title, style="italic", overflow="fold")
        for line in self.lines:
            yield Text(line.cells[0].text, style="bold", overflow="fold")
            for label, cell in list(zip(labels, line.cells, strict=not line.heading))[1:]:
                if cell.text not in (NONE, ""):
                    yield Text(f"  {label}: {cell.text}" if label else f"  {cell.text}", overflow="fold")
        yield Text("\n".join(self.notes), style="dim italic", overflow="fold")

    def _least_width(self) -> int:
        """Return how many columns of a terminal the folded table needs for its numbers."""
        widths = self._widths()
        blocks = zip(widths[1 : self.fold], widths[self.fold :], strict=True)
        return NAME_WIDTH + sum(1 + max(block) for block in blocks)

    def _blocks(self, width: int) -> list[list[int]]:
        """Return the columns of every block, names first, that so wide a terminal holds; none if it is too narrow."""
        least = [GAP + (min(w, NAME_WIDTH) if self._wraps(i) else w) for i, w in enumerate(self._widths())]
        names = [*range(self._names)]
        blocks = [names]
        for i in range(self._names, len(least)):
            if blocks[-1] != names and sum(least[j] for j in (*blocks[-1], i)) > width:
                blocks.append(names)
            blocks[-1] = [*blocks[-1], i]
        return blocks if all(sum(least[j] for j in block) <= width for block in blocks) else []

    @property
    def _names(self) -> int:
        """How many columns name a row: those up to the first of text."""
        return next((i for i, column in enumerate(self.columns) if column.align == "left"), 0) + 1

    def _wraps(self, i: int) -> bool:
        """Say whether cells of a column may be broken into lines: names may, numbers may not."""
        return self.columns[i].wrap or (self.columns[i].align == "left" and i < self._names)

    def _widths(self) -> list[int]:
        """Return how wide every column is where there is room."""
        from rich.cells import cell_len

        columns = zip_longest(*self._texts(), fillvalue="")
        return [max(cell_len(part) for text in column for part in text.split("\n")) for column in columns]

    def _texts(self) -> list[list[str]]:
        """Return the names of the columns, then the rows."""
        names = [column.name for column in self.columns]
        return [names, *([cell.text for cell in line.cells] for line in self.lines)]


def _markdown(text: str) -> str:
    return text.strip().replace("\n", " ").replace("|", "∣")


def signed(value: float, decimals: int = 2) -> str:
    """Return a change, with its sign.

    Example:
        >>> signed(0.25), signed(-749.9, 1), signed(-0.001)
        ('+0.25', '−749.9', '+0.00')
    """
    return f"{round(value, decimals) + 0.0:+.{decimals}f}".replace("-", "−")  # −0.0 + 0.0 is 0.0


def span(values: Sequence[float]) -> str:
    """Return the least and the largest value in words, once if they look alike.

    Example:
        >>> span([0.28, 1.3, 0.7]), span([83.02, 83.04])
        ('0.28 to 1.3', '83.0')
    """
    low, high = (f"{v:.1f}" if v >= 10 else f"{v:.2g}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def duration(seconds: float) -> str:
    """Return a time as h:mm:ss or m:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def plural(number: int, thing: str) -> str:
    """Return a number of things."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
