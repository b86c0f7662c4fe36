"""`Plan`: hyperparameters with the bound that they have, term by term."""

import math
from dataclasses import dataclass

from torch.optim.optimizer import ParamsT

from o2nc.learners import OGD
from o2nc.optimizers.exponentiated import ExponentiatedO2NC
from o2nc.theory import lemmas


@dataclass(frozen=True)
class Plan:
    """Hyperparameters of Algorithm 2 with `OGD`, and what they guarantee.

    Attributes:
        steps: N, their number.
        c: the price of spread, given or chosen by the regime.
        gap: F* >= F(x_0) − inf F.
        lipschitz: G >= ‖∇F‖.
        noise: σ, the root mean square error of a stochastic gradient.
        constants: "sharp" or "paper".
        alpha: α = 1 − β.
        radius: D, the length of the comparator.
        smoothness: H when the smooth regime chose c, else None.
        second_order: ρ when the second-order regime chose c, else None.

    Example:
        >>> from o2nc.theory import plan
        >>> p = plan(steps=1000, c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> print(p)
        1000 steps, c = 1, sharp: beta=0.971975, lr=0.0008671, decay=18.64; E‖∇F(x̄)‖_c <= 0.6078
        >>> {name: round(value, 3) for name, value in p.terms.items()}
        {'descent': 0.137, 'start': 0.039, 'noise': 0.119, 'spread': 0.068, 'regret': 0.245}
    """

    steps: int
    c: float
    gap: float
    lipschitz: float
    noise: float
    constants: str
    alpha: float
    radius: float
    smoothness: float | None = None
    second_order: float | None = None

    @property
    def beta(self) -> float:
        """β, the discount of the losses and of the averages."""
        return 1 - self.alpha

    @property
    def lr(self) -> float:
        """η, the learner's step size."""
        if self.constants == "paper":
            return 2 * self.radius * math.sqrt(self.alpha) / (self.lipschitz + self.noise)
        return self.radius * math.sqrt(self.alpha) / math.hypot(self.lipschitz, self.noise)

    @property
    def decay(self) -> float:
        """μ, the strength of the variance regulariser."""
        return 2 * lemmas.spread_constant(self.beta, self.constants) * self.c * self.radius / self.alpha**2

    @property
    def momentum(self) -> float:
        """β̃ = β/(1 + ημ), the effective momentum."""
        return self.beta / (1 + self.lr * self.decay)

    @property
    def effective_lr(self) -> float:
        """η̃ = βη/(α + ημ), the learning rate on a momentum that is a mean (dampening = momentum)."""
        return self.beta * self.lr / (self.alpha + self.lr * self.decay)

    @property
    def terms(self) -> dict[str, float]:
        """The summands of the bound, by what they pay for."""
        return _paper_terms(self) if self.constants == "paper" else _sharp_terms(self)

    @property
    def bound(self) -> float:
        """B >= E‖∇F(x̄)‖_c for the output x̄."""
        return sum(self.terms.values())

    @property
    def gradient_bound(self) -> float | None:
        """An upper bound of E‖∇F(x̄)‖, where F is smooth of first or second order; None otherwise.

        Lemma criterion-reduction: with c = H²/B it is 2B as printed and 1.25B sharp, with c = ρ/2 it is 2B and B.
        """
        if self.smoothness is None and self.second_order is None:
            return None
        return lemmas.reduction_factor(self.constants, self.smoothness, self.second_order) * self.bound

    def __str__(self) -> str:
        what = f"beta={self.beta:.6g}, lr={self.lr:.4g}, decay={self.decay:.4g}"
        return f"{self.steps} steps, c = {self.c:.4g}, {self.constants}: {what}; E‖∇F(x̄)‖_c <= {self.bound:.4g}"

    def optimizer(self, params: ParamsT, *, seed: int = 0) -> ExponentiatedO2NC:
        """Return Algorithm 2 with these hyperparameters, ready for ``steps`` calls of ``step``.

        Args:
            params: parameters or parameter groups.
            seed: of the scalars s.

        Example:
            >>> import torch
            >>> from o2nc.theory import plan
            >>> x = torch.nn.Parameter(torch.tensor([0.5]))
            >>> p = plan(steps=1000, c=1.0, gap=0.5, lipschitz=1.0)
            >>> opt = p.optimizer([x])
            >>> for _ in range(p.steps):
            ...     opt.zero_grad()
            ...     x.abs().sum().backward()
            ...     opt.step()
            >>> opt.certificate(p.c).value < p.bound
            True
        """
        return ExponentiatedO2NC(params, OGD(lr=self.lr, decay=self.decay), beta=self.beta, seed=seed)


def _paper_terms(p: Plan) -> dict[str, float]:
    """Return the summands of Theorem SGDM's proof."""
    n, alpha, d, g, sigma = p.steps, p.alpha, p.radius, p.lipschitz, p.noise
    spread = 12 * p.c * d**2 / alpha**2
    return {
        "descent": p.gap / (d * n),
        "start": (2 * g + sigma) / (alpha * n),
        "noise": sigma * math.sqrt(alpha),
        "spread": spread,
        "regret": (1 + 2 * alpha * n) / n * (2 * (g + sigma) / math.sqrt(alpha) + spread),
    }


def _sharp_terms(p: Plan) -> dict[str, float]:
    """Return the summands that docs/paper.md proves."""
    n, alpha, d, g, sigma = p.steps, p.alpha, p.radius, p.lipschitz, p.noise
    return {
        "descent": p.gap / (d * n),
        "start": p.beta / n * (g / alpha + sigma / math.sqrt(alpha * (2 - alpha))),
        "noise": sigma * math.sqrt(alpha / (2 - alpha)),
        "spread": lemmas.spread_constant(p.beta) * p.c * d**2 / alpha**2,
        "regret": (p.beta / n + alpha) * math.hypot(g, sigma) / math.sqrt(alpha),
    }
