"""What ``o2nc cifar10`` does: get the data, train the table, show and write it."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from o2nc.experiments import record, report
from o2nc.experiments.bench.hardware import available, describe, find_device
from o2nc.experiments.cifar10 import arms, pictures, table, view
from o2nc.experiments.cifar10.data import Data, load
from o2nc.experiments.cifar10.download import download
from o2nc.experiments.cifar10.feed import to_device
from o2nc.experiments.cifar10.rows import untidy
from o2nc.experiments.cifar10.settings import Settings
from o2nc.experiments.cifar10.store import Store
from o2nc.experiments.cifar10.team import Team, join
from o2nc.experiments.commands import console_for, say_files

MOST = 6  # trials at once: more of them wait for each other
ROOM = 4 * 2**30  # bytes of GPU memory per trial, with some to spare
QUIET_FOR = 10.0  # seconds between two lines of a trial where there is no terminal


@dataclass(frozen=True)
class Asked:
    """The arguments of the command line, as they were given.

    Attributes:
        data: folder of the data set.
        fetch: whether to download it there if it is missing.
        out: folder of the run.
        arms: names of the optimizers.
        seeds: of the trials.
        settings: of all trials.
        device: its name, None for the GPU if there is one.
        at_once: trials that share a GPU, None for as many as are good.
        save_every: seconds between checkpoints.
        c: the price of spread in the certificates that are shown.
        quiet: whether to print errors only.
    """

    data: Path | None
    fetch: bool
    out: Path
    arms: Sequence[str]
    seeds: range
    settings: Settings
    device: str | None
    at_once: int | None
    save_every: float
    c: float
    quiet: bool

    @property
    def command(self) -> str:
        """The command line that makes the same table."""
        s = self.settings
        parts = [
            "o2nc cifar10 --data DIR",
            *(f"--arm '{arm}'" for arm in self.arms if tuple(self.arms) != arms.TABLE),
        ]
        parts += [f"--seed {self.seeds[0]}"] if self.seeds[0] else []
        parts += [f"--seeds {len(self.seeds)} --epochs {s.epochs}"]
        for name in ("batch", "average", "width", "limit"):
            if getattr(s, name) != getattr(Settings(), name):
                parts.append(f"--{name} {getattr(s, name)}")
        return " ".join(parts)


def show(asked: Asked) -> None:
    """Train what is not finished yet, and show and write all there is.

    Raises:
        OSError: data or folder cannot be used; the text says why.
        typer.BadParameter: an argument cannot be used.
    """
    team_size = int(os.environ.get("WORLD_SIZE", "1"))
    first = os.environ.get("RANK", "0") == "0"
    console = console_for(asked.quiet or not first)
    try:
        chosen = [arms.parse(name) for name in asked.arms]
        device = find_device(asked.device)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if team_size > 1 and device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if asked.settings.batch % team_size:
        raise typer.BadParameter(f"--batch {asked.settings.batch} cannot be shared by {team_size} processes")
    data = _data(asked, console, first)
    if len(data.train_images) < asked.settings.batch:
        raise typer.BadParameter(f"--batch {asked.settings.batch} is more than {len(data.train_images)} images")
    trials = len(chosen) * len(asked.seeds)
    plan = table.Table(
        chosen,
        asked.seeds,
        asked.settings,
        Store(asked.out),
        data.digest,
        at_once=_at_once(asked, device, trials, team_size),
        save_every=asked.save_every,
    )
    entries: list[table.Entry] = []
    with join(device) as team:
        images = to_device(data, device, team)
        about = record.circumstances(
            asked.command,
            seeds=list(asked.seeds),
            processes=team.size,
            at_once=plan.at_once,
            c=asked.c,
            **describe(device),
        )
        numbers = asked.out / "cifar10.json"
        try:
            with _told(console, asked, team) as tell:
                plan.train(images, team, entries, tell, lambda: record.write(numbers, plan.results(entries, about)))
        except BaseException:
            if team.rank == 0 and any(entry.rows for entry in entries):
                with suppress(OSError):  # the first error is the one to hear of
                    _write(plan.results(entries, about), asked)
            raise
    if team.rank == 0:
        files = _write(plan.results(entries, about), asked)
        console.print(view.table([row for entry in entries for row in entry.rows], c=asked.c))
        say_files(console, files)


def _data(asked: Asked, console: Console, first: bool) -> Data:
    """Return the data set, fetched if that was asked for."""
    folder = asked.data or asked.out / "data"
    if asked.fetch and first:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("CIFAR-10", total=None)
            download(folder, lambda done, total: bar.update(task, completed=done, total=total))
    elif asked.data is None and not asked.fetch:
        raise typer.BadParameter(
            "CIFAR-10 is needed: name the folder of its official files, of the binary or the python version, with "
            "--data DIR, or have them fetched (170 MB) with --download"
        )
    return load(folder, limit=asked.settings.limit)


def _at_once(asked: Asked, device: torch.device, trials: int, team_size: int) -> int:
    if team_size > 1 or device.type != "cuda":
        return 1
    return min(trials, asked.at_once or max(1, min(MOST, (available(device) or 0) // ROOM)))


def _write(found: dict[str, Any], asked: Asked) -> list[Path]:
    """Write results, table, pictures and report; return their paths."""
    out, rows = asked.out, untidy(found)
    files = [out / "cifar10.json", out / "cifar10.md"]
    record.write(files[0], found)
    record.write_text(files[1], view.markdown(found, c=asked.c))
    files += pictures.save(pictures.figure(rows), out, "cifar10")
    certificates = pictures.certificates(rows, asked.c)
    files += [] if certificates is None else pictures.save(certificates, out, "certificates")
    return [*files, report.write([out / "cifar10.json"], out / report.NAME)]


@contextmanager
def _told(console: Console, asked: Asked, team: Team) -> Iterator[Callable[[table.News], None]]:
    """Give a function that shows the end of an epoch: as bars in a terminal, as a line now and then elsewhere."""
    epochs = asked.settings.epochs
    if not console.is_terminal:
        said: dict[str, float] = {}

        def say(news: table.News) -> None:
            name = f"{news.row.arm} seed {news.row.seed}"
            if news.row.epoch == epochs or monotonic() - said.get(name, 0.0) >= QUIET_FOR:
                said[name] = monotonic()
                line = view.line(news.row, epochs, news.rate, news.left)
                console.print(line, markup=False, soft_wrap=True)

        yield say
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=asked.quiet) as bars:
        tasks: dict[str, Any] = {}
        whole = bars.add_task("the table", total=epochs * len(asked.arms) * len(asked.seeds), now="")

        def draw(news: table.News) -> None:
            row, name = news.row, f"{news.row.arm} seed {news.row.seed}"
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=epochs, now="")
            loss = float("nan") if row.train_loss is None else row.train_loss
            now = f"train {loss:.4f} {row.train_accuracy:6.1%}  test {row.test_accuracy:6.1%}"
            bars.update(tasks[name], completed=row.epoch, now=now, visible=row.epoch < epochs)
            left = view.clock(news.left)
            done = epochs * len(asked.arms) * len(asked.seeds) - news.epochs_left
            bars.update(whole, completed=done, now=f"{news.rate:,.0f} images/s  {left} left")

        yield draw
