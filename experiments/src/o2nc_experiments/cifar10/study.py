"""The study from options to record, whoever shows it: the terminal, or ``python -m o2nc_experiments.cifar10``."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import torch

from o2nc_experiments import record
from o2nc_experiments.cifar10.arms import Arm
from o2nc_experiments.cifar10.batches import Images, to_device
from o2nc_experiments.cifar10.checkpoints import NAME, Store, TrialLog
from o2nc_experiments.cifar10.data import Data, DataError, Progress, download, load
from o2nc_experiments.cifar10.experiment import EpochEnd, Experiment
from o2nc_experiments.cifar10.horizons import Goal
from o2nc_experiments.cifar10.options import Options, Settings
from o2nc_experiments.classification import Epoch, from_columns
from o2nc_experiments.console import uninterrupted
from o2nc_experiments.processes import World, find_device, find_world, process_group
from o2nc_experiments.tables import duration, plural

AT_ONCE = 6  # trials on one GPU: more of them wait for each other
ROOM = 4 * 2**30  # bytes of GPU memory per trial, with some to spare
LINE_EVERY = 10.0  # seconds between two lines of a trial where there is no terminal
SLOW = "on a CPU this takes days (a GPU needs minutes); for a try: --seeds 1 --epochs 2 --width 8 --limit 2000"
MANY = 5e6  # images through ResNet-18 of width 64: a day and more at 20 per second and core (benchmarks/logger.py)

Watch = Callable[[EpochEnd], object]
Write = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Shown:
    """What is done with what there is to see."""

    say: Callable[[str], object]  # shows a line
    watching: Callable[[Sequence[TrialLog], int], AbstractContextManager[Watch]]  # gives what is told of every epoch
    downloading: Callable[[], AbstractContextManager[Progress]]  # gives what is told how many bytes have come
    write: Write  # keeps a record, by its end and if something stops it before


def conduct(given: Options, shown: Shown) -> dict[str, Any]:
    """Train what is not finished yet, and return the record of all there is.

    Raises:
        ValueError: an option cannot be used; the text says why.
        OSError: data or folder cannot be used; likewise.
    """
    world = find_world()
    device = find_device(given.device, world)
    goal = _goal(given, shown)
    if given.batch % world.size:
        raise ValueError(f"--batch {given.batch} cannot be shared by {world.size} processes")
    if given.data is None and not given.download and not given.data_folder.exists():
        raise ValueError(
            "CIFAR-10 is needed: name the folder of its official files, of the binary or the python version, with "
            "--data DIR, or have them fetched (170 MB) with --download"
        )
    with process_group(device):
        data = _data(given, shown, world)
        if len(data.train_images) < given.batch:
            raise ValueError(f"--batch {given.batch} is more than {len(data.train_images)} images")
        study = _Study(given, goal, shown, data, device, world)
        rows = world.on_first(lambda: [row for log in Store(given.out).recorded() for row in log.rows])
        if len(goal.plan(rows)) < len(goal.arms):  # some are still to be tuned
            assert goal.tune is not None
            rows = from_columns(study.train(goal.tuning(), [goal.tune], partial(record.write, given.out / NAME)))
        arms = [arm for own in goal.plan(rows).values() for arm in own.values()]
        return study.train(arms, goal.seeds, shown.write)


class _Study:
    """The trials of one command, on the device that they are trained on."""

    def __init__(
        self, given: Options, goal: Goal, shown: Shown, data: Data, device: torch.device, world: World
    ) -> None:
        self.given, self.goal, self.shown = given, goal, shown
        self.data, self.device, self.world = data, device, world
        self.images: Images | None = None

    def train(self, arms: Sequence[Arm], seeds: Sequence[int], write: Write) -> dict[str, Any]:
        """Train these arms with these seeds; return the record of all trials of the folder."""
        given, world = self.given, self.world
        arms = list({arm.name: arm for arm in arms}.values())
        about = record.circumstances(
            given.command,
            seeds=list(self.goal.seeds),
            processes=world.size,
            at_once=_at_once(given, self.device, len(arms) * len(seeds), world.size),
            c=given.c,
            **record.describe(self.device),
        )
        experiment = Experiment(
            arms,
            seeds,
            given.settings,
            Store(given.out),
            self.data.digest,
            at_once=about["at_once"],
            save_every=given.save_every,
            place=about,
            horizons=self.goal.horizons,
        )
        with experiment.opened(world) as logs, ExitStack() as until_written:

            def interrupted() -> None:
                until_written.enter_context(uninterrupted())  # torchrun, interrupted itself, sends a second signal
                self.shown.say("interrupted, writing results …")

            def results() -> dict[str, Any]:
                found = experiment.results(logs, about)
                return found if self.goal.is_plain else found | {"goal": self.goal.to_record()}

            self.images = self.images or to_device(self.data, self.device, world)
            self.shown.say(_opening(logs, given.settings.epochs, about))
            if self.device.type == "cpu" and _images(logs, given.settings, len(self.data.train_images)) >= MANY:
                self.shown.say(SLOW)
            try:
                with self.shown.watching(logs, given.settings.epochs) as watch:
                    experiment.train(
                        logs,
                        self.images,
                        world,
                        watch,
                        on_checkpoint=lambda: record.write(given.out / NAME, results()),
                        on_interrupt=interrupted,
                    )
            except BaseException:
                if world.rank == 0 and any(log.saved for log in logs):
                    with suppress(OSError):  # the first error is the one to hear of
                        self.shown.write(results())
                raise
            found = results()
            if world.rank == 0:
                write(found)
            return found


def _goal(given: Options, shown: Shown) -> Goal:
    """Return what is to be trained; what is said against an optimizer is passed on."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        goal = given.goal()
    for text in dict.fromkeys(str(warning.message) for warning in said):
        shown.say(f"warning: {text}")
    return goal


def _opening(logs: Sequence[TrialLog], epochs: int, place: Mapping[str, Any]) -> str:
    """Return what is to be done, on what, and what is done already."""
    requested = [log for log in logs if log.requested]
    lengths = {log.arm.epochs(epochs) for log in requested}
    finished = sum(len(log.rows) == log.arm.epochs(epochs) for log in requested)
    where = f"{place['device']} ({place['hardware']}, {plural(place['threads'], 'thread')})"
    most = plural(max(lengths), "epoch")
    each = most if len(lengths) == 1 else f"{min(lengths)} to {most}"
    parts = [f"{plural(len(requested), 'trial')} × {each} on {where}"]
    if finished:
        parts.append(f"{finished} of {len(requested)} finished")
    begun = [f"{e.name} from epoch {len(e.rows) + 1}" for e in requested if 0 < len(e.rows) < e.arm.epochs(epochs)]
    if begun:
        parts.append(f"it goes on with {', '.join(begun)}")
    if len(logs) > len(requested):
        parts.append(f"{plural(len(logs) - len(requested), 'other trial')} in the folder")
    return "; ".join(parts)


def _images(logs: Sequence[TrialLog], settings: Settings, images: int) -> float:
    """Return how many images of width 64 make the work that is left."""
    left = sum(log.arm.epochs(settings.epochs) - len(log.rows) for log in logs if log.requested)
    return left * images * (settings.width / 64) ** 2


def print_lines(say: Callable[[str], object]) -> Watch:
    """Return a function that shows an epoch now and then, and the last of every trial, as a line."""
    printed: dict[str, float] = {}

    def print_line(end: EpochEnd) -> None:
        name = f"{end.row.arm} seed {end.row.seed}"
        if end.row.epoch == end.epochs or monotonic() - printed.get(name, 0.0) >= LINE_EVERY:
            printed[name] = monotonic()
            say(epoch_line(end.row, end.epochs, end.rate, end.left))

    return print_line


def epoch_line(row: Epoch, epochs: int, images_per_second: float, left: float | None) -> str:
    """Return an epoch in one line, with the seconds until all is over unless nobody knows."""
    parts = [f"{row.arm} seed {row.seed}", f"epoch {row.epoch:>{len(str(epochs))}}/{epochs}"]
    parts.append(f"train {number(row.train_loss):.4f} {100 * row.train_accuracy:4.1f} %")
    parts.append(f"test {number(row.test_loss):.4f} {100 * row.test_accuracy:4.1f} %")
    parts.append(f"{images_per_second:,.0f} images/s")
    return "  ".join([*parts, *([] if left is None else [f"{duration(left)} left"])])


def number(loss: float | None) -> float:
    """Return a loss, nan where it was not finite."""
    return math.nan if loss is None else loss


def _data(given: Options, shown: Shown, world: World) -> Data:
    """Return the data set; the first process fetches it if that was asked for, and the others wait."""
    folder, limit = given.data_folder, given.limit
    mine: list[Data] = []

    def load_or_fetch() -> None:
        try:
            mine.append(load(folder, limit=limit))
            return
        except DataError:
            if not given.download:
                raise
        with shown.downloading() as progress:
            download(folder, progress)
        mine.append(load(folder, limit=limit))

    world.on_first(load_or_fetch)
    return mine[0] if mine else load(folder, limit=limit)


def _at_once(given: Options, device: torch.device, trials: int, processes: int) -> int:
    if processes > 1 or device.type != "cuda":
        return 1
    return min(trials, given.at_once or max(1, min(AT_ONCE, (record.available(device) or 0) // ROOM)))
