"""Scale-free follow the regularised leader: Adam without its two knobs.

    Δ_{t+1} = argmin_{‖Δ‖<=R} Σ_{s<=t} ⟨g̃_s, Δ⟩ + ‖Δ‖² sqrt(Σ_{s<=t}‖g̃_s‖²)/(2D) = clip_R(−D M_t / sqrt(v_t)),

and the same by coordinate, Δ_i = −D M_{t,i}/sqrt(v_{t,i}), when ``diagonal``. M_t/sqrt(v_t) does not change when all
gradients are multiplied by a constant. By coordinate it is Adam with β₁ = β, β₂ = β², ε = 0 and no bias
correction, at Adam's lr = D·sqrt((1 + β)/(1 − β)). The clip is on the joint norm in either case.

Regret (SOLO FTRL, Orabona and Pál 2018, at the exponentiated losses), with Q_n = Σ‖g̃_t‖², by norm:

    Reg_n(u) <= (‖u‖²/(2D) + 2.75 D) sqrt(Q_n) + 3.5 min(D sqrt(n − 1), 2R) max_t‖g̃_t‖,   ‖u‖ <= R,

and by coordinate without a clip the sum over coordinates of the same with R = ∞. No bound is claimed by
coordinate with a clip: the joint ball is not a product of intervals.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.torch_support.private import (
    foreach_addcmul_,
    foreach_clamp_min_,
    foreach_copy_,
    foreach_div_,
    foreach_mul_,
    foreach_sqrt,
)
from o2nc.vector import States, Vector, add_shares_, clip_, combine_, scale_, squares


@dataclass(frozen=True)
class ScaleFree:
    """Scale-free FTRL; by coordinate it is Adam.

    Args:
        lr: D >= 0, the scale of Δ: Adam's lr divided by sqrt((1 + β)/(1 − β)), which is 14 at β = 0.99.
        diagonal: by coordinate (default) or by the joint norm.
        radius: R > 0, or inf for no clip.

    Example:
        >>> import torch
        >>> learner, delta = ScaleFree(lr=0.1), torch.zeros(2)
        >>> learner.update([delta], [torch.tensor([1e-6, -1e6])], [learner.init(delta)], [learner.lr], beta=0.9)
        >>> delta  # as Adam: by sign at first, whatever the scale of a coordinate
        tensor([-0.1000,  0.1000])
    """

    lr: float
    diagonal: bool = True
    radius: float = float("inf")

    def __post_init__(self) -> None:
        checks.non_negative("lr", self.lr)
        checks.flag("diagonal", self.diagonal)
        checks.positive("radius", self.radius, infinite=True)

    @property
    def elementwise(self) -> bool:
        """Whether every coordinate is played by itself."""
        return self.diagonal and self.radius == float("inf")

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Keep M_t and v_t (this parameter's share of it when the norm is joint)."""
        v = torch.zeros_like(delta) if self.diagonal else delta.new_zeros((), dtype=torch.float64)
        return {"momentum": torch.zeros_like(delta), "sum_squares": v}

    def update(self, deltas: Vector, grads: Vector, states: States, lrs: list[float], beta: float) -> None:
        """Bring M and v up to date, then play −D M/sqrt(v)."""
        m = [state["momentum"] for state in states]
        v = [state["sum_squares"] for state in states]
        combine_(m, [beta] * len(m), grads, [1.0] * len(m))
        # where v = 0 all gradients were 0 and so is M; the floor keeps an underflown v from dividing
        floor = [torch.finfo(t.dtype).tiny ** 0.5 for t in deltas]
        foreach_copy_(deltas, m)
        if self.diagonal:
            foreach_mul_(v, beta**2)
            foreach_addcmul_(v, grads, grads)
            root = foreach_sqrt(v)
            foreach_clamp_min_(root, floor)
            foreach_div_(deltas, root)
            scale_(deltas, [-d for d in lrs])
        else:
            norm = add_shares_(v, beta**2, squares(grads)).sqrt().clamp(min=max(floor))
            scale_(deltas, [-d / norm for d in lrs])
        clip_(deltas, self.radius)
