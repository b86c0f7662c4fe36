"""What torch's own step needs around it where it would write into gradients, or takes the place of our kernels."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from o2nc.vector import is_dense


@contextmanager
def prepared(optimizer: Any, stands_in: bool) -> Iterator[None]:
    """Let torch's SGD write into copies of the gradients, and let torch step as our kernels would.

    ``stands_in`` says that our kernels cannot take this step: torch takes it by its own, if ours is bitwise like it.
    """
    groups = optimizer.param_groups
    written = [group for group in groups if isinstance(optimizer, SGD) and _writes_gradients(group)]
    grads = [(p, p.grad) for group in written for p in group["params"] if p.grad is not None]
    replaced = [(g, {"fused": g["fused"], "lr": g["lr"]}) for g in groups if stands_in and "fused" in g]
    try:
        for p, g in grads:
            p.grad = g.clone()
        for group, _ in replaced:
            is_fused = optimizer.device_rule.is_bitwise and group.get("foreach") is None and _lie_alike(group)
            group["fused"] = is_fused or None
            if is_fused and getattr(group["lr"], "dtype", torch.float32) is not torch.float32:
                group["lr"] = float(group["lr"])  # torch's fused kernel would refuse such a tensor
            _place_counts(optimizer.state, group)
        yield
    finally:
        for p, g in grads:
            p.grad = g
        for group, former in replaced:
            group.update(former)
            _place_counts(optimizer.state, group)


def _writes_gradients(group: dict[str, Any]) -> bool:
    """Return whether torch's SGD adds the momentum to ``.grad`` in place, as Nesterov's foreach step does."""
    if not group["nesterov"] or group["fused"] or group["maximize"] or group["weight_decay"]:
        return False  # the last two compute with copies already
    return group["foreach"] or (group["foreach"] is None and any(p.is_cuda for p in group["params"]))


def _place_counts(state: dict[Any, Any], group: dict[str, Any]) -> None:
    """Move torch's step counts to the parameters' device, where its fused kernel expects them."""
    for p in group["params"]:
        if isinstance(state.get(p, {}).get("step"), Tensor):
            state[p]["step"] = state[p]["step"].to(p.device)


def _lie_alike(group: dict[str, Any]) -> bool:
    """Return whether every gradient has its parameter's strides, as torch's fused kernel expects."""
    pairs = [(p, p.grad) for p in group["params"] if p.grad is not None]
    return all(x.stride() == g.stride() and is_dense(x) for x, g in pairs)
