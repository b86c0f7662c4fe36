"""A step as one node of a compiled graph, and no step at all in a captured one.

s, γ and the counters are numbers of the host that change with every step: torch.compile would freeze them, or compile
anew each time. So to a compiler the whole step is one operator, given the parameters and their gradients; when it is
run it takes the same step as ever, fused on a GPU, at the learning rates of that moment.
"""

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from o2nc.torch_support.private import one_node

_OPTIMIZERS: WeakValueDictionary[int, Any] = WeakValueDictionary()


def register(optimizer: Any) -> None:
    """Make an optimizer known to compiled graphs."""
    _OPTIMIZERS[id(optimizer)] = optimizer


def take_as_one_node(optimizer: Any) -> None:
    """Put the step into the graph that is being made."""
    params = optimizer._all_params
    at = [i for i, p in enumerate(params) if p is not None and p.grad is not None]
    with torch.no_grad():
        _node([params[i] for i in at], [params[i].grad for i in at], at, id(optimizer))


@one_node("o2nc::step", "(Tensor(a!)[] params, Tensor[] grads, int[] at, int optimizer) -> ()")
def _node(params: list[Tensor], grads: list[Tensor], at: list[int], optimizer: int) -> None:
    owner = _OPTIMIZERS[optimizer]
    if owner._notice_exchange():
        raise RuntimeError("the lists of parameters were changed by hand after step() was compiled: call it again")
    known = owner._all_params
    before = [p.grad for p in known]
    # a compiler may hand over copies, which it writes back afterwards
    copies = [(known[i], p) for i, p in zip(at, params, strict=True) if known[i].data_ptr() != p.data_ptr()]
    try:
        for p in known:
            p.grad = None
        for i, g in zip(at, grads, strict=True):
            known[i].grad = g
        for own, given in copies:
            own.detach().copy_(given)
        owner._take()
        for own, given in copies:
            given.copy_(own.detach())
    finally:
        for p, former in zip(known, before, strict=True):
            p.grad = former
    owner._notify()


@_node.register_fake  # type: ignore[untyped-decorator]
def _(params: list[Tensor], grads: list[Tensor], at: list[int], optimizer: int) -> None:
    return None


def is_capturing() -> bool:
    """Say whether what is launched now becomes part of a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # is_available is slow


def refuse_capture(owner: str, law: Any, average: Any = None) -> None:
    """Refuse to be captured by a CUDA graph where the host draws s and γ: every replay would repeat them."""
    if (law is not None or average is not None) and is_capturing():
        raise RuntimeError(
            f"this step of {owner} cannot be captured in a CUDA graph: s and the counters are on "
            "the host, and every replay would repeat them; a fused step can be captured (fused=True insists on it)"
        )
