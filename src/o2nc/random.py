"""Random bits as tensors: the counter-based generator of `o2nc.scaling.uniform`, many numbers at a time.

A pure function of (seed, counter, position), the same on every device: a run that shuffles and augments by it depends
on its seed alone and resumes from its counter, with no generator to save.
"""

import torch
from torch import Tensor

from o2nc.scaling import GOLDEN, MULTIPLIERS, seed_key


def words(seed: int, counters: Tensor, n: int, stream: int) -> Tensor:
    """Return n words of 64 random bits for every counter: those that `o2nc.scaling.uniform` is made of.

    Args:
        seed: a non-negative integer.
        counters: (k,), int64, at least 0.
        n: how many; word i is the same for any n > i.
        stream: separates uses of one seed; 0, 1 and 4 to 6 are the optimizers'.

    Returns:
        (k, n), int64, on the device of ``counters``.

    Example:
        >>> import torch
        >>> from o2nc.scaling import uniform
        >>> word = words(0, torch.tensor([5]), 1, stream=2)
        >>> ((word.item() % 2**64 >> 12) + 0.5) * 2.0**-52 == uniform(0, 5, stream=2)
        True
    """
    mixed = _mix(counters.reshape(-1, 1) * _signed(GOLDEN) + _signed(seed_key(seed, stream)))
    return _mix(mixed + torch.arange(1, n + 1, device=counters.device) * _signed(GOLDEN))


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _signed(MULTIPLIERS[0])
    z = (z ^ _shifted(z, 27)) * _signed(MULTIPLIERS[1])
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros, as unsigned numbers do."""
    return z >> bits & (1 << 64 - bits) - 1


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
