"""``o2nc verify``: make the checks, show them, write them down."""

from pathlib import Path

import typer

from o2nc_experiments import page, pool, verify
from o2nc_experiments.console import make_console, print_error, print_files, progress_bar
from o2nc_experiments.record import write, write_text
from o2nc_experiments.verify import view


def show(only: list[str], out: Path | None, seed: int, workers: int, quiet: bool) -> bool:
    """Make the checks, show and write them; return whether all verdicts are right."""
    console = make_console(quiet)
    try:
        selected = verify.select(only)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
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
            console.print(view.table(results, console.width))
        if results and out is not None:
            write_text(out / "verify.md", view.markdown(results))
            write(out / "verify.json", view.record(results, seed, only, complete=complete))
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
