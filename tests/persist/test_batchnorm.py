"""Inside the block BatchNorm has the statistics of the batches; after it, to the bit, those from before."""

import copy
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from o2nc.persist.batchnorm import Statistics
from problem import noise
from registry import identical
from unchanged import state_of, unchanged

pytestmark = pytest.mark.usefixtures("one_thread")

BATCHES = [noise(n, n, 5) * n for n in (4, 9, 6)]


@contextmanager
def recalibrated(model, batches):
    """Do as ``averaged(model, batches=…)`` does, with the weights as they are."""
    statistics = Statistics(model)
    try:
        statistics.recompute(batches)
        yield
    finally:
        statistics.restore()


def network(dropout=0.0, norm=nn.BatchNorm1d):
    """Two layers with statistics and a past, the second of them with cumulative averages."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 4), norm(4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 3), norm(3, momentum=None)
    ).double()
    model(torch.randn(8, 5, dtype=torch.float64))
    return model


def statistics(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def updated(model, batches=BATCHES):
    """Return the statistics that torch's `update_bn` gives a copy of the model."""
    model = copy.deepcopy(model)
    update_bn(batches, model)
    return statistics(model)


NORMS = [nn.BatchNorm1d, nn.SyncBatchNorm, nn.LazyBatchNorm1d, type("Derived", (nn.BatchNorm1d,), {})]
FORMS = [lambda x: x, lambda x: (x, 1), lambda x: [x, 1], lambda x: {"input": x}, lambda x: ({"input": x}, 1)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("norm", NORMS)
def test_they_are_those_of_update_bn(norm, form):
    model = network(norm=(lambda _, **options: norm(**options)) if norm is nn.LazyBatchNorm1d else norm)
    with unchanged(model), recalibrated(model, map(form, BATCHES)):
        identical(statistics(model), updated(model))


def test_the_callers_autocast_holds():
    model = network().float()
    batches = [x.float() for x in BATCHES]
    with torch.autocast("cpu", torch.bfloat16):
        expected = updated(model, batches)
        with recalibrated(model, batches):
            identical(statistics(model), expected)
    with recalibrated(model, batches):
        assert not torch.equal(model[1].running_mean, expected["1.running_mean"])


class Frozen(nn.Sequential):
    """A model that keeps its first layers in evaluation mode, as is done in fine-tuning."""

    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


def failing(batches):
    yield from batches
    raise KeyError("iterator")


@pytest.mark.parametrize("mode", ["train", "eval", "frozen"])
@pytest.mark.parametrize("where", ["nowhere", "iterator", "model", "block"])
def test_everything_comes_back_to_the_bit(where, mode):
    model = Frozen(*network(dropout=0.5)) if mode == "frozen" else network(dropout=0.5)
    model.train(mode != "eval")
    assert model[1].training == (mode == "train")
    model[1].running_mean.copy_(torch.tensor([float("nan"), -0.0, 5e-324, float("-inf")]))
    expected, before = updated(network()), state_of(model)
    batches = {"iterator": failing(BATCHES), "model": [*BATCHES, torch.ones(2, 6)]}.get(where, BATCHES)
    outcome = nullcontext() if where == "nowhere" else pytest.raises((KeyError, RuntimeError))
    with outcome, recalibrated(model, batches):
        assert state_of(model)[1] == before[1]  # flags and momenta
        identical(statistics(model), expected)
        model.eval()  # what the block does to modes, momenta and statistics is undone, too
        model[1].momentum = 0.7
        model[1].running_mean.zero_()
        if where == "block":
            raise KeyError("block")
    assert state_of(model) == before  # nor did dropout draw


def test_gradients_flow_inside_and_not_before():
    model = network()
    before = []
    hook = model.register_forward_hook(lambda *arguments: before.append(arguments[-1].requires_grad))
    with recalibrated(model, BATCHES):
        hook.remove()
        assert before == [False] * len(BATCHES)
        model.eval()(BATCHES[0]).sum().backward()
    assert model[0].weight.grad.abs().sum() > 0


def test_layers_without_running_statistics_are_left_alone():
    """One has none; another has them from the past, and later layers see what it makes of a batch with these."""
    model = network()
    model[1].track_running_stats = False
    model.append(nn.BatchNorm1d(3, track_running_stats=False).double())
    frozen = statistics(model[1])
    with unchanged(model), recalibrated(model, BATCHES):
        identical(statistics(model[1]), frozen)
        means = [model[:5].eval()(x).mean(0) for x in BATCHES]
        torch.testing.assert_close(model[5].running_mean, sum(means) / len(means))


switched_on = nn.BatchNorm1d(5, track_running_stats=False)
switched_on.track_running_stats = True  # too late: it has no buffers


@pytest.mark.parametrize("norm", [nn.LayerNorm(5), nn.BatchNorm1d(5, track_running_stats=False), switched_on])
def test_without_statistics_no_batch_is_asked_for(norm):
    batches = iter(BATCHES)
    model = nn.Sequential(nn.Linear(5, 5), norm)
    before = state_of(model)
    with recalibrated(model, batches):
        assert state_of(model) == before
    assert next(batches) is BATCHES[0]


def test_a_layer_that_no_batch_reaches_keeps_its_statistics():
    model = network()
    model[2].register_module("aside", copy.deepcopy(model[1]))  # Tanh does not call it
    before = statistics(model[2].aside)
    with recalibrated(model, BATCHES):
        identical(statistics(model[2].aside), before)
        assert model[1].num_batches_tracked == len(BATCHES)


def test_no_batches_are_refused():
    model = network()
    used = iter(BATCHES)
    with recalibrated(model, used):
        pass
    words = "batches must not be empty"
    with unchanged(model), pytest.raises(ValueError, match=words), recalibrated(model, used):
        pytest.fail("the block was entered")
