"""Texts as tokens: what is trained on, what is held out, and the batches.

* a folder with ``train.bin`` and ``val.bin``, or one ``.bin`` file: tokens as 16-bit numbers;
* a text file, or a folder of them: byte by byte, one byte a token;
* nothing: the sources of Python's standard library, byte by byte.

Of many files some are held out whole; of a single one its end. Files are separated by a token 0.
"""

import hashlib
import random
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

HELD_OUT = 20  # at least one in so many bytes
BYTES = 256
ROUND = 64  # vocabularies are rounded up to a multiple: matrix products like it
SAMPLE = 1 << 16  # bytes of a file that are looked at, for whether it is text


class DataError(OSError):
    """The data cannot be used; the text says why."""


@dataclass(frozen=True)
class Corpus:
    """Tokens.

    Attributes:
        train: what is trained on.
        held_out: what is evaluated on.
        vocabulary: all tokens are smaller.
        name: what it is, in a few words.
        left_out: files that are no text.
    """

    train: np.ndarray
    held_out: np.ndarray
    vocabulary: int
    name: str
    left_out: int = 0

    @property
    def digest(self) -> str:
        """Of all tokens, so that a folder holds runs on the same data only."""
        return hashlib.sha256(self.train.tobytes() + b"|" + self.held_out.tobytes()).hexdigest()[:16]

    def check(self, context: int) -> None:
        """Refuse what is shorter than one reading."""
        for part, tokens in (("to train on", self.train), ("held out", self.held_out)):
            if len(tokens) <= context:
                raise DataError(
                    f"{self.name} has {len(tokens):,} tokens {part}, and --context {context} needs {context + 1:,}"
                )


def load(place: Path | None) -> Corpus:
    """Read the data.

    Raises:
        DataError: there is none, it is empty, or it is no text.
    """
    if place is None:
        return standard_library()
    try:
        if place.is_dir() and (place / "train.bin").exists():
            train, held_out = (_tokens(place / name) for name in ("train.bin", "val.bin"))
            return _numbered(train, held_out, place.name)
        if place.suffix == ".bin":
            tokens = _tokens(place)
            return _numbered(*_cut(tokens), place.name)
        return _texts(place)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"--data {error.filename or place} cannot be read: {error.strerror or error}") from None


def standard_library() -> Corpus:
    """Return the sources of Python's standard library, byte by byte."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in root.rglob("*.py") if not {"site-packages", "dist-packages"} & set(path.parts)]
    if not paths:
        raise DataError(f"the standard library has no sources in {root}: name a text with --data")
    return _joined(root, paths, f"Python {sysconfig.get_python_version()}'s standard library")


def _texts(place: Path) -> Corpus:
    if not place.exists():
        raise DataError(f"--data {place} is not there")
    if place.is_dir():
        paths = [p for p in place.rglob("*") if p.is_file() and not any(q.startswith(".") for q in p.parts)]
        if not paths:
            raise DataError(f"--data {place} has no files")
        return _joined(place, paths, place.resolve().name)
    text = place.read_bytes()
    if not text:
        raise DataError(f"--data {place} is empty")
    if not is_text(text):
        raise DataError(f"--data {place} is no text in UTF-8; token files are called .bin")
    return Corpus(*_cut(np.frombuffer(text, np.uint8)), BYTES, place.name)


def _joined(root: Path, paths: Sequence[Path], name: str) -> Corpus:
    """Return texts one behind the other, in an order that depends on nothing but their names."""
    ordered = sorted(paths, key=lambda path: path.relative_to(root).as_posix())
    random.Random(0).shuffle(ordered)
    texts = [text for path in ordered if is_text(text := path.read_bytes())]
    left_out, texts = len(ordered) - len(texts), [text for text in texts if text]
    if not texts:
        raise DataError(f"--data {root}: none of its {len(ordered)} files is a text in UTF-8 that is not empty")
    if len(texts) == 1:
        return Corpus(*_cut(np.frombuffer(texts[0], np.uint8)), BYTES, name, left_out)
    held = size = 0
    while HELD_OUT * size < sum(map(len, texts)) and held < len(texts) - 1:
        size, held = size + len(texts[held]), held + 1
    train, held_out = (
        np.frombuffer(b"".join(b"\0" + text for text in part), np.uint8) for part in (texts[held:], texts[:held])
    )
    return Corpus(train, held_out, BYTES, name, left_out)


def is_text(contents: bytes) -> bool:
    """Say whether a file's beginning is text: UTF-8 without a zero.

    Example:
        >>> is_text("ḡ".encode()), is_text(bytes([0x7F, 0x45, 0x4C, 0x46, 0])), is_text(b"")
        (True, False, True)
    """
    try:
        contents[:SAMPLE].decode()
    except UnicodeDecodeError as error:
        if len(contents) <= SAMPLE or error.start < SAMPLE - 4:  # a letter may be cut through at the end
            return False
    return b"\0" not in contents[:SAMPLE]


def _tokens(path: Path) -> np.ndarray:
    contents = path.read_bytes()
    if not contents:
        raise DataError(f"--data: {path} is empty")
    if len(contents) % 2:
        raise DataError(f"--data: {path} has {len(contents)} bytes; tokens are 16-bit numbers, so that must be even")
    return np.frombuffer(contents, "<u2")


def _numbered(train: np.ndarray, held_out: np.ndarray, name: str) -> Corpus:
    largest = int(max(train.max(initial=0), held_out.max(initial=0)))
    return Corpus(train, held_out, max(-(-(largest + 1) // ROUND) * ROUND, BYTES + 1), name)


def _cut(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    at = len(tokens) - len(tokens) // HELD_OUT
    return tokens[:at], tokens[at:]


def to_device(tokens: np.ndarray, device: torch.device) -> Tensor:
    """Return tokens where they are trained on, each in as few bytes as torch can index with."""
    return torch.from_numpy(tokens.astype(np.uint8 if tokens.dtype == np.uint8 else np.int32)).to(device)


def beginnings(tokens: int, context: int, rows: int, steps: int, seed: int) -> Tensor:
    """Return where the rows of every batch begin, of shape (steps, rows).

    The text is cut into pieces of the context's length; every one is read once before any is read again. A shorter
    run of a seed is the beginning of a longer one.
    """
    pieces = (tokens - 1) // context
    generator = torch.Generator().manual_seed(seed)
    rounds = -(-steps * rows // pieces)
    order = torch.cat([torch.randperm(pieces, generator=generator) for _ in range(rounds)])
    return order[: steps * rows].view(steps, rows) * context


def read(tokens: Tensor, begins: Tensor, context: int) -> Tensor:
    """Return the rows that begin there, each one token longer than the context: its last is only to be told."""
    along = torch.arange(context + 1, device=tokens.device)
    return tokens[begins[:, None] + along].long()
