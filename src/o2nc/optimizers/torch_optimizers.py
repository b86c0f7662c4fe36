"""``torch.optim.SGD`` and ``torch.optim.AdamW`` with averages: the rule is torch's own step."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor, optim

from o2nc.averages.update import Iterate
from o2nc.fused.rule import DeviceRule
from o2nc.optimizers.base import Averaged

_HALF = frozenset((torch.bfloat16, torch.float16))


class TorchFused(Averaged):
    """Has torch step by its fused kernel where ours take the other steps, with the same bits; not where it fails."""

    def _move(self, iterate: Iterate, closure: Any = None) -> Any:
        former = [(group, {key: group[key] for key in ("fused", "foreach")}) for group in self.param_groups]
        try:
            for group, options in former:
                if group["fused"] or (self._engine.begins and [*options.values()] == [None, None]):
                    fails = self._fused_fails(group)
                    group.update(fused=None if fails else True, foreach=True if fails else None)
                if group["fused"] != options["fused"]:
                    self._place_counts(group)
            return super()._move(iterate, closure)
        finally:
            for group, options in former:
                if group["fused"] != options["fused"]:
                    group.update(options)
                    self._place_counts(group)

    def _place_counts(self, group: dict[str, Any]) -> None:
        """Put torch's counts of steps beside the parameters, where its fused kernel wants them."""
        for p in group["params"]:
            if "step" in self.state.get(p, ()):
                self.state[p]["step"] = self.state[p]["step"].to(p.device)

    def _fused_fails(self, group: dict[str, Any]) -> bool:
        """Return whether torch's fused kernel fails: where gradients and parameters are not laid out alike."""
        return any(p.grad is not None and not _lie_alike(p, p.grad) for p in group["params"])


def _lie_alike(x: Tensor, g: Tensor) -> bool:
    """Return whether two tensors have their elements in the same order, without gaps."""
    is_dense = x.is_contiguous() or torch.empty_like(x, device="meta").stride() == x.stride()
    return is_dense and x.stride() == g.stride()


class SGD(TorchFused, optim.SGD):
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
        """Have torch step, without its writing into gradients."""
        written = [group["params"] for group in self.param_groups if self._writes_gradients(group)]
        grads = [(p, p.grad) for p in chain.from_iterable(written) if p.grad is not None]
        try:
            for p, g in grads:
                p.grad = g.clone()
            return super()._move(iterate, closure)
        finally:
            for p, g in grads:
                p.grad = g

    def _fused_fails(self, group: dict[str, Any]) -> bool:
        """Return whether torch's fused kernel (2.13) fails: for momenta of new parameters beside others', too, and in
        half precision on a CPU, where it leaves every other vector unwritten.
        """
        params = [p for p in group["params"] if p.grad is not None]
        begun = {self.state[p].get("momentum_buffer") is not None for p in params} if group["momentum"] else ()
        half = any(p.dtype in _HALF and p.device.type == "cpu" for p in params)
        return len(begun) > 1 or half or super()._fused_fails(group)

    def _writes_gradients(self, group: dict[str, Any]) -> bool:
        """Return whether torch adds the momentum to ``.grad``: its foreach step does, unless it has copied it."""
        if not group["nesterov"] or group["maximize"] or group["weight_decay"]:
            return False
        if group["fused"]:
            return self._fused_fails(group)
        return group["foreach"] or (group["foreach"] is None and any(p.is_cuda for p in group["params"]))


class AdamW(TorchFused, optim.AdamW):
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
