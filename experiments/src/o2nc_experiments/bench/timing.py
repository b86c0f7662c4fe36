"""Seconds that a step takes: on a CPU in turns, on a GPU by events, by the host's clock and from a CUDA graph."""

import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import torch

from o2nc_experiments.pool import Progress, ignore

WARM_UP = 5  # steps before the clock starts: they make the state and compile kernels
SETTLING = 0.3  # seconds of steps before a GPU's clock starts: it has to come up to speed
COPIED = {"cpu": 2**28, "cuda": 2**30}  # bytes of the copy that gives the bandwidth
COPIES = 20

Step = Callable[[], object]


@dataclass
class Timing:
    """What was measured of one contender."""

    times: list[float] = field(default_factory=list)  # seconds per step, one per round
    host: float | None = None  # median seconds until ``step()`` returns to an idle host, on a GPU
    graph: float | None = None  # median seconds of a replay of the step's CUDA graph
    error: str | None = None  # why there are no times
    graph_error: str | None = None  # why there is no graph


def reason(error: Exception) -> str:
    """Return the first sentence of an exception, with its class where that says more."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = lines[0].split(". ")[0].strip() if lines else ""
    return said if said and isinstance(error, RuntimeError) else f"{type(error).__name__}: {said}".removesuffix(": ")


def take_turns(steps: Mapping[str, Step], rounds: int, progress: Progress = ignore) -> dict[str, Timing]:
    """Time all steps round by round, so that whatever else the machine does falls on all alike.

    Each step ends only when its work is done; one that raises is not called again. The progress is called with 1
    after each timed round.
    """
    found = {name: Timing() for name in steps}
    names = list(steps)
    order = random.Random(0)
    for turn in range(WARM_UP + rounds):
        for name in order.sample(names, len(names)):  # what a step finds in the cache depends on who was before it
            timing = found[name]
            if timing.error is not None:
                continue
            begin = perf_counter()
            try:
                steps[name]()
            except Exception as error:
                timing.times, timing.error = [], reason(error)
                continue
            if turn >= WARM_UP:
                timing.times.append(perf_counter() - begin)
        if turn >= WARM_UP:
            progress(1)
    return found


def on_gpu(step: Step, rounds: int) -> Timing:
    """Time one step on the current CUDA device, in three ways.

    Events stand around every step, and nothing waits between the steps: a device that is slower than the host gives
    its own time, one that waits for the host shows the gaps between launches. The graph has no gaps.
    """
    timing = Timing()
    try:
        with warnings.catch_warnings():  # Adam's, that it can be captured and is not: it will be
            warnings.filterwarnings("ignore", ".*capturable=True", UserWarning)
            begin, made = perf_counter(), 0
            while made < WARM_UP or perf_counter() - begin < SETTLING:
                step()
                torch.cuda.synchronize()
                made += 1
        timing.times = by_events(step, rounds)
        timing.host = median(by_host(step, rounds))
    except Exception as error:
        return Timing(error=reason(error))
    try:
        timing.graph = median(by_events(capture(step), rounds))
    except Exception as error:
        timing.graph_error = reason(error)
    return timing


def by_events(step: Step, rounds: int) -> list[float]:
    """Return the seconds between an event before and one after every step."""
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds)]
    torch.cuda.synchronize()
    for begin, end in marks:
        begin.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in marks]


def by_host(step: Step, rounds: int) -> list[float]:
    """Return the seconds until the call of every step returns, with an idle device at its beginning."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = perf_counter()
        step()
        times.append(perf_counter() - begin)
    torch.cuda.synchronize()
    return times


def capture(step: Step, before: Step = lambda: None) -> Step:
    """Return the replay of one step as a CUDA graph; ``before`` precedes every warm-up step and the capture.

    What a step takes from the host, such as the s of a step that is not fused, is frozen in it: for timing only.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is made lazily must not be made in the capture
        for _ in range(3):
            before()
            step()
    torch.cuda.current_stream().wait_stream(side)
    before()
    graph = torch.cuda.CUDAGraph()
    # the outer context brings the current stream back, which a capture that fails does not
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        step()

    def replay(_alive: tuple[Step, Step] = (step, before)) -> None:  # what the graph reads must not be freed
        graph.replay()

    return replay


class Copy:
    """A large copy of random numbers on the current device, the measure of what its memory can do."""

    def __init__(self, device: torch.device, seed: int) -> None:
        source = torch.Generator(device).manual_seed(seed)
        self.source = torch.randn(COPIED[device.type] // 4, device=device, generator=source)
        self.target = torch.empty_like(self.source)

    def step(self) -> None:
        """Copy."""
        self.target.copy_(self.source)

    def rate(self, times: list[float]) -> float:
        """Return the bytes read and written per second."""
        return 2 * self.source.nbytes / median(times)
