"""torch.set_default_device says where new tensors are made; o2nc's must be where the parameters are."""

import pytest
import torch

import fused_device as rig
import o2nc
from o2nc import problems
from registry import OURS, build, claims, identical, params_of

NOWHERE = torch.device("meta")  # a tensor made there by mistake holds no numbers, and breaks what it touches


@pytest.mark.some(20)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", OURS)
def test_steps_certificates_and_checkpoints(device, name, fused):
    if name in ("AdamW scaled", "extend(Lion)"):
        pytest.skip("as AdamW; Lion makes its state by itself")
    runs = []
    for default in (torch.device("cpu"), NOWHERE):
        params, others = (rig.begin(device, shapes=[(3, 2), (), (1025,)]) for _ in range(2))
        with default:
            opt = build(name, params, fused)
        for t in range(1, 5):
            rig.set_noise(params, t, [1] if t == 3 else [])
            with torch.device("cpu") if t == 1 else default:  # torch makes its own state on the default device
                opt.step()
        with default:
            claims(opt)
            other = build(name, others, fused)
            other.load_state_dict(opt.state_dict())
        for p, q in zip(params, others, strict=True):
            q.data.copy_(p.data)
            q.grad = p.grad
        with default:
            other.step()
        runs.append(claims(other))
    identical(*runs)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Rprop], ids=["by lr", "by displacement"])
def test_random_scaling(make):
    params = rig.begin("cpu")
    opt = o2nc.random_scaling(make(params, lr=0.1))
    for t in range(1, 4):
        rig.set_noise(params, t)
        with torch.device("cpu") if t == 1 else NOWHERE:
            opt.step()
    assert all(p.isfinite().all() for p in params_of(opt))


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
