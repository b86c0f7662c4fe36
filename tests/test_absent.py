"""Parameters without a gradient: they cost nothing while they have none, and nothing is lost by that."""

import math

import numpy as np
import pytest
import torch

import o2nc
from fused_device import LEARNERS, algorithm_2, begin, set_noise, sgdm
from o2nc import learners
from o2nc.averages import Discount, Weights
from problem import flat, parameters, set_gradients
from twin import averages

ABSENT = {3: [1], 4: [1], 5: [0, 1], 6: [], 7: [0], 9: [1], 12: [1], 13: [1]}  # by step


def run(opt, params, n):
    """Step with gaps; return x, and g with zeros in the gaps."""
    xs, gs = [], []
    for t in range(1, n + 1):
        set_noise(params, t, ABSENT.get(t, []))
        xs.append(flat([p.cpu() for p in params]))
        gs.append(flat([torch.zeros_like(p).cpu() if p.grad is None else p.grad.cpu() for p in params]))
        opt.step()
    return xs, gs


@pytest.mark.some(16)
@pytest.mark.parametrize("law", [o2nc.Exponential(), o2nc.Uniform(0, 2)], ids=str)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("n", [4, 5, 6, 13, 14])
@pytest.mark.parametrize("average", [0.9, 0.95])
def test_the_averages_are_those_with_zeros(device, average, n, fused, law):
    """A missing part of the joint gradient is a zero, whether it is asked for in the gap or after it."""
    params = begin(device, shapes=[(3, 2), (1025,), (4,)])
    opt = sgdm(params, fused, momentum=0.9, average=average, seed=1, scaling=law)
    xs, gs = run(opt, params, n)
    x_mean, g_mean, spread, ess = averages(xs, gs, average, [1.0] * n)
    certificate = opt.certificate()
    assert certificate.spread == pytest.approx(spread, rel=1e-11)
    assert certificate.gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-11)
    assert certificate.ess == pytest.approx(ess, rel=1e-12)
    with opt.averaged():
        np.testing.assert_allclose(flat([p.cpu() for p in params]), x_mean, rtol=1e-11, atol=1e-12)
    # Δ_t is zero on leaving a gap: the parameter had not moved
    moves = zip(xs, xs[1:], gs[1:], range(2, n + 1), strict=False)
    w = [law.weight(law.sample(1, t)) / law.sample(1, t) for t in range(2, n + 1)]
    assert opt.progress == pytest.approx(sum(w[t - 2] * (g @ (y - x)) for x, y, g, t in moves), rel=1e-9)


@pytest.mark.some(8)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_algorithm_2_with_gaps(device, learner, fused):
    params = begin(device, shapes=[(3, 2), (1025,), (4,)])
    opt = algorithm_2(params, learner, fused, seed=1)
    xs, gs = run(opt, params, 13)
    x_mean, g_mean, spread, _ = averages(xs, gs, 0.9, [1.0] * 13)
    assert opt.certificate().spread == pytest.approx(spread, rel=1e-10)
    assert opt.certificate().gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-10)
    with opt.averaged():
        np.testing.assert_allclose(flat([p.cpu() for p in params]), x_mean, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_the_kept_output_has_the_gaps_in_it(device, fused):
    """The kept x̄_n is that of step n, also of parameters that were absent then."""
    for seed in range(4 if fused and device == "cpu" else 12):
        params = begin(device, shapes=[(3,), (5,), (2,)])
        opt = sgdm(params, fused, momentum=0.9, average=0.9, seed=seed)
        xs, _ = run(opt, params, 13)
        candidates = [averages(xs[:n], xs[:n], 0.9, [1.0] * n)[0] for n in range(1, 14)]
        kept = flat([o.cpu() for o in opt.output()])
        assert min(np.abs(kept - c).max() for c in candidates) < 1e-12


def test_blocks_of_algorithm_1_with_gaps():
    """Uniform weights over the block, the gaps included, also for one that is absent where a block begins."""
    params = parameters(shapes=[(3,), (4,)])
    opt = o2nc.OriginalO2NC(params, learners.BallOGD(lr=0.02, radius=0.1), period=4)
    xs, gs = [], []
    for t in range(1, 13):
        set_gradients(params, t)
        if t in (3, 5, 6, 9, 12):
            params[1].grad = None
        xs.append(flat(params))
        gs.append(flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in params]))
        opt.step()
    x_mean, g_mean, spread, _ = averages(xs[-4:], gs[-4:], 1.0, [1.0] * 4)
    assert opt.certificate().gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-12)
    assert opt.certificate().spread == pytest.approx(spread, rel=1e-12)
    with opt.averaged():
        np.testing.assert_allclose(flat(params), x_mean, rtol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_ess_of_a_parameter_that_joined_late(device, fused):
    """Its first gradient stands for all before it: p is β^{n−m}W_m/W_n for that, β^{n−t}/W_n for later ones."""
    params = begin(device, shapes=[(3,), (4,)])
    opt = sgdm(params, fused, momentum=0.9, average=0.95)
    m, n, beta = 30, 40, 0.95
    for t in range(1, n + 1):
        set_noise(params, t, [1] if t < m else [])
        opt.step()
    total = sum(beta**k for k in range(n))
    p = [beta ** (n - m) * sum(beta**k for k in range(m)) / total] + [
        beta ** (n - t) / total for t in range(m + 1, n + 1)
    ]
    assert sum(p) == pytest.approx(1)
    certificate = opt.certificate()
    assert certificate.by_parameter[1].ess == pytest.approx(1 / sum(v**2 for v in p), rel=1e-9)
    assert certificate.by_parameter[0].ess == pytest.approx(
        1 / sum((beta**k / total) ** 2 for k in range(n)), rel=1e-9
    )
    assert certificate.ess == certificate.by_parameter[1].ess < 4 < certificate.by_parameter[0].ess


def test_weights_that_decay_for_ever():
    """log_decay is −Σ log(1 − γ), and the sums do not overflow."""
    weights = Weights(0.0, 0.0, 0.0)
    product = 1.0
    for n in range(1, 5001):
        weights, gamma = Discount(0.5).advance(weights, n, 1.0)
        product *= 1 - gamma if gamma < 1 else 1
    assert weights.log_decay == pytest.approx(5000 * math.log(2), rel=1e-3)
    assert weights.ess(-math.inf) == pytest.approx(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: o2nc.ScaledSGDM(ps, lr=0.01, momentum=0.9, average=0.99),
        lambda ps: o2nc.ExponentiatedO2NC(ps, learners.ScaleFree(lr=0.01)),
        lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(lr=0.01)),
    ],
    ids=["sgdm", "adam", "ogd"],
)
def test_an_absent_parameter_is_not_touched(make):
    """Neither its state nor its averages are read or written in a step, but for the few that replace the output."""
    params = [torch.nn.Parameter(torch.ones(8)) for _ in range(3)]
    opt = make(params)
    for p in params:
        p.grad = torch.ones_like(p)
    replaced = [n for n in range(1, 400) if o2nc.scaling.uniform(0, n, stream=1) * n < 1]
    quiet = next(n for n, later in zip(replaced, [*replaced[1:], 400], strict=True) if later - n > 20)
    for _ in range(quiet):
        opt.step()
    params[1].grad = params[2].grad = None
    opt.step()  # ḡ apart from the buffer, if need be
    before = {p: {k: v.clone() for k, v in opt.state[p].items() if torch.is_tensor(v)} for p in params[1:]}
    poison = {}
    for p in params[1:]:
        poison[p] = p.data
        p.data = torch.full_like(p, float("nan"))  # whoever reads it shows it
    for _ in range(15):
        opt.step()
    for p, data in poison.items():
        p.data = data
        assert all(torch.equal(opt.state[p][k], v) for k, v in before[p].items())
    assert math.isfinite(opt.certificate().value)
