"""Results carry their circumstances: what was run, with which versions, on which device; and are written whole."""

import importlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch

import o2nc

T = TypeVar("T")


def circumstances(command: str, **settings: Any) -> dict[str, Any]:
    """Return what is needed to make results again: the command line, seeds and the like, and what ran it."""
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


def find_device(name: str | None) -> torch.device:
    """Return the device of this name, or the GPU if there is one; ValueError if it cannot be had."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"--device must be cpu, cuda or cuda:N, got {name!r}")
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(f"--device {name}: torch {torch.__version__} sees no CUDA device here; try --device cpu")
    device = torch.device("cuda", int(name.partition(":")[2] or 0))
    if device.index >= torch.cuda.device_count():
        raise ValueError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    return device


def available(device: torch.device) -> int | None:
    """Return the bytes of memory that are free on the device, None where that cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = _search(r"MemAvailable:\s*(\d+) kB", "/proc/meminfo")  # free pages alone would leave out the file cache
    return None if found is None else 1024 * int(found)


def describe(device: torch.device) -> dict[str, Any]:
    """Return what the device is, for `circumstances`."""
    about: dict[str, Any] = {"device": device.type, "threads": torch.get_num_threads()}
    about["hardware"] = _search(r"model name\s*: (.*)", "/proc/cpuinfo") or platform.processor() or platform.machine()
    if device.type == "cuda":
        about |= {"hardware": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        try:
            about["triton"] = importlib.import_module("triton").__version__
        except ImportError:
            about["triton"] = None
    return about


def _search(pattern: str, path: str) -> str | None:
    """Return the pattern's group in a file of the system, None where there is no such file."""
    try:
        found = re.search(pattern, Path(path).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1].strip() if found else None


def revive(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return a dataclass from what a record has of it; what was only derived from it is passed over."""
    return kind(**{field.name: data[field.name] for field in fields(kind)})  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """Return numbers, or lists of them, without what JSON cannot say: None stands for nan and ±inf."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON, whole or not at all."""
    write_text(path, json.dumps(record, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, contents: bytes | memoryview) -> None:
    """Write a file, whole or not at all, even if the power fails; OSError has the reason."""
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
