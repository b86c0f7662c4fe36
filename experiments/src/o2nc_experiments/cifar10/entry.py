"""A trial of a table: what is known of it, in memory and on disk."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from o2nc_experiments.cifar10.arms import Arm, parse
from o2nc_experiments.cifar10.rows import Row

PLACE = ("hardware", "device", "threads", "processes", "o2nc", "torch", "cuda", "triton", "python")


@dataclass
class Entry:
    """A trial, whether it has begun or not.

    Attributes:
        arm: the optimizer.
        seed: of the trial.
        asked: whether it is to be trained; else it is shown as far as it got.
        rows: of the epochs that are over.
        spans: from when to when processes were at work on them.
        places: what they were trained on and with, each with the number of its first epoch.
        state: of the trial at the end of an epoch, the last one but for a moment; None if it does not train here.
        kept: how many epochs are on disk.
    """

    arm: Arm
    seed: int
    asked: bool = True
    rows: list[Row] = field(default_factory=list)
    spans: list[list[float]] = field(default_factory=list)
    places: list[dict[str, Any]] = field(default_factory=list)
    state: dict[str, Any] | None = None
    kept: int = 0

    @property
    def name(self) -> str:
        """What the trial is called, in messages and files."""
        return f"{self.arm.name} seed {self.seed}"

    @classmethod
    def called(cls, name: str) -> "Entry":
        """Return a trial that nobody asked for; ValueError if none is called so."""
        arm, _, seed = name.rpartition(" seed ")
        return cls(parse(arm), int(seed), asked=False)

    def recall(self, state: Mapping[str, Any]) -> None:
        """Take what a checkpoint has; KeyError, TypeError or ValueError if it has something else."""
        rows = [Row(*row) for row in state["rows"]]
        whole = len(rows) == state["epoch"] and {"model", "optimizer", "settings"} <= state.keys()
        if not whole or {(row.arm, row.seed) for row in rows} - {(self.arm.name, self.seed)}:
            raise ValueError(self.name)
        self.spans = [[float(begin), float(end)] for begin, end in state["spans"]]
        self.places = [dict(place) for place in state.get("places", [])]
        self.rows, self.kept = rows, len(rows)

    def begin(self, place: Mapping[str, Any], now: float) -> None:
        """Note where the next epochs are trained, and since when."""
        plain = {key: place[key] for key in PLACE if key in place}
        here = {"from_epoch": len(self.rows) + 1, **json.loads(json.dumps(plain))}  # torch's version is no mere str
        if not self.places or self.places[-1] | {"from_epoch": here["from_epoch"]} != here:
            self.places.append(here)
        self.spans.append([now, now])

    def advance(self, row: Row, state: dict[str, Any], now: float) -> None:
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
