"""Whole training steps of ResNet-18 on random images of CIFAR-10's shape: what an optimizer costs in its place.

Every contender trains a model of its own, and they take turns in bursts of steps. On a GPU in two modes: launched one
by one, and the whole step (forward, backward, optimizer) replayed as one CUDA graph.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import torch
from torch.nn.functional import cross_entropy

from o2nc_experiments.bench.contenders import AGAIN, BASE, LONG_AVERAGE, Contender, line_up
from o2nc_experiments.bench.steps import ratio_of
from o2nc_experiments.bench.timing import Progress, Step, capture, take_turns
from o2nc_experiments.classification.resnet import ResNet18, layout

TRAINED = (BASE, AGAIN, "ScaledSGDM fused, average=momentum", f"ScaledSGDM fused, average={LONG_AVERAGE}")
MODES = {"cpu": ("eager",), "cuda": ("eager", "graph")}
WIDTH = {"cpu": 8, "cuda": 64}
BATCH = {"cpu": 32, "cuda": 128}
BURST = {"cpu": 2, "cuda": 20}  # steps between two looks at the clock


@dataclass(frozen=True)
class TrainingRow:
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
) -> Iterator[TrainingRow]:
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
    report = progress or (lambda made: None)
    for mode in MODES[device.type]:
        trainers = {c.name: Trainer(c, device, mode, seed) for c in chosen}
        timings = take_turns(
            {name: t.burst for name, t in trainers.items()}, rounds, lambda made: report(made * len(chosen))
        )
        del trainers
        gc.collect()
        for name, timing in timings.items():
            step = median(timing.times) / BURST[device.type] if timing.times else None
            yield TrainingRow(name, mode, step, ratio_of(timing, timings[BASE], paired=True), timing.error)
