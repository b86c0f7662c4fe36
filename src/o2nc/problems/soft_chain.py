"""The hard instance for all algorithms, not only those that respect zeros: rotated, and bounded in effect.

Arjevani et al. (arXiv 1912.02365) hide the chain's coordinates behind random orthonormal directions u_1, …, u_T of
R^d, the columns of U, and look at it through the soft projection ρ, which maps R^d into the ball of radius R. Far out
a regulariser keeps the gradient large; theirs is quadratic. To have a Lipschitz function (as Cutkosky, Mehta and
Orabona need, arXiv 2302.03775) it is here one that grows linearly:

    F̂(x) = F_T(Uᵀρ(x)) + η⟨x, ρ(x)⟩,   ρ(x) = x/√(1 + ‖x‖²/R²),   R = 230√T,   η = 1/5.

The constants are derived here. Let s = ‖ρ(x)‖/R in [0, 1); then 1/√(1 + ‖x‖²/R²) = √(1 − s²), and with
g = U∇F_T(Uᵀρ), ‖g‖ <= 23√T = R/10,

    ∇F̂(x) = √(1 − s²)(g − ρ⟨ρ, g⟩/R²) + η(2 − s²)ρ.

* Gap 12T: the regulariser is >= 0, and 0 at 0.
* ‖∇F̂‖ <= 23√T(√(1 − s²) + 2s(2 − s²)) <= 65.1√T, the largest being near s = 0.7.
* ∇F̂ is 153-Lipschitz: the three parts of ∇²F̂, from ∇²F_T, ∇²ρ and the regulariser, are at most 152(1 − s²),
  3s(1 − s²)‖g‖/R <= 0.3s and 2η = 0.4, together < 152.5.
* ∇²F̂ is 2100-Lipschitz: F_T gives 2075, the mixed terms 3·152·1.2/R < 2.4, and what is left has a factor 1/R.
* **‖∇F̂(x)‖ > ½ unless prog_1(Uᵀρ(x)) = T.** If s >= 0.26, ‖∇F̂‖ >= 23√T(2s(2 − s²) − √(1 − s²)) > 0.8√T. If not, take
  i = prog_1 + 1: y = Uᵀρ has |y_i| <= 1 and ∂_iF_T(y) < −1, so |⟨u_i, ∇F̂⟩| > √(1 − s²)(1 − s/10) − 2η > 0.54.

The oracle is that of the chain, through the same map: its error is √(1 − s²)(I − ρρᵀ/R²)U times the chain's.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from o2nc import checks
from o2nc.problems.chain import SLOPE, ScaledChain, chain_gradient, chain_value
from o2nc.problems.hard import ZeroChainOracle, bernoulli, links
from o2nc.problems.problem import sized

CURVATURE = 153.0  # of F̂: the Lipschitz constant of ∇


@sized
@dataclass(frozen=True)
class SoftChain(ScaledChain):
    """F(x) = h·F̂(x/w): G = 65.1√T·h/w, F* = 12Th, H = 153h/w², ρ = 2100h/w³.

    ‖∇F(x)‖ > h/2w unless prog_1(Uᵀρ(x/w)) = T. The start is 0. For algorithms whose iterates stay in the span of the
    gradients seen, `ZeroChainOracle.steps` holds as it is, since Uᵀρ(x) is a multiple of Uᵀx. For all algorithms it
    does so up to constants if d is at least of order (T²/p) log(T/p), more than is practical; in a smaller dimension
    the constants above are as true, and the count of steps is not proved.

    Args:
        length: T >= 1, the number of links.
        dimension: d >= T.
        height: h > 0.
        width: w > 0.
        seed: of U.

    Example:
        >>> chain = SoftChain(length=4, dimension=10)
        >>> round(chain.gradient(chain.start()).norm().item(), 4)  # √e, as for the chain
        1.6487
    """

    slope: ClassVar[float] = 65.1
    curvature: ClassVar[float] = CURVATURE
    length: int
    dimension: int
    height: float = 1.0
    width: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("dimension", self.dimension, self.length)
        checks.integer("seed", self.seed, 0)

    @cached_property
    def directions(self) -> Tensor:
        """U, of shape (d, T) and with orthonormal columns."""
        generator = torch.Generator().manual_seed(self.seed)
        normal = torch.randn(self.dimension, self.length, generator=generator, dtype=torch.float64)
        return torch.linalg.qr(normal)[0]

    @property
    def radius(self) -> float:
        """R = 230√T, in units of the width."""
        return 10 * SLOPE * math.sqrt(self.length)

    def project(self, x: Tensor) -> Tensor:
        """Return ρ(x/w)."""
        return x / self.width * self._root(x)

    def _root(self, x: Tensor) -> Tensor:
        """Return 1/√(1 + ‖x/w‖²/R²) = √(1 − s²)."""
        return torch.rsqrt(1 + (x / (self.width * self.radius)).square().sum(-1, keepdim=True))

    def value(self, x: Tensor) -> Tensor:
        """Return F of the last axis."""
        rho = self.project(x)
        return self.height * (chain_value(rho @ self.directions.to(x)) + (x / self.width * rho).sum(-1) / 5)

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F."""
        return self._gradient(x.detach(), None)

    def reveal(self, x: Tensor, factor: Tensor) -> Tensor:
        """Return ∇F with the derivatives of F_T after prog_{1/4}(Uᵀρ(x/w)) times ``factor``."""
        return self._gradient(x.detach(), factor)

    def _gradient(self, x: Tensor, factor: Tensor | None) -> Tensor:
        u = self.directions.to(x)
        root = self._root(x)
        rho = x / self.width * root
        g = chain_gradient(rho @ u, factor) @ u.T
        along = (rho * g).sum(-1, keepdim=True) / self.radius**2
        return self.steepness * (root * (g - rho * along) + (1 + root * root) / 5 * rho)  # 2 − s² = 1 + root²


def lipschitz_instance(
    eps: float, *, gap: float, smoothness: float, noise: float, dimension: int | None = None, seed: int = 0
) -> ZeroChainOracle:
    """Return a `SoftChain` with the given constants and ‖∇F(x)‖ > 2ε unless prog_1(Uᵀρ(x/w)) = T.

    h/w = 4ε, w = 153·4ε/H, T = ⌊F*H/(12·153·(4ε)²)⌋ and p = 1/(1 + (σ/92ε)²), as in `hard_instance`. Then
    G = 65.1·4ε√T <= 1.52√(F*H): with H = √(cε), the lower bound for (c, ε)-stationarity holds for G >= √F*·(cε)^¼
    up to a constant, as the paper has it.

    Args:
        eps: ε > 0.
        gap: F* > 0.
        smoothness: H > 0.
        noise: σ >= 0.
        dimension: d >= T; T by default.
        seed: of U.

    Example:
        >>> oracle = lipschitz_instance(0.01, gap=10.0, smoothness=4.0, noise=1.0, dimension=50)
        >>> oracle.problem.length, oracle.problem.lipschitz <= 1.52 * 40**0.5
        (13, True)
    """
    length = links(eps, gap, smoothness, curvature=CURVATURE, steepness=4 * eps)
    width = 4 * CURVATURE * eps / smoothness
    problem = SoftChain(length, length if dimension is None else dimension, 4 * eps * width, width, seed)
    return ZeroChainOracle(problem, bernoulli(SLOPE * 4 * eps, noise))
