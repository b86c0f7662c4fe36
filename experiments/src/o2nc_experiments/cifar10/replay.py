"""Work that is done again and again on a GPU, captured as a CUDA graph after the first times.

The first calls do the work for real, so nothing has to be undone: they compile, choose kernels and make the
optimizer's state. What follows replays their launches.
"""

from collections.abc import Callable

import torch

WARM_UP = 3


class Replay:
    """A function without arguments, launched as one graph from its fourth call on.

    Args:
        work: takes all that changes from tensors on the device, and leaves its results there.
        before: called before ``work`` as long as that is not captured, and once before the capture.
        device: on a CPU every call calls ``work``; on a GPU the current stream must not be the default one.
        captured: whether ``work`` may be captured.
    """

    def __init__(
        self, work: Callable[[], object], before: Callable[[], object], device: torch.device, *, captured: bool = True
    ) -> None:
        self.work, self.before = work, before
        self.patience = WARM_UP if captured and device.type == "cuda" else -1
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the work, or have it done."""
        if self.graph is not None:
            self.graph.replay()
            return
        self.before()
        if self.patience:
            self.patience -= 1
            self.work()
            return
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # other trials' work goes on on their streams meanwhile
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self.work()
        self.graph = graph
        self.graph.replay()
