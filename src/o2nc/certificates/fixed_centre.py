"""The best weights where x̄ is given: a second-order cone program, solved by Clarabel.

    min ‖Σp g‖ + c Σp‖y − x̄‖²  over  Σp(y − x̄) = 0, 1ᵀp = 1, p >= 0.

Only inner products matter. With M = (⟨y_i − x̄, y_j − x̄⟩) the first constraint is Mp = 0, or Wᵀp = 0 for the
eigenvectors W of M that have a positive eigenvalue. When there are K − 1 of them, as with points in general position
and d >= K − 1, one p is left. The dual point (u, ν), ‖u‖ <= 1, shows for every such p that its value is at least

    min_k ⟨u, g_k⟩ + c‖y_k − x̄‖² + ⟨ν, y_k − x̄⟩.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from o2nc.certificates.factor import Factor
from o2nc.certificates.trajectory import Sums, Trajectory, blocks, dots_with_mean, gram

RANK = 1e-13  # eigenvalues of M below this share of the largest count as zero: directions in which no point moved


def best_weights(trajectory: Trajectory, exponential: Sums, c: float) -> tuple[Sums, float]:
    """Return the sums of the best weights with the mean that the exponential weights have, and the duality gap."""
    size = len(trajectory)
    p0 = exponential.weights
    if trajectory.width >= size:  # a first few columns of the points may settle it
        block = next(blocks(trajectory.points)).cpu()
        block -= p0 @ block
        if int(_moved(torch.linalg.eigvalsh(block @ block.T)).sum()) >= size - 1:
            return exponential, 0.0
    values, vectors = torch.linalg.eigh(gram(trajectory.points, centre=p0))
    moved = _moved(values)
    if int(moved.sum()) >= size - 1:
        return exponential, 0.0
    clarabel, sparse = _import()
    w, sigma = vectors[:, moved], values[moved].sqrt()
    factor = Factor(trajectory)
    prices = c * exponential.squares
    scale = float((factor.norms + prices).min()) or 1.0  # numbers near 1 for the solver
    p, u, coefficients = _solve(clarabel, sparse, factor.r / scale, prices / scale, w)
    sums = trajectory.sums(p)
    if not sums.value(c) < exponential.value(c):
        sums = exponential
    a = factor.lift(u)
    dots, square = dots_with_mean(trajectory.gradients, a)
    # ν = Σ b_k (y_k − x̄) has ⟨ν, y_k − x̄⟩ = (Mb)_k, which shall be scale·(W coefficients)_k
    shift, _ = dots_with_mean(trajectory.points, scale * (w @ (coefficients / sigma**2)), centre=p0)
    bound = float((dots / max(1.0, square**0.5) + prices + shift).min())
    return sums, max(0.0, sums.value(c) - max(bound, float(prices.min())))  # u = ν = 0 is a dual point too


def _moved(values: Tensor) -> Tensor:
    """Return which of the eigenvalues are not zero."""
    return values > RANK * float(values.max())


def _solve(clarabel: Any, sparse: Any, r: Tensor, q: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return p, u and the multipliers of Wᵀp = 0, for min ‖Rp‖ + qᵀp over that and the simplex.

    Clarabel's form: min over (p, τ) with A(p, τ) + slack = b. The rows are Wᵀp = 0, 1ᵀp = 1, p >= 0,
    (τ, Rp) in the cone.
    """
    size, rank, width = len(q), w.shape[1], len(r)
    matrix = np.zeros((rank + 1 + size + 1 + width, size + 1))
    matrix[:rank, :size] = w.T.numpy()
    matrix[rank, :size] = 1
    matrix[rank + 1 : rank + 1 + size, :size] = -np.eye(size)
    matrix[rank + 1 + size, size] = -1
    matrix[rank + 2 + size :, :size] = -r.numpy()
    right = np.zeros(len(matrix))
    right[rank] = 1
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    cones = [clarabel.ZeroConeT(rank + 1), clarabel.NonnegativeConeT(size), clarabel.SecondOrderConeT(width + 1)]
    objective = np.append(q.numpy(), 1.0)
    nothing = sparse.csc_matrix((size + 1, size + 1))
    answer = clarabel.DefaultSolver(nothing, objective, sparse.csc_matrix(matrix), right, cones, settings).solve()
    z = torch.tensor(answer.z, dtype=torch.float64, device="cpu")
    p = torch.tensor(answer.x, dtype=torch.float64, device="cpu")[:size].clamp(min=0)
    u = -z[rank + 2 + size :]
    return p / p.sum(), u / max(1.0, float(torch.linalg.vector_norm(u))), z[:rank]


def _import() -> tuple[Any, Any]:
    try:
        import clarabel
        from scipy import sparse
    except ImportError as error:
        raise ImportError("centre=\"fixed\" needs Clarabel and SciPy: pip install 'o2nc[certify]'") from error
    return clarabel, sparse
