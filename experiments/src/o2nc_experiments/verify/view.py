"""The results for a terminal, for a document, for a file and for the page."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from o2nc_experiments.figures import BLUE, VERMILION, style_axes
from o2nc_experiments.page import Article, Picture, Section
from o2nc_experiments.record import circumstances, revive
from o2nc_experiments.tables import Column, Table
from o2nc_experiments.verify.check import Result

SIGNS = {"<=": "≤", "<": "<", ">=": "≥", "==": "="}
FAILED = {"<=": "≰", "<": "≮", ">=": "≱", "==": "≠"}
WIDE = 118  # columns that the whole table takes
NOTES = (
    "slack: how well it is met, 1 at the border; ≤: right/left; ≥: left/right; =: tolerance/|left − right|\n"
    "errata: left and right are of the printed form; shown if that fails and the corrected form holds"
)
SHORT_NOTES = "errata: shown if the printed form fails and the corrected one holds"
SIDES = [Column("left"), Column("", "center"), Column("right")]
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


def is_erratum(result: Result) -> bool:
    """Say whether a result is of an erratum."""
    return result.key.startswith("erratum")


def sides(result: Result) -> tuple[str, str, str]:
    """Return left, relation and right; the relation is struck out for an erratum that fails as it should."""
    sign = (FAILED if is_erratum(result) and result.verdict else SIGNS)[result.relation]
    return number(result.left), sign, number(result.right)


def verdict(result: Result) -> str:
    """Return the verdict; of an erratum it is that the error is one."""
    if not result.verdict:
        return "WRONG"
    return "shown" if is_erratum(result) else "right"


def table(results: Sequence[Result], width: int = WIDE) -> Table:
    """Return one line per result; where there is no room beside it, the statement stands below the name.

    Args:
        results: what `run` returned.
        width: of the terminal, in columns.
    """
    wide = width >= WIDE
    names = [Column("check", "left"), *([Column("statement", "left")] if wide else [])]
    extra = [Column("slack"), Column("s")] if wide else []
    made = Table([*names, *SIDES, *extra, Column("verdict", "left")], notes=NOTES if wide else SHORT_NOTES)
    for result, following in zip(results, [*results[1:], None], strict=True):
        made.add(
            *([result.key, result.statement] if wide else [f"{result.key}\n{result.statement}"]),
            *sides(result),
            *([short(result.slack), f"{result.seconds:.1f}"] if wide else []),
            verdict(result),
            style="" if result.verdict else "bold red",
            ruled=following is not None and is_erratum(following) != is_erratum(result),
        )
    return made


def markdown(results: Sequence[Result]) -> str:
    """Return the results as a table of Markdown, with what was measured."""
    names, last = [Column("check", "left"), Column("statement", "left")], [Column("slack")]
    last += [Column("verdict", "left"), Column("measured", "left")]
    made = Table([*names, *SIDES, *last])
    for result in results:
        word = verdict(result) if result.verdict else "**wrong**"
        made.add(result.key, result.statement, *sides(result), short(result.slack), word, result.measured)
    return made.markdown() + "\n"


def record(
    results: Sequence[Result], seed: int, only: Sequence[str] = (), *, complete: bool = True
) -> dict[str, Any]:
    """Return the results and the circumstances, for JSON; a number that is not finite is a string."""
    plain = [
        {key: repr(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in asdict(result).items()}
        for result in results
    ]
    return {
        "circumstances": circumstances(" ".join(["o2nc verify", *only, f"--seed {seed}"]), seed=seed),
        "complete": complete,
        "right": sum(result.verdict for result in results),
        "wrong": [result.key for result in results if not result.verdict],
        "seconds": sum(result.seconds for result in results),
        "rows": plain,
    }


def article(record: dict[str, Any]) -> Article:
    """Return the page's article on `verify.json`."""
    results = [
        revive(Result, row | {name: float(row[name]) for name in ("left", "right", "slack")})
        for row in record["rows"]
    ]
    right = sum(result.verdict for result in results)
    wrong = ", ".join(result.key for result in results if not result.verdict)
    summary = (
        f"{right} of {len(results)} checks came out as they should, in {record['seconds']:.0f} s of computing. Each "
        "runs the library and compares the two sides of a statement where they come closest to contradicting it."
    )
    parts = [
        ("Statements of the paper", STATEMENTS, BLUE, [result for result in results if not is_erratum(result)]),
        ("Errata", ERRATA, VERMILION, [result for result in results if is_erratum(result)]),
    ]
    return Article(
        "The paper, checked by running it",
        f"{summary}\nNot as it should: {wrong}." if wrong else summary,
        [
            Section(title, text, pictures=[_picture(own, colour)], tables=[table(own)])
            for title, text, colour, own in parts
            if own
        ],
    )


def _picture(results: Sequence[Result], colour: str) -> Picture:
    size = (5.0, 0.7 + 0.22 * len(results))
    return Picture("How much room there is", "", partial(_dots, results=results, colour=colour), size=size)


def _dots(axes: Axes, results: Sequence[Result], colour: str) -> None:
    ends = (0.5, 2 * MOST) if colour == BLUE else (LEAST / 2, 2.0)
    axes.axvline(1.0, color="black", linewidth=1.0)
    for i, result in enumerate(results):
        slack = min(max(result.slack, LEAST), MOST)
        axes.plot([1.0, slack], [i, i], color=colour, linewidth=1.2, alpha=0.5)
        axes.plot(slack, i, "o" if result.verdict else "X", color=colour, markersize=6)
    axes.set(xscale="log", xlim=ends, ylim=(len(results) - 0.4, -0.6))
    axes.set_yticks(range(len(results)), [result.key for result in results])
    axes.set_xlabel("room: 1 is the border")
    style_axes(axes, "x")
