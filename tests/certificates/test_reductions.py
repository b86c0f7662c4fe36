"""From ‖∇F(x̄)‖_c to ‖∇F(x̄)‖ and to Goldstein stationarity: Lemmas *criterion reduction* and *goldstein reduction*."""

import io
import math
import sys

import pytest
import torch
from torch import Tensor

import o2nc
from refusals import refusals


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
        for weights in ("exponential", "optimal"):
            certificate = o2nc.certify(gradient, iterates, c, weights=weights, beta=0.9)
            truth = gradient(certificate.point).norm().item()
            assert truth <= certificate.gradient_norm(smoothness=smoothness) + 1e-9
            assert truth <= certificate.gradient_norm(second_order=second_order) + 1e-9
            delta = 0.7 * certificate.spread**0.5 + 1e-3
            check_goldstein(certificate, gradient, iterates, delta, lipschitz)


def check_goldstein(certificate, gradient, iterates, delta, lipschitz):
    p, mean = certificate.weights, certificate.point
    offset = iterates - mean
    r = offset.norm(dim=1)
    clipped = mean + (delta / r).clamp(max=1.0)[:, None] * offset
    point = p @ clipped
    found = certificate.goldstein(delta, lipschitz=lipschitz)
    assert (p @ torch.stack([gradient(y) for y in clipped])).norm() <= found.epsilon + 1e-9
    assert (clipped - point)[p > 0].norm(dim=1).max() <= found.radius + 1e-9
    assert (mean - point).norm() <= found.distance + 1e-9


def test_goldstein_of_a_certificate():
    found = o2nc.Certificate(c=50.0, gradient=0.1, spread=0.002, ess=5.0).goldstein(0.2, lipschitz=1.0)
    assert (found.distance, found.radius) == pytest.approx((0.0025, 0.2025))
    assert found.epsilon == pytest.approx(0.2)


def test_vacuous_goldstein_warns_with_the_c_that_helps():
    """At c = ε/δ² the reduction gives ε' >= 2G, which every point satisfies."""
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
    for thing in (certificate, o2nc.theory.guarantee(lr=0.01, momentum=0.9, **known), o2nc.theory.plan(**known)):
        print(thing)
        print(repr(thing))
    stream.flush()
    text = written.getvalue().decode("utf-8" if encoding == "utf-8" else "ascii")
    plain = "|gbar| + c*V = 0.5 + 2*0.1 = 0.7 over 10 iterates"
    assert text.startswith("‖ḡ‖ + c·V = 0.5" if encoding == "utf-8" else plain)
    assert ("E‖∇F(x̄)‖_c <= " if encoding == "utf-8" else "E|grad F(xbar)|_c <= ") in text
