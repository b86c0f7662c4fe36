"""Results carry their circumstances: what was run, with which versions, on what."""

import json
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import o2nc


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
