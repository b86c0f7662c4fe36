"""The CSV files of a `CertificateLogger`: rows are appended and flushed, and nothing that is there is ever removed.

A run has a name of its own, or a folder. A run that resumes appends to its file, even where it went back to an
earlier step; `read` then leaves out the rows that it replaced. A run that starts from scratch first renames a file
that is there to ``NAME.old-1.csv``, or the next number that is free.
"""

import csv
import io
import math
import os
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

FIELDS = ("step", "verdict", "displacement", "gradient", "spread", "certificate", "progress", "ess", "c")
TEXTS = frozenset(("parameter", "verdict"))  # fields that are not numbers
LAYER_FIELDS = ("step", "parameter", "gradient", "spread")
_TORN = b"?\n"  # ends a row that a kill or a full disk cut off, so that it cannot be read as a number


def layers_path(path: Path) -> Path:
    """Return the path of the per-parameter file that belongs to a log."""
    return path.with_name(f"{path.stem}.layers{path.suffix}")


def move_aside(path: Path) -> None:
    """Rename the log of an earlier run, if it has rows, together with its per-parameter file."""
    if not path.exists() or path.stat().st_size <= len(_encode([FIELDS])):
        return
    places = (path.with_name(f"{path.stem}.old-{k}{path.suffix}") for k in count(1))
    place = next(place for place in places if not place.exists() and not layers_path(place).exists())
    path.rename(place)
    if layers_path(path).exists():
        layers_path(path).rename(layers_path(place))


class LogFile:
    """One CSV file of a log.

    Args:
        path: of the file.
        fields: the names of its columns.
    """

    def __init__(self, path: Path, fields: tuple[str, ...]) -> None:
        self.path, self._header = path, _encode([fields])

    def check(self) -> None:
        """Create the file if it does not exist.

        Raises:
            OSError: it cannot be written.
            ValueError: it exists and is not such a log.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                file.seek(0)
                first = file.read(len(self._header))
                if self._header.startswith(first):
                    file.write(self._header[len(first) :])  # all of it, or what a kill left out
        except OSError as error:
            raise OSError(f"{self.path} cannot be written: {error.strerror}") from error
        if not self._header.startswith(first):
            raise ValueError(
                f"{self.path} is not a log of certificates, and is left alone: choose another path "
                f"(its first line would be {self._header.decode().strip()})"
            )

    def append(self, rows: Iterable[Iterable[Any]]) -> None:
        """Append rows; they are in the file when this returns.

        Raises:
            OSError: the disk is full, for example; then the last row may be cut off.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            data = self._header[size:] + _encode(rows)  # the file may have been deleted
            if size > len(self._header):
                file.seek(-1, os.SEEK_END)
                data = data if file.read(1) == b"\n" else _TORN + data
            while data:
                data = data[file.write(data) :]


def read(path: Path, fields: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return the columns of a file as lists, with the rows of one run.

    Where the steps go back, a resumed run replaced the rows of that step and later ones: those are left out, and so
    are rows that were cut off.

    Raises:
        ValueError: the file is not such a log.
    """
    header, rows, last = ",".join(fields), dict[Any, list[Any]](), -math.inf
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        if file.readline(len(header) + 2).strip() != header:
            raise ValueError(f"{path} is not a log of certificates: its first line must be {header}")
        for row in csv.reader(line for line in file if line.endswith("\n")):
            try:
                values: list[Any] = [
                    v.removeprefix("'") if k in TEXTS else float(v) for k, v in zip(fields, row, strict=True)
                ]
            except ValueError:  # cut off
                continue
            step = values[0]
            if step < last:
                rows = {key: kept for key, kept in rows.items() if key[0] < step}
            last = step
            rows[step, values[1] if "parameter" in fields else None] = values
    return {field: [row[i] for row in rows.values()] for i, field in enumerate(fields)}


def plain_name(name: str | int) -> str:
    """Return a parameter's name as one line that a spreadsheet does not take for a formula; `read` undoes that."""
    text = str(name).replace("\r", " ").replace("\n", " ")
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "'")) else text


def _encode(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
