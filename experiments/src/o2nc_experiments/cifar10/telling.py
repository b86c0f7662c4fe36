"""What is said while a table is trained: a line at the beginning, bars or lines after it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from o2nc_experiments.cifar10 import view
from o2nc_experiments.cifar10.entry import Entry
from o2nc_experiments.cifar10.settings import Settings
from o2nc_experiments.cifar10.table import News

QUIET_FOR = 10.0  # seconds between two lines of a trial where there is no terminal
MANY = 5e6  # images through ResNet-18 of width 64: a day and more at 20 per second and core (benchmarks/logger.py)


def opening(entries: Sequence[Entry], epochs: int, place: Mapping[str, Any]) -> str:
    """Return what is to be done, on what, and what is done already."""
    asked = [entry for entry in entries if entry.asked]
    finished = sum(len(entry.rows) == epochs for entry in asked)
    where = f"{place['device']} ({place['hardware']}, {counted(place['threads'], 'thread')})"
    parts = [f"{counted(len(asked), 'trial')} × {counted(epochs, 'epoch')} on {where}"]
    if finished:
        parts.append(f"{finished} of {len(asked)} finished")
    begun = [f"{e.name} from epoch {len(e.rows) + 1}" for e in asked if 0 < len(e.rows) < epochs]
    if begun:
        parts.append(f"it goes on with {', '.join(begun)}")
    if len(entries) > len(asked):
        parts.append(f"{counted(len(entries) - len(asked), 'other trial')} in the folder")
    return "; ".join(parts)


def counted(number: int, thing: str) -> str:
    """Return a number of things."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def patience(entries: Sequence[Entry], settings: Settings, images: int, device: str) -> str:
    """Return a warning if this will take very long, else nothing."""
    epochs = sum(settings.epochs - len(entry.rows) for entry in entries if entry.asked)
    if device != "cpu" or epochs * images * (settings.width / 64) ** 2 < MANY:
        return ""
    return "on a CPU this takes days (a GPU needs minutes); for a try: --seeds 1 --epochs 2 --width 8 --limit 2000"


@contextmanager
def told(console: Console, entries: Sequence[Entry], epochs: int) -> Iterator[Callable[[News], None]]:
    """Give a function that shows the end of an epoch: as bars in a terminal, as a line now and then elsewhere."""
    if not console.is_terminal or console.is_dumb_terminal:
        said: dict[str, float] = {}

        def say(news: News) -> None:
            name = f"{news.row.arm} seed {news.row.seed}"
            if news.row.epoch == epochs or monotonic() - said.get(name, 0.0) >= QUIET_FOR:
                said[name] = monotonic()
                line = view.line(news.row, epochs, news.rate, news.left)
                console.print(line, markup=False, soft_wrap=True)

        yield say
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
    )
    asked = [entry for entry in entries if entry.asked]
    total, done = epochs * len(asked), sum(len(entry.rows) for entry in asked)
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as bars:
        tasks: dict[str, Any] = {}
        whole = bars.add_task("the table", total=total, completed=done, now="")

        def draw(news: News) -> None:
            row, name = news.row, f"{news.row.arm} seed {news.row.seed}"
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=epochs, now="")
            loss = float("nan") if row.train_loss is None else row.train_loss
            now = f"train {loss:.4f} {row.train_accuracy:6.1%}  test {row.test_accuracy:6.1%}"
            bars.update(tasks[name], completed=row.epoch, now=now, visible=row.epoch < epochs)
            left = view.clock(news.left)
            bars.update(whole, completed=total - news.epochs_left, now=f"{news.rate:,.0f} images/s  {left} left")

        yield draw
