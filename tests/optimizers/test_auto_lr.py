"""lr="auto": the rule, its warm-up, who may end it, and that it is AdamW at the lr that it shows."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn, optim

import o2nc
from o2nc.optimizers.auto_lr import SCALE, WARMUP, lr_of
from problem import parameters
from refusals import refusals
from registry import advance, checkpoint, identical, loaded, ours_of, snapshot

OPTIONS = {"average": o2nc.Polynomial(3, start=2, every=3), "certificate": True, "betas": (0.8, 0.95)}
FAN = 5  # the median fan-in of `weights`
weights = partial(parameters, torch.float32, shapes=((7, 5), (5,), (3, 2, 2), (2, 9), ()))


def auto(**options):
    return o2nc.AdamW(weights(), lr="auto", **OPTIONS | options)


def rates(opt, begin, end):
    """Take steps; return the learning rate of each."""
    return [advance(opt, [t]).param_groups[0]["lr"] for t in range(begin, end)]


@pytest.mark.parametrize(
    ("model", "fan"),
    [
        (nn.Linear(10, 3), 10),
        (nn.Conv2d(4, 6, 3), 36),
        (nn.Sequential(nn.Linear(10, 64), nn.Linear(64, 20), nn.LayerNorm(20), nn.Linear(20, 1)), 20),
        (nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1)), 6),
        (nn.ParameterList([torch.ones(100, 16), torch.ones(0, 3)]), 16),  # one without elements says nothing
        (nn.Sequential(nn.Linear(512, 512).requires_grad_(False), nn.Linear(32, 3)), 32),  # nor one that is frozen
    ],
    ids=lambda value: str(value)[:12],
)
def test_the_rule(model, fan):
    assert lr_of(model.parameters()) == pytest.approx(SCALE / fan)
    opt = o2nc.AdamW(model.parameters(), lr="auto")
    assert opt.param_groups[0]["lr"] == opt.defaults["lr"] == lr_of(model.parameters())


@pytest.mark.parametrize(("tokens", "factor"), [(24_000, 1.0), (3_000, 0.5), (192_000, 2.0), (None, 1.0)])
def test_tokens(tokens, factor):
    """lr goes with their cube root."""
    lr = o2nc.AdamW(weights(), lr="auto", tokens=tokens).param_groups[0]["lr"]
    assert lr == pytest.approx(factor * SCALE / FAN)


@pytest.mark.parametrize("options", [{}, {"average": None, "certificate": False}, {"weight_decay": 0.3}], ids=str)
def test_it_is_adamw_at_the_lr_that_it_shows(options):
    """Bitwise, and a plain number after the warm-up."""
    opt, plain = auto(**options), o2nc.AdamW(weights(), lr=1.0, **OPTIONS | options)
    lr = SCALE / FAN
    for t in range(WARMUP + 10):
        plain.param_groups[0]["lr"] = lr * min(1.0, (t + 1) / WARMUP)
        assert rates(opt, t, t + 1) == rates(plain, t, t + 1)
        assert ("auto" in ours_of(opt)) == (t < WARMUP - 1)
    plain.defaults["lr"] = lr
    identical(snapshot(opt), snapshot(plain))


@pytest.mark.parametrize("at", [0, 1, 50, WARMUP - 1, WARMUP, WARMUP + 1])
def test_a_run_continues_bitwise(at):
    opt = auto()
    rates(opt, 0, at)
    others = [loaded(checkpoint(opt), partial(o2nc.AdamW, lr=lr, **OPTIONS)) for lr in ("auto", 0.1)]
    others.append(copy.deepcopy(opt))
    rates(opt, at, WARMUP + 5)
    for other in others:
        rates(other, at, WARMUP + 5)
        identical(snapshot(opt), snapshot(other))


def test_a_step_that_does_nothing_is_not_counted():
    opt = auto()
    first, *_ = rates(opt, 0, 3)
    opt.zero_grad()
    opt.step()
    assert rates(opt, 3, 5) == pytest.approx([first * 4, first * 5])


def test_who_sets_lr_ends_the_warm_up():
    opt = auto()
    rates(opt, 0, 10)
    opt.param_groups[0]["lr"] = 0.3
    assert rates(opt, 10, 12) == [0.3, 0.3]
    assert "auto" not in ours_of(opt)


def test_a_group_of_its_own_lr_leaves_the_others_alone():
    """As in gradual unfreezing."""
    opt = auto()
    opt.add_param_group({"params": [nn.Parameter(torch.ones(3))], "lr": 1e-4})
    assert rates(opt, 0, 1) == [pytest.approx(SCALE / FAN / WARMUP)]
    rates(opt, 1, WARMUP + 1)
    assert [group["lr"] for group in opt.param_groups] == [SCALE / FAN, 1e-4]


@pytest.mark.parametrize("begun", [0, 30])
def test_a_scheduler_has_its_own_warm_up(begun):
    """Made in the middle, it goes on from the lr that it finds, which is said."""
    opt = auto()
    rates(opt, 0, begun)
    lr = opt.param_groups[0]["lr"]
    scheduler = optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=10)
    words = "in step 31, at lr=0.042, where the rule's is 0.14"
    with pytest.warns(UserWarning, match=words) if begun else nullcontext():
        assert rates(opt, begun, begun + 1) == [pytest.approx(0.1 * lr)]
    for t in range(begun + 1, begun + 11):
        scheduler.step()
        rates(opt, t, t + 1)
    assert opt.param_groups[0]["lr"] == pytest.approx(lr)


def test_groups_share_it():
    """Those that are added in the warm-up or after it, too."""
    a, *rest = weights()
    opt = o2nc.AdamW([{"params": [a]}, {"params": rest, "weight_decay": 0.0}], lr="auto")
    rates(opt, 0, 5)
    opt.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    rates(opt, 5, WARMUP)
    opt.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    assert {group["lr"] for group in opt.param_groups} == {SCALE / FAN}
    again = o2nc.AdamW([{"params": [a]}, {"params": rest}], lr="auto")
    again.load_state_dict(o2nc.AdamW([{"params": [a]}, {"params": rest}], lr=0.5).state_dict())
    again.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    assert again.param_groups[2]["lr"] == 0.5


test_refusals = refusals(
    (lambda: o2nc.AdamW([nn.Parameter(torch.ones(3))], lr="auto"), ValueError, "two or more dimensions: pass lr"),
    (lambda: o2nc.AdamW(nn.LazyLinear(3).parameters(), lr="auto"), ValueError, "run the model once"),
    (lambda: o2nc.AdamW([{"params": weights(), "lr": 0.1}], lr="auto"), ValueError, "one for all parameter groups"),
    (lambda: o2nc.AdamW([{"params": weights(), "lr": float("1e-6")}], lr="auto"), ValueError, "one for all"),
    (lambda: o2nc.AdamW([{"params": weights(), "lr": "auto"}]), TypeError, "of o2nc.AdamW alone, for all groups"),
    (lambda: o2nc.AdamW(weights(), lr="Auto"), TypeError, "lr must be a number or a tensor, got 'Auto'"),
    (lambda: o2nc.AdamW(weights(), lr="auto", tokens=0), ValueError, "tokens must be an integer >= 1, got 0"),
    (lambda: o2nc.AdamW(weights(), lr="auto", tokens=4e3), TypeError, "tokens must be an integer >= 1"),
    (lambda: o2nc.AdamW(weights(), tokens=4096), ValueError, 'tokens is for lr="auto" alone, got tokens=4096'),
    (lambda: o2nc.SGD(weights(), lr="auto"), TypeError, "of o2nc.AdamW alone, for all groups"),
)


def test_a_capture_would_repeat_one_lr(monkeypatch):
    opt = auto(average=None, certificate=False)
    monkeypatch.setattr("o2nc.optimizers.auto_lr.is_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="capture after 100 steps"):
        rates(opt, 0, 1)


def test_numbers_in_a_checkpoint_are_checked():
    opt = auto()
    rates(opt, 0, 3)
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"][0]["o2nc"]["auto"]["lr"] = -1.0
    with pytest.raises(ValueError, match='"auto" of the checkpoint: lr must be'):
        opt.load_state_dict(saved)
