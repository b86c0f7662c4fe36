"""`plan`: from what is known of F to the hyperparameters; `steps_for`: how many steps a plan needs for a target ε.

Below `lower_bound` steps no algorithm gets there.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

from o2nc import checks
from o2nc.scaling import Exponential, Law
from o2nc.theory import energy, lemmas
from o2nc.theory.adaptive import AdaptivePlan, adaptive_plan
from o2nc.theory.guarantees import law_voids
from o2nc.theory.plans import Plan

MOST = 1 << 72  # steps; with more, α is 0 in float64


class TooFewSteps(ValueError):
    """The printed α exceeds ½."""


@overload
def plan(
    steps: int,
    c: float | None = ...,
    *,
    gap: float,
    lipschitz: float,
    noise: float = ...,
    constants: str = ...,
    smoothness: float | None = ...,
    second_order: float | None = ...,
    law: Law = ...,
) -> Plan: ...
@overload
def plan(steps: int, c: float, *, gap: float) -> AdaptivePlan: ...
def plan(
    steps: int,
    c: float | None = None,
    *,
    gap: float,
    lipschitz: float | None = None,
    noise: float = 0.0,
    constants: str = "sharp",
    smoothness: float | None = None,
    second_order: float | None = None,
    law: Law = Exponential(),
) -> Plan | AdaptivePlan:
    """Return the theorem's hyperparameters for N steps.

    Args:
        steps: N >= 1.
        c: the price of spread, > 0; leave it out to give ``smoothness`` or ``second_order``.
        gap: F* > 0, at least F(x_0) − inf F.
        lipschitz: G > 0; left out, a plan is made that knows neither G nor σ, see `adaptive_plan`.
        noise: σ >= 0.
        constants: "sharp" for those of the energy theorem: plain momentum, no decay. "regret" for the best of the
            paper's own proof, "paper" for the printed ones.
        smoothness: H > 0; chooses c = H²/ε with ε the bound itself, as the paper does for smooth F, or, sharp, the c
            with the least bound on E‖∇F(x̄)‖.
        second_order: ρ > 0; chooses c = ρ/2.
        law: the law of s; all but Exp need the sharp constants.

    Returns:
        The plan; ``plan.optimizer(params)`` is ready to train.

    Raises:
        ValueError: the printed α exceeds ½; the message names the smallest N.

    Example:
        >>> p = plan(steps=100_000, c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> f"{p.bound:.3f} at beta = {p.beta:.4f}, lr = {p.lr:.2e}, decay = {p.decay:.0f}"
        '0.116 at beta = 0.9983, lr = 5.65e-06, decay = 0'
    """
    checks.integer("steps", steps, 1)
    if steps > MOST:
        raise ValueError(f"steps must be at most 2^72, got {steps!r}")
    if lipschitz is None:
        if c is None or noise or constants != "sharp" or law != Exponential():
            raise ValueError("a plan without lipschitz knows steps, c and gap alone, for s ~ Exp(1)")
        return adaptive_plan(steps, c, gap)
    for name, value in {"gap": gap, "lipschitz": lipschitz}.items():
        checks.positive(name, value)
    checks.non_negative("noise", noise)
    checks.choice("constants", constants, lemmas.CONSTANTS)
    if void := law_voids(law):
        raise ValueError(f"no theorem holds: {void}")
    if constants != "sharp" and not isinstance(law, Exponential):
        raise ValueError(f"law={law!r} needs constants='sharp': the others are of Exp(1), got {constants!r}")
    given = {"c": c, "smoothness": smoothness, "second_order": second_order}
    regime = {name: value for name, value in given.items() if value is not None}
    if len(regime) != 1:
        raise ValueError(f"give exactly one of c, smoothness and second_order, got {regime or 'none'}")
    for name, value in regime.items():
        checks.positive(name, value)
        regime[name] = float(value)
    known = {"gap": float(gap), "lipschitz": float(lipschitz), "noise": float(noise)}
    price = {"c": regime.get("c", regime.get("second_order", math.nan) / 2)}
    draft = Plan(int(steps), **known, **(regime | price), constants=constants, alpha=0.5, radius=1.0, law=law)
    return lemmas.in_float64(
        lambda: _filled_in(draft),
        lambda p: 0 < (p.gradient_bound or p.bound) < math.inf and 0 < p.lr < math.inf,
        **known,
        **regime,
    )


def _filled_in(draft: Plan) -> Plan:
    """Return a plan with the theorem's α and D, and its c where the smooth regime chooses it."""
    if draft.constants == "sharp":
        return _energy_plan(draft)
    make = _paper_plan if draft.constants == "paper" else _regret_plan
    if draft.smoothness is not None:
        # c = H²/B(c): c·B(c) grows with c, and so has one solution
        log = 2 * math.log(draft.smoothness)
        at = _bisect(lambda v: v + math.log(make(replace(draft, c=math.exp(v))).bound) >= log, -100, 100)
        draft = replace(draft, c=math.exp(at))
        if not math.isclose(math.log(draft.c * make(draft).bound), log, abs_tol=1e-6):
            raise ValueError(
                f"smoothness={draft.smoothness!r} is out of range beside the other constants: "
                f"c would be {draft.c:.3g}"
            )
    return _in_range(make(draft))


def _paper_plan(p: Plan) -> Plan:
    """Return the hyperparameters of Theorem SGDM, α > ½ included."""
    a = p.lipschitz + p.noise
    alpha = max(p.steps ** (-2 / 3), p.gap ** (4 / 7) * p.c ** (2 / 7) * a ** (-6 / 7) * p.steps ** (-4 / 7))
    return replace(p, alpha=alpha, radius=p.gap / (a * math.sqrt(alpha) * p.steps))


def _regret_plan(p: Plan) -> Plan:
    """Return the α <= ½ and D with the least bound: D in closed form, α by search on ever finer grids."""

    def at(alpha: float) -> tuple[float, Plan]:
        cube = p.gap * alpha**2 / (2 * lemmas.spread_constant(1 - alpha) * p.c * p.steps)
        found = replace(p, alpha=alpha, radius=cube ** (1 / 3))
        return found.bound, found

    return lemmas.least(at, _least_alpha(p.steps))


def _energy_plan(draft: Plan) -> Plan:
    """Return the α <= ½ and lr with the least bound of the energy theorem, on ‖∇F‖_c or for smooth F on ‖∇F‖.

    With f = βF* and e as in `energy.run_energy` the bound is a√(2f/ℓ + e) + cW and noise, where W = k(2fℓ + eℓ²). Its
    derivative in ℓ vanishes where 2ck(f + eℓ)ℓ²√(2f/ℓ + e) = af, which Newton's method finds in log ℓ: there the left
    side's logarithm is convex, its slope between 3/2 and 3. For smooth F the best c makes cW + H²/(4c) = H√W, and the
    equation is H√k(f + eℓ)ℓ = af.
    """
    steps, c, gap, lipschitz, noise = draft.steps, draft.c, draft.gap, draft.lipschitz, draft.noise
    smoothness, moment = draft.smoothness, energy.second_moment(draft.law)
    y = 0.0  # log ℓ; the last one is near the next

    def at(alpha: float) -> tuple[float, tuple[float, float, float]]:
        nonlocal y
        beta, keep = 1 - alpha, alpha * (2 - alpha)
        e, f = energy.run_energy(steps, beta, lipschitz, noise, draft.law), beta * gap
        a = math.sqrt(alpha**2 * (steps - 1) / keep + 1) / steps
        constant = lemmas.spread_constant(beta, second_moment=moment)
        k = constant / (alpha**2 * keep * steps)
        if smoothness is not None:
            room = a * f / (smoothness * math.sqrt(k))
            step = 2 * room / (f + math.hypot(f, 2 * math.sqrt(e * room)))
        else:
            move = 1.0
            while abs(move) > 1e-9:
                step = math.exp(y)
                root = 2 * f / step + e
                excess = math.log(2 * c * k / a) + math.log1p(e * step / f) + 2 * y + math.log(root) / 2
                move = excess / (2 + e * step / (f + e * step) - f / (step * root))
                y -= move
        w = k * (2 * f + e * step) * step
        price = c if smoothness is None else smoothness / (2 * math.sqrt(w))
        spread = c * w if smoothness is None else smoothness * math.sqrt(w)
        remains = noise * (alpha * (steps - 1) + 1) / (steps * math.sqrt(keep))
        return a * math.sqrt(2 * f / step + e) + remains + spread, (alpha, alpha * math.sqrt(w / constant), price)

    alpha, radius, price = lemmas.least(at, _least_alpha(steps))
    return replace(draft, alpha=alpha, radius=radius, c=float(price))


def _least_alpha(steps: int) -> float:
    """Return the least α to try: for tiny c and σ α → 0 is best, but below 1e-12 1 − (1 − α) has few digits."""
    return max(min(0.1 / steps, 1e-12 + 1e-8 / steps), 1e-15)


def _in_range(p: Plan) -> Plan:
    if p.alpha <= 0.5:
        return p
    a = p.lipschitz + p.noise
    least = max(2**1.5, 2**1.75 * p.gap * math.sqrt(p.c) / a**1.5)
    raise TooFewSteps(
        f"steps={p.steps} gives alpha = {p.alpha:.4g}, and the theorem needs alpha <= 1/2: "
        f"steps >= {math.ceil(least)} is enough (or constants='sharp', which finds its own alpha)"
    )


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the point from which on ``holds``, to the last bit."""
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        low, high = (low, middle) if holds(middle) else (middle, high)


def steps_for(eps: float, c: float | None = None, **known: Any) -> int:
    """Return the least N at which the plan's bound is at most ``eps``; 0 for eps >= G, which holds everywhere.

    Args:
        eps: ε > 0, the target for E‖∇F(x̄)‖_c, or for E‖∇F(x̄)‖ when ``smoothness`` or ``second_order`` is given.
        c: as in `plan`.
        known: ``gap``, ``lipschitz`` and what else `plan` takes.

    Example:
        >>> unit = dict(c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> steps_for(0.1, **unit), steps_for(0.1, **unit, constants="paper")
        (168894, 296639413)
    """
    checks.positive("eps", eps)
    target = eps

    def enough(steps: int) -> bool:
        try:
            p: Plan = plan(steps, c, **known)
        except TooFewSteps:
            return False
        return (p.gradient_bound or p.bound) <= target

    high = 1
    if enough(high) or eps >= known["lipschitz"]:
        return int(eps < known["lipschitz"])
    constants, smoothness = known.get("constants", "sharp"), known.get("smoothness")
    if smoothness is not None and constants != "sharp":
        # c·B(c) grows with c: the plan's own c = H²/B has B <= target as soon as this c has
        target = eps / lemmas.reduction_factor(constants, smoothness)
        c, known = smoothness**2 / target, known | {"smoothness": None}
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
