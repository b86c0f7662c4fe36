"""What ``o2nc cifar10`` does: get the data, train the table, show and write it."""

import os
import warnings
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from o2nc_experiments import page, record
from o2nc_experiments.cifar10 import arms, pictures, table, telling, view
from o2nc_experiments.cifar10.asked import Asked
from o2nc_experiments.cifar10.data import Data, DataError, load
from o2nc_experiments.cifar10.download import download
from o2nc_experiments.cifar10.entry import differences
from o2nc_experiments.cifar10.feed import to_device
from o2nc_experiments.cifar10.rows import untidy
from o2nc_experiments.cifar10.settings import unlike_paper
from o2nc_experiments.cifar10.store import Store
from o2nc_experiments.cifar10.team import Team, called, join
from o2nc_experiments.console import make_console, print_files, uninterrupted
from o2nc_experiments.record import available, describe, find_device

MOST = 6  # trials at once: more of them wait for each other
ROOM = 4 * 2**30  # bytes of GPU memory per trial, with some to spare


def show(asked: Asked) -> None:
    """Train what is not finished yet, and show and write all there is.

    Raises:
        OSError: data or folder cannot be used; the text says why.
        typer.BadParameter: an argument cannot be used.
    """
    team = called()
    console = make_console(asked.quiet or team.rank > 0)
    chosen, device = _arms(asked, console), _device(asked, team)
    if asked.settings.batch % team.size:
        raise typer.BadParameter(f"--batch {asked.settings.batch} cannot be shared by {team.size} processes")
    if asked.data is None and not asked.fetch and not asked.place_of_data.exists():
        raise typer.BadParameter(
            "CIFAR-10 is needed: name the folder of its official files, of the binary or the python version, with "
            "--data DIR, or have them fetched (170 MB) with --download"
        )
    with join(device):
        data = _data(asked, console, team)
        if len(data.train_images) < asked.settings.batch:
            raise typer.BadParameter(f"--batch {asked.settings.batch} is more than {len(data.train_images)} images")
        about = record.circumstances(
            asked.command,
            seeds=list(asked.seeds),
            processes=team.size,
            at_once=_at_once(asked, device, len(chosen) * len(asked.seeds), team.size),
            c=asked.c,
            **describe(device),
        )
        plan = table.Table(
            chosen,
            asked.seeds,
            asked.settings,
            Store(asked.out),
            data.digest,
            at_once=about["at_once"],
            save_every=asked.save_every,
            place=about,
        )
        _run(plan, asked, data, device, team, console, about)


def _run(
    plan: table.Table,
    asked: Asked,
    data: Data,
    device: torch.device,
    team: Team,
    console: Console,
    about: dict[str, Any],
) -> None:
    """Train the table and show and write what came of it, whatever ends it."""
    epochs, numbers = asked.settings.epochs, asked.out / "cifar10.json"
    with plan.opened(team) as entries, ExitStack() as until_written:

        def stopped() -> None:
            until_written.enter_context(uninterrupted())  # torchrun, interrupted itself, sends a second signal
            console.print("interrupted, writing results …")

        images = to_device(data, device, team)
        console.print(telling.opening(entries, epochs, about), markup=False, soft_wrap=True)
        warning = telling.patience(entries, asked.settings, len(data.train_images), device.type)
        if warning:
            console.print(warning, markup=False, soft_wrap=True)
        try:
            with telling.told(console, entries, epochs) as tell:
                plan.train(
                    entries,
                    images,
                    team,
                    tell,
                    kept=lambda: record.write(numbers, plan.results(entries, about)),
                    stopped=stopped,
                )
        except BaseException:
            if team.rank == 0 and any(entry.kept for entry in entries):
                with suppress(OSError):  # the first error is the one to hear of
                    _write(plan.results(entries, about), asked)
            raise
        if team.rank == 0:
            found = plan.results(entries, about)
            files = _write(found, asked)
            console.print(view.table(untidy(found), c=asked.c, note=view.note(found["settings"])))
            differ = differences(found["trials"])
            if differ:
                console.print(f"not all trained alike: {differ}", markup=False, soft_wrap=True)
            print_files(console, files)


def _arms(asked: Asked, console: Console) -> list[arms.Arm]:
    """Return the optimizers; what is said against one of them is passed on."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            chosen = [arms.parse(name) for name in asked.arms]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    for text in dict.fromkeys(str(warning.message) for warning in said):
        console.print(f"warning: {text}", markup=False, soft_wrap=True)
    return chosen


def _device(asked: Asked, team: Team) -> torch.device:
    try:
        device = find_device(asked.device)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if team.size > 1 and device.type == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def _data(asked: Asked, console: Console, team: Team) -> Data:
    """Return the data set; the first process fetches it if that was asked for, and the others wait."""
    mine: list[Data] = []
    team.first(lambda: mine.append(_fetched(asked, console)))
    return mine[0] if mine else load(asked.place_of_data, limit=asked.settings.limit)


def _fetched(asked: Asked, console: Console) -> Data:
    folder, limit = asked.place_of_data, asked.settings.limit
    try:
        return load(folder, limit=limit)
    except DataError:
        if not asked.fetch:
            raise
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("CIFAR-10", total=None)
        download(folder, lambda done, total: bar.update(task, completed=done, total=total))
    return load(folder, limit=limit)


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
    others = unlike_paper(found["settings"])
    title = ", ".join([pictures.TITLE, *(f"{key} {value}" for key, value in others.items() if key != "epochs")])
    files += pictures.save(pictures.figure(rows, title), out, "cifar10")
    certificates = pictures.certificates(rows, asked.c, title)
    if certificates is None:
        for old in (out / "certificates.png", out / "certificates.svg"):
            old.unlink(missing_ok=True)
    else:
        files += pictures.save(certificates, out, "certificates")
    return [*files, page.write([out / "cifar10.json"], out / page.NAME)]
