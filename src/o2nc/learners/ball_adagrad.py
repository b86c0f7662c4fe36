"""Projected online gradient descent on a ball with AdaGrad's step size: no Lipschitz constant, no noise level.

    Δ_{t+1} = Π_D(Δ_t − η_t g̃_t),     η_t = √2·D / sqrt(Σ_{s<=t} ‖g̃_s‖²),

Π_D the projection on ‖Δ‖ <= D, all norms joint. As η_t g̃_t = √2·D g_t/sqrt(v_t), no power of β is left:

    Δ_{t+1} = Π_D(Δ_t − √2·D g_t/sqrt(v_t)),     v_t = β²v_{t−1} + ‖g_t‖².

The step sees its own gradient, which is what `AdaGrad` and `ScaleFree` miss; the ball bounds Δ whatever comes. Where
parameters have scales of their own, D_p, the ball is Σ_p ‖Δ_p‖²/D_p² <= 1, and the rule is the same in y_p = Δ_p/D_p:

    Δ_p ← Δ_p − √2·D_p² g_p/sqrt(Σ_q D_q² v_q).

Regret, for ‖u‖ <= D and every sequence, with Q_n = Σ_{t<=n} ‖g̃_t‖² = β^{−2n}v_n:

    Reg_n(u) <= 2√2·D·sqrt(Q_n).

docs/paper.md has the proof.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.vector import States, Vector, add_shares_, combine_, joint, scale_, shrinkage, squares


@dataclass(frozen=True)
class BallAdaGrad:
    """Projected online gradient descent on the ball of radius D, at a rate that the gradients themselves set.

    `o2nc.theory.adaptive_plan` chooses D without knowing G and σ.

    Args:
        lr: D >= 0, the longest Δ in the joint norm of all parameters (not a step size: it has the units of a
            parameter).

    Example:
        >>> import torch
        >>> learner, delta = BallAdaGrad(lr=0.1), torch.zeros(2)
        >>> states = [learner.init(delta)]
        >>> learner.update([delta], [torch.tensor([3e6, -4e6])], states, [learner.lr], beta=1.0)
        >>> delta, delta.norm()  # √2·D beyond the ball, so back on it, however long the gradient is
        (tensor([-0.0600,  0.0800]), tensor(0.1000))
    """

    lr: float

    def __post_init__(self) -> None:
        checks.non_negative("lr", self.lr)

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Keep this parameter's share of v_t."""
        return {"sum_squares": delta.new_zeros((), dtype=torch.float64)}

    def update(self, deltas: Vector, grads: Vector, states: States, lrs: list[float], beta: float) -> None:
        """Update v, step, then project."""
        v = [state["sum_squares"] for state in states]
        add_shares_(v, beta**2, squares(grads))
        root = joint([d**2 * t for d, t in zip(lrs, v, strict=True)]).sqrt()
        # where v = 0 all gradients were 0; the floor keeps an underflown v from dividing
        floor = max(torch.finfo(t.dtype).tiny for t in deltas) ** 0.5
        steps = [math.sqrt(2) * d / (root / d).clamp(min=floor) if d else torch.zeros_like(root) for d in lrs]
        combine_(deltas, [1.0] * len(deltas), grads, [-step for step in steps])
        inverse = torch.tensor([1 / d if d else 0.0 for d in lrs], dtype=torch.float64, device=root.device)
        back = shrinkage((squares(deltas).sqrt() * inverse).square().sum(), 1.0)
        scale_(deltas, [back if d else torch.zeros_like(back) for d in lrs])
