"""Runs that are logged, and what is logged; for the tests of the logger, of shards and of trainers."""

import torch

from o2nc.logger import Row
from problem import network, noise
from registry import OURS, descend, ours_of


def make(name="ScaledSGDM"):
    model = network()
    return model, OURS[name](model.named_parameters())


def train(model, optimizer, steps, after=lambda: None):
    for _ in range(steps):
        x = noise(int(ours_of(optimizer)["step"]), 16, 4, dtype=torch.float32)
        descend(optimizer, lambda: (model(x) - x[:, :1]).abs().mean())  # noqa: B023
        after()


def read(path):
    """Return the rows of a log."""
    lines = [line.split(",") for line in path.read_text().splitlines()]
    assert tuple(lines[0]) == Row._fields
    return [Row(int(step), verdict, *map(float, numbers)) for step, verdict, *numbers in lines[1:]]


def steps(path):
    return [row.step for row in read(path)]


# what a run logs
NAMES = {"run/verdict", *(f"certificate/{key}" for key in ("value", "gradient", "spread", "progress", "ess"))}


def sgdm(model):
    return OURS["ScaledSGDM"](model.parameters())


def same(a, b):
    """Return whether two state dicts are the same, bitwise."""
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def events_of(folder):
    """Return what TensorBoard reads of the one run in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = (path for path in folder.iterdir() if path.is_dir())
    return EventAccumulator(str(run)).Reload()


def forget_accelerators():
    """Forget the settings of earlier Accelerators, which accelerate keeps for the whole process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
