"""The traps: where runs end that begin in one, whether they are still held, and how long they take to get free.

T0, Z0 and L1 are periodic and have no valley: every end of a decayed run is a minimum, so what tells is whether a run
at a constant learning rate is held, that is, whether its mean gradient over the last tenth is still the slope of the
trap (half of it, or more). The climber has a valley, and the run that is held walks out of it: there the end counts.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from o2nc.problems import Additive, Climber, Resonance
from o2nc_experiments.nonsmooth.arms import Arm, Power, jitter
from o2nc_experiments.nonsmooth.runs import Row, run
from o2nc_experiments.pool import Progress, ignore

FACTORS = [2 ** (k / 2) for k in range(-3, 4)]  # seven learning rates, in units of the one that is trapped
STEPS = 5000
WIDTHS = (0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0)
PATIENCE = 20_000  # steps in which to get free
SEEDS = 3  # of every arm, trap and learning rate
FREE_SEEDS = 25

# by name: the trap, and whether the momentum buffer begins with 0 (and not with the first gradient)
TRAPS: dict[str, tuple[Resonance | Climber, bool]] = {
    f"{name}, d = {d}": (make(d), from_zero)
    for name, make, from_zero in (
        ("T0", Resonance.buffer, False),
        ("Z0", Resonance.zero, True),
        ("Z0, momentum 0.5", partial(Resonance.zero, momentum=0.5), True),
        ("L1", Resonance.locked, False),
        ("climber", Climber, False),
    )
    for d in (1, 10)
}


@dataclass(frozen=True)
class Escape:
    """One arm on one trap: of all learning rates and seeds, how many ended above the start, how many were held."""

    trap: str
    arm: str
    steps: int
    runs: int
    above: int  # with linear decay, F(end) > F(start)
    held: int  # at a constant learning rate
    ratio: float  # F(end)/F(start) with linear decay, the geometric mean over the runs


@dataclass(frozen=True)
class Freedom:
    """How many steps runs on the climber take, at the learning rate that is trapped, until F is half of its start."""

    width: float
    deviation: float  # standard deviation of s
    steps: list[float]  # by seed; inf where patience ended first


def _rows(problem: Resonance | Climber, arm: Arm, factors: Sequence[float], seeds: Sequence[int]) -> list[Row]:
    momentum = problem.momentum if isinstance(problem, Resonance) else 0.9
    unit = problem.lr * (1 - momentum)  # the traps' buffer is a mean of gradients, ours is a sum
    if arm.adaptive:  # whatever the slope, lr is the length of a step
        unit = problem.trap.period / arm.adaptive.length(momentum)
    return [Row(replace(arm, momentum=momentum), unit * factor, seed) for factor in factors for seed in seeds]


def count(
    name: str, arms: Sequence[Arm], seeds: Sequence[int], steps: int = STEPS, progress: Progress = ignore
) -> list[Escape]:
    """Run all arms on one trap."""
    problem, from_zero = TRAPS[name]
    start = problem.value(problem.start()).item()
    slope = problem.trap.slope - (problem.valley if isinstance(problem, Climber) else 0.0)
    outcomes = [
        run(
            Additive(problem, 0.0),
            [row for arm in found for row in _rows(problem, arm, FACTORS, seeds)],
            [steps],
            near=0.0,
            primed=not from_zero,
        )
        for found in (arms, [replace(arm, schedule=Power()) for arm in arms])
    ]
    ends, gradients = outcomes[0].value.view(len(arms), -1), outcomes[1].gradient.view(len(arms), -1)
    progress(1)
    return [
        Escape(
            name,
            arm.name,
            steps,
            len(end),
            int((end > start + 1e-9).sum()),
            int((gradient >= slope / 2).sum()),
            (end / start).clamp(min=1e-300).log().mean().exp().item(),
        )
        for arm, end, gradient in zip(arms, ends, gradients, strict=True)
    ]


def time_to_freedom(
    width: float, seeds: Sequence[int], patience: int = PATIENCE, progress: Progress = ignore
) -> list[Freedom]:
    """Run the climber with s ~ U(1 − w, 1 + w) at the learning rate that is trapped."""
    problem, law = Climber(1), jitter(width)
    rows = _rows(problem, Arm("", Power(), law), [1.0], seeds)
    goal = problem.gap / 2
    found = run(Additive(problem, 0.0), rows, [patience], near=0.0, primed=True, goal=goal)
    progress(1)
    return [Freedom(width, math.sqrt(law.second_moment - 1), found.first.tolist())]


def counts(arms: Sequence[Arm], quick: bool) -> list[Callable[[Progress], list[Escape]]]:
    """Return the traps as work for `o2nc_experiments.pool`; quick: the climber, a tenth of the steps, one seed."""
    names = [name for name in TRAPS if name.startswith("climber") or not quick]
    given = (range(1), STEPS // 10) if quick else (range(SEEDS), STEPS)
    return [partial(count, name, arms, *given) for name in names]


def freedoms(quick: bool) -> list[Callable[[Progress], list[Freedom]]]:
    """Return the times to freedom as work; quick: three seeds, a tenth of the patience."""
    given = (range(3), PATIENCE // 10) if quick else (range(FREE_SEEDS), PATIENCE)
    return [partial(time_to_freedom, width, *given) for width in WIDTHS]
