"""Which runs are still needed, given the results so far.

    wanted: legs (arm, lr, seed, horizon)  →  grouped into runs: legs that share learning rates share their steps

A run is a trunk, one optimizer at one lr and seed, from which decays branch off: the constant run and all
warm-up-stable-decay runs of an lr are one trunk, so that decays of 20 % to 250, 500, …, 4000 steps cost 1,550 steps
beside it. Linear and cosine decays share nothing; each is a run of its own.

With ``tune`` the learning rates are chosen on a seed that is not reported: an arm that decays has one for each
horizon, an arm without a horizon has one for all. A best lr at the edge of the grid widens it there.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple, TypeVar

from o2nc_experiments.arms import Schedule
from o2nc_experiments.gpt.arms import LAST, Arm

K = TypeVar("K")


class Row(NamedTuple):
    """One evaluation.

    Attributes:
        arm: its name.
        lr: learning rate.
        seed: of the run.
        horizon: after how many steps.
        weights: what was evaluated: a window, the last iterate, or schedule-free's own average.
        loss: in nats per token, None if it is not finite.
        gradient: ‖ḡ‖, where the optimizer keeps averages.
        spread: V, likewise.
    """

    arm: str
    lr: float
    seed: int
    horizon: int
    weights: str
    loss: float | None
    gradient: float | None = None
    spread: float | None = None


class Leg(NamedTuple):
    """What is to be trained and evaluated: an arm at one lr, one seed, one horizon."""

    arm: Arm
    lr: float
    seed: int
    horizon: int

    @property
    def key(self) -> tuple[str, float, int, int]:
        """How its rows begin."""
        return self.arm.name, self.lr, self.seed, self.horizon

    @property
    def fork(self) -> int:
        """The step at which it leaves the trunk; its horizon if it never does."""
        return self.arm.schedule.fork(self.horizon) if self.arm.schedule.trunk else self.horizon


@dataclass(frozen=True)
class Run:
    """A trunk and the legs that are read off it or branch off it.

    Attributes:
        legs: all with the same optimizer, lr and seed, in the order in which they leave the trunk.
    """

    legs: tuple[Leg, ...]

    @property
    def schedule(self) -> Schedule:
        """The trunk's."""
        own = self.legs[0].arm.schedule
        return own.trunk or own

    @property
    def windows(self) -> tuple[str, ...]:
        """All that one of the legs asks for."""
        return tuple(dict.fromkeys(text for leg in self.legs for text in leg.arm.windows))

    @property
    def end(self) -> int:
        """The last step of the trunk."""
        return max(leg.fork for leg in self.legs)

    @property
    def steps(self) -> int:
        """All steps, those of the branches included."""
        return self.end + sum(leg.horizon - leg.fork for leg in self.legs)

    @property
    def name(self) -> str:
        """What it is called in messages and results."""
        arms = dict.fromkeys(leg.arm.name for leg in self.legs)
        first = self.legs[0]
        ends = f" to {first.horizon}" if first.arm.schedule.trunk is None else ""
        return f"{', '.join(arms)}{ends}, lr {first.lr:g}, seed {first.seed}"


@dataclass(frozen=True)
class Goal:
    """What is asked for.

    Attributes:
        arms: to be compared.
        horizons: numbers of steps, ascending.
        seeds: reported.
        sweep: learning rates, or multiples of every arm's own; empty for that alone.
        relative: whether ``sweep`` has multiples.
        tune: the seed that learning rates are chosen on; None runs all of them with all seeds.
        widen: by how many values a grid may grow at either end.
        each: whether every horizon has a learning rate of its own, also where nothing decays.
    """

    arms: Sequence[Arm]
    horizons: Sequence[int]
    seeds: Sequence[int]
    sweep: Sequence[float] = ()
    relative: bool = False
    tune: int | None = None
    widen: int = 0
    each: bool = False

    def grid(self, arm: Arm) -> list[float]:
        """Return an arm's learning rates, ascending."""
        values = [arm.lr * value for value in self.sweep] if self.relative else self.sweep or [arm.lr]
        return sorted({rounded(value) for value in values or [arm.lr]})


def rounded(lr: float) -> float:
    """Return a learning rate to four digits, so that the same one is recognised.

    Example:
        >>> rounded(1e-3 * 2**0.5)
        0.001414
    """
    return float(f"{lr:.4g}")


class Results:
    """Rows, by what they are of."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.losses: dict[tuple[str, float, int, int], dict[str, float]] = {}
        for row in rows:
            loss = math.inf if row.loss is None else row.loss
            self.losses.setdefault((row.arm, row.lr, row.seed, row.horizon), {})[row.weights] = loss

    def has(self, leg: Leg) -> bool:
        """Say whether all of a leg's weights were evaluated."""
        return self.losses.get(leg.key, {}).keys() >= set(leg.arm.weights)

    def loss(self, arm: Arm, lr: float, seeds: Sequence[int], horizon: int, weights: str) -> float:
        """Return the mean loss over seeds; inf if a run diverged."""
        return fmean(self.losses[arm.name, lr, seed, horizon][weights] for seed in seeds)


def wanted(goal: Goal, rows: Iterable[Row]) -> list[Leg]:
    """Return the legs that can be run now; none if all is done."""
    results = Results(rows)
    first = [goal.tune] if goal.tune is not None else goal.seeds
    legs = [
        Leg(arm, lr, seed, h)
        for arm in goal.arms
        for part in parts(goal, arm)
        for lr in explored(goal, arm, part, results)
        for seed in first
        for h in part
    ]
    missing = [leg for leg in legs if not results.has(leg)]
    if missing or goal.tune is None:
        return missing
    chosen = [
        Leg(arm, choose(goal, arm, part, results)[0], seed, h)
        for seed in goal.seeds
        for arm in goal.arms
        for part in parts(goal, arm)
        for h in part
    ]
    return [leg for leg in chosen if not results.has(leg)]


def parts(goal: Goal, arm: Arm) -> list[Sequence[int]]:
    """Return the horizons that have one learning rate in common: all of them, where none decays, unless `each`."""
    return [[h] for h in goal.horizons] if arm.schedule.decays or goal.each else [goal.horizons]


def explored(goal: Goal, arm: Arm, part: Sequence[int], results: Results) -> list[float]:
    """Return the learning rates to be tried, the grid and what widens it."""
    grid = goal.grid(arm)
    if goal.tune is None or len(grid) < 2:
        return grid
    for _ in range(goal.widen):
        if not all(results.has(Leg(arm, lr, goal.tune, h)) for lr in grid for h in part):
            break
        best, _ = best_of(arm, grid, [goal.tune], part, results)
        if best == grid[0]:
            grid.insert(0, rounded(grid[0] ** 2 / grid[1]))
        elif best == grid[-1]:
            grid.append(rounded(grid[-1] ** 2 / grid[-2]))
        else:
            break
    return grid


def best_of(
    arm: Arm, grid: Sequence[float], seeds: Sequence[int], part: Sequence[int], results: Results
) -> tuple[float, str]:
    """Return the lr and the weights that are least behind; the last iterate only where there is no average."""
    pairs = [(lr, weights) for lr in grid for weights in averages(arm)]
    return least_behind({(lr, w): [results.loss(arm, lr, seeds, h, w) for h in part] for lr, w in pairs})


def averages(arm: Arm) -> list[str]:
    """Return what an arm is judged by: its averages, or the last iterate where there are none."""
    return [weights for weights in arm.weights if weights != LAST] or [LAST]


def least_behind(losses: Mapping[K, Sequence[float]]) -> K:
    """Return the key of the losses that are least behind the best at a horizon, in the median over the horizons.

    The mean would be decided by the one horizon at which the loss happens to fall steeply. Only what
    diverged at the fewest horizons is compared: the median would not see it.

    Example:
        >>> least_behind({"a": [3.00, 3.0, 2.00], "b": [3.05, 2.0, 2.05], "c": [2.0, 2.0, math.inf]})
        'a'
    """
    diverged = {key: sum(loss == math.inf for loss in own) for key, own in losses.items()}
    left = {key: own for key, own in losses.items() if diverged[key] == min(diverged.values())}
    best = [min(column) for column in zip(*left.values(), strict=True)]

    def behind(key: K) -> tuple[float, float]:
        pairs = zip(left[key], best, strict=True)
        lags = [loss - least for loss, least in pairs if loss < math.inf] or [math.inf]
        return median(lags), fmean(lags)

    return min(left, key=behind)


def choose(goal: Goal, arm: Arm, part: Sequence[int], results: Results) -> tuple[float, str]:
    """Return the lr and the weights chosen for these horizons, on the tuning seed, or on the seeds themselves."""
    seeds = goal.seeds if goal.tune is None else [goal.tune]
    return best_of(arm, explored(goal, arm, part, results), seeds, part, results)


def runs(legs: Iterable[Leg]) -> list[Run]:
    """Group legs into runs, in the order of their first legs."""
    groups: dict[tuple[object, ...], list[Leg]] = {}
    for leg in legs:
        trunk = leg.arm.schedule.trunk or (leg.arm.schedule, leg.horizon)
        groups.setdefault((leg.arm.base, leg.lr, leg.seed, trunk), []).append(leg)
    return [Run(tuple(sorted(group, key=lambda leg: (leg.fork, leg.horizon)))) for group in groups.values()]


def favourite(goal: Goal, arm: Arm, lrs: Mapping[int, float], results: Results) -> str:
    """Return the average of an arm that is chosen for all horizons together, where the learning rates are."""
    seeds = goal.seeds if goal.tune is None else [goal.tune]
    found = {w: [results.loss(arm, lr, seeds, h, w) for h, lr in lrs.items()] for w in averages(arm)}
    return least_behind(found)


def lines(goal: Goal, rows: Iterable[Row]) -> Iterator[tuple[Arm, str, Mapping[int, float]]]:
    """Yield the lines of the table: arm, what is evaluated, and the lr chosen for each horizon that has one."""
    results = Results(rows)
    for arm in goal.arms:
        lrs: dict[int, float] = {}
        for part in parts(goal, arm):
            with suppress(KeyError):  # not all that is needed for a choice is there yet
                lrs |= dict.fromkeys(part, choose(goal, arm, part, results)[0])
        if lrs:
            yield from ((arm, weights, lrs) for weights in arm.weights)
