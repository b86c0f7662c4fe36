"""A vector of R^d kept as a list of tensors: the few operations that learners and averages need.

The tensors are real and local: complex parameters are viewed as real ones, of sharded ones (DTensor) every process
has its local shard. Norms are joint over the whole list. They stay on the device as float64 tensors, so nothing here
waits for the host.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, distributed

from o2nc.persist.private import foreach_add_, foreach_addcmul_, foreach_mul_, foreach_norm

_COMPLETE: ContextVar[Callable[[Tensor], Tensor]] = ContextVar("complete", default=lambda sums: sums)

Vector: TypeAlias = list[Tensor]
Scalar: TypeAlias = float | Tensor
States: TypeAlias = list[dict[str, Any]]  # of the parameters, one for each tensor


def real(x: Tensor) -> Tensor:
    """View a complex tensor as a real one with one more axis; return a real tensor as it is."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def is_sharded(x: Any) -> bool:
    """Return whether a tensor is a DTensor."""
    return hasattr(x, "to_local") and hasattr(x, "placements")


def local(x: Any) -> Any:
    """Return the local shard of a DTensor, and anything else as it is."""
    return x.detach().to_local() if is_sharded(x) else x


def values(tensors: Iterable[Any]) -> list[Tensor]:
    """Return tensors as real local ones that share their memory."""
    return [real(local(x.detach())) for x in tensors]


def gradients(params: Iterable[Any]) -> list[Any]:
    """Return the gradients of parameters as real local tensors, None for none."""
    return [None if g is None else real(g.detach()) for g in map(local_gradient, params)]


def local_gradient(p: Any) -> Tensor | None:
    """Return the local shard of a parameter's gradient, placed like the parameter."""
    g: Any = p.grad
    if g is None or not is_sharded(p):
        return g
    if g.placements != p.placements:
        g = g.redistribute(p.device_mesh, p.placements)
    return g.to_local()


@cache
def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which state is kept: real, and at least float32."""
    return torch.promote_types(dtype.to_real(), torch.float32)


def is_dense(x: Tensor) -> bool:
    """Return whether the elements fill a contiguous piece of memory, in any order of the axes."""
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((st, n) for st, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride != expected:
            return x.numel() == 0
        expected *= size
    return True


def laid_like(x: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``value`` with the strides and device of x and this dtype: itself if it has them, else a copy."""
    if value.dtype == dtype and value.device == x.device and (value.stride() == x.stride() or x.numel() == 0):
        return value
    return torch.empty_like(x, dtype=dtype).copy_(value)


def squares(x: Vector) -> Tensor:
    """Return ‖x_p‖² for every tensor of the list, as one float64 tensor."""
    home = x[0].device
    # in float64 throughout, except that a CPU does it the fast way first and looks whether it overflowed
    norms = foreach_norm(x) if home.type == "cpu" else foreach_norm(x, 2, torch.float64)
    result = torch.stack([n.to(home, torch.float64) for n in norms]).square()
    if home.type == "cpu" and not result.isfinite().all():
        result = torch.stack([n.to(home) for n in foreach_norm(x, 2, torch.float64)]).square()
    return _COMPLETE.get()(result)


def dots(x: Vector, y: Vector) -> Tensor:
    """Return ⟨x_p, y_p⟩ for every pair of the lists, as one float64 tensor."""
    products = [(a * b).sum(dtype=torch.float64).to(x[0].device) for a, b in zip(x, y, strict=True)]
    return _COMPLETE.get()(torch.stack(products))


def total(values: Tensor, params: Sequence[Any]) -> Tensor:
    """Return the sums over the processes of values that have one column per parameter."""
    dims: dict[Any, list[int]] = {}
    for i, p in enumerate(params):
        for dim, placement in enumerate(p.placements if is_sharded(p) else ()):
            if not placement.is_replicate():  # is_shard() is False of the strided shards of tensor parallelism
                dims.setdefault((p.device_mesh, dim), []).append(i)
    if dims:
        values = values.to(local(params[0]).device, copy=True)  # where all_reduce can reach them
    for (mesh, dim), at in dims.items():
        some = values[..., at].contiguous()
        distributed.all_reduce(some, group=mesh.get_group(dim))
        values[..., at] = some
    return values


@contextmanager
def completed(complete: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the block, ``complete`` adds what other processes have to the results of `squares` and `dots`."""
    token = _COMPLETE.set(complete)
    try:
        yield
    finally:
        _COMPLETE.reset(token)


def combine_(y: Vector, a: Sequence[Scalar], x: Vector, b: Sequence[Scalar]) -> None:
    """Set y_p ← a_p·y_p + b_p·x_p in place; the coefficients are numbers or 0-d tensors."""
    scale_(y, a)
    if isinstance(b[0], Tensor):
        foreach_addcmul_(y, x, _like(b, y))
        return
    for c in dict.fromkeys(b):  # as many as there are learning rates
        at = [i for i, v in enumerate(b) if v == c]
        foreach_add_([y[i] for i in at], [x[i] for i in at], alpha=float(c))


def scale_(y: Vector, a: Sequence[Scalar]) -> None:
    """Set y_p ← a_p·y_p in place."""
    if isinstance(a[0], Tensor):
        foreach_mul_(y, _like(a, y))
    elif any(c != 1 for c in a):
        foreach_mul_(y, [float(c) for c in a])


def clip_(x: Vector, radius: float) -> None:
    """Project x in place on the ball of the joint norm, ‖x‖ <= radius."""
    if radius != float("inf"):
        scale_(x, [shrinkage(squares(x).sum(), radius)] * len(x))


def shrinkage(square: Tensor, radius: Scalar) -> Tensor:
    """Return min(1, radius/‖x‖), the factor that projects on a ball, from ‖x‖²."""
    return (radius / square.sqrt()).clamp(max=1.0)


def add_shares_(shares: Vector, beta: float, new: Tensor) -> Tensor:
    """Set shares_p ← β·shares_p + new_p, 0-d tensors one per parameter, and return their joint sum.

    Sums over R^d are kept as one share per parameter, so that a late one just adds its own.
    """
    foreach_mul_(shares, beta)
    foreach_add_(shares, [n.to(t.device) for n, t in zip(new, shares, strict=True)])
    return joint(shares)


def joint(shares: Vector) -> Tensor:
    """Return the sum of 0-d tensors, on the first one's device."""
    return torch.stack([t.to(shares[0].device) for t in shares]).sum()


def number(value: float = 0.0) -> Tensor:
    """Return a number for a learner's state, as a 0-d float64 tensor on the CPU (kernels move it to the GPU)."""
    return torch.tensor(value, dtype=torch.float64, device="cpu")


def _like(c: Sequence[Scalar], y: Vector) -> Vector:
    return [torch.as_tensor(v, dtype=t.dtype, device=t.device) for v, t in zip(c, y, strict=True)]
