"""The gradients as a small matrix: whatever d is, only their inner products matter to the best weights."""

import torch
from torch import Tensor

from o2nc.certificates import simplex
from o2nc.certificates.trajectory import Sums, Trajectory, blocks, gram


class Factor:
    """A matrix R with the inner products of the gradients: themselves if d <= K, else a root of their Gram matrix.

    The root is of A + jitter, and A may come from float32 products: `refine` makes up for both.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        gradients = trajectory.gradients
        self.gram = gram(gradients) if trajectory.width > len(trajectory) else None
        if self.gram is None:
            self.r = torch.cat([block.cpu().clone() for block in blocks(gradients)], 1).T
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
        return p, self.lift(u)

    def lift(self, u: Tensor) -> Tensor:
        """Return coefficients a with Ra = u."""
        if self.gram is None:
            return torch.linalg.lstsq(self.r, u.unsqueeze(1), driver="gelsd").solution.squeeze(1)
        return torch.linalg.solve_triangular(self.r, u.unsqueeze(1), upper=True).squeeze(1)

    def refine(self, sums: Sums) -> None:
        """Make the Gram matrix exact where it matters: at p it shall map to the dots, which are exact.

        With e = dots − Ap, add e1ᵀ + 1eᵀ − (eᵀp)11ᵀ. This makes Ap = dots, hence pᵀAp = ‖m‖², and changes no
        curvature within the simplex: the next solve sees the true ‖Σp'g‖² to first order around p.
        """
        if self.gram is not None:
            e = sums.dots - self.gram @ sums.weights
            self.gram += e.unsqueeze(1) + e - e @ sums.weights
            self._root()
