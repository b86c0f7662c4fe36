"""What ``o2nc gpt`` shows: a bar while it runs, then tables, pictures and the page."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from o2nc_experiments import figures, page
from o2nc_experiments.console import make_console, print_files, print_plain, progress_bar, refusals, uninterrupted
from o2nc_experiments.gpt import results, view
from o2nc_experiments.gpt.experiment import Watch
from o2nc_experiments.gpt.options import Options
from o2nc_experiments.gpt.planning import Goal, Run
from o2nc_experiments.gpt.store import NAME, Found
from o2nc_experiments.gpt.study import conduct
from o2nc_experiments.gpt.training import Progress
from o2nc_experiments.processes import find_world


def show(given: Options) -> None:
    """Make the runs that are not there yet, and show and write all there is.

    Raises:
        OSError: data or folder cannot be used; the text says why.
        typer.BadParameter: an option cannot be used.
    """
    first = find_world().rank == 0
    console = make_console(given.quiet or not first)
    before = _written(given.out)
    try:
        with refusals():
            found, goal, record = conduct(given, lambda text: print_plain(console, text), lambda n: _bar(console, n))
    except (KeyboardInterrupt, SystemExit):
        if first and _written(given.out) != before:  # runs were finished
            with uninterrupted():
                page.write([given.out / NAME], given.out / page.NAME)
        raise
    if first:
        print_results(console, found, goal, record)
        print_files(console, write(given.out, found, goal, record))


def print_results(console: Console, found: Found, goal: Goal, record: dict[str, Any]) -> None:
    """Show tables and sentences."""
    for table in results.tables(goal, found):
        console.print(table)
    lines = results.make_lines(goal, found.rows)
    print_plain(console, f"{results.verdict(goal, lines)}\n{results.speed(record)}".strip())


def write(out: Path, found: Found, goal: Goal, record: dict[str, Any]) -> list[Path]:
    """Write pictures and page beside the record; return their paths."""
    lines = results.make_lines(goal, found.rows)
    drawn = figures.save(view.figure(lines, view.title(record)), out, "gpt")
    return [out / NAME, *drawn, page.write([out / NAME], out / page.NAME)]


def _written(out: Path) -> float:
    return (out / NAME).stat().st_mtime if (out / NAME).exists() else 0.0


@contextmanager
def _bar(console: Console, steps: int) -> Iterator[Watch]:
    """Give a function that shows how far it is."""
    with progress_bar(console) as bar:
        task = bar.add_task("GPT", total=steps)

        def watch(run: Run, made: int, known: Progress | None) -> None:
            bar.advance(task, made)
            if known is not None:
                bar.update(task, description=f"{run.legs[0].arm.name} lr {run.legs[0].lr:g}: {known.loss:.3f} nats")

        yield watch
