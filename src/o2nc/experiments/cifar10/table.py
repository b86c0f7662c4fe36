"""All trials of a table: begun or gone on with, several at once on a GPU, kept in a folder, told epoch by epoch."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from time import time
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from o2nc.experiments.cifar10.arms import Arm
from o2nc.experiments.cifar10.feed import Images
from o2nc.experiments.cifar10.rows import Row, tidy
from o2nc.experiments.cifar10.settings import Settings
from o2nc.experiments.cifar10.store import Store
from o2nc.experiments.cifar10.team import Team
from o2nc.experiments.cifar10.trial import Trial


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


@dataclass
class Entry:
    """A trial of the table, whether it has begun or not.

    Attributes:
        arm: the optimizer.
        seed: of the trial.
        rows: of the epochs that are over and kept.
        spans: from when to when processes were at work on what is kept.
    """

    arm: Arm
    seed: int
    rows: list[Row] = field(default_factory=list)
    spans: list[list[float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the trial is called, in messages and files."""
        return f"{self.arm.name} seed {self.seed}"


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
    """

    arms: Sequence[Arm]
    seeds: Sequence[int]
    settings: Settings
    store: Store
    digest: str
    at_once: int = 1
    save_every: float = 120.0

    def train(
        self,
        images: Images,
        team: Team,
        entries: list[Entry],
        tell: Callable[[News], object],
        kept: Callable[[], object] = lambda: None,
    ) -> None:
        """Train what is not finished yet.

        Args:
            images: on the device.
            team: the processes that train together.
            entries: empty; has all trials' rows on return, and whatever is kept if an exception ends it.
            tell: called at the end of every epoch of every trial.
            kept: called by the first process when checkpoints are made.

        Raises:
            OSError: the folder is in use, belongs to other settings, or cannot be written.
        """
        began = time()
        with ExitStack() as held:
            entries += self._agree(team, held)
            waiting = [entry for entry in entries if len(entry.rows) < self.settings.epochs]
            active: list[tuple[Entry, Trial]] = []
            with self._keeper(team) as keep:
                saved = began
                while waiting or active:
                    while waiting and len(active) < self.at_once:
                        entry = waiting.pop(0)
                        active.append((entry, self._begin(entry, images, team)))
                        entry.spans.append([saved, saved])
                    self._epoch(active, waiting, tell)
                    if any(trial.finished for _, trial in active) or time() - saved >= self.save_every:
                        saved = time()
                        for entry, trial in active:
                            entry.spans[-1][1] = saved
                            keep(entry, trial)
                        if team.rank == 0:
                            kept()
                        active = [pair for pair in active if not pair[1].finished]

    def results(self, entries: Sequence[Entry], circumstances: dict[str, Any]) -> dict[str, Any]:
        """Return all that is known as one record, for JSON."""
        complete = [len(entry.rows) == self.settings.epochs for entry in entries]
        return {
            "circumstances": circumstances,
            "settings": self.common,
            "complete": all(complete) and bool(entries),
            "seconds": union([span for entry in entries for span in entry.spans]),
            "trials": [
                {"arm": entry.arm.name, "seed": entry.seed, "epochs": len(entry.rows), "complete": done}
                for entry, done in zip(entries, complete, strict=True)
            ],
            **tidy([row for entry in entries for row in entry.rows]),
        }

    @property
    def common(self) -> dict[str, Any]:
        """What all trials of a folder must share."""
        return {**asdict(self.settings), "data": self.digest}

    def _agree(self, team: Team, held: ExitStack) -> list[Entry]:
        """Return what the first process finds in the folder, which it holds from now on, or refuse in all of them."""
        said: list[Entry] | OSError = []
        if team.rank == 0:
            try:
                held.enter_context(self.store.locked())
                said = self._look_up()
            except OSError as error:
                said = error
        heard = team.hear(said)
        if isinstance(heard, OSError):
            raise heard if team.rank == 0 else SystemExit(1)  # one of them says it
        return heard

    def _look_up(self) -> list[Entry]:
        """Return all trials with what is kept of them."""
        self.store.settle(self.common)
        entries = [Entry(arm, seed) for arm in self.arms for seed in self.seeds]
        for entry in entries:
            state = self.store.load(entry.name)
            if state is not None:
                if state["settings"] != self.common:
                    raise OSError(f"{entry.name} was begun with other settings in {self.store.folder}")
                entry.rows = [Row(*row) for row in state["rows"]]
                entry.spans = state["spans"]
        return entries

    def _begin(self, entry: Entry, images: Images, team: Team) -> Trial:
        """Make a trial, and have it go on where it was."""
        trial = Trial(entry.arm, entry.seed, self.settings, images, team)
        state = team.hear(self.store.load(entry.name) if team.rank == 0 else None)
        if state is not None:
            trial.restore(state)
        if images.train.is_cuda:
            torch.cuda.synchronize()  # its own stream must not overtake what was just made
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
        for (entry, _), row in zip(active, rows, strict=True):
            entry.rows.append(row)
            tell(News(row, rate, epochs, left))

    @contextmanager
    def _keeper(self, team: Team) -> Iterator[Callable[[Entry, Trial], None]]:
        """Give a function that keeps a trial's state: copied at once, written while the training goes on.

        What could not be written stops the training, at the latest when the next state is to be kept.
        """
        with ThreadPoolExecutor(1) as thread:
            writing: list[Future[None]] = []

            def keep(entry: Entry, trial: Trial) -> None:
                if team.rank:
                    return
                while len(writing) >= self.at_once:
                    writing.pop(0).result()
                state = tree_map_only(torch.Tensor, lambda t: t.to("cpu", copy=True), trial.state())
                state["settings"] = self.common
                state |= {"rows": [list(row) for row in entry.rows], "spans": [list(span) for span in entry.spans]}
                writing.append(thread.submit(self.store.save, entry.name, state))

            yield keep
            for future in writing:
                future.result()


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
