"""`plan`: from what is known of F to the hyperparameters; `bound`: the bound alone."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import overload

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
    _check_steps(steps)
    if lipschitz is None:
        if c is None or noise or constants != "sharp" or law != Exponential():
            raise ValueError("a plan without lipschitz knows steps, c and gap alone, for s ~ Exp(1)")
        return adaptive_plan(steps, c, gap)
    check_constants(gap, lipschitz, noise, constants, law)
    check_regime(c, smoothness, second_order)
    known = {"gap": float(gap), "lipschitz": float(lipschitz), "noise": float(noise)}
    regime = {"c": c, "smoothness": smoothness, "second_order": second_order}
    make = partial(_plan, int(steps), c, smoothness, second_order, constants, law, **known)
    return lemmas.in_float64(
        make, lambda p: 0 < (p.gradient_bound or p.bound) < math.inf and 0 < p.lr < math.inf, **known, **regime
    )


def _plan(
    steps: int,
    c: float | None,
    smoothness: float | None,
    second_order: float | None,
    constants: str,
    law: Law,
    **known: float,
) -> Plan:
    if constants == "sharp":
        return _energy_plan(steps, c, **known, smoothness=smoothness, second_order=second_order, law=law)
    planner: Callable[..., Plan] = _paper_plan if constants == "paper" else _regret_plan
    make = partial(planner, steps, **known)
    if second_order is not None:
        return replace(_in_range(make(second_order / 2)), second_order=float(second_order))
    if smoothness is not None:
        # c = H²/B(c): c·B(c) grows with c, and so has one solution
        c = math.exp(_bisect(lambda v: v + math.log(make(math.exp(v)).bound) >= 2 * math.log(smoothness), -100, 100))
        p = make(c)
        if not math.isclose(math.log(c * p.bound), 2 * math.log(smoothness), abs_tol=1e-6):
            raise ValueError(
                f"smoothness={smoothness!r} is out of range beside the other constants: c would be {c:.3g}"
            )
        return replace(_in_range(p), smoothness=float(smoothness))
    return _in_range(make(float(c)))  # type: ignore[arg-type]


def bound(
    steps: int,
    c: float,
    *,
    gap: float,
    lipschitz: float,
    noise: float = 0.0,
    constants: str = "sharp",
    alpha: float | None = None,
    radius: float | None = None,
    law: Law = Exponential(),
) -> float:
    """Return B, the bound on E‖∇F(x̄)‖_c after N steps.

    Args:
        steps: N >= 1.
        c: the price of spread, > 0.
        gap: F* > 0.
        lipschitz: G > 0.
        noise: σ >= 0.
        constants: "sharp", "regret" or "paper".
        alpha: α in (0, ½], for hyperparameters other than the plan's; then ``radius`` is needed too. For any
            learning rate and momentum there is `guarantee`.
        radius: D > 0.
        law: the law of s.

    Example:
        >>> b = bound(10**6, 1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> p = bound(10**6, 1.0, gap=1.0, lipschitz=1.0, noise=1.0, constants="paper")
        >>> f"{b:.4f} against {p:.4f} as printed"
        '0.0600 against 0.5171 as printed'
    """
    if (alpha is None) != (radius is None):
        raise ValueError(f"alpha and radius go together, got alpha={alpha!r} and radius={radius!r}")
    if alpha is None or radius is None:
        return plan(steps, c, gap=gap, lipschitz=lipschitz, noise=noise, constants=constants, law=law).bound
    _check_steps(steps)
    checks.positive("c", c)
    check_constants(gap, lipschitz, noise, constants, law)
    checks.number("alpha", alpha, "a number in [1e-15, 0.5]", lambda v: 1e-15 <= v <= 0.5)
    checks.positive("radius", radius)
    return Plan(steps, c, gap, lipschitz, noise, constants, alpha, radius, law=law).bound


def _paper_plan(steps: int, c: float, *, gap: float, lipschitz: float, noise: float) -> Plan:
    """Return the hyperparameters of Theorem SGDM, α > ½ included."""
    a = lipschitz + noise
    alpha = max(steps ** (-2 / 3), gap ** (4 / 7) * c ** (2 / 7) * a ** (-6 / 7) * steps ** (-4 / 7))
    radius = gap / (a * math.sqrt(alpha) * steps)
    return Plan(steps, c, gap, lipschitz, noise, "paper", alpha, radius)


def _regret_plan(steps: int, c: float, *, gap: float, lipschitz: float, noise: float) -> Plan:
    """Return the α <= ½ and D with the least bound: D in closed form, α by search on ever finer grids."""

    def radius(alpha: float) -> float:
        return (gap * alpha**2 / (2 * lemmas.spread_constant(1 - alpha) * c * steps)) ** (1 / 3)

    def at(alpha: float) -> tuple[float, Plan]:
        p = Plan(steps, c, gap, lipschitz, noise, "regret", alpha, radius(alpha))
        return p.bound, p

    return lemmas.least(at, _least_alpha(steps))


def _energy_plan(
    steps: int,
    c: float | None,
    *,
    gap: float,
    lipschitz: float,
    noise: float,
    smoothness: float | None,
    second_order: float | None,
    law: Law,
) -> Plan:
    """Return the α <= ½ and lr with the least bound of the energy theorem, on ‖∇F‖_c or for smooth F on ‖∇F‖.

    With f = βF* and e as in `energy.run_energy` the bound is a√(2f/ℓ + e) + cW and noise, where W = k(2fℓ + eℓ²). Its
    derivative in ℓ vanishes where 2ck(f + eℓ)ℓ²√(2f/ℓ + e) = af, which Newton's method finds in log ℓ: there the left
    side's logarithm is convex, its slope between 3/2 and 3. For smooth F the best c makes cW + H²/(4c) = H√W, and the
    equation is H√k(f + eℓ)ℓ = af.
    """
    moment = energy.second_moment(law)
    if second_order is not None:
        c = second_order / 2
    y = 0.0  # log ℓ; the last one is near the next

    def at(alpha: float) -> tuple[float, tuple[float, float, float]]:
        nonlocal y
        beta, keep = 1 - alpha, alpha * (2 - alpha)
        e, f = energy.run_energy(steps, beta, lipschitz, noise, law), beta * gap
        a = math.sqrt(alpha**2 * (steps - 1) / keep + 1) / steps
        constant = lemmas.spread_constant(beta, second_moment=moment)
        k = constant / (alpha**2 * keep * steps)
        if smoothness is not None:
            room = a * f / (smoothness * math.sqrt(k))
            step = 2 * room / (f + math.hypot(f, 2 * math.sqrt(e * room)))
        else:
            assert c is not None
            move = 1.0
            while abs(move) > 1e-9:
                step = math.exp(y)
                root = 2 * f / step + e
                excess = math.log(2 * c * k / a) + math.log1p(e * step / f) + 2 * y + math.log(root) / 2
                move = excess / (2 + e * step / (f + e * step) - f / (step * root))
                y -= move
        w = k * (2 * f + e * step) * step
        price, spread = (c, c * w) if c is not None else (smoothness / (2 * math.sqrt(w)), smoothness * math.sqrt(w))  # type: ignore[operator]
        remains = noise * (alpha * (steps - 1) + 1) / (steps * math.sqrt(keep))
        return a * math.sqrt(2 * f / step + e) + remains + spread, (alpha, alpha * math.sqrt(w / constant), price)

    alpha, radius, price = lemmas.least(at, _least_alpha(steps))
    smooth, order = (None if value is None else float(value) for value in (smoothness, second_order))
    return Plan(steps, float(price), gap, lipschitz, noise, "sharp", alpha, radius, smooth, order, law)


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


def _check_steps(steps: int) -> None:
    checks.integer("steps", steps, 1)
    if steps > MOST:
        raise ValueError(f"steps must be at most 2^72, got {steps!r}")


def check_constants(gap: float, lipschitz: float, noise: float, constants: str, law: object) -> None:
    """Raise if a constant of F or of its gradients is impossible, or if a law has no theorem."""
    checks.positive("gap", gap)
    checks.positive("lipschitz", lipschitz)
    checks.non_negative("noise", noise)
    checks.choice("constants", constants, lemmas.CONSTANTS)
    if void := law_voids(law):
        raise ValueError(f"no theorem holds: {void}")
    if constants != "sharp" and not isinstance(law, Exponential):
        raise ValueError(f"law={law!r} needs constants='sharp': the others are of Exp(1), got {constants!r}")


def check_regime(c: float | None, smoothness: float | None, second_order: float | None) -> None:
    """Raise unless exactly one of the three that choose c is given."""
    given = {"c": c, "smoothness": smoothness, "second_order": second_order}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise ValueError(f"give exactly one of c, smoothness and second_order, got {named or 'none'}")
    for name, value in named.items():
        checks.positive(name, value)


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the point from which on ``holds``, to the last bit."""
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        low, high = (low, middle) if holds(middle) else (middle, high)
