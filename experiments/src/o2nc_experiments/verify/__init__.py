"""``o2nc paper verify``: every statement of the paper and every erratum, checked by running the library.

A row measures the two sides of a statement where they come closest to contradicting it: an exact supremum, a search
for the worst case, or a mean over runs with its standard error. A wrong formula in the library makes a row wrong.

Result: 45 of 45 right, 28 statements and 17 errata, in docs/checks.md (two cores, torch 2.13, seed 0).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from o2nc_experiments import kit
from o2nc_experiments.runs import in_processes

# in the order of the table
from o2nc_experiments.verify import lemmas, regret, theorems, errata  # noqa: F401  # isort: skip
from o2nc_experiments.verify.row import ROWS, Result, check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ROWS", "Result", "check", "main", "select"]

LONG = ("rate", "criterion", "goldstein", "theorem")  # begun first
LEAST, MOST = 1e-3, 1e3  # slacks beyond are drawn there
SIGNS, FAILED = {"<=": "≤", ">=": "≥", "==": "="}, {"<=": "≰", ">=": "≱", "==": "≠"}
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


def table(results: Sequence[Result], *, measured: bool = False) -> kit.Table:
    """Return one line per row; with what was measured, or with the seconds it took."""
    rows = []
    for r in results:
        is_erratum = r.key.startswith("erratum")
        word = ("shown" if is_erratum else "right") if r.verdict else "WRONG"
        sign = (FAILED if is_erratum and r.verdict else SIGNS)[r.relation]
        last = r.measured if measured else f"{r.seconds:.1f}"
        rows.append([r.key, r.claim, f"{r.left:.4g}", sign, f"{r.right:.4g}", f"{r.slack:.3g}", word, last])
    head = ["row", "statement", "left", "", "right", "slack", "verdict", "measured" if measured else "seconds"]
    return kit.Table(head, rows, notes=NOTES)


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


def main(out: Path, only: str | None = None, seed: int = 0, workers: int = 2, quiet: bool = False) -> None:
    """Check every statement of the paper by running it; write verify.json, verify.md and report.html."""
    keys, terminal, found = select(only), kit.Terminal(quiet), dict[str, Result]()
    work = {key: (check, key, seed) for key in sorted(keys, key=lambda key: not key.startswith(LONG))}
    in_processes(work, min(workers, len(work)), terminal, found.__setitem__)
    results = [found[key] for key in keys]
    wrong = [result.key for result in results if not result.verdict]
    command = kit.written_command("o2nc paper verify", {"only": only, "seed": seed}, {"only": None, "seed": 0})
    about = kit.circumstances(command, seed=seed, rows=len(keys))
    kit.make_folder(out)
    record = {"circumstances": about, "wrong": wrong, "seconds": sum(r.seconds for r in results)}
    kit.write_json(out / "verify.json", record | {"rows": [result._asdict() for result in results]})
    kit.write_text(out / "verify.md", table(results, measured=True).markdown() + "\n")
    sections = []
    for title, colour, is_erratum in (("Statements of the paper", "blue", False), ("Errata", "red", True)):
        own = [result for result in results if result.key.startswith("erratum") == is_erratum]
        caption = "Right of the line the printed form holds." if is_erratum else "Right of the line the claim holds."
        sections += (
            [kit.Section(title, pictures=[(picture(own, colour), caption)], tables=[table(own)])] if own else []
        )
    summary = f"{len(results) - len(wrong)} of {len(results)} right" + (f": not {', '.join(wrong)}" if wrong else "")
    kit.write_page(out / "report.html", "The paper, checked by running it", summary, sections, about)
    terminal.table(table(results))
    terminal.say(f"{summary}; {out / 'verify.json'}, verify.md, report.html")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    kit.run_script(main)
