"""What ``o2nc cifar10`` does: get the data, train all trials, show how far it is, show and write what came of it."""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from o2nc_experiments import figures, page, record
from o2nc_experiments.cifar10 import options, view
from o2nc_experiments.cifar10.batches import to_device
from o2nc_experiments.cifar10.checkpoints import Store, TrialLog, differences
from o2nc_experiments.cifar10.data import Data, DataError, download, load
from o2nc_experiments.cifar10.experiment import EpochEnd, Experiment
from o2nc_experiments.cifar10.options import Options, Settings
from o2nc_experiments.cifar10.processes import World, find_world, process_group
from o2nc_experiments.classification import Epoch, curves, from_columns
from o2nc_experiments.console import make_console, print_files, print_plain, refusals, uninterrupted
from o2nc_experiments.tables import duration, plural

AT_ONCE = 6  # trials on one GPU: more of them wait for each other
ROOM = 4 * 2**30  # bytes of GPU memory per trial, with some to spare
LINE_EVERY = 10.0  # seconds between two lines of a trial where there is no terminal
SLOW = "on a CPU this takes days (a GPU needs minutes); for a try: --seeds 1 --epochs 2 --width 8 --limit 2000"
MANY = 5e6  # images through ResNet-18 of width 64: a day and more at 20 per second and core (benchmarks/logger.py)


def show(given: Options) -> None:
    """Train what is not finished yet, and show and write all there is; OSError says why it cannot."""
    with refusals():
        given.check()
    world = find_world()
    console = make_console(given.quiet or world.rank > 0)
    chosen, device = _arms(given, console), _device(given, world)
    if given.settings.batch % world.size:
        raise typer.BadParameter(f"--batch {given.settings.batch} cannot be shared by {world.size} processes")
    if given.data is None and not given.fetch and not given.data_folder.exists():
        raise typer.BadParameter(
            "CIFAR-10 is needed: name the folder of its official files, of the binary or the python version, with "
            "--data DIR, or have them fetched (170 MB) with --download"
        )
    with process_group(device):
        data = _data(given, console, world)
        if len(data.train_images) < given.settings.batch:
            raise typer.BadParameter(f"--batch {given.settings.batch} is more than {len(data.train_images)} images")
        about = record.circumstances(
            given.command,
            seeds=list(given.seeds),
            processes=world.size,
            at_once=_at_once(given, device, len(chosen) * len(given.seeds), world.size),
            c=given.c,
            **record.describe(device),
        )
        experiment = Experiment(
            chosen,
            given.seeds,
            given.settings,
            Store(given.out),
            data.digest,
            at_once=about["at_once"],
            save_every=given.save_every,
            place=about,
        )
        _train(experiment, given, data, device, world, console)


def _train(
    experiment: Experiment, given: Options, data: Data, device: torch.device, world: World, console: Console
) -> None:
    """Train, and show and write what came of it, whatever ends it."""
    epochs, numbers, about = given.settings.epochs, given.out / "cifar10.json", dict(experiment.place)
    with experiment.opened(world) as logs, ExitStack() as until_written:

        def interrupted() -> None:
            until_written.enter_context(uninterrupted())  # torchrun, interrupted itself, sends a second signal
            console.print("interrupted, writing results …")

        images = to_device(data, device, world)
        print_plain(console, _opening(logs, epochs, about))
        if device.type == "cpu" and _images(logs, given.settings, len(data.train_images)) >= MANY:
            print_plain(console, SLOW)
        try:
            with _progress(console, logs, epochs) as show_epoch:
                experiment.train(
                    logs,
                    images,
                    world,
                    show_epoch,
                    on_checkpoint=lambda: record.write(numbers, experiment.results(logs, about)),
                    on_interrupt=interrupted,
                )
        except BaseException:
            if world.rank == 0 and any(log.saved for log in logs):
                with suppress(OSError):  # the first error is the one to hear of
                    _write(experiment.results(logs, about), given)
            raise
        if world.rank == 0:
            found = experiment.results(logs, about)
            files = _write(found, given)
            console.print(view.table(from_columns(found), given.c, view.note(found["settings"])))
            if differ := differences(found["trials"]):
                print_plain(console, f"not all trained alike: {differ}")
            print_files(console, files)


def _opening(logs: Sequence[TrialLog], epochs: int, place: Mapping[str, Any]) -> str:
    """Return what is to be done, on what, and what is done already."""
    requested = [log for log in logs if log.requested]
    finished = sum(len(log.rows) == epochs for log in requested)
    where = f"{place['device']} ({place['hardware']}, {plural(place['threads'], 'thread')})"
    parts = [f"{plural(len(requested), 'trial')} × {plural(epochs, 'epoch')} on {where}"]
    if finished:
        parts.append(f"{finished} of {len(requested)} finished")
    begun = [f"{e.name} from epoch {len(e.rows) + 1}" for e in requested if 0 < len(e.rows) < epochs]
    if begun:
        parts.append(f"it goes on with {', '.join(begun)}")
    if len(logs) > len(requested):
        parts.append(f"{plural(len(logs) - len(requested), 'other trial')} in the folder")
    return "; ".join(parts)


def _images(logs: Sequence[TrialLog], settings: Settings, images: int) -> float:
    """Return how many images of width 64 make the work that is left."""
    return sum(settings.epochs - len(e.rows) for e in logs if e.requested) * images * (settings.width / 64) ** 2


@contextmanager
def _progress(console: Console, logs: Sequence[TrialLog], epochs: int) -> Iterator[Callable[[EpochEnd], None]]:
    """Give a function that shows the end of an epoch: as bars in a terminal, as a line now and then elsewhere."""
    if not console.is_terminal or console.is_dumb_terminal:
        printed: dict[str, float] = {}

        def print_line(end: EpochEnd) -> None:
            name = f"{end.row.arm} seed {end.row.seed}"
            if end.row.epoch == epochs or monotonic() - printed.get(name, 0.0) >= LINE_EVERY:
                printed[name] = monotonic()
                print_plain(console, epoch_line(end.row, epochs, end.rate, end.left))

        yield print_line
        return
    name_and_bar = TextColumn("{task.description}", markup=False), BarColumn(None)
    columns = (*name_and_bar, MofNCompleteColumn(), TextColumn("{task.fields[now]}"))
    requested = [log for log in logs if log.requested]
    total, done = epochs * len(requested), sum(len(log.rows) for log in requested)
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as bars:
        tasks: dict[str, Any] = {}
        whole = bars.add_task("the table", total=total, completed=done, now="")

        def update_bars(end: EpochEnd) -> None:
            row, name = end.row, f"{end.row.arm} seed {end.row.seed}"
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=epochs, now="")
            now = f"train {_nan(row.train_loss):.4f} {row.train_accuracy:6.1%}  test {row.test_accuracy:6.1%}"
            bars.update(tasks[name], completed=row.epoch, now=now, visible=row.epoch < epochs)
            left = duration(end.left)
            bars.update(whole, completed=total - end.epochs_left, now=f"{end.rate:,.0f} images/s  {left} left")

        yield update_bars


def epoch_line(row: Epoch, epochs: int, images_per_second: float, left: float | None) -> str:
    """Return an epoch in one line, with the seconds until all is over unless nobody knows."""
    parts = [f"{row.arm} seed {row.seed}", f"epoch {row.epoch:>{len(str(epochs))}}/{epochs}"]
    parts.append(f"train {_nan(row.train_loss):.4f} {100 * row.train_accuracy:4.1f} %")
    parts.append(f"test {_nan(row.test_loss):.4f} {100 * row.test_accuracy:4.1f} %")
    parts.append(f"{images_per_second:,.0f} images/s")
    return "  ".join([*parts, *([] if left is None else [f"{duration(left)} left"])])


def _nan(loss: float | None) -> float:
    return math.nan if loss is None else loss


def _arms(given: Options, console: Console) -> list[options.Arm]:
    """Return the optimizers; what is said against one of them is passed on."""
    with refusals(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        chosen = [options.parse(name) for name in given.arms]
    for text in dict.fromkeys(str(warning.message) for warning in said):
        print_plain(console, f"warning: {text}")
    return chosen


def _device(given: Options, world: World) -> torch.device:
    with refusals():
        device = record.find_device(given.device)
    if world.size > 1 and device.type == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def _data(given: Options, console: Console, world: World) -> Data:
    """Return the data set; the first process fetches it if that was asked for, and the others wait."""
    folder, limit = given.data_folder, given.settings.limit
    mine: list[Data] = []

    def load_or_fetch() -> None:
        try:
            mine.append(load(folder, limit=limit))
            return
        except DataError:
            if not given.fetch:
                raise
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("CIFAR-10", total=None)
            download(folder, lambda done, total: bar.update(task, completed=done, total=total))
        mine.append(load(folder, limit=limit))

    world.on_first(load_or_fetch)
    return mine[0] if mine else load(folder, limit=limit)


def _at_once(given: Options, device: torch.device, trials: int, processes: int) -> int:
    if processes > 1 or device.type != "cuda":
        return 1
    return min(trials, given.at_once or max(1, min(AT_ONCE, (record.available(device) or 0) // ROOM)))


def _write(found: dict[str, Any], given: Options) -> list[Path]:
    """Write results, table, pictures and report; return their paths."""
    out, rows = given.out, from_columns(found)
    files = [out / "cifar10.json", out / "cifar10.md"]
    record.write(files[0], found)
    record.write_text(files[1], view.markdown(found, c=given.c))
    others = options.unlike_paper(found["settings"])
    title = ", ".join([curves.TITLE, *(f"{key} {value}" for key, value in others.items() if key != "epochs")])
    files += figures.save(curves.figure(rows, title), out, "cifar10")
    certificates = curves.certificates(rows, given.c, title)
    if certificates is None:
        for old in (out / "certificates.png", out / "certificates.svg"):
            old.unlink(missing_ok=True)
    else:
        files += figures.save(certificates, out, "certificates")
    return [*files, page.write([out / "cifar10.json"], out / page.NAME)]
