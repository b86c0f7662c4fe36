"""The chain behind the lower bounds: a smooth function whose gradient shows one new coordinate at a time.

The chain of Arjevani, Carmon, Duchi, Foster, Srebro and Woodworth (*Lower bounds for non-convex stochastic
optimization*, arXiv 1912.02365) has T links, with x_0 := 1:

    F_T(x) = Σ_{i<=T} Ψ(−x_{i−1})Φ(−x_i) − Ψ(x_{i−1})Φ(x_i),
    Ψ(x) = exp(1 − 1/(2x − 1)²) for x > ½, else 0,      Φ(x) = √e ∫_{−∞}^x exp(−t²/2) dt.

With prog_a(x) the last i such that |x_i| > a (0 if there is none):

* F_T(0) − inf F_T <= 12T. Indeed Ψ < e and Φ < √(2πe) < 4.14, so each link is >= −11.3; and F_T(0) < 0.
* ‖∇F_T‖_∞ <= 23, as |∂_i| <= Ψ'Φ + ΨΦ' with Ψ' < 4.46 and Φ' <= √e: 18.43 + 4.49.
* ∇F_T is 152-Lipschitz: ∇²F_T is tridiagonal, with |Ψ''|Φ + Ψ|Φ''| <= 134 + 2.72 on the diagonal (|Ψ''| < 32.4,
  |Φ''| <= 1) and Ψ'Φ' <= 7.36 beside it, twice. (The maxima of Ψ' and Ψ'' are computed.)
* **‖∇F_T(x)‖ > 1 unless prog_1(x) = T**: for i = prog_1(x) + 1 both terms of ∂_i are <= 0, and the first is
  −Ψ(|x_{i−1}|)Φ'(x_i) <= −Ψ(1)Φ'(1) = −1.
* ∂_i F_T(x) = 0 for i > prog_{1/4}(x) + 1, as then Ψ(±x_{i−1}) = Ψ'(±x_i) = 0.

Its oracle multiplies the one coordinate that is new, i = prog_{1/4}(x) + 1, by z/p with z ~ Bernoulli(p): unbiased,
with variance (∂_iF)²(1 − p)/p, and it reveals a new coordinate with probability p only. It takes T/p queries to see
them all, and until then the gradient is large.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from o2nc import checks
from o2nc.problems.problem import Oracle, Problem

# of F_T: the gap per link, max ‖∇‖_∞, the Lipschitz constant of ∇
GAP, SLOPE, CURVATURE = 12.0, 23.0, 152.0


def prog(x: Tensor, level: float) -> Tensor:
    """Return the last i, counted from 1, with |x_i| > level; 0 if there is none."""
    return ((x.abs() > level) * torch.arange(1, x.shape[-1] + 1, device=x.device)).amax(-1)


def _psi(x: Tensor) -> Tensor:
    """Return Ψ; below t = 0.03 the exponential is 0 in float64 anyway."""
    t = (2 * x - 1).clamp(min=0.03)
    return torch.exp(1 - 1 / (t * t))


def _phi(x: Tensor) -> Tensor:
    return math.sqrt(math.pi * math.e / 2) * torch.special.erfc(-x / math.sqrt(2))


@dataclass(frozen=True)
class Chain(Problem):
    """F(x) = h·F_T(x/w): G = 23√T·h/w, F* = 12Th, H = 152h/w²; ‖∇F(x)‖ > h/w unless prog_1(x/w) = T.

    The start is 0. Searches find ‖∇F‖ up to 0.68G, a gap of 0.9F* for long chains and curvature up to 0.87H.

    Args:
        dimension: T >= 1, the number of links.
        height: h > 0.
        width: w > 0.

    Example:
        >>> chain = Chain(dimension=5)
        >>> chain.gradient(chain.start())  # the first link only
        tensor([-1.6487,  0.0000,  0.0000,  0.0000,  0.0000], dtype=torch.float64)
    """

    dimension: int
    height: float = 1.0
    width: float = 1.0

    @property
    def lipschitz(self) -> float:
        """G = 23√T·h/w."""
        return SLOPE * math.sqrt(self.dimension) * self.height / self.width

    @property
    def gap(self) -> float:
        """F* = 12Th."""
        return GAP * self.dimension * self.height

    @property
    def smoothness(self) -> float:
        """H = 152h/w²."""
        return CURVATURE * self.height / self.width**2

    def start(self) -> Tensor:
        """Return 0."""
        return torch.zeros(self.dimension, dtype=torch.float64)

    def _value(self, x: Tensor) -> Tensor:
        y = x / self.width
        a = torch.cat([torch.ones_like(y[..., :1]), y[..., :-1]], dim=-1)  # x_{i−1}
        # only one of Ψ(a) and Ψ(−a) is not 0: a link is −sgn(a)Ψ(|a|)Φ(sgn(a)y)
        return -self.height * (a.sign() * _psi(a.abs()) * _phi(a.sign() * y)).sum(-1)

    def reveal(self, x: Tensor, factor: Tensor) -> Tensor:
        """Return ∇F with the coordinates after prog_{1/4}(x/w) times ``factor``, one number for every row of x."""
        g = self.gradient(x)
        new = torch.arange(1, self.dimension + 1, device=x.device) > prog(x / self.width, 0.25).unsqueeze(-1)
        return torch.where(new, g * factor.unsqueeze(-1), g)


@dataclass(frozen=True)
class ZeroChainOracle(Oracle):
    """∇F with the derivative of the newest link times z/p, z ~ Bernoulli(p), one z for every query.

    Args:
        problem: a `Chain`.
        probability: p in (0, 1].

    Example:
        >>> oracle = ZeroChainOracle(Chain(5), probability=0.25)
        >>> x = torch.zeros(1000, 5, dtype=torch.float64)
        >>> shown = oracle.sample(x, torch.Generator().manual_seed(0))[:, 0] != 0
        >>> f"{shown.double().mean().item():.2f}"
        '0.25'
    """

    kind: ClassVar[type[Problem]] = Chain
    problem: Chain
    probability: float

    @property
    def noise(self) -> float:
        """σ = 23(h/w)√((1 − p)/p): one coordinate is random, and its derivative is at most 23h/w."""
        return SLOPE * self.problem.height / self.problem.width * math.sqrt(1 / self.probability - 1)

    def steps(self, delta: float = 0.5) -> int:
        """Return ⌊(T − log(1/δ))/(2p)⌋: so many queries leave prog < T with probability >= 1 − δ.

        This is said of algorithms that start at 0 and are zero-respecting: x_i stays 0 until some sampled gradient
        has had a coordinate i that is not 0. Then prog_0 grows by at most one per query, and only if z = 1 in it:
        after k queries it is at most S_k, a sum of k Bernoulli(p), whatever the algorithm chose. By Chernoff,

            P(S_k >= T) <= e^{−T} E e^{S_k} = e^{−T}(1 + (e − 1)p)^k <= e^{(e − 1)pk − T} <= e^{2pk − T} <= δ,

        the last for 2pk <= T − log(1/δ). (The constant 2 may be e − 1 = 1.72.)
        """
        checks.known(delta=delta)
        return max(0, math.floor((self.problem.dimension + math.log(delta)) / (2 * self.probability)))

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""
        z = torch.rand(x.shape[:-1], generator=generator, dtype=x.dtype, device=x.device) < self.probability
        return self.problem.reveal(x, z.to(x.dtype) / self.probability)


def hard_instance(eps: float, *, gap: float, smoothness: float, noise: float) -> ZeroChainOracle:
    """Return a problem with the given constants on which ε-stationarity takes Ω(F*Hσ²/ε⁴) queries.

    With h/w = 2ε, ‖∇F(x)‖ > 2ε unless prog_1(x/w) = T. Then H = 152h/w² gives w = 304ε/H, h = 608ε²/H, and
    12Th <= F* gives T = ⌊F*H/(12·152·(2ε)²)⌋; 46ε√((1 − p)/p) = σ gives p = 1/(1 + (σ/46ε)²). Before
    ``steps(½)`` = (T − log 2)/2p queries, E‖∇F‖ > 2ε·½ = ε at every zero-respecting iterate. F is Lipschitz too, with
    G = 23·2ε√T <= 0.54√(F*H).

    Args:
        eps: ε > 0.
        gap: F* > 0.
        smoothness: H > 0.
        noise: σ >= 0.

    Example:
        >>> oracle = hard_instance(0.01, gap=10.0, smoothness=1.0, noise=1.0)
        >>> oracle.problem.dimension, round(oracle.problem.smoothness, 9), round(oracle.noise, 9)
        (13, 1.0, 1.0)
        >>> oracle.steps(0.5)
        35
    """
    checks.known(eps=eps, gap=gap, smoothness=smoothness, noise=noise)
    room = gap * smoothness / (4 * GAP * CURVATURE)  # T·ε²
    length = math.floor(room / eps**2)
    if length < 2:
        raise ValueError(
            f"eps must be at most {math.sqrt(room / 2):.4g} for a chain of 2 links, got {eps!r}: "
            f"decrease eps, or increase gap ({gap!r}) or smoothness ({smoothness!r})"
        )
    width = 2 * CURVATURE * eps / smoothness
    return ZeroChainOracle(Chain(length, 2 * eps * width, width), 1 / (1 + (noise / (2 * SLOPE * eps)) ** 2))
