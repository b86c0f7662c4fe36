"""Errata of the two reductions: from a certificate to a gradient, and to a Goldstein stationary point."""

import warnings

import torch

import o2nc
from o2nc import Certificate
from o2nc_experiments.verify.check import ROUNDING, Finding, erratum


@erratum("erratum-e", "∇F(x) = ∇F(y) + ∇²F(x)(x−y) + ½∇³F(z)[x−y]²")
def taylor_remainder_has_the_wrong_sign(seed: int, scale: float) -> Finding:
    """The proof of Lemma criterion-reduction: the last sign is −, and 2ε is loose: 1.25ε and ε are reached.

    F' = h²/2, at x = 1 and y = 0: F''' = 1 everywhere, so that no z helps.
    """
    # c = H²/ε with F'(h) = 1.25 − |h| at ±½, and c = ρ/2 with F'(h) = 1 − h²/2 at ±1; ε = 1 in both
    smooth = Certificate(1.0, 0.75, 0.25, 2.0).gradient_norm(smoothness=1.0)
    second = Certificate(0.5, 0.5, 1.0, 2.0).gradient_norm(second_order=1.0)
    at_x, at_y, linear, remainder = 0.5, 0.0, 1.0, 0.5
    also = abs(smooth - 1.25) < ROUNDING and abs(second - 1.0) < ROUNDING and at_x == at_y + linear - remainder
    measured = f"both sides for F = h³/6; with − it holds; the constants reached are {smooth:g}ε and {second:g}ε"
    return Finding(measured, at_x, at_y + linear + remainder, "==", also=also)


def plateau(x: torch.Tensor) -> torch.Tensor:
    """Return F' = −1 for |h| <= 1 and +1 beyond: zero on average over y = 0, 0, ±1⁺, and steep within distance 1."""
    return torch.where(x.abs() <= 1, -1.0, 1.0).to(x.dtype)


@erratum("erratum-m", "c = ε/δ²: almost (δ,ε)-Goldstein stationary")
def goldstein_price_is_too_low(seed: int, scale: float) -> Finding:
    """Section 2; a (c, ε)-stationary point at that c may be nowhere near. It takes c >= 2G/δ²."""
    eps = 0.01
    y = torch.tensor([[0.0], [0.0], [1 + 1e-9], [-1 - 1e-9]], dtype=torch.float64)
    at = o2nc.certify(plateau, y, eps, beta=1 - 1e-12)  # E F'(y) = 0 and V = ½
    steep = abs(plateau(y.clamp(-1, 1)).mean().item())  # the same at all points within δ = 1
    with warnings.catch_warnings(action="ignore"):  # that epsilon >= G, which is the point here
        claimed = at.goldstein(1.0, lipschitz=1.0).epsilon
        enough_c = Certificate(2.0, 0.1, 0.05, 2.0).goldstein(1.0, lipschitz=1.0).epsilon
        less_c = Certificate(1.0, 0.1, 0.05, 2.0).goldstein(1.0, lipschitz=1.0).epsilon
    also = at.value <= eps and steep <= claimed and abs(enough_c - 0.2) < ROUNDING and less_c > 0.15 + ROUNDING
    measured = (
        f"mean gradient of every ŷ within δ = 1 where ‖∇F(x)‖_c ≤ ε/2; goldstein says {claimed:.2f}, no less than G"
    )
    return Finding(measured, steep, eps, also=also)


@erratum("erratum-o", "c = H²/ε: ‖∇F(x)‖_c ≤ ε ⇒ ‖∇F(x)‖ ≤ ε")
def smooth_reduction_is_short_of_a_quarter(seed: int, scale: float) -> Finding:
    """Section 5; the lemma gives 2ε, and 1.25ε is reached: F'(h) = 1.25ε − H|h|, y = ±ε/2H."""
    eps, smoothness = 0.04, 3.0
    slope = 1.25 * eps
    at = Certificate(smoothness**2 / eps, slope - eps / 2, (eps / (2 * smoothness)) ** 2, 2.0)
    claimed = at.gradient_norm(smoothness=smoothness)
    also = abs(at.value - eps) < ROUNDING and abs(claimed - slope) < ROUNDING
    measured = (
        f"‖∇F(x)‖ at a point with ‖∇F‖_c = ε = {eps}, H = {smoothness:g}; gradient_norm says {claimed / eps:.4f}ε"
    )
    return Finding(measured, slope, eps, also=also)
