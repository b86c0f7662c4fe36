"""`o2nc.minimize`: certificates recomputed in plain NumPy, both kinds of input, the budget, the ends."""

import math

import numpy as np
import pytest
import torch

import o2nc
from o2nc import minimize, problems


def absolute(x):
    """Σ k|x_k| and its gradient, for NumPy."""
    k = np.arange(1, x.size + 1).reshape(x.shape)
    return float((k * np.abs(x)).sum()), k * np.sign(x)


def of(problem):
    """F of a problem as a function of NumPy arrays."""

    def fun(x):
        y = torch.from_numpy(x)
        return problem.value(y).item(), problem.gradient(y).numpy()

    return fun


def recomputed(fun, found, c):
    """The certificate of the witness from scratch: x, then ‖Σw∇F(y)‖ + cΣw‖y − x‖², in float64."""
    points, weights = (np.asarray(part, dtype=np.float64) for part in found.witness)
    assert weights.ndim == 1 and len(points) == len(weights) and (weights >= 0).all()
    assert abs(weights.sum() - 1) < 1e-12
    x, mean, spread = np.zeros(points[0].shape), np.zeros(points[0].shape), 0.0
    for y, w in zip(points, weights, strict=True):
        x = x + w * y
    tolerance = 1e-12 if np.asarray(found.x).dtype == np.float64 else 1e-6
    np.testing.assert_allclose(np.asarray(found.x), x, rtol=tolerance, atol=tolerance)
    for y, w in zip(points, weights, strict=True):
        mean = mean + w * np.asarray(fun(y)[1], dtype=np.float64)
        spread += w * ((y - x) ** 2).sum()
    return math.sqrt((mean**2).sum()) + c * spread


RUNS = {
    "|x|": (absolute, np.array([0.7])),
    "Σk|x_k|": (absolute, np.array([[0.7, -2.0], [3.0, 0.1]])),
    "smooth": (lambda x: (float((x**4).sum() / 4 + (x**2).sum()), x**3 + 2 * x), np.array([3.0, -2.0, 1.0])),
    "max-affine": (of(problems.MaxAffine(8, pieces=40)), problems.MaxAffine(8, pieces=40).start().numpy()),
    "wells": (of(problems.DoubleWell(10)), problems.DoubleWell(10).start().numpy()),
    "Chebyshev–Rosenbrock": (of(problems.ChebyshevRosenbrock(3)), problems.ChebyshevRosenbrock(3).start().numpy()),
}


@pytest.mark.parametrize("c", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize("eps", [0.1, 1e-3, 1e-6])
@pytest.mark.parametrize("name", RUNS)
def test_success_means_that_the_certificate_recomputed_from_scratch_is_at_most_eps(name, eps, c):
    fun, x0 = RUNS[name]
    found = minimize(fun, x0, eps=eps, c=c, max_evaluations=5000)
    assert found.success and found.nfev <= 5000, found.message
    value = recomputed(fun, found, c)
    assert value <= eps
    assert found.certificate == pytest.approx(value, rel=1e-6, abs=1e-12)
    assert found.fun == fun(found.x)[0] and found.x.shape == x0.shape


def test_kinks_take_fewer_evaluations_than_the_plan_with_known_constants():
    problem = problems.DoubleWell(10)
    fun, x0 = RUNS["wells"]
    found = minimize(fun, x0, eps=0.1)
    plan = o2nc.theory.steps_for(0.1, lipschitz=problem.lipschitz, gap=problem.gap, c=1.0)
    assert found.success and found.nfev <= plan / 10


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tensors_with_a_scalar_or_with_value_and_gradient(shape, dtype):
    def scalar(x):
        assert x.dtype == dtype and x.shape == shape
        return (x - 1).abs().sum() + 0.1 * x.square().sum()

    def pair(x):
        return float(scalar(x)), (x - 1).sign() + 0.2 * x

    x0 = torch.full(shape, 3.0, dtype=dtype)
    for fun in (scalar, pair):
        found = minimize(fun, x0, eps=1e-3)
        assert found.success and isinstance(found.x, torch.Tensor), found.message
        assert (found.x.dtype, found.x.shape, found.witness[0].dtype) == (dtype, shape, dtype)
        assert not found.x.requires_grad
        assert recomputed(lambda y: pair(torch.tensor(y, dtype=dtype)), found, 1.0) <= 1e-3


def test_x0_may_be_a_number_or_integers_and_is_not_changed():
    assert minimize(lambda x: (float(x**2), 2 * x), 3, eps=1e-6).x == pytest.approx(0, abs=1e-6)
    x0 = torch.tensor([1, 2])
    assert minimize(lambda x: x.abs().sum(), x0, eps=1e-2).success
    assert x0.tolist() == [1, 2]


def test_the_seed_decides():
    fun, x0 = RUNS["wells"]
    first, same, other = (minimize(fun, x0, eps=1e-4, seed=seed) for seed in (3, 3, 4))
    assert first.history == same.history and (first.x == same.x).all() and first.nfev == same.nfev
    assert (first.x != other.x).any()


@pytest.mark.parametrize("budget", [1, 2, 3, 10, 57])
def test_the_bound_on_evaluations_holds_and_the_best_point_comes_back(budget):
    calls = []

    def fun(x):
        calls.append(x)
        return RUNS["wells"][0](x)

    found = minimize(fun, RUNS["wells"][1], eps=1e-9, max_evaluations=budget)
    assert len(calls) == found.nfev <= budget
    assert not found.success and str(budget) in found.message
    assert 1e-9 < recomputed(RUNS["wells"][0], found, 1.0) == pytest.approx(found.certificate)


def test_a_callback_sees_every_check_and_may_stop():
    seen = []

    def callback(now):
        seen.append(now)
        if len(seen) == 3:
            raise StopIteration

    found = minimize(*RUNS["wells"], eps=1e-9, callback=callback)
    assert not found.success and "callback" in found.message and len(seen) == len(found.history) - 1 == 3
    assert (
        [now.nfev for now in seen]
        == sorted({now.nfev for now in seen})
        == [check.nfev for check in found.history[:-1]]
    )
    assert found.certificate == min(check.certificate for check in found.history) == seen[-1].certificate


def test_unbounded_and_not_finite():
    down = minimize(lambda x: (float(-x.sum()), -np.ones_like(x)), np.zeros(2), eps=1e-3)
    assert not down.success and "unbounded" in down.message and down.nfev < 1000
    nan = minimize(lambda x: (math.nan, x), np.ones(2), eps=1e-3)
    assert not nan.success and "finite" in nan.message and nan.nfev == 1 and (nan.x == 1).all()
    # log x² + 1/x² is not finite at 0, and that is next to where the search begins
    hole = minimize(lambda x: (x.square().log() + 1 / x.square()).sum(), torch.tensor([1e-2]), eps=1e-6)
    assert hole.success and abs(hole.x.item()) == pytest.approx(1, abs=1e-3)
    wall = minimize(lambda x: (float(abs(x[0])) if x[0] > -1 else math.nan, np.sign(x)), np.array([5.0]), eps=1e-6)
    assert wall.success


def test_more_points_than_a_matrix_has_room_for():
    n = 1500  # limited memory
    scale = torch.linspace(0.5, 2, n, dtype=torch.float64)
    found = minimize(lambda x: (scale * x.square()).sum().sqrt() + x[0].abs(), torch.ones(n), eps=1e-2)
    assert found.success, found.message


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"eps": 0.0}, ValueError, "eps"),
        ({"eps": math.nan}, ValueError, "eps"),
        ({"c": -1.0}, ValueError, "c must"),
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
        ({"x0": "a"}, TypeError, "x0"),
    ],
)
def test_bad_input_is_named(change, error, text):
    given = {"fun": absolute, "x0": np.ones(2), "eps": 0.1} | change
    with pytest.raises(error, match=text):
        minimize(given.pop("fun"), given.pop("x0"), **given)
