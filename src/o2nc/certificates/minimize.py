"""`minimize`: descend until the certificate of one's own iterates is at most eps.

The certificate ‖Σw∇F(y)‖ + cΣw‖y − x̄‖² holds whatever the steps were; `o2nc.certificates.search` takes them.
"""

from collections.abc import Callable
from typing import Any

from o2nc import checks
from o2nc.certificates.oracle import LARGE, SMALL, Oracle
from o2nc.certificates.search import Callback, Minimum, Search


def minimize(
    fun: Callable[[Any], Any],
    x0: Any,
    *,
    eps: float,
    c: float = 1.0,
    max_evaluations: int = 100_000,
    seed: int = 0,
    callback: Callback = None,
    noise: float = 0.0,
    failure: float = 0.01,
) -> Minimum:
    """Search a point x with ‖∇F(x)‖_c <= eps, and return it with the points and weights that prove it.

    F may have kinks and need not be convex. With noise in the gradients the certificate holds with a probability of
    at least 1 − failure, over all checks of the search together.

    Args:
        fun: F. Given a NumPy array or a tensor that requires grad, whichever x0 is, it returns (value, gradient);
            given a tensor it may instead return a scalar that autograd can differentiate.
        x0: the point to start from, of any shape: an array, a tensor, a number or a list. It sets the dtype in which
            fun is called; all else is computed in float64.
        eps: the certificate to reach, > 0.
        c: the price of spread, > 0.
        max_evaluations: the most calls of fun, >= 1.
        seed: of the random places at which line searches divide an interval.
        callback: called at every check with the best result so far; it ends the search by raising StopIteration.
        noise: σ >= 0, with ‖g − ∇F‖ <= σ for every gradient g that fun returns; 0 for exact ones. The errors of all
            calls are independent, with mean 0.
        failure: with noise, the probability with which the certificate may be above eps after all, in (0, 1).

    Returns:
        The point, with ``success`` if its certificate is at most eps, else that with the smallest certificate found.

    Example:
        >>> import torch
        >>> found = minimize(lambda x: (x[0] - 1).abs() + 3 * x[1].abs(), torch.tensor([3.0, 2.0]), eps=1e-3)
        >>> found.success, found.x.round(decimals=1)
        (True, tensor([1., -0.]))
    """
    for name, value in (("eps", eps), ("c", c)):
        checks.number(name, value, f"a number in [{SMALL:g}, {LARGE:g}]", lambda v: SMALL <= v <= LARGE)
    checks.integer("max_evaluations", max_evaluations, 1)
    checks.integer("seed", seed, 0)
    checks.number("noise", noise, f"0 or a number in [{SMALL:g}, {LARGE:g}]", lambda v: v == 0 or SMALL <= v <= LARGE)
    checks.fraction("failure", failure)
    if not callable(fun) or not (callback is None or callable(callback)):
        raise TypeError(f"fun and callback must be functions, got {fun!r} and {callback!r}")
    oracle = Oracle(fun, x0, int(max_evaluations))
    return Search(oracle, float(eps), float(c), int(seed), callback, float(noise), float(failure)).run()
