"""torch.set_default_device says where new tensors are made; o2nc's must be where the parameters are."""

import pytest
import torch

import o2nc
from fused_device import CASES, advance, agree, begin, facts
from o2nc import learners, problems
from problem import parameters, set_gradients

NOWHERE = torch.device("meta")  # a tensor made there by mistake holds no numbers, and breaks what it touches


@pytest.mark.some(8)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_steps_certificates_and_checkpoints(device, make, fused):
    runs = []
    for default in (torch.device("cpu"), NOWHERE):
        params, others = begin(device, shapes=[(3, 2), (), (1025,)]), begin(device, shapes=[(3, 2), (), (1025,)])
        with default:
            opt = make(params, fused)
        advance(opt, params, [1, 2])
        for t, missing in ((3, [1]), (4, [])):
            for i, p in enumerate(params):
                p.grad = None if i in missing else torch.full_like(p, 0.1 * t)
            with default:
                opt.step()
        with default:
            if opt.param_groups[0]["average"] is not None:
                opt.certificate()
                with opt.averaged():
                    opt.output()
                assert opt.progress < 1e9
            other = make(others, fused)
            other.load_state_dict(opt.state_dict())
        for p, q in zip(params, others, strict=True):
            q.data.copy_(p.data)
            q.grad = p.grad
        with default:
            other.step()
        runs.append(facts(other))
    agree(*runs, tolerance=0)


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: o2nc.OriginalO2NC(ps, learners.BallOGD(lr=0.1, radius=1.0), period=2),
        lambda ps: o2nc.ExponentiatedO2NC(ps, learners.CoinBetting(), scaling=o2nc.Gamma(1.5)),
        lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, average=0.9, momentum=0.9, nesterov=True),
    ],
    ids=["original", "coin", "nesterov"],
)
def test_off_the_fused_path(make):
    params = parameters()
    with NOWHERE:
        opt = make(params)
    for t in range(1, 6):
        set_gradients(params, t)
        with NOWHERE:
            opt.step()
    assert all(p.isfinite().all() for p in params)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Rprop], ids=["by lr", "by displacement"])
def test_random_scaling(make):
    params = parameters()
    opt = o2nc.random_scaling(make(params, lr=0.1))
    for t in range(1, 6):
        set_gradients(params, t)
        if t == 1:
            opt.step()  # torch makes its own state on the default device
        with NOWHERE:
            opt.step()
    assert all(p.isfinite().all() for p in params)


@pytest.mark.parametrize("dimension", [3, 9])  # fewer and more than there are iterates
@pytest.mark.parametrize(
    "weights", ["exponential", "optimal", [1, 2, 3, 4, 5, 6]], ids=["exponential", "optimal", "own"]
)
def test_certify(weights, dimension):
    problem = problems.DoubleWell(dimension)
    generator = torch.Generator().manual_seed(0)
    iterates = list(0.01 * torch.randn(6, dimension, dtype=torch.float64, generator=generator))
    here = o2nc.certify(problem.gradient, iterates, c=10.0, weights=weights)
    with NOWHERE:
        there = o2nc.certify(problem.gradient, iterates, c=10.0, weights=weights)
        promised = there.goldstein(1.0, lipschitz=problem.lipschitz)
    assert there.value == here.value
    assert torch.equal(there.point, here.point)
    assert torch.equal(promised.point, here.goldstein(1.0, lipschitz=problem.lipschitz).point)
