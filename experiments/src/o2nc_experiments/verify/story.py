"""The checks, told."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from o2nc_experiments import record as records
from o2nc_experiments.figures import BLUE, VERMILION
from o2nc_experiments.page import Article as Story
from o2nc_experiments.page import Picture, Section
from o2nc_experiments.verify.report import table
from o2nc_experiments.verify.rows import Row

LEAST, MOST = 1e-3, 1e3  # slacks beyond are drawn there
STATEMENTS = (
    "One dot per statement: how much room is left between its two sides where they come closest. Right of the line "
    "it holds; on it, the bound is attained and could not be sharper. Dots at the right end stand for a "
    "thousandfold and more."
)
ERRATA = (
    "One dot per error that we found in print: left of the line the printed form fails. The corrected form was "
    "checked, too, and holds. On the line: the error shows elsewhere than in these two numbers."
)


def tell(record: dict[str, Any]) -> Story:
    """Return the story of `verify.json`."""
    rows = [
        records.revive(Row, row | {name: float(row[name]) for name in ("left", "right", "slack")})
        for row in record["rows"]
    ]
    parts = [
        ("Statements of the paper", STATEMENTS, BLUE, [row for row in rows if not row.key.startswith("erratum")]),
        ("Errata", ERRATA, VERMILION, [row for row in rows if row.key.startswith("erratum")]),
    ]
    right = sum(row.verdict for row in rows)
    wrong = ", ".join(row.key for row in rows if not row.verdict)
    says = (
        f"{right} of {len(rows)} checks came out as they should, in {record['seconds']:.0f} s of computing. Each "
        "runs the library and compares the two sides of a statement where they come closest to contradicting it."
    )
    return Story(
        "The paper, checked by running it",
        f"{says}\nNot as it should: {wrong}." if wrong else says,
        [
            Section(
                title,
                text,
                pictures=[_picture(own, colour)],
                tables=[table(own)],
            )
            for title, text, colour, own in parts
            if own
        ],
    )


def _picture(rows: Sequence[Row], colour: str) -> Picture:
    size = (5.0, 0.7 + 0.22 * len(rows))
    return Picture("How much room there is", "", partial(_dots, rows=rows, colour=colour), size=size)


def _dots(axes: Axes, rows: Sequence[Row], colour: str) -> None:
    ends = (0.5, 2 * MOST) if colour == BLUE else (LEAST / 2, 2.0)
    axes.axvline(1.0, color="black", linewidth=1.0)
    for i, row in enumerate(rows):
        slack = min(max(row.slack, LEAST), MOST)
        axes.plot([1.0, slack], [i, i], color=colour, linewidth=1.2, alpha=0.5)
        axes.plot(slack, i, "o" if row.verdict else "X", color=colour, markersize=6)
    axes.set(xscale="log", xlim=ends, ylim=(len(rows) - 0.4, -0.6))
    axes.set_yticks(range(len(rows)), [row.key for row in rows])
    axes.set_xlabel("room: 1 is the border")
    axes.grid(axis="x", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
