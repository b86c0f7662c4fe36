"""The folder of a run: what is finished, what is under way, and who is at work on it.

    settings.json           what all its trials have in common; with other settings the folder is refused
    trials/NAME.pt          the last checkpoint of a trial, its final state once it is finished
    cifar10.json            the results; a complete trial is known by them alone, should its checkpoint be gone
    lock                    held by the process at work, and let go by the system when that dies

Every file is written whole or not at all, so a process may be killed at any moment.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from o2nc_experiments import folder, record
from o2nc_experiments.cifar10.arms import Arm, parse
from o2nc_experiments.classification import Epoch, from_columns

NAME = "cifar10.json"
FORMAT = 1
PLACE = ("hardware", "device", "threads", "processes", "o2nc", "torch", "cuda", "triton", "python")


@dataclass
class TrialLog:
    """A trial, whether it has begun or not."""

    arm: Arm  # the optimizer
    seed: int  # of the trial
    requested: bool = True  # whether it is to be trained; else it is shown as far as it got
    rows: list[Epoch] = field(default_factory=list)  # of the epochs that are over
    spans: list[list[float]] = field(default_factory=list)  # from when to when processes were at work on them
    # what they were trained on and with, each with the number of its first epoch
    places: list[dict[str, Any]] = field(default_factory=list)
    # of the trial at the end of an epoch, the last one but for a moment; None if it does not train here
    state: dict[str, Any] | None = None
    saved: int = 0  # how many epochs are on disk

    @property
    def name(self) -> str:
        """What the trial is called, in messages and files."""
        return f"{self.arm.name} seed {self.seed}"

    @classmethod
    def named(cls, name: str) -> "TrialLog":
        """Return a trial that nobody asked for; ValueError if none is called so."""
        arm, _, seed = name.rpartition(" seed ")
        return cls(parse(arm), int(seed), requested=False)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what a checkpoint has; KeyError, TypeError or ValueError if it has something else."""
        rows = [Epoch(*row) for row in state["rows"]]
        whole = len(rows) == state["epoch"] and {"model", "optimizer", "settings"} <= state.keys()
        if not whole or {(row.arm, row.seed) for row in rows} - {(self.arm.name, self.seed)}:
            raise ValueError(self.name)
        self.spans = [[float(begin), float(end)] for begin, end in state["spans"]]
        self.places = [dict(place) for place in state.get("places", [])]
        self.rows, self.saved = rows, len(rows)

    def begin(self, place: Mapping[str, Any], now: float) -> None:
        """Note where the next epochs are trained, and since when."""
        plain = {key: place[key] for key in PLACE if key in place}
        here = {"from_epoch": len(self.rows) + 1, **json.loads(json.dumps(plain))}  # torch's version is no mere str
        if not self.places or self.places[-1] | {"from_epoch": here["from_epoch"]} != here:
            self.places.append(here)
        self.spans.append([now, now])

    def advance(self, row: Epoch, state: dict[str, Any], now: float) -> None:
        """Take note of an epoch."""
        self.spans[-1][1] = now
        self.rows.append(row)
        self.state = state  # last: an interrupt may come in between, and `record` goes by the state

    def record(self) -> dict[str, Any]:
        """Return the state with all that belongs to it."""
        assert self.state is not None
        return {
            **self.state,
            "rows": [list(row) for row in self.rows[: self.state["epoch"]]],
            "spans": [list(span) for span in self.spans],
            "places": self.places,
        }


def differences(trials: Sequence[Mapping[str, Any]]) -> str:
    """Return in what the places of a record's trials differ, "" if in nothing."""
    places = [place for trial in trials for place in trial.get("places", [])]
    values = {key: list(dict.fromkeys(str(place.get(key)) for place in places)) for key in PLACE}
    return ", ".join(f"{key} {' and '.join(found)}" for key, found in values.items() if len(found) > 1)


class Store:
    """A folder of trials, made if missing; OSError says why it, or a file in it, cannot be used."""

    def __init__(self, path: Path) -> None:
        self.folder = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out."""
        with folder.locked(self.folder, "trials"):
            yield

    def settle(self, common: dict[str, Any]) -> None:
        """Write down what all trials have in common, or refuse it if there are some that have something else."""
        path = self.folder / "settings.json"
        common = json.loads(json.dumps(common))
        if not path.is_dir() and not (path.exists() and self._paths()):
            if self.recorded():
                folder.refuse_others(self.folder, "trials", self._record()["settings"], common)
            record.write(path, common)
            return
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(known, dict):
                raise ValueError
        except ValueError:
            raise OSError(f"{path} is damaged; choose another --out") from None
        except OSError as error:
            raise OSError(f"{path} cannot be read: {error.strerror}; choose another --out") from None
        folder.refuse_others(self.folder, "trials", known, common)

    def recorded(self) -> list[TrialLog]:
        """Return the complete trials of the record of results, none if there is no such record."""
        if not (self.folder / NAME).exists():
            return []
        try:
            found = self._record()
            rows: dict[tuple[str, int], list[Epoch]] = {}
            for row in from_columns(found):
                rows.setdefault((row.arm, row.seed), []).append(row)
            complete = [trial for trial in found["trials"] if trial["complete"]]
            logs = [TrialLog(parse(trial["arm"]), int(trial["seed"]), requested=False) for trial in complete]
            for log, trial in zip(logs, complete, strict=True):
                log.rows, log.saved = rows[log.arm.name, log.seed], trial["epochs"]
                log.spans, log.places = trial.get("spans", []), trial.get("places", [])
        except (AttributeError, LookupError, TypeError, ValueError):  # it will be written anew
            return []
        return [log for log in logs if len(log.rows) == log.saved == log.arm.epochs(found["settings"]["epochs"])]

    def _record(self) -> dict[str, Any]:
        path = self.folder / NAME
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise OSError(f"{path} cannot be read: {error.strerror}") from error

    def load(self, trial: str) -> dict[str, Any] | None:
        """Return the last checkpoint of a trial, None if there is none."""
        path = self._path(trial)
        if not path.exists():
            return None
        state = self._read(path)
        if state.get("trial") != trial:
            raise self.refusal(trial)
        return state

    def others(self, known: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the names and last checkpoints of all other trials."""
        for path in sorted(set(self._paths()) - set(map(self._path, known))):
            state = self._read(path)
            name = str(state.get("trial"))
            if self._path(name) != path:
                raise OSError(f"{path} is no checkpoint of this folder; delete it")
            yield name, state

    def refusal(self, trial: str) -> OSError:
        """Return what is to be said of a checkpoint with other contents."""
        return OSError(f"{self._path(trial)} is no checkpoint of {trial}; delete it to begin this trial again")

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            contents = io.BytesIO(path.read_bytes())
        except OSError as error:
            raise OSError(f"{path} cannot be read: {error.strerror}") from error
        try:
            with zipfile.ZipFile(contents) as archive:
                if archive.testzip():  # torch does not look at the checksums
                    raise ValueError
            contents.seek(0)
            state = torch.load(contents, map_location="cpu", weights_only=True)
        except Exception:  # a damaged file can raise nearly anything
            raise OSError(f"{path} is damaged; delete it to begin this trial again") from None
        return state if isinstance(state, dict) and state.get("format") == FORMAT else {}

    def save(self, trial: str, state: dict[str, Any]) -> None:
        """Replace the checkpoint of a trial; the former one stays if that fails."""
        path = self._path(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        folder.write_state(path, {"format": FORMAT, "trial": trial, **state})

    def _paths(self) -> list[Path]:
        return list((self.folder / "trials").glob("*.pt"))

    def _path(self, trial: str) -> Path:
        return self.folder / "trials" / (re.sub(r"[^\w.=+-]", "_", trial) + ".pt")


class CheckpointWriter:
    """Copies trials' states at once, and writes them, with what they have in common, while the training goes on.

    At most so many wait. What could not be written stops the training, when the next state is to be written.
    """

    def __init__(self, store: Store, common: dict[str, Any], most: int) -> None:
        self.store, self.common, self.most = store, common, most
        self.thread = ThreadPoolExecutor(1)
        self.writing: list[Future[None]] = []

    def write(self, log: TrialLog) -> None:
        """Write the state of a trial as it was at the end of its last epoch."""
        while len(self.writing) >= self.most:
            self.writing.pop(0).result()
        record = tree_map_only(torch.Tensor, torch.Tensor.cpu, log.record()) | {"settings": self.common}
        self.writing.append(self.thread.submit(self._write, log, record))

    def finish(self) -> None:
        """Wait until all is written."""
        while self.writing:
            self.writing.pop(0).result()

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.thread:
            if kind is None:
                self.finish()

    def _write(self, log: TrialLog, record: dict[str, Any]) -> None:
        self.store.save(log.name, record)
        log.saved = record["epoch"]
