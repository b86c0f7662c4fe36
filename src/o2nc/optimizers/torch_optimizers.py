"""``torch.optim.SGD`` and ``torch.optim.AdamW`` with averages: the rule is torch's own step."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import optim

from o2nc.averages.update import Iterate
from o2nc.fused.rule import DeviceRule
from o2nc.optimizers.auto_lr import AUTO, FIRST, begin_probe
from o2nc.optimizers.base import Averaged
from o2nc.vector import is_dense

_HALF = frozenset((torch.bfloat16, torch.float16))


def may_use_torchs_kernel(optimizer: Any) -> bool:
    """Return whether torch's fused kernel is asked for, or needed for a step bitwise like those of our kernels."""
    return optimizer._engine.begins or any(group["fused"] for group in optimizer.param_groups)


@contextmanager
def torchs_kernel(optimizer: Any) -> Iterator[None]:
    """Use torch's fused kernel, unless it fails, where our kernels take the other steps: all then agree bitwise."""
    former = [(group, {key: group[key] for key in ("fused", "foreach")}) for group in optimizer.param_groups]
    try:
        for group, options in former:
            if group["fused"] or (optimizer._engine.begins and [*options.values()] == [None, None]):
                fails = optimizer._fused_fails(group)
                group.update(fused=None if fails else True, foreach=True if fails else None)
            if group["fused"] != options["fused"]:
                _place_counts(optimizer.state, group)
        yield
    finally:
        for group, options in former:
            if group["fused"] != options["fused"]:
                group.update(options)
                _place_counts(optimizer.state, group)


def _place_counts(state: dict[Any, Any], group: dict[str, Any]) -> None:
    """Move torch's step counts to the parameters' device, where its fused kernel expects them."""
    for p in group["params"]:
        if "step" in state.get(p, ()):
            state[p]["step"] = state[p]["step"].to(p.device)


def lie_alike(group: dict[str, Any]) -> bool:
    """Return whether every gradient has its parameter's strides, and both are dense."""
    pairs = [(p, p.grad) for p in group["params"] if p.grad is not None]
    return all(x.stride() == g.stride() and is_dense(x) for x, g in pairs)


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

    is_linear_in_lr = couples_decay = torch_has_fused = True
    numbers = ("lr", "momentum", "dampening", "weight_decay")
    state_keys = frozenset(("momentum_buffer",))
    device_rule = DeviceRule("o2nc.fused.rules.sgd:sgd")

    def _move(self, iterate: Iterate, closure: Any = None) -> Any:
        """Run torch's step; where it would write into gradients, on copies of them."""
        written = [group["params"] for group in self.param_groups if self._writes_gradients(group)]
        grads = [(p, p.grad) for p in chain.from_iterable(written) if p.grad is not None]
        try:
            for p, g in grads:
                p.grad = g.clone()
            if not may_use_torchs_kernel(self):
                return super()._move(iterate, closure)
            with torchs_kernel(self):
                return super()._move(iterate, closure)
        finally:
            for p, g in grads:
                p.grad = g

    def _fused_fails(self, group: dict[str, Any]) -> bool:
        """Return whether torch's fused kernel (2.13) fails: on shards, on gradients with other strides, on a mix of
        new and old momentum buffers, and in half precision on a CPU, where it skips every other vector.
        """
        params = [p for p in group["params"] if p.grad is not None]
        begun = {self.state[p].get("momentum_buffer") is not None for p in params} if group["momentum"] else ()
        half = any(p.dtype in _HALF and p.device.type == "cpu" for p in params)
        return len(begun) > 1 or half or self._is_sharded or not lie_alike(group)

    def _writes_gradients(self, group: dict[str, Any]) -> bool:
        """Return whether torch's step adds the momentum to ``.grad`` in place, as its foreach step does."""
        if not group["nesterov"] or group["maximize"] or group["weight_decay"]:
            return False
        if group["fused"]:
            return self._fused_fails(group)
        return group["foreach"] or (group["foreach"] is None and any(p.is_cuda for p in group["params"]))


class AdamW(Averaged, optim.AdamW):
    """``torch.optim.AdamW``, bitwise, with weights x̄ that need no schedule.

    It takes all arguments of ``torch.optim.AdamW``, and ``average``, ``scaling``, ``seed``, ``certificate`` and
    ``offload`` as `Averaged` describes them. On a GPU it is bitwise torch's fused step.

    With ``lr="auto"`` a probe of about 30 steps (at most 200) finds a learning rate. The parameters then go most of
    the way back to their initial values, and lr warms up over 100 steps. With an average, lr falls from there as far
    as the noise of the gradients demands, until you set it; ``param_groups[i]["lr"]`` shows it. The averages skip the
    probe. Buffers, such as BatchNorm statistics, do not go back.

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

    is_linear_in_lr = torch_has_fused = True
    numbers = ("lr", "betas", "eps", "weight_decay")
    state_keys = frozenset(("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
    device_rule = DeviceRule("o2nc.fused.rules.adamw:adamw", is_bitwise=True)

    def __init__(self, params: Any, lr: Any = 1e-3, *args: Any, **kwargs: Any) -> None:
        is_auto = isinstance(lr, str) and lr == AUTO
        super().__init__(params, FIRST if is_auto else lr, *args, **kwargs)
        if is_auto:
            begin_probe(self)

    def _move(self, iterate: Iterate, closure: Any = None) -> Any:
        """Run torch's step, by its fused kernel where our kernels take the other steps."""
        if not may_use_torchs_kernel(self):
            return super()._move(iterate, closure)
        with torchs_kernel(self):
            return super()._move(iterate, closure)

    def _fused_fails(self, group: dict[str, Any]) -> bool:
        """Return whether torch's fused kernel fails: on gradients whose strides are not their parameter's."""
        return not lie_alike(group)
