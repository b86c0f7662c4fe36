"""`o2nc.certify`: the sums, the weights, the duality gap, and what follows from a certificate."""

import io
import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import o2nc
import twin
from o2nc.certificates import trajectory, weights
from refusals import refusals
from registry import step

BETA = 0.9


def run(k: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Gradients and iterates of a walk across kinks."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.2 * torch.randn(k, d, generator=generator, dtype=torch.float64).cumsum(0)
    return ((x.sign() + 0.1 * x) / d**0.5).to(dtype), x.to(dtype)


def direct(g: Tensor, x: Tensor, p: Tensor) -> tuple[float, float, Tensor]:
    """The obvious twin: ‖Σp g‖, Σp‖y − x̄‖² and x̄, in float64."""
    g, x = g.double(), x.double()
    mean = (p[:, None] * x).sum(0)
    return (p[:, None] * g).sum(0).norm().item(), (p * (x - mean).square().sum(1)).sum().item(), mean


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_exponential_weights_are_the_direct_sums(dtype):
    g, x = run(30, 7, 0, dtype)
    certificate = o2nc.certify(g, x, c=0.5, beta=BETA)
    p = torch.from_numpy(twin.weights(BETA, 30))
    gradient, spread, mean = direct(g, x, p)
    assert certificate.gradient == pytest.approx(gradient, rel=1e-12)
    assert certificate.spread == pytest.approx(spread, rel=1e-12)
    assert certificate.ess == pytest.approx(1 / p.square().sum().item())
    assert certificate.gap is None
    torch.testing.assert_close(certificate.weights, p)
    torch.testing.assert_close(certificate.point, mean.to(certificate.point.dtype))


def test_agrees_with_the_streaming_certificate():
    x = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = o2nc.ScaledSGDM([x], lr=0.1, momentum=0.5, average=BETA)
    seen = []
    for _ in range(20):
        seen.append(x.detach().clone())
        step(optimizer, x.detach().sign())
    offline, streamed = o2nc.certify(torch.sign, seen, beta=BETA), optimizer.certificate()
    assert offline.value == pytest.approx(streamed.value, rel=1e-12)
    assert offline.ess == pytest.approx(streamed.ess, rel=1e-12)


@pytest.mark.parametrize(("k", "d", "price"), [(1, 3, 1.0), (6, 2, 0.1), (25, 40, 0.3), (40, 3, 1e-3), (30, 5, 1e4)])
def test_solver_proves_its_answer(k, d, price):
    """For p in the simplex and u in the ball min_k (⟨u, g_k⟩ + q_k) <= ‖Σp g‖ + qᵀp: where equal, optimal."""
    g, x = run(k, d, k)
    q = price * (x - x.mean(0)).square().sum(1)
    p, u = weights.minimise(g.T, q)
    value = (p @ g).norm().item() + (q @ p).item()
    bound = (g @ u + q).min().item()
    assert (p >= 0).all()
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    assert u.norm().item() <= 1 + 1e-12
    assert -1e-12 <= value - bound <= 1e-6 * max(value, 1e-3)


@settings(max_examples=40, deadline=None)
@given(
    k=st.integers(1, 12),
    d=st.integers(1, 15),
    seed=st.integers(0, 10**6),
    c=st.sampled_from([1e-8, 1e-2, 1.0, 30.0, 1e8]),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_weak_duality_and_never_worse(k, d, seed, c, scale):
    g, x = run(k, d, seed)
    g = g * scale
    best = o2nc.certify(g, x, c, weights="optimal", beta=BETA)
    p = best.weights
    assert (p >= 0).all()
    assert p.sum().item() == pytest.approx(1)
    gradient, spread, mean = direct(g, x, p)
    assert best.value == pytest.approx(gradient + c * spread, rel=1e-9, abs=1e-13 * scale)
    assert best.value <= o2nc.certify(g, x, c, beta=BETA).value * (1 + 1e-12)
    assert best.value <= g.norm(dim=1).min().item() * (1 + 1e-12)
    squares = (x - mean).square().sum(1)
    others = torch.distributions.Dirichlet(torch.full((k,), 0.3, dtype=torch.float64)).sample((50,))
    others = torch.cat([others, torch.eye(k, dtype=torch.float64), p[None]])
    values = (others @ g).norm(dim=1) + c * others @ squares
    assert best.value - best.gap <= values.min().item() * (1 + 1e-9) + 1e-13 * scale
    assert best.gap >= 0


def test_an_iterate_may_be_several_tensors():
    g, x = run(15, 8, 3)
    value = o2nc.certify(g, x, weights="optimal").value
    split = [[row[:3].reshape(3, 1), row[3:]] for row in x]
    as_list = o2nc.certify([[r[:3].reshape(3, 1), r[3:]] for r in g], split, weights="optimal")
    assert as_list.value == pytest.approx(value, rel=1e-6)
    assert [y.shape for y in as_list.point] == [(3, 1), (5,)]


def test_many_blocks_are_one(monkeypatch):
    g, x = run(20, 500, 4, torch.float32)
    whole = o2nc.certify(g, x, weights="optimal")
    monkeypatch.setattr(trajectory, "BLOCK", 20 * 64)
    parts = o2nc.certify(g, x, weights="optimal")
    gradient, spread, mean = direct(g, x, parts.weights)
    assert parts.value == pytest.approx(gradient + spread, rel=1e-12)
    assert parts.value == pytest.approx(whole.value, rel=1e-6)
    torch.testing.assert_close(parts.point, mean.float())


def test_degenerate_runs():
    x = torch.tensor([[1.0], [2.0], [2.0], [4.0]])
    zero = o2nc.certify(torch.zeros_like(x), x, weights="optimal")
    assert zero.gradient == 0
    same = o2nc.certify(torch.tensor([[1.0], [-1.0], [3.0]]), torch.ones(3, 1), weights="optimal")
    assert same.value == pytest.approx(0, abs=1e-6)
    alone = o2nc.certify(torch.tensor([[3.0, 4.0]]), torch.ones(1, 2), weights="optimal")
    assert (alone.value, alone.gap) == (5.0, 0.0)
    wild = torch.logspace(-12, 12, 9, dtype=torch.float64)[:, None] * torch.randn(9, 3, dtype=torch.float64)
    assert o2nc.certify(wild, torch.ones(9, 3), weights="optimal").gap >= 0


def test_gradient_function_is_called_once_each_and_may_work_in_place():
    calls, memory = [], torch.zeros(2)

    def gradient(y):
        calls.append(y.clone())
        y = y.requires_grad_()
        y.square().sum().backward()
        y.data.zero_()
        return memory.copy_(y.grad)

    x = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0], requires_grad=True)]
    certificate = o2nc.certify(gradient, x, beta=0.5)
    assert [y.tolist() for y in calls] == [[1, 2], [3, 4]]
    assert certificate.gradient == pytest.approx(torch.tensor([14 / 3, 20 / 3]).norm().item())
    assert x[0].tolist() == [1, 2]
    assert x[0].grad is None
    assert not certificate.point.requires_grad


def test_complex_numbers_are_pairs():
    g, x = run(6, 4, 0)
    pairs = [torch.view_as_complex(y.reshape(2, 2)) for y in x]
    certificate = o2nc.certify([torch.view_as_complex(y.reshape(2, 2)) for y in g], pairs)
    assert certificate.value == pytest.approx(o2nc.certify(g, x).value, rel=1e-12)
    assert certificate.point.is_complex()


X = torch.ones(3, 2)
NAN, FAR = torch.full((3, 2), torch.nan), torch.tensor([[1.0, 1.0], [1.0, torch.inf], [0.0, 0.0]])
test_refusals_name_the_argument = refusals(
    (lambda: o2nc.certify(X, []), ValueError, "at least one point"),
    (lambda: o2nc.certify(X, torch.ones(())), ValueError, "without axes"),
    (lambda: o2nc.certify(X, 3.0), TypeError, "iterates must be a sequence"),
    (lambda: o2nc.certify(X[:2], X), ValueError, "3 iterates but 2 gradients"),
    (lambda: o2nc.certify(X, [X[0], X[0], torch.ones(3)]), ValueError, r"iterates\[2\] has the shapes"),
    (lambda: o2nc.certify(torch.ones(3, 4), X), ValueError, r"gradient\[0\] has the shapes"),
    (lambda: o2nc.certify(lambda x: 1.0, X), TypeError, r"gradient\(iterates\[0\]\) must be a tensor"),
    (lambda: o2nc.certify(X, X.long()), TypeError, "int64"),
    (lambda: o2nc.certify(X, NAN), ValueError, r"iterates\[0\] has numbers that are not finite"),
    (lambda: o2nc.certify(FAR, X), ValueError, r"gradient\[1\] has numbers"),
    (lambda: o2nc.certify(X, torch.ones(3, 0)), ValueError, "no numbers"),
    (lambda: o2nc.certify(X, X, c=0.0), ValueError, "c must be"),
    (lambda: o2nc.certify(X, X, beta=1.0), ValueError, "beta must be"),
    (lambda: o2nc.certify(X, X, weights="best"), ValueError, "weights must be one of"),
    (lambda: o2nc.certify(X, X, weights=None), TypeError, "weights must be .* got None"),
    (lambda: o2nc.certify(X, X, weights=[1, 1]), ValueError, "weights"),
    (lambda: o2nc.certify(X, X, weights=[1, -1, 1]), ValueError, "weights"),
    (lambda: o2nc.certify(X, X, weights=[0, 0, 0]), ValueError, "weights"),
    (lambda: o2nc.certify(X, X, weights=[[1, 1, 1]]), ValueError, "weights"),
)


def test_weights_of_ones_own():
    points = torch.tensor([[0.0], [1.0], [4.0]], dtype=torch.float64)
    found = o2nc.certify(torch.sign, points, 2.0, weights=[1, 1, 2])
    assert found.weights.tolist() == [0.25, 0.25, 0.5]
    assert found.point.item() == 2.25
    assert found.value == pytest.approx(0.75 + 2 * (0.25 * 2.25**2 + 0.25 * 1.25**2 + 0.5 * 1.75**2))
    assert found.gap is None
    mixed = [torch.tensor([1.0]), torch.tensor([1.0 + 1e-12], dtype=torch.float64)]
    assert o2nc.certify(torch.sign, mixed).point.dtype == torch.float64  # as wide as the widest iterate


@pytest.mark.parametrize("dimension", [2, 9])  # fewer and more than there are iterates
@pytest.mark.parametrize("weights", ["exponential", "optimal", [1, 2, 3]], ids=["exponential", "optimal", "own"])
def test_tensors_are_made_where_the_iterates_are(weights, dimension):
    """Not on torch.set_default_device; a tensor made on "meta" by mistake holds no numbers."""
    g, x = run(3, dimension, 5)
    here = o2nc.certify(g, x, weights=weights)
    with torch.device("meta"):
        there = o2nc.certify(g, x, weights=weights)
    assert there.value == here.value
    assert torch.equal(there.point, here.point)


# --- to ‖∇F(x̄)‖ and to Goldstein stationarity: Lemmas *criterion reduction* and *goldstein reduction*


def test_reductions_of_smooth_functions_are_tight():
    """F'(x + h) = 1.25ε − H|h| at y = x ± ε/(2H) and c = H²/ε; F'(x + h) = 1 − ρh²/2 at y = x ± h and c = ρ/2."""
    eps, smoothness, second_order, h = 0.2, 3.0, 4.0, 0.3
    step = eps / (2 * smoothness)
    first = o2nc.Certificate(smoothness**2 / eps, 1.25 * eps - smoothness * step, step**2, 2.0)
    assert first.value == pytest.approx(eps)
    assert first.gradient_norm(smoothness=smoothness) == pytest.approx(1.25 * eps)
    second = o2nc.Certificate(second_order / 2, 1.0 - second_order * h**2 / 2, h**2, 2.0)
    assert second.gradient_norm(second_order=second_order) == pytest.approx(1.0) == pytest.approx(second.value)


@pytest.mark.some(20)
@pytest.mark.filterwarnings("ignore:epsilon =:UserWarning")
@pytest.mark.parametrize("seed", range(60))
def test_no_reduction_is_violated(seed):
    """F = Σ_j a_j cos⟨w_j, x⟩, whose G, H and ρ are known."""
    generator, d = torch.Generator().manual_seed(seed), 1 + seed % 4
    w = torch.randn(5, d, generator=generator, dtype=torch.float64)
    a = torch.rand(5, generator=generator, dtype=torch.float64)
    lipschitz, smoothness, second_order = (float(a @ w.norm(dim=1) ** k) for k in (1, 2, 3))

    def gradient(x: Tensor) -> Tensor:
        return -(a * torch.sin(w @ x)) @ w

    width = 10 ** (-2 + 2.5 * torch.rand((), generator=generator, dtype=torch.float64))
    x = torch.randn(d, generator=generator, dtype=torch.float64)
    iterates = x + width * torch.randn(12, d, generator=generator, dtype=torch.float64)
    for c in (0.1, 3.0, 100.0):
        for kind in ("exponential", "optimal"):
            certificate = o2nc.certify(gradient, iterates, c, weights=kind, beta=0.9)
            truth = gradient(certificate.point).norm().item()
            assert truth <= certificate.gradient_norm(smoothness=smoothness) + 1e-9
            assert truth <= certificate.gradient_norm(second_order=second_order) + 1e-9
            p, mean, delta = certificate.weights, certificate.point, 0.7 * certificate.spread**0.5 + 1e-3
            offset = iterates - mean
            clipped = mean + (delta / offset.norm(dim=1)).clamp(max=1.0)[:, None] * offset
            point = p @ clipped
            found = certificate.goldstein(delta, lipschitz=lipschitz)
            assert (p @ torch.stack([gradient(y) for y in clipped])).norm() <= found.epsilon + 1e-9
            assert (clipped - point)[p > 0].norm(dim=1).max() <= found.radius + 1e-9
            assert (mean - point).norm() <= found.distance + 1e-9


def test_goldstein_of_a_certificate_warns_of_a_vacuous_one_with_the_c_that_helps():
    """At c = ε/δ² the reduction gives ε' >= 2G, which every point satisfies."""
    found = o2nc.Certificate(c=50.0, gradient=0.1, spread=0.002, ess=5.0).goldstein(0.2, lipschitz=1.0)
    assert (found.distance, found.radius, found.epsilon) == pytest.approx((0.0025, 0.2025, 0.2))
    certificate = o2nc.Certificate(c=10.0, gradient=0.05, spread=0.005, ess=5.0)
    with pytest.warns(UserWarning, match=r"epsilon = 2 .* lipschitz = 1.* c >= 2G/δ² = 200"):
        certificate.goldstein(0.1, lipschitz=1.0)
    with pytest.warns(UserWarning, match=r"own value is 0\.1$"):
        certificate.goldstein(10.0, lipschitz=0.05)
    with pytest.warns(UserWarning, match="it holds at every point"):
        assert certificate.goldstein(0.03, lipschitz=1.0).distance == 0.03


PLAIN = o2nc.Certificate(c=1.0, gradient=0.1, spread=0.0, ess=5.0)
test_refusals = refusals(
    (lambda: PLAIN.gradient_norm(), TypeError, "exactly one of smoothness and second_order"),
    (lambda: PLAIN.gradient_norm(smoothness=1.0, second_order=1.0), TypeError, "exactly one"),
    (lambda: PLAIN.gradient_norm(smoothness=-1.0), ValueError, r"smoothness must be .* got -1"),
    (lambda: PLAIN.gradient_norm(second_order=math.nan), ValueError, r"second_order must be .* got nan"),
    (lambda: PLAIN.goldstein(delta=0.0, lipschitz=1.0), ValueError, r"delta must be .* got 0\.0"),
    (lambda: PLAIN.goldstein(delta=1.0, lipschitz=math.inf), ValueError, r"lipschitz must be .* got inf"),
)


def test_certificate_keeps_its_shape():
    """The fields of before, in their order; weights and points take no part in equality or repr."""
    plain = o2nc.Certificate(1.0, 0.5, 0.25, 4.0, {})
    x = torch.ones(2, 1)
    assert plain == o2nc.Certificate(1.0, 0.5, 0.25, 4.0, weights=torch.ones(4), point=x)
    assert hash(plain) == hash(o2nc.Certificate(1.0, 0.5, 0.25, 4.0, weights=torch.ones(4)))
    assert str(plain) == "‖ḡ‖ + c·V = 0.5 + 1·0.25 = 0.75 over 4 iterates"
    assert "tensor" not in repr(o2nc.certify(x, x))


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "utf-8"])
def test_printing_on_any_terminal(encoding, monkeypatch):
    """Issue: `print(opt.certificate())` raised a UnicodeEncodeError where standard output is cp1252."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    certificate = o2nc.Certificate(c=2.0, gradient=0.5, spread=0.1, ess=10.0)
    known = {"steps": 1000, "c": 1.0, "gap": 1.0, "lipschitz": 1.0}
    guarantee, diagnosis = o2nc.theory.guarantee(lr=0.01, momentum=0.9, **known), o2nc.Diagnosis("x̄", {}, "‖ḡ‖")
    for thing in (certificate, guarantee, o2nc.theory.plan(**known), str(diagnosis)):
        print(thing)
        print(repr(thing))
    stream.flush()
    text = written.getvalue().decode("utf-8" if encoding == "utf-8" else "ascii")
    plain = "|gbar| + c*V = 0.5 + 2*0.1 = 0.7 over 10 iterates"
    assert text.startswith("‖ḡ‖ + c·V = 0.5" if encoding == "utf-8" else plain)
    assert ("E‖∇F(x̄)‖_c <= " if encoding == "utf-8" else "E|grad F(xbar)|_c <= ") in text
