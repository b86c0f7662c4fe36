"""A table of numbers that fits: where a terminal is too narrow for one of them, it becomes a list."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

NAMES = 16  # columns that are left for names, which are folded if they are longer


class Fitting(Table):
    """A table whose numbers are never cut.

    Args:
        least: the columns of the terminal that it needs.
        blocks: the same as names with their labelled numbers.
        more: of `rich.table.Table`.
    """

    def __init__(self, least: int, blocks: Sequence[tuple[str, Iterable[tuple[str, str]]]], **more: Any) -> None:
        super().__init__(**more)
        self.least, self.blocks = least, blocks

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """Show the table, or the list."""
        if options.max_width >= self.least:
            yield from super().__rich_console__(console, options)
            return
        for name, lines in self.blocks:
            yield Text(name, style="bold", overflow="fold")
            for label, number in lines:
                yield Text(f"  {label}: {number}", overflow="fold")
        yield Text(str(self.caption), style="dim italic", overflow="fold")


def least_width(*columns: Iterable[str]) -> int:
    """Return how many columns of a terminal are needed for names and these columns of numbers."""
    return NAMES + sum(1 + max(cell_len(line) for cell in cells for line in cell.split("\n")) for cells in columns)
