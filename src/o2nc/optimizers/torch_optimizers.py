"""``torch.optim.SGD`` and ``torch.optim.AdamW`` with averages: the rule is torch's own step."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any

from torch import optim

from o2nc.averages.update import Iterate
from o2nc.fused.rule import DeviceRule
from o2nc.optimizers.auto_lr import AUTO, FIRST, begin_probe
from o2nc.optimizers.base import Averaged
from o2nc.vector import is_dense


@contextmanager
def in_place_of_kernels(optimizer: Any) -> Iterator[None]:
    """Have torch take a step that our kernels could not take: by its fused kernel if theirs is bitwise like it."""
    former = [(group, {key: group[key] for key in ("fused", "foreach")}) for group in optimizer.param_groups]
    try:
        for group, options in former:
            is_fused = optimizer.device_rule.is_bitwise and options["foreach"] is None and _lie_alike(group)
            group.update(fused=is_fused or None)
            _place_counts(optimizer.state, group)
        yield
    finally:
        for group, options in former:
            group.update(options)
            _place_counts(optimizer.state, group)


def _place_counts(state: dict[Any, Any], group: dict[str, Any]) -> None:
    """Move torch's step counts to the parameters' device, where its fused kernel expects them."""
    for p in group["params"]:
        if "step" in state.get(p, ()):
            state[p]["step"] = state[p]["step"].to(p.device)


def _lie_alike(group: dict[str, Any]) -> bool:
    """Return whether every gradient has its parameter's strides, as torch's fused kernel expects."""
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
        written = [group["params"] for group in self.param_groups if _writes_gradients(group)]
        grads = [(p, p.grad) for p in chain.from_iterable(written) if p.grad is not None]
        try:
            for p, g in grads:
                p.grad = g.clone()
            with in_place_of_kernels(self) if self._stands_in else nullcontext():
                return super()._move(iterate, closure)
        finally:
            for p, g in grads:
                p.grad = g


def _writes_gradients(group: dict[str, Any]) -> bool:
    """Return whether torch's SGD adds the momentum to ``.grad`` in place, as its foreach step does."""
    if not group["nesterov"] or group["maximize"] or group["weight_decay"] or group["fused"]:
        return False
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
        with in_place_of_kernels(self) if self._stands_in else nullcontext():
            return super()._move(iterate, closure)
