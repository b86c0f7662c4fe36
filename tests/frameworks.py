"""What the tests of trainers share."""

import torch

from registry import OURS

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
