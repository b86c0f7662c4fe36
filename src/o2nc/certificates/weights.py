"""The weights with the least certificate: majorise–minimise, one convex problem over the simplex per round.

For a fixed centre z, min ‖Σp g‖ + c Σp‖y − z‖² over the simplex is convex. Moving z to Σp y afterwards can only lower
the value, since that is where Σp‖y − z‖² is least; then the next round begins. Of the gradients only the inner
products matter: with any matrix R that has them, of columns r_k, each problem and its dual, with slacks s, are

    min ‖Rp‖ + qᵀp over 1ᵀp = 1, p >= 0        max λ over ‖u‖ <= 1, s = Rᵀu + q − λ >= 0,

since ‖Rp‖ + qᵀp >= uᵀRp + qᵀp >= min_k (Rᵀu + q)_k for every p in the simplex and u in the ball. Newton's method
follows the central path for μ → 0, on which, with m = Rp,

    p_k s_k = μ,    m = 2μu/(1 − ‖u‖²),    which is the same as u = m/τ with τ = μ + √(μ² + ‖m‖²).

The last is linearised in the one form while u is well inside the ball (the mean gradient can vanish: the kink) and in
the other near the sphere (it cannot), where a step along the tangent of the first would leave the ball at once.
Either way it reads Δm = M Δu − e with a positive definite M. Eliminating Δp leaves (R diag(p/s) Rᵀ + M) Δu, bordered
by Δλ.
"""

import torch
from torch import Tensor

from o2nc.certificates.trajectory import Sums, Trajectory

ROUNDS, GAIN = 50, 1e-3  # rounds of re-centring, as long as each gains this share of the value
STEPS = 100
INSIDE = 0.9  # ‖u‖² up to which the first form is used


def best_weights(trajectory: Trajectory, exponential: Sums, c: float) -> tuple[Sums, float]:
    """Return the best sums found on the way from the exponential weights, and their duality gap.

    The other start is the iterate with the smallest gradient: alone it is a certificate too, without spread.
    """
    r = trajectory.triangle()
    norms = torch.linalg.vector_norm(r, dim=0)

    def prices(sums: Sums) -> Tensor:
        """Return c‖y_k − z‖² for all k."""
        return c * sums.distances.square()

    def value(sums: Sums) -> float:
        return sums.gradient + c * sums.spread

    alone = trajectory.sums(torch.nn.functional.one_hot(norms.argmin(), len(trajectory)).double())
    best, u = min(exponential, alone, key=value), r.new_zeros(len(r))
    for now in (exponential, alone) if best is alone else (exponential,):
        for _ in range(ROUNDS):
            p, dual = minimise(r, prices(now))
            before, now = now, trajectory.sums(p)
            if value(now) < value(best):
                best, u = now, dual
            elif before is best:
                u = dual
            if value(now) > (1 - GAIN) * value(before):
                break
    # every u in the unit ball gives a lower bound min_k ⟨u, g_k⟩ + c‖y_k − z‖²
    mean = r @ best.weights
    duals = (u, mean / mean.norm().clamp(min=1e-300), 0 * u)
    return best, max(0.0, value(best) - max(float((dual @ r + prices(best)).min()) for dual in duals))


def minimise(r: Tensor, q: Tensor, tolerance: float = 1e-7) -> tuple[Tensor, Tensor]:
    """Minimise ‖Rp‖ + qᵀp over the simplex.

    Args:
        r: the matrix R, K columns, float64.
        q: the K prices, float64, >= 0.
        tolerance: stop at this relative duality gap, or where float64 leads no further.

    Returns:
        The best weights p met and the best dual point u, ‖u‖ <= 1: the optimum lies between
        min_k (Rᵀu + q)_k and ‖Rp‖ + qᵀp.

    Example:
        >>> r = torch.tensor([[1.0, -3.0]], dtype=torch.float64)
        >>> p, u = minimise(r, torch.zeros(2, dtype=torch.float64))
        >>> p
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    alone = torch.linalg.vector_norm(r, dim=0) + q  # the value of each vertex
    scale = float(alone.min())
    u = r.new_zeros(len(r))
    best_p, best_u = torch.nn.functional.one_hot(alone.argmin(), len(q)).double(), u
    if scale == 0:  # the vertex cannot be beaten
        return best_p, best_u
    r, q = r / scale, q / scale
    value, bound = 1.0, float(q.min())
    p = scale / alone
    p = p / p.sum()
    low = bound - 1  # λ
    s = q - low
    shrink = 0.1
    for _ in range(STEPS):
        mu = shrink * float(p @ s) / len(q)
        step = _newton(r, p, u, s, mu)
        if step is None:
            break
        reach, dp, du, d_low = step
        p = p + reach * dp
        p = p / p.sum()
        u, low = u + reach * du, low + reach * d_low
        s = u @ r + q - low
        if not (s > 0).all():
            break
        primal = float(torch.linalg.vector_norm(r @ p) + q @ p)
        if primal < value:
            value, best_p = primal, p
        prover = u / max(1.0, float(torch.linalg.vector_norm(u)))
        dual = float((prover @ r + q).min())
        if dual > bound:
            bound, best_u = dual, prover
        if value - bound <= tolerance * max(value, 1e-6):
            break
        shrink = 0.1 if reach > 0.7 else 0.3 if reach > 0.3 else 0.8
    return best_p, best_u


def _newton(r: Tensor, p: Tensor, u: Tensor, s: Tensor, mu: float) -> tuple[float, Tensor, Tensor, float] | None:
    """Return the length of a step to the central path at μ, and Δp, Δu, Δλ; None where float64 does not carry it."""
    m, square = r @ p, float(u @ u)
    x = p / s
    rx = r * x
    border, system = rx.sum(1), rx @ r.T
    if square < INSIDE:
        room = 1 - square
        system += torch.outer(u, u) * (4 * mu / room**2)
        system.diagonal().add_(2 * mu / room)
        e = m - 2 * mu / room * u
    else:
        tau = mu + (mu**2 + float(m @ m)) ** 0.5
        system += torch.outer(m, m) / mu
        system.diagonal().add_(tau)
        e = (tau / mu - 1 - float(m @ u) / mu) * m - tau * u
    factor, info = torch.linalg.cholesky_ex(system)
    if info:
        return None
    h = torch.cholesky_solve(torch.stack([r @ (mu / s) - m + e, border], 1), factor)
    d_low = (float((mu / s).sum()) - 1 - float(border @ h[:, 0])) / float(border @ h[:, 1] - x.sum())
    du = h[:, 0] + d_low * h[:, 1]
    ds = du @ r - d_low
    dp = mu / s - p - x * ds
    step = 0.95 / max(float((-dp / p).max()), float((-ds / s).max()), 0.95)
    if square < INSIDE:  # stay in the ball: ‖u + step·Δu‖ < 1
        a, b = float(du @ du), float(u @ du)
        step = min(step, 0.9 * room / (b + (b**2 + a * room) ** 0.5)) if a > 0 else step
    return (step, dp, du, d_low) if step > 0 and bool(dp.isfinite().all()) else None
