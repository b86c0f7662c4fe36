"""Results carry their circumstances: what was run, with which versions, on what."""

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch

import o2nc

T = TypeVar("T")


def circumstances(command: str, **settings: Any) -> dict[str, Any]:
    """Return what is needed to make results again.

    Args:
        command: the command line.
        settings: seeds, steps and the like.
    """
    return {
        "command": command,
        **settings,
        "o2nc": o2nc.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
    }


def revive(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return a dataclass from what a record has of it; what was only derived from it is passed over."""
    return kind(**{field.name: data[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON, whole or not at all."""
    write_text(path, json.dumps(record, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, contents: bytes | memoryview) -> None:
    """Write a file, whole or not at all, even if the power fails.

    Raises:
        OSError: it cannot be written, with the reason; a file that was there is still there.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise OSError(f"{path} cannot be written: {error.strerror}") from error
