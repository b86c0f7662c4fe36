"""The hard instance of Arjevani et al. (arXiv 1912.02365): a chain of links that a noisy oracle reveals rarely.

The oracle multiplies the one coordinate that is new, i = prog_{1/4}(x) + 1, by z/p with z ~ Bernoulli(p): unbiased,
with variance (∂_iF)²(1 − p)/p, and it reveals a new coordinate with probability p only. It takes T/p queries to see
them all, and until then the gradient is large.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from o2nc import checks
from o2nc.problems.chain import CURVATURE, GAP, SLOPE, Chain
from o2nc.problems.problem import Problem


@runtime_checkable
class ZeroChain(Problem, Protocol):
    """A problem whose gradient looks one link further than prog_{1/4}.

    Example:
        >>> isinstance(Chain(length=5), ZeroChain)
        True
    """

    @property
    def length(self) -> int:
        """T, the number of links."""
        ...

    @property
    def steepness(self) -> float:
        """The size of a gradient of F relative to one of F_T: height/width."""
        ...

    def reveal(self, x: Tensor, factor: Tensor) -> Tensor:
        """Return ∇F with the derivatives after prog_{1/4} times ``factor``, one number for every row of x."""
        ...


@dataclass(frozen=True)
class ZeroChainOracle:
    """∇F with the derivative of the newest link times z/p, z ~ Bernoulli(p), one z for every query.

    Args:
        problem: a `Chain`, or any other `ZeroChain`.
        probability: p in (0, 1].

    Example:
        >>> oracle = ZeroChainOracle(Chain(length=5), probability=0.25)
        >>> x = torch.zeros(1000, 5, dtype=torch.float64)
        >>> shown = oracle.sample(x, torch.Generator().manual_seed(0))[:, 0] != 0
        >>> f"{shown.double().mean().item():.2f}"
        '0.25'
    """

    problem: ZeroChain
    probability: float

    def __post_init__(self) -> None:
        checks.number("probability", self.probability, "a number in (0, 1]", lambda v: 0 < v <= 1)
        if not isinstance(self.problem, ZeroChain):
            raise TypeError(
                f"problem must be a ZeroChain, got {self.problem!r} of type {type(self.problem).__name__}"
            )

    @property
    def noise(self) -> float:
        """σ = 23(h/w)√((1 − p)/p): one coordinate is random, and its derivative is at most 23h/w."""
        return SLOPE * self.problem.steepness * math.sqrt((1 - self.probability) / self.probability)

    def steps(self, delta: float = 0.5) -> int:
        """Return ⌊(T − log(1/δ))/(2p)⌋: so many queries leave prog < T with probability >= 1 − δ.

        This is said of algorithms that start at 0 and are zero-respecting: x_i stays 0 until some sampled gradient
        has had a coordinate i that is not 0. Then prog_0 grows by at most one per query, and only if z = 1 in it:
        after k queries it is at most S_k, a sum of k Bernoulli(p), whatever the algorithm chose. By Chernoff,

            P(S_k >= T) <= e^{−T} E e^{S_k} = e^{−T}(1 + (e − 1)p)^k <= e^{(e − 1)pk − T} <= e^{2pk − T} <= δ,

        the last for 2pk <= T − log(1/δ). (The constant 2 may be e − 1 = 1.72.)
        """
        checks.number("delta", delta, "a number in (0, 1]", lambda v: 0 < v <= 1)
        return max(0, math.floor((self.problem.length + math.log(delta)) / (2 * self.probability)))

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F(x)."""
        return self.problem.gradient(x)

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""
        z = torch.rand(x.shape[:-1], generator=generator, dtype=x.dtype, device=x.device) < self.probability
        return self.problem.reveal(x, z.to(x.dtype) / self.probability)


def links(eps: float, gap: float, smoothness: float, *, curvature: float, steepness: float) -> int:
    """Return T = ⌊F*·H/(12·curvature·steepness²)⌋, or refuse when that is less than 2."""
    for name, value in {"eps": eps, "gap": gap, "smoothness": smoothness}.items():
        checks.positive(name, value)
    length = math.floor(gap * smoothness / (GAP * curvature * steepness**2))
    if length < 2:
        most = eps * math.sqrt(gap * smoothness / (2 * GAP * curvature * steepness**2))
        raise ValueError(
            f"eps must be at most {most:.4g} for a chain of 2 links, got {eps!r}: "
            f"decrease eps, or increase gap ({gap!r}) or smoothness ({smoothness!r})"
        )
    return length


def bernoulli(slope: float, noise: float) -> float:
    """Return p with slope·√((1 − p)/p) = σ."""
    checks.non_negative("noise", noise)
    return 1 / (1 + (noise / slope) ** 2)


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
        >>> oracle.problem.length, round(oracle.problem.smoothness, 9), round(oracle.noise, 9)
        (13, 1.0, 1.0)
        >>> oracle.steps(0.5)
        35
    """
    length = links(eps, gap, smoothness, curvature=CURVATURE, steepness=2 * eps)
    width = 2 * CURVATURE * eps / smoothness
    return ZeroChainOracle(Chain(length, 2 * eps * width, width), bernoulli(SLOPE * 2 * eps, noise))
