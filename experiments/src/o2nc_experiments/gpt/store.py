"""The folder of results, which the same command continues.

gpt.json          settings, rows, and the course of every run that is finished; written after each
unfinished.pt     the run that was under way when the process stopped, or at its last checkpoint
lock              held by the process at work, and let go by the system when that dies
"""

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from o2nc_experiments import folder, record
from o2nc_experiments.gpt.planning import Goal, Row, Run
from o2nc_experiments.processes import World

NAME, UNFINISHED = "gpt.json", "unfinished.pt"


class Point(NamedTuple):
    """A moment of a run's trunk: the loss on the batches since the last one, and the certificate's parts."""

    run: str
    step: int
    train_loss: float | None
    gradient: float | None
    spread: float | None
    progress: float | None


class Speed(NamedTuple):
    """How fast a run was: steps and seconds of training, without evaluation."""

    run: str
    steps: int
    seconds: float
    evaluation_seconds: float


class Found:
    """Results so far."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.course: list[Point] = []
        self.speeds: list[Speed] = []
        self.costs: dict[str, float] = {}

    def to_record(self) -> dict[str, Any]:
        """Return the results as tables, for JSON."""
        tables: dict[str, tuple[Any, Any]] = {
            "": (Row, self.rows),
            "course_": (Point, self.course),
            "speed_": (Speed, self.speeds),
        }
        found: dict[str, Any] = {}
        for name, (kind, rows) in tables.items():
            found |= {f"{name}columns": list(kind._fields), f"{name}rows": [list(row) for row in rows]}
        return found | {"costs": self.costs}

    @classmethod
    def from_record(cls, found: dict[str, Any]) -> "Found":
        """Return the results of a record; KeyError or TypeError if it is none."""
        self = cls()
        self.rows = [Row(*row) for row in found["rows"]]
        self.course = [Point(*row) for row in found["course_rows"]]
        self.speeds = [Speed(*row) for row in found["speed_rows"]]
        self.costs = dict(found["costs"])
        return self


def finite(value: float) -> float | None:
    """Return a number, None if it is none: JSON has no nan."""
    return value if math.isfinite(value) else None


class Store:
    """A folder of results.

    Args:
        path: of the folder, made if missing.
        common: what all runs of the folder share.
        world: of several processes only the first reads and writes.
    """

    def __init__(self, path: Path, common: dict[str, Any], world: World = World()) -> None:
        self.folder, self.common, self.world = path, json.loads(json.dumps(common)), world

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other studies out; OSError if one is at work here, or the folder cannot be written."""
        with ExitStack() as held:
            self.world.on_first(lambda: held.enter_context(folder.locked(self.folder)))
            yield

    def load(self) -> Found:
        """Return the results that are there; OSError if they are damaged or those of other settings."""
        return self.world.on_first(self._load)

    def _load(self) -> Found:
        path = self.folder / NAME
        if not path.exists():
            return Found()
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            found, settings = Found.from_record(known), known["settings"]
        except (ValueError, LookupError, TypeError):
            raise OSError(f"{path} is damaged; delete it, or choose another --out") from None
        if found.rows:
            folder.refuse_others(self.folder, "runs", settings, self.common)
        return found

    def save(self, found: Found, about: dict[str, Any], goal: Goal, *, complete: bool) -> dict[str, Any]:
        """Write the results, and return the record."""
        asked = asdict(goal) | {"arms": [arm.name for arm in goal.arms]}
        parts = {"circumstances": about, "settings": self.common, "goal": asked, "complete": complete}
        if self.world.rank == 0:
            record.write(self.folder / NAME, parts | found.to_record())
        return parts | found.to_record()

    def keep(self, run: Run, state: dict[str, Any]) -> None:
        """Write the state of a run that is not finished."""
        if self.world.rank == 0:
            kept = {"run": identity(run), "settings": self.common, **state}
            folder.write_state(self.folder / UNFINISHED, kept)

    def kept(self, run: Run) -> dict[str, Any] | None:
        """Return the state of this run, None if there is none; what cannot be read is as good as none."""
        return self.world.on_first(lambda: self._kept(run))

    def _kept(self, run: Run) -> dict[str, Any] | None:
        try:
            state = torch.load(self.folder / UNFINISHED, map_location="cpu", weights_only=True)
            alike = (state["run"], state["settings"]) == (identity(run), self.common)
        except Exception:  # a damaged file can raise nearly anything, and the run is begun again
            return None
        return state if alike else None

    def forget(self) -> None:
        """Take the unfinished run away."""
        with suppress(OSError):  # there may be none
            (self.folder / UNFINISHED).unlink()


def identity(run: Run) -> list[list[Any]]:
    """Return what a run is, in plain values."""
    return [list(leg.key) for leg in run.legs]
