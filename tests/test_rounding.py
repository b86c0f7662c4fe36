"""x̄ in float32 does not stand still where its increments are below half a unit in the last place."""

import numpy as np
import pytest
import torch

import o2nc
from o2nc.averages import Coupling, Iterate, inner, move_

UNIT = 2.0**-23  # of numbers in [1, 2)


def averaged(x, mean, gamma, dither):
    mean = mean.clone()
    move_(Iterate(x, x, None, mean, None), gamma, Coupling(), inner, dither=dither)
    return mean


def test_the_mean_over_u_is_right():
    """Up or down with the probabilities that make the expectation x̄ + γe, all over the range of float32."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2000, generator=generator) * 10.0 ** torch.randint(-20, 20, (2000,), generator=generator)
    x = mean * (1 + 1e-3 * torch.randn(2000, generator=generator))
    gamma, n = 1e-4, 512
    total = torch.zeros(2000, dtype=torch.float64)
    nearest = averaged(x, mean, gamma, 0.0)
    for k in range(n):
        rounded = averaged(x, mean, gamma, (k + 0.5) / n - 0.5)
        neighbours = torch.stack(
            [nearest, nearest.nextafter(nearest + 1), nearest.nextafter(nearest - nearest.abs())]
        )
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
    x = torch.tensor([1.0, -2.0, 0.5, 3.0, 0.0, 1e-40, float("inf")])
    for u in np.linspace(-0.499, 0.499, 21):
        assert torch.equal(averaged(x[:6], x[:6], 0.01, u), x[:6])


@pytest.mark.parametrize(
    ("beta", "tolerance"),
    [
        (0.999, 2e-6),
        pytest.param(0.9999, 5e-6, marks=pytest.mark.slow),
        pytest.param(0.99999, 2e-5, marks=pytest.mark.slow),
    ],
)
def test_x_mean_arrives(beta, tolerance):
    """1 → 1.003: to the nearest x̄ ends at 1.00294, 1.00240 and 1.00000 after 20/(1 − β) steps."""
    n = round(20 / (1 - beta))
    mean, x = torch.ones(64), torch.full((64,), 1.003)
    gamma = 1 - beta
    for step in range(1, min(n, 200_000) + 1):
        move_(Iterate(x, x, None, mean, None), gamma, Coupling(), inner, dither=o2nc.scaling.uniform(0, step) - 0.5)
    left = beta ** min(n, 200_000)
    expected = 1.003 - 0.003 * left
    assert float((mean.double() - expected).abs().max()) < tolerance


@pytest.mark.some(1)
@pytest.mark.parametrize("fused", [True, False])
def test_v_has_no_floor(device, fused):
    """Weights that stand still for 20/(1 − β) steps: V is what the weights that moved before are worth."""
    p = torch.nn.Parameter(torch.rand(1000, device=device, generator=torch.Generator(device).manual_seed(0)) + 1)
    engine = {"fused": True} if fused else {"foreach": True}
    average = 0.9 if fused and device == "cpu" else 0.98  # to the nearest, x̄ stalls 5 or 25 units away
    opt = o2nc.ScaledSGDM([p], lr=1e-3, average=average, scaling=None if not fused else o2nc.Exponential(), **engine)
    p.grad = torch.ones_like(p)
    opt.step()
    opt.param_groups[0]["lr"] = 0.0
    for _ in range(round(20 / (1 - average))):
        opt.step()
    assert opt.certificate().spread < 1000 * (2 * UNIT) ** 2
    assert (opt.state[p]["average"] - p).abs().max() <= 2 * UNIT
