"""The traps are what their formulas say, and the climber's trapped orbit is one period per step."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import o2nc
from o2nc.problems import Climber, Trap

TRAPS = st.builds(
    Trap,
    threshold=st.floats(0.05, 0.95),
    slope=st.floats(0.01, 10),
    ramp=st.floats(0, 3),
    period=st.floats(0.1, 10),
)
CLIMBERS = [Climber(1), Climber(10)]


def points(climber, n):
    uniform = torch.rand(n, climber.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return 20 * uniform - 10


def phases(trap, n=1001):
    """Points of one period, in units that miss its kinks."""
    return trap.period * (torch.arange(n, dtype=torch.float64) + 0.5) / n


@given(TRAPS, st.integers(-20, 20))
@settings(deadline=None, max_examples=60)
def test_gradient_is_what_autograd_finds(trap, k):
    x = (phases(trap) + k * trap.period).requires_grad_()
    trap.value(x).sum().backward()
    torch.testing.assert_close(x.grad, trap.gradient(x), rtol=1e-12, atol=1e-12 * trap.lipschitz)
    assert not trap.gradient(x).requires_grad


@given(TRAPS)
@settings(deadline=None, max_examples=60)
def test_gradient_is_the_slope_of_value(trap):
    h = 1e-6 * trap.period
    x = phases(trap)
    x = x[((x - trap.rise).abs() > 2 * h) & (x > 2 * h) & (x < trap.period - 2 * h)]  # away from the kinks
    slope = (trap.value(x + h) - trap.value(x - h)) / (2 * h)
    torch.testing.assert_close(slope, trap.gradient(x), rtol=1e-7, atol=1e-7 * trap.lipschitz)


@given(TRAPS, st.integers(-20, 20))
@settings(deadline=None, max_examples=60)
def test_periodic_so_the_mean_slope_is_zero(trap, k):
    x = phases(trap)
    size = trap.lipschitz * trap.period
    torch.testing.assert_close(trap.value(x + k * trap.period), trap.value(x), rtol=0, atol=1e-11 * size)
    # the integral of the slope over the rise and over the fall, each linear: the midpoint rule is exact
    middle = torch.tensor([trap.rise / 2, (trap.rise + trap.period) / 2], dtype=torch.float64)
    lengths = torch.tensor([trap.rise, trap.period - trap.rise], dtype=torch.float64)
    assert abs((trap.gradient(middle) * lengths).sum().item()) <= 1e-12 * size


@given(TRAPS)
@settings(deadline=None, max_examples=60)
def test_continuous_at_the_kinks(trap):
    kinks = torch.tensor([-trap.period, 0.0, trap.rise, trap.period, trap.period + trap.rise], dtype=torch.float64)
    h = 1e-9 * trap.period
    jump = trap.value(kinks + h) - trap.value(kinks - h)
    assert jump.abs().max().item() <= 2.001 * trap.lipschitz * h + 1e-12 * trap.lipschitz * trap.period


@given(TRAPS)
@settings(deadline=None, max_examples=60)
def test_lipschitz_constant_is_attained_and_never_exceeded(trap):
    ends = torch.tensor([0.0, trap.rise * (1 - 1e-12), (trap.rise + trap.period) / 2], dtype=torch.float64)
    steepest = trap.gradient(torch.cat([ends, phases(trap)])).abs().max().item()
    assert steepest <= trap.lipschitz * (1 + 1e-12)
    assert steepest >= trap.lipschitz * (1 - 1e-9)
    assert trap.lipschitz == max(
        trap.slope * (1 + trap.ramp), trap.slope * (1 - trap.threshold) / trap.threshold
    )  # NOTES: G = max(a(1+r), a(1−th)/th)


def test_a_trap_keeps_dtype_and_shape():
    trap = Trap(threshold=0.2, slope=0.25)
    for x in (torch.randn(2, 3), torch.randn(4, dtype=torch.float64), torch.tensor(-0.3)):
        for y in (trap.value(x), trap.gradient(x)):
            assert (y.dtype, y.shape) == (x.dtype, x.shape)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"threshold": 0.0, "slope": 1.0}, "threshold"),
        ({"threshold": 0.5, "slope": 0.0}, "slope"),
        ({"threshold": 0.5, "slope": 1.0, "ramp": -0.1}, "ramp"),
        ({"threshold": 0.5, "slope": 1.0, "period": math.inf}, "period"),
    ],
)
def test_a_trap_refuses_bad_arguments(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} must be .*, got"):
        Trap(**arguments)


def test_a_climber_refuses_bad_dimensions():
    with pytest.raises(ValueError, match="dimension must be an integer >= 1, got 0"):
        Climber(0)
    with pytest.raises(TypeError, match="dimension"):
        Climber(1.5)


@pytest.mark.parametrize("climber", CLIMBERS, ids=str)
def test_climber_start(climber):
    d = climber.dimension
    x = climber.start()
    assert x.shape == (d,)
    assert x.dtype == torch.float64
    assert len(set(x.tolist())) == d
    assert (x + 4.6).abs().max().item() <= 0.05 + 1e-12
    centre = torch.full((d,), -4.6, dtype=torch.float64)
    assert climber.value(centre).item() == pytest.approx(0.53 * math.sqrt(d), rel=1e-12)
    expected = torch.full((d,), 0.15 / math.sqrt(d), dtype=torch.float64)
    torch.testing.assert_close(climber.gradient(centre), expected, rtol=1e-12, atol=0)
    assert climber.lr == pytest.approx(math.sqrt(d) / 0.15, rel=1e-15)


@pytest.mark.parametrize("climber", CLIMBERS, ids=str)
def test_climber_gradient_is_what_autograd_finds(climber):
    x = points(climber, 50).requires_grad_()
    climber.value(x).sum().backward()
    torch.testing.assert_close(x.grad, climber.gradient(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("climber", CLIMBERS, ids=str)
def test_climber_lipschitz_and_least_value(climber):
    x = points(climber, 2000)
    assert climber.gradient(x).norm(dim=-1).max().item() <= climber.lipschitz * (1 + 1e-12)
    steepest = torch.full((climber.dimension,), -0.1, dtype=torch.float64)  # on the fall, left of the minimum
    assert climber.gradient(steepest).norm().item() == pytest.approx(climber.lipschitz, rel=1e-12)
    assert climber.value(x).min().item() > 0
    assert climber.value(torch.zeros(climber.dimension)).item() == 0


@pytest.mark.parametrize("climber", CLIMBERS, ids=str)
@pytest.mark.parametrize("make", [torch.optim.SGD, o2nc.ScaledSGDM])
def test_trapped_orbit_is_one_period_per_step(climber, make):
    """NOTES §5: "Trapped step = P = lr*slope", and F rises by 0.1√d with it."""
    start = torch.full((climber.dimension,), -4.6, dtype=torch.float64)
    x = start.clone()
    options = {"scaling": None} if make is o2nc.ScaledSGDM else {}
    optimizer = make([x], lr=climber.lr, momentum=0.9, dampening=0.9, **options)
    for t in range(1, 301):
        x.grad = climber.gradient(x)
        optimizer.step()
        torch.testing.assert_close(x, start - t, rtol=0, atol=1e-9)
        assert climber.value(x).item() == pytest.approx((0.53 + 0.1 * t) * math.sqrt(climber.dimension), abs=1e-8)


def test_the_trapped_orbit_attracts():
    """NOTES §5: "L1 is attracting", so neither rounding nor a start off by a few per cent frees the optimizer."""
    climber = Climber(10)
    x = climber.start()
    optimizer = torch.optim.SGD([x], lr=climber.lr, momentum=0.9, dampening=0.9)
    for _ in range(300):
        before = x.clone()
        x.grad = climber.gradient(x)
        optimizer.step()
    assert (before - x).tolist() == pytest.approx([1.0] * 10, abs=1e-6)
    assert torch.remainder(x, 1.0).tolist() == pytest.approx([0.4] * 10, abs=1e-6)
