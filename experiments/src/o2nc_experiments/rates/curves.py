"""Certificates against the number of steps, arm by arm: measured, fitted, and as a record.

For every study, every N and every seed, Algorithm 2 is run with the sharp and with the printed hyperparameters, each
with s ~ Exp(1) and with s = 1, and Algorithm 1 with those of `studies.block_plan`. The runs are rows of
`o2nc_experiments.batch`. Slopes are fitted to log ‖∇F(x̄)‖_c over log N, seed by seed; their interval is Student's
over the seeds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from o2nc.theory import Plan
from o2nc_experiments import record
from o2nc_experiments.batch import Algorithm2, Outcome, run_algorithm_1, run_algorithm_2
from o2nc_experiments.pool import Progress, ignore
from o2nc_experiments.rates import studies
from o2nc_experiments.rates.studies import ARMS, ORIGINAL, BlockPlan, Study


@dataclass(frozen=True)
class Curve:
    """One arm of a study."""

    study: str  # its title
    arm: str  # a key of `ARMS`, or Algorithm 1
    steps: list[int]  # the numbers N
    c: list[float]  # the price of spread, for every N
    values: list[list[float]]  # the mean certificate, by N and seed
    at_average: list[list[float]]  # the mean of ‖∇F(x̄_n)‖, by N and seed (nan for Algorithm 1)
    bounds: list[float]  # the theorem's bound for every N; empty where no theorem speaks (s = 1)
    exponent: float  # of the theorem's rate

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


def measure(study: Study, lengths: Sequence[int], seeds: Sequence[int], progress: Progress = ignore) -> list[Curve]:
    """Run Algorithm 2 on one study, all arms, for these numbers N and seeds of the scalars."""
    plans = {arm: [study.plan(n, constants) for n in lengths] for arm, (constants, _) in ARMS.items()}
    runs = [Algorithm2.of(p, seed, law) for arm, (_, law) in ARMS.items() for p in plans[arm] for seed in seeds]
    outcomes = run_algorithm_2(study.oracle, runs, noise_seed=seeds[0], progress=progress)
    return [
        _curve(study, arm, plans[arm], own, bounded=law is not None)  # no theorem speaks of s = 1
        for (arm, (_, law)), own in zip(ARMS.items(), _split(outcomes, len(ARMS)), strict=True)
    ]


def measure_original(
    study: Study, lengths: Sequence[int], seeds: Sequence[int], progress: Progress = ignore
) -> list[Curve]:
    """Run Algorithm 1 on one study; the arguments are those of `measure`."""
    plans = [study.block_plan(n) for n in lengths]
    runs = [p.run(seed) for p in plans for seed in seeds]
    outcomes = run_algorithm_1(study.oracle, runs, noise_seed=seeds[0], progress=progress)
    return [_curve(study, ORIGINAL, plans, outcomes)]


def _curve(
    study: Study, arm: str, plans: Sequence[Plan | BlockPlan], outcomes: Sequence[Outcome], bounded: bool = True
) -> Curve:
    """Return the curve of outcomes that are given plan by plan, seed by seed."""
    by_plan = _split(outcomes, len(plans))
    return Curve(
        study.title,
        arm,
        [p.steps for p in plans],
        [p.c for p in plans],
        values=[[outcome.certificate for outcome in row] for row in by_plan],
        at_average=[[outcome.at_average for outcome in row] for row in by_plan],
        bounds=[p.bound for p in plans] if bounded else [],
        exponent=study.exponent,
    )


def _split(outcomes: Sequence[Outcome], parts: int) -> list[Sequence[Outcome]]:
    size = len(outcomes) // parts
    return [outcomes[i : i + size] for i in range(0, len(outcomes), size)]


def jobs(lengths: Sequence[int], seeds: Sequence[int]) -> list[Callable[[Progress], list[Curve]]]:
    """Return the pieces of work for `o2nc_experiments.pool`, each of max(lengths) batched steps."""
    measures = (measure, measure_original)
    return [partial(work, study, list(lengths), list(seeds)) for work in measures for study in studies.STUDIES]


def steps(lengths: Sequence[int]) -> int:
    """Return the number of batched steps of all `jobs`, nearly."""
    return 2 * len(studies.STUDIES) * max(lengths)


def in_order(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves study by study."""
    titles = [study.title for study in studies.STUDIES]
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
    return {key: record.plain(value) for key, value in (asdict(curve) | fitted).items()}


def revive(data: dict[str, Any]) -> Curve:
    """Return the curve of such a record."""
    return record.revive(Curve, {key: _numbers(value) for key, value in data.items()})


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return math.nan if value is None else value
