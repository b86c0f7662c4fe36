"""Times of all contenders: their steps on one set of parameters, and whole training steps of ResNet-18.

A training step is made on random images of CIFAR-10's shape, and shows what an optimizer costs in its place: every
contender trains a model of its own, and they take turns in bursts of steps. On a GPU in two modes: launched one by
one, and the whole step (forward, backward, optimizer) replayed as one CUDA graph.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from statistics import median, quantiles

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from o2nc_experiments.bench.contenders import AGAIN, BASE, LONG_AVERAGE, Contender, count, line_up, parameters
from o2nc_experiments.bench.timing import COPIED, COPIES, Copy, Step, Timing, by_events, capture, on_gpu, take_turns
from o2nc_experiments.classification.resnet import autocast, layout, make_resnet
from o2nc_experiments.pool import Progress, ignore
from o2nc_experiments.record import available

TRAINED = (BASE, AGAIN, "ScaledSGDM fused, average=momentum", f"ScaledSGDM fused, average={LONG_AVERAGE}")
MODES = {"cpu": ("eager",), "cuda": ("eager", "graph")}
WIDTH = {"cpu": 8, "cuda": 64}
BATCH = {"cpu": 32, "cuda": 128}
BURST = {"cpu": 2, "cuda": 20}  # steps between two looks at the clock


@dataclass(frozen=True)
class StepTime:
    """One contender on one set of parameters; times in seconds, None where they are not to be had."""

    model: str  # the set of parameters
    tensors: int  # how many it has
    numbers: int  # how many they hold together
    contender: str  # its name
    traffic: int  # bytes per parameter that one step has to move
    step: float | None  # median time of a step
    quartiles: tuple[float, float] | None  # of the time of a step
    host: float | None  # median time until ``step()`` returns, on a GPU
    graph: float | None  # median time of a step from a CUDA graph
    ratio: float | None  # of the step to that of SGD fused
    peer: str  # torch's own optimizer of the same kind
    peer_ratio: float | None  # of the step to that of the peer
    error: str | None  # why there are no times
    graph_error: str | None  # why there is no graph
    copy: float  # bytes per second of a plain copy, at the same time on a CPU, before on a GPU

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
    """One contender in one mode."""

    contender: str  # its name
    mode: str  # eager or graph
    step: float | None  # median seconds of a training step
    ratio: float | None  # median over the rounds of the ratio to SGD fused
    error: str | None  # why there are no times


def needed(model: str, kind: str) -> int:
    """Return the bytes that the hungriest contender, parameters, gradients and the copy take together."""
    return count(model) * (8 + max(c.held for c in line_up(kind))) + 2 * COPIED[kind]


def release(device: torch.device) -> None:
    """Give back what is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def lazy_step(contender: Contender, params: list[Tensor]) -> Step:
    """Return a contender's step, which makes the optimizer: one that cannot be made fails there, like any other."""

    @cache
    def optimizer() -> Optimizer:
        return contender.make(params)

    return lambda: optimizer().step()


def measure_steps(
    model: str, device: torch.device, rounds: int, seed: int, progress: Progress = ignore
) -> Iterator[StepTime]:
    """Time all contenders on one set of parameters, which they share; yield each row as soon as it is known.

    On a CPU, whose memory is faster at one moment than at another, they take turns, with a copy among them, unless
    they are too large to be held together. On a GPU they come one after another. The progress is called with the
    number of steps made since its last call.
    """
    params = parameters(model, device, seed)
    everyone = line_up(device.type)
    free = available(device)
    together = free is None or sum(c.held for c in everyone) * count(model) < free
    groups = [everyone] if device.type == "cpu" and together else [[c] for c in everyone]
    copy = Copy(device, seed)
    if device.type == "cuda":
        copy.step()
        rate = copy.rate(by_events(copy.step, COPIES))
    earlier: dict[str, Timing] = {}
    for group in groups:
        turns = {c.name: lazy_step(c, params) for c in group}
        if device.type == "cuda":
            earlier |= {name: on_gpu(step, rounds) for name, step in turns.items()}
            progress(rounds)
        else:
            advance = partial(lambda n, made: progress(n * made), len(group))
            found = take_turns(turns | {"copy": copy.step}, rounds, advance)
            rate = copy.rate(found.pop("copy").times)
            earlier |= found
        del turns
        release(device)
        for contender in group:
            yield step_time(model, params, contender, earlier, rate, paired=len(groups) == 1)


def step_time(
    model: str, params: list[Tensor], contender: Contender, timings: dict[str, Timing], copy: float, *, paired: bool
) -> StepTime:
    """Return the row of one contender; where all took turns (``paired``), ratios are taken within each round."""
    mine, spread = timings[contender.name], None
    if mine.times:
        low, _, high = quantiles(mine.times, n=4, method="inclusive") if len(mine.times) > 1 else [mine.times[0]] * 3
        spread = (low, high)
    return StepTime(
        model=model,
        tensors=len(params),
        numbers=sum(p.numel() for p in params),
        contender=contender.name,
        traffic=contender.traffic,
        step=median(mine.times) if mine.times else None,
        quartiles=spread,
        host=mine.host,
        graph=mine.graph,
        ratio=ratio_of(mine, timings.get(BASE), paired=paired),
        peer=contender.peer,
        peer_ratio=ratio_of(mine, timings.get(contender.peer), paired=paired),
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


def training_step(contender: Contender, device: torch.device, mode: str, seed: int) -> Step:
    """Return what makes one training step of a new model on its own data."""
    kind, source = device.type, torch.Generator().manual_seed(seed)
    model = make_resnet(WIDTH[kind], seed, device)
    images = torch.randn(BATCH[kind], 3, 32, 32, generator=source).to(device, memory_format=layout(device))
    labels = torch.randint(10, (BATCH[kind],), generator=source).to(device)
    optimizer = contender.make(list(model.parameters()))

    def learn() -> None:
        with autocast(device):
            loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    def eager() -> None:
        optimizer.zero_grad()
        learn()

    return capture(learn, before=optimizer.zero_grad) if mode == "graph" else eager


def training_burst(contender: Contender, device: torch.device, mode: str, seed: int) -> Step:
    """Return what makes some training steps and waits for them; model and optimizer are made at the first call."""
    step = cache(lambda: training_step(contender, device, mode, seed))

    def burst() -> None:
        for _ in range(BURST[device.type]):
            step()()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return burst


def measure_training(
    device: torch.device, rounds: int, seed: int, progress: Progress = ignore
) -> Iterator[TrainingTime]:
    """Time training steps in bursts; yield one row per mode and contender."""
    chosen = sorted((c for c in line_up(device.type) if c.name in TRAINED), key=lambda c: TRAINED.index(c.name))
    for mode in MODES[device.type]:
        bursts = {c.name: training_burst(c, device, mode, seed) for c in chosen}
        timings = take_turns(bursts, rounds, lambda made: progress(made * len(chosen)))
        del bursts
        gc.collect()
        for name, timing in timings.items():
            step = median(timing.times) / BURST[device.type] if timing.times else None
            yield TrainingTime(name, mode, step, ratio_of(timing, timings[BASE], paired=True), timing.error)
