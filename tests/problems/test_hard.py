"""The chain has the properties that the lower bound rests on, its oracle reveals one coordinate at a time, and the
rescaled instances have the constants asked for."""

import itertools
import math
import pickle

import mpmath
import pytest
import torch
from scipy.stats import binom

from o2nc.problems import Chain, Oracle, ZeroChainOracle, hard_instance
from o2nc.problems.chain import prog

CHAINS = [Chain(2), Chain(7), Chain(5, height=0.3, width=0.02)]


pytestmark = pytest.mark.usefixtures("one_thread")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# F_T ----------------------------------------------------------------------------------------------------------------


def test_the_chain_is_what_the_paper_defines():
    """F_T = −Ψ(1)Φ(x_1) + Σ_{i=2}^T [Ψ(−x_{i−1})Φ(−x_i) − Ψ(x_{i−1})Φ(x_i)], term by term."""

    def psi(x):
        return mpmath.exp(1 - 1 / (2 * mpmath.mpf(x) - 1) ** 2) if x > 0.5 else mpmath.mpf(0)

    def phi(x):
        return mpmath.sqrt(mpmath.e) * mpmath.quad(lambda t: mpmath.exp(-t * t / 2), [-mpmath.inf, x])

    for row in [*(1.5 * normal(6, 4)).tolist(), [0.0, 0.5, -0.5, 1.0]]:
        expected = -psi(1) * phi(row[0])
        for a, b in itertools.pairwise(row):
            expected += psi(-a) * phi(-b) - psi(a) * phi(b)
        assert Chain(4).value(torch.tensor(row, dtype=torch.float64)).item() == pytest.approx(
            float(expected), rel=1e-12
        )


def test_prog():
    x = torch.tensor([[0.0, 0.0, 0.0], [0.3, 0.0, 0.0], [0.0, -2.0, 0.25], [1.0, 0.0, 1.1]])
    assert prog(x, 0.25).tolist() == [0, 1, 2, 3]
    assert prog(x, 1).tolist() == [0, 0, 2, 3]
    assert prog(x, 0).tolist() == [0, 1, 3, 3]


# The oracle ---------------------------------------------------------------------------------------------------------


def partial_points(problem, n=50):
    """Points whose coordinates along the chain stop at every length, and whose sizes vary."""
    y, size = normal(n, problem.dimension), torch.rand(n, 1, generator=torch.Generator().manual_seed(2))
    shown = torch.arange(problem.dimension) < torch.arange(n).unsqueeze(-1) % (problem.dimension + 1)
    return 2 * problem.width * y * size * shown


@pytest.mark.parametrize("problem", CHAINS, ids=str)
def test_the_oracle_is_unbiased_with_variance_below_its_noise(problem):
    """Exactly, not by sampling: z has two values."""
    x = torch.cat(
        [partial_points(problem), problem.width * normal(300, problem.dimension), problem.start().unsqueeze(0)]
    )
    g = problem.gradient(x)
    assert torch.equal(problem.reveal(x, torch.ones(len(x))), g)
    for p in (0.01, 0.3, 1.0):
        oracle = ZeroChainOracle(problem, p)
        assert isinstance(oracle, Oracle)
        shown, not_shown = (problem.reveal(x, torch.full((len(x),), f, dtype=torch.float64)) for f in (1 / p, 0.0))
        torch.testing.assert_close(p * shown + (1 - p) * not_shown, g, rtol=1e-12, atol=1e-12 * problem.lipschitz)
        square = p * (shown - g).square().sum(-1) + (1 - p) * (not_shown - g).square().sum(-1)
        assert square.max().item() <= oracle.noise**2 * (1 + 1e-12)
        assert oracle.noise == pytest.approx(23 * problem.height / problem.width * math.sqrt((1 - p) / p))
    assert square.max().item() == 0  # p = 1: no noise
    # a sample is one of the two, and every row has its own z
    g = ZeroChainOracle(problem, 0.3).sample(problem.start().expand(4000, -1), torch.Generator().manual_seed(0))
    shown = g.norm(dim=-1) > 0
    assert abs(shown.double().mean().item() - 0.3) < 5 * math.sqrt(0.21 / 4000)
    torch.testing.assert_close(g[shown], (problem.gradient(problem.start()) / 0.3).expand(int(shown.sum()), -1))


@pytest.mark.parametrize("problem", CHAINS, ids=str)
def test_a_query_reveals_at_most_one_new_link(problem):
    """prog_0(g) <= prog_{1/4}(x) + 1, and not more than prog_0(x) when z = 0."""
    x = partial_points(problem)
    y = x / problem.width
    tiny = 1e-9 * problem.lipschitz
    quarter = prog(y, 0.25)
    for factor, new in ((0.0, 0), (1.0, 1), (10.0, 1)):
        g = problem.reveal(x, torch.full((len(x),), factor, dtype=torch.float64))
        assert (prog(g, tiny) <= torch.maximum(quarter + new, prog(y, 1e-9))).all()
    assert (prog(problem.gradient(x), 0.0) <= quarter + 1).all()  # to the last bit


@pytest.mark.parametrize("delta", [0.5, 0.1, 1e-3])
def test_steps_is_a_true_tail_bound(delta):
    """P(Binomial(k, p) >= T) <= δ for k = (T − log(1/δ))/(2p)."""
    for length in (2, 5, 13, 100, 1000):
        for p in (1e-3, 0.05, 0.5, 1.0):
            k = ZeroChainOracle(Chain(length), p).steps(delta)
            assert binom.sf(length - 1, k, p) <= delta
            assert k >= 0
    assert ZeroChainOracle(Chain(1000), 0.1).steps(0.5) == math.floor((1000 - math.log(2)) / 0.2)


# Instances ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.004, 0.01])
@pytest.mark.parametrize(("gap", "smoothness", "noise"), [(10.0, 5.0, 1.0), (3.0, 40.0, 0.1), (100.0, 1.0, 0.0)])
def test_an_instance_has_the_constants_asked_for(eps, gap, smoothness, noise):
    oracle = hard_instance(eps, gap=gap, smoothness=smoothness, noise=noise)
    problem, length = oracle.problem, oracle.problem.dimension
    assert problem.smoothness == pytest.approx(smoothness, rel=1e-12)
    assert gap * length / (length + 1) <= problem.gap * (1 + 1e-12) <= gap * (1 + 2e-12)
    assert oracle.noise == pytest.approx(noise, rel=1e-9, abs=1e-12)
    assert length == math.floor(gap * smoothness / (12 * 152 * (2 * eps) ** 2))
    assert problem.height / problem.width == pytest.approx(2 * eps)
    assert problem.lipschitz <= 0.54 * math.sqrt(gap * smoothness)
    # ‖∇F‖ > 2ε at points that lack the last link
    x = partial_points(problem, 20)
    x = x[prog(x / problem.width, 0.9) < length]
    assert problem.gradient(x).norm(dim=-1).min().item() > 2 * eps
    assert pickle.loads(pickle.dumps(oracle)) == oracle


def test_too_large_an_eps_is_refused_with_the_largest_that_is_not():
    known = {"gap": 1.0, "smoothness": 1.0, "noise": 1.0}
    with pytest.raises(ValueError, match=r"^eps must be at most .* decrease eps, or increase gap .* or smoothness"):
        hard_instance(1.0, **known)
    largest = math.sqrt(1 / (24 * 152 * 4))
    assert hard_instance(0.999 * largest, **known).problem.dimension == 2
    with pytest.raises(ValueError, match="eps must be at most"):
        hard_instance(1.001 * largest, **known)
