"""How large a learning rate momentum bears when its steps are random.

On F(x) = λx²/2 the second moments of x and of torch's buffer follow a linear recursion that knows of the law only
Var s, and they stay bounded exactly for ℓλ below h, where 1/h = 1/(2(1 + b)) + Var s/(2(1 − b)). With Nesterov's lead
and v = E s², h is the positive root of vb(1 + 2b)h² + (v(1 + b) − 2b(1 + 2b))h = 2(1 − b²). docs/stability.md has the
proofs, a picture, and what it means.
"""

import math

from o2nc import checks, scaling
from o2nc.scaling import Exponential, Law
from o2nc.theory import energy


def stable_lr(
    momentum: float,
    law: Law | None = Exponential(),
    *,
    curvature: float = 1.0,
    nesterov: bool = False,
    dampening: float = 0.0,
) -> float:
    """Return the learning rate of `ScaledSGDM` below which E x² stays bounded where F curves by ``curvature``.

    In several dimensions that is the largest eigenvalue of ∇²F, since all coordinates share s. A momentum that is a
    mean of gradients, as Adam's, has dampening = momentum; then ``curvature`` is that of the preconditioned F.

    Args:
        momentum: b in [0, 1).
        law: of s; None for s = 1.
        curvature: λ > 0.
        nesterov: whether the step is torch's ``nesterov=True``, which has no dampening.
        dampening: of the gradients, < 1.

    Example:
        What momentum 0.9 bears, in units of 1/λ:

        >>> from o2nc import Jitter
        >>> [round(stable_lr(0.9, law), 2) for law in (None, Jitter(0.25), Jitter(1), Exponential())]
        [3.8, 2.72, 0.52, 0.19]
        >>> [round(stable_lr(0.9, law, nesterov=True), 2) for law in (None, Jitter(0.25), Jitter(1), Exponential())]
        [1.36, 1.32, 0.88, 0.42]
    """
    checks.known(momentum=momentum, curvature=curvature)
    checks.flag("nesterov", nesterov)
    checks.number("dampening", dampening, "a number < 1", lambda v: v < 1)
    if nesterov and dampening:
        raise ValueError(f"dampening must be 0 with nesterov=True, got {dampening!r}")
    scaling.check_law(law, "law")
    if not (law is None or hasattr(law, "second_moment")):
        raise ValueError(f"law must have a second_moment, or None, got {law!r}")
    b, v = float(momentum), 1.0 if law is None else energy.second_moment(law)
    checks.number("law's E s² over the square of its mean", v, "a finite number >= 1", lambda v: v > 1 - 1e-12)
    room = 2 * (1 - b) * (1 + b)
    if not nesterov:
        bears = room / ((1 - b) + (1 + b) * (v - 1))
    else:
        square, slope = v * b * (1 + 2 * b), v * (1 + b) - 2 * b * (1 + 2 * b)
        root = math.sqrt(slope**2 + 4 * square * room)
        bears = 2 * room / (slope + root) if slope > 0 else (root - slope) / (2 * square)
    return bears / (scaling.mean(law) * curvature * (1 - dampening))
