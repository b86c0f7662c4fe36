"""Follow the regularised leader (dual averaging), with all regularisers and an optional ball.

    Δ_{t+1} = argmin_{‖Δ‖<=D} Σ_{s<=t} ⟨g̃_s, Δ⟩ + Σ_{s<=t+1} (μ_s/2)‖Δ‖² + ‖Δ‖²/(2η_{t+1})
            = clip_D(−h β M_t / (1 + h μ W_{t+1})),      η_t = β^t h,  W_t = Σ_{s<=t} β^{t−s}.

Without decay and ball this is `OGD` with κ = 1.

Regret, for ‖u‖ <= D and nonincreasing η_t (proved by the usual telescoping of the leader's values):

    Reg_n(u) <= ‖u‖²/(2η_n) + ½ Σ_{t<=n} ‖g̃_t‖² / (1/η_t + Σ_{s<=t} μ_s).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.persist.private import foreach_copy_
from o2nc.vector import States, Vector, clip_, combine_, number, scale_


@dataclass(frozen=True)
class FTRL:
    """Dual averaging with quadratic regularisers.

    Args:
        lr: η >= 0, as in `OGD`.
        decay: μ >= 0.
        radius: D > 0, or inf for no ball.

    Example:
        >>> import torch
        >>> learner, delta = FTRL(lr=0.1), torch.zeros(2)
        >>> states = [learner.init(delta)]
        >>> for _ in range(3):
        ...     learner.update([delta], [torch.tensor([1.0, -2.0])], states, [learner.lr], beta=1.0)
        >>> delta  # −lr times the sum of three gradients
        tensor([-0.3000,  0.6000])
    """

    lr: float
    decay: float = 0.0
    radius: float = float("inf")

    def __post_init__(self) -> None:
        checks.non_negative("lr", self.lr)
        checks.non_negative("decay", self.decay)
        checks.positive("radius", self.radius, infinite=True)

    @property
    def elementwise(self) -> bool:
        """Whether every coordinate is updated by itself, so that `update` may get some parameters alone."""
        return self.radius == float("inf")

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Keep M_t and the sum of the regularisers' weights W_{t+1} (W_1 = 1)."""
        return {"momentum": torch.zeros_like(delta), "decay_weight": number(1.0)}

    def update(self, deltas: Vector, grads: Vector, states: States, lrs: list[float], beta: float) -> None:
        """Update M and W, then play the leader."""
        for state in states:
            state["decay_weight"].mul_(beta).add_(1)
        m = [state["momentum"] for state in states]
        combine_(m, [beta] * len(m), grads, [1.0] * len(m))
        foreach_copy_(deltas, m)
        leader = [
            -h * beta / (1 + h * self.decay * float(state["decay_weight"]))
            for h, state in zip(lrs, states, strict=True)
        ]
        scale_(deltas, leader)
        clip_(deltas, self.radius)
