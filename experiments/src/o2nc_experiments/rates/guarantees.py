"""What is promised against what is attained: where momentum is as slow as proved, and where G and σ are misjudged.

The promises are those of the energy theorem for `OGD` and of the adaptive theorem for `BallAdaGrad`, with the true G
and σ whatever the run believed; the values are means under their output law, P(n) = (1 − β^n)/N for n < N.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import NamedTuple

from o2nc import problems
from o2nc.problems import Additive, Oracle, Washboard
from o2nc.theory.adaptive import adaptive_plan
from o2nc_experiments.batch import Adaptive, Algorithm2, run_algorithm_2
from o2nc_experiments.pool import Progress, ignore
from o2nc_experiments.verify.energy import best_energy, energy_bound

C = 1.0
MOST_SEEDS = 3
BELIEFS = {"OGD, G and σ known": 1.0, "OGD, believed × 10": 10.0, "OGD, believed × 0.1": 0.1}  # by arm: the factor
ADAPTIVE = "BallAdaGrad, not told"


class Case(NamedTuple):
    """A problem with its noise and a number of steps."""

    title: str  # for people
    problem: problems.Problem | None  # None: the washboard against the run that knows all
    noise: float
    steps: int
    arms: tuple[str, ...]

    @property
    def oracle(self) -> Oracle:
        """The stochastic gradients."""
        if self.problem is not None:
            return Additive(self.problem, self.noise)
        lr, beta, _ = best_energy(self.steps, C, gap=1.0, lipschitz=1.0, noise=self.noise)
        return Additive(Washboard.against(lr, beta, self.steps), self.noise)


KNOWN, ALL = tuple(BELIEFS)[:1], (*BELIEFS, ADAPTIVE)
CASES = (
    Case("washboard, σ = 0", None, 0.0, 27_000, KNOWN),
    Case("washboard, σ = 1", None, 1.0, 20_000, KNOWN),
    Case("washboard, σ = 0", None, 0.0, 1 << 14, ALL),
    Case("double well with kinks, d = 10, σ = 1", problems.DoubleWell(10), 1.0, 1 << 14, ALL),
    Case("many kinks, d = 10, σ = 1", problems.MultiKink(10), 1.0, 1 << 14, ALL),
    Case("max of affine pieces, d = 20, σ = 1", problems.MaxAffine(20, 30), 1.0, 1 << 14, ALL),
)


@dataclass(frozen=True)
class Guarantee:
    """One way to choose the hyperparameters, on one problem."""

    case: str  # its title
    steps: int  # N
    arm: str  # a key of `BELIEFS`, or the adaptive learner
    bound: float  # the theorem's, with the true constants
    values: list[float]  # E_P of ‖Σp∇F‖ + cV, by seed

    @property
    def value(self) -> float:
        """The mean over the seeds."""
        return fmean(self.values)

    @property
    def slack(self) -> float:
        """bound/value."""
        return self.bound / self.value

    @property
    def agrees(self) -> bool:
        """Whether the promise was kept."""
        return self.slack >= 1


def measure(case: Case, seeds: Sequence[int], progress: Progress = ignore) -> list[Guarantee]:
    """Run all arms of a case: those of `OGD` together, then the adaptive learner."""
    oracle, n = case.oracle, case.steps
    gap, lipschitz, noise = oracle.problem.gap, oracle.problem.lipschitz, oracle.noise
    found = []
    believed = [factor for arm, factor in BELIEFS.items() if arm in case.arms]
    chosen = [best_energy(n, C, gap=gap, lipschitz=k * lipschitz, noise=k * noise)[:2] for k in believed]
    runs = [Algorithm2(n, lr, 0.0, beta, C, seed) for lr, beta in chosen for seed in seeds]
    values = [o.geometric for o in run_algorithm_2(oracle, runs, noise_seed=seeds[0], progress=progress)]
    for i, (arm, (lr, beta)) in enumerate(zip(case.arms, chosen, strict=False)):
        known = {"gap": gap, "lipschitz": lipschitz, "noise": noise}
        bound = energy_bound(lr, beta, n, C, **known, output="geometric")
        found.append(Guarantee(case.title, n, arm, bound, values[i * len(seeds) : (i + 1) * len(seeds)]))
    if ADAPTIVE in case.arms:
        p = adaptive_plan(n, C, gap)
        own = [Adaptive(n, p.radius, p.beta, C, seed) for seed in seeds]
        outcomes = run_algorithm_2(oracle, own, noise_seed=seeds[0], progress=progress)
        bound = p.bound(lipschitz=lipschitz, noise=noise)
        found.append(Guarantee(case.title, n, ADAPTIVE, bound, [o.geometric for o in outcomes]))
    return found


def jobs(seeds: Sequence[int]) -> list[Callable[[Progress], list[Guarantee]]]:
    """Return the work for `o2nc_experiments.pool`: every case, with up to three seeds."""
    return [partial(measure, case, list(seeds[:MOST_SEEDS])) for case in CASES]


def steps() -> int:
    """Return the number of batched steps of all `jobs`."""
    return sum(case.steps * (1 + (ADAPTIVE in case.arms)) for case in CASES)


def in_order(found: Sequence[Guarantee]) -> list[Guarantee]:
    """Return them in the order of `CASES`."""
    order = [(case.title, case.steps) for case in CASES]
    return sorted(found, key=lambda g: order.index((g.case, g.steps)))
