"""What changes from step to step: the addresses of the gradients and the numbers of the parameter groups."""

import numpy as np
import torch
from torch import Tensor

SPARES = 4  # pinned buffers kept ready for captures, during which none can be allocated


class Uploads:
    """A small table on the device for so many gradients and numbers of groups, filled again only when one is new."""

    def __init__(self, tensors: int, scalars: int, device: torch.device) -> None:
        self.tensors, self.length, self.device = tensors, tensors + scalars, device
        self.table = torch.zeros(self.length, dtype=torch.int64, device=device)
        self.known: tuple[list[int], list[float]] | None = None
        self.spares: list[Tensor] = []
        self.captured: list[Tensor] = []  # a graph reads them at every replay
        self._refill()

    def upload(self, addresses: list[int], scalars: list[float], capturing: bool) -> Tensor:
        """Copy addresses and scalars to the device, if they are new there; return the table they lie in.

        A captured step gets a table of its own, which its graph copies again at every replay.
        """
        if not capturing:
            self._refill()
            if self.known == (addresses, scalars):
                return self.table
        elif not self.spares:
            raise RuntimeError("too many captures in a row: call step() once outside before you capture again")
        source = self.spares.pop() if capturing else self._pinned()  # never one that a copy may still be reading
        buffer = source.numpy()
        buffer[: self.tensors] = addresses
        buffer[self.tensors :].view(np.float64)[:] = scalars
        if capturing:
            table = torch.empty_like(source, device=self.device)
            self.captured += [source, table]
        else:
            table, self.known = self.table, (addresses, scalars)
        return table.copy_(source, non_blocking=True)

    def scalars(self, table: Tensor) -> Tensor:
        """Return the scalars in a table."""
        return table.view(torch.float64)[self.tensors :]

    def _refill(self) -> None:
        while len(self.spares) < SPARES and self.device.type == "cuda":
            self.spares.append(self._pinned())

    def _pinned(self) -> Tensor:
        return torch.empty(self.length, dtype=torch.int64, device="cpu", pin_memory=self.device.type == "cuda")
