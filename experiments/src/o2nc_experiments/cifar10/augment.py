"""Shuffling, cropping, flipping and scaling of images, on whatever device they are.

Randomness is a pure function of (seed, counter, position). So a run depends on its seed only, resumes from its
counter with no generator to save, and is the same on every device. It is drawn for a whole epoch at once; what is
done with it in a step takes nothing from the host and can be captured in a CUDA graph.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from o2nc.scaling import _GOLDEN, _MASK, seed_key
from o2nc_experiments.resnet import layout

PADDING = 4
SHIFTS = 2 * PADDING + 1
CASES = SHIFTS * SHIFTS * 2
MEAN = (0.4914, 0.4822, 0.4465)  # of each channel over the training images, in units of 255
STD = (0.2470, 0.2435, 0.2616)
CROP_STREAM, SHUFFLE_STREAM = 2, 3  # 0 and 1 are the optimizer's (`o2nc.scaling.uniform`)


def draw(seed: int, counters: Tensor, n: int, stream: int) -> Tensor:
    """Return n words of 64 random bits for every counter: those of `o2nc.scaling.uniform`, as tensors.

    Args:
        seed: a non-negative integer.
        counters: (k,), int64, at least 0.
        n: how many; word i is the same for any n > i.
        stream: separates uses of one seed.

    Returns:
        (k, n), int64, on the device of ``counters``.
    """
    words = _mix(counters.reshape(-1, 1) * _signed(_GOLDEN) + _signed(seed_key(seed, stream)))
    return _mix(words + torch.arange(1, n + 1, device=counters.device) * _signed(_GOLDEN))


def shuffle(seed: int, epochs: Tensor, n: int) -> Tensor:
    """Return a random order of 0, …, n − 1 for every epoch.

    Args:
        seed: a non-negative integer.
        epochs: (k,), int64, at least 0.
        n: how many.

    Returns:
        (k, n), int64, on the device of ``epochs``.

    Example:
        >>> shuffle(0, torch.tensor([1]), 10).tolist()
        [[8, 1, 2, 0, 9, 7, 3, 5, 4, 6]]
    """
    low = (1 << n.bit_length()) - 1
    # with the index in the low bits no two words are equal: any way of sorting gives the same order
    words = draw(seed, epochs, n, SHUFFLE_STREAM) & ~low | torch.arange(n, device=epochs.device)
    return words.sort().values & low


def crops(seed: int, steps: Tensor, n: int) -> Tensor:
    """Return what is to be done to the n images of every step, for `augment`.

    Args:
        seed: a non-negative integer.
        steps: (k,), int64, at least 0.
        n: images per step.

    Returns:
        (k, n), int64, on the device of ``steps``: one of `CASES` equally likely cases each.
    """
    return (draw(seed, steps, n, CROP_STREAM) & _MASK >> 1) % CASES


def augment(images: Tensor, cases: Tensor) -> Tensor:
    """Return the images, each moved by up to 4 pixels in both directions, and mirrored or not.

    As is usual, a crop of the image in a black frame.

    Args:
        images: (n, channels, height, width), any dtype.
        cases: (n,), int64, of `crops`.

    Returns:
        Like ``images``.
    """
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
    """Return the images with mean 0 and standard deviation 1 in every channel, over the training set.

    Args:
        images: (n, 3, height, width), uint8.
        statistics: of `statistics`, on the device of the images.

    Returns:
        Of the same shape and the dtype of the statistics, in the device's `layout`.
    """
    mean, std = statistics
    # two roundings, not one fused: every device computes the same
    return (images.to(statistics.dtype, memory_format=layout(images.device)) - mean) / std


def _mix(z: Tensor) -> Tensor:
    """Scramble 64 bits, as `o2nc.scaling` does: products of int64 wrap around, so signed words do."""
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros, where ``>>`` would fill with the sign."""
    return z >> bits & _MASK >> bits


def _signed(word: int) -> int:
    """Return the int64 with the bits of this word."""
    return word - (word >> 63 << 64)
