"""x̄, ḡ and V of every optimizer are the sums of their definition, whatever the window, on both backends."""

from itertools import product

import mpmath
import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
import twin
from problem import flat
from registry import JOINT, WINDOWED, WINDOWS, build, ours_of, params_of

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
        p.grad = g.repeat(size // some).to(device)
        opt.step()
    assert rig.is_fused(opt) == fused
    found, (gradient, spread) = opt.certificate(), exact(xs, gs, window, size // some)
    assert found.gradient == pytest.approx(float(gradient), rel=2e-6, abs=0)
    assert found.spread == pytest.approx(float(spread), rel=2e-6, abs=0)
