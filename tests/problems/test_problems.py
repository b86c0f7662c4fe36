"""The traps are what their formulas say and hold momentum; every problem and oracle keeps its constants."""

import copy
import dataclasses
import math
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import o2nc
from o2nc import problems
from o2nc.problems import Additive, Climber, Cosine, MaxAffine, PhaseRetrieval, ReluRegression, Resonance, Subsampled
from refusals import refusals
from registry import step

SHAPE = {"threshold": st.floats(0.05, 0.95), "slope": st.floats(0.01, 10), "ramp": st.floats(0, 1)}
TRAPS = st.builds(partial(Resonance, dimension=1, momentum=0.9, position=0.0), **SHAPE)
PHASES = ((torch.arange(20001, dtype=torch.float64) + 0.5) / 20001).unsqueeze(1)  # of a period; they miss the kinks


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


@given(TRAPS, st.integers(-20, 20))
@settings(deadline=None, max_examples=60)
def test_a_trap(trap, k):
    """It is periodic and continuous; 0 is its least value; `lipschitz` is attained."""
    x, size, rise = PHASES[::20], trap.lipschitz, 1 - trap.threshold
    torch.testing.assert_close(trap.value(x + k), trap.value(x), rtol=0, atol=1e-11 * size)
    # the integral of the slope over the rise and over the fall, each linear: the midpoint rule is exact
    middle, lengths = column(rise / 2, (rise + 1) / 2), column(rise, 1 - rise)
    assert abs((trap.gradient(middle) * lengths).sum().item()) <= 1e-12 * size
    kinks, h = column(-1.0, 0.0, rise, 1.0, 1 + rise), 1e-9
    jump = trap.value(kinks + h) - trap.value(kinks - h)
    assert jump.abs().max().item() <= 2.001 * size * h + 1e-12 * size
    ends = column(0.0, rise * (1 - 1e-12), (rise + 1) / 2)
    steepest = trap.gradient(torch.cat([ends, x])).abs().max().item()
    assert steepest == pytest.approx(size, rel=1e-9)
    assert size == max(trap.slope * (1 + trap.ramp), trap.slope * (1 - trap.threshold) / trap.threshold)
    assert 0 <= trap.value(PHASES).min().item() <= 1e-3 * size


@pytest.mark.parametrize("climber", [Climber(1), Climber(10)], ids=str)
@pytest.mark.parametrize("make", [torch.optim.SGD, o2nc.ScaledSGDM])
def test_trapped_orbit_is_one_period_per_step(climber, make):
    """NOTES §5: "Trapped step = P = lr*slope", and F rises by 0.1√d with it."""
    start = torch.full((climber.dimension,), -4.6, dtype=torch.float64)
    assert (climber.start() - start).abs().max().item() <= 0.05 + 1e-12
    assert len(set(climber.start().tolist())) == climber.dimension
    x = start.clone()
    options = {"scaling": None} if make is o2nc.ScaledSGDM else {}
    optimizer = make([x], lr=climber.lr, momentum=0.9, dampening=0.9, **options)
    for t in range(1, 301):
        step(optimizer, climber.gradient(x))
        torch.testing.assert_close(x, start - t, rtol=0, atol=1e-9)
        assert climber.value(x).item() == pytest.approx((0.53 + 0.1 * t) * math.sqrt(climber.dimension), abs=1e-8)


# Every problem keeps the promises of o2nc.problems.Problem ----------------------------------------------------------

SUITE = {
    # problem: (least share of G that a search must find, a minimiser where the gap is exact)
    Resonance.buffer(3): (0.999, torch.zeros(3)),
    Resonance.zero(2): (0.999, torch.zeros(2)),
    Resonance.zero(2, momentum=0.5): (0.999, torch.ones(2)),
    Resonance.locked(3): (0.999, torch.zeros(3)),
    Climber(4): (0.999, torch.zeros(4)),
    problems.DoubleWell(4): (0.999, torch.ones(4)),
    problems.DoubleWell(1): (0.999, torch.ones(1)),
    problems.MultiKink(4): (0.999, torch.ones(4)),
    Cosine(4): (0.98, torch.zeros(4)),
    MaxAffine(5, pieces=20): (0.999, None),
    MaxAffine(3, pieces=1, seed=4): (0.999, None),
    problems.ChebyshevRosenbrock(2): (0.999, torch.ones(2)),
    problems.ChebyshevRosenbrock(5): (0.999, torch.ones(5)),
    PhaseRetrieval(4, samples=60): (0.75, PhaseRetrieval(4, samples=60).solution),
    Resonance(2, 0.3, 2.0, momentum=0.9, position=0.2, ramp=1.0): (0.999, torch.zeros(2)),
    ReluRegression(inputs=3, hidden=2, samples=40): (0.4, ReluRegression(3, 2, 40).solution),
}
FINITE_SUMS = [p for p in SUITE if isinstance(p, PhaseRetrieval | ReluRegression)]
each = pytest.mark.parametrize("problem", SUITE, ids=str)


pytestmark = pytest.mark.usefixtures("one_thread")


def inside(problem, x):
    """x, drawn back into the ball on which the constants hold, where a problem has one."""
    if isinstance(problem, ReluRegression):
        x = x * (problem.radius / x.norm(dim=-1, keepdim=True)).clamp(max=1)
    return x


def cloud(problem, n=30, seed=1):
    """Points around the start and around 0, at several scales."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor([0.1, 1.0, 3.0, 30.0, 300.0], dtype=torch.float64).view(-1, 1, 1)
    offsets = scales * torch.randn(5, n, problem.dimension, generator=generator, dtype=torch.float64)
    return inside(problem, torch.cat([offsets, problem.start() + offsets]).flatten(0, 1))


def climb(problem, score, x, rounds=80, seed=2):
    """The highest score found by random steps, of all sizes, from every row of x; a row keeps only better points."""
    generator = torch.Generator().manual_seed(seed)
    best = score(x)
    for _ in range(rounds):
        size = 10 ** (3 * torch.rand(*x.shape[:-1], 1, generator=generator, dtype=torch.float64) - 2.5)
        some = torch.rand(x.shape, generator=generator) < 0.5
        y = inside(problem, x + size * some * torch.randn(x.shape, generator=generator, dtype=torch.float64))
        new = score(y)
        better = new > best
        x, best = torch.where(better.unsqueeze(-1), y, x), torch.where(better, new, best)
    return best.max().item()


@each
def test_a_problem_is_one(problem):
    assert isinstance(problem, problems.Problem)
    x = problem.start()
    assert (x.shape, x.dtype) == ((problem.dimension,), torch.float64)
    assert problem.value(x).shape == ()
    x += 1  # a copy: the problem is not changed
    assert not torch.equal(x, problem.start())
    for constant in (problem.lipschitz, problem.gap, problem.smoothness, problem.second_order):
        assert isinstance(constant, float)
        assert constant > 0
    x[0] = math.nan  # a run that is lost looks lost
    assert problem.gradient(x).isnan().any()
    for wrong in (torch.zeros(problem.dimension + 1), torch.zeros(2, problem.dimension + 2), torch.tensor(0.0)):
        for method in (problem.value, problem.gradient):
            with pytest.raises(ValueError, match=f"{problem.dimension} numbers? in its last axis"):
                method(wrong)


@pytest.mark.parametrize(
    "problem", [p for p in SUITE if type(p)._gradient is not problems.Problem._gradient], ids=str
)
def test_gradient_is_autograds_and_outside_of_it(problem):
    x = cloud(problem).requires_grad_()
    (expected,) = torch.autograd.grad(problem.value(x).sum(), x)
    g = problem.gradient(x)
    assert not g.requires_grad
    torch.testing.assert_close(g, expected, rtol=1e-9, atol=1e-11 * problem.lipschitz)


@each
def test_a_batch_is_its_rows(problem):
    x = cloud(problem)[:12].unflatten(0, (3, 4))
    for method in (problem.value, problem.gradient):
        rows = torch.stack([method(row) for row in x.flatten(0, 1)]).unflatten(0, (3, 4))
        torch.testing.assert_close(method(x), rows, rtol=1e-12, atol=1e-12)
    single = x.float()
    assert problem.value(single).dtype == problem.gradient(single).dtype == torch.float32


@each
def test_lipschitz_is_never_exceeded_and_nearly_reached(problem):
    steepest = climb(problem, lambda x: problem.gradient(x).norm(dim=-1), cloud(problem))
    assert steepest <= problem.lipschitz * (1 + 1e-9)
    assert steepest >= SUITE[problem][0] * problem.lipschitz


@each
def test_the_gap_is_never_exceeded_and_exact_where_a_minimum_is_known(problem):
    x = cloud(problem)
    low = problem.value(problem.start()).item() - problem.gap
    allowed = low - 1e-12 * (1 + problem.gap)
    for t in range(100):  # normalised descent
        x = inside(problem, x - 0.3 * 0.95**t * torch.nn.functional.normalize(problem.gradient(x), dim=-1))
    found = -climb(problem, lambda x: -problem.value(x), x)
    assert found >= allowed
    minimiser = SUITE[problem][1]
    if minimiser is not None:
        assert problem.value(minimiser.double()).item() == pytest.approx(low, abs=1e-12)
    else:  # of max-affine functions
        assert found <= low + 0.05


SMOOTH = [(p, 1, 1e-3) for p in SUITE if math.isfinite(p.smoothness)]
SMOOTH += [(p, 2, 3e-3) for p in SUITE if math.isfinite(p.second_order)]


@pytest.mark.parametrize(("problem", "order", "h"), SMOOTH, ids=str)
def test_smoothness(problem, order, h):
    """‖∇F(x + hu) − ∇F(x)‖ <= Hh and ‖∇F(x + hu) − 2∇F(x) + ∇F(x − hu)‖ <= ρh², for all h and unit u; nearly met."""

    def score(xu):  # a search over x and u
        x, u = xu.chunk(2, dim=-1)
        u = torch.nn.functional.normalize(u, dim=-1)
        change = problem.gradient(x + h * u) - problem.gradient(x)
        if order == 2:
            change = change - problem.gradient(x) + problem.gradient(x - h * u)
        return change.norm(dim=-1) / h**order

    x = cloud(problem, n=10)
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = climb(problem, score, torch.cat([x, u], dim=-1), rounds=200)
    constant = problem.smoothness if order == 1 else problem.second_order
    assert 0.8 * constant < found <= constant * (1 + 1e-6)


@pytest.mark.parametrize("problem", [p for p in SUITE if math.isinf(p.smoothness)], ids=str)
def test_a_kink(problem):
    """Along some segment the gradient jumps."""
    assert math.isinf(problem.second_order)
    a, b = cloud(problem, seed=5), cloud(problem, seed=6)
    for _ in range(45):
        m = (a + b) / 2
        ga, gb, gm = (problem.gradient(x) for x in (a, b, m))
        left = ((ga - gm).norm(dim=-1) > (gm - gb).norm(dim=-1)).unsqueeze(-1)
        a, b = torch.where(left, a, m), torch.where(left, m, b)
    jump = (problem.gradient(a) - problem.gradient(b)).norm(dim=-1)
    assert (jump / (a - b).norm(dim=-1).clamp(min=1e-12)).max().item() > 1e6 * problem.lipschitz


@each
def test_a_problem_is_a_value(problem):
    state = torch.get_rng_state()
    x = problem.start()
    fresh = dataclasses.replace(problem)
    for twin in (fresh, pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert twin == problem
        assert hash(twin) == hash(problem)
        assert torch.equal(twin.start(), x)
        torch.testing.assert_close(twin.gradient(x), problem.gradient(x), rtol=1e-12, atol=1e-12)
        assert (twin.gap, twin.lipschitz) == pytest.approx((problem.gap, problem.lipschitz), rel=1e-12)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.dimension = 7
    if "seed" in {f.name for f in dataclasses.fields(problem)}:
        other = dataclasses.replace(problem, seed=99)
        assert not torch.equal(other.gradient(x + 1), problem.gradient(x + 1))


REFUSED = {
    "threshold": [lambda: Resonance(1, 0.0, 1.0, 0.9, 0.1)],
    "slope": [lambda: Resonance(1, 0.5, 0.0, 0.9, 0.1)],
    "ramp": [lambda: Resonance(1, 0.5, 1.0, 0.9, 0.1, ramp=-0.1)],
    "dimension": [lambda: Climber(0), lambda: problems.ChebyshevRosenbrock(1)],
    "pieces": [lambda: MaxAffine(2, pieces=0)],
    "seed": [lambda: MaxAffine(2, pieces=3, seed=-1)],
    "samples": [lambda: PhaseRetrieval(2, samples=0)],
    "hidden": [lambda: ReluRegression(2, 0, 5)],
    "momentum": [lambda: Resonance.zero(2, momentum=0.8)],
    "position": [lambda: Resonance(2, 0.5, 1.0, 0.9, math.nan)],
    "noise": [lambda: Additive(Cosine(2), noise=-1.0)],
    "batch": [lambda: Subsampled(FINITE_SUMS[0], batch=0)],
}
OF_ANOTHER_TYPE = {
    "dimension": [lambda: Climber(1.5)],
    "pieces": [lambda: MaxAffine(2, pieces="3")],
    "position": [lambda: Resonance(2, 0.5, 1.0, 0.9, position="0")],
    "problem": [lambda: Additive(Cosine, noise=1.0), lambda: Subsampled(Cosine(2), batch=1)],
}
BAD = [(ValueError, *item) for item in REFUSED.items()] + [(TypeError, *item) for item in OF_ANOTHER_TYPE.items()]
test_bad_arguments = refusals(*((call, e, f"^{name} must be .*, got") for e, name, calls in BAD for call in calls))


# Oracles ------------------------------------------------------------------------------------------------------------


def unbiased(oracle, x, n=4000):
    """The errors of n samples at x, after a test that their mean is 0."""
    many = x.expand(n, -1)
    error = oracle.sample(many, torch.Generator().manual_seed(0)) - oracle.gradient(x)
    z = error.mean(0) / (error.std(0) / math.sqrt(n)).clamp(min=1e-12)
    assert z.abs().max().item() < 4.5
    return error


@each
def test_additive_noise(problem):
    oracle = Additive(problem, noise=0.7)
    assert isinstance(oracle, problems.Oracle)
    assert oracle.noise == 0.7
    square = unbiased(oracle, problem.start()).square().sum(-1)
    assert abs(square.mean().item() - 0.49) < 5 * square.std().item() / math.sqrt(len(square))
    x = cloud(problem)
    torch.testing.assert_close(Additive(problem, 0.0).sample(x), problem.gradient(x), rtol=0, atol=0)
    one, other = (oracle.sample(x, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("problem", FINITE_SUMS, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_subsampling(problem, batch):
    oracle = Subsampled(problem, batch)
    assert isinstance(oracle, problems.Oracle)
    error = unbiased(oracle, problem.start() + 0.1)
    assert error.square().sum(-1).mean().item() <= oracle.noise**2
    # exactly: the mean over all terms is the gradient, their mean square deviation / batch the variance
    x = cloud(problem)
    every = torch.arange(problem.samples)
    torch.testing.assert_close(problem.term_gradient(x, every.expand(len(x), -1)), problem.gradient(x))
    g = torch.stack([problem.term_gradient(x, torch.full((len(x), 1), i)) for i in every.tolist()])
    mean_square = g.square().sum(-1).mean(0)
    assert mean_square.max().item() <= problem.term_lipschitz**2 * (1 + 1e-12)
    assert mean_square.max().item() >= 0.1 * problem.term_lipschitz**2
    variance = mean_square - problem.gradient(x).square().sum(-1)
    assert variance.max().item() / batch <= oracle.noise**2
    # a mean over a batch, and rows of their own
    index = torch.tensor([[0, 1, 1]])
    torch.testing.assert_close(problem.term_gradient(x[:1], index), (g[0, :1] + 2 * g[1, :1]) / 3)
    rows = oracle.sample(problem.start().expand(2, 8, -1), torch.Generator().manual_seed(0))
    assert rows.shape == (2, 8, problem.dimension)
    assert len({tuple(row.tolist()) for row in rows.flatten(0, 1)}) > 4


# What the traps hold, and what frees it -----------------------------------------------------------------------------

HELD_BY_SGDM = [Resonance.buffer(1), Resonance.buffer(5), Resonance.locked(1), Resonance.locked(5)]
HELD_FROM_ZERO = [Resonance.zero(1), Resonance.zero(5), Resonance.zero(1, momentum=0.5)]


def gradients_seen(problem, scaling, steps):
    x, b = problem.start(), problem.momentum
    if problem in HELD_BY_SGDM:
        optimizer = o2nc.ScaledSGDM([x], problem.lr, momentum=b, dampening=b, scaling=scaling)
    else:  # NOTES 1.5 with μ = 0: β̃ = β, and η = lr(1 − β̃)/β̃
        learner = o2nc.learners.OGD(lr=problem.lr * (1 - b) / b)
        optimizer = o2nc.ExponentiatedO2NC([x], learner, beta=b, scaling=scaling, average=False)
    seen = torch.empty(steps, problem.dimension, dtype=torch.float64)
    for t in range(steps):
        x.grad = seen[t] = problem.gradient(x)
        optimizer.step()
    return seen


@pytest.mark.some(4)
@pytest.mark.parametrize("problem", HELD_BY_SGDM + HELD_FROM_ZERO, ids=str)
def test_momentum_is_trapped_and_random_scaling_frees_it(problem):
    """NOTES §5: ḡ equals the slope a under s = 1, for ever, and is O(.01) under s ~ Exp(1)."""
    trapped = gradients_seen(problem, None, 1500)
    slope = torch.full_like(trapped, problem.slope / math.sqrt(problem.dimension))
    torch.testing.assert_close(trapped, slope, rtol=0, atol=1e-9)
    freed = gradients_seen(problem, o2nc.Exponential(), 2500)[500:].mean(0).norm().item()
    assert freed < 0.2 * problem.slope
