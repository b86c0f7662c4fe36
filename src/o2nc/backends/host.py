"""Memory of the host: for the output, which is kept there, and for copies from which averages are made there.

Given copies of parameters and gradients in their place, `o2nc.backends.eager` carries out the same step as beside the
parameters, and the averages that it makes are where the copies are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def on_host(x: Tensor, value: Tensor | None = None) -> Tensor:
    """Return memory of the host, as x lies in its own, which a kernel can write to; with a value in it.

    ``value`` itself is returned if it is such memory.
    """
    like = (torch.device("cpu"), x.dtype, x.stride())
    if value is not None and (value.device, value.dtype, value.stride()) == like and value.is_pinned() >= x.is_cuda:
        return value
    twin = torch.empty_like(x, device="cpu", pin_memory=x.is_cuda)
    return twin if value is None else twin.copy_(value)


def copy_on_host(x: Tensor) -> Tensor:
    """Return a copy of x in such memory."""
    return on_host(x).copy_(x)


class HostCopies:
    """The copies of one optimizer's parameters, in memory that is used again; those on a CPU stand for themselves."""

    def __init__(self) -> None:
        self._copies: list[Tensor | None] = []
        self._grads: list[Tensor | None] = []

    @torch.no_grad()
    def refresh(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Copy parameters and gradients as they are now, and wait for it; return the copies, with gradients."""
        if len(params) != len(self._copies):
            self._copies, self._grads = [None] * len(params), [None] * len(params)
        found = []
        for i, p in enumerate(params):
            if p.device.type == "cpu":
                self._copies[i] = self._grads[i] = None
                found.append(p)
                continue
            # a gradient may be wider than its parameter, and a tensor's gradient has its dtype
            x = p.detach() if p.grad is None else p.detach().to(torch.promote_types(p.dtype, p.grad.dtype))
            copy = self._copies[i] = _copied(x, self._copies[i])
            if p.grad is not None:
                self._grads[i] = _copied(p.grad.to(x.dtype), self._grads[i])
            copy.grad = None if p.grad is None else self._grads[i]
            found.append(copy)
        for device in {p.device for p in params if p.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return found


def _copied(x: Tensor, former: Tensor | None) -> Tensor:
    """Return a copy of x in the host's memory, in the one of a former copy if x fits there."""
    fits = former is not None and (former.device.type, former.shape, former.dtype) == ("cpu", x.shape, x.dtype)
    kept = former if fits and former is not None else on_host(x)
    return kept.copy_(x, non_blocking=x.is_cuda)
