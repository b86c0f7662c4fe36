"""The weights with the least certificate: majorise–minimise, one convex problem over the simplex per round.

For a fixed centre z, min ‖Σp g‖ + c Σp‖y − z‖² over the simplex is convex. Moving z to Σp y afterwards can only lower
the value, since that is where Σp‖y − z‖² is least; then the next round begins. Of the gradients only the inner
products matter, so that each problem is no larger than K × K, whatever d is.
"""

import math

import torch
from torch import Tensor

from o2nc.certificates import simplex
from o2nc.certificates.trajectory import Sums, Trajectory

ROUNDS, GAIN = 50, 1e-3  # rounds of re-centring, as long as each gains this share of the value
DEAREST = 1e140  # the largest root of a price that the search computes with


def best_weights(trajectory: Trajectory, exponential: Sums, c: float) -> tuple[Sums, float]:
    """Return the best sums found on the way from the exponential weights, and their duality gap.

    The other start is the iterate with the smallest gradient: alone it is a certificate too, without spread.
    """
    norms = trajectory.slopes(lambda g: g)
    unit = float(norms.max()) or 1.0  # all is computed with gradients of at most 1
    r = trajectory.triangle(unit)

    def prices(sums: Sums) -> Tensor:
        """Return c‖y_k − z‖² for all k."""
        return (sums.distances * (c**0.5 / unit**0.5)).clamp(max=DEAREST).square()

    def value(sums: Sums) -> float:
        return sums.gradient / unit + float(sums.weights @ prices(sums))

    alone = trajectory.sums(torch.nn.functional.one_hot(norms.argmin(), len(trajectory)).double())
    best, u = min(exponential, alone, key=value), r.new_zeros(len(r))
    for now in (exponential, alone) if best is alone else (exponential,):
        for _ in range(ROUNDS):
            p, dual = simplex.minimise(r, prices(now))
            before, now = now, trajectory.sums(p)
            if value(now) < value(best):
                best, u = now, dual
            elif before is best:
                u = dual
            if value(now) > (1 - GAIN) * value(before):
                break
    q, mean = prices(best), r @ best.weights
    if q.max() >= DEAREST**2:  # less than c: what is proved for it does not count
        return best, math.inf
    # every u in the unit ball gives a lower bound min_k ⟨u, g_k⟩ + c‖y_k − z‖²
    duals = (u, mean / mean.norm().clamp(min=1e-300), 0 * u)
    return best, max(0.0, value(best) - max(float((dual @ r + q).min()) for dual in duals)) * unit
