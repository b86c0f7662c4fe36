"""Composite online mirror descent with AdaGrad's step size, by the joint norm or by coordinate.

    η_{t+1} = D / sqrt(Σ_{s<=t} ‖g̃_s‖²) = β^{t+1} e_{t+1},     e_{t+1} = D/(β sqrt(v_t)),
    Δ_{t+1} = (Δ_t − e_t g_t) / (1 + e_t μ/β + κ(e_t/(β e_{t+1}) − 1)),     e_1 := β e_2 (that is, η_1 = η_2).

``diagonal=True`` reads v, e and the division coordinate by coordinate. With κ = 1 and μ = 0 it is `ScaleFree`.
While all gradients so far are zero, Δ stays 0.

Regret, for every sequence (by coordinate, a sum over coordinates):

    κ = 1:  Reg_n(u) <= ‖u‖²/(2η_n) + ½ Σ_{t<=n} η_t‖g̃_t‖²
    κ = 2:  Reg_n(u) <= (2/η_{n+1} + μ_{n+1}/2)‖u‖² + ½ Σ_{t<=n} η_t‖g̃_t‖².

The second term is at most 1.5·D·sqrt(Σ‖g̃_t‖²) when no ‖g̃_t‖² exceeds the sum of the earlier ones threefold; a
gradient much larger than all before it is the known weakness of a step size that does not see it coming.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.persist.private import foreach_addcmul_, foreach_mul_
from o2nc.vector import States, Vector, add_shares_, joint, number, squares


@dataclass(frozen=True)
class AdaGrad:
    """Composite online mirror descent whose step size falls with the gradients seen.

    Args:
        lr: D >= 0, the scale of Δ (not a step size: it has the units of a parameter).
        decay: μ >= 0.
        kappa: 1 or 2, as in `OGD`.
        diagonal: one step size per coordinate instead of one for the joint norm.

    Example:
        >>> import torch
        >>> learner, delta = AdaGrad(lr=0.1), torch.zeros(2)
        >>> learner.update([delta], [torch.tensor([3.0, -4.0])], [learner.init(delta)], [learner.lr], beta=1.0)
        >>> delta, delta.norm()  # the first Δ has length D, however long the gradient is
        (tensor([-0.0600,  0.0800]), tensor(0.1000))
    """

    lr: float
    decay: float = 0.0
    kappa: int = 1
    diagonal: bool = False

    def __post_init__(self) -> None:
        checks.non_negative("lr", self.lr)
        checks.non_negative("decay", self.decay)
        checks.choice("kappa", self.kappa, (1, 2))
        checks.flag("diagonal", self.diagonal)

    @property
    def elementwise(self) -> bool:
        """Whether every coordinate is updated by itself, so that `update` may get some parameters alone."""
        return self.diagonal

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Keep v_t (this parameter's share of it when the norm is joint) and the last D."""
        v = torch.zeros_like(delta) if self.diagonal else delta.new_zeros((), dtype=torch.float64)
        return {"sum_squares": v, "last_lr": number()}

    def update(self, deltas: Vector, grads: Vector, states: States, lrs: list[float], beta: float) -> None:
        """Update v, then take the mirror step with e_t from before and e_{t+1} from after."""
        sums = [state["sum_squares"] for state in states]
        if self.diagonal:
            before = [t.clone() for t in sums]
            foreach_mul_(sums, beta**2)
            foreach_addcmul_(sums, grads, grads)
            after = sums
        else:
            before = [joint(sums)] * len(sums)
            after = [add_shares_(sums, beta**2, squares(grads))] * len(sums)
        for delta, g, state, v_t, v_next, scale in zip(deltas, grads, states, before, after, lrs, strict=True):
            last = float(state["last_lr"]) or scale
            state["last_lr"].fill_(scale)
            if scale == 0:
                delta.zero_()
                continue
            # below the square root of the smallest number v itself has underflowed: as if no gradient came
            floor = torch.finfo(delta.dtype).tiny ** 0.5
            v, v_next = v_t.to(delta), v_next.to(delta)
            e_next = scale / (beta * v_next.sqrt().clamp(min=floor))
            e = torch.where(v > 0, last / (beta * v.sqrt().clamp(min=floor)), beta * e_next)
            growth = e / (beta * e_next) - 1
            growth = growth.clamp_(min=0.0) if self.kappa == 2 else growth
            delta.sub_(e * g).div_(1 + e * self.decay / beta + self.kappa * growth)
            del e, e_next, growth  # before those of the next tensor are made
