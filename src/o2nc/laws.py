"""The laws of s other than `o2nc.scaling.Exponential`: how they are drawn, their weights, and what they cost.

Each has the methods of `o2nc.scaling.Law`. A learning rate is multiplied by ``mean`` on average; from
``second_moment`` and ``price`` `o2nc.theory` computes what a law guarantees. ``estimates`` says whether the weights
make the progress an unbiased estimate of finite variance.
"""

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from o2nc import checks, renewal
from o2nc.scaling import make_plain_, uniform


@dataclass(frozen=True)
class Uniform:
    """U(low, high), mean (low + high)/2: U(0, 2) and U(¾, 5/4) have mean 1, U(0, 1) is Algorithm 1's law.

    Args:
        low: the lower end, >= 0; for w(s) to be unbiased 0, since its identity needs a support that starts there.
        high: the upper end, > low.

    Example:
        >>> Uniform(0, 2).weight(0.5)
        1.5
    """

    low: float = 0.0
    high: float = 2.0

    def __post_init__(self) -> None:
        checks.non_negative("low", self.low)
        checks.number("high", self.high, f"a finite number > low = {self.low!r}", lambda v: v > self.low)
        make_plain_(self)

    @property
    def estimates(self) -> bool:
        """Whether w⟨g, Δ⟩ is an unbiased estimate of the decrease."""
        return self.low == 0

    @property
    def mean(self) -> float:
        """The mean of s."""
        return (self.low + self.high) / 2

    @property
    def second_moment(self) -> float:
        """E s² = (low² + low·high + high²)/3."""
        return (self.low**2 + self.low * self.high + self.high**2) / 3

    @cached_property
    def price(self) -> float:
        """L of s over its mean: 2.8 for U(0, 2), 40 for U(¾, 5/4)."""
        low, width = self.low / self.mean, (self.high - self.low) / self.mean
        jumps = ((low, 1 / width), (low + width, -1 / width))
        return renewal.price(lambda u: np.clip((u - low) / width, 0.0, 1.0), width**2 / 12, jumps)

    def sample(self, seed: int, step: int) -> float:
        """Return s_step = low + (high − low)·u."""
        return self.low + (self.high - self.low) * uniform(seed, step)

    def weight(self, s: float) -> float:
        """Return survival(s)/density(s) = high − s on the support, 0 above it."""
        return max(self.high - max(s, self.low), 0.0)


@dataclass(frozen=True)
class Jitter(Uniform):
    """U(1 − width, 1 + width), a step that is a little longer or shorter than without scaling: Var s = width²/3.

    The narrower, the less it costs where the learning rate is at the edge of stability, and the higher its price in a
    guarantee, nearly 3/(16·width⁴). A width of 1 is U(0, 2).

    Args:
        width: in (0, 1].

    Example:
        >>> law = Jitter(0.25)
        >>> law, law.low, law.high
        (Jitter(width=0.25), 0.75, 1.25)
        >>> law.sample(seed=0, step=2) == Uniform(0.75, 1.25).sample(seed=0, step=2)
        True
    """

    low: float = field(init=False, repr=False)
    high: float = field(init=False, repr=False)
    width: float

    def __post_init__(self) -> None:
        checks.number("width", self.width, "a number in (0, 1]", lambda v: 0 <= 1 - v < 1)
        make_plain_(self)
        object.__setattr__(self, "low", 1 - self.width)
        object.__setattr__(self, "high", 1 + self.width)
        super().__post_init__()


@dataclass(frozen=True)
class _ShapeScale(ABC):
    """A law with a shape and a scale, which is the one of mean 1 if left out."""

    shape: float
    scale: float = None  # type: ignore[assignment]  # filled in below

    def __post_init__(self) -> None:
        checks.positive("shape", self.shape)
        if self.scale is not None:
            checks.positive("scale", self.scale)
        make_plain_(self)
        if self.scale is None:
            scale = self._scale_of_mean_one()
            checks.number("shape", self.shape, "at least 0.006 when the scale is left open", lambda v: scale > 0)
            object.__setattr__(self, "scale", scale)

    @abstractmethod
    def _scale_of_mean_one(self) -> float: ...

    @property
    def estimates(self) -> bool:
        """Whether w⟨g, Δ⟩ is an estimate of the decrease of finite variance."""
        return self.shape < 2


@dataclass(frozen=True)
class Weibull(_ShapeScale):
    """Weibull(shape k, scale λ); the default scale 1/Γ(1 + 1/k) gives mean 1. k = 1 is Exp.

    E[w²] = (λ/k)² Γ(2/k − 1) is finite only for k < 2.

    Args:
        shape: k > 0.
        scale: λ > 0, or None for mean 1.

    Example:
        >>> law = Weibull(shape=1.0)
        >>> round(law.weight(0.3), 12)
        1.0
    """

    def _scale_of_mean_one(self) -> float:
        return math.exp(-math.lgamma(1 + 1 / self.shape))

    @property
    def mean(self) -> float:
        """The mean of s."""
        return self.scale * math.exp(math.lgamma(1 + 1 / self.shape))

    @property
    def second_moment(self) -> float:
        """E s² = λ²Γ(1 + 2/k)."""
        return math.exp(math.lgamma(1 + 2 / self.shape) + 2 * math.log(self.scale))  # Γ alone may overflow

    @cached_property
    def price(self) -> float:
        """L of s over its mean. For k <= 1 the renewal density falls to 1 (Brown 1980), so that L is |E s²/2 − 1|."""
        variance, scale = self.second_moment / self.mean**2 - 1, self.scale / self.mean
        if self.shape <= 1:
            return abs(variance - 1) / 2
        return renewal.price(lambda u: -np.expm1(-((u / scale) ** self.shape)), variance)

    def sample(self, seed: int, step: int) -> float:
        """Return s_step by inversion: λ(−log u)^{1/k}."""
        return self.scale * (-math.log(uniform(seed, step))) ** (1 / self.shape)

    def weight(self, s: float) -> float:
        """Return (λ/k)(s/λ)^{1−k}."""
        return self.scale / self.shape * (s / self.scale) ** (1 - self.shape)


@dataclass(frozen=True)
class Gamma(_ShapeScale):
    """Gamma(shape k, scale θ); the default scale 1/k gives mean 1. k = 1 is Exp.

    E[w²] is finite only for k < 2 (the density vanishes like s^{k−1} at 0).

    Args:
        shape: k > 0; the larger, the closer s stays to its mean.
        scale: θ > 0, or None for mean 1.

    Example:
        >>> round(Gamma(shape=1.0).weight(0.3), 12)
        1.0
    """

    def _scale_of_mean_one(self) -> float:
        return 1 / self.shape

    @property
    def mean(self) -> float:
        """The mean of s."""
        return self.shape * self.scale

    @property
    def second_moment(self) -> float:
        """E s² = k(k + 1)θ²."""
        return self.shape * (self.shape + 1) * self.scale**2

    @cached_property
    def price(self) -> float:
        """L of s over its mean: ¼, 0.45, 4.8 for shape 2, 4, 16.

        For k <= 1 the renewal density falls to 1 (Brown 1980), for 1 <= k <= 2 it rises to it: its Laplace transform
        1/((1 + z/k)^k − 1) has a cut and no pole but 0. Then L is |E s²/2 − 1|.
        """
        if self.shape <= 2:
            return abs(1 / self.shape - 1) / 2
        k = torch.tensor(self.shape, dtype=torch.float64, device="cpu")
        return renewal.price(lambda u: torch.special.gammainc(k, k * torch.from_numpy(u)).numpy(), 1 / self.shape)

    def sample(self, seed: int, step: int) -> float:
        """Return s_step by Marsaglia and Tsang's rejection; every trial has its own counters."""
        # below 1: Gamma(k) = Gamma(k + 1) · U^{1/k}
        k = self.shape if self.shape >= 1 else self.shape + 1
        boost = 1.0 if self.shape >= 1 else uniform(seed, step, draw=0) ** (1 / self.shape)
        d = k - 1 / 3
        draw = 1
        while True:
            u, angle, accept = (uniform(seed, step, draw=draw + i) for i in range(3))
            draw += 3
            normal = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * angle)
            v = (1 + normal / math.sqrt(9 * d)) ** 3
            if v > 0 and math.log(accept) < 0.5 * normal**2 + d * (1 - v + math.log(v)):
                return self.scale * boost * d * v

    def weight(self, s: float) -> float:
        """Return θ Γ(k, z) e^z z^{1−k} at z = s/θ, with Γ(k, ·) the upper incomplete gamma function."""
        k, z = self.shape, s / self.scale
        z = max(z, sys.float_info.min)  # a subnormal number may count as 0
        survival = torch.special.gammaincc(*torch.tensor([k, z], dtype=torch.float64, device="cpu")).item()
        if survival == 0.0:  # beyond e^{−745}: two terms of the asymptotic series
            return self.scale * (1 + (k - 1) / z)
        return self.scale * math.exp(math.log(survival) + math.lgamma(k) + z + (1 - k) * math.log(z))
