"""Times of all contenders: their steps on one set of parameters, and whole training steps of ResNet-18.

A training step is made on random images of CIFAR-10's shape, and shows what an optimizer costs in its place: every
contender trains a model of its own, and they take turns in bursts of steps. On a GPU in two modes: launched one by
one, and the whole step (forward, backward, optimizer) replayed as one CUDA graph.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from o2nc_experiments.bench.contenders import (
    AGAIN,
    BASE,
    LONG_AVERAGE,
    Contender,
    LazyOptimizer,
    count,
    line_up,
    parameters,
)
from o2nc_experiments.bench.timing import (
    COPIED,
    COPIES,
    Copy,
    Progress,
    Step,
    Timing,
    by_events,
    capture,
    on_gpu,
    take_turns,
)
from o2nc_experiments.classification.resnet import ResNet18, layout
from o2nc_experiments.record import available

TRAINED = (BASE, AGAIN, "ScaledSGDM fused, average=momentum", f"ScaledSGDM fused, average={LONG_AVERAGE}")
MODES = {"cpu": ("eager",), "cuda": ("eager", "graph")}
WIDTH = {"cpu": 8, "cuda": 64}
BATCH = {"cpu": 32, "cuda": 128}
BURST = {"cpu": 2, "cuda": 20}  # steps between two looks at the clock


@dataclass(frozen=True)
class StepTime:
    """One contender on one set of parameters; times in seconds, None where they are not to be had.

    Attributes:
        model: the set of parameters.
        tensors: how many it has.
        numbers: how many they hold together.
        contender: its name.
        traffic: bytes per parameter that one step has to move.
        step: median time of a step.
        quartiles: of the time of a step.
        host: median time until ``step()`` returns, on a GPU.
        graph: median time of a step from a CUDA graph.
        ratio: of the step to that of SGD fused.
        peer: torch's own optimizer of the same kind.
        peer_ratio: of the step to that of the peer.
        error: why there are no times.
        graph_error: why there is no graph.
        copy: bytes per second of a plain copy, at the same time on a CPU, before on a GPU.
    """

    model: str
    tensors: int
    numbers: int
    contender: str
    traffic: int
    step: float | None
    quartiles: tuple[float, float] | None
    host: float | None
    graph: float | None
    ratio: float | None
    peer: str
    peer_ratio: float | None
    error: str | None
    graph_error: str | None
    copy: float

    @property
    def rate(self) -> float | None:
        """Bytes per second that the step has to move."""
        return self.traffic * self.numbers / self.step if self.step else None

    @property
    def share(self) -> float | None:
        """The same over that of a copy."""
        return None if self.rate is None else self.rate / self.copy


@dataclass(frozen=True)
class TrainingTime:
    """One contender in one mode.

    Attributes:
        contender: its name.
        mode: eager or graph.
        step: median seconds of a training step.
        ratio: median over the rounds of the ratio to SGD fused.
        error: why there are no times.
    """

    contender: str
    mode: str
    step: float | None
    ratio: float | None
    error: str | None


def needed(model: str, kind: str) -> int:
    """Return the bytes that the hungriest contender, parameters, gradients and the copy take together."""
    return count(model) * (8 + max(c.held for c in line_up(kind))) + 2 * COPIED[kind]


def measure_steps(
    model: str, device: torch.device, rounds: int, seed: int, progress: Progress | None = None
) -> Iterator[StepTime]:
    """Time all contenders on one set of parameters, which they share.

    On a CPU, whose memory is faster at one moment than at another, they take turns, with a copy among them, unless
    they are too large to be held together. On a GPU they come one after another.

    Args:
        model: a name in `MODELS`.
        device: where; the current one if it is a GPU.
        rounds: timed steps of every contender.
        seed: of parameters and gradients.
        progress: called with the number of steps made since its last call.

    Yields:
        One row per contender, as soon as it is known.
    """
    params = parameters(model, device, seed)
    everyone = line_up(device.type)
    free = available(device)
    together = free is None or sum(c.held for c in everyone) * count(model) < free
    groups = [everyone] if device.type == "cpu" and together else [[c] for c in everyone]
    advance = progress or (lambda made: None)
    copy = Copy(device, seed)
    if device.type == "cuda":
        copy.step()
        rate = copy.rate(by_events(copy.step, COPIES))
    earlier: dict[str, Timing] = {}
    for group in groups:
        turns = {c.name: LazyOptimizer(c, params).step for c in group}
        if device.type == "cuda":
            earlier |= {name: on_gpu(step, rounds) for name, step in turns.items()}
            advance(rounds)
        else:
            found = take_turns(
                turns | {"copy": copy.step}, rounds, partial(lambda n, made: advance(n * made), len(group))
            )
            rate = copy.rate(found.pop("copy").times)
            earlier |= found
        del turns
        release(device)
        for contender in group:
            yield step_time(model, params, contender, earlier, rate, paired=len(groups) == 1)


def release(device: torch.device) -> None:
    """Give back what is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def step_time(
    model: str, params: list[Tensor], contender: Contender, timings: dict[str, Timing], copy: float, *, paired: bool
) -> StepTime:
    """Return the row of one contender.

    Args:
        model: the set of parameters.
        params: its parameters.
        contender: the contender.
        timings: what is known, by name.
        copy: bytes per second of a copy.
        paired: whether the rounds of all were made in turns, so that a ratio is taken within each.
    """
    mine = timings[contender.name]

    def ratio(other: str) -> float | None:
        return ratio_of(mine, timings.get(other), paired=paired)

    times: dict[str, Any] = {"step": None, "quartiles": None}
    if mine.times:
        low, _, high = quantiles(mine.times, n=4, method="inclusive") if len(mine.times) > 1 else [mine.times[0]] * 3
        times = {"step": median(mine.times), "quartiles": (low, high)}
    return StepTime(
        model=model,
        tensors=len(params),
        numbers=sum(p.numel() for p in params),
        contender=contender.name,
        traffic=contender.traffic,
        **times,
        host=mine.host,
        graph=mine.graph,
        ratio=ratio(BASE),
        peer=contender.peer,
        peer_ratio=ratio(contender.peer),
        error=mine.error,
        graph_error=mine.graph_error,
        copy=copy,
    )


def ratio_of(mine: Timing, base: Timing | None, *, paired: bool) -> float | None:
    """Return the median ratio of paired times, or the ratio of the medians; None where one has no times."""
    if base is None or not mine.times or not base.times:
        return None
    if paired:
        return median(t / b for t, b in zip(mine.times, base.times, strict=True))
    return median(mine.times) / median(base.times)


class Trainer:
    """A model, its data and its optimizer, made at the first burst."""

    def __init__(self, contender: Contender, device: torch.device, mode: str, seed: int) -> None:
        self.contender, self.device, self.mode, self.seed = contender, device, mode, seed

    @cached_property
    def step(self) -> Step:
        """What makes one training step."""
        device, kind = self.device, self.device.type
        with torch.random.fork_rng([device] if kind == "cuda" else []):
            torch.manual_seed(self.seed)
            model = ResNet18(width=WIDTH[kind]).to(device, memory_format=layout(device))  # type: ignore[call-overload]
            images = torch.randn(BATCH[kind], 3, 32, 32).to(device, memory_format=layout(device))
            labels = torch.randint(10, (BATCH[kind],)).to(device)
        optimizer = self.contender.make(list(model.parameters()))

        def learn() -> None:
            # without autocast's cache, which must not outlive a capture; no weight is used twice, so it saves nothing
            with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False):
                loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()

        if self.mode == "graph":
            return capture(learn, before=optimizer.zero_grad)

        def eager() -> None:
            optimizer.zero_grad()
            learn()

        return eager

    def burst(self) -> None:
        """Make some steps and wait for them."""
        for _ in range(BURST[self.device.type]):
            self.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def measure_training(
    device: torch.device, rounds: int, seed: int, progress: Progress | None = None
) -> Iterator[TrainingTime]:
    """Time training steps.

    Args:
        device: where; the current one if it is a GPU.
        rounds: timed bursts of every contender and mode.
        seed: of model and data.
        progress: called with the number of bursts made since its last call.

    Yields:
        One row per mode and contender.
    """
    chosen = [c for c in line_up(device.type) if c.name in TRAINED]
    chosen.sort(key=lambda c: TRAINED.index(c.name))
    advance = progress or (lambda made: None)
    for mode in MODES[device.type]:
        trainers = {c.name: Trainer(c, device, mode, seed) for c in chosen}
        timings = take_turns(
            {name: t.burst for name, t in trainers.items()}, rounds, lambda made: advance(made * len(chosen))
        )
        del trainers
        gc.collect()
        for name, timing in timings.items():
            step = median(timing.times) / BURST[device.type] if timing.times else None
            yield TrainingTime(name, mode, step, ratio_of(timing, timings[BASE], paired=True), timing.error)
