"""``o2nc verify``: make the checks, and show the results in a terminal, a document, a file and the page."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from o2nc_experiments import page, pool, verify
from o2nc_experiments.console import make_console, print_error, print_files, progress_bar, refusals
from o2nc_experiments.figures import BLUE, VERMILION, style_axes
from o2nc_experiments.page import Article, Picture, Section
from o2nc_experiments.record import circumstances, revive, write, write_text
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


def show(only: list[str], out: Path | None, seed: int, workers: int, quiet: bool) -> bool:
    """Make the checks, show and write them; return whether all verdicts are right."""
    console = make_console(quiet)
    with refusals():
        selected = verify.select(only)
    results: list[verify.Result] = []
    try:
        with progress_bar(console) as bar:
            task = bar.add_task(f"{len(selected)} checks", total=len(selected))
            for result in pool.run(verify.jobs(selected, seed), workers=workers):
                results.append(result)
                bar.advance(task)
    finally:
        results, complete = verify.in_order(results), len(results) == len(selected)
        if results:
            console.print(table(results, console.width))
        if results and out is not None:
            write_text(out / "verify.md", markdown(results))
            write(out / "verify.json", as_record(results, seed, only, complete=complete))
            page.write([out])
        if not complete:
            console.print(f"{len(results)} of {len(selected)} checks made")
    wrong = [result.key for result in results if not result.verdict]
    right = f"{len(results) - len(wrong)} of {len(results)} right"
    console.print(f"{right}: not {', '.join(wrong)}" if wrong else right)
    if wrong and quiet:
        print_error(f"wrong: {', '.join(wrong)}")
    if out is not None:
        print_files(console, [out / name for name in ("verify.json", "verify.md", page.NAME)])
    return not wrong


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
    """Return one line per result; where a terminal is too narrow, the statement stands below the name."""
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


def as_record(
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
