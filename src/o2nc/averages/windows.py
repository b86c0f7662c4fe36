"""Windows: which iterates are averaged, and how much each of them counts.

The n-th iterate that counts enters with the share γ_n, and what was averaged before keeps 1 − γ_n. γ_n is a function
of n alone, so the number of steps is the only counter that a run keeps.

    Discount(β)     γ_n = (1 − b)/(1 − bⁿ), b = β^every    weights ∝ β^age: an exponential moving average
    Polynomial(r)   γ_n = (r + 1)/(n + r)                  weights ∝ about t^r: the last 1/(r + 1) of the run
"""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from o2nc import checks


class Turn(NamedTuple):
    """Whether and how an iterate enters a window."""

    counts: bool  # whether it is averaged
    n: int  # how many iterates were averaged, this one included
    gamma: float  # γ_n, its share
    complete: int  # the number of the average that is complete with it, or 0


NO_TURN = Turn(False, 0, 1.0, 0)


class Window(ABC):
    """Which iterates are averaged, and how much each counts.

    A window of your own is a frozen dataclass that inherits from it and has `gamma`; with fields ``start`` and
    ``every`` it can be told which iterates count.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Last(Window):
        ...     def gamma(self, n):
        ...         return 1.0
        >>> Last().count(10), Last().ess(10)
        (10, 1.0)
    """

    start: int = 0  # iterates that are skipped before the first that counts
    every: int = 1  # of the others, one in ``every`` counts

    def __post_init__(self) -> None:
        checks.integer("start", self.start, 0)
        checks.integer("every", self.every, 1)

    @abstractmethod
    def gamma(self, n: Any) -> Any:
        """Return γ_n in (0, 1], the share of the n-th iterate that counts, for a number or an array; γ_1 is 1."""

    def counts(self, t: int) -> bool:
        """Return whether iterate t = 1, 2, … is averaged."""
        return t > self.start and (t - self.start - 1) % self.every == 0

    def count(self, t: int) -> int:
        """Return how many of the first t iterates are averaged."""
        return max(0, -((self.start - t) // self.every))

    def complete(self, t: int) -> int:
        """Return the number of the average that is complete after step t, or 0 if none is."""
        return self.count(t)

    def turn(self, t: int) -> "Turn":
        """Return whether and how iterate t enters this window."""
        n = self.count(t)
        return Turn(self.counts(t), n, 1.0 if n <= 1 else float(self.gamma(n)), self.complete(t))

    def ess(self, n: int, since: int = 1) -> float:
        """Return the effective sample size 1/Σp² of the average of n iterates.

        ``since`` is the number of a parameter's first iterate, which also stands for those before it.
        """
        p = np.broadcast_to(self.gamma(np.arange(since, n + 1, dtype=np.float64)), n + 1 - since).copy()
        p[0] = 1.0
        with np.errstate(divide="ignore"):  # γ = 1 forgets what came before
            kept = np.cumsum(np.log1p(-p[:0:-1]))[::-1]
        p[:-1] *= np.exp(kept)
        return float(1 / np.square(p).sum())


@dataclass(frozen=True)
class Discount(Window):
    """An exponential moving average (EMA) with the right weights from the first step on: the last 1/(1 − β) steps.

    Args:
        beta: β in (0, 1); iterates weigh β^(age in steps).
        start: iterates that are skipped first, such as those of a warm-up.
        every: of the others one in ``every`` counts, and only it costs anything.

    Example:
        ``average=Discount(0.9)`` is the same as ``average=0.9``.

        >>> [round(Discount(0.9).ess(n), 3) for n in (1, 10, 1000)]  # how many iterates x̄ is of, in effect
        [1.0, 9.176, 19.0]
    """

    beta: float
    start: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        checks.fraction("beta", self.beta)
        super().__post_init__()

    def gamma(self, n: Any) -> Any:
        """Return (1 − b)/(1 − bⁿ) with b = β^every."""
        log = self.every * np.log(self.beta)
        return np.expm1(log) / np.expm1(n * log)


@dataclass(frozen=True)
class Polynomial(Window):
    """An average that grows with the run: x̄ weighs iterate t by about t^power, the last 1/(power + 1) of the run.

    It has no horizon: at any moment the window is the same share of the run so far. At a constant learning rate, x̄ is
    about as good as the end of a decayed run, at all lengths at once.

    Args:
        power: r >= 0; 0 is the plain mean, 12 the last 8 % of the run.
        start: iterates that are skipped first, such as those of a warm-up.
        every: of the others one in ``every`` counts, and only it costs anything. Without gradient noise choose an
            odd number: of a run that hops between two points, an even one would only ever see one of them.

    Example:
        >>> import torch, o2nc
        >>> opt = o2nc.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1, average=o2nc.Polynomial(12))
        >>> [round(o2nc.Polynomial(12).ess(n)) for n in (100, 1000, 10_000)]  # always the same share of the run
        [16, 149, 1480]
    """

    power: float
    start: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        checks.non_negative("power", self.power)
        if 0 < self.power < 1:
            warnings.warn(
                f"Polynomial({self.power:g}) averages the last {1 / (self.power + 1):.0%} of the run; for the last "
                f"{self.power:.3g} of it write Polynomial({1 / self.power - 1:.3g})",
                stacklevel=3,
            )
        super().__post_init__()

    def gamma(self, n: Any) -> Any:
        """Return (r + 1)/(n + r)."""
        return (self.power + 1) / (n + self.power)


@dataclass(frozen=True)
class Blocks(Window):
    """The window of Algorithm 1: the plain mean over blocks of ``period`` iterates, one block after the other."""

    period: int

    def gamma(self, n: Any) -> Any:
        """Return 1/k for the k-th iterate of a block."""
        return 1 / ((n - 1) % self.period + 1)

    def complete(self, t: int) -> int:
        """Return the number of the block that ends with step t, or 0 if none does."""
        return 0 if t % self.period else t // self.period

    def ess(self, n: int, since: int = 1) -> float:
        """Return the length of a block; of the block in which a parameter joins, less."""
        missed = min(max(since - 1 - (n // self.period - 1) * self.period, 0), self.period - 1)
        return self.period**2 / ((missed + 1) ** 2 + self.period - missed - 1)


Average: TypeAlias = float | Window | None  # what optimizers are given


def as_window(average: Any) -> Window | None:
    """Return the window that an ``average`` argument stands for, or raise if it stands for none."""
    if average is None:
        return None
    if not isinstance(average, Window):
        allowed = "a number in (0, 1), a window such as o2nc.Polynomial(12), or None"
        checks.number("average", average, allowed, lambda v: 0 < v < 1)
        return Discount(float(average))
    if not is_dataclass(average):
        raise TypeError(f"average must be a frozen dataclass, for checkpoints to hold it, got {average!r}")
    try:
        gammas = np.broadcast_to(average.gamma(np.arange(1.0, 4.0)), 3)
    except ValueError as error:
        raise ValueError(f"{type(average).__name__}.gamma must take a NumPy array as well: {error}") from error
    if not np.all((gammas > 0) & (gammas <= 1)):
        raise ValueError(f"{type(average).__name__}.gamma must be in (0, 1], got {gammas.tolist()} for n = 1, 2, 3")
    return average
