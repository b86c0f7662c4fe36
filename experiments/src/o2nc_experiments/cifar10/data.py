"""The official files of CIFAR-10, read and checked.

They come in two layouts with the same contents (https://www.cs.toronto.edu/~kriz/cifar.html). The binary one has
records of a label and 3 · 32 · 32 bytes, planes in the order red, green, blue; the python one has pickled arrays.
"""

import errno
import hashlib
import io
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from o2nc import checks

PIXELS = 3 * 32 * 32
CLASSES = 10

Bytes = NDArray[np.uint8]


class DataError(OSError):
    """The data set is missing, damaged or cannot be had; the text says which, in one sentence."""


class Data(NamedTuple):
    """CIFAR-10 in memory: images (n, 3, 32, 32) of dtype uint8, labels (n,) of int64, n = 50 000 and 10 000 in all.

    ``digest`` is the SHA-256 of training images, training labels, test images and test labels, one byte per value:
    the same for both layouts.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    layout: str
    digest: str


class File(NamedTuple):
    """The name, size in bytes and MD5 sum of an official file."""

    name: str
    size: int
    md5: str


class Layout(NamedTuple):
    """One of the two forms of the data set; ``files`` has the five of the training set first, then the test set's."""

    name: str
    folder: str  # the name that its files' folder has in the archive
    url: str
    md5: str  # of the archive
    files: tuple[File, ...]


BINARY = Layout(
    "binary",
    "cifar-10-batches-bin",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    (
        File("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
        File("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
        File("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
        File("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
        File("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
        File("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ),
)
PYTHON = Layout(
    "python",
    "cifar-10-batches-py",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    (
        File("data_batch_1", 31_035_704, "c99cafc152244af753f735de768cd75f"),
        File("data_batch_2", 31_035_320, "d4bba439e000b95fd0a9bffe97cbabec"),
        File("data_batch_3", 31_035_999, "54ebc095f3ab1f0389bbae665268c751"),
        File("data_batch_4", 31_035_696, "634d18415352ddfa80567beed471001a"),
        File("data_batch_5", 31_035_623, "482c414d41f54cd18b22e5b47cb7c3cb"),
        File("test_batch", 31_035_526, "40351d587109b95175f43aff81a1287e"),
    ),
)


def load(folder: Path, *, verify: bool = True, limit: int | None = None) -> Data:
    """Read the data set.

    Args:
        folder: has the files of one of the layouts, or its subfolder of the official name has. If both layouts are
            there, the binary one is read.
        verify: refuse files without the sizes and checksums of the official ones; else any number of images is read.
        limit: keep only the first ``limit`` training images and the first max(1, limit // 5) test images, for a quick
            try. The checks and the digest are still of the whole files.

    Raises:
        DataError: files are missing, damaged or cannot be read.
        ValueError: ``limit`` is less than 1.
    """
    if limit is not None:
        checks.integer("limit", limit, 1)
    layout, folder = _find(Path(folder))
    read = _read_binary if layout.name == "binary" else _read_python
    parts = []
    for file in layout.files:
        path = folder / file.name
        contents = _contents(path)
        if verify:
            _verify(path, contents, file)
        parts.append(read(path, contents))
    pixels, labels = zip(*parts, strict=True)
    arrays = [np.concatenate(part) for part in (pixels[:-1], labels[:-1], pixels[-1:], labels[-1:])]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.data)
    if limit is not None:
        sizes = (limit, limit, max(1, limit // 5), max(1, limit // 5))
        arrays = [array[:n] for array, n in zip(arrays, sizes, strict=True)]
    train, train_labels, test, test_labels = map(torch.from_numpy, arrays)
    return Data(
        train.reshape(-1, 3, 32, 32),
        train_labels.long(),
        test.reshape(-1, 3, 32, 32),
        test_labels.long(),
        layout.name,
        digest.hexdigest(),
    )


def explain(error: Exception) -> str:
    """Return why, without the number and the path."""
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, OSError) and reason.errno == errno.ENOSPC:
        return "the disk is full"
    return getattr(reason, "strerror", None) or str(reason)


def _find(folder: Path) -> tuple[Layout, Path]:
    """Return the layout that is there and the folder of its files."""
    begun = ""
    for layout in (BINARY, PYTHON):
        for place in (folder, folder / layout.folder):
            try:
                there = os.listdir(place)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise DataError(f"{place} cannot be read: {explain(error)}") from error
            missing = [file.name for file in layout.files if file.name not in there]
            if not missing:
                return layout, place
            if len(missing) < len(layout.files):
                begun = begun or f"{place} lacks {', '.join(missing)}"
    problem = begun or f"there is no CIFAR-10 in {folder}"
    for archive in (folder / layout.url.rpartition("/")[2] for layout in (BINARY, PYTHON)):
        if archive.is_file():
            raise DataError(f"{archive} is not unpacked: tar -xzf {archive.name} there, then the same command")
    raise DataError(
        f"{problem}: name the folder of the official files, of the binary or the python version, with --data DIR, "
        "or have them fetched with --download"
    )


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {explain(error)}") from error


def _verify(path: Path, contents: bytes, file: File) -> None:
    if len(contents) != file.size:
        raise DataError(f"{path} has {len(contents)} bytes, the official file {file.size}")
    if hashlib.md5(contents, usedforsecurity=False).hexdigest() != file.md5:
        raise DataError(f"{path} does not have the checksum of the official file")


def _read_binary(path: Path, contents: bytes) -> tuple[Bytes, Bytes]:
    if not contents or len(contents) % (1 + PIXELS):
        raise DataError(f"{path} is truncated: {len(contents)} bytes are no number of records of {1 + PIXELS}")
    records = np.frombuffer(contents, np.uint8).reshape(-1, 1 + PIXELS)
    _check_labels(path, records[:, 0])
    return records[:, 1:], records[:, 0]


def _read_python(path: Path, contents: bytes) -> tuple[Bytes, Bytes]:
    try:
        batch = _BytesOnly(io.BytesIO(contents), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path} is truncated or not what it should be: {error}") from error
    if not isinstance(batch, dict) or not {b"data", b"labels"} <= batch.keys():
        raise DataError(f"{path} has no dictionary with data and labels")
    pixels, labels = batch[b"data"], batch[b"labels"]
    if type(pixels) is not np.ndarray or pixels.shape[1:] != (PIXELS,) or not len(pixels):
        form = f"shape {pixels.shape}" if isinstance(pixels, np.ndarray) else f"type {type(pixels).__name__}"
        raise DataError(f"{path} has data of {form} instead of an array of shape (n, {PIXELS})")
    if type(labels) is not list or len(labels) != len(pixels) or any(type(label) is not int for label in labels):
        raise DataError(f"{path} has labels that are not a list of {len(pixels)} integers")
    _check_labels(path, np.array(labels, dtype=object))  # objects: a label may be an integer of any length
    return np.ascontiguousarray(pixels), np.array(labels, np.uint8)


def _check_labels(path: Path, labels: NDArray[Any]) -> None:
    bad = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if len(bad):
        raise DataError(f"{path} has the label {labels[bad[0]]} in record {bad[0] + 1}, outside 0 to {CLASSES - 1}")


class _BytesOnly(pickle.Unpickler):
    """An unpickler that makes arrays of bytes and calls nothing else: `pickle.load` runs whatever a file names."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for one of the three things that a pickled array names."""
        match module.replace("._core", ".core"), name:  # numpy has renamed the module since the files were made
            case "numpy.core.multiarray", "_reconstruct":
                return _empty_array  # its contents follow, through ndarray.__setstate__
            case "numpy", "ndarray":
                return name  # the argument of the above, which has no need of it
            case "numpy", "dtype":
                return _byte
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _empty_array(*_: object) -> Bytes:
    return np.empty(0, np.uint8)


def _byte(name: bytes | str, *_: object) -> np.dtype[np.uint8]:
    if name not in (b"u1", "u1"):
        raise pickle.UnpicklingError(f"it has an array of dtype {name!r} instead of 'u1'")
    return np.dtype(np.uint8)
