"""The random scalar s that multiplies every update: its laws, and the generator of all random numbers.

With s ~ Exp(1) the update x + sΔ satisfies, for any F that is absolutely continuous along the ray,

    E[F(x + sΔ) − F(x)] = E⟨∇F(x + sΔ), Δ⟩            (Lemma "exponential scaling")

and for any law on [0, ·) with density p and survival function S, by exchanging two integrals,

    E[F(x + sΔ) − F(x)] = E[w(s)⟨∇F(x + sΔ), Δ⟩],     w(s) = S(s) / p(s).

Exp(1) is the only law of mean 1 with constant weight, and it minimises E[w²] at a given mean. `o2nc.laws` has the
others. Losses and averages carry no weights under any law; only the progress, Σ w⟨g, Δ⟩, does.

What leaving them out costs is the law's ``price`` (`o2nc.renewal`): 0 for Exp(1), infinite for s = 1.

``sample(seed, step)`` is a pure function: a counter-based generator, not a stream. Every process, rank, device and
order of calls sees the same s_n, a run resumes exactly with no generator state to save, and no global generator is
touched.
"""

import math
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

from o2nc import checks

# the streams of random numbers that one seed has; 2 and 3 are free for data (order and augmentation)
S, OUTPUT, ROUNDING, ACCEPT = 0, 1, 4, 5
_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, SplitMix64's increment
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # and those of its output function


@runtime_checkable
class Law(Protocol):
    """What a law of s must have. A law of your own is a frozen dataclass with these two methods.

    With mean 1 a learning rate keeps its meaning; another ``mean`` must be an attribute. `uniform` gives a law its
    random numbers. `o2nc.theory` also needs ``second_moment`` and ``price``; `o2nc.renewal.price` computes the
    latter. ``estimates = False`` says that w(s) has no finite variance, or is not unbiased; then the progress does
    without it.

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

    def __post_init__(self) -> None:
        checks.positive("rate", self.rate)
        make_plain_(self)

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


def make_plain_(law: Any) -> None:
    """Convert a law's numbers to Python's own: NumPy's narrow types would round s."""
    for member in fields(law):
        if member.init and type(value := getattr(law, member.name)) not in (int, float, type(None)):
            object.__setattr__(law, member.name, float(value))


def check_law(law: object, name: str = "scaling") -> None:
    """Raise unless ``law``, an argument of this name, is a law of s or None."""
    if law is None:
        return
    missing = [name for name in ("sample", "weight") if not hasattr(law, name)]
    if missing or isinstance(law, type) or not is_dataclass(law):
        reason = f" (it lacks {', '.join(missing)})" if missing else " (a law is an instance of a dataclass)"
        raise TypeError(f"{name} must be a law such as o2nc.Exponential(), or None, got {law!r}{reason}")


class Draw(NamedTuple):
    """The random numbers of one step."""

    s: float | None = None  # s_{t+1}; None without a law
    dither: float = 0.0  # u − ½, for the rounding of x̄
    weight: float = 1.0  # of ⟨g_t, Δ_t⟩ in the progress
    redraws: bool = False  # whether this average replaces the output: with probability 1/k, so that n is uniform
    accept: float = 0.0  # uniform in (0, 1): whether the "geometric" output takes it now or waits


def draw(law: Law | None, seed: int, t: int, *, counts: bool, progress: bool, k: int) -> Draw:
    """Return the random numbers of step t = 1, 2, …

    ``counts`` says whether x_t is averaged, ``progress`` whether the optimizer estimates its progress; k is the
    number of the average that may become the output, or 0. Where w(s) has no finite variance the mean of s takes its
    place in the progress, which is right up to a term that telescopes.
    """
    is_weighted = progress and getattr(law, "estimates", True)
    return Draw(
        None if law is None else law.sample(seed, t + 1),
        uniform(seed, t, stream=ROUNDING) - 0.5 if counts else 0.0,
        law.weight(law.sample(seed, t)) if law is not None and is_weighted else mean(law),
        k > 0 and uniform(seed, k, stream=OUTPUT) * k < 1,
        uniform(seed, k, stream=ACCEPT) if k else 0.0,
    )


def mean(law: Law | None) -> float:
    """Return the mean of s, 1 for a law that does not say it and without a law."""
    return getattr(law, "mean", 1.0)
