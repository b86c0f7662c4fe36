"""Is F still falling, how low is a plateau, and what convexity adds: momentum without smoothness.

The statements and their proofs are in docs/paper.md, section 10: that F has stopped falling exactly where the energy
ratio ρ is 1 (`energy_ratio`), that the progress knows its own error (`fall_seen`), the level of a stationary run at a
kink (`kink_level`), and the rates for convex and for sharp F (`convex_bound`, `sharp_stage`). Here
m_t = b·m_{t−1} + g_t, Δ_{t+1} = −ℓm_t, ℓ̄ = ℓ/(1 − b), and κ = (v(1 − b) + 2b)/(2(1 + b)) with v = E s².
"""

import math
from typing import NamedTuple

from o2nc import checks
from o2nc.scaling import Exponential, Law
from o2nc.theory import energy, lemmas


def energy_ratio(momentum_squares: float, gradient_squares: float, momentum: float) -> float:
    """Return ρ = (1 − b²)·mean‖m‖²/mean‖g‖²: 1 at a plateau, more while F falls (s ~ Exp(1)).

    Args:
        momentum_squares: the mean of ‖m_t‖² over a stretch, m as torch's buffer without dampening.
        gradient_squares: the mean of ‖g_t‖².
        momentum: b in [0, 1).

    Example:
        Gradients that are independent of each other, of length 1, have E‖m‖² = 1/(1 − b²):

        >>> round(energy_ratio(1 / (1 - 0.9**2), 1.0, momentum=0.9), 12)
        1.0
    """
    checks.known(momentum_squares=momentum_squares, gradient_squares=gradient_squares, momentum=momentum)
    return (1 - momentum) * (1 + momentum) * momentum_squares / gradient_squares


def fall_seen(progress: float, squares: float) -> float:
    """Return t = −R/√Q, a studentised test of whether F has fallen.

    By Cantelli's inequality P(F(x_0) − F(x_n) <= −R − z√(E Q)) <= 1/(1 + z²): where Q is near its mean, a t well
    above 1 says that F fell.

    Args:
        progress: R = Σ⟨g_t, Δ_t⟩.
        squares: Q = Σ⟨g_t, Δ_t⟩² > 0.

    Example:
        >>> round(fall_seen(progress=-0.3, squares=0.01), 9)
        3.0
    """
    checks.known(progress=progress, squares=squares)
    return -progress / math.sqrt(squares)


def _kappa(momentum: float, law: Law) -> float:
    checks.known(momentum=momentum)
    return (energy.second_moment(law) * (1 - momentum) + 2 * momentum) / (2 * (1 + momentum))


def kink_level(
    lr: float, momentum: float, *, gradient_squares: float, ratio: float = 1.0, law: Law = Exponential()
) -> float:
    """Return E F − F* of a stationary run at a convex kink.

    Args:
        lr: ℓ > 0, times the mean of s.
        momentum: b in [0, 1).
        gradient_squares: E‖g‖².
        ratio: ρ, as `energy_ratio` has it: 1 for Exp(1), about 0.24 for s = 1 on |x|.
        law: of s.

    Example:
        On |x|, momentum 0.9: a constant learning rate of 0.01 leaves F at

        >>> round(kink_level(0.01, 0.9, gradient_squares=1.0), 4)
        0.0526
    """
    checks.known(lr=lr, gradient_squares=gradient_squares, ratio=ratio)
    return _kappa(momentum, law) * lr / (1 - momentum) * ratio * gradient_squares


def convex_bound(
    steps: int, lr: float, momentum: float, *, distance: float, gap: float, lipschitz: float, noise: float = 0.0
) -> float:
    """Return a bound on the mean of E F(x_t) − F* over the run, and so on E F − F* at its mean iterate, for convex F.

    Args:
        steps: n >= 1.
        lr: ℓ > 0; s ~ Exp(1).
        momentum: b in [0, 1).
        distance: D >= ‖x_1 − x*‖.
        gap: Φ >= F(x_1) − F*.
        lipschitz: G > 0.
        noise: σ >= 0.

    Example:
        >>> round(convex_bound(10_000, 1e-3, 0.9, distance=1.0, gap=1.0, lipschitz=1.0), 4)
        0.0112
    """
    known = {"lr": lr, "distance": distance, "gap": gap, "lipschitz": lipschitz, "noise": noise}
    checks.known(steps=steps, **known)
    kappa, longer = _kappa(momentum, Exponential()), lr / (1 - momentum)
    start = distance * distance / (2 * longer) + 2 * momentum * kappa * gap / (1 - momentum)
    bound = start / steps + kappa * longer * (lipschitz * lipschitz + noise * noise)
    return lemmas.in_float64(lambda: bound, math.isfinite, **known)


class Stage(NamedTuple):
    """A stage that halves the distance to a sharp minimum in the mean: its learning rate and its length."""

    lr: float
    steps: int


def sharp_stage(sharpness: float, momentum: float, *, distance: float, lipschitz: float, noise: float = 0.0) -> Stage:
    """Return ℓ and n with which the mean iterate has E dist <= D/2, where F is convex and F − F* >= μ·dist.

    With the rate halved in every stage the distance falls geometrically, whatever the noise (docs/paper.md).

    Args:
        sharpness: μ > 0.
        lipschitz: G >= μ.
        momentum, distance, noise: as in `convex_bound`.

    Example:
        >>> stage = sharp_stage(0.5, 0.9, distance=1.0, lipschitz=1.0, noise=1.0)
        >>> round(stage.lr, 6), stage.steps
        (0.011875, 152)
    """
    known = {"sharpness": sharpness, "distance": distance, "lipschitz": lipschitz, "noise": noise}
    checks.known(**known)
    checks.number("lipschitz", lipschitz, f"a number >= sharpness = {sharpness!r}", lambda v: v >= sharpness)
    kappa, steep, noisy = _kappa(momentum, Exponential()), lipschitz / sharpness, noise / sharpness
    square = steep * steep + noisy * noisy
    steps = 16 * kappa * max(square, momentum * steep / (1 - momentum))
    lr = (1 - momentum) * distance / (4 * kappa * square) / sharpness
    return lemmas.in_float64(lambda: Stage(lr, math.ceil(steps)), lambda stage: 0 < stage.lr < math.inf, **known)
