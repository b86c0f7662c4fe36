"""The chain of `o2nc paper verify`: what the paper defines, an unbiased oracle, one new link in a query."""

import itertools

import mpmath
import pytest
import torch
from scipy.stats import binom

from o2nc.problems.problem import differentiate
from o2nc_experiments.verify.lower_bound import Chain, prog

CHAINS = [Chain(2, 1.0, 1.0, 0.3), Chain(5, 0.3, 0.02, 0.01), Chain.hard(0.01, gap=10.0, smoothness=1.0, noise=1.0)]


def points(problem, n=200):
    """Points whose coordinates along the chain stop at every length, and whose sizes vary."""
    generator = torch.Generator().manual_seed(0)
    y, size = (torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (problem.links, 1))
    shown = torch.arange(problem.links) < torch.arange(n).unsqueeze(1) % (problem.links + 1)
    return problem.width * y * size * shown


def test_the_chain_is_what_the_paper_defines():
    """F_T = −Ψ(1)Φ(x_1) + Σ_{i=2}^T [Ψ(−x_{i−1})Φ(−x_i) − Ψ(x_{i−1})Φ(x_i)], term by term."""

    def psi(x):
        return mpmath.exp(1 - 1 / (2 * mpmath.mpf(x) - 1) ** 2) if x > 0.5 else mpmath.mpf(0)

    def phi(x):
        return mpmath.sqrt(mpmath.e) * mpmath.quad(lambda t: mpmath.exp(-t * t / 2), [-mpmath.inf, x])

    for row in [*points(Chain(4, 1.0, 1.0, 1.0), 6).tolist(), [0.0, 0.5, -0.5, 1.0], [1.5, -0.9, 2.0, 0.1]]:
        expected = -psi(1) * phi(row[0])
        expected += sum(psi(-a) * phi(-b) - psi(a) * phi(b) for a, b in itertools.pairwise(row))
        found = 3 * Chain(4, 1.0, 2.0, 1.0).value(2 * torch.tensor(row, dtype=torch.float64))
        assert found.item() == pytest.approx(float(3 * expected), rel=1e-12)


@pytest.mark.parametrize("problem", CHAINS, ids=str)
def test_the_oracle(problem):
    """Unbiased, of the variance that `hard` reckons with; prog_0(g) <= prog_{1/4}(x) + 1, and <= prog_0(x) for z = 0.

    Before the last link is there, ‖∇F‖ > h/w.
    """
    x, p = points(problem), problem.probability
    g, steep = differentiate(problem.value, x), problem.height / problem.width
    shown, hidden = (problem.reveal(x, torch.full((len(x),), f, dtype=torch.float64)) for f in (1 / p, 0.0))
    torch.testing.assert_close(p * shown + (1 - p) * hidden, g, rtol=1e-12, atol=1e-12 * steep)
    variance = p * (shown - g).square().sum(1) + (1 - p) * (hidden - g).square().sum(1)
    assert variance.max().item() <= (23 * steep) ** 2 * (1 - p) / p
    quarter = prog(x / problem.width, 0.25)
    assert (prog(shown, 1e-9 * steep) <= quarter + 1).all()
    assert (prog(hidden, 1e-9 * steep) <= torch.maximum(quarter, prog(x / problem.width, 1e-9))).all()
    assert (g[prog(x / problem.width, 1.0) < problem.links].norm(dim=1) > steep).all()
    drawn = problem.sample(x[:1].expand(4000, -1), torch.Generator().manual_seed(0)).norm(dim=1) > 0
    assert abs(drawn.double().mean().item() - p) < 5 * (p * (1 - p) / 4000) ** 0.5


def test_constants_of_an_instance():
    chain = CHAINS[-1]
    assert (chain.links, 152 * chain.height / chain.width**2) == (13, pytest.approx(1.0))
    assert 46 * 0.01 * (1 / chain.probability - 1) ** 0.5 == pytest.approx(1.0)


@pytest.mark.parametrize("delta", [0.5, 1e-3])
def test_steps_is_a_true_tail_bound(delta):
    """P(Binomial(k, p) >= T) <= δ for k = (T − log(1/δ))/(2p)."""
    for links, p in itertools.product((2, 13, 1000), (1e-3, 0.5, 1.0)):
        assert binom.sf(links - 1, Chain(links, 1.0, 1.0, p).steps(delta), p) <= delta
