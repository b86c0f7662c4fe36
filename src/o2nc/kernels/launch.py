"""The chain of launches that makes one step."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from o2nc.kernels import passes

if TYPE_CHECKING:
    from o2nc.kernels.layout import Layout

WARPS = 4
FOLD, FOLD_WARPS = 2048, 8  # partial sums added at a time
TENSORS = 128  # tensors settled at a time


class Launch(NamedTuple):
    """A kernel with its grid and arguments."""

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    compiled_in: dict[str, Any]
    warps: int

    def __call__(self) -> None:
        """Launch on the current stream."""
        self.kernel[(self.programs,)](*self.arguments, **self.compiled_in, num_warps=self.warps)


class Chain:
    """Launches that are repeated with the same arguments: from the third time on, as one CUDA graph of our own.

    A launch costs the host more than it costs the device on a small model; a graph costs as little as one launch.
    """

    def __init__(self, launches: list[Launch], device: torch.device) -> None:
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


def launches(layout: "Layout", live: Tensor, scaled: bool) -> list[Launch]:
    """Return the launches of one step, in order.

    Args:
        layout: the tables.
        live: the table of gradients and numbers.
        scaled: whether a GradScaler's flag and scale count.
    """
    n, chunks, rule, counters = layout.n, layout.chunks, layout.rule, layout.counters
    numbers = layout.live.numbers(live)
    opening = (
        *(*counters, layout.keys, layout.constants, layout.now),
        *(live, numbers, layout.group_of, layout.book, layout.rows, layout.totals, layout.scaler, n),
    )
    law = {
        "SAMPLE": layout.law.sample,
        "WEIGHT_OF": layout.law.weight,
        "WEIGHTED": layout.law.weighted,
        "ESTIMATES": layout.law.estimates,
        "AVERAGED": layout.averaged,
        "SCALED_LOSS": scaled,
    }
    joint = rule.measure is not None
    settle = {"SETTLE": rule.settle, "GATHER": rule.gather, "JOINT": joint, "WIDTH": TENSORS}
    tables = (layout.which, layout.first, layout.sizes, layout.addresses, live, layout.now)
    chain = []
    if joint:
        tick = {"TICK": True, "SETTLE": None, "GATHER": None, "JOINT": False, "WIDTH": TENSORS}
        chain.append(Launch(passes.open_kernel, 1, opening, law | tick, 1))
        for low, number, compiled in layout.buckets:
            measured = (numbers, layout.group_of, layout.constants, layout.scaler, layout.partial, n, low, chunks)
            names = ("FLOOR", "X_TYPE", "A_TYPE", "B_TYPE", "C_TYPE", "CHUNK", "BLOCK")
            compiled_in = {"MEASURE": rule.measure, "SLOTS": compiled["SLOTS"], "SCALED_LOSS": scaled}
            compiled_in |= {name: compiled[name] for name in names}
            chain.append(Launch(passes.measure_kernel, number, (*tables, *measured), compiled_in, WARPS))
        folded = (layout.first, layout.now, layout.partial, layout.totals, n, chunks)
        chain.append(Launch(passes.total_kernel, n, folded, {"WIDTH": FOLD}, FOLD_WARPS))
    # one warp: the counters are read and written by the same threads
    chain.append(Launch(passes.open_kernel, 1, opening, law | {"TICK": not joint} | settle, 1))
    for low, number, compiled in layout.buckets:
        stepped = (*tables, layout.rows, layout.partial, n, low, chunks)
        chain.append(Launch(passes.step_kernel, number, stepped, compiled, WARPS))
    if layout.averaged:
        closed = (layout.first, layout.now, layout.rows, layout.book, layout.partial, n, chunks)
        chain.append(Launch(passes.close_kernel, n, closed, {"WIDTH": FOLD}, FOLD_WARPS))
    return chain
