"""The lower bound, on the chain behind it, where nobody is fast: its gradient shows one new coordinate at a time.

The chain of Arjevani, Carmon, Duchi, Foster, Srebro and Woodworth (*Lower bounds for non-convex stochastic
optimization*, arXiv 1912.02365) has T links, with x_0 := 1:

    F_T(x) = Σ_{i<=T} Ψ(−x_{i−1})Φ(−x_i) − Ψ(x_{i−1})Φ(x_i),
    Ψ(x) = exp(1 − 1/(2x − 1)²) for x > ½, else 0,      Φ(x) = √e ∫_{−∞}^x exp(−t²/2) dt.

F_T(0) − inf F_T <= 12T, ‖∇F_T‖_∞ <= 23, ∇F_T is 152-Lipschitz, and with prog_a(x) the last i such that |x_i| > a
‖∇F_T(x)‖ > 1 unless prog_1(x) = T, and ∂_i F_T(x) = 0 for i > prog_{1/4}(x) + 1: docs/paper.md has the reasons.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from o2nc import ExponentiatedO2NC, ScaledSGDM, theory
from o2nc.learners import OGD
from o2nc.problems.problem import differentiate
from o2nc_experiments.verify.row import Sides, enough, row


def prog(x: Tensor, level: float) -> Tensor:
    """Return the last i, counted from 1, with |x_i| > level; 0 if there is none."""
    return ((x.abs() > level) * torch.arange(1, x.shape[-1] + 1)).amax(-1)


def psi(x: Tensor) -> Tensor:
    """Return Ψ; below t = 0.03 the exponential is 0 in float64 anyway."""
    t = (2 * x - 1).clamp(min=0.03)
    return torch.exp(1 - 1 / (t * t))


def phi(x: Tensor) -> Tensor:
    """Return Φ."""
    return math.sqrt(math.pi * math.e / 2) * torch.special.erfc(-x / math.sqrt(2))


@dataclass(frozen=True)
class Chain:
    """F(x) = h·F_T(x/w), and an oracle that shows its newest link with probability p only, times 1/p.

    With h/w = 2ε, H = 152h/w², 12Th <= F* and 46ε√((1 − p)/p) = σ, ‖∇F(x)‖ > 2ε unless prog_1(x/w) = T, and the
    oracle's variance is at most σ².
    """

    links: int  # T
    height: float  # h
    width: float  # w
    probability: float  # p

    @classmethod
    def hard(cls, eps: float, gap: float, smoothness: float, noise: float) -> "Chain":
        """Return the one with the most links for these constants."""
        width = 2 * 152 * eps / smoothness
        links = math.floor(gap / (12 * 2 * eps * width))
        return cls(links, 2 * eps * width, width, 1 / (1 + (noise / (46 * eps)) ** 2))

    def value(self, x: Tensor) -> Tensor:
        """Return F over the last axis."""
        y = x / self.width
        a = torch.cat([torch.ones_like(y[..., :1]), y[..., :-1]], dim=-1)  # x_{i−1}
        # only one of Ψ(a) and Ψ(−a) is not 0: a link is −sgn(a)Ψ(|a|)Φ(sgn(a)y)
        return -self.height * (a.sign() * psi(a.abs()) * phi(a.sign() * y)).sum(-1)

    def reveal(self, x: Tensor, factor: Tensor) -> Tensor:
        """Return ∇F with the coordinates after prog_{1/4}(x/w) times ``factor``, one number for every row of x."""
        g = differentiate(self.value, x)
        new = torch.arange(1, self.links + 1) > prog(x / self.width, 0.25).unsqueeze(-1)
        return torch.where(new, g * factor.unsqueeze(-1), g)

    def sample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return one stochastic gradient for every row of x."""
        shown = torch.rand(x.shape[:-1], generator=generator, dtype=x.dtype) < self.probability
        return self.reveal(x, shown.to(x.dtype) / self.probability)

    def steps(self, delta: float) -> int:
        """Return how many queries leave prog < T with probability >= 1 − δ, whatever is done with their answers."""
        return max(0, math.floor((self.links + math.log(delta)) / (2 * self.probability)))


CHAIN, DELTA = Chain.hard(0.01, gap=30.0, smoothness=1.0, noise=1.0), 1e-4


def steps_to_the_end(optimizer: Optimizer, x: Tensor, seed: int, most: int) -> int:
    """Return after how many queries the last coordinate of the chain has moved; ``most`` if it never did."""
    generator = torch.Generator().manual_seed(seed)
    for t in range(1, most + 1):
        x.grad = CHAIN.sample(x.detach(), generator)
        optimizer.step()
        if x[-1].item() != 0:
            return t
    return most


@row("lower-bound", "no fewer than Ω(F*G²c^½ε^{−7/2}) steps")
def lower_bound(seed: int, scale: float) -> Sides:
    """Corollary lower-bound, for zero-respecting algorithms: the end of the chain is not found before `steps`."""
    right, counts = CHAIN.steps(DELTA), []
    for k in range(seed, seed + enough(3, scale)):
        x, y, z = (torch.zeros(CHAIN.links, dtype=torch.float64, requires_grad=True) for _ in range(3))
        runs: dict[Tensor, Optimizer] = {
            x: ScaledSGDM([x], lr=50.0, momentum=0.5, seed=k),
            y: ExponentiatedO2NC([y], OGD(30.0), beta=0.5, seed=k + 1),
            z: ExponentiatedO2NC([z], OGD(11.0), beta=0.9, seed=k + 2),
        }
        counts += [steps_to_the_end(optimizer, at, k, 6 * right) for at, optimizer in runs.items()]
    # H = √(cε) and σ = G, as in the proof
    few, many = (
        Chain.hard(eps, gap=1.0, smoothness=math.sqrt(1e4 * eps), noise=1.0).steps(0.5)
        / theory.lower_bound(eps, 1e4, gap=1.0, lipschitz=10.0)
        for eps in (1e-4, 1e-5)
    )
    measured = f"fewest queries of {len(counts)} runs to the end of a chain of {CHAIN.links}"
    return Sides(measured, min(counts), right, ">=", also=abs(few / many - 1) < 0.02)
