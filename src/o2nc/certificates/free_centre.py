"""The best weights where x̄ may move with them: majorise–minimise, one convex problem over the simplex per round.

For a fixed centre z, min ‖Σp g‖ + c Σp‖y − z‖² over the simplex is convex. Moving z to Σp y afterwards can only lower
the value, since that is where Σp‖y − z‖² is least; then the next round begins.
"""

import torch
from torch import Tensor

from o2nc.certificates.factor import Factor
from o2nc.certificates.trajectory import Sums, Trajectory, dots_with_mean

ROUNDS = 50  # of re-centring
LARGE = 1e8  # K²d from which on a round must gain 1 % to be followed by another; below it 0.01 % is enough


def best_weights(trajectory: Trajectory, exponential: Sums, c: float) -> tuple[Sums, float]:
    """Return the best sums met on the way from the exponential weights, and their duality gap."""
    factor = Factor(trajectory)
    starts = [exponential]
    if float(factor.norms.min()) < exponential.value(c):  # one iterate alone is a certificate too, without spread
        alone = torch.nn.functional.one_hot(factor.norms.argmin(), len(trajectory)).double()
        starts.append(trajectory.sums(alone))
    large = len(trajectory) ** 2 * trajectory.width > LARGE
    gain = 0.01 if large else 1e-4
    best = starts[-1]
    u = torch.zeros(len(trajectory), dtype=torch.float64, device="cpu")
    for now in starts[-1:] if large else starts:
        for _ in range(ROUNDS):
            p, a = factor.minimise(c * now.squares)
            before, now = now, trajectory.sums(p)
            factor.refine(now)
            if now.value(c) < best.value(c):
                best, u = now, a
            elif before is best:
                u = a
            if now.value(c) > (1 - gain) * before.value(c):
                break
    return best, _duality_gap(trajectory, best, c, u)


def _duality_gap(trajectory: Trajectory, sums: Sums, c: float, coefficients: Tensor) -> float:
    """Return value − min_k (⟨u, g_k⟩ + c‖y_k − z‖²), computed from the vectors themselves.

    Every u in the unit ball gives a lower bound, whatever error it has. The best of three is taken:
    u = Σ a_k g_k with the coefficients given, u = m/‖m‖, and u = 0.
    """
    prices = c * sums.squares
    dots, square = dots_with_mean(trajectory.gradients, coefficients)
    bounds = [prices, prices + dots / max(1.0, square**0.5)]
    if sums.gradient > 0:
        bounds.append(prices + sums.dots / sums.gradient)
    return max(0.0, sums.value(c) - max(float(bound.min()) for bound in bounds))
