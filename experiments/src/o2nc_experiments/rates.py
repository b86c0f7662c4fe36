"""How fast: the mean certificate of a run against its number of steps, beside the theorems' bounds.

For every study (a problem with its noise and its way to choose c), every N and every seed, Algorithm 2 is run with
the sharp and with the printed hyperparameters, each with s ~ Exp(1) and with s = 1, and Algorithm 1 with those below.
The runs are rows of `o2nc_experiments.batch`. Slopes are fitted to log ‖∇F(x̄)‖_c over log N, seed by seed; their
interval is Student's over the seeds.

Algorithm 1, with `BallOGD` restarted in every block of T steps, D the radius and A² = G² + σ²: the regret of a block
is at most D²/(2η) + ηTA²/2 = DA√T at η = D/(A√T), the telescoped decrease gives F* in all, noise costs Dσ√T a block,
and two points i, j of a block are at most (|i − j| + 1)D apart. So

    (1/K) Σ_k E[‖ḡ_k‖ + cV_k] <= F*/(DN) + (A + σ)/√T + cD²v(T),
    v(T) = T^{−2} Σ_{k<T} (T − k)(k + 1)² = (T² + 4T + 5 − 10/T)/12,

least over D at D³ = F*/(2cv(T)N), and over T by search.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from o2nc import problems, theory
from o2nc.problems import Additive, Oracle, Subsampled
from o2nc.problems.chain import CURVATURE, GAP, SLOPE
from o2nc.scaling import Exponential
from o2nc_experiments import batch, record
from o2nc_experiments.batch import BlockTrial, Outcome, Progress, Trial


class Study(NamedTuple):
    """A problem, its stochastic gradients, and how c is chosen.

    Attributes:
        title: for people.
        oracle: problem and noise.
        c: fixed, or None: then F's smoothness chooses it.
        regime: "c", "smoothness" or "second_order".
        exponent: of N in the theorem's rate.
    """

    title: str
    oracle: Oracle
    c: float | None
    regime: str
    exponent: float

    def plan(self, steps: int, constants: str) -> theory.Plan:
        """Return the theorem's hyperparameters."""
        problem = self.oracle.problem
        how = {"c": self.c} if self.regime == "c" else {self.regime: getattr(problem, self.regime)}
        known = {"gap": problem.gap, "lipschitz": problem.lipschitz, "noise": self.oracle.noise}
        return theory.plan(steps, **how, **known, constants=constants)


def studies() -> list[Study]:
    """Return the studies: five non-smooth problems, a smooth one in both of its regimes."""
    return [
        Study("double well with kinks, d = 10", Additive(problems.DoubleWell(10), 1.0), 1.0, "c", -2 / 7),
        Study("many kinks, d = 10", Additive(problems.MultiKink(10), 1.0), 1.0, "c", -2 / 7),
        Study("max of affine pieces, d = 20", Additive(problems.MaxAffine(20, 30), 1.0), 1.0, "c", -2 / 7),
        Study("Chebyshev–Rosenbrock, d = 5", Additive(problems.ChebyshevRosenbrock(5), 1.0), 1.0, "c", -2 / 7),
        Study("phase retrieval, d = 5", Subsampled(problems.PhaseRetrieval(5, 40), 4), 1.0, "c", -2 / 7),
        Study("cosines, second-order regime", Additive(problems.Cosine(10), 1.0), None, "second_order", -2 / 7),
        Study("cosines, smooth regime", Additive(problems.Cosine(10), 1.0), None, "smoothness", -1 / 4),
    ]


# arm: constants of the plan, and whether s is random; Algorithm 1 has a plan of its own
ARMS = {
    "sharp": ("sharp", Exponential()),
    "sharp, s = 1": ("sharp", None),
    "paper": ("paper", Exponential()),
    "paper, s = 1": ("paper", None),
}
ORIGINAL = "Algorithm 1"


@dataclass(frozen=True)
class Curve:
    """One arm of a study.

    Attributes:
        study: its title.
        arm: a key of `ARMS`, or Algorithm 1.
        steps: the numbers N.
        c: the price of spread, for every N.
        values: the mean certificate, by N and seed.
        at_average: the mean of ‖∇F(x̄_n)‖, by N and seed (nan for Algorithm 1).
        bounds: the theorem's bound for every N; empty where no theorem speaks (s = 1).
        exponent: of the theorem's rate.
    """

    study: str
    arm: str
    steps: list[int]
    c: list[float]
    values: list[list[float]]
    at_average: list[list[float]]
    bounds: list[float]
    exponent: float

    @property
    def means(self) -> list[float]:
        """Over the seeds."""
        return np.mean(self.values, axis=1).tolist()

    @property
    def slope(self) -> tuple[float, float]:
        """The slope fitted over all N, and the half width of its 95 % interval (inf with one seed)."""
        return self._fit(0)

    @property
    def tail(self) -> tuple[float, float]:
        """The same over the larger half of the N: short runs with the printed constants hardly move."""
        return self._fit(len(self.steps) // 2)

    def _fit(self, first: int) -> tuple[float, float]:
        slopes = np.polyfit(np.log(self.steps[first:]), np.log(np.array(self.values[first:])), 1)[0]
        if len(slopes) < 2:
            return float(slopes[0]), math.inf
        error = np.std(slopes, ddof=1) / math.sqrt(len(slopes))
        return float(np.mean(slopes)), float(stats.t.ppf(0.975, len(slopes) - 1) * error)

    @property
    def slack(self) -> float:
        """The least bound/value over N; nan where there is no bound."""
        return min((b / v for b, v in zip(self.bounds, self.means, strict=False)), default=math.nan)

    @property
    def agrees(self) -> bool:
        """Whether the theorem, where it speaks, is respected: no bound is exceeded."""
        return not self.bounds or self.slack >= 1

    @property
    def shallow(self) -> bool:
        """Whether the tail falls significantly more slowly than the theorem's rate; at finite N it may."""
        slope, half = self.tail
        return bool(self.bounds) and math.isfinite(half) and slope - half > self.exponent


class BlockPlan(NamedTuple):
    """Hyperparameters of Algorithm 1 and its bound."""

    period: int
    radius: float
    lr: float
    bound: float


def block_plan(steps: int, c: float, *, gap: float, lipschitz: float, noise: float) -> BlockPlan:
    """Return the T and D of Algorithm 1 with the least bound, as the module's docstring derives it.

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
        return BlockPlan(period, radius, radius / (a * math.sqrt(t)), bound)

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
    k = 1 / (8 * GAP * CURVATURE * (2 * SLOPE) ** 2)
    return (k * gap * lipschitz**2 * math.sqrt(c) / steps) ** (2 / 7)


def measure(
    index: int, lengths: Sequence[int], seeds: Sequence[int], progress: Progress | None = None
) -> list[Curve]:
    """Run Algorithm 2 on one study, all arms.

    Args:
        index: of the study.
        lengths: the numbers N.
        seeds: of the scalars.
        progress: called now and then with the number of steps made since.
    """
    study = studies()[index]
    keys = [(arm, n) for arm in ARMS for n in lengths]
    plans = {key: study.plan(key[1], ARMS[key[0]][0]) for key in keys}
    trials = [Trial.of(plans[arm, n], seed, ARMS[arm][1]) for arm, n in keys for seed in seeds]
    outcomes = iter(batch.exponentiated(study.oracle, trials, noise_seed=seeds[0], progress=progress))
    found = {key: [next(outcomes) for _ in seeds] for key in keys}
    curves = []
    for arm, (_, law) in ARMS.items():
        arm_plans = [plans[arm, n] for n in lengths]
        bounds = [p.bound for p in arm_plans] if law is not None else []
        runs = [found[arm, n] for n in lengths]
        curves.append(_curve(study, arm, lengths, [p.c for p in arm_plans], runs, bounds))
    return curves


def measure_original(
    index: int, lengths: Sequence[int], seeds: Sequence[int], progress: Progress | None = None
) -> list[Curve]:
    """Run Algorithm 1 on one study, at the c of the sharp plan; the arguments are those of `measure`."""
    study = studies()[index]
    problem = study.oracle.problem
    known = {"gap": problem.gap, "lipschitz": problem.lipschitz, "noise": study.oracle.noise}
    prices = [study.plan(n, "sharp").c for n in lengths]
    plans = [block_plan(n, c, **known) for n, c in zip(lengths, prices, strict=True)]
    trials = [
        BlockTrial(n // p.period * p.period, p.period, p.radius, p.lr, c, seed)
        for n, p, c in zip(lengths, plans, prices, strict=True)
        for seed in seeds
    ]
    outcomes = iter(batch.original(study.oracle, trials, noise_seed=seeds[0], progress=progress))
    runs = [[next(outcomes) for _ in seeds] for _ in lengths]
    return [_curve(study, ORIGINAL, lengths, prices, runs, [p.bound for p in plans])]


def _curve(
    study: Study,
    arm: str,
    lengths: Sequence[int],
    prices: list[float],
    runs: list[list[Outcome]],
    bounds: list[float],
) -> Curve:
    values = [[r.certificate for r in row] for row in runs]
    looks = [[r.at_average for r in row] for row in runs]
    return Curve(study.title, arm, list(lengths), prices, values, looks, bounds, study.exponent)


def jobs(lengths: Sequence[int], seeds: Sequence[int]) -> list[Callable[[Progress], list[Curve]]]:
    """Return the pieces of work for `o2nc_experiments.pool`, each of max(lengths) batched steps."""
    indices = range(len(studies()))
    return [partial(work, i, list(lengths), list(seeds)) for work in (measure, measure_original) for i in indices]


def steps(lengths: Sequence[int]) -> int:
    """Return the number of batched steps of all `jobs`, nearly."""
    return 2 * len(studies()) * max(lengths)


def in_order(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves study by study."""
    titles = [study.title for study in studies()]
    arms = [*ARMS, ORIGINAL]
    return sorted(curves, key=lambda c: (titles.index(c.study), arms.index(c.arm)))


def as_record(curve: Curve) -> dict[str, Any]:
    """Return a curve as plain data, with what was fitted to it."""
    fitted = {
        "slope": curve.slope,
        "tail": curve.tail,
        "least_bound_over_value": curve.slack,
        "agrees": curve.agrees,
        "shallow": curve.shallow,
    }
    return {key: _plain(value) for key, value in (asdict(curve) | fitted).items()}


def revive(data: dict[str, Any]) -> Curve:
    """Return the curve of such a record."""
    return record.revive(Curve, {key: _numbers(value) for key, value in data.items()})


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return math.nan if value is None else value


def _plain(value: Any) -> Any:
    """Replace what JSON cannot say."""
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
