"""Learning rates are chosen on seeds of their own, and what they give is measured on others.

A grid of factor 4 is widened until the best value is inside, then refined around it to factors of 2 and √2. The best
is that of the least mean of log F over the tuning seeds. A run with a horizon is also tuned for the certificate, one
without is tuned for every horizon, and once for all of them together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from o2nc.problems import Oracle
from o2nc_experiments.nonsmooth.arms import Arm
from o2nc_experiments.nonsmooth.objectives import OBJECTIVES
from o2nc_experiments.nonsmooth.runs import Outcome, Row, run
from o2nc_experiments.pool import Progress, ignore

COARSE = range(-10, 7, 2)  # exponents of 2, of the effective learning rate in units of F*/G²
WIDENINGS = 5
VALUE, CERTIFICATE, TOGETHER = "F", "certificate", "F, all horizons"  # what a learning rate was chosen for


@dataclass(frozen=True)
class Result:
    """An arm on an objective at a horizon, by seed."""

    objective: str
    arm: str
    horizon: int
    tuned: str  # what the learning rate was chosen for
    lr: float
    values: list[float]  # F − inf F
    certificates: list[float]  # ‖ḡ‖ + cV of the last tenth


def price(oracle: Oracle) -> float:
    """Return c = G³/F*²: the spread in units of (F*/G)², the gradient in units of G."""
    return oracle.problem.lipschitz**3 / oracle.problem.gap**2


def learning_rate(oracle: Oracle, arm: Arm, exponent: float) -> float:
    """Return 2^k in units that suit the problem: lr/(1 − β) in F*/G², or in F*/(G√d) where steps are Adam's."""
    problem = oracle.problem
    unit = problem.gap / problem.lipschitz
    if arm.adaptive:
        return 2**exponent * unit / math.sqrt(problem.dimension)
    return 2**exponent * unit / problem.lipschitz * (1 - arm.momentum)


class Tuning:
    """What was found on the tuning seeds, by arm and exponent: means of logarithms."""

    def __init__(self, oracle: Oracle, horizons: Sequence[int], seeds: Sequence[int]) -> None:
        self.oracle, self.horizons, self.seeds = oracle, horizons, seeds
        self.scores: dict[Arm, dict[float, list[float]]] = {}

    def measure(self, pairs: Sequence[tuple[Arm, float]]) -> None:
        """Run these arms with these exponents, unless they were run before."""
        new = [pair for pair in dict.fromkeys(pairs) if pair[1] not in self.scores.get(pair[0], {})]
        if not new:
            return
        rows = [Row(arm, learning_rate(self.oracle, arm, k), seed) for arm, k in new for seed in self.seeds]
        found = run(self.oracle, rows, self.horizons)
        values, certificates = (
            _log(part).view(len(new), len(self.seeds), -1).mean(1) for part in _measures(self.oracle, found)
        )
        last = certificates if len(self.horizons) == 1 else values.sum(1, keepdim=True)
        scores = torch.cat([values, last], dim=1).tolist()
        for (arm, k), score in zip(new, scores, strict=True):
            self.scores.setdefault(arm, {})[k] = score

    def best(self, arm: Arm) -> list[float]:
        """Return the best exponent for F at every horizon; then for F at all, or the certificate if there is one."""
        scores = self.scores[arm]
        return [min(scores, key=lambda k: scores[k][i]) for i in range(len(self.horizons) + 1)]

    def search(self, arms: Sequence[Arm]) -> None:
        """Go through a grid that is widened, then refined."""
        self.measure([(arm, k) for arm in arms for k in COARSE])
        for _ in range(WIDENINGS):
            self.measure([(arm, k + step) for arm in arms for k in self.best(arm) for step in self._outside(arm, k)])
        for step in (1.0, 0.5):
            self.measure([(arm, k + sign * step) for arm in arms for k in self.best(arm) for sign in (-1, 1)])

    def _outside(self, arm: Arm, k: float) -> list[float]:
        """Return how to go on from an exponent at the edge of the grid."""
        tried = self.scores[arm]
        return [step for step, edge in ((-2.0, min(tried)), (2.0, max(tried))) if k == edge]


def compare(
    name: str,
    arms: Sequence[Arm],
    horizons: Sequence[int],
    tuning_seeds: Sequence[int],
    seeds: Sequence[int],
    progress: Progress = ignore,
) -> list[Result]:
    """Tune all arms on one objective, and measure them."""
    oracle = OBJECTIVES[name]
    tuning = Tuning(oracle, horizons, tuning_seeds)
    tuning.search(arms)
    chosen = {arm: tuning.best(arm) for arm in arms}
    pairs = list(dict.fromkeys((arm, k) for arm in arms for k in chosen[arm]))
    rows = [Row(arm, learning_rate(oracle, arm, k), seed) for arm, k in pairs for seed in seeds]
    found = run(oracle, rows, horizons)
    values, certificates = (part.view(len(pairs), len(seeds), -1) for part in _measures(oracle, found))
    places = {pair: i for i, pair in enumerate(pairs)}
    other = CERTIFICATE if len(horizons) == 1 else TOGETHER
    results = []
    for arm in arms:
        for i, horizon in enumerate(horizons):
            for tuned, k in ((VALUE, chosen[arm][i]), (other, chosen[arm][-1])):
                place = places[arm, k]
                measured = (part[place, :, i].tolist() for part in (values, certificates))
                results.append(Result(name, arm.name, horizon, tuned, learning_rate(oracle, arm, k), *measured))
    progress(1)
    return results


def _measures(oracle: Oracle, found: Outcome) -> tuple[Tensor, Tensor]:
    return found.value, found.gradient + price(oracle) * found.spread


def _log(x: Tensor) -> Tensor:
    """Return log x, inf where x is not a number."""
    return torch.where(x.isnan(), math.inf, x).clamp(min=1e-300).log()


class Plan(NamedTuple):
    """What is run on every objective."""

    arms: Sequence[Arm]
    horizons: Sequence[int]
    tuning_seeds: Sequence[int]
    seeds: Sequence[int]


def jobs(objectives: Sequence[str], plans: Sequence[Plan]) -> list[Callable[[Progress], list[Result]]]:
    """Return the work for `o2nc_experiments.pool`."""
    return [partial(compare, name, *plan) for name in objectives for plan in plans]
