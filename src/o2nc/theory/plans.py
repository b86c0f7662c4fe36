"""`Plan`: hyperparameters with the bound that they have, term by term."""

import math
from dataclasses import dataclass

from torch.optim.optimizer import ParamsT

from o2nc import scaling
from o2nc.learners import OGD
from o2nc.optimizers.o2nc import ExponentiatedO2NC
from o2nc.scaling import Exponential, Law
from o2nc.text import printable
from o2nc.theory import energy, lemmas

_EXPONENTIAL = Exponential()


@dataclass(frozen=True)
class Plan:
    """Hyperparameters of Algorithm 2 with `OGD`, and what they guarantee.

    Attributes:
        steps: N, their number.
        c: the price of spread, given or chosen by the regime.
        gap: F* >= F(x_0) − inf F.
        lipschitz: G >= ‖∇F‖.
        noise: σ, the root mean square error of a stochastic gradient.
        constants: "sharp" (the energy theorem), "regret" or "paper".
        alpha: α = 1 − β.
        radius: D, the length of the comparator; sharp, the root mean square length of the updates, at most.
        smoothness: H when the smooth regime chose c, else None.
        second_order: ρ when the second-order regime chose c, else None.
        law: the law of s.

    Example:
        >>> from o2nc.theory import plan
        >>> p = plan(steps=1000, c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> print(p)
        1000 steps, c = 1, sharp: beta=0.974597, lr=0.0006254, decay=0; E‖∇F(x̄)‖_c <= 0.4457
        >>> {name: round(value, 3) for name, value in p.terms.items()}
        {'gap': 0.165, 'energy': 0.103, 'law': 0.0, 'noise': 0.118, 'start': 0.0, 'spread': 0.06}
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
    law: Law = _EXPONENTIAL

    @property
    def beta(self) -> float:
        """β, the discount of the losses and of the averages."""
        return 1 - self.alpha

    @property
    def lr(self) -> float:
        """η, the learner's step size."""
        size = math.hypot(self.lipschitz, self.noise)
        if self.constants == "paper":
            return 2 * self.radius * math.sqrt(self.alpha) / (self.lipschitz + self.noise)
        if self.constants == "regret":
            return self.radius * math.sqrt(self.alpha) / size
        # ℓ = βη·E s, with which momentum's energy allows for updates of mean square D²: Eℓ² + 2βF*ℓ = D²(1 − β²)N
        room = self.radius**2 * self.alpha * (2 - self.alpha) * self.steps
        half = self.beta * self.gap
        total = energy.run_energy(self.steps, self.beta, self.lipschitz, self.noise, self.law)
        step = room / (half + math.hypot(half, math.sqrt(total * room)))
        return step / (self.beta * scaling.mean(self.law))

    @property
    def decay(self) -> float:
        """μ, the strength of the variance regulariser; the energy theorem needs none."""
        if self.constants == "sharp":
            return 0.0
        return 2 * lemmas.spread_constant(self.beta, self.constants) * self.c * self.radius / self.alpha**2

    @property
    def output(self) -> str:
        """The law of the output x̄ that the bound is for: "geometric" if sharp, else the paper's "uniform"."""
        return "geometric" if self.constants == "sharp" else "uniform"

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
        if self.constants == "sharp":
            return _energy_terms(self)
        return _paper_terms(self) if self.constants == "paper" else _regret_terms(self)

    @property
    def bound(self) -> float:
        """B >= E‖∇F(x̄)‖_c for the output x̄, drawn by the law ``output``."""
        return sum(self.terms.values())

    @property
    def vacuous(self) -> bool:
        """Whether ‖∇F‖_c <= G, or ‖∇F‖ <= G where F is smooth, says as much of every point."""
        return (self.gradient_bound or self.bound) >= self.lipschitz

    @property
    def gradient_bound(self) -> float | None:
        """An upper bound of E‖∇F(x̄)‖, where F is smooth of first or second order; None otherwise.

        Lemma criterion-reduction: with c = ρ/2 it is 2B as printed, else B; with c = H²/B it is 2B as printed and
        1.25B with "regret"; sharp, it is B + H²/(4c) at the c that makes it least.
        """
        if self.smoothness is not None and self.constants == "sharp":
            return self.bound + self.smoothness**2 / (4 * self.c)
        if self.smoothness is None and self.second_order is None:
            return None
        return lemmas.reduction_factor(self.constants, self.smoothness) * self.bound

    def __str__(self) -> str:
        what = f"beta={self.beta:.6g}, lr={self.lr:.4g}, decay={self.decay:.4g}"
        nothing = ", no less than G" if self.vacuous else ""
        run = f"{self.steps} steps, c = {self.c:.4g}, {self.constants}: {what}"
        return printable(f"{run}; E‖∇F(x̄)‖_c <= {self.bound:.4g}{nothing}")

    def optimizer(self, params: ParamsT, *, seed: int = 0) -> ExponentiatedO2NC:
        """Return Algorithm 2 with these hyperparameters, ready for ``steps`` calls of ``step``.

        ``output()`` follows the law that the bound is for. The bound is on the certificates' mean over the run,
        weighted by that law, not on the last one.

        Args:
            params: parameters or parameter groups.
            seed: of the scalars s.

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
            >>> bool(output_weights(p.steps, p.beta, p.output) @ values < p.bound < p.lipschitz)
            True
        """
        learner = OGD(lr=self.lr, decay=self.decay)
        return ExponentiatedO2NC(params, learner, beta=self.beta, scaling=self.law, seed=seed, output=self.output)


def _energy_terms(p: Plan) -> dict[str, float]:
    """Return the summands of the energy theorem."""
    rates = energy.Rates.constant(p.lr * p.beta * scaling.mean(p.law), p.beta, p.steps)
    run = energy.Run(p.steps, rates, p.beta, p.beta, 0.0, p.law, p.output)
    return energy.energy_terms(run, c=p.c, gap=p.gap, lipschitz=p.lipschitz, noise=p.noise)


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


def _regret_terms(p: Plan) -> dict[str, float]:
    """Return the summands that docs/paper.md proves from the regret."""
    n, alpha, d, g, sigma = p.steps, p.alpha, p.radius, p.lipschitz, p.noise
    return {
        "descent": p.gap / (d * n),
        "start": p.beta / n * (g / alpha + sigma / math.sqrt(alpha * (2 - alpha))),
        "noise": sigma * math.sqrt(alpha / (2 - alpha)),
        "spread": lemmas.spread_constant(p.beta) * p.c * d**2 / alpha**2,
        "regret": (p.beta / n + alpha) * math.hypot(g, sigma) / math.sqrt(alpha),
    }
