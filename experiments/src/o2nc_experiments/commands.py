"""What the commands do: run an experiment with a progress bar, show it, write it down."""

from pathlib import Path

import typer

from o2nc_experiments import bench, page
from o2nc_experiments.console import make_console, print_error, print_files, print_plain, progress_bar


def plan_bench(models: list[str], rounds: int, device: str | None, training: bool, seed: int) -> bench.Report:
    """Return what is to be measured, or refuse it."""
    try:
        return bench.plan(models, rounds=rounds, device=device, training=training, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def show_bench(plan: bench.Report, out: Path | None, quiet: bool) -> bool:
    """Measure what was planned, show and write it; return whether no contender failed."""
    console = make_console(quiet)
    for refusal in plan.left_out:
        print_plain(console, f"left out: {refusal}")
    try:
        with progress_bar(console) as bar:
            task = bar.add_task(", ".join(plan.models), total=plan.total)
            bench.run(plan, lambda made: bar.advance(task, made))
    finally:
        if plan.rows or plan.trained:
            print_plain(console, bench.heading(bench.circumstances(plan)))
            for grid in bench.grids(plan.rows, plan.trained):
                console.print(grid)
            if out is not None:
                print_files(console, [*bench.save(plan, out), page.write([out])])
        if not plan.complete:
            made, asked = len(plan.rows) + len(plan.trained), plan.total // plan.rounds
            console.print(f"{made} of {asked} rows made")
    for failure in plan.failed:
        print_error(f"failed: {failure}")
    return not plan.failed


def show_report(places: list[Path], out: Path | None, quiet: bool) -> None:
    """Write the report of what is in these folders, and say where it is."""
    print_plain(make_console(quiet), f"Report: {page.write(places, out)}")
