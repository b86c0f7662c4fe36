"""What is studied: problems with their noise and their way to choose c; and the arms, each with its plan and bound.

Algorithm 1, with `BallOGD` restarted in every block of T steps, D the radius and A² = G² + σ²: the regret of a block
is at most D²/(2η) + ηTA²/2 = DA√T at η = D/(A√T), the telescoped decrease gives F* in all, noise costs Dσ√T a block,
and two points i, j of a block are at most (|i − j| + 1)D apart. So

    (1/K) Σ_k E[‖ḡ_k‖ + cV_k] <= F*/(DN) + (A + σ)/√T + cD²v(T),
    v(T) = T^{−2} Σ_{k<T} (T − k)(k + 1)² = (T² + 4T + 5 − 10/T)/12,

least over D at D³ = F*/(2cv(T)N), and over T by search.
"""

import math
from typing import NamedTuple

import numpy as np

from o2nc import Exponential, problems, theory
from o2nc.problems import Additive, Oracle, Subsampled
from o2nc_experiments.batch import Algorithm1


class Study(NamedTuple):
    """A problem, its stochastic gradients, and how c is chosen."""

    title: str  # for people
    oracle: Oracle  # problem and noise
    c: float | None  # fixed, or None: then F's smoothness chooses it
    regime: str  # "c", "smoothness" or "second_order"
    exponent: float  # of N in the theorem's rate

    @property
    def constants(self) -> dict[str, float]:
        """F*, G and σ, as plans take them."""
        problem = self.oracle.problem
        return {"gap": problem.gap, "lipschitz": problem.lipschitz, "noise": self.oracle.noise}

    def plan(self, steps: int, constants: str) -> theory.Plan:
        """Return the theorem's hyperparameters."""
        price = self.c if self.regime == "c" else getattr(self.oracle.problem, self.regime)
        return theory.plan(steps, **{self.regime: price}, **self.constants, constants=constants)  # type: ignore[call-overload]

    def block_plan(self, steps: int) -> "BlockPlan":
        """Return hyperparameters for Algorithm 1, at the c of the sharp plan."""
        return block_plan(steps, self.plan(steps, "sharp").c, **self.constants)


# five non-smooth problems, a smooth one in both of its regimes
STUDIES = (
    Study("double well with kinks, d = 10", Additive(problems.DoubleWell(10), 1.0), 1.0, "c", -2 / 7),
    Study("many kinks, d = 10", Additive(problems.MultiKink(10), 1.0), 1.0, "c", -2 / 7),
    Study("max of affine pieces, d = 20", Additive(problems.MaxAffine(20, 30), 1.0), 1.0, "c", -2 / 7),
    Study("Chebyshev–Rosenbrock, d = 5", Additive(problems.ChebyshevRosenbrock(5), 1.0), 1.0, "c", -2 / 7),
    Study("phase retrieval, d = 5", Subsampled(problems.PhaseRetrieval(5, 40), 4), 1.0, "c", -2 / 7),
    Study("cosines, second-order regime", Additive(problems.Cosine(10), 1.0), None, "second_order", -2 / 7),
    Study("cosines, smooth regime", Additive(problems.Cosine(10), 1.0), None, "smoothness", -1 / 4),
)

# arm: constants of the plan, and whether s is random; Algorithm 1 has a plan of its own
ARMS = {
    "sharp": ("sharp", Exponential()),
    "sharp, s = 1": ("sharp", None),
    "paper": ("paper", Exponential()),
    "paper, s = 1": ("paper", None),
}
ORIGINAL = "Algorithm 1"


class BlockPlan(NamedTuple):
    """Hyperparameters of Algorithm 1 for N steps, and their bound."""

    steps: int
    c: float
    period: int
    radius: float
    lr: float
    bound: float

    def run(self, seed: int) -> Algorithm1:
        """Return the run that is asked for, in whole blocks."""
        steps = self.steps // self.period * self.period
        return Algorithm1(steps, self.period, self.radius, self.lr, self.c, seed)


def block_plan(steps: int, c: float, *, gap: float, lipschitz: float, noise: float) -> BlockPlan:
    """Return the T and D of Algorithm 1 with the least bound, as it is derived above.

    Example:
        >>> block_plan(10_000, 1.0, gap=1.0, lipschitz=1.0, noise=0.0).period
        180
    """
    a = math.hypot(lipschitz, noise)

    def at(period: int) -> BlockPlan:
        t = float(period)
        spread = (t**2 + 4 * t + 5 - 10 / t) / 12
        radius = (gap / (2 * c * spread * steps)) ** (1 / 3)
        bound = gap / (radius * steps) + (a + noise) / math.sqrt(t) + c * radius**2 * spread
        return BlockPlan(steps, c, period, radius, radius / (a * math.sqrt(t)), bound)

    periods = {round(math.exp(u)) for u in np.linspace(math.log(2), math.log(max(steps, 2)), 300)}
    return min(map(at, sorted(periods)), key=lambda p: p.bound)


def least_error(steps: int, c: float, *, gap: float, lipschitz: float) -> float:
    """Return the ε that no algorithm can promise in fewer steps: Corollary lower-bound with the chain's constants.

    The hard instance with H = √(cε) and σ = G has T = F*H/(4·12·152ε²) links, found with probability (2·23ε/G)² each;
    half of T/p steps are not enough, as likely as not, and so N >= k·F*G²c^½ε^{−7/2} with k = 1/(8·12·152·46²).

    Example:
        >>> f"{least_error(10**6, 1.0, gap=1.0, lipschitz=1.0):.1e}"
        '1.4e-04'
    """
    k = 1 / (8 * 12 * 152 * 46**2)
    return (k * gap * lipschitz**2 * math.sqrt(c) / steps) ** (2 / 7)
