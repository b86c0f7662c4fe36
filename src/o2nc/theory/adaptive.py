"""The adaptive theorem: Algorithm 2 with `BallAdaGrad` needs neither G nor σ, only F*, c and N.

For every G-Lipschitz F with F(x_0) − inf F <= F* and every σ, G and σ unknown to the run (A² = G² + σ², α = 1 − β),

    E‖∇F(x̄)‖_c <= F*/(DN) + (σ + 2√2·A)(α + β/N)/√(1 − β²) + C·cD²/α²

for the output law "geometric": docs/paper.md has the proof.
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

    What `adaptive_plan` was given is kept under its own name.

    Attributes:
        alpha: α = 1 − β.
        radius: D, the longest update and the learner's lr.

    Example:
        >>> p = adaptive_plan(steps=100_000, c=1.0, gap=1.0)
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

    def bound(self, *, lipschitz: float, noise: float = 0.0) -> float:
        """Return B >= E‖∇F(x̄)‖_c for this G > 0 and σ >= 0, as they were or as they may have been."""
        checks.known(lipschitz=lipschitz, noise=noise)
        unknown = (noise + 2 * math.sqrt(2) * math.hypot(lipschitz, noise)) / math.sqrt(1 - self.beta**2)
        spread = lemmas.spread_constant(self.beta) * self.c * (self.radius / self.alpha) ** 2
        return self.gap / (self.radius * self.steps) + unknown * (self.alpha + self.beta / self.steps) + spread

    def optimizer(self, params: ParamsT, *, seed: int = 0) -> ExponentiatedO2NC:
        """Return Algorithm 2 with these hyperparameters, as `Plan.optimizer` does."""
        return ExponentiatedO2NC(params, BallAdaGrad(lr=self.radius), beta=self.beta, seed=seed, output="geometric")


def adaptive_plan(steps: int, c: float, gap: float) -> AdaptivePlan:
    """Return hyperparameters that know neither G nor σ, with the best rate for all of them, N^{−2/7}.

    ``steps``, ``c`` and ``gap`` are as in `plan`. D makes the known part of the bound least, D³ = F*α²/(2CcN), and
    α = N^{−4/7}, at most ½; docs/paper.md, "Without G and σ", says why.

    Example:
        >>> p = adaptive_plan(1000, c=1.0, gap=1.0)
        >>> f"beta={p.beta:.6g}, lr={p.radius:.4g}"
        'beta=0.980693, lr=0.005713'
    """
    checks.known(steps=steps, c=c, gap=gap)
    alpha = min(float(steps) ** (-4 / 7), 0.5)
    cube = gap / (2 * lemmas.spread_constant(1 - alpha) * c * steps)
    radius = lemmas.in_float64(lambda: (cube * alpha**2) ** (1 / 3), lambda d: 0 < d < math.inf, c=c, gap=gap)
    return AdaptivePlan(int(steps), float(c), float(gap), alpha, radius)
