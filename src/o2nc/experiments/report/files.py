"""Where records are, and where their report goes."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from o2nc.experiments.record import write_text
from o2nc.experiments.report.page import page
from o2nc.experiments.report.stories import KINDS, kind_of

NAME = "report.html"

Found = dict[Path, dict[str, Any]]


def find(places: Iterable[Path]) -> Found:
    """Return the records in folders, or in files that are named.

    Raises:
        OSError: there is none, or a file cannot be read; the text says which.
    """
    found: Found = {}
    for place in places:
        mine = _in_folder(place) if place.is_dir() else {place: _read(place)}
        if not mine:
            kinds = ", ".join(f"{kind}.json" for kind in KINDS)
            raise OSError(f"{place} has no results of o2nc ({kinds}, or others like them)")
        found |= mine
    return found


def _in_folder(folder: Path) -> Found:
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path] = _read(path)
        except OSError:
            if any(path.stem.startswith(kind) for kind in KINDS if kind != "cifar10" or path.stem == kind):
                raise
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise OSError(f"{path} is damaged: {error}") from error
    if kind_of(record) is None:
        raise OSError(f"{path} is not a result of o2nc {', '.join(KINDS)}")
    return record


def write(places: Sequence[Path], path: Path | None = None) -> Path:
    """Write the report of these folders or files; in the folder itself if there is but one and nothing else is said.

    Raises:
        OSError: there is nothing to show, or nowhere to write it.
    """
    if path is None:
        path = places[0] / NAME if len(places) == 1 and places[0].is_dir() else Path(NAME)
    write_text(path, page(find(places)))
    return path
