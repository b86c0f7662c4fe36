"""A log as a CSV file, that is whole whatever happens to the process, the disk or the file.

Rows begin with a step and are in the order of the steps. The file is open only while it is written; a `Lock` keeps
other processes from it.
"""

import csv
import errno
import io
import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from weakref import finalize

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FIELDS = ("step", "gradient", "spread", "certificate", "progress", "ess", "c")
PRICE_FIELDS = ("lipschitz", "corrector")  # behind the others, where they are measured
LAYER_FIELDS = ("step", "parameter", "gradient", "spread")


def beside(path: Path) -> Path:
    """Return where the parameters' rows are, given where the others are."""
    return path.with_name(f"{path.stem}.layers{path.suffix}")


def aside(path: Path) -> Path:
    """Return where to keep the log of an earlier run: ``NAME.old-1.csv``, or the next that is free."""
    places = (path.with_name(f"{path.stem}.old-{k}{path.suffix}") for k in count(1))
    return next(place for place in places if not place.exists() and not beside(place).exists())


class LogFile:
    """One file of a log.

    Args:
        path: of the file.
        fields: the names of its columns.
    """

    def __init__(self, path: Path, fields: tuple[str, ...]) -> None:
        self.path, self._header = path, _encode([fields])

    def open(self) -> None:
        """Make the file if it is not there.

        Raises:
            OSError: it cannot be written.
            ValueError: it is something else, and is left alone.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                file.seek(0)
                first = file.readline()
                if first != self._header and self._header.startswith(first):  # nothing, or a header that a kill tore
                    file.truncate(0)
                    file.write(self._header)
        except OSError as error:
            raise OSError(f"{self.path} cannot be written: {error.strerror}") from error
        if not self._header.startswith(first):
            raise ValueError(
                f"{self.path} is not a log of certificates, and is left alone: choose another path "
                f"(its first line would be {self._header.decode().strip()})"
            )

    def keep_before(self, step: int, aside: Path) -> None:
        """Drop the rows of this step and later ones, and one that was torn; or move the file aside if no row is left.

        Lines that are no rows are left alone.
        """
        self.open()
        with self.path.open("rb+") as file:
            end, is_kept, is_lost = len(file.readline()), False, False
            for line in file:
                is_lost = line.endswith(b"\n") and _step(line) >= step
                if is_lost or not line.endswith(b"\n"):
                    break
                end += len(line)
                is_kept |= _step(line) >= 0
            if is_kept or not is_lost:
                file.truncate(end)
                return
        self.path.replace(aside)
        self.open()

    def add(self, rows: Iterable[Iterable[Any]]) -> None:
        """Write rows, all or none; a process that is killed after this has not lost them.

        Raises:
            OSError: the disk is full, for example.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            data = (b"" if size else self._header) + _encode(rows)  # somebody may have deleted the file
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                file.truncate(size)
                raise


class Lock:
    """Keeps other processes from a log, from `acquire` until `release`, garbage collection or the end of the process.

    A file beside the log, since that may be moved aside: ``NAME.csv.lock``, there while the lock is held. It is the
    system that lets go of it when a process dies, so a file that a kill leaves behind is no obstacle. A forked
    process would share the lock, and keep it when this one dies, so it closes its copy at once. (The package filelock
    does so in its latest versions only; others take a file system without locks for one where all are held.)

    Args:
        path: of the log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}.lock")
        self._release: finalize[..., Lock] | None = None

    def acquire(self) -> bool:
        """Take it, and say whether nobody else has it.

        Raises:
            OSError: there are no locks here, or no place for the file.
        """
        if fcntl is None:
            raise OSError(errno.ENOTSUP, "this system has no locks")
        while self._release is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            except OSError:
                os.close(file)
                self.path.unlink(missing_ok=True)  # it guards nothing
                raise
            if _is_at(file, self.path):
                self._release = _HELD[file] = finalize(self, _let_go, file, self.path)
            else:  # whoever had it has removed the file in between: what is locked guards nothing
                os.close(file)
        return True

    def release(self) -> None:
        """Let go of it, if it was acquired, and remove the file."""
        if self._release is not None:
            self._release()
        self._release = None


_HELD: dict[int, "finalize[..., Any]"] = {}  # by descriptor


def _let_go(file: int, path: Path) -> None:
    del _HELD[file]
    if _is_at(file, path):  # first, so that nobody locks a file that is about to go
        with suppress(OSError):
            path.unlink()
    os.close(file)


def _leave_to_parent() -> None:
    """Close the locks of the process that this one was forked from; they stay locked there."""
    for file, release in _HELD.items():
        release.detach()
        os.close(file)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def _is_at(file: int, path: Path) -> bool:
    """Say whether an open file is the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False


def read(path: Path, fields: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return the columns of a file, numbers as numbers; behind these fields there may be those of the price.

    Raises:
        ValueError: it is no such log, or was damaged.
    """
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        lines = csv.reader(file)
        head = next(lines, None)
        if head not in (list(fields), [*fields, *PRICE_FIELDS]):
            raise ValueError(f"{path} is not a log of certificates: its first line must be {','.join(fields)}")
        columns: dict[str, list[Any]] = {field: [] for field in head}
        for row in lines:
            try:
                values = [v if k == "parameter" else float(v) for k, v in zip(head, row, strict=True)]
            except ValueError:
                raise ValueError(f"{path}, line {lines.line_num} is no row of a log of certificates") from None
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    return columns


def _step(line: bytes) -> int:
    """Return the step that a line begins with, -1 if it is no row."""
    first = line.split(b",")[0]
    return int(first) if first.isdigit() else -1


def _encode(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
