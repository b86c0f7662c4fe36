"""The law of the output: uniform, or the one for which more is proved."""

import math

import pytest
import torch

import fused_device as rig
import o2nc
from o2nc import learners


def law(beta, steps):
    """P(n) = (1 − β^n)/N for n < N, and (1 − β^N)/((1 − β)N) for n = N."""
    found = [(1 - beta**n) / steps for n in range(1, steps)]
    return [*found, (1 - beta**steps) / ((1 - beta) * steps)]


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
def test_it_sums_to_one(beta):
    assert math.fsum(law(beta, 37)) == pytest.approx(1)


def drawn(seed, steps, beta, make, device="cpu", fused=False):
    """Return the step whose average is the output: x_t = t, so that x̄_n tells n."""
    p = torch.nn.Parameter(torch.ones(1, dtype=torch.float64, device=device))
    opt = make([p], seed, beta, fused)
    means, total, weight = [], 0.0, 0.0
    for t in range(1, steps + 1):
        with torch.no_grad():
            p.fill_(float(t))
        p.grad = torch.zeros_like(p)
        opt.step()
        total, weight = beta * total + t, beta * weight + 1
        means.append(total / weight)
    (found,) = [n for n, mean in enumerate(means, 1) if opt.output()[0].item() == pytest.approx(mean, rel=1e-12)]
    return found


MAKERS = {
    "sgdm": lambda ps, seed, beta, fused: o2nc.ScaledSGDM(
        ps, lr=0.0, momentum=beta, average=beta, seed=seed, output="geometric", **({"fused": True} if fused else {})
    ),
    "ogd": lambda ps, seed, beta, fused: o2nc.ExponentiatedO2NC(
        ps, learners.OGD(0.0), beta=beta, seed=seed, output="geometric", fused=fused
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_output_follows_the_law(kind):
    beta, steps, runs = 0.7, 8, 600
    counts = [0] * steps
    for seed in range(runs):
        counts[drawn(seed, steps, beta, MAKERS[kind]) - 1] += 1
    wanted = law(beta, steps)
    # χ² with 7 degrees of freedom: above 24.3 in one of a thousand
    assert sum((c - runs * w) ** 2 / (runs * w) for c, w in zip(counts, wanted, strict=True)) < 24.3
    uniform = [runs / steps] * steps
    assert sum((c - u) ** 2 / u for c, u in zip(counts, uniform, strict=True)) > 100


def test_the_kernels_draw_the_same(device):
    for seed in range(12 if rig.CUDA else 6):
        expected = drawn(seed, 9, 0.7, MAKERS["sgdm"])
        assert drawn(seed, 9, 0.7, MAKERS["sgdm"], device, fused=True) == expected


def test_checkpoints_go_on():
    """One that is saved while the output is still to come."""
    for seed in range(20):
        outputs = []
        for stop in (None, 4):
            (p,) = rig.begin("cpu", torch.float64, shapes=[(3,)])
            opt = o2nc.ScaledSGDM([p], lr=0.1, momentum=0.9, average=0.9, seed=seed, output="geometric")
            for step in range(1, 9):
                rig.set_noise([p], step)
                opt.step()
                if step == stop:
                    saved = opt.state_dict()
                    opt = o2nc.ScaledSGDM([p], lr=0.1, momentum=0.9, average=0.9, seed=seed, output="geometric")
                    opt.load_state_dict(saved)
            outputs.append(opt.output()[0])
        assert torch.equal(*outputs)


def test_checkpoints_of_before_are_uniform():
    (p,) = rig.begin("cpu", torch.float64, shapes=[(3,)])
    opt = o2nc.ScaledSGDM([p], lr=0.1, average=0.9)
    rig.advance(opt, [p], range(1, 4))
    saved = opt.state_dict()
    for key in ("output", "pending"):
        del saved["param_groups"][0][key]
    other = o2nc.ScaledSGDM([p], lr=0.1, average=0.9)
    other.load_state_dict(saved)
    assert other.param_groups[0]["output"] == "uniform"
    assert torch.equal(other.output()[0], opt.output()[0])


def test_bad_input():
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="output must be"):
        o2nc.ScaledSGDM([p], average=0.9, output="last")
    with pytest.raises(ValueError, match="needs an average with a discount"):
        o2nc.ScaledSGDM([p], average=o2nc.Polynomial(12), output="geometric")
