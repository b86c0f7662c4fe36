"""`plan`: from what is known of F to hyperparameters and their bound; `steps_for`: the steps that a target ε takes.

Two theorems have a bound B >= E‖∇F(x̄)‖_c. "sharp" is the energy theorem (`o2nc.theory.energy`), plain momentum, at
the α = 1 − β and the lr with the least bound. "paper" is Theorem SGDM exactly as printed, with A = G + σ:

    B = F*/(DN) + (2G + σ)/(αN) + σ√α + 12cD²/α² + ((1 + 2αN)/N)(2A/√α + 12cD²/α²)
    α = max{N^{−2/3}, F*^{4/7} c^{2/7} A^{−6/7} N^{−4/7}} <= ½,   D = F*/(A√α N),   η = 2D√α/A,   μ = 24cD/α².

Below `lower_bound` steps no algorithm gets there.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch.optim.optimizer import ParamsT

from o2nc import checks, scaling
from o2nc.learners import OGD
from o2nc.optimizers.o2nc import ExponentiatedO2NC
from o2nc.scaling import Exponential, Law
from o2nc.text import printable
from o2nc.theory import energy, lemmas
from o2nc.theory.guarantees import Guarantee, check_law

MOST = 1 << 72  # steps; with more, α is 0 in float64


class TooFewSteps(ValueError):
    """The printed α exceeds ½."""


@dataclass(frozen=True)
class Plan(Guarantee):
    """Hyperparameters of Algorithm 2 with `OGD`, and the `Guarantee` that they have.

    The price of spread ``c`` is the one given, or the regime's choice. The output is "geometric" with the sharp
    constants, and the paper's "uniform" with the printed ones. What `plan` was given is kept under its own name.

    Attributes:
        alpha: α = 1 − β.
        radius: D, the length of the comparator; sharp, the root mean square length of the updates, at most.
        lr: η, the learner's step size.
        decay: μ, the strength of the variance regulariser; the energy theorem needs none.

    Example:
        >>> from o2nc.theory import plan
        >>> p = plan(steps=1000, c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> print(p)
        1000 steps, c = 1, sharp: beta=0.974597, lr=0.0006254, decay=0; E‖∇F(x̄)‖_c <= 0.4457
        >>> {name: round(value, 3) for name, value in p.terms.items()}
        {'gap': 0.165, 'energy': 0.103, 'law': 0.0, 'noise': 0.118, 'start': 0.0, 'spread': 0.06}
    """

    gap: float
    noise: float
    constants: str
    alpha: float
    radius: float
    lr: float
    decay: float
    law: Law
    smoothness: float | None = None
    second_order: float | None = None

    @property
    def beta(self) -> float:
        """β, the discount of the losses and of the averages."""
        return 1 - self.alpha

    @property
    def momentum(self) -> float:
        """β̃ = β/(1 + ημ), the effective momentum."""
        return self.beta / (1 + self.lr * self.decay)

    @property
    def effective_lr(self) -> float:
        """η̃ = βη/(α + ημ), the learning rate on a momentum that is a mean (dampening = momentum)."""
        return self.beta * self.lr / (self.alpha + self.lr * self.decay)

    @property
    def gradient_bound(self) -> float | None:
        """An upper bound of E‖∇F(x̄)‖, where F is smooth of first or second order; None otherwise.

        Lemma criterion-reduction: with c = ρ/2 it is B, and with smoothness H it is B + H²/(4c); as printed, 2B.
        """
        if self.smoothness is None and self.second_order is None:
            return None
        if self.constants == "paper":
            return 2 * self.bound
        return self.bound + (self.smoothness or 0.0) ** 2 / (4 * self.c)

    @property
    def vacuous(self) -> bool:
        """Whether ‖∇F‖_c <= G, or ‖∇F‖ <= G where F is smooth, says as much of every point."""
        return (self.gradient_bound or self.bound) >= self.lipschitz

    def __str__(self) -> str:
        what = f"beta={self.beta:.6g}, lr={self.lr:.4g}, decay={self.decay:.4g}"
        nothing = ", no less than G" if self.vacuous else ""
        run = f"{self.steps} steps, c = {self.c:.4g}, {self.constants}: {what}"
        return printable(f"{run}; E‖∇F(x̄)‖_c <= {self.bound:.4g}{nothing}")

    def optimizer(self, params: ParamsT, *, seed: int = 0) -> ExponentiatedO2NC:
        """Return Algorithm 2 with these hyperparameters, ready for ``steps`` calls of ``step``.

        ``output()`` follows the law that the bound is for. The bound is on the certificates' mean over the run,
        weighted by that law, not on the last one. ``seed`` is that of the scalars s.

        Example:
            >>> import torch
            >>> from o2nc.theory import output_weights, plan
            >>> x = torch.nn.Parameter(torch.tensor([0.5]))
            >>> p = plan(steps=1000, c=1.0, gap=0.5, lipschitz=1.0)
            >>> opt, values = p.optimizer([x]), []
            >>> for _ in range(p.steps):
            ...     opt.zero_grad()
            ...     x.abs().sum().backward()
            ...     opt.step()
            ...     values.append(opt.certificate(p.c).value)
            >>> bool(output_weights(p.steps, p.beta) @ values < p.bound < p.lipschitz)
            True
        """
        learner = OGD(lr=self.lr, decay=self.decay)
        return ExponentiatedO2NC(params, learner, beta=self.beta, scaling=self.law, seed=seed, output=self.output)


def plan(
    steps: int,
    c: float | None = None,
    *,
    gap: float,
    lipschitz: float,
    noise: float = 0.0,
    constants: str = "sharp",
    smoothness: float | None = None,
    second_order: float | None = None,
    law: Law = Exponential(),
) -> Plan:
    """Return the theorem's hyperparameters for N steps; `adaptive_plan` needs neither G nor σ.

    Args:
        steps: N >= 1.
        c: the price of spread, > 0; leave it out to give ``smoothness`` or ``second_order``.
        gap: F* > 0, at least F(x_0) − inf F.
        lipschitz: G > 0.
        noise: σ >= 0, the root mean square error of a stochastic gradient.
        constants: "sharp" for those of the energy theorem: plain momentum, no decay. "paper" for the printed ones.
        smoothness: H > 0; chooses c = H²/ε with ε the bound itself, as the paper does for smooth F, or, sharp, the c
            with the least bound on E‖∇F(x̄)‖.
        second_order: ρ > 0; chooses c = ρ/2.
        law: the law of s; all but Exp need the sharp constants.

    Raises:
        ValueError: the printed α exceeds ½; the message names the smallest N.

    Example:
        >>> p = plan(steps=100_000, c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> f"{p.bound:.3f} at beta = {p.beta:.4f}, lr = {p.lr:.2e}, decay = {p.decay:.0f}"
        '0.116 at beta = 0.9983, lr = 5.65e-06, decay = 0'
    """
    regimes: dict[str, Any] = {"c": c, "smoothness": smoothness, "second_order": second_order}
    regime = {name: value for name, value in regimes.items() if value is not None}
    if len(regime) != 1:
        raise ValueError(f"give exactly one of c, smoothness and second_order, got {regime or 'none'}")
    known: dict[str, Any] = {"gap": gap, "lipschitz": lipschitz, "noise": noise}
    checks.known(steps=steps, **known, **regime)
    checks.choice("constants", constants, lemmas.CONSTANTS)
    check_law(law)
    if steps > MOST:
        raise ValueError(f"steps must be at most 2^72, got {steps!r}")
    if constants == "paper" and not isinstance(law, Exponential):
        raise ValueError(f"law={law!r} needs constants='sharp': those of the paper are of Exp(1)")
    known = {name: float(value) for name, value in known.items()}
    regime = {name: float(value) for name, value in regime.items()}

    def compute() -> Plan:
        price, h = regime.get("c", regime.get("second_order", math.nan) / 2), regime.get("smoothness")
        if constants == "sharp":
            found = _sharp(int(steps), price, h, law, **known) | {"decay": 0.0, "output": "geometric"}
        else:
            found = _printed(int(steps), price, h, **known) | {"output": "uniform"}
        return Plan(int(steps), constants=constants, law=law, **known, **(regime | found))

    def in_range(p: Plan) -> bool:
        return 0 < (p.gradient_bound or p.bound) < math.inf and 0 < p.lr < math.inf

    return lemmas.in_float64(compute, in_range, **known, **regime)


def _printed(
    n: int, c: float, smoothness: float | None, *, gap: float, lipschitz: float, noise: float
) -> dict[str, Any]:
    """Return the hyperparameters and the terms of Theorem SGDM."""
    a = lipschitz + noise

    def at(c: float) -> dict[str, Any]:
        alpha = max(n ** (-2 / 3), gap ** (4 / 7) * c ** (2 / 7) * a ** (-6 / 7) * n ** (-4 / 7))
        d = gap / (a * math.sqrt(alpha) * n)
        spread = lemmas.PRINTED * c * d**2 / alpha**2
        terms = {
            "descent": gap / (d * n),
            "start": (2 * lipschitz + noise) / (alpha * n),
            "noise": noise * math.sqrt(alpha),
            "spread": spread,
            "regret": (1 + 2 * alpha * n) / n * (2 * a / math.sqrt(alpha) + spread),
        }
        lr, decay = 2 * d * math.sqrt(alpha) / a, 2 * lemmas.PRINTED * c * d / alpha**2
        return {"c": c, "alpha": alpha, "radius": d, "lr": lr, "decay": decay, "terms": terms}

    if smoothness is not None:  # c = H²/B(c): c·B(c) grows with c, and so has one solution
        low, high = -700.0, 700.0  # log c
        for _ in range(64):
            middle = (low + high) / 2
            bound = sum(at(math.exp(middle))["terms"].values())
            above = middle + math.log(bound) >= 2 * math.log(smoothness)
            low, high = (low, middle) if above else (middle, high)
        c = math.exp(high)
    found = at(c)
    if found["alpha"] > 0.5:
        least = max(2**1.5, 2**1.75 * gap * math.sqrt(c) / a**1.5)
        raise TooFewSteps(
            f"steps={n} gives alpha = {found['alpha']:.4g}, and the theorem needs alpha <= 1/2: "
            f"steps >= {math.ceil(least)} is enough (or constants='sharp', which finds its own alpha)"
        )
    return found


def _sharp(
    steps: int, c: float, smoothness: float | None, law: Law, *, gap: float, lipschitz: float, noise: float
) -> dict[str, Any]:
    """Return the α <= ½ and lr with the least bound of the energy theorem, on ‖∇F‖_c or for smooth F on ‖∇F‖.

    With f = βF* and T = 2f + eℓ the bound is a√(2f/ℓ + e) + cW and noise, where W = k(2fℓ + eℓ²). Its
    derivative in ℓ vanishes where 2ck(f + eℓ)ℓ²√(2f/ℓ + e) = af, which Newton's method finds in log ℓ: there the left
    side's logarithm is convex, its slope between 3/2 and 3. For smooth F the best c makes cW + H²/(4c) = H√W, and the
    equation is H√k(f + eℓ)ℓ = af.
    """
    moment, size = energy.second_moment(law), math.hypot(lipschitz, noise)
    y = 0.0  # log ℓ; the last one is near the next

    def at(alpha: float) -> tuple[float, dict[str, Any]]:
        nonlocal y
        beta, keep = 1 - alpha, alpha * (2 - alpha)
        run, unit = energy.Run(beta, beta, law), energy.Rates.constant(1.0, beta, steps)
        e = size**2 * steps + energy.law_energy(run, unit, lipschitz, size)
        f = beta * gap
        a = math.sqrt(alpha**2 * (steps - 1) / keep + 1) / steps
        k = lemmas.spread_constant(beta, second_moment=moment) / (alpha**2 * keep * steps)
        if smoothness is None:
            move = 1.0
            while abs(move) > 1e-9:
                step = math.exp(y)
                root = 2 * f / step + e
                excess = math.log(2 * c * k / a) + math.log1p(e * step / f) + 2 * y + math.log(root) / 2
                move = excess / (2 + e * step / (f + e * step) - f / (step * root))
                y -= move
            price = c
        else:
            room = a * f / (smoothness * math.sqrt(k))
            step = 2 * room / (f + math.hypot(f, 2 * math.sqrt(e * room)))
            price = smoothness / (2 * math.sqrt(k * (2 * f + e * step) * step))
        rates, known = energy.Rates.constant(step, beta, steps), {"gap": gap, "lipschitz": lipschitz, "noise": noise}
        terms = energy.energy_terms(run, rates, "geometric", c=price, **known)
        radius, lr = math.sqrt((2 * f + e * step) * step / (keep * steps)), step / (beta * scaling.mean(law))
        found = {"c": price, "alpha": alpha, "radius": radius, "lr": lr, "terms": terms}
        return sum(terms.values()) + (smoothness or 0.0) ** 2 / (4 * price), found

    # for tiny c and σ α → 0 is best, but below 1e-12 1 − (1 − α) has few digits
    return lemmas.least(at, max(min(0.1 / steps, 1e-12 + 1e-8 / steps), 1e-15))


def steps_for(eps: float, c: float | None = None, *, lipschitz: float, **known: Any) -> int:
    """Return the least N at which the plan's bound is at most ``eps``; 0 for eps >= G, which holds everywhere.

    Args:
        eps: ε > 0, the target for E‖∇F(x̄)‖_c, or for E‖∇F(x̄)‖ when ``smoothness`` or ``second_order`` is given.
        c: as in `plan`.
        lipschitz: G > 0.
        known: ``gap`` and what else `plan` takes.

    Example:
        >>> unit = dict(c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> steps_for(0.1, **unit), steps_for(0.1, **unit, constants="paper")
        (168894, 296639413)
    """
    checks.positive("eps", eps)

    def enough(steps: int) -> bool:
        try:
            p = plan(steps, c, lipschitz=lipschitz, **known)
        except TooFewSteps:
            return False
        return (p.gradient_bound or p.bound) <= eps

    if enough(1) or eps >= lipschitz:
        return int(eps < lipschitz)
    low, high = 1, 2
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST:
            raise ValueError(f"eps={eps!r} needs more than 2^72 steps with these constants")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def lower_bound(eps: float, c: float, *, gap: float, lipschitz: float) -> float:
    """Return F*·G²·c^½·ε^{−7/2}: up to a universal constant, left at 1 here, no algorithm needs fewer steps.

    Corollary lower-bound, for stochastic gradients with E‖g‖² <= 2G². ``o2nc paper verify`` has a constant for it.

    Args:
        eps, c, gap: as in `steps_for`.
        lipschitz: G >= √F*·(cε)^¼; the corollary does not speak of smaller ones.

    Example:
        >>> f"{lower_bound(0.1, 1.0, gap=1.0, lipschitz=1.0):.0f}"
        '3162'
    """
    checks.known(eps=eps, c=c, gap=gap)
    least = math.sqrt(gap) * (c * eps) ** 0.25
    allowed = f"a finite number >= sqrt(gap)*(c*eps)^(1/4) = {least:.6g}, where the lower bound is proved"
    checks.number("lipschitz", lipschitz, allowed, lambda v: v >= least)
    known = {"eps": eps, "c": c, "gap": gap, "lipschitz": lipschitz}
    return lemmas.in_float64(lambda: gap * lipschitz**2 * math.sqrt(c) * eps**-3.5, math.isfinite, **known)
