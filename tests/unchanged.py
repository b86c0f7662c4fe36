"""What a model and the global generators are, bit by bit: to see that something leaves them as they were."""

import random
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


def draw():
    """Draw from the global generators of torch, Python and NumPy."""
    return torch.rand(()) + random.random() + np.random.normal()  # noqa: NPY002


def generators():
    """Return the states of the global generators of torch, Python and NumPy."""
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


class Counting(nn.Linear):
    """Exchanges its buffers in every forward pass."""

    def __init__(self):
        super().__init__(4, 6)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("cached", None)

    def forward(self, x):
        self.seen, self.cached = self.seen + len(x), x
        return super().forward(x)


def restless():
    """Return a model with all that a forward pass may change: statistics, buffers that are exchanged, dropout."""
    torch.manual_seed(0)
    return nn.Sequential(Counting(), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1))


def state_of(model):
    """Return a model's tensors and gradients, which they are, where and with what bits, its modes, the generators."""
    tensors = [t for p in model.parameters() for t in (p, p.grad)] + list(model.buffers())
    bits = [None if t is None else (id(t), t.data_ptr(), t.detach().numpy().tobytes()) for t in tensors]
    return bits, [(part.training, getattr(part, "momentum", None)) for part in model.modules()], generators()


@contextmanager
def unchanged(model):
    """Assert that a model and the generators are after a block as they were before it."""
    before, _alive = state_of(model), [*(p.grad for p in model.parameters()), *model.buffers()]  # ids stay theirs
    yield
    assert state_of(model) == before
