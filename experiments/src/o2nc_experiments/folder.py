"""The folder of an experiment that can be gone on with: held by one process at a time, for one kind of settings."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from o2nc_experiments import record


@contextmanager
def locked(folder: Path, *parts: str) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if missing, with these parts; OSError if that cannot be.

    The file ``lock`` is let go by the system when the process dies.
    """
    lock = filelock.FileLock(folder / "lock", timeout=0)
    place = folder
    try:
        for place in (folder, *(folder / part for part in parts)):
            place.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        raise OSError(f"{folder}: another process is at work in this folder; choose another --out") from None
    except FileExistsError:
        raise OSError(f"{place} is there, but is no folder; choose another --out") from None
    except OSError as error:
        raise OSError(f"{place} cannot be written: {error.strerror or error}; choose another --out") from None
    try:
        yield
    finally:
        lock.release()


def refuse_others(folder: Path, things: str, known: Mapping[str, Any], common: Mapping[str, Any]) -> None:
    """Refuse a folder whose things have something else in common than what is asked for now: OSError."""
    if differ := [key for key in common if known.get(key) != common[key]]:
        there, here = (", ".join(f"{key} {values.get(key)}" for key in differ) for values in (known, common))
        raise OSError(f"{folder} has {things} with {there}, not {here}; choose another --out")


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint, its tensors on the CPU; the former one stays if that fails."""
    contents = io.BytesIO()
    torch.save(tree_map_only(Tensor, Tensor.cpu, state), contents)
    record.write_bytes(path, contents.getbuffer())
