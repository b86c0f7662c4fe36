"""Schedule-free AdamW (Defazio et al., 2024), written from the published algorithm: the peer without a horizon.

    y = (1 − β₁)z + β₁x                     where the gradient g is taken; the parameters are y while training
    v ← β₂v + (1 − β₂)g²
    z ← z − lr·(g/(√v̂ + ε) + λy)            v̂ = v/(1 − β₂^t)
    x ← (1 − c)x + cz                       c = w_t/Σw,  w_t = t^r·(largest lr so far)²

x is what is evaluated: ``averaged()``, as with o2nc's own optimizers.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer


class ScheduleFreeAdamW(Optimizer):
    """AdamW that steps z, takes gradients at y and returns x; the letters are those of the module's equations."""

    def __init__(
        self,
        params: Any,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        r: float = 0.0,
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "r": r}
        super().__init__(params, {**numbers, "count": 0, "largest_lr": 0.0, "weight_sum": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update z, x and y with the gradients at y."""
        for group in self.param_groups:
            y = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in y]
            for p in y:
                if not self.state[p]:
                    self.state[p] = {"z": p.clone(), "x": p.clone(), "v": torch.zeros_like(p)}
            z, x, v = ([self.state[p][key] for p in y] for key in "zxv")
            lr, (beta1, beta2) = group["lr"], group["betas"]
            group["count"] = t = group["count"] + 1
            group["largest_lr"] = max(group["largest_lr"], lr)
            weight = t ** group["r"] * group["largest_lr"] ** 2
            group["weight_sum"] += weight
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, gradients, gradients, 1 - beta2)
            denominators = torch._foreach_div(v, 1 - beta2**t)
            torch._foreach_sqrt_(denominators)
            torch._foreach_add_(denominators, group["eps"])
            torch._foreach_add_(z, y, alpha=-lr * group["weight_decay"])
            torch._foreach_addcdiv_(z, gradients, denominators, -lr)
            torch._foreach_lerp_(x, z, weight / group["weight_sum"] if weight else 0.0)
            torch._foreach_copy_(y, z)
            torch._foreach_lerp_(y, x, beta1)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put x into the parameters inside a ``with`` block, and restore y when leaving it."""
        params = [p for group in self.param_groups for p in group["params"] if self.state[p]]
        before = [p.detach().clone() for p in params]
        with torch.no_grad():
            torch._foreach_copy_(params, [self.state[p]["x"] for p in params])
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(params, before)
