"""Prodigy (Mishchenko and Defazio, 2023), written from the published algorithm: the peer without a learning rate.

    m ← β₁m + (1 − β₁)d·g,   v ← β₂v + (1 − β₂)d²·g²
    r ← β₃r + γd²⟨g, x_0 − x⟩,   s ← β₃s + γd²·g            β₃ = √β₂
    x ← x − γd·(m/(√v + dε) + λx)
    d ← max(d, r/‖s‖₁)

γ is lr: 1, or a schedule that begins at 1.
"""

from typing import Any

import torch
from torch.optim import Optimizer


class Prodigy(Optimizer):
    """Adam at a learning rate d that grows with an estimate of the distance; all parameters are in one group."""

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        d: float = 1e-6,
    ) -> None:
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "d": d}
        super().__init__(params, {**numbers, "first": d, "r": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters, then d; the device is waited for once."""
        (group,) = self.param_groups
        x = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in x]
        for p in x:
            if "start" not in self.state[p]:
                self.state[p].update({key: torch.zeros_like(p) for key in "mvs"}, start=p.clone())
        start, m, v, s = ([self.state[p][key] for p in x] for key in ("start", "m", "v", "s"))
        d, lr, (beta1, beta2) = group["d"], group["lr"], group["betas"]
        beta3, weight = beta2**0.5, lr * d * d / group["first"]  # its unit cancels in r/‖s‖₁
        products = torch._foreach_sub(start, x)
        torch._foreach_mul_(products, gradients)
        torch._foreach_mul_(m, beta1)
        torch._foreach_add_(m, gradients, alpha=(1 - beta1) * d)
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, gradients, gradients, (1 - beta2) * d * d)
        torch._foreach_mul_(s, beta3)
        torch._foreach_add_(s, gradients, alpha=weight)
        sums = torch.stack([t.sum() for t in products]).sum(), torch.stack(torch._foreach_norm(s, 1)).sum()
        denominators = torch._foreach_sqrt(v)
        torch._foreach_add_(denominators, d * group["eps"])
        torch._foreach_mul_(x, 1 - lr * d * group["weight_decay"])
        torch._foreach_addcdiv_(x, m, denominators, -lr * d)
        product, size = torch.stack(sums).tolist()
        group["r"] = beta3 * group["r"] + weight * product
        if size > 0:
            group["d"] = max(d, group["r"] / size)
