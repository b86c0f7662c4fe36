"""`o2nc.minimize`: certificates recomputed in plain NumPy, both kinds of input, the budget, the ends."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from o2nc import minimize, problems, theory
from refusals import refusals


def absolute(x):
    """Σ k|x_k| and its gradient, for NumPy."""
    k = np.arange(1, x.size + 1).reshape(x.shape)
    return float((k * np.abs(x)).sum()), k * np.sign(x)


def numpy_of(problem):
    """F as a function of NumPy arrays, and the start."""

    def fun(x):
        y = torch.from_numpy(x.copy())
        return problem.value(y).item(), problem.gradient(y).flip(0).numpy()[::-1]  # a view that torch does not take

    return fun, problem.start().flip(0).numpy()[::-1]


def recomputed(fun, found, c):
    """The certificate of the witness from scratch: x, then ‖Σw∇F(y)‖ + cΣw‖y − x‖², in float64."""
    points, weights = (np.asarray(part, dtype=np.float64) for part in found.witness)
    assert weights.shape == points.shape[:1]
    assert (weights >= 0).all()
    assert abs(weights.sum() - 1) < 1e-12
    x = sum(w * y for w, y in zip(weights, points, strict=True))
    tolerance = 1e-12 if np.asarray(found.x).dtype == np.float64 else 1e-6
    np.testing.assert_allclose(np.asarray(found.x), x, rtol=tolerance, atol=tolerance)
    mean = sum(w * np.asarray(fun(y)[1], dtype=np.float64) for w, y in zip(weights, points, strict=True))
    spread = sum(w * ((y - x) ** 2).sum() for w, y in zip(weights, points, strict=True))
    return math.sqrt((mean**2).sum()) + c * spread


WELLS = numpy_of(problems.DoubleWell(10))
RUNS = {
    "|x|": (absolute, np.array([0.7])),
    "Σk|x_k|": (absolute, np.array([[0.7, -2.0], [3.0, 0.1]])),
    "smooth": (lambda x: (float((x**4).sum() / 4 + (x**2).sum()), x**3 + 2 * x), np.array([3.0, -2.0, 1.0])),
    "max-affine": numpy_of(problems.MaxAffine(8, pieces=40)),
    "wells": WELLS,
    "Chebyshev–Rosenbrock": numpy_of(problems.ChebyshevRosenbrock(3)),
}


@pytest.mark.parametrize(("eps", "c"), [(0.1, 1.0), (1e-3, 1e-2), (1e-3, 1e3), (1e-6, 1.0), (1e-10, 1.0)])
@pytest.mark.parametrize("name", RUNS)
def test_success_means_that_the_certificate_recomputed_from_scratch_is_at_most_eps(name, eps, c):
    fun, x0 = RUNS[name]
    found = minimize(fun, x0, eps=eps, c=c, max_evaluations=5000)
    assert found.success, found.message
    value = recomputed(fun, found, c)
    assert value <= eps
    assert found.certificate == pytest.approx(value, rel=1e-6, abs=1e-14)
    assert found.fun == fun(found.x)[0]
    assert found.x.shape == x0.shape
    assert found.history[-1][::2] == (found.nfev, found.certificate)
    least = [check.fun for check in found.history]
    assert least == sorted(least, reverse=True)
    assert least[-1] <= fun(x0)[0]


def test_kinks_take_a_tenth_of_the_steps_that_the_plan_with_known_constants_has():
    problem = problems.DoubleWell(10)
    found = minimize(*WELLS, eps=0.1)
    assert found.success
    assert found.nfev <= theory.steps_for(0.1, 1.0, lipschitz=problem.lipschitz, gap=problem.gap) / 10


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tensors_with_a_scalar_or_with_value_and_gradient(shape, dtype):
    def scalar(x):
        assert (x.dtype, x.shape) == (dtype, shape)
        return (x - 1).abs().sum() + 0.1 * x.square().sum()

    def pair(x):
        return float(scalar(x)), (x - 1).sign() + 0.2 * x

    for fun in (scalar, pair):
        found = minimize(fun, torch.full(shape, 3.0, dtype=dtype), eps=1e-3)
        assert found.success, found.message
        assert (found.x.dtype, found.x.shape, found.witness[0].dtype) == (dtype, shape, dtype)
        assert not found.x.requires_grad
        assert recomputed(lambda y: pair(torch.tensor(y, dtype=dtype)), found, 1.0) <= 1e-3


def test_x0_may_be_a_number_or_integers_and_is_not_changed():
    with torch.device("meta"):  # a default device is not that of arrays
        assert minimize(lambda x: (float(x**2), 2 * x), 3, eps=1e-6).x == pytest.approx(0, abs=1e-6)
    x0 = torch.tensor([1, 2])
    assert (minimize(lambda x: x.abs().sum(), x0, eps=1e-2).success, x0.tolist()) == (True, [1, 2])


def test_the_seed_decides():
    first, same, other = (minimize(*WELLS, eps=1e-4, seed=seed) for seed in (3, 3, 4))
    assert (first.history, first.x.tolist()) == (same.history, same.x.tolist())
    assert first.x.tolist() != other.x.tolist()


@pytest.mark.parametrize("budget", [1, 2, 3, 10, 57])
def test_the_bound_on_evaluations_holds_and_the_best_point_comes_back(budget):
    calls = []
    found = minimize(lambda x: calls.append(1) or WELLS[0](x), WELLS[1], eps=1e-9, max_evaluations=budget)
    assert len(calls) == found.nfev <= budget
    assert not found.success
    assert f"max_evaluations = {budget}" in found.message
    assert 1e-9 < recomputed(WELLS[0], found, 1.0) == pytest.approx(found.certificate)


def test_a_callback_sees_every_check_and_may_stop():
    seen = []

    def callback(now):
        seen.append(now)
        if len(seen) == 3:
            raise StopIteration

    found = minimize(*WELLS, eps=1e-9, callback=callback)
    assert (found.success, len(seen)) == (False, 3)
    assert "callback" in found.message
    assert [now.nfev for now in seen] == [check.nfev for check in found.history[:-1]]
    assert found.certificate == seen[-1].certificate <= min(check.certificate for check in found.history)


def test_what_cannot_succeed_says_why():
    results = {
        "unbounded": minimize(lambda x: (float(-x.sum()), -np.ones_like(x)), np.zeros(2), eps=1e-3),
        "finite at x0": minimize(lambda x: (math.nan, x), np.ones(2), eps=1e-3),
        "rounding": minimize(lambda x: (abs(x - 1 / 3), 2.0 * (x > 1 / 3) - 1), np.float32(9), eps=1e-18),
        "gradient is not finite": minimize(lambda x: (1e155 * abs(x), 1e155 * np.sign(x)), np.array(1.0), eps=1e-3),
        "gradients are wrong": minimize(lambda x: (float(abs(x)), 2 + np.sign(x)), np.array(3.0), eps=1e-3),
    }
    for text, found in results.items():
        assert not found.success
        assert text in found.message
        assert found.nfev < 5000


def test_values_that_are_not_finite_on_the_way_are_avoided():
    def fun(x):
        return (float(abs(x)), np.sign(x)) if x > -1 else (math.nan, x)

    assert minimize(fun, np.array(50.0), eps=1e-6).success


def test_a_dimension_in_which_no_matrix_is_kept():
    scale = torch.linspace(0.5, 2, 1500, dtype=torch.float64)
    found = minimize(lambda x: (scale * x.square()).sum().sqrt() + x[0].abs(), torch.ones_like(scale), eps=1e-2)
    assert found.success, found.message
    assert found.nfev < 200  # gradient descent, without the pairs that stand for the matrix, takes 361


def noisy(seed, noise=0.5, d=4):
    """Σ|x_k|/√d with errors of length ``noise``, of F as well; the exact function; a start."""
    random = np.random.default_rng(seed)

    def exact(x):
        return float(np.abs(x).sum()) / d**0.5, np.sign(x) / d**0.5

    def fun(x):
        (value, gradient), error = exact(x), random.normal(size=d)
        return value + random.normal(), gradient + noise * error / np.linalg.norm(error)

    return fun, exact, random.normal(size=d)


def test_with_noise_the_certificate_holds_with_the_probability_that_is_said():
    """Of 200 runs; fresh gradients decide, since those that steered fit the noise."""
    above = 0
    for seed in range(200):
        fun, exact, x0 = noisy(seed)
        found = minimize(fun, x0, eps=0.4, noise=0.5, failure=0.1, seed=seed)
        assert found.success, found.message
        assert found.certificate <= 0.4
        assert "with a probability of at least 0.9" in found.message
        above += recomputed(exact, found, 1.0) > 0.4
    assert above <= 0.1 * 200


def test_fresh_gradients_at_every_point_and_the_budget_with_noise():
    """A check takes N·w_k fresh gradients at least at the k-th point, and all calls count."""
    fun, _, x0 = noisy(0)
    calls = []
    found = minimize(lambda x: calls.append(x.copy()) or fun(x), x0, eps=0.3, noise=0.5)
    assert found.success
    assert len(calls) == found.nfev
    points, weights = found.witness
    least = theory.holdout_samples(1, 0.15, largest=0.25, failure=0.01)
    at = [sum(np.array_equal(y, x) for x in calls) for y in points]
    assert all(n > least * w for n, w in zip(at, weights, strict=True))
    for budget in (1, 2, 50, 300):
        few = minimize(fun, x0, eps=0.01, noise=0.5, max_evaluations=budget)
        assert few.nfev <= budget
        assert not few.success
        assert few.certificate > 0.01


BAD = [
    ({"noise": -1.0}, ValueError, "noise"),
    ({"noise": 1.0, "failure": 0.0}, ValueError, "failure"),
    ({"eps": 0.0}, ValueError, "eps"),
    ({"c": math.nan}, ValueError, "c must"),
    ({"max_evaluations": 0}, ValueError, "max_evaluations"),
    ({"seed": -1}, ValueError, "seed"),
    ({"callback": 3}, TypeError, "callback"),
    ({"fun": 3}, TypeError, "fun"),
    ({"fun": lambda x: float(x.sum())}, TypeError, "value, gradient"),
    ({"fun": lambda x: (x, x)}, ValueError, "scalar"),
    ({"fun": lambda x: (1.0, x[:1])}, ValueError, "shape"),
    ({"fun": lambda x: torch.tensor(1.0), "x0": torch.ones(2)}, ValueError, "autograd"),
    ({"x0": np.array([1.0, math.inf])}, ValueError, "x0"),
    ({"x0": np.array([])}, ValueError, "x0"),
    ({"x0": np.array([1j])}, ValueError, "x0"),
    ({"x0": [[1.0], [1.0, 2.0]]}, TypeError, "x0"),
    ({"fun": lambda x: (1.0, "a")}, TypeError, "what fun returns must be .* got 'a'"),
    ({"eps": 1e-165}, ValueError, r"eps must be a number in \[1e-60, 1e\+60\]"),
    ({"c": 1e80}, ValueError, r"must be a number in \[1e-60, 1e\+60\]"),
    ({"fun": lambda x: (1.0, x * 1j)}, TypeError, "a real gradient"),
]


GIVEN = {"fun": absolute, "x0": np.ones(2), "eps": 0.1}
test_bad_input_is_named = refusals(*((partial(minimize, **GIVEN | change), *how) for change, *how in BAD))
