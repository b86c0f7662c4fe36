"""The washboard: a gentle slope among ripples too fine to be seen, where momentum is as slow as it is proved to be.

The energy theorem (docs/paper.md) bounds what plain momentum with random scaling can leave of the gradient after N
steps. Its proof is nearly an equality where all of this holds at once: every gradient has the full length G, the
momentum buffer has the same length at all times, and the run uses up the whole gap, no sooner than at its end.

    F(x) = a|x_1| + Σ_{i>1} f(x_i),     f a zigzag of slopes ±z and period P,     a² + (d − 1)z² = G².

With P far below the length of a step, a coordinate lands at a random phase each time, and what it sees of f' is a
fresh sign: nothing is to be gained there, and nothing tells it from a gradient. In many dimensions the sum of those
signs has nearly constant length. Only x_1 descends, by ηβa/α a step (η the learner's lr, α = 1 − β), from F*/a to 0;
so the slope that uses up the gap F* in N steps, of which the first ones are shorter, is

    a² = αF*/(ηβ Σ_{t<=N} (1 − β^{t−1})).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from o2nc import checks
from o2nc.problems.problem import Problem
from o2nc.problems.traps import Trap

_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples are spread evenly over all phases
_FINE = 1e-4  # period over what one gradient moves a coordinate by


@dataclass(frozen=True)
class Washboard(Problem):
    """F(x) = a|x_1| + Σ_{i>1} f(x_i): a slope, and zigzags of period P in all other dimensions.

    The least value is 0. `against` makes the one that is hardest for a given run; its numbers need float64.

    Args:
        dimension: d >= 2; the more, the less chance is left.
        slope: a in (0, G), of the part that leads down.
        gap: F* = F(start), more than the zigzags' G·P·√(d − 1)/2.
        lipschitz: G > 0, the length of every gradient.
        period: P > 0.

    Example:
        >>> problem = Washboard.against(lr=1e-3, beta=0.97, steps=2000)
        >>> g = problem.gradient(problem.start())
        >>> f"{problem.value(problem.start()).item():.3f} {g.norm().item():.3f} {g[0].item():.3f}"
        '1.000 1.000 0.125'
    """

    dimension: int
    slope: float
    gap: float = 1.0
    lipschitz: float = 1.0
    period: float = 1e-9

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("dimension", self.dimension, 2)
        allowed = f"a number in (0, lipschitz) = (0, {self.lipschitz:g})"
        checks.number("slope", self.slope, allowed, lambda v: 0 < v < self.lipschitz)
        least = self.lipschitz * self.period * math.sqrt(self.dimension - 1) / 2
        checks.number("gap", self.gap, f"a finite number > {least:g}, the height of the zigzags", lambda v: v > least)

    @classmethod
    def against(
        cls,
        lr: float,
        beta: float,
        steps: int,
        *,
        gap: float = 1.0,
        lipschitz: float = 1.0,
        dimension: int = 150,
    ) -> "Washboard":
        """Return the washboard that a run of Algorithm 2 with `OGD` and no decay uses up in ``steps`` steps.

        Args:
            lr: η > 0, the learner's: SGD's lr divided by β.
            beta: β in (0, 1).
            steps: N >= 2.
            gap: F* > 0.
            lipschitz: G > 0.
            dimension: d >= 2.
        """
        checks.known(lr=lr, beta=beta)
        checks.integer("steps", steps, 2)
        alpha = 1 - beta
        moves = steps - (1 - beta**steps) / alpha  # Σ_{t<=N} (1 − β^{t−1})
        # a run that is too short to use up the gap gets the steepest slope that leaves something to the zigzags
        slope = min(math.sqrt(alpha * gap / (lr * beta * moves)), 0.99 * lipschitz)
        ripple = math.sqrt((lipschitz**2 - slope**2) / (dimension - 1))
        return cls(dimension, slope, gap, lipschitz, _FINE * lr * beta * ripple)

    @property
    def ripple(self) -> Trap:
        """The zigzag f, with slopes ±z."""
        z = math.sqrt((self.lipschitz**2 - self.slope**2) / (self.dimension - 1))
        return Trap(threshold=0.5, slope=z, period=self.period)

    def start(self) -> Tensor:
        """Return x_0, in float64: every zigzag at a phase of its own, x_1 as far up as the gap allows."""
        phases = (_GOLDEN * torch.arange(1, self.dimension, dtype=torch.float64)) % 1
        x = self.period * phases
        height = self.gap - self.ripple.value(x).sum()
        return torch.cat([height.unsqueeze(0) / self.slope, x])

    def _value(self, x: Tensor) -> Tensor:
        return self.slope * x[..., 0].abs() + self.ripple.value(x[..., 1:]).sum(-1)

    def _gradient(self, x: Tensor) -> Tensor:
        return torch.cat([self.slope * x[..., :1].sign(), self.ripple.gradient(x[..., 1:])], dim=-1)
