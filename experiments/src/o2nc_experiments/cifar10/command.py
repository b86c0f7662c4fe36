"""What ``o2nc cifar10`` shows: how far it is while it trains, then table, pictures and page."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from o2nc_experiments import figures, page, record
from o2nc_experiments.cifar10 import horizons, options, results, view
from o2nc_experiments.cifar10.checkpoints import NAME, TrialLog, differences
from o2nc_experiments.cifar10.data import Progress
from o2nc_experiments.cifar10.experiment import EpochEnd
from o2nc_experiments.cifar10.options import Options
from o2nc_experiments.cifar10.study import Shown, Watch, conduct, number, print_lines
from o2nc_experiments.classification import curves
from o2nc_experiments.console import make_console, print_files, print_plain, refusals
from o2nc_experiments.processes import find_world
from o2nc_experiments.tables import duration


def show(given: Options) -> None:
    """Train what is not finished yet, and show and write all there is.

    Raises:
        OSError: data or folder cannot be used; the text says why.
        typer.BadParameter: an option cannot be used.
    """
    first = find_world().rank == 0
    console = make_console(given.quiet or not first)
    files: list[Path] = []

    def keep(found: dict[str, Any]) -> None:
        files[:] = write(found, given)

    shown = Shown(partial(print_plain, console), partial(_progress, console), partial(_bar, console), keep)
    with refusals():
        found = conduct(given, shown)
    if first:
        console.print(results.table(horizons.reported(found), given.c, results.note(found["settings"])))
        for table in horizons.tables(found):
            console.print(table)
        if differ := differences(found["trials"]):
            print_plain(console, f"not all trained alike: {differ}")
        print_files(console, files)


@contextmanager
def _progress(console: Console, logs: Sequence[TrialLog], epochs: int) -> Iterator[Watch]:
    """Give a function that shows the end of an epoch: as bars in a terminal, as a line now and then elsewhere."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield print_lines(partial(print_plain, console))
        return
    name_and_bar = TextColumn("{task.description}", markup=False), BarColumn(None)
    columns = (*name_and_bar, MofNCompleteColumn(), TextColumn("{task.fields[now]}"))
    requested = [log for log in logs if log.requested]
    total, done = (sum(n) for n in zip(*((e.arm.epochs(epochs), len(e.rows)) for e in requested), strict=True))
    with Bars(*columns, console=console, transient=True, disable=console.quiet) as bars:
        tasks: dict[str, Any] = {}
        whole = bars.add_task("the table", total=total, completed=done, now="")

        def update_bars(end: EpochEnd) -> None:
            row, name = end.row, f"{end.row.arm} seed {end.row.seed}"
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=end.epochs, now="")
            now = f"train {number(row.train_loss):.4f} {row.train_accuracy:6.1%}  test {row.test_accuracy:6.1%}"
            bars.update(tasks[name], completed=row.epoch, now=now, visible=row.epoch < end.epochs)
            left = duration(end.left)
            bars.update(whole, completed=total - end.epochs_left, now=f"{end.rate:,.0f} images/s  {left} left")

        yield update_bars


@contextmanager
def _bar(console: Console) -> Iterator[Progress]:
    """Give a function that shows how much of the data set has come."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("CIFAR-10", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def write(found: dict[str, Any], given: Options) -> list[Path]:
    """Write results, table, pictures and report; return their paths."""
    out, rows = given.out, horizons.reported(found)
    files = [out / NAME, out / "cifar10.md"]
    record.write(files[0], found)
    record.write_text(files[1], results.markdown(found, c=given.c))
    others = options.unlike_paper(found["settings"])
    title = ", ".join([curves.TITLE, *(f"{key} {value}" for key, value in others.items() if key != "epochs")])
    for name, picture in (
        ("cifar10", curves.figure(rows, title)),
        ("certificates", curves.certificates(rows, given.c, title)),
        ("horizons", view.horizons_figure(found, title)),
    ):
        if picture is None:
            for old in (out / f"{name}.png", out / f"{name}.svg"):
                old.unlink(missing_ok=True)
        else:
            files += figures.save(picture, out, name)
    return [*files, page.write([out / NAME], out / page.NAME)]
