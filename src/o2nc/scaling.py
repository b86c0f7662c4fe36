"""The random scalar s that multiplies every update: its laws, and all random numbers of a step.

With s ~ Exp(1) the update x + sΔ satisfies, for any F that is absolutely continuous along the ray,

    E[F(x + sΔ) − F(x)] = E⟨∇F(x + sΔ), Δ⟩            (Lemma "exponential scaling")

and for any law on [0, ·) with density p and survival function S, by exchanging two integrals,

    E[F(x + sΔ) − F(x)] = E[w(s)⟨∇F(x + sΔ), Δ⟩],     w(s) = S(s) / p(s).

Exp(1) is the only law of mean 1 with constant weight, and it minimises E[w²] at a given mean. It is here, beside what
draws it; `o2nc.laws` has the others.

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
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from o2nc import checks

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
    """Make a law's numbers Python's own: s would be rounded as those of numpy's narrow types are."""
    for member in fields(law):
        if member.init and type(value := getattr(law, member.name)) not in (int, float, bool, type(None)):
            object.__setattr__(law, member.name, float(value))


def check_law(law: object, name: str = "scaling") -> None:
    """Refuse ``law``, an argument of this name, unless it is a law of s or None."""
    if law is None:
        return
    missing = [name for name in ("sample", "weight") if not hasattr(law, name)]
    if missing or isinstance(law, type) or not is_dataclass(law):
        reason = f" (it lacks {', '.join(missing)})" if missing else " (a law is an instance of a dataclass)"
        raise TypeError(f"{name} must be a law such as o2nc.Exponential(), or None, got {law!r}{reason}")


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


def __getattr__(name: str) -> Any:
    """Find the laws of `o2nc.laws` here as well, where older pickles look for them."""
    if name in ("Gamma", "Jitter", "Uniform", "Weibull"):
        from o2nc import laws

        return getattr(laws, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
