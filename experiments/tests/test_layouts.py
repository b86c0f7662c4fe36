"""Memory formats of convolutions on a CPU: the default one, in all that trains or measures a network."""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cifar10_made import CPU, images, train_by_hand
from o2nc_experiments.bench import measure
from o2nc_experiments.bench.contenders import line_up
from o2nc_experiments.cifar10.arms import parse
from o2nc_experiments.cifar10.options import Settings
from o2nc_experiments.cifar10.training import Trial
from o2nc_experiments.classification.resnet import layout
from o2nc_experiments.demo import digits

pytestmark = pytest.mark.usefixtures("one_thread")

BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "cifar10.py"


class Convolutions(TorchDispatchMode):
    """Counts convolutions and their gradients, and keeps the shapes of those that take or give ``channels_last``."""

    def __init__(self):
        super().__init__()
        self.forward, self.backward, self.channels_last = 0, 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name.startswith("convolution"):
            self.backward += name == "convolution_backward"
            self.forward += name == "convolution"
            made = given if isinstance(given, tuple) else (given,)
            self.channels_last += [x.shape for x in (*args, *made) if is_channels_last(x)]
        return given


def is_channels_last(x):
    """Say so of tensors of which only that can be said; where each pixel has one number, all formats are the same."""
    if not isinstance(x, torch.Tensor) or x.dim() != 4:
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def train_cifar10(width):
    settings = Settings(epochs=2, batch=16, average=0.9, width=width)
    train_by_hand(Trial(parse("sgdm+exponential"), 0, settings, images(32, 8)))


def time_training(width, monkeypatch):
    for knob, value in ((measure.WIDTH, width), (measure.BATCH, 2), (measure.BURST, 1)):
        monkeypatch.setitem(knob, "cpu", value)
    measure.training_burst(line_up("cpu")[0], CPU, "eager", 0)()


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8])
def test_convolutions_on_a_cpu_have_the_default_layout(width, monkeypatch):
    """In channels_last, torch 2.13 on AVX2 writes the weights' gradients of shortcuts beyond their end."""
    for run in (lambda: train_cifar10(width), lambda: time_training(width, monkeypatch)):
        with Convolutions() as seen:
            run()
        assert seen.forward >= seen.backward >= 20  # once at least through each of the network's
        assert seen.channels_last == []


def test_the_digits_have_the_default_layout():
    with Convolutions() as seen:
        digits.train(next(iter(digits.ARMS)), 0, 1, digits.load())
    assert seen.backward > 0
    assert seen.channels_last == []


def test_the_benchmark_has_the_default_layout():
    error = runpy.run_path(str(BENCHMARK))["error"]
    with Convolutions() as seen:
        found = error((nn.Conv2d(2, 4, 1, stride=2, bias=False), (8, 2, 16, 16)), CPU)
    assert (seen.forward, seen.backward) == (2, 2)
    assert seen.channels_last == []
    assert max(found[key] for key in ("output", "input", "weights")) < 0.02  # bfloat16 has 8 bits


def test_gpus_have_channels_last():
    assert layout(torch.device("cuda", 1)) == torch.channels_last
