"""The CSV files of a `CertificateLogger`: rows are only ever appended, and a file is closed after each of them.

Where the steps of a file go back, a run was resumed from an earlier checkpoint or started again. `read` returns the
rows of the last run; those that it replaced stay in the file.
"""

import csv
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FIELDS = ("step", "verdict", "displacement", "gradient", "spread", "certificate", "progress", "ess", "c")
LAYER_FIELDS = ("step", "parameter", "gradient", "spread")
TEXTS = frozenset(("parameter", "verdict"))  # fields that are not numbers


def layers_path(path: Path) -> Path:
    """Return the path of the per-parameter file that belongs to a log."""
    return path.with_name(f"{path.stem}.layers{path.suffix}")


def append(path: Path, fields: tuple[str, ...], rows: Iterable[Iterable[Any]] = ()) -> None:
    """Append rows, to a new file if there is none; they are in the file when this returns.

    Raises:
        OSError: the file cannot be written.
        ValueError: it exists and is not such a log.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if file.tell() == 0:
            writer.writerow(fields)
            file.flush()
        file.seek(0)
        _check_header(path, file, fields)
        file.seek(0, os.SEEK_END)
        if _is_cut_off(path):
            file.write("\n")
        writer.writerows(rows)


def _is_cut_off(path: Path) -> bool:
    """Return whether the last line of a file has no end, as after a kill or on a full disk."""
    with path.open("rb") as file:
        return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"


def read(path: Path, fields: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return the columns of a file as lists, without rows that a later run replaced or a full disk cut off.

    Raises:
        ValueError: the file is not such a log.
    """
    rows, last = dict[Any, list[Any]](), -math.inf
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        _check_header(path, file, fields)
        for row in csv.reader(file):
            try:
                pairs = zip(fields, row, strict=True)
                values: list[Any] = [v.removeprefix("'") if k in TEXTS else float(v) for k, v in pairs]
            except ValueError:  # cut off
                continue
            step = values[0]
            if step < last:
                rows = {key: kept for key, kept in rows.items() if key[0] < step}
            last = step
            rows[step, values[1] if "parameter" in fields else ""] = values
    return {field: [row[i] for row in rows.values()] for i, field in enumerate(fields)}


def _check_header(path: Path, file: Any, fields: tuple[str, ...]) -> None:
    header = ",".join(fields)
    if file.readline(len(header) + 2).strip() != header:
        raise ValueError(f"{path} is not a log of certificates, whose first line is {header}: choose another path")


def quote(name: str | int) -> str:
    """Return a parameter's name, after a ' if a spreadsheet would take it for a formula; `read` removes that."""
    text = str(name).replace("\r", " ")  # which the csv module would not quote
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "'")) else text
