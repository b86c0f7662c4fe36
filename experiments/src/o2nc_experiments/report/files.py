"""Where records are, and where their report goes."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from o2nc_experiments.record import write_text
from o2nc_experiments.report.page import page
from o2nc_experiments.report.stories import KINDS, kind_of

NAME = "report.html"

Found = dict[Path, dict[str, Any]]


def find(places: Iterable[Path]) -> Found:
    """Return the records in folders, or in files that are named; a folder may have other files beside them.

    Raises:
        OSError: there is none, or a file that is named cannot be read; the text says which.
    """
    found: Found = {}
    for place in places:
        mine = _in_folder(place) if place.is_dir() else {place: _read(place)}
        mine = {path: record for path, record in mine.items() if kind_of(record) is not None}
        if not mine:
            raise OSError(f"{place} has no results of o2nc {', '.join(KINDS)}")
        found |= mine
    return found


def _in_folder(folder: Path) -> Found:
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path] = _read(path)
        except OSError as error:
            print(f"o2nc: left out: {error}", file=sys.stderr)
    return found


def _read(path: Path) -> Any:
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise OSError(f"{path} is damaged: {error}") from error


def write(places: Sequence[Path], path: Path | None = None) -> Path:
    """Write the report of these folders or files; in the folder itself if there is but one and nothing else is said.

    Raises:
        OSError: there is nothing to show, or nowhere to write it.
    """
    if path is None:
        path = places[0] / NAME if len(places) == 1 and places[0].is_dir() else Path(NAME)
    found = find(places)
    if path.resolve() in {record.resolve() for record in found}:
        raise OSError(f"{path} is one of the results to be shown; the page needs another name")
    write_text(path, page(found))
    return path
