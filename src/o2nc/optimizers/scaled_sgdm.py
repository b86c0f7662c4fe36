"""SGD with momentum and random scaling: ``torch.optim.SGD`` with s ~ Exp(1).

    b_t = momentum·b_{t−1} + (1 − dampening)·g_t,   x_{t+1} = x_t − s_{t+1}·lr·b_t

This is `ExponentiatedO2NC` with the learner `OGD` in other words. For κ = 1, momentum β̃ = β/(1 + ημ), dampening β̃ and
lr = βη/(1 − β + ημ); torch starts its buffer at g_1 where the theory starts at (1 − β̃)g_1, and the tests state the
exact map. The step itself is torch's own, so ``scaling=None`` is ``torch.optim.SGD`` bitwise.
"""

from typing import Any

import torch
from torch import Tensor

from o2nc.averages.update import Entry
from o2nc.averages.windows import Average
from o2nc.fused.engine import OBSERVE, DeviceRule
from o2nc.optimizers.paper import Paper
from o2nc.optimizers.torch_optimizers import SGD
from o2nc.scaling import Exponential, Law


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

    def _device_rule(self) -> DeviceRule | None:
        rule = super()._device_rule()
        if rule is None or (rule is OBSERVE and not any(group["fused"] for group in self.param_groups)):
            return None  # the progress needs the update, and torch's own step is bitwise torch's
        return DeviceRule("o2nc.fused.rules.sgd:scaled_sgdm", (self._window is not None,))

    def _move(self, params: list[Any], t: int, closure: Any = None) -> Any:
        """Have torch step; keep the direction of the update where the momentum buffer does not tell it."""
        groups = {p: group for group in self.param_groups for p in group["params"]}
        entries = self._entries() if self._window is not None else {}
        kept = [p for p in params if p in entries and (groups[p]["momentum"] == 0 or groups[p]["nesterov"])]
        directions = self._rule_gradients(kept, self._local_entries(entries[p] for p in kept))
        result = super()._move(params, t, closure)
        with torch.no_grad():
            for p, direction, buffer in zip(kept, directions, self._buffers(kept, directions), strict=True):
                direction.add_(buffer, alpha=groups[p]["momentum"])
                entries[p].update(self._assembled(p, {"update": direction}))
            for p in set(params) & entries.keys() - set(kept):
                entries[p].pop("update", None)
            for p, entry in entries.items():
                entry["rate"].fill_(-groups[p]["lr"] if p.grad is not None else 0.0)
        return result

    @torch.no_grad()
    def _rule_gradients(self, params: list[Any], entries: list[Entry]) -> list[Tensor]:
        """Return ±g + λx, in memory of its own."""
        groups = {p: group for group in self.param_groups for p in group["params"]}
        found = []
        for p, g, x, entry in zip(params, self._gradients(params), self._data(params), entries, strict=True):
            g = g.detach().to(entry["average"].dtype, copy=True)
            g = g.neg_() if groups[p]["maximize"] else g
            decay = float(groups[p]["weight_decay"])
            found.append(g.add_(x.to(g.dtype), alpha=decay) if decay else g)
        return found

    def _directions(self, params: list[Any], entries: list[Entry]) -> list[Tensor]:
        averages = [entry["average"] for entry in entries]
        buffers = zip(entries, self._buffers(params, averages), strict=True)
        return [entry.get("update", buffer) for entry, buffer in buffers]

    def _buffers(self, params: list[Any], like: list[Tensor]) -> list[Tensor]:
        """Return the momentum buffers in the averages' dtype; zeros where there is none."""
        buffers = [self.state[p].get("momentum_buffer") for p in params]
        data = iter(self._data(b for b in buffers if b is not None))
        pairs = zip(buffers, like, strict=True)
        return [torch.zeros_like(x) if b is None else next(data).to(x.dtype) for b, x in pairs]
