"""`certify`: certificates from a list of iterates, with exponential or with the best weights."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.certificates.best_weights import best_weights
from o2nc.certificates.certificate import Certificate
from o2nc.certificates.trajectory import Trajectory


@torch.no_grad()
def certify(
    gradient: Callable[[Any], Any] | Sequence[Any] | Tensor,
    iterates: Sequence[Any] | Tensor,
    c: float = 1.0,
    *,
    weights: str | Sequence[float] | Tensor = "exponential",
    beta: float = 0.99,
) -> Certificate:
    """Certify an average of iterates: ‖∇F(x̄)‖_c <= ‖Σp g‖ + c Σp‖y − x̄‖² at x̄ = Σp y.

    ``weights="exponential"`` takes p_t ∝ β^{K−t}, the last iterate heaviest, as the optimizers do.
    ``weights="optimal"`` searches the p with the least value: it solves the convex problem
    min ‖Σp g‖ + c Σp‖y − z‖² over the simplex, at first with z = x̄ of the exponential weights, then with z = Σp y
    while that gains more than 0.1 %. Since Σp‖y − z‖² is least at z = Σp y, each round lowers the certified value:
    majorise–minimise for the joint problem in (p, z), which is not convex, so the result is a good certificate and
    not a global optimum. The search starts also from the iterate with the smallest gradient if that alone is better,
    and the result is never worse than either. The work is a QR decomposition, 2K²d multiplications, and a pass over
    data per round.

    With stochastic gradients optimised weights fit the noise, and ``value`` comes out too small: evaluate the weights
    again on fresh gradients, or at least compare with σ/√ess, which noise of size σ alone puts into ‖ḡ‖.

    Args:
        gradient: a function of a point, called once per iterate in order with a detached copy (autograd is enabled:
            ``lambda x: torch.autograd.grad(f(x.requires_grad_()), x)[0]`` will do), or the K gradients.
        iterates: K points, each a tensor or a list of tensors; or one tensor whose first axis counts them.
        c: the price of spread, > 0.
        weights: "exponential", "optimal", or K numbers of your own, >= 0.
        beta: the discount of the exponential weights, in (0, 1).

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
    checks.fraction("beta", beta)
    if isinstance(weights, str):
        checks.choice("weights", weights, ("exponential", "optimal"))
    with torch.enable_grad():  # the gradient may need it; what it returns is detached
        trajectory = Trajectory(gradient, iterates)
    if isinstance(weights, str):
        p = beta ** torch.arange(len(trajectory) - 1, -1, -1, dtype=torch.float64, device="cpu")
    else:
        p = torch.as_tensor(weights, dtype=torch.float64, device="cpu").detach()
    if p.shape != (len(trajectory),) or not (p >= 0).all() or not 0 < float(p.sum()) < float("inf"):
        raise ValueError(
            "weights must be 'exponential', 'optimal', or one number >= 0 for each iterate, not all zero: "
            f"{len(trajectory)} iterates, weights of the shape {tuple(p.shape)}"
        )
    sums, gap = trajectory.sums(p / p.sum()), None
    if isinstance(weights, str) and weights == "optimal":
        sums, gap = best_weights(trajectory, sums, float(c))
    p = sums.weights
    return Certificate(
        float(c),
        sums.gradient,
        sums.spread,
        1 / float(p @ p),
        weights=p,
        point=trajectory.mean(p),
        gap=gap,
        _trajectory=trajectory,
    )
