"""``o2nc paper verify``: every statement of the paper and every erratum, checked by running the library.

A row measures the two sides of a statement where they come closest to contradicting it: an exact supremum, a search
for the worst case, or a mean over runs with its standard error. A wrong formula in the library makes a row wrong.

    o2nc paper verify                    # ten seconds on two cores
    o2nc paper verify --only erratum

Result: 44 of 44 right, 27 statements and 17 errata, in docs/checks.md (two cores, torch 2.13, seed 0).
The one-step lemma, the energy identity of one step and fits of the rates were rows at commit 48cebb2, the conversion
of regret with sharp constants, the adaptive learner's regret and the renewal identity at 3c54312.
"""

from collections.abc import Sequence
from pathlib import Path

from o2nc_experiments import kit
from o2nc_experiments.runs import in_processes

# in the order of the table
from o2nc_experiments.verify import lemmas, regret, theorems, lower_bound, stopping, errata  # noqa: F401  # isort: skip
from o2nc_experiments.verify.row import ROWS, Result, check

__all__ = ["ROWS", "Result", "check", "main", "select"]

LONG = ("criterion", "goldstein", "theorem")  # begun first
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


def main(
    out: Path = Path("o2nc-verify"),
    only: str | None = None,
    seed: int = 0,
    workers: int = 2,
    quiet: bool = False,
) -> None:
    """Check every statement of the paper by running it; exit code 1 if a verdict is wrong.

    Args:
        out: folder for verify.json and verify.md.
        only: names of rows or their beginnings, with commas between.
        seed: of everything that is random.
        workers: processes.
        quiet: print nothing.
    """
    kit.at_least(0, seed=seed)
    kit.at_least(1, workers=workers)
    keys, terminal, found = select(only), kit.Terminal(quiet), dict[str, Result]()
    work = {key: (check, key, seed) for key in sorted(keys, key=lambda key: not key.startswith(LONG))}
    in_processes(work, min(workers, len(work)), terminal, found.__setitem__)
    results = [found[key] for key in keys]
    wrong = [result.key for result in results if not result.verdict]
    command = kit.written_command("o2nc paper verify", main, only=only, seed=seed)
    about = kit.circumstances(command, seed=seed, rows=len(keys))
    kit.make_folder(out)
    record = {"circumstances": about, "wrong": wrong, "seconds": sum(r.seconds for r in results)}
    kit.write_json(out / "verify.json", record | {"rows": [result._asdict() for result in results]})
    kit.write_text(out / "verify.md", table(results, measured=True).markdown() + "\n")
    summary = f"{len(results) - len(wrong)} of {len(results)} right" + (f": not {', '.join(wrong)}" if wrong else "")
    terminal.table(table(results))
    terminal.say(f"{summary}; {out / 'verify.json'}, verify.md")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    kit.run_script(main)
