"""Text as tokens for `o2nc_experiments.gpt`: what to train on, what to evaluate on, and the rows of every batch.

* no data given: the sources of Python's standard library, one byte a token;
* a text file, or a folder of them: one byte a token;
* a folder with ``train.bin`` and ``val.bin``, or one ``.bin`` file: tokens as 16-bit integers.

Of many files some are held out completely; of a single file its end.
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

from o2nc_experiments.kit import UsageError

HELD_OUT = 20  # one byte in 20 is held out
BYTES = 256


@dataclass(frozen=True)
class Corpus:
    """Tokens to train on and tokens to evaluate on, all smaller than ``vocabulary``."""

    train: np.ndarray
    held_out: np.ndarray
    vocabulary: int
    name: str

    @property
    def digest(self) -> str:
        """A fingerprint: results of other tokens cannot be mixed with these."""
        return hashlib.sha256(self.train.tobytes() + b"|" + self.held_out.tobytes()).hexdigest()[:16]


def load(place: Path | None) -> Corpus:
    """Read a corpus; OSError names a file that cannot be read, `UsageError` says what is wrong with the data."""
    if place is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        paths = [path for path in root.rglob("*.py") if not {"site-packages", "dist-packages"} & set(path.parts)]
        return _join(root, paths, f"Python {sysconfig.get_python_version()}'s standard library")
    if not place.exists():
        raise UsageError(f"--data {place} does not exist")
    if place.is_dir() and (place / "train.bin").exists():
        return _numbered(_tokens(place / "train.bin"), _tokens(place / "val.bin"), place.name)
    if place.suffix == ".bin":
        return _numbered(*_cut(_tokens(place)), place.name)
    if place.is_dir():
        inside = [path for path in place.rglob("*") if path.is_file()]
        visible = [path for path in inside if not any(part[0] == "." for part in path.relative_to(place).parts)]
        return _join(place, visible, place.resolve().name)
    return _join(place.parent, [place], place.name)


def _join(root: Path, paths: Sequence[Path], name: str) -> Corpus:
    """Return texts one after the other, shuffled in an order that depends on their names alone."""
    ordered = sorted(paths, key=lambda path: path.relative_to(root).as_posix())
    random.Random(0).shuffle(ordered)
    texts = [text for path in ordered if (text := path.read_bytes()) and is_text(text)]
    if not texts:
        raise UsageError(f"--data {name}: none of its {len(ordered)} files is text in UTF-8 that is not empty")
    if len(texts) == 1:
        return Corpus(*_cut(np.frombuffer(texts[0], np.uint8)), BYTES, name)
    total, held, size = sum(map(len, texts)), 0, 0
    while HELD_OUT * size < total and held < len(texts) - 1:
        size, held = size + len(texts[held]), held + 1
    parts = (b"".join(b"\0" + text for text in part) for part in (texts[held:], texts[:held]))
    train, held_out = (np.frombuffer(part, np.uint8) for part in parts)
    return Corpus(train, held_out, BYTES, name)


def is_text(contents: bytes) -> bool:
    """Return whether the first 64 kB are UTF-8 without a zero byte.

    Example:
        >>> is_text("ḡ".encode()), is_text(bytes([0x7F, 0x45, 0x4C, 0x46, 0])), is_text(b"")
        (True, False, True)
    """
    start = contents[: 1 << 16]
    try:
        start.decode()
    except UnicodeDecodeError as error:
        if len(contents) == len(start) or error.start < len(start) - 4:  # a letter may be cut in two at the end
            return False
    return b"\0" not in start


def _tokens(path: Path) -> np.ndarray:
    contents = path.read_bytes()
    if not contents or len(contents) % 2:
        raise UsageError(f"--data: {path} has {len(contents)} bytes; tokens are 16-bit integers")
    return np.frombuffer(contents, "<u2")


def _numbered(train: np.ndarray, held_out: np.ndarray, name: str) -> Corpus:
    largest = int(max(train.max(), held_out.max(initial=0)))
    return Corpus(train, held_out, -(-(largest + 1) // 64) * 64, name)  # matrix products like multiples of 64


def _cut(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    at = len(tokens) - len(tokens) // HELD_OUT
    return tokens[:at], tokens[at:]


def to_device(tokens: np.ndarray, device: torch.device) -> Tensor:
    """Return tokens on the device, in the smallest integers that torch can index."""
    return torch.from_numpy(tokens.astype(np.uint8 if tokens.dtype == np.uint8 else np.int32)).to(device)


def row_starts(tokens: int, context: int, rows: int, steps: int, seed: int) -> Tensor:
    """Return where the rows of every batch start, of shape (steps, rows).

    Every piece of the text is read once before any is read again. A shorter run of a seed sees the same batches as
    the beginning of a longer one.
    """
    pieces = (tokens - 1) // context
    generator = torch.Generator().manual_seed(seed)
    passes = -(-steps * rows // pieces)
    order = torch.cat([torch.randperm(pieces, generator=generator) for _ in range(passes)])
    return order[: steps * rows].view(steps, rows) * context


def read_rows(tokens: Tensor, starts: Tensor, context: int) -> Tensor:
    """Return rows of ``context + 1`` tokens: the last one is only predicted."""
    along = torch.arange(context + 1, device=tokens.device)
    return tokens[starts[:, None] + along].long()
