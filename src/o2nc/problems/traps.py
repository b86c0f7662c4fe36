"""Resonance traps: momentum whose steps match the period of the slope sees one phase of it, for ever.

A trap f rises gently for most of its period 1 and falls steeply in the rest; its mean slope is zero. An optimizer
whose steps are exactly 1 long lands at the same phase each time and sees the gentle slope only: the momentum buffer
holds it, lr times the slope is again 1, and so it walks on; tilt f a little, as the climber does, and it walks
uphill. The ramp makes the orbit attract: a step too long lands where the slope corrects it, so small noise does not
free the optimizer either. A random scalar s ~ Exp(1) on every step does: the iterates then land at all phases.

With th the share of the fall, a the slope, r the ramp, L = 1 − th the length of the rise, u = x mod 1:

    f'(x) = a(1 + r(2u/L − 1))   and   f(x) = au(1 + r(u/L − 1))           on the rise, 0 <= u < L,
    f'(x) = −aL/th               and   f(x) = (aL/th)(1 − u)               on the fall, L <= u < 1,

    f(x + 1) = f(x),   |f'| <= G = max(a(1 + r), aL/th).

The climber adds a valley around 0 that is too shallow to be seen from within the trap.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from o2nc import checks
from o2nc.problems.separable import Separable


class Trapped(Separable):
    """F(x) = Σ_i (f(x_i) + v|x_i|)/√d: a trap f in a valley of slope v; the least value is 0 at 0."""

    threshold: float  # th
    slope: float  # a
    ramp: float  # r
    momentum: float  # β̃ of what is held
    valley: ClassVar[float] = 0.0  # v

    @property
    def lr(self) -> float:
        """√d/(a − v), with which a step at slope a away from the minimum moves a coordinate by one period."""
        return math.sqrt(self.dimension) / (self.slope - self.valley)

    @property
    def lipschitz(self) -> float:
        """The largest ‖∇F‖, the same in every dimension."""
        return max(self.slope * (1 + self.ramp), self._fall) + self.valley

    @property
    def _fall(self) -> float:  # as much down as the rise is up
        return self.slope * (1 - self.threshold) / self.threshold

    def _f(self, x: Tensor) -> Tensor:
        u, rise = torch.remainder(x, 1), 1 - self.threshold
        up = self.slope * u * (1 + self.ramp * (u / rise - 1))
        return torch.where(u >= rise, self._fall * (1 - u), up) + self.valley * x.abs()

    def _slope(self, x: Tensor) -> Tensor:  # at a kink of the trap, the limit from the right
        u, rise = torch.remainder(x, 1), 1 - self.threshold
        up = self.slope * (1 + self.ramp * (2 * u / rise - 1))
        return torch.where(u >= rise, -self._fall, up) + self.valley * x.sign()  # nan is not >= rise and stays nan


@dataclass(frozen=True)
class Resonance(Trapped):
    """F(x) = Σ_i f(x_i)/√d with the step, the momentum and the start that stay in the trap f for ever.

    With lr = √d/a and a buffer that is the mean m ← β̃m + (1 − β̃)g, a coordinate that sees f' = a for long moves
    by −1 per step. Which buffer and which start do so from the first step on is the trap's own:

    * `buffer`: the buffer begins with the first gradient (torch's, with dampening = momentum). Then m = a at once,
      every step is 1 long, and every phase of the rise will do.
    * `zero`: the buffer begins with 0, and the t-th step is only 1 − β̃^t long: by then the phase has moved on by
      β̃ + … + β̃^t, in all β̃/(1 − β̃). The fall is so short, and the start so placed, that each landing misses it.
    * `locked`: as `buffer`, but with the ramp that makes the phase in the middle of the rise attract.

    ‖∇F‖ <= max |f'|, attained; inf F = 0, attained at 0.

    Args:
        dimension: d >= 1.
        threshold: th, the share of the period on which f falls, in (0, 1).
        slope: a > 0, the mean slope of the rise.
        momentum: β̃ in [0, 1).
        position: where every coordinate starts.
        ramp: r in [0, 1]; the slope of the rise grows from a(1 − r) to a(1 + r).

    Example:
        >>> problem = Resonance.buffer(dimension=1)
        >>> x = problem.start()
        >>> for _ in range(3):
        ...     print(f"f({x.item():.1f}) = {problem.value(x).item():.1f}, f' = {problem.gradient(x).item():.0f}")
        ...     x = x - problem.lr * problem.gradient(x)
        f(0.1) = 0.1, f' = 1
        f(-0.9) = 0.1, f' = 1
        f(-1.9) = 0.1, f' = 1
    """

    dimension: int
    threshold: float
    slope: float
    momentum: float
    position: float
    ramp: float = 0.0

    @classmethod
    def buffer(cls, dimension: int = 1) -> "Resonance":
        """Return the zigzag of slopes ±1, with β̃ = 0.9 and a buffer that begins with the first gradient."""
        return cls(dimension, threshold=0.5, slope=1.0, momentum=0.9, position=0.1)

    @classmethod
    def zero(cls, dimension: int = 1, momentum: float = 0.9) -> "Resonance":
        """Return a trap for a buffer that begins with 0, for β̃ = 0.9 or 0.5; the fall has slope −1."""
        checks.choice("momentum", momentum, (0.9, 0.5))
        threshold, position = (0.072, 0.9089) if momentum == 0.9 else (0.45, 0.525)
        return cls(dimension, threshold, threshold / (1 - threshold), momentum, position)

    @classmethod
    def locked(cls, dimension: int = 1) -> "Resonance":
        """Return the climber's trap without its valley, with β̃ = 0.9."""
        return cls(dimension, Climber.threshold, Climber.slope, Climber.momentum, position=0.4, ramp=Climber.ramp)

    def start(self) -> Tensor:
        """Return x_0, in float64."""
        return torch.full((self.dimension,), float(self.position), dtype=torch.float64)


@dataclass(frozen=True)
class Climber(Trapped):
    """F(x) = Σ_i (f(x_i) + 0.1|x_i|)/√d, th = 0.2, a = 0.25, r = 0.6: a trap in a shallow valley; 0 is least, at 0.

    At −4.6, in the middle of a rise, f' = 0.25 and the valley's slope is −0.1, so a step with `lr` moves every
    coordinate by −1, one period away from the minimum: F grows by 0.1√d per step, without end. In several dimensions
    the coordinates start up to 0.05 off, each at a phase of its own, and the orbit draws them all in.

    Args:
        dimension: d >= 1.

    Example:
        >>> climber = Climber(dimension=1)
        >>> x = climber.start()
        >>> for _ in range(3):  # gradient descent, uphill
        ...     print(f"F({x.item():.1f}) = {climber.value(x).item():.2f}")
        ...     x = x - climber.lr * climber.gradient(x)
        F(-4.6) = 0.53
        F(-5.6) = 0.63
        F(-6.6) = 0.73
    """

    dimension: int
    threshold, slope, ramp, momentum = 0.2, 0.25, 0.6, 0.9  # the same for all, and so no fields
    valley: ClassVar[float] = 0.1

    def start(self) -> Tensor:
        """Return x_0, in float64: −4.6, spread over −4.65 to −4.55 when there are several coordinates."""
        spread = 0.05 if self.dimension > 1 else 0.0
        return -4.6 + torch.linspace(-spread, spread, self.dimension, dtype=torch.float64)
