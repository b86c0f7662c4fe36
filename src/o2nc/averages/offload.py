"""Copies of parameters in the host's memory, for averages that are offloaded."""

from collections.abc import Sequence

import torch
from torch import Tensor

from o2nc.averages.update import Row


class HostCopies:
    """Copies tensors into pinned buffers that it reuses from call to call."""

    def __init__(self) -> None:
        self._buffers: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, rows: Sequence[Row], gradients: bool) -> list[tuple[Tensor | None, Tensor | None]]:
        """Return x and g of every row in the host's memory, once copies are complete; CPU tensors as they are."""
        tensors = [t for row in rows for t in (row.x, row.g if gradients else None)]
        found = [t if t is None or t.device.type == "cpu" else self._copy(i, t) for i, t in enumerate(tensors)]
        for device in {t.device for t in tensors if t is not None and t.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        return list(zip(found[::2], found[1::2], strict=True))

    def _copy(self, i: int, x: Tensor) -> Tensor:
        kept = self._buffers.get(i)
        if kept is None or (kept.shape, kept.dtype) != (x.shape, x.dtype):
            kept = self._buffers[i] = torch.empty_like(x, device="cpu", pin_memory=x.is_cuda)
        return kept.copy_(x, non_blocking=x.is_cuda)
