"""``torch.optim.SGD`` and ``torch.optim.AdamW`` with averages: the rule is torch's own step."""

from typing import Any

import torch
from torch import optim

from o2nc.averages.update import Iterate
from o2nc.fused.engine import DeviceRule
from o2nc.optimizers.base import Averaged

_HALF = frozenset((torch.bfloat16, torch.float16))


class SGD(Averaged, optim.SGD):
    """``torch.optim.SGD``, bitwise, with weights x̄ that need no schedule.

    It takes all arguments of ``torch.optim.SGD``, and ``average``, ``scaling``, ``seed``, ``certificate`` and
    ``offload`` as `Averaged` describes them.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.SGD(model.parameters(), lr=0.1, momentum=0.9, average=o2nc.Polynomial(12, every=8))
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
    """

    is_linear_in_lr = couples_decay = True
    shared_options = Averaged.options
    numbers = ("lr", "momentum", "dampening", "weight_decay")
    device_rule = DeviceRule("o2nc.fused.rules.sgd:sgd")

    def _move(self, iterate: Iterate, closure: Any = None) -> Any:
        """Have torch step, without its fused kernel where that fails or is wrong."""
        unfused = [group for group in self.param_groups if group["fused"] and self._fused_fails(group)]
        try:
            for group in unfused:
                group["fused"] = None
            return super()._move(iterate, closure)
        finally:
            for group in unfused:
                group["fused"] = True

    def _fused_fails(self, group: dict[str, Any]) -> bool:
        """Return whether torch's fused kernel (2.13) fails: for momenta of new parameters beside others', and in half
        precision on a CPU, where it leaves every other vector unwritten.
        """
        params = [p for p in group["params"] if p.grad is not None]
        begun = {self.state[p].get("momentum_buffer") is not None for p in params} if group["momentum"] else ()
        return len(begun) > 1 or any(p.dtype in _HALF and p.device.type == "cpu" for p in params)


class AdamW(Averaged, optim.AdamW):
    """``torch.optim.AdamW``, bitwise, with weights x̄ that need no schedule.

    It takes all arguments of ``torch.optim.AdamW``, and ``average``, ``scaling``, ``seed``, ``certificate`` and
    ``offload`` as `Averaged` describes them. On a GPU it has the bits of torch's fused step.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.AdamW(model.parameters(), lr=1e-2, average=o2nc.Polynomial(12, every=8))
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
    """

    is_linear_in_lr = True
    shared_options = Averaged.options
    numbers = ("lr", "eps", "weight_decay")
    device_rule = DeviceRule("o2nc.fused.rules.adamw:adamw", is_bitwise=True)
