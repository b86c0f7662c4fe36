"""Interrupts and threads while weights are swapped: afterwards they are x, bitwise, or the block still owns them."""

import gc
import random
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import o2nc
from o2nc.optimizers.swap import SWAPPED
from problem import noise
from registry import descend, step
from unchanged import state_of

BATCHES = [noise(i, 4, 6, dtype=torch.float32) for i in range(2)]


@pytest.fixture
def trained(one_thread):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=0.3))
    opt = o2nc.AdamW(model.parameters(), lr=0.1, average=o2nc.Polynomial(1))
    descend(opt, lambda: model(BATCHES[0]).abs().mean(), 3)
    model[1].eval()
    return model, opt


@pytest.mark.parametrize("interrupts", [150, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("with_batches", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt may come in a __del__
def test_interrupts_at_random_moments(with_batches, interrupts, trained):
    """Of entering, inside and leaving: 0 with wrong weights, modes or locks."""
    model, opt = trained
    before, chance = state_of(model), random.Random(0)

    def run():
        with opt.averaged(model, batches=BATCHES) if with_batches else opt.averaged():
            pass

    run()
    start = time.perf_counter()
    run()
    length, came = time.perf_counter() - start, 0
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for k in range(interrupts):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a block that was not entered yet says so
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 1.3 * length))
                    for _ in range(3):
                        run()
                    time.sleep(0.02)
                except KeyboardInterrupt:
                    came += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                if SWAPPED:
                    gc.collect()  # what is left open is restored when it is freed
            assert state_of(model) == before, f"interrupt {k}"
            assert not SWAPPED
            assert torch.is_grad_enabled()
            assert opt._lock.acquire(blocking=False), f"the lock is held after interrupt {k}"
            opt._lock.release()
    finally:
        signal.signal(signal.SIGALRM, former)
    assert came > 0.8 * interrupts  # Python swallows those that come in a __del__
    run()
    opt.step()
    assert state_of(model) != before


@pytest.mark.parametrize("first", [0, 1], ids=["first in, first out", "last in, first out"])
def test_overlapping_blocks(first, trained):
    model, opt = trained
    before, blocks = state_of(model), [opt.averaged(), opt.averaged()]
    for block in blocks:
        block.__enter__()
    inside = state_of(model)
    blocks[first].__exit__(None, None, None)
    assert state_of(model) == inside  # the other is open
    with pytest.raises(RuntimeError, match="inside averaged"):
        opt.step()
    blocks[1 - first].__exit__(None, None, None)
    assert state_of(model) == before
    opt.step()


class Watchful(torch.optim.Optimizer):
    """An optimizer that does not move, and counts how often its parameters were not what they should be."""

    torn = 0

    def step(self, closure=None):
        for _ in range(5):
            self.torn += not all(map(torch.equal, self.param_groups[0]["params"], self.former))


@pytest.mark.parametrize("seconds", [0.5, pytest.param(10, marks=pytest.mark.slow)])
def test_threads_are_refused_or_right(seconds, trained):
    """One trains, others evaluate x̄: a step inside a block and a block inside a step are refused, nothing is torn."""
    model, _ = trained
    opt = o2nc.extend(Watchful(model.parameters(), {}), average=o2nc.Discount(1 - 1e-12))
    opt.former = list(model.parameters())
    step(opt, 0.0)  # x̄ will stay near this
    for p in model.parameters():
        p.data.add_(1.0)
    opt.former = [p.detach().clone() for p in model.parameters()]
    before, end, counts = state_of(model), time.monotonic() + seconds, {"steps": 0, "blocks": 0}

    def work(kind):
        while time.monotonic() < end:
            try:
                if kind == "train":
                    opt.step()
                    counts["steps"] += 1
                else:
                    with opt.averaged():
                        counts["blocks"] += 1
                        assert not torch.equal(next(model.parameters()), opt.former[0])
            except RuntimeError as error:
                if "inside averaged" not in str(error) and "while step() is running" not in str(error):
                    raise
            time.sleep(0)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, ("train", "evaluate", "evaluate")))  # raises what they raise
    assert min(counts.values()) > 0
    assert opt.torn == 0
    assert state_of(model) == before
    assert not SWAPPED


def test_a_block_inside_a_step_is_refused():
    """It would wait for itself."""
    refused = []

    class Curious(torch.optim.SGD):
        def step(self, closure=None):
            with pytest.raises(RuntimeError, match=r"while step\(\) is running"):
                self.averaged().__enter__()
            refused.append(1)
            return super().step(closure)

    p = torch.nn.Parameter(torch.ones(3))
    opt = o2nc.extend(Curious([p], lr=0.1), average=0.9)
    for _ in range(2):
        step(opt, 1.0)
    opt.step(lambda: p.sum())
    assert len(refused) == 3


CACHES = [lambda: torch.autocast("cpu", dtype=torch.bfloat16), nn.utils.parametrize.cached]


@pytest.mark.parametrize("cached", CACHES, ids=["autocast", "parametrize"])
def test_weights_that_are_cached_are_dropped(cached):
    """autocast and parametrize.cached() keep weights that were computed from x."""
    torch.manual_seed(0)
    linear = nn.Linear(6, 6)
    linear = nn.utils.parametrizations.weight_norm(linear) if cached is CACHES[1] else linear
    opt = o2nc.AdamW(linear.parameters(), lr=0.1, average=0.9)
    descend(opt, lambda: linear(BATCHES[0]).abs().mean(), 3)
    with cached():
        outside = linear(BATCHES[0])
    with opt.averaged(), cached():
        inside = linear(BATCHES[0])
    assert not torch.equal(inside, outside)
    with cached():
        for _ in range(2):
            assert torch.equal(linear(BATCHES[0]), outside)
            with opt.averaged():
                assert torch.equal(linear(BATCHES[0]), inside)
