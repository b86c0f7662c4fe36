"""What a law of s other than Exp(1) costs along a run, measured: G·L·‖Δ_{t+1} − Δ_t‖ a step.

Without weights a run's decrease is what its gradients say, F(x_N) − F(x_0) = Σ_t ⟨∇F(x_t), Δ_t⟩ in the mean, up to

    G·L·(Σ_{t<N} ‖Δ_{t+1} − Δ_t‖ + ‖Δ_N‖),

the price of the law's corrector, for every learner (docs/paper.md). For momentum a theorem bounds the sum; for AdamW
and others it is a measurement, which `CertificateLogger` makes if it is asked to. Δ_{t+1} is (x_{t+1} − x_t)/s_{t+1},
so one term needs three iterates in a row. One term is measured in every window of so many steps, at a place that is
drawn, uniformly: times the length of the window it is an unbiased estimate of the window's sum. In all other steps
nothing is done or kept.
"""

import math
from operator import is_not
from typing import Any

import torch
from torch import Tensor

from o2nc import scaling
from o2nc.optimizers.base import CertifiedOptimizer
from o2nc.optimizers.readout import totals
from o2nc.scaling import CHANGES, uniform
from o2nc.vector import real, squares, wide


class Corrector:
    """Measures one term of the price in every window of steps.

    Args:
        optimizer: whose law it is.
        every: the length of a window.
        lipschitz: G, or None for the largest gradient's norm that is met where a term is measured.

    Raises:
        ValueError: the optimizer's law has no price, or an infinite one.
    """

    def __init__(self, optimizer: CertifiedOptimizer, every: int, lipschitz: float | None) -> None:
        law = optimizer._groups[0].get("scaling")
        if not _has_price(law):
            raise ValueError(
                "corrector=True is for random scaling by a law without weights that tells its price "
                f"(without scaling the price is infinite), got scaling={law!r}"
            )
        self.every, self._given = every, lipschitz
        self.lipschitz = lipschitz or 0.0
        self.forget()

    def forget(self) -> None:
        """Begin anew: what comes next is another run."""
        self._step, self._found = -1, math.nan
        self._params: list[Tensor] = []
        self._x: list[Tensor] | None = None
        self._delta: list[Tensor] | None = None

    def take(self) -> tuple[float, float]:
        """Return G and the price of a step of this window, nan if none was measured since this was last called."""
        found, self._found = self._found, math.nan
        return self.lipschitz, self.lipschitz * found

    def next(self, optimizer: CertifiedOptimizer, step: int) -> int:
        """Return the next step after which there is something to look at."""
        now = max(step - 1, 0) // self.every + 1
        ends = (self._end(optimizer, window) for window in range(now, now + 4))
        return min(at for end in ends for at in (end - 2, end - 1, end) if at > step)

    def _end(self, optimizer: CertifiedOptimizer, window: int) -> int:
        """Return the last of the three steps of a window, counted from 1."""
        place = uniform(optimizer._groups[0]["seed"], window, stream=CHANGES)
        return (window - 1) * self.every + 1 + int(self.every * place)

    @torch.no_grad()
    def look(self, optimizer: CertifiedOptimizer, step: int) -> None:
        """Take in the iterate after a step, if one of the next terms needs it."""
        near = range(max(step, 1), step + 3)
        ends = [end for end in near if self._end(optimizer, (end - 1) // self.every + 1) == end]
        if step == self._step or not ends:  # the same once more: a GradScaler has called a step off
            return
        law, seed = (optimizer._groups[0][key] for key in ("scaling", "seed"))
        if not _has_price(law):  # a checkpoint has brought it, or it was set by hand
            self.forget()
            return
        with optimizer._local():
            params = [p for own in optimizer.param_groups for p in own["params"]]
            if len(params) != len(self._params) or any(map(is_not, params, self._params)):
                self._params, self._x, self._delta = params, None, None
            x = [real(p.detach()).to(wide(p.dtype), copy=True) for p in params]
            delta = None
            if self._x is not None and self._step == step - 1:
                s = law.sample(seed, step + 1)
                delta = [(new - old) / s for new, old in zip(x, self._x, strict=True)]
            if self._delta is not None and delta is not None and step in ends:
                changes = [new - old for new, old in zip(delta, self._delta, strict=True)]
                self._found = scaling.mean(law) * scaling.price(law) * _norm(optimizer, changes, params)
                self._meet_gradient(optimizer, params)
        needed = max(ends) > step
        self._step, self._params, self._x, self._delta = (step, params, x, delta) if needed else (-1, [], None, None)

    def _meet_gradient(self, optimizer: CertifiedOptimizer, params: list[Tensor]) -> None:
        known = [p for p in params if p.grad is not None]
        if self._given is None and known:
            size = _norm(optimizer, [real(p.grad.detach()) for p in known], known)  # type: ignore[union-attr]
            self.lipschitz = max(self.lipschitz, size / optimizer._gradient_scale)


def _has_price(law: Any) -> bool:
    """Say whether the law of s is one without weights that tells its price."""
    return law is not None and not scaling.is_weighted(law) and hasattr(law, "price")


def _norm(optimizer: CertifiedOptimizer, x: list[Tensor], params: list[Any]) -> float:
    """Return the joint norm, over all processes that have a shard."""
    return math.sqrt(math.fsum(totals(optimizer, squares(x), params)))
