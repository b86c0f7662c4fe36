"""The laws of the random scalar s that multiplies every update.

With s ~ Exp(1) the update x + sΔ satisfies, for any F that is absolutely continuous along the ray,

    E[F(x + sΔ) − F(x)] = E⟨∇F(x + sΔ), Δ⟩            (Lemma "exponential scaling")

and for any law on [0, ·) with density p and survival function S, by exchanging two integrals,

    E[F(x + sΔ) − F(x)] = E[w(s)⟨∇F(x + sΔ), Δ⟩],     w(s) = S(s) / p(s).

Exp(1) is the only law of mean 1 with constant weight, and it minimises E[w²] at a given mean.

Other laws need no weights either, as a rule. Let k be a law's renewal density less 1: how long the positions of its
steps along a line remember where they began. Without weights the identity holds up to a term that telescopes over
a run, and costs at most G·L·Σ‖Δ_{t+1} − Δ_t‖ with L = ∫ u|dk(u)|, the law's ``price``. Exp(1) has L = 0; s = 1
remembers for ever. So every law is used without weights unless it is made with ``weighted=True``: then losses and
averages alike carry w.

``sample(seed, step)`` is a pure function: a counter-based generator, not a stream. Every process, rank,
device and order of calls sees the same s_n, a run resumes exactly with no generator state to save, and no
global generator is touched.
"""

import math
import sys
import warnings
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from o2nc import checks, renewal

# what a seed is used for, each with random numbers of its own; 2 and 3 are CIFAR-10's images
S, OUTPUT, ROUNDING, SETTLING, CHANGES = 0, 1, 4, 5, 6
_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, SplitMix64's increment
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # and those of its output function


@runtime_checkable
class Law(Protocol):
    """What a law of s must offer. A law of your own is a frozen dataclass with these two members.

    With mean 1 a learning rate keeps its meaning. `uniform` gives it its random numbers. ``weighted = True`` on it
    says that losses and averages carry the weights, which needs a support that starts at 0. For `o2nc.theory` to say
    what it guarantees it has ``second_moment`` and ``price``, too; `o2nc.renewal.price` computes the latter.

    Example:
        >>> @dataclass(frozen=True)
        ... class Lomax:
        ...     def sample(self, seed: int, step: int) -> float:
        ...         return 2 * (uniform(seed, step) ** (-1 / 3) - 1)
        ...
        ...     def weight(self, s: float) -> float:
        ...         return (2 + s) / 3
        >>> isinstance(Lomax(), Law)
        True
    """

    def sample(self, seed: int, step: int) -> float:
        """Return s_step, a pure function of its arguments; ``step`` starts at 1."""

    def weight(self, s: float) -> float:
        """Return survival(s) / density(s)."""


def _mix(z: int) -> int:
    """Scramble 64 bits (the output function of SplitMix64, a bijection)."""
    z = ((z ^ (z >> 30)) * MULTIPLIERS[0]) & _MASK
    z = ((z ^ (z >> 27)) * MULTIPLIERS[1]) & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=1024)
def seed_key(seed: int, stream: int) -> int:
    """Hash a seed of any length and a stream number to 64 bits."""
    key = _mix(stream + GOLDEN)
    while True:
        key = _mix(((key + GOLDEN) & _MASK) ^ (seed & _MASK))
        seed >>= 64
        if not seed:
            return key


def uniform(seed: int, step: int, *, stream: int = S, draw: int = 0) -> float:
    """Return a uniform number in (0, 1), a pure function of its arguments.

    Args:
        seed: a non-negative integer.
        step: the counter, at least 1.
        stream: separates the uses of one seed: the scalars s, the choice of the output, the rounding of x̄ and others.
        draw: numbers the draws within one step, for laws that need several.

    Example:
        >>> uniform(0, 1) == uniform(0, 1)
        True
        >>> uniform(0, 1) == uniform(0, 2)
        False
    """
    if step < 1:
        raise ValueError(f"step must be an integer >= 1, got {step!r}")
    word = _mix((seed_key(int(seed), stream) + int(step) * GOLDEN) & _MASK)  # int: numpy's would overflow
    bits = _mix((word + (draw + 1) * GOLDEN) & _MASK) >> 12
    # 52 bits and a half: neither 0 nor 1 can come out, so a logarithm is safe
    return (bits + 0.5) * 2.0**-52


@dataclass(frozen=True)
class Exponential:
    """Exp(rate), mean 1/rate: the law of the paper. Its weight is the constant 1/rate.

    Args:
        rate: λ > 0.

    Example:
        >>> s = Exponential().sample(seed=0, step=2)
        >>> s > 0, Exponential().weight(s)
        (True, 1.0)
    """

    rate: float = 1.0
    weighted: ClassVar[bool] = False  # its weight is constant

    def __post_init__(self) -> None:
        checks.positive("rate", self.rate)

    @property
    def mean(self) -> float:
        """The mean of s."""
        return 1 / self.rate

    @property
    def second_moment(self) -> float:
        """E s² = 2/λ²."""
        return 2 / self.rate**2

    @property
    def price(self) -> float:
        """L = 0: the Poisson process remembers nothing."""
        return 0.0

    def sample(self, seed: int, step: int) -> float:
        """Return s_step by inversion: −log(u)/λ."""
        return -math.log(uniform(seed, step)) / self.rate

    def weight(self, s: float) -> float:
        """Return e^{−λs} / (λe^{−λs}) = 1/λ."""
        return 1.0 / self.rate


@dataclass(frozen=True)
class Uniform:
    """U(low, high), mean (low + high)/2: U(0, 2) and U(¾, 5/4) have mean 1, U(0, 1) is Algorithm 1's law.

    Args:
        low: the lower end, >= 0; with weights 0, since their identity needs a law whose support starts there.
        high: the upper end, > low.
        weighted: whether losses and averages carry w(s) = high − s.

    Example:
        >>> Uniform(0, 2).weight(0.5)
        1.5
    """

    low: float = 0.0
    high: float = 2.0
    weighted: bool = False

    def __post_init__(self) -> None:
        checks.flag("weighted", self.weighted)
        checks.non_negative("low", self.low)
        if self.weighted:
            checks.number("low", self.low, "0 with weighted=True: the support must start there", lambda v: v == 0)
        checks.number("high", self.high, f"a finite number > low = {self.low!r}", lambda v: v > self.low)

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

    @property
    def price(self) -> float:
        """L of s over its mean: 2.8 for U(0, 2), 5.0 for U(½, 3/2), 40 for U(¾, 5/4)."""
        return _price(self)

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
        weighted: whether losses and averages carry w(s); with a width of 1 only, where the support starts at 0.

    Example:
        >>> law = Jitter(0.25)
        >>> law, law.low, law.high
        (Jitter(width=0.25, weighted=False), 0.75, 1.25)
        >>> law.sample(seed=0, step=2) == Uniform(0.75, 1.25).sample(seed=0, step=2)
        True
    """

    low: float = field(init=False, repr=False)
    high: float = field(init=False, repr=False)
    weighted: bool = field(default=False, kw_only=True)
    width: float

    def __post_init__(self) -> None:
        checks.number("width", self.width, "a number in (0, 1]", lambda v: 0 <= 1 - v < 1)
        if self.weighted:
            checks.number("width", self.width, "1 with weighted=True: the support must start at 0", lambda v: v == 1)
        object.__setattr__(self, "low", 1 - self.width)
        object.__setattr__(self, "high", 1 + self.width)
        super().__post_init__()

    def __repr__(self) -> str:
        return f"Jitter(width={self.width!r}, weighted={self.weighted!r})"


@dataclass(frozen=True)
class Weibull:
    """Weibull(shape k, scale λ); the default scale 1/Γ(1 + 1/k) gives mean 1. k = 1 is Exp.

    E[w²] = (λ/k)² Γ(2/k − 1) is finite only for k < 2; from 2 on a warning says so if it is weighted.

    Args:
        shape: k > 0.
        scale: λ > 0, or None for mean 1.
        weighted: whether losses and averages carry w(s).

    Example:
        >>> law = Weibull(shape=1.0)
        >>> round(law.weight(0.3), 12)
        1.0
    """

    shape: float
    scale: float = None  # type: ignore[assignment]  # filled in below
    weighted: bool = False

    def __post_init__(self) -> None:
        _check_shape_scale(self)
        if self.scale is None:
            scale = math.exp(-math.lgamma(1 + 1 / self.shape))
            checks.number("shape", self.shape, "at least 0.006 when the scale is left open", lambda v: scale > 0)
            object.__setattr__(self, "scale", scale)

    @property
    def estimates(self) -> bool:
        """Whether w⟨g, Δ⟩ is an estimate of the decrease of finite variance."""
        return self.shape < 2

    @property
    def mean(self) -> float:
        """The mean of s."""
        return self.scale * math.exp(math.lgamma(1 + 1 / self.shape))

    @property
    def second_moment(self) -> float:
        """E s² = λ²Γ(1 + 2/k)."""
        return self.scale**2 * math.exp(math.lgamma(1 + 2 / self.shape))

    @property
    def price(self) -> float:
        """L of s over its mean."""
        return _price(self)

    def sample(self, seed: int, step: int) -> float:
        """Return s_step by inversion: λ(−log u)^{1/k}."""
        return self.scale * (-math.log(uniform(seed, step))) ** (1 / self.shape)

    def weight(self, s: float) -> float:
        """Return (λ/k)(s/λ)^{1−k}."""
        return self.scale / self.shape * (s / self.scale) ** (1 - self.shape)


@dataclass(frozen=True)
class Gamma:
    """Gamma(shape k, scale θ); the default scale 1/k gives mean 1. k = 1 is Exp.

    E[w²] is finite only for k < 2 (the density vanishes like s^{k−1} at 0); from 2 on a warning says so if it is
    weighted.

    Args:
        shape: k > 0; the larger, the closer s stays to its mean.
        scale: θ > 0, or None for mean 1.
        weighted: whether losses and averages carry w(s).

    Example:
        >>> round(Gamma(shape=1.0).weight(0.3), 12)
        1.0
    """

    shape: float
    scale: float = None  # type: ignore[assignment]  # filled in below
    weighted: bool = False

    def __post_init__(self) -> None:
        _check_shape_scale(self)
        if self.scale is None:
            object.__setattr__(self, "scale", 1 / self.shape)

    @property
    def estimates(self) -> bool:
        """Whether w⟨g, Δ⟩ is an estimate of the decrease of finite variance."""
        return self.shape < 2

    @property
    def mean(self) -> float:
        """The mean of s."""
        return self.shape * self.scale

    @property
    def second_moment(self) -> float:
        """E s² = k(k + 1)θ²."""
        return self.shape * (self.shape + 1) * self.scale**2

    @property
    def price(self) -> float:
        """L of s over its mean: ¼ for k = 2, 0.45 for k = 4, 4.8 for k = 16."""
        return _price(self)

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


def _check_shape_scale(law: Weibull | Gamma) -> None:
    checks.flag("weighted", law.weighted)
    checks.positive("shape", law.shape)
    if law.scale is not None:
        checks.positive("scale", law.scale)
    if law.weighted and law.shape >= 2:
        warnings.warn(
            f"{type(law).__name__}(shape={law.shape}, weighted=True): E[w(s)²] is infinite for shape >= 2, so "
            "weighted gradients have infinite variance; take shape < 2, or no weights",
            stacklevel=4,
        )


@lru_cache(maxsize=256)
def _price(law: Uniform | Weibull | Gamma) -> float:
    """Return L = ∫ u|dk(u)| of s/E s.

    For a falling hazard (shape <= 1) the renewal density falls to 1 (Brown 1980), for Gamma with 1 <= shape <= 2 it
    rises: its Laplace transform 1/((1 + z/k)^k − 1) has a cut and no pole but 0. Then L is what k integrates to.
    """
    mean = law.mean
    variance = law.second_moment / mean**2 - 1
    if isinstance(law, Uniform):
        low, width = law.low / mean, (law.high - law.low) / mean
        jumps = ((low, 1 / width), (low + width, -1 / width))
        return renewal.price(lambda u: np.clip((u - low) / width, 0.0, 1.0), variance, jumps)
    if law.shape <= (2 if isinstance(law, Gamma) else 1):
        return abs(variance - 1) / 2
    shape, scale = law.shape, law.scale / mean
    if isinstance(law, Weibull):
        return renewal.price(lambda u: -np.expm1(-((u / scale) ** shape)), variance)
    k = torch.tensor(shape, dtype=torch.float64, device="cpu")
    return renewal.price(lambda u: torch.special.gammainc(k, torch.from_numpy(u / scale)).numpy(), variance)


def check_law(law: object) -> None:
    """Refuse ``law`` unless it is a law of s or None."""
    if law is None:
        return
    missing = [name for name in ("sample", "weight") if not hasattr(law, name)]
    if missing or isinstance(law, type) or not is_dataclass(law):
        reason = f" (it lacks {', '.join(missing)})" if missing else " (a law is an instance of a dataclass)"
        raise TypeError(f"scaling must be a law such as o2nc.Exponential(), or None, got {law!r}{reason}")


def is_weighted(law: Law | None) -> bool:
    """Say whether losses and averages carry the weights of the law."""
    return getattr(law, "weighted", False)


class Draw(NamedTuple):
    """The random numbers of one step t."""

    s: float | None  # s_{t+1}; None without a law
    weight: float  # of x_t among the losses and averages
    progress_weight: float  # of ⟨g_t, Δ_t⟩
    dither: float  # u − ½, for the rounding of x̄
    renews: bool  # whether an output is drawn anew: a step t uniform over all so far
    settles: bool  # whether one that was drawn and not taken yet is x̄_t, at t or a geometric time after it


def draw(law: Law | None, seed: int, t: int, *, averaged: bool = True, count: int = 0, settling: float = 1.0) -> Draw:
    """Draw all random numbers of step t.

    Args:
        law: of s.
        seed: the seed.
        t: the number of the step, >= 1.
        averaged: whether those of the averages are wanted.
        count: which of the averages this is that the output is drawn from; 0 for none.
        settling: with which probability an output that was drawn is taken now.
    """
    s = None if law is None else law.sample(seed, t + 1)
    weight = relative_weight(law, seed, t)
    if not averaged:
        return Draw(s, weight, 1.0, 0.0, False, False)
    renews = count > 0 and uniform(seed, count, stream=OUTPUT) * count < 1  # a reservoir of size one
    settles = count > 0 and uniform(seed, count, stream=SETTLING) < settling
    dither = uniform(seed, t, stream=ROUNDING) - 0.5
    return Draw(s, weight, progress_weight(law, seed, t), dither, renews, settles)


def relative_weight(law: Law | None, seed: int, step: int) -> float:
    """Return the weight of iterate x_step among the losses and averages: 1 without weights, and at step 1."""
    if law is None or not is_weighted(law) or step == 1:
        return 1.0
    return law.weight(law.sample(seed, step))


def progress_weight(law: Law | None, seed: int, step: int) -> float:
    """Return the weight of ⟨g, Δ⟩ in the progress.

    It is w(s_step), which makes an unbiased estimate of the decrease, where that has a finite variance. Elsewhere it
    is the mean of s, and with no law 1: then the sum is right up to the term that telescopes.
    """
    return law.weight(law.sample(seed, step)) if estimates(law) and law is not None else mean(law)


def mean(law: Law | None) -> float:
    """Return the mean of s; a law of the user's own may have a ``mean``, which is taken to be 1 otherwise."""
    return getattr(law, "mean", 1.0)


def second_moment(law: Law | None) -> float:
    """Return E s²."""
    return 1.0 if law is None else float(law.second_moment)  # type: ignore[attr-defined]


def price(law: Law | None) -> float:
    """Return L of a law, what it costs without weights; s = 1 remembers for ever."""
    return math.inf if law is None else float(law.price)  # type: ignore[attr-defined]


def estimates(law: Law | None) -> bool:
    """Say whether w(s)⟨g, Δ⟩ estimates the decrease; a law of the user's own may say ``estimates = False``."""
    return law is not None and getattr(law, "estimates", True)
