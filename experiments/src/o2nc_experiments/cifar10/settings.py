"""What all trials of a run have in common."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The setting of Table 1, or a smaller one.

    Attributes:
        epochs: how many times the training set is gone through.
        batch: images per step, over all processes.
        average: the discount of x̄ and ḡ, in (0, 1).
        width: channels of ResNet-18's first stage.
        limit: only so many training images, and a fifth as many test images.
    """

    epochs: int = 200
    batch: int = 128
    average: float = 0.999
    width: int = 64
    limit: int | None = None

    def factor(self, epoch: int) -> float:
        """Return what the learning rate is multiplied by in an epoch, counted from 0: a cosine from 1 towards 0."""
        return 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))

    def steps(self, epoch: int, images: int) -> int:
        """Return how many steps come before an epoch.

        Batches go on across the end of an epoch, so that every image is seen exactly once per epoch: one that begins
        in an epoch belongs to it. 200 epochs of 50,000 images are 78,125 batches of 128.
        """
        return -(-epoch * images // self.batch)

    def averages_are_due(self, epoch: int) -> bool:
        """Say whether x̄ is evaluated when so many epochs are over: ten times, and at the end."""
        return epoch == self.epochs or epoch % max(1, self.epochs // 10) == 0


def unlike_paper(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record's settings have that is not the paper's; the discount of x̄ is not in the paper."""
    usual, named = asdict(Settings()), ("epochs", "batch", "width", "limit")
    return {key: settings[key] for key in named if settings.get(key, usual[key]) != usual[key]}
