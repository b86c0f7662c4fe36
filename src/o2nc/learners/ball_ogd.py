"""Projected online gradient descent on a ball, the learner of the original O2NC.

    Δ_{t+1} = Π_D(Δ_t − η_t(g̃_t + μ_t Δ_t)) = Π_D(Δ_t − h(g_t + μΔ_t)),     η_t = β^t h,

Π_D the projection on ‖Δ‖ <= D in the joint norm: the powers of β cancel and no discount is left. (A schedule's lr at
call t is h_t here; the other learners, which rescale Δ, use it as h_{t+1}.)

Regret, for ‖u‖ <= D, one lr for all parameters, nonincreasing η_t:

    Reg_n(u) <= 2D²/η_n + ½ Σ_{t<=n} η_t‖g̃_t + μ_t Δ_t‖².
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from o2nc import checks
from o2nc.vector import States, Vector, clip_, combine_


@dataclass(frozen=True)
class BallOGD:
    """Projected online gradient descent on the ball of radius D.

    Its lr is how fast Δ turns, not how long it is: lr = 0 keeps the last Δ, and the parameters go on moving by it.

    Args:
        lr: η >= 0.
        radius: D > 0, the longest Δ in the joint norm of all parameters, or inf for no ball.
        decay: μ >= 0.

    Example:
        >>> import torch
        >>> learner, delta = BallOGD(lr=1.0, radius=0.5), torch.zeros(2)
        >>> learner.update([delta], [torch.tensor([3.0, -4.0])], [learner.init(delta)], [learner.lr], beta=1.0)
        >>> delta  # −(3, −4), shortened to 0.5
        tensor([-0.3000,  0.4000])
    """

    lr: float
    radius: float
    decay: float = 0.0

    def __post_init__(self) -> None:
        checks.non_negative("lr", self.lr)
        checks.positive("radius", self.radius, infinite=True)
        checks.non_negative("decay", self.decay)

    @property
    def elementwise(self) -> bool:
        """Whether every coordinate is updated by itself, so that `update` may get some parameters alone."""
        return self.radius == float("inf")

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Δ is the whole state."""
        return {}

    def update(self, deltas: Vector, grads: Vector, states: States, lrs: list[float], beta: float) -> None:
        """Step, then project."""
        combine_(deltas, [1 - h * self.decay for h in lrs], grads, [-h for h in lrs])
        clip_(deltas, self.radius)
