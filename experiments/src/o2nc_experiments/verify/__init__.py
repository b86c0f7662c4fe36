"""``o2nc paper verify``: every statement of the paper and every erratum, checked by running the library.

A row measures the two sides of a statement where they come closest to contradicting it: an exact supremum, a search
for the worst case, or a mean over runs with its standard error. A wrong formula in the library makes a row wrong.

Result: 45 of 45 right, 28 statements and 17 errata, in docs/checks.md (two cores, torch 2.13, seed 0).
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from o2nc_experiments import kit

# the order of the table: lemmas, regret, theorems, errata
from o2nc_experiments.verify import lemmas, regret, theorems, errata  # noqa: F401  # isort: skip
from o2nc_experiments.verify.row import ROWS, Result, check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ROWS", "Result", "check", "main", "select"]

WORKERS = 2
LONG = ("rate", "criterion", "goldstein", "theorem", "variance")  # begun first
LEAST, MOST = 1e-3, 1e3  # slacks beyond are drawn there
NOTES = (
    "slack: how well the relation is met, 1 at the border: right/left, left/right, or tolerance/|left − right|\n"
    "errata: left and right are of the printed form; shown if that fails and the corrected form holds"
)


def select(only: str | None) -> list[str]:
    """Return the keys that begin with one of these words, with commas between; all for None.

    Example:
        >>> select("criterion")
        ['criterion-smooth', 'criterion-second-order']
    """
    words = only.split(",") if only else [""]
    for word in words:
        if not any(key.startswith(word) for key in ROWS):
            raise kit.UsageError(f"--only {word}: there is no such row; there are {', '.join(ROWS)}")
    return [key for key in ROWS if any(key.startswith(word) for word in words)]


def number(value: float) -> str:
    """Write a number in at most nine characters."""
    if abs(value) == float("inf"):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e8:
        return f"{int(value)}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


def table(results: Sequence[Result], *, measured: bool = False) -> kit.Table:
    """Return one line per row; with what was measured, or with the seconds it took."""
    last = "measured" if measured else "seconds"
    rows = [
        [
            *(r.key, r.claim, number(r.left), r.sign, number(r.right), f"{r.slack:.3g}", r.words),
            r.measured if measured else f"{r.seconds:.1f}",
        ]
        for r in results
    ]
    return kit.Table(["row", "statement", "left", "", "right", "slack", "verdict", last], rows, notes=NOTES)


def picture(results: Sequence[Result], colour: str) -> "Figure":
    """Draw how much room there is between the two sides, a dot per row."""
    figure = kit.new_figure(6.5, 0.8 + 0.24 * len(results))
    axes = figure.subplots()
    axes.axvline(1.0, color="black", linewidth=1.0)
    for i, result in enumerate(results):
        slack = min(max(result.slack, LEAST), MOST)
        axes.plot([1.0, slack], [i, i], color=kit.COLOURS[colour], linewidth=1.2, alpha=0.5)
        axes.plot(slack, i, "o" if result.verdict else "X", color=kit.COLOURS[colour], markersize=6)
    kit.style_panel(axes, x="room between the two sides; 1 is the border")
    axes.set(xscale="log", ylim=(len(results) - 0.4, -0.6))
    axes.set_yticks(range(len(results)), [result.key for result in results])
    return figure


def main(out: Path, only: str | None = None, seed: int = 0, workers: int = WORKERS, quiet: bool = False) -> None:
    """Check every statement of the paper by running it; write verify.json, verify.md and report.html.

    Args:
        out: the folder of results.
        only: names of rows, or their beginnings, with commas between.
        seed: of all random numbers.
        workers: processes.
        quiet: print nothing but errors.
    """
    keys, terminal = select(only), kit.Terminal(quiet)
    found: dict[str, Result] = {}
    with (
        ProcessPoolExecutor(min(workers, len(keys)), mp_context=get_context("spawn")) as pool,
        terminal.progress(len(keys), f"{len(keys)} rows") as advance,
    ):
        jobs = {pool.submit(check, key, seed): key for key in sorted(keys, key=lambda key: not key.startswith(LONG))}
        for job in as_completed(jobs):
            found[jobs[job]] = job.result()
            advance(1, "")
    results = [found[key] for key in keys]
    wrong = [result.key for result in results if not result.verdict]
    command = f"o2nc paper verify --seed {seed}" + (f" --only {only}" if only else "")
    about = kit.circumstances(command, seed=seed, rows=len(keys))
    kit.make_folder(out)
    record = {"circumstances": about, "wrong": wrong, "seconds": sum(r.seconds for r in results)}
    kit.write_json(out / "verify.json", record | {"rows": [result.to_record() for result in results]})
    kit.write_text(out / "verify.md", table(results, measured=True).markdown() + "\n")
    parts = {
        "Statements of the paper": ("blue", [r for r in results if not r.is_erratum]),
        "Errata": ("red", [r for r in results if r.is_erratum]),
    }
    sections = [
        kit.Section(
            title,
            pictures=[(picture(own, colour), "Right of the line the form as stated or printed holds.")],
            tables=[table(own)],
        )
        for title, (colour, own) in parts.items()
        if own
    ]
    summary = f"{len(results) - len(wrong)} of {len(results)} right" + (f": not {', '.join(wrong)}" if wrong else "")
    kit.write_page(out / "report.html", "The paper, checked by running it", summary, sections, about)
    terminal.table(table(results))
    terminal.say(f"{summary}; {out / 'verify.json'}, verify.md, report.html")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    kit.run_script(main)
