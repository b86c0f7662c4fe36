"""Rows of a batch are runs of the optimizers: the same points, averages and certificates, run by run."""

import math

import numpy as np
import pytest
import torch

import o2nc
from o2nc import problems, theory
from o2nc_experiments.batch import Adaptive, Algorithm1, Algorithm2, run_algorithm_1, run_algorithm_2
from o2nc_experiments.verify.traces import Trace, discounted, trace, traces

WELL = problems.DoubleWell(dimension=3)
EXACT = problems.Additive(WELL, noise=0.0)


def plans(*lengths):
    known = {"gap": WELL.gap, "lipschitz": WELL.lipschitz}
    return [theory.plan(n, 2.0, **known, constants=k) for n in lengths for k in ("sharp", "paper")]


def alone(optimizer, x, steps, c, every=1, weights=None):
    """Means over the run and the last value, from the optimizer's own certificates."""
    sums, looks, count, drawn = torch.zeros(2, dtype=torch.float64), [], 0, math.nan
    beta = optimizer.param_groups[0].get("beta", math.nan)
    for t in range(1, steps + 1):
        x.grad = WELL.gradient(x)
        optimizer.step()
        if t % every == 0:
            certificate = optimizer.certificate(c)
            share = 1.0 if weights is None else steps * weights[t - 1]
            sums += share * torch.tensor([certificate.gradient, certificate.spread], dtype=torch.float64)
            count += 1
            # the law P of docs/paper.md
            share = (1 - beta**t) / steps * (1 if t < steps else 1 / (1 - beta))
            drawn = (0.0 if t == 1 else drawn) + share * certificate.value
        if t % 8 == 0 and every == 1:
            with optimizer.averaged():
                looks.append(WELL.gradient(x).norm().item())
    gradient, spread = (sums / count).tolist()
    at_average = sum(looks) / len(looks) if looks else math.nan
    return gradient, spread, gradient + c * spread, at_average, WELL.value(x).item(), drawn


def assert_same(outcome, expected):
    o = outcome
    found = (o.gradient, o.spread, o.certificate, o.at_average, o.value, o.geometric)
    assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)


def test_rows_are_runs_of_algorithm_2():
    runs = [
        Algorithm2.of(p, seed, law)
        for p in plans(300, 64, 200)
        for seed in (0, 5)
        for law in (o2nc.Exponential(), None)
    ]
    outcomes = run_algorithm_2(EXACT, runs)
    for run, outcome in zip(runs, outcomes, strict=True):
        x = WELL.start()
        learner = o2nc.learners.OGD(lr=run.lr, decay=run.decay)
        optimizer = o2nc.ExponentiatedO2NC([x], learner, beta=run.beta, scaling=run.scaling, seed=run.seed)
        weights = theory.output_weights(run.steps, run.beta, run.output)
        assert_same(outcome, alone(optimizer, x, run.steps, run.c, weights=weights))


def test_rows_are_runs_of_the_adaptive_learner():
    runs = [Adaptive(n, d, beta, 2.0, seed) for n, d, beta in ((600, 0.02, 0.95), (90, 0.3, 0.5)) for seed in (0, 5)]
    for run, outcome in zip(runs, run_algorithm_2(EXACT, runs), strict=True):
        x = WELL.start()
        optimizer = o2nc.ExponentiatedO2NC(
            [x], o2nc.learners.BallAdaGrad(lr=run.radius), beta=run.beta, seed=run.seed
        )
        assert_same(outcome, alone(optimizer, x, run.steps, run.c))


def test_rows_are_runs_of_algorithm_1():
    runs = [Algorithm1(n, t, 0.05, 0.03, 2.0, seed) for n, t in ((1200, 30), (60, 20), (60, 60)) for seed in (0, 3)]
    outcomes = run_algorithm_1(EXACT, runs)
    for run, outcome in zip(runs, outcomes, strict=True):
        x = WELL.start()
        learner = o2nc.learners.BallOGD(lr=run.lr, radius=run.radius)
        optimizer = o2nc.OriginalO2NC([x], learner, period=run.period, seed=run.seed, restart=True)
        assert_same(outcome, alone(optimizer, x, run.steps, run.c, every=run.period))


@pytest.mark.parametrize("law", [o2nc.Exponential(), o2nc.Gamma(4.0)], ids=repr)
def test_traces_are_runs_of_the_optimizer(law):
    learner, beta, seeds = o2nc.learners.OGD(lr=0.1, decay=0.3), 0.9, [3, 7, 4]
    runs = traces(EXACT, learner, beta, 60, seeds, law)
    for i, seed in enumerate(seeds):
        alone = trace(
            o2nc.ExponentiatedO2NC([WELL.start()], learner, beta=beta, scaling=law, seed=seed), EXACT, 60, 0
        )
        for name in Trace.__dataclass_fields__:
            np.testing.assert_allclose(getattr(runs, name)[i], getattr(alone, name), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(discounted(runs.full, beta)[1], discounted(runs.full[1], beta), rtol=1e-15)


def test_traces_have_noise_of_their_own():
    """One run is the optimizer's, noise and all; two runs see different noise."""
    oracle, learner = problems.Additive(WELL, 0.5), o2nc.learners.OGD(lr=0.1)
    (single,) = traces(oracle, learner, 0.9, 30, [5]).gradients
    expected = trace(o2nc.ExponentiatedO2NC([WELL.start()], learner, beta=0.9, seed=5), oracle, 30, 5)
    np.testing.assert_allclose(single, expected.gradients, rtol=1e-9)
    runs = traces(oracle, learner, 0.9, 2000, [5, 6])
    noise = runs.gradients - runs.full
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.06
    assert noise.std() == pytest.approx(0.5 / 3**0.5, rel=0.05)


def test_first_good_average():
    (run,) = [Algorithm2(200, 0.05, 0.0, 0.9, 1.0, 0, None)]
    goal = WELL.value(WELL.start()).item() / 2
    (outcome,) = run_algorithm_2(EXACT, [run], good=lambda x: WELL.value(x) < goal)
    x = WELL.start()
    optimizer = o2nc.ExponentiatedO2NC([x], o2nc.learners.OGD(lr=0.05), beta=0.9, scaling=None)
    reached = []
    for _ in range(200):
        x.grad = WELL.gradient(x)
        optimizer.step()
        with optimizer.averaged():
            reached.append(WELL.value(x).item() < goal)
    assert outcome.first == 1 + reached.index(True)
    assert run_algorithm_2(EXACT, [run], good=lambda x: WELL.value(x) < -1)[0].first == math.inf


def test_noise_reaches_the_learner_and_not_the_measure():
    """The certificate is of full gradients: at a point that does not move it has no noise in it."""
    (p,) = [theory.plan(50, 1.0, gap=1e-12, lipschitz=WELL.lipschitz, noise=100.0)]
    (outcome,) = run_algorithm_2(problems.Additive(WELL, noise=100.0), [Algorithm2.of(p, 0)])
    assert outcome.certificate == pytest.approx(WELL.gradient(WELL.start()).norm().item(), rel=1e-3)
    quiet = run_algorithm_2(EXACT, [Algorithm2.of(p, 0)])[0]
    assert quiet.value != outcome.value


def test_progress_adds_up():
    seen = []
    run_algorithm_2(EXACT, [Algorithm2.of(p, 0) for p in plans(2500, 10)], progress=seen.append)
    assert sum(seen) == 2500


@pytest.mark.parametrize("law", [o2nc.Exponential(), o2nc.Gamma(2.0), o2nc.Uniform(0.75, 1.25)], ids=repr)
def test_guarantee_holds_for_learning_rates_and_momenta_of_ones_own(law):
    """experiments/benchmarks/guarantees.py has more of them."""
    noise, steps, seeds = 0.5, 400, 4
    known = {"steps": steps, "c": 0.3, "gap": WELL.gap, "lipschitz": WELL.lipschitz, "noise": noise, "law": law}
    pairs = [(1e-4, 0.99), (1e-3, 0.97), (1e-2, 0.5), (0.1, 0.9)]
    for output in ("uniform", "geometric"):
        runs = [Algorithm2(steps, lr / b, 0.0, b, 0.3, k, law, output) for lr, b in pairs for k in range(seeds)]
        outcomes = run_algorithm_2(problems.Additive(WELL, noise), runs)
        for i, (lr, b) in enumerate(pairs):
            attained = sum(outcome.certificate for outcome in outcomes[i * seeds : (i + 1) * seeds]) / seeds
            assert attained <= theory.guarantee(lr=lr, momentum=b, output=output, **known).bound
