"""A step as one node of a compiled graph.

s, γ and the counter change with every step: torch.compile would freeze them, or recompile each time. So the compiler
sees the whole step as one operator on parameters and gradients; when it runs, it takes the ordinary step, with the
learning rates of that moment.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from o2nc.persist.private import disable_dynamo, not_captured

_OPTIMIZERS: WeakValueDictionary[int, Any] = WeakValueDictionary()


def register(optimizer: Any) -> None:
    """Make an optimizer known to compiled graphs."""
    _OPTIMIZERS[id(optimizer)] = optimizer


def step_in_graph(optimizer: Any, closure: Callable[[], Any] | None) -> Any:
    """Put the step into the graph that is being compiled; return what the closure returned."""
    if not optimizer._is_node or (closure is not None and optimizer._step_with_closure is not None):
        return _step_outside(optimizer, closure)
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    params = optimizer._known_params
    at = [i for i, p in enumerate(params) if p.grad is not None]
    with torch.no_grad():
        _node([params[i] for i in at], [params[i].grad for i in at], at, id(optimizer))
    return loss


@disable_dynamo
def _step_outside(optimizer: Any, closure: Callable[[], Any] | None) -> Any:
    """Break the graph: an operator cannot take DTensors, and autograd cannot differentiate through one."""
    return optimizer._step(closure)


# torch 2.6 does not read ``list[Tensor]`` from annotations; a CUDA graph would replay the s of its capture
_SCHEMA = "(Tensor(a!)[] params, Tensor[] grads, int[] at, int optimizer) -> ()"


@torch.library.custom_op("o2nc::step", mutates_args=("params",), schema=_SCHEMA, **not_captured)
def _node(params: list[Tensor], grads: list[Tensor], at: list[int], optimizer: int) -> None:
    owner = _OPTIMIZERS[optimizer]
    known = owner._known_params
    owner._check_params()
    if owner._known_params is not known:
        raise RuntimeError("param_groups has other parameters than when step() was compiled: call it again")
    before = [p.grad for p in known]
    # a compiler may pass copies, which it writes back afterwards
    copies = [(known[i], p) for i, p in zip(at, params, strict=True) if known[i].data_ptr() != p.data_ptr()]
    try:
        for p in known:
            p.grad = None
        for i, g in zip(at, grads, strict=True):
            known[i].grad = g
        for own, given in copies:
            own.detach().copy_(given)
        owner._step(None)
        for own, given in copies:
            given.copy_(own.detach())
    finally:
        for p, former in zip(known, before, strict=True):
            p.grad = former


@_node.register_fake
def _(params: list[Tensor], grads: list[Tensor], at: list[int], optimizer: int) -> None:
    return None


def is_capturing() -> bool:
    """Return whether what is launched now becomes part of a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # is_available is slow
