"""find_lr: what it finds where the best is known, that nothing is left of its runs, and what it refuses."""

import math
from contextlib import nullcontext
from functools import partial
from itertools import count

import pytest
import torch
from torch import nn, optim

import o2nc
from o2nc.optimizers.find_lr import HELD_OUT
from problem import noise
from refusals import refusals
from unchanged import draw, restless, unchanged

WINDOW = o2nc.Polynomial(12)


def quadratic(start=3.0):
    """Return a parameter, F(x) = ½‖x‖², on which SGD with lr = 1 arrives in one step, and SGD on it."""
    x = nn.Parameter(torch.full((4,), start, dtype=torch.float64))
    return x, lambda _: x.square().sum() / 2, lambda lr: o2nc.SGD([x], lr=lr, average=WINDOW)


def twin(losses, rough, before, probe, steps):
    """Return lr, low and high, in the words of the module's docstring."""
    least = min(losses.values())
    weights = {lr: math.exp((least - loss) / (0.02 * (before - least))) for lr, loss in losses.items()}
    log = sum(w * math.log2(lr) for lr, w in weights.items()) / sum(weights.values())
    failed = [lr for lr, loss in losses.items() if loss >= before and math.log2(lr) > log]
    failed += [lr for lr, loss in (rough | losses).items() if loss == math.inf]
    log = min([log, *(math.log2(lr) - 2 for lr in failed)])
    variance = sum(w * (math.log2(lr) - log) ** 2 for lr, w in weights.items()) / sum(weights.values())
    octaves = math.log2(steps / probe)
    width = 2 * (math.sqrt(variance + 1 / 12) + octaves / 10)
    return [2 ** (log - octaves / 3 + shift) for shift in (0, -width, width)]


@pytest.mark.parametrize("start", [1e-4, 0.3, 50.0])
def test_the_best_of_a_quadratic(start):
    """After one step at lr = 1 the run stands still; from lr = 2 on it diverges."""
    _, loss, make = quadratic()
    found = o2nc.find_lr(make, loss, range(50), steps=20, probe=20, start=start)
    assert 0.25 < found.lr < 1.5
    assert max(found.losses.values()) > 18  # one diverged
    assert [found.lr, found.low, found.high] == pytest.approx(twin(found.losses, {}, 18, 20, 20))
    assert len(found.losses) <= 6


@pytest.mark.parametrize("start", [1e-3, 0.03, 4.0])
def test_the_mean_is_the_twins(start):
    x = nn.Parameter(torch.full((5,), 2.0))
    tried = []

    def loss(t):
        return (x - noise(t, 5)).square().sum()

    options = {"steps": 300, "probe": 30, "start": start, "callback": lambda lr, loss: tried.append((lr, loss))}
    found = o2nc.find_lr(partial(o2nc.SGD, [x], momentum=0.9, average=WINDOW), loss, range(100), **options)
    rough = dict(tried[: len(tried) - len(found.losses)])
    assert (dict(tried[len(rough) :]), found.steps) == (found.losses, 300)
    before = float(torch.stack([loss(t) for t in range(HELD_OUT)]).mean().detach())
    assert [found.lr, found.low, found.high] == pytest.approx(twin(found.losses, rough, before, 30, 300))
    for losses, factor in (rough, 4), (found.losses, 2):
        best = min(losses, key=losses.get)
        assert {best / factor, best * factor} <= losses.keys()
    assert min(rough, key=rough.get) in found.losses


def test_a_first_look_that_is_too_short_is_repeated():
    """Where a quarter of the steps lowers the loss by less than 1 %, the first search gets all of them."""
    x, lengths = nn.Parameter(torch.ones(3)), []

    def make(lr):
        opt, at = o2nc.SGD([x], lr=lr, average=WINDOW), len(lengths)
        lengths.append(0)
        opt.register_step_post_hook(lambda *_: lengths.__setitem__(at, lengths[at] + 1))
        return opt

    def loss(t):  # the first batches teach nothing
        return floor + (x.square() * (t < HELD_OUT or t >= HELD_OUT + 10)).sum()

    floor = 10
    found = o2nc.find_lr(make, loss, range(36), steps=20, start=0.1)
    short = lengths.count(5)
    assert lengths == [0] + [5] * short + [20] * (len(lengths) - short - 1)  # the first tells the parameters
    assert lengths.count(20) - len(found.losses) >= 3
    floor = 1000
    with pytest.warns(UserWarning, match="in 20 steps the loss fell from 1003 to 1000 only; .* chance: pass probe=…"):
        o2nc.find_lr(make, loss, range(36), steps=20, start=0.1)


MAKERS = {
    "SGD": lambda model, lr: o2nc.SGD(model.parameters(), lr=lr, momentum=0.9, average=WINDOW),
    "AdamW": lambda model, lr: o2nc.AdamW(model.parameters(), lr=lr, average=0.9),
    "extend": lambda model, lr: o2nc.extend(optim.NAdam(model.parameters(), lr=lr), average=WINDOW),
    "ScaledSGDM": lambda model, lr: o2nc.ScaledSGDM(model.parameters(), lr=lr, average=0.9),
    "two": lambda model, lr: [MAKERS["AdamW"](model[0], lr), MAKERS["SGD"](model[3], lr / 10)],
}


@pytest.mark.parametrize(("name", "stops"), [*((name, False) for name in MAKERS), ("two", True)])
def test_nothing_is_left_of_the_runs(name, stops):
    """Parameters, buffers, gradients, modes and random numbers are bitwise as before, also after an error."""
    model, calls = restless(), count()
    model[1].eval()
    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=16, shuffle=True)
    model(torch.ones(2, 4)).sum().backward()

    def loss(x):
        if stops and next(calls) == 40:
            raise KeyboardInterrupt
        return (model(x)[:, 0] - x.sum(1)).square().mean() + 1e-9 * draw()

    with unchanged(model), pytest.raises(KeyboardInterrupt) if stops else nullcontext():
        o2nc.find_lr(partial(MAKERS[name], model), loss, data, steps=100, probe=10, start=0.03)


def test_batches_and_warm_up():
    """A run trains on what follows the first batches, with a warm-up in its first fifth; x̄ is judged on the first."""
    x, loss, _ = quadratic()
    seen, rates = [], []

    def make(lr):
        opt = o2nc.SGD([x], lr=lr, average=WINDOW)
        opt.register_step_pre_hook(lambda *_: rates.append(opt.param_groups[0]["lr"] / lr))
        return opt

    numbers = count()
    tried = []
    found = o2nc.find_lr(
        make,
        lambda t: seen.append(t) or loss(t),
        numbers,
        steps=20,
        start=0.5,
        callback=lambda lr, _: tried.append(lr),
    )
    assert next(numbers) == 20 + HELD_OUT  # an iterator gives what one run needs
    short, long = len(tried) - len(found.losses), len(found.losses)
    expected = judged = [*range(HELD_OUT)]  # the loss before comes first
    for n in [5] * short + [20] * long:
        expected = [*expected, *range(HELD_OUT, HELD_OUT + n), *judged]
    assert seen == expected
    assert rates == pytest.approx([1] * 5 * short + ([0.25, 0.5, 0.75] + [1] * 17) * long)
    assert found == o2nc.find_lr(make, loss, range(3), steps=20, start=0.5)  # fewer begin again


def test_an_autocast_around_it_and_a_loader_with_its_own_generator():
    """Weights are cast anew in every step, and the generator goes back for every run."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    generator = torch.Generator().manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=16, shuffle=True, generator=generator)
    state, found = generator.get_state(), []

    def loss(x):
        return (model(x)[:, 0] - x.sum(1)).square().mean()

    for cached in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cached):
            found.append(o2nc.find_lr(partial(MAKERS["AdamW"], model), loss, data, steps=50, probe=20, start=0.03))
    assert found[0].losses == found[1].losses
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize("kept", [True, False])
def test_a_loss_may_write_into_its_batch_and_differentiate(kept):
    torch.manual_seed(0)
    model, data, found = nn.Linear(4, 1), torch.randn(200, 8, 4), []

    def loss(x, in_place):
        x = x.div_(2) if in_place else x / 2
        slope = torch.autograd.grad(model(x.requires_grad_()).sum(), x, create_graph=True)[0]
        return (model(x)[:, 0] - x.sum(1)).square().mean() + (slope - 1).square().mean()

    for in_place in (False, True):
        copies = [x.clone() for x in data]
        batches = iter(copies) if kept else torch.utils.data.DataLoader(data.flatten(0, 1), batch_size=8)
        found.append(o2nc.find_lr(partial(MAKERS["SGD"], model), partial(loss, in_place=in_place), batches, steps=40))
    assert found[0] == found[1]


def test_samplers_with_generators_and_a_make_that_draws():
    """Generators go back for every run, and a make that draws random numbers changes no run."""
    torch.manual_seed(0)
    model, data, found = nn.Linear(4, 1), torch.randn(64, 4), []
    samplers = [torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    for sampler, draws in zip(samplers, (0, 3), strict=True):
        state = torch.get_rng_state()
        batches = torch.utils.data.BatchSampler(sampler, 16, False)
        data_loader = torch.utils.data.DataLoader(data, batch_sampler=batches)
        found.append(
            o2nc.find_lr(
                lambda lr, draws=draws: torch.rand(draws) is None or MAKERS["SGD"](model, lr),
                lambda x: (model(x)[:, 0] - x.sum(1)).square().mean() + 1e-3 * torch.rand(()),
                data_loader,
                steps=40,
            )
        )
        assert torch.equal(torch.get_rng_state(), state)
    assert found[0] == found[1]
    assert torch.equal(*(sampler.generator.get_state() for sampler in samplers))


def asked(make=None, loss=None, batches=range(9), steps=10, **options):
    _, usual, maker = quadratic()
    return lambda: o2nc.find_lr(make or maker, loss or usual, batches, steps=steps, **options)


def scheduled(lr):
    opt = o2nc.SGD([frozen], lr=lr, average=WINDOW)
    return [opt, optim.lr_scheduler.LinearLR(opt)]


frozen = nn.Parameter(torch.ones(1))
late = partial(o2nc.SGD, [frozen], average=o2nc.Discount(0.9, start=10))
deaf = quadratic()
climbing = partial(o2nc.SGD, [deaf[0]], maximize=True, average=WINDOW)
blocks = lambda lr: o2nc.OriginalO2NC([frozen], o2nc.learners.OGD(lr), period=30)  # noqa: E731
used = quadratic()[2](0.1)
used.param_groups[0]["params"][0].sum().backward()
used.step()
test_refusals = refusals(
    (asked(steps=1), ValueError, "steps must be an integer >= 2, got 1"),
    (asked(loss=3), TypeError, "loss must be a function, got 3"),
    (asked(batches=5), TypeError, "batches must be a DataLoader, .* got 5"),
    (asked(start=1e-9, steps=20), RuntimeError, "the last that was tried: start there"),
    (asked(make=lambda lr: []), ValueError, "make returned no optimizer"),
    (asked(make=scheduled), ValueError, "make must leave schedulers and warm-ups out"),
    (asked(probe=2.5), TypeError, "probe must be an integer"),
    (asked(start=-1.0), ValueError, "start must be a finite number > 0"),
    (asked(make=lambda lr: optim.SGD([frozen], lr=lr)), TypeError, "one of o2nc's with averages"),
    (asked(make=lambda lr: o2nc.SGD([frozen], lr=lr)), ValueError, "keeps no averages"),
    (asked(batches=[]), ValueError, "batches must not be empty"),
    (asked(loss=lambda t: torch.ones(2)), TypeError, "loss must return a scalar"),
    (asked(loss=lambda t: 1.0), TypeError, "loss must return a tensor that depends on the parameters, got 1.0"),
    (asked(make=lambda lr: deaf[2](0.1), loss=deaf[1]), RuntimeError, "led to the same loss; does make use"),
    (asked(make=lambda lr: used), ValueError, "a new optimizer at every call"),
    (asked(make=late), ValueError, "start=10, .* three iterates in 2 steps, the shortest run"),
    (asked(loss=lambda t: torch.tensor(math.nan)), RuntimeError, "the loss is nan before the first step"),
    (asked(loss=lambda t: deaf[1](t) / (t == 0), make=deaf[2], batches=[0] * 16 + [1]), RuntimeError, "loss finite"),
    (asked(make=lambda lr: quadratic()[2](lr)), ValueError, "optimizers of the same parameters at every call"),
    (asked(make=blocks, steps=80), ValueError, "period=30.* three iterates in 20 steps, the shortest run"),
    (asked(make=climbing, loss=deaf[1]), RuntimeError, "none of .* lowered the loss, which is 18"),
    (asked(loss=lambda t: frozen.sum()), RuntimeError, "nothing is averaged before the first step"),
)
