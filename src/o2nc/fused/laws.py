"""The laws of s and the windows of the averages on the device.

The uniform numbers are bitwise those of `o2nc.scaling`. A logarithm may differ from the host's in the last place.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from o2nc import laws, scaling
from o2nc.averages.windows import Discount, Polynomial, Window
from o2nc.scaling import Law

GOLDEN = tl.constexpr(scaling.GOLDEN)
FIRST, SECOND = (tl.constexpr(multiplier) for multiplier in scaling.MULTIPLIERS)


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * FIRST
    z = (z ^ (z >> 27)) * SECOND
    return z ^ (z >> 31)


@triton.jit
def _word(key, step):
    return _mix(key.to(tl.uint64) + step.to(tl.uint64) * GOLDEN)


@triton.jit
def _number(word):
    return ((_mix(word) >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def uniform(key, step):
    """`o2nc.scaling.uniform` at draw 0; ``key`` is the hash of seed and stream."""
    return _number(_word(key, step) + GOLDEN)


@triton.jit
def _one(key, step, a, b):
    return a * 0.0 + 1.0


@triton.jit
def _exponential(key, step, a, b):
    return -tl.log(uniform(key, step)) / a


@triton.jit
def _gamma(key, step, a, b):
    """`o2nc.Gamma.sample` for shapes from 1 on: trial after trial, three numbers each."""
    d = a - 1.0 / 3.0
    word = _word(key, step) + GOLDEN  # of draw 0
    found = a * 0.0 - 1.0
    while found < 0.0:
        first = word + GOLDEN
        second = first + GOLDEN
        word = second + GOLDEN
        u = _number(first)
        angle = _number(second)
        accept = _number(word)
        normal = tl.sqrt(-2.0 * tl.log(u)) * tl.cos(6.283185307179586 * angle)
        v = 1.0 + normal / tl.sqrt(9.0 * d)
        v = v * v * v
        room = 0.5 * normal * normal + d * (1.0 - v + tl.log(tl.where(v > 0.0, v, 1.0)))
        found = tl.where((v > 0.0) & (tl.log(accept) < room), b * d * v, found)
    return found


@triton.jit
def _uniform(key, step, a, b):
    return a + (b - a) * uniform(key, step)


@triton.jit
def _uniform_weight(s, a, b):
    return tl.maximum(b - s, 0.0)


@triton.jit
def _weibull(key, step, a, b):
    return b * tl.exp(tl.log(-tl.log(uniform(key, step))) / a)


@triton.jit
def _weibull_weight(s, a, b):
    return b / a * tl.exp((1.0 - a) * tl.log(s / b))


class DeviceLaw(NamedTuple):
    """A law of s: sample(key, step, a, b), its mean and two parameters."""

    sample: Any
    mean: float = 1.0
    a: float = 0.0
    b: float = 0.0
    weight: Any = None  # weight(s, a, b), if the progress carries it in the place of the mean


def device_law(law: Law | None) -> DeviceLaw | None:
    """Return a law on the device, or None for one that has no device form."""
    if law is None:
        return DeviceLaw(_one)
    mean = scaling.mean(law)
    if type(law) is scaling.Exponential:
        return DeviceLaw(_exponential, mean, law.rate)  # its weight is its mean
    if type(law) is laws.Uniform or type(law) is laws.Jitter:
        return DeviceLaw(_uniform, mean, law.low, law.high, _uniform_weight if law.estimates else None)
    if type(law) is laws.Weibull:
        return DeviceLaw(_weibull, mean, law.shape, law.scale, _weibull_weight if law.estimates else None)
    if type(law) is laws.Gamma and not law.estimates:  # else its weight is needed
        return DeviceLaw(_gamma, mean, law.shape, law.scale)
    return None


def device_window(window: Window | None) -> tuple[float, float, float, float] | None:
    """Return log b of `Discount`, the power of `Polynomial` (each −1 without it), start and every.

    None stands for a window that has no device form.
    """
    if window is None:
        return -1.0, -1.0, 0.0, 1.0
    if type(window) is Discount:
        return window.every * math.log(window.beta), -1.0, window.start, window.every
    if type(window) is Polynomial:
        return -1.0, float(window.power), window.start, window.every
    return None
