"""Resonance traps: momentum whose steps match the period of the slope sees one phase of it, for ever.

A trap f rises gently for most of its period 1 and falls steeply in the rest. Its mean slope is zero: over a whole
period nothing is gained or lost. But an optimizer whose steps are exactly 1 long lands at the same phase each time.
It sees the gentle slope only, never the steep fall between, and takes the sample for the whole: the momentum buffer
holds that one slope, lr times the slope is again 1, and so it walks on. What it counts as steady descent is none at
all; tilt f a little, as the climber does, and it walks uphill. The ramp makes the orbit attract: a step too long
lands where the slope corrects it, so small noise does not free the optimizer either. A random scalar s ~ Exp(1) on
every step does: the iterates then land at all phases, and the slopes they see average to the true one.

With th the share of the fall, a the slope, r the ramp, L = 1 − th the length of the rise, u = x mod 1:

    f'(x) = a(1 + r(2u/L − 1))   and   f(x) = au(1 + r(u/L − 1))           on the rise, 0 <= u < L,
    f'(x) = −aL/th               and   f(x) = (aL/th)(1 − u)               on the fall, L <= u < 1,

    f(x + 1) = f(x),   |f'| <= G = max(a(1 + r), aL/th).

The climber in d dimensions adds a valley around 0 that is too shallow to be seen from within the trap:

    F(x) = Σ_i (f(x_i) + 0.1|x_i|)/√d,   th = 0.2, a = 0.25, r = 0.6.

At −4.6, in the middle of a rise, f' = 0.25 and the valley's slope is −0.1, so a step with lr = √d/0.15 moves every
coordinate by −1, one period away from the minimum: F grows by 0.1√d per step, without end. In several dimensions the
coordinates start up to 0.05 off, each at a phase of its own, and the orbit draws them all in.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from o2nc import checks
from o2nc.problems.separable import Separable


@dataclass(frozen=True)
class Trap:
    """The periodic trap f of the module's docstring, applied to every element of a tensor.

    At a kink, slope and autograd are those on the right of it.

    Args:
        threshold: th, the share of the period on which f falls, in (0, 1).
        slope: a > 0, the mean slope of the rise.
        ramp: r in [0, 1]; the slope of the rise grows from a(1 − r) to a(1 + r).

    Example:
        >>> trap = Trap(threshold=0.2, slope=0.25)
        >>> x = torch.tensor([0.4, 0.9, 1.4], dtype=torch.float64)
        >>> trap.value(x)
        tensor([0.1000, 0.1000, 0.1000], dtype=torch.float64)
        >>> trap.gradient(x)
        tensor([ 0.2500, -1.0000,  0.2500], dtype=torch.float64)
    """

    threshold: float
    slope: float
    ramp: float = 0.0

    def __post_init__(self) -> None:
        checks.known(**vars(self))

    @property
    def rise(self) -> float:
        """L = 1 − th, the length of the rise."""
        return 1 - self.threshold

    @property
    def fall(self) -> float:
        """aL/th, how steep the fall is: as much down as the rise is up."""
        return self.slope * self.rise / self.threshold

    @property
    def lipschitz(self) -> float:
        """G, the largest |f'|."""
        return max(self.slope * (1 + self.ramp), self.fall)

    def value(self, x: Tensor) -> Tensor:
        """Return f of every element; autograd through it agrees with `gradient`."""
        u = torch.remainder(x, 1)
        up = self.slope * u * (1 + self.ramp * (u / self.rise - 1))
        return torch.where(u >= self.rise, self.fall * (1 - u), up)

    def gradient(self, x: Tensor) -> Tensor:
        """Return f' of every element, outside of autograd."""
        u = torch.remainder(x.detach(), 1)
        up = self.slope * (1 + self.ramp * (2 * u / self.rise - 1))
        return torch.where(u >= self.rise, -self.fall, up)  # so that nan stays nan


class Trapped(Separable):
    """F(x) = Σ_i (f(x_i) + v|x_i|)/√d: a trap in a valley of slope v; the least value is 0 at 0."""

    valley: ClassVar[float] = 0.0
    trap: Trap

    @property
    def lr(self) -> float:
        """√d/(a − v), with which a step at slope a away from the minimum moves a coordinate by one period."""
        return math.sqrt(self.dimension) / (self.trap.slope - self.valley)

    @property
    def lipschitz(self) -> float:
        """The largest ‖∇F‖, the same in every dimension."""
        return self.trap.lipschitz + self.valley

    def _f(self, x: Tensor) -> Tensor:
        return self.trap.value(x) + self.valley * x.abs()

    def _slope(self, x: Tensor) -> Tensor:  # at a kink of the trap, the limit from the right
        return self.trap.gradient(x) + self.valley * x.sign()


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
        trap: the function f.
        momentum: β̃ in [0, 1).
        position: where every coordinate starts.

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
    trap: Trap
    momentum: float
    position: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.trap, Trap):
            raise TypeError(f"trap must be a Trap, got {self.trap!r} of type {type(self.trap).__name__}")
        checks.number("position", self.position, "a finite number", lambda _: True)

    @classmethod
    def buffer(cls, dimension: int = 1) -> "Resonance":
        """Return the zigzag of slopes ±1, with β̃ = 0.9 and a buffer that begins with the first gradient."""
        return cls(dimension, Trap(threshold=0.5, slope=1.0), momentum=0.9, position=0.1)

    @classmethod
    def zero(cls, dimension: int = 1, momentum: float = 0.9) -> "Resonance":
        """Return a trap for a buffer that begins with 0, for β̃ = 0.9 or 0.5; the fall has slope −1."""
        checks.choice("momentum", momentum, (0.9, 0.5))
        threshold, position = (0.072, 0.9089) if momentum == 0.9 else (0.45, 0.525)
        return cls(dimension, Trap(threshold, slope=threshold / (1 - threshold)), momentum, position)

    @classmethod
    def locked(cls, dimension: int = 1) -> "Resonance":
        """Return the climber's trap without its valley, with β̃ = 0.9."""
        return cls(dimension, Climber.trap, momentum=0.9, position=0.4)

    def start(self) -> Tensor:
        """Return x_0, in float64."""
        return torch.full((self.dimension,), float(self.position), dtype=torch.float64)


@dataclass(frozen=True)
class Climber(Trapped):
    """F(x) = Σ_i (f(x_i) + 0.1|x_i|)/√d: a trap in a shallow valley, with the least value 0 at 0.

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
    trap = Trap(threshold=0.2, slope=0.25, ramp=0.6)  # one for all, and so no field
    valley: ClassVar[float] = 0.1

    def start(self) -> Tensor:
        """Return x_0, in float64: −4.6, spread over −4.65 to −4.55 when there are several coordinates."""
        spread = 0.05 if self.dimension > 1 else 0.0
        return -4.6 + torch.linspace(-spread, spread, self.dimension, dtype=torch.float64)
