"""How many steps: `steps_for` are enough for a plan, and below `lower_bound` no algorithm gets there."""

import math
from typing import Any

from o2nc import checks
from o2nc.scaling import Exponential, Law
from o2nc.theory import lemmas
from o2nc.theory.planning import MOST, TooFewSteps, check_constants, check_regime, plan
from o2nc.theory.plans import Plan


def steps_for(
    eps: float,
    c: float | None = None,
    *,
    gap: float,
    lipschitz: float,
    noise: float = 0.0,
    constants: str = "sharp",
    smoothness: float | None = None,
    second_order: float | None = None,
    law: Law = Exponential(),
) -> int:
    """Return the least N at which the plan's bound is at most ``eps``; 0 for eps >= G, which holds everywhere.

    Args:
        eps: ε > 0, the target for E‖∇F(x̄)‖_c, or for E‖∇F(x̄)‖ when ``smoothness`` or ``second_order`` is given.
        c: as in `plan`.
        gap: as in `plan`.
        lipschitz: as in `plan`.
        noise: as in `plan`.
        constants: as in `plan`.
        smoothness: as in `plan`.
        second_order: as in `plan`.
        law: as in `plan`.

    Example:
        >>> unit = dict(c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> steps_for(0.1, **unit), steps_for(0.1, **unit, constants="paper")
        (168894, 296639413)
    """
    checks.positive("eps", eps)
    check_constants(gap, lipschitz, noise, constants, law)
    check_regime(c, smoothness, second_order)
    if eps >= lipschitz:
        return 0
    known: dict[str, Any] = {"gap": gap, "lipschitz": lipschitz, "noise": noise, "constants": constants, "law": law}
    known |= {"c": c, "smoothness": smoothness, "second_order": second_order}
    target = eps
    if smoothness is not None and constants != "sharp":
        # c·B(c) grows with c: the plan's own c = H²/B has B <= target as soon as this c has
        target = eps / lemmas.reduction_factor(constants, smoothness)
        known |= {"c": smoothness**2 / target, "smoothness": None}

    def make(steps: int) -> Plan:
        return plan(steps, **known)

    def enough(steps: int) -> bool:
        try:
            p = make(steps)
            return (p.gradient_bound or p.bound) <= target
        except TooFewSteps:
            return False

    high = 1
    while not enough(high):
        high *= 2
        if high > MOST:
            raise ValueError(f"eps={eps!r} needs more than 2^72 steps with these constants")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def lower_bound(eps: float, c: float, *, gap: float, lipschitz: float) -> float:
    """Return F*·G²·c^½·ε^{−7/2}: up to a universal constant, left at 1 here, no algorithm needs fewer steps.

    Corollary lower-bound, for stochastic gradients with E‖g‖² <= 2G². `o2nc.problems.hard_instance` has a constant.

    Args:
        eps: ε > 0.
        c: the price of spread, > 0.
        gap: F* > 0.
        lipschitz: G >= √F*·(cε)^¼; the corollary does not speak of smaller ones.

    Example:
        >>> f"{lower_bound(0.1, 1.0, gap=1.0, lipschitz=1.0):.0f}"
        '3162'
    """
    checks.positive("eps", eps)
    checks.positive("c", c)
    checks.positive("gap", gap)
    least = math.sqrt(gap) * (c * eps) ** 0.25
    allowed = f"a finite number >= sqrt(gap)*(c*eps)^(1/4) = {least:.6g}, where the lower bound is proved"
    checks.number("lipschitz", lipschitz, allowed, lambda v: v >= least)
    return gap * lipschitz**2 * math.sqrt(c) * eps**-3.5
