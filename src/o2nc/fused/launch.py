"""The chain of launches that makes one step."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from o2nc.fused import kernels
from o2nc.fused.rule import BLOCK

WARPS = 4
FOLD, FOLD_WARPS = 2048, 8  # partial sums added at a time
TENSORS = 128  # tensors whose coefficients are computed at a time
# no products are fused with sums but where tl.fma says so: else a step with averages has other bits than one without
EXACT = {"enable_fp_fusion": False}


class Launch(NamedTuple):
    """A kernel with its grid and arguments."""

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    compiled_in: dict[str, Any]
    warps: int
    options: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default, never written to)

    def __call__(self) -> None:
        """Launch on the current stream."""
        options = {"num_warps": self.warps, **EXACT, **self.options}
        self.kernel[(self.programs,)](*self.arguments, **self.compiled_in, **options)


Action: TypeAlias = Launch | Callable[[], None]


class Sequence:
    """Launches that are repeated with the same arguments: from the third time on, as one CUDA graph of our own.

    A launch costs the host more than it costs the device on a small model; a graph costs as little as one launch.
    """

    def __init__(self, launches: list[Action], device: torch.device) -> None:
        self.launches, self.device = launches, device
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run on the current stream, which is not being captured."""
        self.calls += 1
        if self.calls > 2 and self.device.type == "cuda":
            if self.graph is None:
                self.graph = self._record()
            self.graph.replay()
        else:
            for launch in self.launches:
                launch()

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")  # other threads may go on allocating
            try:
                for launch in self.launches:
                    launch()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
        return graph


def launches(tables: Any, uploaded: Tensor, averages: bool) -> list[Action]:
    """Return the launches of one step over the tables, in order.

    ``uploaded`` has the addresses of the gradients and the numbers of the groups. With ``averages`` the averages may
    be updated; the device decides whether this iterate counts.
    """
    n, chunks, rule = tables.n, tables.chunks, tables.rule
    scalars = tables.uploads.scalars(uploaded)
    certifies = averages and tables.certifies
    opening = (
        *(tables.step, tables.pending, tables.keys, tables.constants, tables.now, uploaded, scalars, tables.group_of),
        *(tables.numbers, tables.coefficients, tables.prepared, n),
    )
    opened = {
        "SAMPLE": tables.law.sample,
        "WEIGHT_OF": tables.law.weight if rule.progress else None,
        "AVERAGED": averages,
        "OUTPUTS": averages and tables.outputs,
        "MOVES": rule.moves,
        "COEFFICIENTS": rule.coefficients,
        "OWN_COUNT": rule.own,
        "DECOUPLED": tables.decoupled,
        "WIDTH": TENSORS,
    }
    found: list[Action] = []
    if rule.prepare is not None:
        gradients = uploaded[:n]
        found.append(partial(rule.prepare, tables.prepared, scalars, tables.group_of, tables.counts, gradients))
    # one warp: the counters are read and written by the same threads
    found.append(Launch(kernels.open_kernel, 1, opening, opened, 1))
    for low, number, compiled in tables.buckets:
        stepped = (
            *(tables.which, tables.first, tables.sizes, tables.addresses, uploaded, tables.now),
            *(tables.coefficients, tables.partial, n, low, chunks),
        )
        if not averages:  # the kernel of an optimizer without averages
            compiled = compiled | {"AVERAGED": False, "OUTPUTS": False, "HAS_GRADIENT": False}
            compiled["BLOCK"] = rule.block if rule.progress else BLOCK
        is_limited = rule.registers is not None and (certifies or rule.progress) and compiled["ROUNDED"]
        options = {"maxnreg": rule.registers} if is_limited else {}
        found.append(Launch(kernels.step_kernel, number, stepped, compiled, WARPS, options))
    if certifies or rule.progress:
        closed = (tables.first, uploaded, tables.now, tables.coefficients, tables.numbers, tables.partial, n, chunks)
        sums = {"AVERAGED": certifies, "SUMS_PROGRESS": rule.progress, "WIDTH": FOLD}
        found.append(Launch(kernels.close_kernel, n, closed, sums, FOLD_WARPS))
    return found
