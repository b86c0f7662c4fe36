"""All trials of an experiment: begun or gone on with, several at once on a GPU, with checkpoints in a folder."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from time import time
from typing import Any, NamedTuple

import torch

from o2nc_experiments.cifar10.arms import Arm
from o2nc_experiments.cifar10.batches import Images
from o2nc_experiments.cifar10.checkpoints import CheckpointWriter, Store, TrialLog
from o2nc_experiments.cifar10.options import Settings
from o2nc_experiments.cifar10.training import Trial
from o2nc_experiments.classification import Epoch, to_columns
from o2nc_experiments.processes import World


class EpochEnd(NamedTuple):
    """The end of an epoch."""

    row: Epoch  # the epoch's
    epochs: int  # of its trial
    rate: float  # images per second, all trials at work together
    epochs_left: int  # of the whole experiment
    left: float  # seconds that they take at this rate


@dataclass(frozen=True)
class Experiment:
    """What is to be trained and where it is kept."""

    arms: Sequence[Arm]  # one column each
    seeds: Sequence[int]  # the trials of every arm
    settings: Settings  # of all trials
    store: Store  # the folder
    digest: str  # of the data, so that a folder holds trials on the same data only
    at_once: int = 1  # trials that share the device
    save_every: float = 120.0  # seconds between checkpoints; they are made at the end of an epoch
    # what is trained on and with, to be noted with every trial
    place: Mapping[str, Any] = field(default_factory=dict)
    horizons: Sequence[int] = ()  # numbers of epochs after which x̄ is evaluated, besides ten times

    @contextmanager
    def opened(self, world: World) -> Iterator[list[TrialLog]]:
        """Hold the folder, and give its trials with what is kept of them: those asked for, then all others.

        A trial is kept by its checkpoint, or once it is complete by the record alone.
        """
        with ExitStack() as held:

            def load_logs() -> list[TrialLog]:
                held.enter_context(self.store.locked())
                self.store.settle(self.common)
                logs = [TrialLog(arm, seed) for arm in self.arms for seed in self.seeds]
                for log in logs:
                    self._load(log, self.store.load(log.name))
                for name, state in self.store.others([log.name for log in logs]):
                    with self._refused(name):
                        logs.append(TrialLog.named(name))
                    self._load(logs[-1], state)
                return self._with_recorded(logs)

            yield world.on_first(load_logs)

    def train(
        self,
        logs: Sequence[TrialLog],
        images: Images,
        world: World,
        on_epoch: Callable[[EpochEnd], object],
        on_checkpoint: Callable[[], object] = lambda: None,
        on_interrupt: Callable[[], object] = lambda: None,
    ) -> None:
        """Train what is not finished yet. Interrupted, it calls ``on_interrupt`` and keeps every epoch that is over.

        The logs of `opened` have all rows on return, and whatever there is if an exception ends it. Only the first
        process makes checkpoints.
        """
        saved = time()
        waiting = [log for log in logs if log.requested and self._left(log)]
        active: list[tuple[TrialLog, Trial]] = []
        with CheckpointWriter(self.store, self.common, self.at_once) as writer:
            try:
                while waiting or active:
                    while waiting and len(active) < self.at_once:
                        log = waiting.pop(0)
                        active.append((log, self._begin(log, images, world)))
                        log.begin(self.place, saved)
                    self._epoch(active, waiting, on_epoch)
                    if any(trial.finished for _, trial in active) or time() - saved >= self.save_every:
                        saved = time()
                        if world.rank == 0:
                            for log, _ in active:
                                writer.write(log)
                            on_checkpoint()
                        active = [pair for pair in active if not pair[1].finished]
                        for log in logs:
                            if self._is_complete(log):
                                log.state = None
            except (KeyboardInterrupt, SystemExit):
                on_interrupt()
                if world.rank == 0:
                    writer.finish()
                    for log in logs:
                        if log.state is not None and log.saved < log.state["epoch"]:
                            writer.write(log)
                    writer.finish()
                raise

    def results(self, logs: Sequence[TrialLog], circumstances: dict[str, Any]) -> dict[str, Any]:
        """Return all that is kept as one record, for JSON."""
        complete = [self._is_complete(log) for log in logs]
        return {
            "circumstances": circumstances,
            "settings": self.common,
            "complete": all(complete) and bool(logs),
            "seconds": union([span for log in logs for span in log.spans]),
            "trials": [
                {
                    "arm": log.arm.name,
                    "seed": log.seed,
                    "epochs": log.saved,
                    "complete": done,
                    "places": log.places,
                    "spans": log.spans,
                }
                for log, done in zip(logs, complete, strict=True)
            ],
            **to_columns([row for log in logs for row in log.rows[: log.saved]]),
        }

    @property
    def common(self) -> dict[str, Any]:
        """What all trials of a folder must share."""
        return {**asdict(self.settings), "data": self.digest}

    def _left(self, log: TrialLog) -> int:
        """Return how many epochs of a trial are still to come."""
        return log.arm.epochs(self.settings.epochs) - len(log.rows)

    def _is_complete(self, log: TrialLog) -> bool:
        """Say whether all epochs of a trial are kept."""
        return log.saved == log.arm.epochs(self.settings.epochs)

    def _with_recorded(self, logs: list[TrialLog]) -> list[TrialLog]:
        """Return the trials with what the record has of those that are complete, and have no checkpoint."""
        found = {log.name: log for log in logs}
        for log in self.store.recorded():
            asked = found.setdefault(log.name, log)
            if not asked.rows:
                asked.rows, asked.spans, asked.places, asked.saved = log.rows, log.spans, log.places, log.saved
        return list(found.values())

    def _load(self, log: TrialLog, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        with self._refused(log.name):
            log.load(state)
        if state["settings"] != self.common:
            raise OSError(f"{log.name} was begun with other settings in {self.store.folder}; choose another --out")

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

    def _begin(self, log: TrialLog, images: Images, world: World) -> Trial:
        """Make a trial, and have it go on where it was."""
        trial = Trial(log.arm, log.seed, self.settings, images, world, self.horizons)
        state = world.on_first(lambda: self.store.load(log.name))
        if state is not None:
            with self._refused(log.name):
                trial.restore(state)
        if images.train.is_cuda:
            torch.cuda.synchronize(images.train.device)  # its own stream must not overtake what was just made
        return trial

    def _epoch(
        self, active: list[tuple[TrialLog, Trial]], waiting: list[TrialLog], on_epoch: Callable[[EpochEnd], object]
    ) -> None:
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
        epochs = sum(trial.settings.epochs - trial.epoch for trial in trials) + sum(map(self._left, waiting))
        left = epochs * len(trials[0].images.train) / rate
        for (log, trial), row in zip(active, rows, strict=True):
            log.advance(row, trial.snapshot(), time())
        for row, trial in zip(rows, trials, strict=True):
            on_epoch(EpochEnd(row, trial.settings.epochs, rate, epochs, left))


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
