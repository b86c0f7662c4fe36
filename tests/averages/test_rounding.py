"""x̄ in float32 does not stand still where its increments are below half a unit in the last place."""

import numpy as np
import pytest
import torch

import o2nc
import twin
from o2nc.averages.update import Row, update_
from registry import ours_of, step

UNIT = 2.0**-23  # of numbers in [1, 2)


def averaged(x, mean, gamma, dither):
    mean = mean.clone()
    update_([Row(None, x, None, {"average": mean}, {})], gamma, dither)
    return mean


def test_the_mean_over_u_is_right():
    """Up or down with the probabilities that make the expectation x̄ + γe, all over the range of float32."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2000, generator=generator) * 10.0 ** torch.randint(-20, 20, (2000,), generator=generator)
    x = mean * (1 + 1e-3 * torch.randn(2000, generator=generator))
    gamma, n = 1e-4, 512
    total = torch.zeros(2000, dtype=torch.float64)
    nearest = averaged(x, mean, gamma, 0.0)
    neighbours = torch.stack([nearest.nextafter(nearest + 1), nearest.nextafter(nearest - nearest.abs())])
    for k in range(n):
        rounded = averaged(x, mean, gamma, (k + 0.5) / n - 0.5)
        total += rounded.double()
        assert ((rounded - nearest).abs() <= (neighbours - nearest).abs().max(0).values).all()
    exact = mean.double() + gamma * (x.double() - mean.double())
    unit = 2.0 ** (mean.double().abs().log2().floor() - 23)
    error = (total / n - exact).abs() / unit
    # next to a power of two the units on both sides differ
    assert (error < 2 / n).double().mean() > 0.98
    assert error.max() < 0.3


def test_what_stands_still_stays():
    """Powers of two included, whose lower neighbour is nearer."""
    x = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, 1e-40])
    for u in np.linspace(-0.499, 0.499, 21):
        assert torch.equal(averaged(x, x, 0.01, u), x)


@pytest.mark.parametrize("fused", [pytest.param(True, marks=pytest.mark.slow), False])
def test_v_has_no_floor(device, fused):
    """Weights that stand still for 20/(1 − β) steps: V is what the weights that moved before are worth."""
    p = torch.nn.Parameter(torch.rand(1000, device=device, generator=torch.Generator(device).manual_seed(0)) + 1)
    average = 0.9 if fused and device == "cpu" else 0.98  # to the nearest, x̄ stalls 5 or 25 units away
    opt = o2nc.ScaledSGDM([p], lr=1e-3, average=average, fused=fused)
    step(opt, 1.0)
    opt.param_groups[0]["lr"] = 0.0
    for _ in range(round(20 / (1 - average))):
        opt.step()
    assert opt.certificate().spread < 1000 * (2 * UNIT) ** 2
    assert (ours_of(opt, p)["average"] - p).abs().max() <= 2 * UNIT


@pytest.mark.parametrize("shapes", [[(40,)], [(40, 25)], [(300, 200), (7,)]])
def test_spread_far_from_the_origin_in_float32(shapes):
    """‖x‖ ≈ 2e3 and V ≈ 0.13: E‖x‖² − ‖x̄‖² would give nonsense, Welford stays within 1 %."""
    beta, n = 0.99, 400
    size = sum(torch.Size(s).numel() for s in shapes)
    chance = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(0.01 * torch.randn(s, generator=chance) + 2e3 / size**0.5) for s in shapes]
    opt = o2nc.SGD(params, lr=0.0255 / size**0.5, momentum=0.5, average=beta, certificate=True)
    xs = []
    for _ in range(n):  # a random walk
        xs.append(torch.cat([p.detach().flatten() for p in params]))
        step(opt, *(torch.randn(p.shape, generator=chance) for p in params))
    p = torch.from_numpy(twin.weights(beta, n))
    x = torch.stack(xs)
    spread = float(p @ (x.double() - p @ x.double()).square().sum(1))
    naive = float((p.float() @ x.square().sum(1)) - (p.float() @ x).square().sum())
    assert 0.02 < spread < 0.5
    assert abs(naive / spread - 1) > 0.05
    assert opt.certificate().spread == pytest.approx(spread, rel=0.01)
