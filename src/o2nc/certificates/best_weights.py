"""The weights with the least certificate: majorise–minimise, one convex problem over the simplex per round.

For a fixed centre z, min ‖Σp g‖ + c Σp‖y − z‖² over the simplex is convex. Moving z to Σp y afterwards can only lower
the value, since that is where Σp‖y − z‖² is least; then the next round begins. Of the gradients only the inner
products matter, so that each problem is no larger than K × K, whatever d is.
"""

import math

import torch
from torch import Tensor

from o2nc.certificates import simplex
from o2nc.certificates.trajectory import DEAREST, Sums, Trajectory, scaled

ROUNDS = 50  # of re-centring
LARGE = 1e8  # K²d from which on a round must gain 1 % to be followed by another; below it 0.01 % is enough


def best_weights(trajectory: Trajectory, exponential: Sums, price: float) -> tuple[Sums, float]:
    """Return the best sums found on the way from the exponential weights, and their duality gap.

    Args:
        trajectory: the points and gradients.
        exponential: the sums under the exponential weights.
        price: c in the units of the sums, `Trajectory.price`.
    """
    factor = Factor(trajectory)
    starts = [exponential]
    if float(factor.norms.min()) < exponential.value(price):  # one iterate alone is a certificate too, without spread
        alone = torch.nn.functional.one_hot(factor.norms.argmin(), len(trajectory)).double()
        starts.append(trajectory.sums(alone))
    large = len(trajectory) ** 2 * trajectory.width > LARGE
    gain = 0.01 if large else 1e-4
    best = starts[-1]
    u = torch.zeros(len(trajectory), dtype=torch.float64, device="cpu")
    for now in starts[-1:] if large else starts:
        for _ in range(ROUNDS):
            p, a = factor.minimise(price * now.distances.square())
            before, now = now, trajectory.sums(p)
            factor.refine(now)
            if now.value(price) < best.value(price):
                best, u = now, a
            elif before is best:
                u = a
            if now.value(price) > (1 - gain) * before.value(price):
                break
    return best, _duality_gap(trajectory, best, price, u)


def _duality_gap(trajectory: Trajectory, sums: Sums, price: float, coefficients: Tensor) -> float:
    """Return value − min_k (⟨u, g_k⟩ + c‖y_k − z‖²), computed from the vectors themselves.

    Every u in the unit ball gives a lower bound, whatever error it has. The best of three is taken:
    u = Σ a_k g_k with the coefficients given, u = m/‖m‖, and u = 0.
    """
    prices = price * sums.distances.square()
    dots, norm = trajectory.gradients.dots_with_mean(coefficients)
    bounds = [prices, prices + dots / max(1.0, norm)]
    if sums.gradient > 0:
        bounds.append(prices + sums.dots / sums.gradient)
    if price == DEAREST:  # less than c: what is proved for it does not count
        return math.inf
    gap = sums.value(price) - max(float(bound.min()) for bound in bounds)
    return scaled(max(0.0, gap), trajectory.gradients.exponent)


class Factor:
    """A matrix R with the inner products of the gradients: themselves if d <= K, else a root of their Gram matrix.

    The root is of A + jitter, and A may come from float32 products: `refine` makes up for both.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        gradients = trajectory.gradients
        self.gram = gradients.gram() if trajectory.width > len(trajectory) else None
        if self.gram is None:
            self.r = torch.cat([block.cpu().clone() for block in gradients.blocks()], 1).T
            self.norms = torch.linalg.vector_norm(self.r, dim=0)
        else:
            self.norms = self.gram.diagonal().clamp(min=0).sqrt()
            self._root()

    def _root(self) -> None:
        """Cholesky of the Gram matrix of the normalised gradients, which leaves small ones their digits."""
        assert self.gram is not None
        norms = torch.where(self.norms > 0, self.norms, 1.0)
        unit = self.gram / torch.outer(norms, norms)
        diagonal = torch.eye(len(unit), dtype=unit.dtype, device=unit.device)
        for exponent in range(-14, 1):
            root, info = torch.linalg.cholesky_ex(unit + 10.0**exponent * diagonal)
            if not info:
                break
        self.r = root.T * norms

    def minimise(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best weights for the prices q, and coefficients a of the dual point u = Σ a_k g_k."""
        p, u = simplex.minimise(self.r, q)
        if self.gram is None:
            return p, torch.linalg.lstsq(self.r, u.unsqueeze(1), driver="gelsd").solution.squeeze(1)
        return p, torch.linalg.solve_triangular(self.r, u.unsqueeze(1), upper=True).squeeze(1)

    def refine(self, sums: Sums) -> None:
        """Make the Gram matrix exact where it matters: at p it shall map to the dots, which are exact.

        With e = dots − Ap, add e1ᵀ + 1eᵀ − (eᵀp)11ᵀ. This makes Ap = dots, hence pᵀAp = ‖m‖², and changes no
        curvature within the simplex: the next solve sees the true ‖Σp'g‖² to first order around p.
        """
        if self.gram is not None:
            e = sums.dots - self.gram @ sums.weights
            self.gram += e.unsqueeze(1) + e - e @ sums.weights
            self._root()
