"""The energy theorem, line by line, and `guarantee`; rows of `o2nc paper verify` have its lemmas."""

import itertools
import math
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import o2nc
from o2nc import theory
from o2nc.averages.reading import made_with
from o2nc.learners import OGD, AdaGrad
from o2nc.theory.energy import Falling, Rates, Run, law_energy
from problem import noise
from refusals import refusals
from twin import energy_bound

UNIT = {"c": 1.0, "gap": 1.0, "lipschitz": 1.0}
BETAS = st.floats(0.05, 0.99)


@given(st.integers(1, 10**5), BETAS, st.floats(-6, 1), st.sampled_from(["uniform", "geometric"]), st.floats(0, 3))
@settings(deadline=None)
def test_guarantee_is_the_written_bound(n, beta, log_lr, output, noise):
    known = {"c": 0.7, "gap": 2.0, "lipschitz": 1.5, "noise": noise}
    lr = 10**log_lr
    found = theory.guarantee(lr=lr, momentum=beta, steps=n, output=output, **known)
    assert found.bound == pytest.approx(energy_bound(n, beta, lr / beta, output=output, **known), rel=1e-9)
    assert sum(found.terms.values()) == found.bound
    assert found.vacuous == (found.bound >= 1.5)


@pytest.mark.parametrize(
    ("eps", "noise", "c"), [(0.5, 1.0, 1.0), (0.1, 1.0, 1.0), (0.1, 0.0, 1.0), (0.1, 1.0, 0.001)]
)
def test_steps_for_is_the_least_n(eps, noise, c):
    """The bound of the best plan just misses ε at N − 1, and 30 digits of its formula meet it at N."""
    known = {"c": c, "gap": 1.0, "lipschitz": 1.0, "noise": noise}
    n = theory.steps_for(eps, **known)
    p = theory.plan(n, **known)
    assert theory.plan(n - 1, **known).bound > eps
    with mpmath.workdps(30):
        exact = energy_bound(n, 1 - mpmath.mpf(p.alpha), mpmath.mpf(p.lr), output="geometric", lib=mpmath, **known)
        assert abs(exact - p.bound) < 1e-12
        assert exact <= eps


@pytest.mark.parametrize("law", [o2nc.Exponential(), o2nc.Gamma(2.0), o2nc.Jitter(0.25)], ids=repr)
def test_sharp_plan_is_a_guarantee(law):
    """Its N is the least, its optimizer has its law and output, and the theorem says the same of the optimizer."""
    known = {**UNIT, "noise": 1.0}
    n = theory.steps_for(0.3, **known, law=law)
    p = theory.plan(n, **known, law=law)
    assert p.bound <= 0.3 < theory.plan(n - 1, **known, law=law).bound
    assert n > theory.steps_for(0.3, **known) or law == o2nc.Exponential()
    assert (p.decay, p.momentum, p.output) == (0.0, p.beta, "geometric")
    named = theory.guarantee(lr=p.lr * p.beta, momentum=p.beta, steps=n, output="geometric", law=law, **known)
    assert named.terms == pytest.approx(p.terms)
    optimizer = p.optimizer([torch.zeros(2)])
    assert (made_with(optimizer)["scaling"], made_with(optimizer)["output"]) == (law, "geometric")
    read = theory.guarantee(optimizer, steps=n, **known)
    assert (read.output, read.terms) == ("geometric", pytest.approx(p.terms))
    assert theory.guarantee(optimizer, steps=n, **known, output="uniform").output == "uniform"
    printed = theory.plan(10_000, **known, constants="paper")
    assert printed.output == made_with(printed.optimizer([torch.zeros(2)]))["output"] == "uniform"


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_constant_schedule_is_the_constant(steps):
    """And one to 0 at the end, or a warm-up, has a bound."""
    known = {"momentum": 0.9, "steps": steps, "noise": 0.5, **UNIT}
    for output, law in itertools.product(("uniform", "geometric"), (o2nc.Exponential(), o2nc.Gamma(4.0))):
        fixed = theory.guarantee(lr=0.01, output=output, law=law, **known).terms
        assert (fixed["spread"] == 0) == (steps == 1)  # V_1 = 0
        for lr in ([0.01] * steps, lambda t: 0.01):
            assert theory.guarantee(lr=lr, output=output, law=law, **known).terms == pytest.approx(fixed)
    schedules = (lambda t: 0.01 * (1 - t / steps), lambda t: 0.01 * min(1.0, 1.2 ** (t - 20)))
    assert steps == 1 or all(theory.guarantee(lr=lr, **known).bound < math.inf for lr in schedules)


def test_rates_that_the_run_lowers():
    """The sums of every falling sequence are within the bounds that `Falling` takes, and so is the guarantee."""
    rng, b, steps = np.random.default_rng(0), 0.9, 40
    known = {"momentum": b, "steps": steps, "noise": 0.5, "output": "geometric", **UNIT}
    worst = theory.guarantee(lr=Falling(0.02, 0.005), **known)
    for _ in range(200):
        lrs = 0.005 * 4 ** np.sort(rng.uniform(size=steps) ** rng.choice([0.1, 1, 10]))[::-1]
        assert theory.guarantee(lr=lrs, **known).bound <= worst.bound
        w = np.append(np.concatenate([lrs[:1], lrs[:-2]]) - b**2 * lrs[:-1], lrs[-2])
        assert (1 / w[:-1]).sum() <= (steps - 1) / ((1 - b**2) * 0.005)
        assert (lrs[:-1] ** 2 / w[:-1]).max() <= 0.02 / (1 - b**2)
    fixed, falling = (theory.guarantee(lr=lr, **known).terms for lr in (0.02, Falling(0.02, 0.02)))
    assert falling == pytest.approx(fixed)


def test_scaled_law_is_a_longer_step():
    known = {"momentum": 0.95, "steps": 500, "noise": 1.0, **UNIT}
    one = theory.guarantee(lr=0.002, **known)
    assert theory.guarantee(lr=0.004, law=o2nc.Exponential(2.0), **known).terms == pytest.approx(one.terms)
    gamma = theory.guarantee(lr=0.002, law=o2nc.Gamma(4.0), **known)
    assert gamma.terms["law"] > 0 == one.terms["law"]
    assert theory.guarantee(lr=0.001, law=o2nc.Gamma(4.0, 0.5), **known).terms == pytest.approx(gamma.terms)


def sgdm(**kwargs):
    return o2nc.ScaledSGDM([torch.zeros(3)], **({"lr": 0.01, "momentum": 0.9, "average": 0.9} | kwargs))


def exponentiated(learner=OGD(0.02), params=None, **kwargs):
    return o2nc.ExponentiatedO2NC(params or [torch.zeros(3)], learner, **({"beta": 0.9} | kwargs))


def test_guarantee_reads_the_optimizer():
    known = {"steps": 1000, "noise": 0.5, **UNIT}
    named = theory.guarantee(lr=0.01, momentum=0.9, **known)
    assert theory.guarantee(sgdm(), **known) == named
    assert theory.guarantee(sgdm(lr=torch.tensor(0.01, dtype=torch.float64)), **known) == named
    assert theory.guarantee(exponentiated(OGD(0.01 / 0.9)), **known).terms == pytest.approx(named.terms)
    longer = theory.guarantee(lr=0.01, momentum=0.9, average=0.99, **known)
    assert theory.guarantee(sgdm(average=0.99), **known) == longer
    # OGD's decay, and κ = 2, shorten the momentum: Δ ← b(Δ − ηg)
    for learner in (OGD(0.02, decay=3.0), OGD(0.02, kappa=2)):
        b = 0.9 / (0.9 + 0.02 * learner.decay + learner.kappa * 0.1)
        same = theory.guarantee(lr=0.02 * b, momentum=b, average=0.9, **known)
        assert theory.guarantee(exponentiated(learner), **known).terms == pytest.approx(same.terms)
    assert theory.guarantee(sgdm(), lr=[0.01] * 1000, **known).terms == pytest.approx(named.terms)
    assert theory.guarantee(sgdm(momentum=0.0, average=0.9), **known).vacuous


def changes(lrs, momentum, dampening, gradients):
    """Σ_{t<N}‖Δ_{t+1} − Δ_t‖ + ‖Δ_N‖ of torch's buffer, which starts at g_1, in one dimension."""
    deltas, buffer = [0.0], None
    for lr, g in zip(lrs[:-1], gradients, strict=False):
        buffer = g if buffer is None else momentum * buffer + (1 - dampening) * g
        deltas.append(-lr * buffer)
    return np.abs(np.diff(deltas)).sum() + abs(deltas[-1])


@given(
    st.integers(2, 12),
    st.floats(0.01, 0.99),
    st.sampled_from([-1.0, 0.0, 0.5, 0.9, 0.999]),
    st.sampled_from([1.0, 0.5, 1e-3]),
    st.integers(0, 10**6),
)
@settings(deadline=None)
def test_changes_are_bounded_for_every_dampening_and_schedule(n, b, tau, ratio, seed):
    rng = np.random.default_rng(seed)
    lrs = ratio ** np.sort(rng.uniform(0, 3, n))
    signs = [np.ones(n), rng.choice([-1.0, 1.0], n), (-1.0) ** np.arange(n)]
    run = Run(b, 0.9, o2nc.Gamma(4.0), tau)
    bound = law_energy(run, Rates.scheduled((1 - tau) * lrs, b), 1.0, 1.0) / (2 * b * run.law.price)
    assert max(changes(lrs, b, tau, g) for g in signs) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("b", [0.01, 0.1, 0.2, 0.25, 0.3, 0.9])
@pytest.mark.parametrize("n", [2, 200, 10**6])
def test_price_of_a_law_is_the_lesser_of_two(b, n):
    """2bGL·A·R at a constant ℓ, R = min{√(J(N − 1)/b), ℓ(2N − 3 + 1/(1 − b))}: Cauchy–Schwarz, or the triangle
    inequality, which is better below b = ¼ as N grows.
    """
    law, g, size, lr = o2nc.Gamma(4.0), 1.5, 2.5, 0.01
    cauchy, triangle = math.sqrt((n - 1) * (n - 1 + b / (1 - b)) / b), 2 * n - 3 + 1 / (1 - b)
    found = law_energy(Run(b, b, law), Rates.constant(lr, b, n), g, size)
    assert found == pytest.approx(2 * b * g * law.price * size * lr * min(cauchy, triangle))
    if n == 10**6:
        assert (cauchy < triangle) == (b > 0.25) or b == 0.25
        assert min(cauchy, triangle) >= 0.99 * n * changes(np.ones(1000), b, 0.0, (-1.0) ** np.arange(1000)) / 1000


def test_first_buffer_under_dampening():
    """The buffer is (1 − τ)Σb^{t−s}ĝ_s, ĝ_1 = g_1/(1 − τ): A²(N − 1 + (1 − τ)^{−2}) in T, and τA/((1 − τ)N) more."""
    tau, b, known = 0.6, 0.9, {"steps": 400, "noise": 0.5, **UNIT}
    x = torch.zeros(3, dtype=torch.float64)
    optimizer = o2nc.ScaledSGDM([x], lr=0.01, momentum=b, dampening=tau, average=0.9)
    total = torch.zeros_like(x)
    for t in range(6):
        x.grad = noise(t, 3)
        total = b * total + x.grad / (1 - tau if t == 0 else 1)
        optimizer.step()
    torch.testing.assert_close(optimizer.state[x]["momentum_buffer"], (1 - tau) * total)
    damped, plain = theory.guarantee(optimizer, **known), theory.guarantee(lr=0.004, momentum=b, **known)
    size = math.hypot(1.0, 0.5)
    assert damped.terms["start"] - plain.terms["start"] == pytest.approx(tau / (1 - tau) * size / 400)
    longer = (damped.terms["spread"] / plain.terms["spread"] - 1) * (2 * b + size**2 * 400 * 0.004)
    assert longer == pytest.approx(size**2 * ((1 - tau) ** -2 - 1) * 0.004)


def test_all_that_voids_the_theorem_is_named():
    x, y = torch.zeros(3), torch.zeros(2)
    groups = [{"params": [x]}, {"params": [y], "lr": 0.5, "momentum": 0.5}]
    optimizer = o2nc.ScaledSGDM(
        groups, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True, scaling=None, average=o2nc.Polynomial(2)
    )
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    with pytest.raises(ValueError, match="no theorem holds") as refusal:
        theory.guarantee(optimizer, steps=10, **UNIT)
    words = ("differ in lr", "differ in momentum", "weight_decay", "nesterov", "without random", "Poly", "scheduler")
    assert [word for word in words if word not in str(refusal.value)] == []


UNTOLD = [
    (sgdm(average=None), "average=None"),
    (sgdm(lr=0.0), "moves nothing"),
    (sgdm(momentum=1.0), "momentum=1.0 is not in"),
    (sgdm(dampening=1.0), "dampening=1.0 takes in no gradient"),
    (exponentiated(weight_decay=0.1), r"no theorem holds.*weight_decay=0.1"),
    (exponentiated(params=[{"params": [torch.zeros(3)], "weight_decay": 0.1}]), "weight_decay=0.1"),
    (exponentiated(AdaGrad(0.01)), "ExponentiatedO2NC with AdaGrad"),
    (o2nc.AdamW([torch.zeros(2)]), "got AdamW"),
]
LARGE = {"lr": 0.1, "momentum": 0.2, "steps": 10, "law": o2nc.Gamma(0.1), **UNIT}
test_refusals = refusals(
    *((partial(theory.guarantee, opt, steps=10, **UNIT), ValueError, words) for opt, words in UNTOLD),
    (lambda: theory.guarantee(**LARGE), ValueError, "only output='geometric' has a theorem"),
)


def test_a_law_of_large_variance_needs_the_geometric_output():
    assert theory.guarantee(**LARGE, output="geometric").vacuous


def test_guarantee_says_what_it_is():
    text = str(theory.guarantee(lr=0.1, momentum=0.9, steps=100, **UNIT))
    assert "uniform output" in text
    assert "no less than G = 1" in text
    assert " law" not in text
    assert "noise" not in text  # there is none unless it is said
