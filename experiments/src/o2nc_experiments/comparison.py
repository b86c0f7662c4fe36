"""One run against a run for every horizon, as tables: values by horizon, and differences seed by seed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from o2nc_experiments.tables import NONE, Cell, Column, Table


@dataclass(frozen=True)
class Line:
    """One line of a table, or of a picture."""

    name: str  # what was trained, and what of it was evaluated
    lr: str  # learning rate, or rates
    is_one_run: bool  # whether all its horizons are moments of the same run
    is_aside: bool  # whether the same run has something better to look at
    values: Mapping[int, Mapping[int, float]]  # what was found, by horizon and seed

    def of(self, horizon: int) -> list[float]:
        """Return what all seeds have there."""
        return list(self.values.get(horizon, {}).values())


L = TypeVar("L", bound=Line)


def rates(lrs: Collection[float]) -> str:
    """Return learning rates, once if they are all the same.

    Example:
        >>> rates([0.1, 0.01, 0.02]), rates([0.1, 0.1]), rates([])
        ('0.01 to 0.1', '0.1', '–')
    """
    return " to ".join(dict.fromkeys(f"{pick(lrs):g}" for pick in (min, max))) if lrs else NONE


def head(horizons: Sequence[int], *names: str) -> list[Column | str]:
    """Return columns for these names, and one for every horizon."""
    return [*(Column(name, "left") for name in names), *(f"{h:,}" for h in horizons)]


def by_horizon(
    unit: str, horizons: Sequence[int], lines: Sequence[L], cell: Callable[[L, int], str | Cell], notes: str
) -> Table:
    """Return what all lines have at every horizon, those of one run first."""
    table = Table(head(horizons, f"after so many {unit}", "lr"), notes=notes)
    for title, one_run in (("one run, read off at every horizon", True), ("a run for every horizon", False)):
        group = [line for line in lines if line.is_one_run is one_run]
        if group:
            table.add_heading(title)
        for line in group:
            table.add(line.name, line.lr, *(cell(line, h) for h in horizons), style="dim" if line.is_aside else "")
    return table


def differences(line: Line, other: Line, horizon: int) -> list[float]:
    """Return the differences of two lines, seed by seed."""
    mine, theirs = (one.values.get(horizon, {}) for one in (line, other))
    return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


def paired(
    title: str, lines: Sequence[L], others: Mapping[int, L | None], write: Callable[[list[float]], str], notes: str
) -> Table:
    """Return the differences to another line, which is one for each horizon."""
    table = Table(head(list(others), title), notes=notes)
    for line in lines:
        cells = [
            NONE if other is None or other is line else write(differences(line, other, h))
            for h, other in others.items()
        ]
        if any(cell != NONE for cell in cells):
            table.add(line.name, *cells, style="dim" if line.is_aside else "")
    return table
