"""`certify`: certificates from a list of iterates, with exponential or with the best weights."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from o2nc import checks, simplex
from o2nc.certificate import Certificate
from o2nc.trajectory import Sums, Trajectory, blocks, dots_with_mean, gram

ROUNDS = 50  # of re-centring
LARGE = 1e8  # K²d from which on a round must gain 1 % to be followed by another; below it 0.01 % is enough


@torch.no_grad()
def certify(
    gradient: Callable[[Any], Any] | Sequence[Any] | Tensor,
    iterates: Sequence[Any] | Tensor,
    c: float = 1.0,
    *,
    weights: str | Sequence[float] | Tensor = "exponential",
    beta: float = 0.99,
    centre: str = "free",
    noise: float | None = None,
) -> Certificate:
    """Certify an average of iterates: ‖∇F(x̄)‖_c <= ‖Σp g‖ + c Σp‖y − x̄‖² at x̄ = Σp y.

    ``weights="exponential"`` takes p_t ∝ β^{K−t}, the last iterate heaviest, as the optimizers do.
    ``weights="optimal"`` looks for the p with the least value:

    * ``centre="free"``: solve the convex problem min ‖Σp g‖ + c Σp‖y − z‖² over the simplex, at first with z = x̄ of
      the exponential weights, then with z = Σp y while that gains more than 1 % (0.01 % if K²d <= 1e8). Since
      Σp‖y − z‖² is least at z = Σp y, each round lowers the certified value: majorise–minimise for the joint problem
      in (p, z), which is not convex, so the result is a good certificate and not a global optimum. The search starts
      also from the iterate with the smallest gradient (from the better of the two only, if K²d > 1e8), and the
      result is never worse than either. The work is a Gram matrix, K²d multiplications, and a few passes over data.
    * ``centre="fixed"``: certify the exponential x̄ itself, Σp y = x̄, by a second-order cone program
      (``pip install 'o2nc[certify]'``). With d >= K and points in general position only one p does this, and it is
      returned with gap 0.

    With stochastic gradients optimised weights fit the noise, and ``value`` comes out too small: evaluate the weights
    again on fresh gradients, or at least compare with ``noise_floor``, which ``noise=σ`` puts beside the value.

    Args:
        gradient: a function of a point, called once per iterate in order with a detached copy (autograd is enabled:
            ``lambda x: torch.autograd.grad(f(x.requires_grad_()), x)[0]`` will do), or the K gradients.
        iterates: K points, each a tensor or a list of tensors; or one tensor whose first axis counts them.
        c: the price of spread, > 0.
        weights: "exponential", "optimal", or K numbers of your own, >= 0.
        beta: the discount of the exponential weights, in (0, 1).
        centre: "free" or "fixed", for optimal weights.
        noise: σ, the noise of one gradient, or None.

    Returns:
        A certificate with ``weights``, ``point`` (at least float32) and, for optimal weights, ``gap``. It refers to
        the iterates and gradients (it does not copy them), since `Certificate.goldstein` needs them.

    Example:
        The kink of |x|: both iterates have a gradient of size 1, their best mean has almost none.

        >>> x = torch.tensor([[-0.001], [0.003]])
        >>> certificate = certify(torch.sign, x, weights="optimal")
        >>> certificate.weights, certificate.point
        (tensor([0.5000, 0.5000], dtype=torch.float64), tensor([0.0010]))
        >>> f"{certificate.value:.1e}, at least {certificate.value - certificate.gap:.1e}"
        '4.0e-06, at least 4.0e-06'
    """
    checks.positive("c", c)
    if isinstance(weights, str):
        checks.choice("weights", weights, ("exponential", "optimal"))
    else:
        weights = _listed(weights)
    checks.choice("centre", centre, ("free", "fixed"))
    checks.fraction("beta", beta)
    if noise is not None:
        checks.non_negative("noise", noise)
    with torch.enable_grad():  # the gradient may need it; what it returns is detached
        trajectory = Trajectory(gradient, iterates)
    with torch.device("cpu"):  # whatever the default device is: the sums are small
        return _certify(trajectory, float(c), weights, beta, centre, noise)


def _certify(
    trajectory: Trajectory, c: float, weights: str | Tensor, beta: float, centre: str, noise: float | None
) -> Certificate:
    if isinstance(weights, Tensor):
        p = weights
    else:
        p = beta ** torch.arange(len(trajectory) - 1, -1, -1, dtype=torch.float64)
        p /= p.sum()
    if len(p) != len(trajectory):
        raise ValueError(f"there are {len(trajectory)} iterates but {len(p)} weights")
    sums, gap = trajectory.sums(p), None
    if isinstance(weights, str) and weights == "optimal":
        if centre == "free":
            sums, gap = _best_free(trajectory, sums, c)
        else:
            from o2nc.cone import best_fixed

            sums, gap = best_fixed(trajectory, sums, c)
    p = sums.weights
    return Certificate(
        c,
        sums.gradient,
        sums.spread,
        1 / float(p @ p),
        weights=p,
        point=trajectory.mean(p),
        gap=gap,
        noise=noise,
        _trajectory=trajectory,
    )


def _listed(weights: Sequence[float] | Tensor) -> Tensor:
    """Return the caller's own weights, made to add up to 1."""
    p = torch.as_tensor(weights, dtype=torch.float64, device="cpu").detach()
    if p.dim() != 1 or not (p >= 0).all() or not 0 < float(p.sum()) < float("inf"):
        raise ValueError(
            "weights must be 'exponential', 'optimal', or one number >= 0 for each iterate, not all zero"
        )
    return p / p.sum()


def _best_free(trajectory: Trajectory, exponential: Sums, c: float) -> tuple[Sums, float]:
    """Majorise–minimise from the exponential weights; return the best sums met and their duality gap."""
    factor = Factor(trajectory)
    starts = [exponential]
    if float(factor.norms.min()) < exponential.value(c):  # one iterate alone is a certificate too, without spread
        alone = torch.nn.functional.one_hot(factor.norms.argmin(), len(trajectory)).double()
        starts.append(trajectory.sums(alone))
    large = len(trajectory) ** 2 * trajectory.width > LARGE
    gain = 0.01 if large else 1e-4
    best = starts[-1]
    u = torch.zeros(len(trajectory), dtype=torch.float64)
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
    return best, duality_gap(trajectory, best, c, u)


def duality_gap(trajectory: Trajectory, sums: Sums, c: float, coefficients: Tensor) -> float:
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
        for jitter in 10.0 ** torch.arange(-14, 1):
            root, info = torch.linalg.cholesky_ex(unit + jitter * torch.eye(len(unit), dtype=torch.float64))
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
