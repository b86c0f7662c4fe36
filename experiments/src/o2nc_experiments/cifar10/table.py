"""All trials of a table: begun or gone on with, several at once on a GPU, kept in a folder, told epoch by epoch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from time import time
from typing import Any, NamedTuple

import torch

from o2nc_experiments.cifar10.arms import Arm
from o2nc_experiments.cifar10.entry import Entry
from o2nc_experiments.cifar10.feed import Images
from o2nc_experiments.cifar10.keeper import keeping
from o2nc_experiments.cifar10.rows import Row, tidy
from o2nc_experiments.cifar10.settings import Settings
from o2nc_experiments.cifar10.store import Store
from o2nc_experiments.cifar10.team import Team
from o2nc_experiments.cifar10.trial import Trial


class News(NamedTuple):
    """The end of an epoch.

    Attributes:
        row: the epoch's.
        rate: images per second, all trials at work together.
        epochs_left: of the whole table.
        left: seconds that they take at this rate.
    """

    row: Row
    rate: float
    epochs_left: int
    left: float


@dataclass(frozen=True)
class Table:
    """What is to be trained and where it is kept.

    Attributes:
        arms: one column each.
        seeds: the trials of every arm.
        settings: of all trials.
        store: the folder.
        digest: of the data, so that a folder holds trials on the same data only.
        at_once: trials that share the device.
        save_every: seconds between checkpoints; they are made at the end of an epoch.
        place: what is trained on and with, to be noted with every trial.
    """

    arms: Sequence[Arm]
    seeds: Sequence[int]
    settings: Settings
    store: Store
    digest: str
    at_once: int = 1
    save_every: float = 120.0
    place: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def opened(self, team: Team) -> Iterator[list[Entry]]:
        """Hold the folder, and give its trials with what is kept of them: those asked for, then all others.

        Raises:
            OSError: the folder is in use, belongs to other settings, or cannot be used.
        """
        with ExitStack() as held:

            def look_up() -> list[Entry]:
                held.enter_context(self.store.locked())
                return self._look_up()

            yield team.first(look_up)

    def train(
        self,
        entries: Sequence[Entry],
        images: Images,
        team: Team,
        tell: Callable[[News], object],
        kept: Callable[[], object] = lambda: None,
        stopped: Callable[[], object] = lambda: None,
    ) -> None:
        """Train what is not finished yet. Interrupted, it keeps every epoch that is over.

        Args:
            entries: of `opened`; they have all rows on return, and whatever there is if an exception ends it.
            images: on the device.
            team: the processes that train together.
            tell: called at the end of every epoch of every trial.
            kept: called by the first process when checkpoints are made.
            stopped: called at once when it is interrupted.

        Raises:
            OSError: a checkpoint cannot be read or written.
        """
        saved = time()
        waiting = [entry for entry in entries if entry.asked and len(entry.rows) < self.settings.epochs]
        active: list[tuple[Entry, Trial]] = []
        with keeping(self.store.save, self.common, self.at_once) as keeper:
            try:
                while waiting or active:
                    while waiting and len(active) < self.at_once:
                        entry = waiting.pop(0)
                        active.append((entry, self._begin(entry, images, team)))
                        entry.begin(self.place, saved)
                    self._epoch(active, waiting, tell)
                    if any(trial.finished for _, trial in active) or time() - saved >= self.save_every:
                        saved = time()
                        if team.rank == 0:
                            for entry, _ in active:
                                keeper.keep(entry)
                            kept()
                        active = [pair for pair in active if not pair[1].finished]
                        for entry in entries:
                            if entry.kept == self.settings.epochs:
                                entry.state = None
            except (KeyboardInterrupt, SystemExit):
                stopped()
                if team.rank == 0:
                    keeper.finish()
                    for entry in entries:
                        if entry.state is not None and entry.kept < entry.state["epoch"]:
                            keeper.keep(entry)
                    keeper.finish()
                raise

    def results(self, entries: Sequence[Entry], circumstances: dict[str, Any]) -> dict[str, Any]:
        """Return all that is kept as one record, for JSON."""
        complete = [entry.kept == self.settings.epochs for entry in entries]
        return {
            "circumstances": circumstances,
            "settings": self.common,
            "complete": all(complete) and bool(entries),
            "seconds": union([span for entry in entries for span in entry.spans]),
            "trials": [
                {"arm": e.arm.name, "seed": e.seed, "epochs": e.kept, "complete": done, "places": e.places}
                for e, done in zip(entries, complete, strict=True)
            ],
            **tidy([row for entry in entries for row in entry.rows[: entry.kept]]),
        }

    @property
    def common(self) -> dict[str, Any]:
        """What all trials of a folder must share."""
        return {**asdict(self.settings), "data": self.digest}

    def _look_up(self) -> list[Entry]:
        """Return all trials with what is kept of them."""
        self.store.settle(self.common)
        entries = [Entry(arm, seed) for arm in self.arms for seed in self.seeds]
        for entry in entries:
            self._recall(entry, self.store.load(entry.name))
        for name, state in self.store.others([entry.name for entry in entries]):
            with self._refused(name):
                entries.append(Entry.called(name))
            self._recall(entries[-1], state)
        return entries

    def _recall(self, entry: Entry, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        with self._refused(entry.name):
            entry.recall(state)
        if state["settings"] != self.common:
            raise OSError(f"{entry.name} was begun with other settings in {self.store.folder}; choose another --out")

    @contextmanager
    def _refused(self, name: str) -> Iterator[None]:
        """Refuse a checkpoint that has other contents than a trial's."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError):
            raise self.store.refusal(name) from None
        except RuntimeError as error:
            if "loading state_dict" not in str(error):  # the device's errors are no fault of the file
                raise
            raise self.store.refusal(name) from None

    def _begin(self, entry: Entry, images: Images, team: Team) -> Trial:
        """Make a trial, and have it go on where it was."""
        trial = Trial(entry.arm, entry.seed, self.settings, images, team)
        state = team.first(lambda: self.store.load(entry.name))
        if state is not None:
            with self._refused(entry.name):
                trial.restore(state)
        if images.train.is_cuda:
            torch.cuda.synchronize(images.train.device)  # its own stream must not overtake what was just made
        return trial

    def _epoch(self, active: list[tuple[Entry, Trial]], waiting: list[Entry], tell: Callable[[News], object]) -> None:
        """Train all active trials for an epoch, step by step in turns: the device is always busy with one of them."""
        begin = time()
        trials = [trial for _, trial in active]
        steps = [trial.begin_epoch() for trial in trials]
        for k in range(max(steps)):
            for trial, count in zip(trials, steps, strict=True):
                if k < count:
                    trial.step()
        for trial in trials:
            trial.launch_evaluation()
        rows = [trial.end_epoch() for trial in trials]
        rate = sum(steps) * self.settings.batch / (time() - begin)
        epochs = sum(self.settings.epochs - trial.epoch for trial in trials)
        epochs += sum(self.settings.epochs - len(entry.rows) for entry in waiting)
        left = epochs * len(trials[0].images.train) / rate
        for (entry, trial), row in zip(active, rows, strict=True):
            entry.advance(row, trial.snapshot(), time())
        for row in rows:
            tell(News(row, rate, epochs, left))


def union(spans: Sequence[Sequence[float]]) -> float:
    """Return how long it was in all that some of the spans lasted.

    Example:
        >>> union([(0, 2), (1, 3), (5, 6)])
        4.0
    """
    total, until = 0.0, float("-inf")
    for begin, end in sorted(map(tuple, spans)):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
