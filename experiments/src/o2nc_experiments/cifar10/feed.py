"""The data set on a device, and where a trial stands in it: all a step needs to make its batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from o2nc_experiments.cifar10.augment import augment, crops, normalise, shuffle, statistics
from o2nc_experiments.cifar10.data import Data
from o2nc_experiments.cifar10.settings import Settings
from o2nc_experiments.cifar10.team import Team

EVALUATED = 1000  # images at once


class Images(NamedTuple):
    """The data set on a device: bytes to train on, the test set as the model takes it, in this process's share."""

    train: Tensor
    labels: Tensor
    statistics: Tensor
    tests: list[tuple[Tensor, Tensor]]
    test_size: int


def to_device(data: Data, device: torch.device, team: Team = Team(), dtype: torch.dtype = torch.float32) -> Images:
    """Put the data set on a device; images and models are made of this dtype."""
    numbers = statistics(device).to(dtype)
    images, labels = (t[team.rank :: team.size].to(device) for t in (data.test_images, data.test_labels))
    tests = [
        (normalise(part, numbers), truth)
        for part, truth in zip(images.split(EVALUATED), labels.split(EVALUATED), strict=True)
        if len(part)  # there may be more processes than images
    ]
    return Images(data.train_images.to(device), data.train_labels.to(device), numbers, tests, len(data.test_images))


class Feed(NamedTuple):
    """Where a trial stands in its training set, as tensors on the device.

    Attributes:
        order: of the images in this epoch and the next.
        cases: what is done to every image of every batch of this epoch.
        position: where the next batch begins in ``order``.
        turn: how many batches of this epoch have been taken.
    """

    order: Tensor
    cases: Tensor
    position: Tensor
    turn: Tensor

    @classmethod
    def make(cls, images: int, batch: int, device: torch.device) -> "Feed":
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


def take(images: Images, feed: Feed, first: int, size: int) -> tuple[Tensor, Tensor]:
    """Return part of the next batch, augmented, and its labels."""
    part = torch.arange(first, first + size, device=feed.order.device)
    at = feed.order[feed.position + part]
    batch = augment(images.train[at], feed.cases[feed.turn, part])
    return normalise(batch, images.statistics), images.labels[at]
