"""The folder of a run: what is finished, what is under way, and who is at work on it.

    settings.json           what all its trials have in common; with other settings the folder is refused
    trials/NAME.pt          the last checkpoint of a trial, its final state once it is finished
    lock                    held by the process at work, and let go by the system when that dies

Every file is written whole or not at all, so a process may be killed at any moment.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import torch

from o2nc_experiments import record

FORMAT = 1


class Store:
    """A folder of trials.

    Args:
        folder: made if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out.

        Raises:
            OSError: another one is at work here, or the folder cannot be written.
        """
        lock = filelock.FileLock(self.folder / "lock", timeout=0)
        place = self.folder
        try:
            for place in (self.folder, self.folder / "trials"):
                place.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except filelock.Timeout:
            raise OSError(f"{self.folder}: another process is at work in this folder; choose another --out") from None
        except FileExistsError:
            raise OSError(f"{place} is there, but is no folder; choose another --out") from None
        except OSError as error:
            raise OSError(f"{place} cannot be written: {error.strerror or error}; choose another --out") from None
        try:
            yield
        finally:
            lock.release()

    def settle(self, common: dict[str, Any]) -> None:
        """Write down what all trials have in common, or refuse it if there are some that have something else.

        Raises:
            OSError: the folder belongs to a run with other settings, or cannot be written.
        """
        path = self.folder / "settings.json"
        common = json.loads(json.dumps(common))
        if not path.is_dir() and not (path.exists() and self._paths()):
            record.write(path, common)
            return
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            differ = [key for key in common if known.get(key) != common[key]]
        except (ValueError, AttributeError):
            raise OSError(f"{path} is damaged; choose another --out") from None
        except OSError as error:
            raise OSError(f"{path} cannot be read: {error.strerror}; choose another --out") from None
        if differ:
            there, here = (", ".join(f"{key} {values.get(key)}" for key in differ) for values in (known, common))
            raise OSError(f"{self.folder} has trials with {there}, not {here}; choose another --out")

    def load(self, trial: str) -> dict[str, Any] | None:
        """Return the last checkpoint of a trial, None if there is none.

        Raises:
            OSError: it cannot be read.
        """
        path = self._path(trial)
        if not path.exists():
            return None
        state = self._read(path)
        if state.get("trial") != trial:
            raise self.refusal(trial)
        return state

    def others(self, known: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the names and last checkpoints of all other trials.

        Raises:
            OSError: one cannot be read.
        """
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
        """Return what a checkpoint has."""
        try:
            contents = io.BytesIO(path.read_bytes())
        except OSError as error:
            raise OSError(f"{path} cannot be read: {error.strerror}") from error
        state = None
        try:
            with zipfile.ZipFile(contents) as archive:
                damaged = archive.testzip()  # torch does not look at the checksums
            contents.seek(0)
            state = None if damaged else torch.load(contents, map_location="cpu", weights_only=True)
        except Exception:  # a damaged file can raise nearly anything
            damaged = path.name
        if damaged:
            raise OSError(f"{path} is damaged; delete it to begin this trial again")
        return state if isinstance(state, dict) and state.get("format") == FORMAT else {}

    def save(self, trial: str, state: dict[str, Any]) -> None:
        """Replace the checkpoint of a trial.

        Raises:
            OSError: it cannot be written; the former one is still there.
        """
        path = self._path(trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        contents = io.BytesIO()
        torch.save({"format": FORMAT, "trial": trial, **state}, contents)
        record.write_bytes(path, contents.getbuffer())

    def _paths(self) -> list[Path]:
        return list((self.folder / "trials").glob("*.pt"))

    def _path(self, trial: str) -> Path:
        return self.folder / "trials" / (re.sub(r"[^\w.=+-]", "_", trial) + ".pt")
