"""Batches: shuffled, cropped, flipped and scaled, on whatever device the images are.

Randomness is a pure function of (seed, counter, position). So a run depends on its seed only, resumes from its
counter with no generator to save, and is the same on every device. It is drawn for a whole epoch at once; what is
done with it in a step takes nothing from the host and can be captured in a CUDA graph.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from o2nc.random import words
from o2nc_experiments.cifar10.data import Data
from o2nc_experiments.cifar10.options import Settings
from o2nc_experiments.classification.resnet import layout
from o2nc_experiments.processes import World

EVALUATED = 1000  # images at once
PADDING = 4
SHIFTS = 2 * PADDING + 1
CASES = SHIFTS * SHIFTS * 2
MEAN = (0.4914, 0.4822, 0.4465)  # of each channel over the training images, in units of 255
STD = (0.2470, 0.2435, 0.2616)
CROP_STREAM, SHUFFLE_STREAM = 2, 3  # 0 and 1 are the optimizer's (`o2nc.scaling.uniform`)


def shuffle(seed: int, epochs: Tensor, n: int) -> Tensor:
    """Return a random order of 0, …, n − 1 for each of k epochs, (k, n).

    Example:
        >>> shuffle(0, torch.tensor([1]), 10).tolist()
        [[8, 1, 2, 0, 9, 7, 3, 5, 4, 6]]
    """
    low = (1 << n.bit_length()) - 1
    # with the index in the low bits no two words are equal: any way of sorting gives the same order
    keys = words(seed, epochs, n, SHUFFLE_STREAM) & ~low | torch.arange(n, device=epochs.device)
    return keys.sort().values & low


def crops(seed: int, steps: Tensor, n: int) -> Tensor:
    """Return what `augment` is to do to the n images of each of k steps, (k, n): `CASES` equally likely cases."""
    return (words(seed, steps, n, CROP_STREAM) & (1 << 63) - 1) % CASES


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


def statistics(device: torch.device | None = None) -> Tensor:
    """Return mean and standard deviation of every channel in a pixel's units, (2, 3, 1, 1), for `normalise`.

    Made once, outside of any capture: this is a copy from the host.
    """
    return (255 * torch.tensor((MEAN, STD), dtype=torch.float64)).float().reshape(2, 3, 1, 1).to(device)


def normalise(images: Tensor, statistics: Tensor) -> Tensor:
    """Return bytes as numbers with mean 0 and standard deviation 1 in every channel over the training set.

    They have the dtype of the statistics and the device's `layout`.
    """
    mean, std = statistics
    # two roundings, not one fused: every device computes the same
    return (images.to(statistics.dtype, memory_format=layout(images.device)) - mean) / std


class Images(NamedTuple):
    """The data set on a device: bytes to train on, the test set as the model takes it, in this process's share."""

    train: Tensor
    labels: Tensor
    statistics: Tensor
    tests: list[tuple[Tensor, Tensor]]
    test_size: int


def to_device(data: Data, device: torch.device, world: World = World(), dtype: torch.dtype = torch.float32) -> Images:
    """Put the data set on a device; images and models are made of this dtype."""
    numbers = statistics(device).to(dtype)
    images, labels = (t[world.rank :: world.size].to(device) for t in (data.test_images, data.test_labels))
    tests = [
        (normalise(part, numbers), truth)
        for part, truth in zip(images.split(EVALUATED), labels.split(EVALUATED), strict=True)
        if len(part)  # there may be more processes than images
    ]
    return Images(data.train_images.to(device), data.train_labels.to(device), numbers, tests, len(data.test_images))


class Batches(NamedTuple):
    """Where a trial stands in its training set, as tensors on the device."""

    order: Tensor  # of the images in this epoch and the next
    cases: Tensor  # what is done to every image of every batch of this epoch
    position: Tensor  # where the next batch begins in ``order``
    turn: Tensor  # how many batches of this epoch have been taken

    @classmethod
    def make(cls, images: int, batch: int, device: torch.device) -> "Batches":
        """Return one with nothing in it yet."""
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        return cls(zeros.new_zeros(2 * images), zeros.new_zeros(-(-images // batch), batch), zeros, zeros.clone())

    def fill_(self, seed: int, epoch: int, settings: Settings) -> None:
        """Go to the beginning of an epoch."""
        images, device = len(self.order) // 2, self.order.device
        step = settings.steps(epoch, images)
        self.turn.zero_()
        self.position.fill_(step * settings.batch - epoch * images)
        self.order.copy_(shuffle(seed, torch.arange(epoch, epoch + 2, device=device), images).flatten())
        self.cases.copy_(crops(seed, torch.arange(step, step + len(self.cases), device=device), settings.batch))

    def advance_(self) -> None:
        """Go to the next batch."""
        self.turn.add_(1)
        self.position.add_(self.cases.shape[1])


def next_batch(images: Images, batches: Batches, first: int, size: int) -> tuple[Tensor, Tensor]:
    """Return part of the next batch, augmented, and its labels."""
    part = torch.arange(first, first + size, device=batches.order.device)
    at = batches.order[batches.position + part]
    batch = augment(images.train[at], batches.cases[batches.turn, part])
    return normalise(batch, images.statistics), images.labels[at]
