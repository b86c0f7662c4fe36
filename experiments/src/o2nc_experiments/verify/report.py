"""The rows of the report, for a terminal, for a document and for a file."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from o2nc_experiments.record import circumstances
from o2nc_experiments.verify.rows import Row

SIGNS = {"<=": "≤", "<": "<", ">=": "≥", "==": "="}
FAILED = {"<=": "≰", "<": "≮", ">=": "≱", "==": "≠"}
WIDE = 118  # columns that the whole table takes
NOTE = (
    "slack: how well it is met, 1 at the border; ≤: right/left; ≥: left/right; =: tolerance/|left − right|\n"
    "errata: left and right are of the printed form; shown if that fails and the corrected form holds"
)
SHORT_NOTE = "errata: shown if the printed form fails and the corrected one holds"


def number(value: float) -> str:
    """Write a number in at most nine characters."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e8:
        return f"{int(value)}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


def short(slack: float) -> str:
    """Write a slack in at most seven characters."""
    if not math.isfinite(slack) or slack == 0:
        return number(slack)
    return f"{slack:.3g}" if 1e-2 <= abs(slack) < 1e3 else f"{slack:.0e}"


def sign(row: Row) -> str:
    """Return the relation, struck out for an erratum whose printed form fails as it should."""
    return (FAILED if row.key.startswith("erratum") and row.verdict else SIGNS)[row.relation]


def word(row: Row) -> str:
    """Return the verdict; of an erratum it is that the error is one."""
    if not row.verdict:
        return "WRONG"
    return "shown" if row.key.startswith("erratum") else "right"


def table(rows: Sequence[Row], width: int = WIDE) -> Table:
    """Return one line per row; where there is no room beside it, the statement stands below the name.

    Args:
        rows: what `run` returned.
        width: of the terminal, in columns.
    """
    wide = width >= WIDE
    extra = ("slack", "s") if wide else ()
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    grid.caption = NOTE if wide else SHORT_NOTE
    grid.add_column("check", no_wrap=True)
    if wide:
        grid.add_column("statement", no_wrap=True)
    for name in ("left", "", "right", *extra):
        grid.add_column(name, justify="center" if not name else "right", no_wrap=True)
    grid.add_column("verdict", no_wrap=True)
    for i, row in enumerate(rows):
        printed = row.key.startswith("erratum")
        last = i + 1 < len(rows) and rows[i + 1].key.startswith("erratum") != printed
        grid.add_row(
            *([row.key, Text(row.statement)] if wide else [Text(f"{row.key}\n{row.statement}")]),
            number(row.left),
            sign(row),
            number(row.right),
            *([short(row.slack), f"{row.seconds:.1f}"] if wide else []),
            word(row),
            style="" if row.verdict else "bold red",
            end_section=last,
        )
    return grid


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table of Markdown, with what was measured."""
    heads = ("check", "statement", "left", "", "right", "slack", "verdict", "measured")
    lines = [f"| {' | '.join(heads)} |", "|---|---|--:|:-:|--:|--:|---|---|"]
    for row in rows:
        cells = (
            row.key,
            row.statement,
            number(row.left),
            sign(row),
            number(row.right),
            short(row.slack),
            word(row) if row.verdict else "**wrong**",
            row.measured,
        )
        lines.append(f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def record(rows: Sequence[Row], seed: int, only: Sequence[str] = (), *, complete: bool = True) -> dict[str, Any]:
    """Return the rows and the circumstances, for JSON; a number that is not finite is a string."""
    plain = [
        {key: repr(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in asdict(row).items()}
        for row in rows
    ]
    return {
        "circumstances": circumstances(" ".join(["o2nc verify", *only, f"--seed {seed}"]), seed=seed),
        "complete": complete,
        "right": sum(row.verdict for row in rows),
        "wrong": [row.key for row in rows if not row.verdict],
        "seconds": sum(row.seconds for row in rows),
        "rows": plain,
    }
