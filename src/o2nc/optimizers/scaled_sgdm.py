"""SGD with momentum and random scaling: ``torch.optim.SGD`` with s ~ Exp(1).

    b_t = momentum·b_{t−1} + (1 − dampening)·g_t,   x_{t+1} = x_t − s_{t+1}·lr·b_t

This is `ExponentiatedO2NC` with the learner `OGD` in other words. For κ = 1, momentum β̃ = β/(1 + ημ), dampening β̃ and
lr = βη/(1 − β + ημ); torch starts its buffer at g_1 where the theory starts at (1 − β̃)g_1, and the tests state the
exact map. The step itself is torch's own, so ``scaling=None`` is ``torch.optim.SGD`` bitwise.
"""

from typing import Any

import torch
from torch import Tensor

from o2nc.averages.windows import Average, Window
from o2nc.fused.engine import OBSERVE, DeviceRule
from o2nc.optimizers.paper import Paper
from o2nc.optimizers.sgd import SGD
from o2nc.scaling import Exponential, Law
from o2nc.vector import wide
from o2nc.persist.plain import KEY


class ScaledSGDM(Paper, SGD):
    """``torch.optim.SGD`` whose update is multiplied by a random scalar, with averages and a certificate.

    It takes all arguments of ``torch.optim.SGD``, and:

    Args:
        params: parameters or parameter groups.
        *args: further arguments of ``torch.optim.SGD``.
        scaling: the law of s, or None for ``torch.optim.SGD`` itself.
        seed: a non-negative integer; s_n is a pure function of it and n. Two optimizers of one program, as a GAN has
            them, draw the same s with the same seed: give each its own.
        average: the window of x̄, ḡ and V: a discount β in (0, 1), or a window such as `o2nc.Polynomial`; None keeps
            no averages.
        output: the law of n in ``output()``: "uniform" over all steps, or "geometric", uniform plus a geometric time
            of mean β/(1 − β), cut off at the end, for which more is proved (docs/paper.md).
        **kwargs: further arguments of ``torch.optim.SGD``. ``fused``: on a GPU one pass over memory, averages
            included; None takes it where it applies, True insists on it.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.ScaledSGDM(model.parameters(), lr=0.01, momentum=0.9, average=0.99)
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> certificate = opt.certificate(c=1.0)
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
    """

    def __init__(
        self,
        params: Any,
        *args: Any,
        scaling: Law | None = Exponential(),
        seed: int = 0,
        average: Average = None,
        output: str = "uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(params, *args, average=average, scaling=scaling, seed=seed, certificate=True, **kwargs)
        self._begin_output(output)

    def _device_rule(self, window: Window | None, law: Any) -> DeviceRule | None:
        rule = super()._device_rule(window, law)
        if rule is None or (rule is OBSERVE and not any(group["fused"] for group in self.param_groups)):
            return None  # the progress needs the update, and torch's own step is bitwise torch's
        return DeviceRule("o2nc.fused.rules.sgd:scaled_sgdm", (window is not None,))

    def _move(self, params: list[Any], t: int, s: float | None, closure: Any = None) -> Any:
        """Have torch step; keep the direction of the update where the momentum buffer does not tell it."""
        groups = {p: group for group in self.param_groups for p in group["params"]}
        entries = self._entries() if self.param_groups[0][KEY]["average"] is not None else {}
        kept = {p: self._rule_gradient(p, groups[p]) for p in params if p in entries and keeps_direction(groups[p])}
        result = super()._move(params, t, s, closure)
        with torch.no_grad():
            for p, direction in kept.items():
                if groups[p]["momentum"] != 0:
                    direction.add_(self._buffer(p), alpha=groups[p]["momentum"])
                entries[p].update(self._assembled(p, {"update": direction}))
            for p, entry in entries.items():
                if p.grad is not None and p not in kept:
                    entry.pop("update", None)
                entry["rate"].fill_(-groups[p]["lr"] if p.grad is not None else 0.0)
        return result

    @torch.no_grad()
    def _rule_gradient(self, p: Any, group: dict[str, Any]) -> Tensor:
        """Return ±g + λx, in memory of its own."""
        g, x = self._gradient(p), self._data(p.detach())
        g = g.detach().to(wide(x.dtype), copy=True)
        g = g.neg_() if group["maximize"] else g
        return g.add_(x.to(g.dtype), alpha=float(group["weight_decay"])) if group["weight_decay"] else g

    def _directions(self, params: list[Any]) -> list[Tensor]:
        found = []
        for p in params:
            entry = self._local(self.state[p][KEY])
            found.append(entry["update"] if "update" in entry else self._buffer(p))
        return found

    def _buffer(self, p: Any) -> Tensor:
        """Return the momentum buffer, in at least float32; zeros before it begins."""
        buffer = self.state[p].get("momentum_buffer")
        if buffer is None:
            x = self._data(p.detach())
            return torch.zeros_like(x, dtype=wide(x.dtype))
        buffer = self._data(buffer.detach())
        return buffer.to(wide(buffer.dtype))


def keeps_direction(group: dict[str, Any]) -> bool:
    """Return whether the momentum buffer does not tell the last update: with Nesterov, or without momentum."""
    return group["momentum"] == 0 or group["nesterov"]
