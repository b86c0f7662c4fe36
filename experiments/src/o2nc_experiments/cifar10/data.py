"""The official files of CIFAR-10: read and checked, or fetched.

They come in two layouts with the same contents (https://www.cs.toronto.edu/~kriz/cifar.html). The binary one has
records of a label and 3 · 32 · 32 bytes, planes in the order red, green, blue; the python one has pickled arrays.
"""

import errno
import gzip
import hashlib
import io
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PIXELS = 3 * 32 * 32
CLASSES = 10
PATIENCE = 30.0  # seconds without an answer of the server
BLOCK = 1 << 20

Bytes = NDArray[np.uint8]
Progress = Callable[[int, int | None], object]


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
    """An official file."""

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
    """Read the data set, in either layout, from a folder or its subfolder of the official name.

    With ``verify`` files must have the sizes and checksums of the official ones. A limit keeps the first ``limit``
    training images and the first max(1, limit // 5) test images; checks and digest are still of the whole files.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be an integer >= 1, got {limit}")
    layout, folder = _find(folder)
    read = _read_binary if layout.name == "binary" else _read_python
    parts = []
    for file in layout.files:
        path = folder / file.name
        try:
            contents = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {_explain(error)}") from error
        if verify and len(contents) != file.size:
            raise DataError(f"{path} has {len(contents)} bytes, the official file {file.size}")
        if verify and hashlib.md5(contents, usedforsecurity=False).hexdigest() != file.md5:
            raise DataError(f"{path} does not have the checksum of the official file")
        parts.append(read(path, contents))
    pixels, labels = zip(*parts, strict=True)
    arrays = [np.concatenate(part) for part in (pixels[:-1], labels[:-1], pixels[-1:], labels[-1:])]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.data)
    sizes = (None,) * 4 if limit is None else (limit, limit, max(1, limit // 5), max(1, limit // 5))
    train, train_labels, test, test_labels = (torch.from_numpy(a[:n]) for a, n in zip(arrays, sizes, strict=True))
    train, test = (images.reshape(-1, 3, 32, 32) for images in (train, test))
    return Data(train, train_labels.long(), test, test_labels.long(), layout.name, digest.hexdigest())


def download(folder: Path, progress: Progress = lambda done, total: None, *, layout: Layout = BINARY) -> Path:
    """Get the data set from its official address, unless it is there already; a download that broke off goes on.

    Returns the folder of the files, in ``folder``. The progress is called with the bytes that are there and those of
    the whole, None if the server does not say.
    """
    files = folder / layout.folder
    if all(_md5(files / file.name) == file.md5 for file in layout.files):
        return files
    archive = folder / (layout.url.rpartition("/")[2] + ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _md5(archive) != layout.md5:  # else only the extraction is missing
            _fetch(layout.url, archive, progress)
            if _md5(archive) != layout.md5:
                archive.unlink()
                raise DataError(f"what {layout.url} sent does not have the checksum of the official file; try again")
        _extract(archive, layout)
        archive.unlink()
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{folder} cannot be written: {_explain(error)}") from error
    return files


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
                raise DataError(f"{place} cannot be read: {_explain(error)}") from error
            missing = [file.name for file in layout.files if file.name not in there]
            if not missing:
                return layout, place
            if len(missing) < len(layout.files):
                begun = begun or f"{place} lacks {', '.join(missing)}"
    for archive in (folder / layout.url.rpartition("/")[2] for layout in (BINARY, PYTHON)):
        if archive.is_file():
            raise DataError(f"{archive} is not unpacked: tar -xzf {archive.name} there, then the same command")
    raise DataError(
        f"{begun or f'there is no CIFAR-10 in {folder}'}: name the folder of the official files, of the binary or "
        "the python version, with --data DIR, or have them fetched with --download"
    )


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
                return lambda *_: np.empty(0, np.uint8)  # its contents follow, through ndarray.__setstate__
            case "numpy", "ndarray":
                return name  # the argument of the above, which has no need of it
            case "numpy", "dtype":
                return _byte
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _byte(name: bytes | str, *_: object) -> np.dtype[np.uint8]:
    if name not in (b"u1", "u1"):
        raise pickle.UnpicklingError(f"it has an array of dtype {name!r} instead of 'u1'")
    return np.dtype(np.uint8)


def _md5(path: Path) -> str | None:
    """Return the checksum of a file, None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError:
        return None


def _fetch(url: str, path: Path, progress: Progress) -> None:
    """Write what is at ``url``, going on after the bytes that are there if the server can."""
    done = path.stat().st_size if path.exists() else 0
    try:
        answer = urlopen(Request(url, headers={"Range": f"bytes={done}-"} if done else {}), timeout=PATIENCE)
    except HTTPError as error:
        error.close()
        if not (done and error.code == 416):
            raise DataError(f"{url} cannot be fetched: {error}") from error
        path.unlink()  # it is as long as the whole, or longer, and still wrong: start again
        return _fetch(url, path, progress)
    except (OSError, HTTPException) as error:
        raise DataError(f"{url} cannot be fetched: {_explain(error)}") from error
    with answer:
        done = done if getattr(answer, "status", None) == 206 else 0  # whether it goes on
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        with path.open("ab" if done else "wb") as file:
            while True:
                try:
                    block = answer.read(BLOCK)
                except (OSError, HTTPException) as error:
                    raise DataError(f"{url} broke off: {_explain(error)}; the same command goes on") from error
                if not block:
                    break
                file.write(block)
                done += len(block)
                progress(done, total)
    if total is not None and done < total:
        raise DataError(f"{url} broke off after {done} of {total} bytes; the same command goes on")


def _extract(archive: Path, layout: Layout) -> None:
    """Write the files of the layout beside the archive, and nothing else that may be in it."""
    wanted = {f"{layout.folder}/{file.name}" for file in layout.files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = [member for member in tar if member.name in wanted and member.isreg()]
            missing = wanted - {member.name for member in members}
            if missing:
                raise DataError(f"{archive} lacks {', '.join(sorted(missing))}")
            tar.extractall(archive.parent, members, filter="data")
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error


def _explain(error: Exception) -> str:
    """Return why, without the number and the path."""
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, OSError) and reason.errno == errno.ENOSPC:
        return "the disk is full"
    return getattr(reason, "strerror", None) or str(reason)
