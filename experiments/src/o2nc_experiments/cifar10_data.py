"""CIFAR-10: the official binary files, read or downloaded, and batches of them made on the device.

A record is a label and 3 · 32 · 32 bytes, planes in the order red, green, blue
(https://www.cs.toronto.edu/~kriz/cifar.html).
"""

import hashlib
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from o2nc_experiments import kit

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # of the archive
FOLDER = "cifar-10-batches-bin"
FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
OFFICIAL = "32e5966899bde482c0ef7d076bf69809b4b1488c806f657a814cfca4646ec493"  # `Data.digest` of the real data set
PIXELS = 3 * 32 * 32
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of each channel, in units of 255
PADDING = 4
SHIFTS = 2 * PADDING + 1
CASES = SHIFTS * SHIFTS * 2  # of a crop and a flip


class Data(NamedTuple):
    """The data set: images (n, 3, 32, 32) of dtype uint8 and labels (n,) of int64."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    digest: str  # SHA-256 of training images, training labels, test images and test labels, one byte per value

    def to(self, device: torch.device) -> "Data":
        """Return the data set on a device."""
        images, labels, test, test_labels = (tensor.to(device) for tensor in self[:4])
        return Data(images, labels, test, test_labels, self.digest)


def load(folder: Path, limit: int | None = None) -> Data:
    """Read the data set from a folder or its subfolder of the official name.

    A limit keeps the first ``limit`` training images and a fifth as many test images.
    """
    folder = folder if (folder / FILES[0]).exists() else folder / FOLDER
    parts = []
    for name in FILES:
        path = folder / name
        if not path.exists():
            raise OSError(
                f"{path} is missing: --data names the folder of the official binary files; without it they "
                f"are downloaded from {URL}"
            )
        contents = np.fromfile(path, np.uint8)
        if not len(contents) or len(contents) % (1 + PIXELS):
            raise OSError(f"{path} is truncated: {len(contents)} bytes are no number of records of {1 + PIXELS}")
        records = contents.reshape(-1, 1 + PIXELS)
        if records[:, 0].max() > 9:
            raise OSError(f"{path} has the label {records[:, 0].max()}, outside 0 to 9")
        parts.append(records)
    train, test = np.concatenate(parts[:-1]), parts[-1]
    digest = hashlib.sha256()
    for array in (train[:, 1:], train[:, 0], test[:, 1:], test[:, 0]):
        digest.update(np.ascontiguousarray(array).data)
    kept = torch.from_numpy(train[:limit].copy()), torch.from_numpy(test[: limit and max(1, limit // 5)].copy())
    images, tests = (part[:, 1:].reshape(-1, 3, 32, 32) for part in kept)
    return Data(images, kept[0][:, 0].long(), tests, kept[1][:, 0].long(), digest.hexdigest())


def download(folder: Path) -> None:
    """Download the data set to a folder, unless it is there; the archive must have the official checksum."""
    if all((folder / FOLDER / name).exists() for name in FILES):
        return
    kit.make_folder(folder)
    with urlopen(URL, timeout=30) as answer, tempfile.TemporaryFile(dir=folder) as archive:
        shutil.copyfileobj(answer, archive)
        archive.seek(0)
        found = hashlib.file_digest(archive, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != MD5:
            raise OSError(f"what {URL} sent does not have the checksum of the official file; try again")
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            tar.extractall(folder, [member for member in tar if Path(member.name).name in FILES], filter="data")


class Epoch(NamedTuple):
    """The order of the images in an epoch, and what `augment` does to each of them."""

    order: Tensor
    cases: Tensor

    @classmethod
    def draw(cls, seed: int, epoch: int, images: int, device: torch.device) -> "Epoch":
        """Draw an epoch: a function of seed and number, the same on every device, so nothing has to be saved."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(images, generator=generator)
        cases = torch.randint(CASES, (images,), generator=generator)
        return cls(order.to(device), cases.to(device))

    def batch(self, data: Data, first: int, size: int) -> tuple[Tensor, Tensor]:
        """Return ``size`` images from place ``first`` on, augmented and normalised, and their labels."""
        at = self.order[first : first + size]
        return normalise(augment(data.train[at], self.cases[first : first + size])), data.train_labels[at]


def augment(images: Tensor, cases: Tensor) -> Tensor:
    """Return each image moved by up to 4 pixels in x and y, a crop of it in a black frame, and maybe mirrored."""
    n, channels, height, width = images.shape
    cases = cases.reshape(n, 1, 1)
    top, left, mirrored = cases // (2 * SHIFTS), cases // 2 % SHIFTS, cases % 2
    x = torch.arange(width, device=images.device)
    x = x + mirrored * (width - 1 - 2 * x)
    y = torch.arange(height, device=images.device).reshape(height, 1)
    source = (y + top) * (width + 2 * PADDING) + x + left
    framed = pad(images, (PADDING,) * 4).flatten(2)
    return framed.gather(2, source.reshape(n, 1, -1).expand(-1, channels, -1)).reshape(images.shape)


def memory_format(device: torch.device) -> torch.memory_format:
    """Return the layout of images and weights: ``channels_last`` for tensor cores.

    On CPUs without AVX-512 it breaks the heap: there torch 2.13 writes the weights' gradient of a strided 1 × 1
    convolution with fewer than 8 input channels beyond its end.
    """
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


def normalise(images: Tensor) -> Tensor:
    """Return bytes as float32 with mean 0 and standard deviation 1 in every channel over the training set."""
    mean, std = moments(images.device)
    return (images.to(torch.float32, memory_format=memory_format(images.device)) - mean) / std


@cache
def moments(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of every channel, in bytes; a device is waited for only once."""
    mean, std = (255 * torch.tensor(numbers, device=device).reshape(3, 1, 1) for numbers in (MEAN, STD))
    return mean, std
