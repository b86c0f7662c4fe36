"""The adaptive theorem: Algorithm 2 with `BallAdaGrad` needs neither G nor σ, only F*, c and N.

For every G-Lipschitz F with F(x_0) − inf F <= F* and every σ, G and σ unknown to the run (A² = G² + σ², α = 1 − β),

    E‖∇F(x̄)‖_c <= F*/(DN) + (σ + 2√2·A)(α + β/N)/√(1 − β²) + C·cD²/α²,

x̄ = x̄_n with n = min(t + Geometric, N), t uniform: docs/paper.md has the proof. A uniform n costs βG/(αN) more.
"""

import math
from dataclasses import dataclass

from torch.optim.optimizer import ParamsT

from o2nc import checks
from o2nc.learners import BallAdaGrad
from o2nc.optimizers.o2nc import ExponentiatedO2NC
from o2nc.theory import lemmas


@dataclass(frozen=True)
class AdaptivePlan:
    """Hyperparameters of Algorithm 2 with `BallAdaGrad`, and what they guarantee once G and σ are named.

    Attributes:
        steps: N, their number.
        c: the price of spread.
        gap: F* >= F(x_0) − inf F.
        alpha: α = 1 − β.
        radius: D, the longest update.

    Example:
        >>> p = adaptive_plan(steps=100_000, c=1.0, gap=1.0)
        >>> print(p)
        100000 steps, c = 1, adaptive: beta=0.998611, lr=0.0002129
        >>> [round(p.bound(lipschitz=g, noise=1.0), 3) for g in (0.1, 1.0, 10.0)]
        [0.172, 0.203, 0.852]
    """

    steps: int
    c: float
    gap: float
    alpha: float
    radius: float

    @property
    def beta(self) -> float:
        """β, the discount of the losses and of the averages."""
        return 1 - self.alpha

    @property
    def lr(self) -> float:
        """D, which is the learner's lr."""
        return self.radius

    @property
    def _share(self) -> float:
        """(α + β/N)/√(1 − β²), what the averages leave of the noise and of the regret."""
        return (self.alpha + self.beta / self.steps) / math.sqrt(1 - self.beta**2)

    def terms(self, *, lipschitz: float, noise: float = 0.0, output: str = "geometric") -> dict[str, float]:
        """Return the summands of the bound, by what they pay for; ``descent`` and ``spread`` are known beforehand."""
        checks.known(lipschitz=lipschitz, noise=noise)
        checks.choice("output", output, lemmas.OUTPUTS)
        found = {
            "descent": self.gap / (self.radius * self.steps),
            "noise": noise * self._share,
            "spread": lemmas.spread_constant(self.beta) * self.c * (self.radius / self.alpha) ** 2,
            "regret": 2 * math.sqrt(2) * math.hypot(lipschitz, noise) * self._share,
        }
        start = self.beta * lipschitz / (self.alpha * self.steps)
        return found if output == "geometric" else found | {"start": start}

    def bound(self, *, lipschitz: float, noise: float = 0.0, output: str = "geometric") -> float:
        """Return B >= E‖∇F(x̄)‖_c for this G and σ, as they were or as they may have been.

        Args:
            lipschitz: G > 0.
            noise: σ >= 0.
            output: the law of n in x̄ = x̄_n, "geometric" or "uniform".
        """
        return sum(self.terms(lipschitz=lipschitz, noise=noise, output=output).values())

    def probable_bound(self, failure: float, *, lipschitz: float, noise: float = 0.0) -> float:
        """Return a bound on the run's mean of ‖∇F(x̄_n)‖_c, by the geometric law, that fails with probability p.

        With Λ = log(4/p) it has G(√(2Λ/N) + (16/3)Λ/N) + σ√(2Λ/N) beside the adaptive theorem's terms, and logarithms
        in the others: docs/paper.md has the proof.

        Args:
            failure: p in (0, 1).
            lipschitz: G > 0.
            noise: a σ that no gradient's error exceeds, ‖g − ∇F‖ <= σ.

        Example:
            >>> p = adaptive_plan(steps=10**9, c=1.0, gap=1.0)
            >>> f"{p.bound(lipschitz=1.0):.3f} in the mean, {p.probable_bound(0.01, lipschitz=1.0):.3f} with 99 %"
            '0.010 in the mean, 0.393 with 99 %'
        """
        checks.known(failure=failure)
        log = math.log(4 / failure)
        known = self.terms(lipschitz=lipschitz, noise=noise)
        longest = 2 * math.sqrt(2) * (lipschitz + noise) + 2 * noise * math.sqrt(math.log(12 / failure))
        spread = 4 * self.c * (self.radius / self.alpha * math.log(4 * (math.e + 2) / failure)) ** 2
        martingale = (lipschitz + noise) * math.sqrt(2 * log / self.steps) + 16 / 3 * lipschitz * log / self.steps
        return known["descent"] + martingale + self._share * longest + spread

    def price_of_the_gap(self, largest: float, wealth: float) -> float:
        """Return what a learner pays for learning D instead of knowing the gap: add it to `bound`.

        Δ_t = z_t u_t, with u_t in the unit ball by `BallAdaGrad` and z_t in [0, Z] by a bettor of regret R_N on the
        losses z⟨g_t, u_t⟩ + (2cC/3α²)z³, has for every D <= Z at once the adaptive bound and R_N(D)/(DN), where
        R_N(D) <= ε_0 + 2ḠD√((N + 1)·log(1 + 4(N + 1)²Ḡ²D²/ε_0²)) for coin betting (`CoinBetting` with β = 1).

        Args:
            largest: Ḡ, with ‖g‖ <= Ḡ always; Z² = Ḡα²/(2cC), at least D².
            wealth: ε_0 > 0, the bettor's.

        Example:
            >>> p = adaptive_plan(steps=10**9, c=1.0, gap=1.0)
            >>> f"{p.price_of_the_gap(largest=1.0, wealth=1.0):.4f} beside {p.bound(lipschitz=1.0):.4f}"
            '0.0036 beside 0.0104'
        """
        checks.known(largest=largest, wealth=wealth)
        room = math.sqrt(largest / (2 * self.c * lemmas.spread_constant(self.beta))) * self.alpha
        if self.radius > room:
            raise ValueError(f"largest={largest!r} is too small here: Z = {room:.4g} < D = {self.radius:.4g}")
        bets = 2 * largest * self.radius * (self.steps + 1)
        regret = wealth + bets / math.sqrt(self.steps + 1) * math.sqrt(math.log1p((bets / wealth) ** 2))
        return regret / (self.radius * self.steps)

    def __str__(self) -> str:
        return f"{self.steps} steps, c = {self.c:.4g}, adaptive: beta={self.beta:.6g}, lr={self.lr:.4g}"

    def optimizer(self, params: ParamsT, *, seed: int = 0) -> ExponentiatedO2NC:
        """Return Algorithm 2 with these hyperparameters, ready for ``steps`` calls of ``step``.

        Args:
            params: parameters or parameter groups.
            seed: of the scalars s.

        Example:
            Nothing is said of how steep F is.

            >>> import torch
            >>> x = torch.nn.Parameter(torch.tensor([0.5]))
            >>> p = adaptive_plan(steps=200, c=1.0, gap=0.5)
            >>> opt, total = p.optimizer([x]), 0.0
            >>> for _ in range(p.steps):
            ...     opt.zero_grad()
            ...     x.abs().sum().backward()
            ...     opt.step()
            ...     total += opt.certificate(p.c).value
            >>> total / p.steps < p.bound(lipschitz=1.0, output="uniform")
            True
        """
        return ExponentiatedO2NC(params, BallAdaGrad(lr=self.lr), beta=self.beta, seed=seed, output="geometric")


def adaptive_plan(steps: int, c: float, gap: float) -> AdaptivePlan:
    """Return hyperparameters that know neither G nor σ, with the best rate for all of them, N^{−2/7}.

    D makes the known part of the bound least, D³ = F*α²/(2CcN). That part falls with α and the other grows, at a rate
    that depends on A. The best α is proportional to A^{−6/7}; where A = (F*²c)^{1/3}, the one scale of gradients that
    F* and c have, it is 1.22·N^{−4/7} for σ = 0. So α = N^{−4/7} is taken, at most ½.

    Args:
        steps: N >= 1.
        c: the price of spread, > 0.
        gap: F* > 0, at least F(x_0) − inf F.

    Example:
        >>> p = adaptive_plan(1000, c=1.0, gap=1.0)
        >>> {name: round(value, 3) for name, value in p.terms(lipschitz=1.0).items()}
        {'descent': 0.175, 'noise': 0.0, 'spread': 0.088, 'regret': 0.293}
    """
    checks.known(steps=steps, c=c, gap=gap)
    alpha = min(float(steps) ** (-4 / 7), 0.5)
    cube = gap / (2 * lemmas.spread_constant(1 - alpha) * c * steps)
    radius = lemmas.in_float64(lambda: (cube * alpha**2) ** (1 / 3), lambda d: 0 < d < math.inf, c=c, gap=gap)
    return AdaptivePlan(int(steps), float(c), float(gap), alpha, radius)
