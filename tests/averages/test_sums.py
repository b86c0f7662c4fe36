"""x̄, ḡ and V of every optimizer are the sums of their definition: every window, both backends, rounded well."""

from itertools import product

import mpmath
import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
import twin
from o2nc.averages.update import Row, update_
from problem import flat
from registry import JOINT, WINDOWED, WINDOWS, build, ours_of, params_of, step

STEPS = 26
SHAPES = [(3, 2), (4,), (2, 2, 1), (3,)]
AWAY = {1: {3, 4, 9, 10, 15, 26}, 2: {*range(1, 12), 14, 20}, 3: set(range(1, 17))}  # steps without a gradient


def run(opt, params, steps, away):
    """Step along; return for every parameter its iterates and gradients."""
    history = [([], []) for _ in params]
    for t in range(1, steps + 1):
        rig.set_noise(params, t, [i for i in away if t in away[i]])
        for p, (xs, gs) in zip(params, history, strict=True):
            xs.append(flat([p.cpu()]))
            gs.append(None if p.grad is None else flat([p.grad.cpu()]))
        opt.step()
    return history


def check(opt, window, history):
    """Compare what the optimizer says with sums over the iterates that count."""
    group, found = opt.param_groups[0], opt.certificate(2.0)
    couples = opt.couples_decay and not group.get("decoupled_weight_decay")
    decay = group["weight_decay"] if couples else 0.0
    square = 0.0
    for i, (p, (xs, gs)) in enumerate(zip(params_of(opt), history, strict=True)):
        x_mean, g_mean, spread, _ = twin.averages(xs, twin.seen(gs), window)
        entry, part = ours_of(opt, p), found.by_parameter[i]
        np.testing.assert_allclose(flat([entry["average"].cpu()]), x_mean, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(flat([entry["gradient"].cpu()]), g_mean, rtol=1e-10, atol=1e-13)
        assert part.spread == pytest.approx(spread, rel=1e-9, abs=1e-25)
        first = next(t for t, g in enumerate(gs) if g is not None)
        weights = twin.joined(twin.weights(window, len(xs)), first)
        assert part.ess == pytest.approx(1 / (weights**2).sum(), rel=1e-9)
        square += part.gradient**2
        assert part.gradient == pytest.approx(np.linalg.norm(g_mean + decay * x_mean), rel=1e-10)
    assert found.gradient == pytest.approx(square**0.5)
    assert found.spread == pytest.approx(sum(part.spread for part in found.by_parameter.values()))
    assert found.ess == min(part.ess for part in found.by_parameter.values())
    assert found.value == found.gradient + 2.0 * found.spread
    with opt.averaged():
        for p in params_of(opt):
            torch.testing.assert_close(p.detach(), ours_of(opt, p)["average"], rtol=0, atol=0)


@pytest.mark.some(40)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", WINDOWED)
def test_every_optimizer_and_window_with_late_and_absent_parameters(name, window, fused, device):
    params = rig.begin(device, shapes=SHAPES)
    opt = build(name, params, fused, average=window)
    check(opt, window, run(opt, params, STEPS, AWAY))
    assert rig.is_fused(opt) == (fused and name not in JOINT)


def exact(xs, gs, window, copies):
    """Return ‖ḡ‖ and V from their definition, in 60 digits, for vectors that are so many copies of these."""
    with mpmath.workdps(60):
        weights = [mpmath.mpf(w) for w in twin.weights(window, len(xs)).tolist()]
        x, g = ([[mpmath.mpf(v) for v in row] for row in rows.tolist()] for rows in (xs, gs))
        mean, gradient = ([mpmath.fdot(weights, column) for column in zip(*rows, strict=True)] for rows in (x, g))
        distances = [mpmath.fsum((a - b) ** 2 for a, b in zip(row, mean, strict=True)) for row in x]
        return mpmath.sqrt(copies * mpmath.fsum(v**2 for v in gradient)), copies * mpmath.fdot(weights, distances)


SIZED = [
    pytest.param(name, size, fused, marks=[pytest.mark.slow] * (size > 1000 and (fused or name != "AdamW")))
    for name in ("AdamW", "extend(NAdam)", "ScaledSGDM")
    for size, fused in product((10, 1_000, 100_000, 1_000_000), (False, True))
]


@pytest.mark.parametrize(("name", "size", "fused"), SIZED)
@pytest.mark.parametrize("exponent", range(-30, 31, 10))
def test_the_certificate_is_not_below_the_truth(name, size, fused, exponent, device, monkeypatch):
    """Float32 has no room for squares of numbers below 1e-23 or above 1e19."""
    if not fused:
        monkeypatch.setattr(rig.engine, "DEVICES", ())
    window, some, generator = o2nc.Polynomial(3), min(size, 1_000), torch.Generator().manual_seed(0)
    xs, gs = (10.0**exponent * torch.randn(2, 5, some, generator=generator)).unbind()
    p = torch.nn.Parameter(torch.zeros(size, device=device))
    opt = build(name, [p], fused, average=window)
    for x, g in zip(xs, gs, strict=True):
        p.data.copy_(x.repeat(size // some))
        step(opt, g.repeat(size // some).to(device))
    assert rig.is_fused(opt) == fused
    found, (gradient, spread) = opt.certificate(), exact(xs, gs, window, size // some)
    assert found.gradient == pytest.approx(float(gradient), rel=2e-6, abs=0)
    assert found.spread == pytest.approx(float(spread), rel=2e-6, abs=0)


@pytest.mark.parametrize("offload", [False, True])
def test_averages_that_were_cast_go_back_to_their_dtype(offload):
    """As torch.optim's load_state_dict does to dictionaries that it does not know."""
    p = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    opt = build("AdamW", [p], False, average=0.9, offload=offload)
    step(opt, torch.ones_like(p))
    entry = ours_of(opt, p)
    entry.update({key: entry[key].bfloat16() for key in ("average", "gradient", "spread")})
    step(opt, torch.ones_like(p))
    assert [entry[key].dtype for key in ("average", "gradient", "spread")] == [torch.float32] * 2 + [torch.float64]


# --- x̄ in float32 does not stand still where its increments are below half a unit in the last place

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
