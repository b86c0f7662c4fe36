"""Scale-free follow the regularised leader: Adam without its two knobs.

    Δ_{t+1} = argmin_{‖Δ‖<=R} Σ_{s<=t} ⟨g̃_s, Δ⟩ + ‖Δ‖² sqrt(Σ_{s<=t}‖g̃_s‖²)/(2D) = clip_R(−D M_t / sqrt(v_t)),

and the same by coordinate, Δ_i = −D M_{t,i}/sqrt(v_{t,i}), when ``diagonal``. M_t/sqrt(v_t) does not change when all
gradients are multiplied by a constant. By coordinate it is Adam with β₁ = β, β₂ = β², ε = 0 and no bias
correction, at Adam's lr = D·sqrt((1 + β)/(1 − β)). The clip is on the joint norm in either case.

Regret (SOLO FTRL, Orabona and Pál 2018, at the exponentiated losses), with Q_n = Σ‖g̃_t‖², by norm:

    Reg_n(u) <= (‖u‖²/(2D) + 2.75 D) sqrt(Q_n) + 3.5 min(D sqrt(n − 1), 2R) max_t‖g̃_t‖,   ‖u‖ <= R,

and by coordinate without a clip the sum over coordinates of the same with R = ∞. No bound is claimed by
coordinate with a clip: the joint ball is not a product of intervals.

With ``beta2`` the squares have a discount of their own, v_t = β₂v_{t−1} + g_t², as Adam's have. As long as β₂ >= β²
the regulariser still grows on the exponentiated losses, and the bound holds with β^{−n}sqrt(v_n) in the place of the
sqrt(Q_n) that ‖u‖²/(2D) stands before. That is what is lost: at most a factor sqrt((1 − β²)/(1 − β₂)), for gradients
that do not change. For β₂ < β² nothing is claimed.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from o2nc import checks
from o2nc.persist.private import (
    foreach_addcmul_,
    foreach_clamp_min_,
    foreach_copy_,
    foreach_div_,
    foreach_mul_,
    foreach_sqrt,
)
from o2nc.vector import States, Vector, add_shares_, clip_, combine_, number, scale_, shrinkage, squares


@dataclass(frozen=True)
class ScaleFree:
    """Scale-free FTRL; by coordinate it is Adam.

    Args:
        lr: D >= 0, the scale of Δ: Adam's lr divided by sqrt((1 + β)/(1 − β)), which is 14 at β = 0.99.
        diagonal: by coordinate (default) or by the joint norm.
        radius: R > 0, or inf for no clip.
        beta2: β₂ in (0, 1), the discount of squares; None is β², for which the regret is smallest.

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
    beta2: float | None = None

    def __post_init__(self) -> None:
        checks.non_negative("lr", self.lr)
        checks.flag("diagonal", self.diagonal)
        checks.positive("radius", self.radius, infinite=True)
        if self.beta2 is not None:
            checks.fraction("beta2", self.beta2)

    device_rule: ClassVar[str] = "o2nc.fused.rules.learners:scale_free"

    @property
    def elementwise(self) -> bool:
        """Whether every coordinate is updated by itself, so that `update` may get some parameters alone."""
        return self.diagonal and self.radius == float("inf")

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Keep M_t and v_t (this parameter's share of it when the norm is joint)."""
        v = torch.zeros_like(delta) if self.diagonal else delta.new_zeros((), dtype=torch.float64)
        kept = {"momentum": torch.zeros_like(delta), "sum_squares": v}
        return kept | {"lead": number()} if self.diagonal else kept

    @property
    def recalls(self) -> bool:
        """Whether `last_updates` computes Δ from M and v, so that the optimizer need not store it."""
        return self.diagonal

    def last_updates(self, states: States) -> Vector:
        """Return the last Δ, −lead·M/sqrt(v)."""
        found = [state["momentum"].clone() for state in states]
        _divide_(found, [state["sum_squares"] for state in states])
        scale_(found, [-float(state["lead"]) for state in states])
        return found

    def update(self, deltas: Vector, grads: Vector, states: States, lrs: list[float], beta: float) -> None:
        """Update M and v, then play −D M/sqrt(v)."""
        m = [state["momentum"] for state in states]
        v = [state["sum_squares"] for state in states]
        combine_(m, [beta] * len(m), grads, [1.0] * len(m))
        keep = beta**2 if self.beta2 is None else self.beta2
        foreach_copy_(deltas, m)
        if self.diagonal:
            foreach_mul_(v, keep)
            foreach_addcmul_(v, grads, grads)
            _divide_(deltas, v)
            leads: list[Any] = lrs
            if self.radius != float("inf"):  # what brings Δ = −D·M/sqrt(v) into the ball
                parts = squares(deltas)
                weights = torch.tensor(lrs, dtype=parts.dtype, device=parts.device).square()
                factor = shrinkage((parts * weights).sum(), self.radius)
                leads = [lr * factor for lr in lrs]
            scale_(deltas, [-lead for lead in leads])
            for state, lead in zip(states, leads, strict=True):
                state["lead"].fill_(lead)
        else:
            norm = add_shares_(v, keep, squares(grads)).sqrt().clamp(min=max(map(_floor, deltas)))
            scale_(deltas, [-d / norm for d in lrs])
            clip_(deltas, self.radius)


def _divide_(m: Vector, v: Vector) -> None:
    """Set M ← M/sqrt(v), and 0 where v = 0: there all gradients were 0."""
    root = foreach_sqrt(v)
    foreach_clamp_min_(root, [_floor(t) for t in m])  # keeps an underflown v from dividing
    foreach_div_(m, root)


def _floor(x: Tensor) -> float:
    return float(torch.finfo(x.dtype).tiny ** 0.5)
