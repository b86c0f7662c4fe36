"""What optimizers are made of: bad arguments, group options and factors are refused by name and change nothing."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import o2nc
from o2nc.learners import OGD
from problem import parameters
from refusals import refusals
from registry import advance, claims, identical, step

X = torch.nn.Parameter(torch.ones(2))


def sgdm(params=(X,), **options):
    return o2nc.ScaledSGDM(params if isinstance(params, torch.Tensor) else list(params), **options)


def learned(params=(X,), learner=OGD(lr=0.1), **options):
    return o2nc.ExponentiatedO2NC(list(params), learner, **options)


def original(params=(X,), learner=OGD(lr=0.1), **options):
    return o2nc.OriginalO2NC(list(params), learner, **{"period": 2} | options)


test_bad_arguments = refusals(
    (lambda: sgdm(lr=float("nan")), ValueError, "lr must be .*nan"),
    (lambda: sgdm(lr="0.1"), TypeError, "got '0.1'"),
    (lambda: sgdm(momentum=float("nan")), ValueError, "momentum"),
    (lambda: sgdm(dampening=None), TypeError, "dampening"),
    (lambda: sgdm(weight_decay=float("inf")), ValueError, "weight_decay"),
    (lambda: sgdm(average=True), TypeError, "average"),
    (lambda: sgdm(scaling="exp"), TypeError, "scaling must be a law"),
    (lambda: sgdm(scaling=o2nc.Exponential), TypeError, "scaling"),
    (lambda: sgdm(seed=-1), ValueError, "seed must be an integer >= 0, got -1"),
    (lambda: sgdm(output="last"), ValueError, "output"),
    (lambda: sgdm(output="geometric", average=o2nc.Polynomial(3)), ValueError, "needs an average with a discount"),
    (lambda: sgdm([]), ValueError, "empty"),
    (lambda: sgdm([X, X]), ValueError, "twice"),
    (lambda: sgdm(X), TypeError, "iterable"),
    (lambda: sgdm([{"params": [X], "seed": 3}]), ValueError, "seed is one for all"),
    (lambda: sgdm().add_param_group([X]), TypeError, "param_group must be a dict"),
    (lambda: sgdm([{"params": [X], "lr": -1}]), ValueError, "lr"),
    (lambda: learned(learner=OGD), TypeError, "learner must be"),
    (lambda: learned(beta=1.0), ValueError, r"beta must be .*\(0, 1\), got 1.0"),
    (lambda: learned(weight_decay=float("nan")), ValueError, "weight_decay"),
    (lambda: learned(maximize=1), TypeError, "maximize"),
    (lambda: learned(fused="yes"), TypeError, "fused"),
    (lambda: learned([{"params": [X], "beta": 0.1}]), ValueError, "beta is one"),
    (lambda: learned([{"params": [X], "lr": -0.1}]), ValueError, "lr"),
    (lambda: learned([X.sum()]), ValueError, "non-leaf"),
    (lambda: original(learner=OGD), TypeError, "learner must be"),
    (lambda: original(period=0), ValueError, "period must be an integer >= 1"),
    (lambda: original(restart=1), TypeError, "restart"),
    (lambda: o2nc.SGD([X], certificate="no"), TypeError, "certificate"),
    (lambda: o2nc.AdamW([X], weight_decay=float("inf")), ValueError, "weight_decay must be a finite number"),
    (lambda: o2nc.AdamW([X], betas=(0.9,)), TypeError, r"betas must be two numbers in \[0, 1\), got \(0.9,\)"),
    (lambda: o2nc.AdamW([X], betas=0.9), TypeError, "betas must be two numbers"),
    (lambda: o2nc.AdamW([{"params": [X], "betas": (2, 3)}]), ValueError, "betas must be two numbers"),
    (lambda: o2nc.AdamW([X], None), TypeError, "lr must be a finite number >= 0, got None"),
    (lambda: o2nc.SGD([X], momentum=None), TypeError, "momentum must be a finite number >= 0, got None"),
    (lambda: o2nc.AdamW([X], average=0.9, offload="yes"), TypeError, "offload"),
    (lambda: o2nc.SGD([X], offload=True), ValueError, "offload=True says where averages are kept"),
)


FOREIGN = {learned: ("nesterov", "momentum", "betas")}
FOREIGN[original] = (*FOREIGN[learned], "weight_decay", "maximize")


@pytest.mark.parametrize(("make", "key"), [(make, key) for make, keys in FOREIGN.items() for key in keys])
def test_options_that_would_be_ignored_are_refused(make, key):
    """When a group is added, and when they come later, as by a schedule; zeros and notes are welcome."""
    with pytest.raises(ValueError, match=f"has no {key}, got 0.1"):
        make([{"params": [X], key: 0.1}])
    p = torch.nn.Parameter(torch.ones(2))
    opt = make([{"params": [p], key: 0, "name": "body"}])
    step(opt, 1.0)
    before = p.detach().clone()
    opt.param_groups[0][key] = 0.1
    with pytest.raises(ValueError, match=f"has no {key}, got 0.1"):
        opt.step()
    assert torch.equal(p, before)
    del opt.param_groups[0][key]
    opt.step()


def test_numbers_of_numpy():
    found = []
    for integer, number in ((np.int64, np.float64), (int, float)):
        options = {"seed": integer(3), "average": number(0.9), "scaling": o2nc.Gamma(number(16))}
        opt = advance(o2nc.ScaledSGDM(parameters(), lr=0.1, **options), (1, 2, 3))
        found.append(claims(opt))
        assert type(opt.param_groups[0]["o2nc"]["seed"]) is int
        assert type(opt.param_groups[0]["o2nc"]["scaling"]["shape"]) is float
    identical(*found)
    assert o2nc.Exponential().sample(np.uint64(7), np.int32(2)) == o2nc.Exponential().sample(7, 2)


@dataclass(frozen=True)
class Custom:
    """A learner whose state has these keys, and whose update returns this."""

    keys: object = ()
    result: object = None
    lr: float = 0.1

    def init(self, delta):
        return None if self.keys is None else dict.fromkeys(self.keys, 0.0)

    def update(self, deltas, grads, states, lrs, beta):
        for delta, g, lr in zip(deltas, grads, lrs, strict=True):
            delta.copy_(-lr * g)
        return self.result


MISTAKEN = [
    (Custom(("average",)), ValueError, r"must not use the names \['average'\]"),
    (Custom(("m", "delta")), ValueError, "delta"),
    (Custom(("last_spread",)), ValueError, "last_spread"),
    (Custom(None), TypeError, "init must return a dict"),
    (Custom(result=0), TypeError, "in place and return None"),
]


@pytest.mark.parametrize(("learner", "error", "words"), MISTAKEN)
def test_mistakes_in_a_learner_are_named(learner, error, words):
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(error, match=words):
        step(o2nc.ExponentiatedO2NC([p], learner), 1.0)
    assert p.tolist() == [1, 1]


# otherwise their checkpoints could not be plain data
METHODS = dict.fromkeys(("init", "update", "sample", "weight"), lambda *_: 1.0)
NotADataclass = type("NotADataclass", (), METHODS | {"lr": 0.1})
test_factors_must_be_dataclasses = refusals(
    (lambda: learned(learner=NotADataclass()), TypeError, "learner must be"),
    (lambda: sgdm(scaling=NotADataclass()), TypeError, "a law is an instance of a dataclass"),
    (lambda: sgdm(scaling=Custom()), TypeError, "lacks sample"),
)


def test_scaling_by_displacement():
    """Of what is not linear in lr: frozen parameters that torch moves, and infinities that stand still."""
    a, b = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.tensor([1.0, float("inf")]))
    a.grad, b.grad = torch.ones(1), torch.ones(2)
    a.requires_grad_(False)  # torch moves a frozen parameter that has a gradient left over
    o2nc.random_scaling(torch.optim.Rprop([a, b], lr=0.1)).step()
    s = o2nc.Exponential().sample(0, 2)
    assert a.item() == pytest.approx(-0.1 * s)
    assert b.tolist() == pytest.approx([1 - 0.1 * s, float("inf")])
