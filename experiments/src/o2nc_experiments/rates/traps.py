"""Traps: functions that hold momentum for ever, run with and without random scaling, everything else equal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import o2nc
from o2nc.problems import Climber, Resonance
from o2nc_experiments.pool import Progress, ignore

BETA = 0.999  # of the certificate
STEPS = 5000  # of a run; the second half is looked at
C = 1e-5
MOST_SEEDS = 3

# by name: the trap, and whether the momentum buffer begins with 0 (and not with the first gradient)
TRAPS: dict[str, tuple[Resonance | Climber, bool]] = {
    "T0, zigzag": (Resonance.buffer(), False),
    "Z0, momentum 0.9": (Resonance.zero(), True),
    "Z0, momentum 0.5": (Resonance.zero(momentum=0.5), True),
    "L1, phase-locked": (Resonance.locked(), False),
    "L1, d = 10": (Resonance.locked(10), False),
    "climber": (Climber(1), False),
    "climber, d = 10": (Climber(10), False),
}


@dataclass(frozen=True)
class Escape:
    """One trap, with and without random scaling: means over the second half of a run."""

    trap: str  # its name
    scaled: bool  # with random scaling
    seed: int | None  # of the scalars; None where there are none
    gradient: float  # ‖ḡ‖
    spread: float  # V
    change: float  # F(last) − F(start)

    @property
    def certificate(self) -> float:
        """‖ḡ‖ + C·V."""
        return self.gradient + C * self.spread


def escapes(name: str, seeds: Sequence[int], progress: Progress = ignore) -> list[Escape]:
    """Run one trap without scaling, once, and with scaling for every seed."""
    return [_escape(name, seed, progress) for seed in (None, *seeds)]


def _escape(name: str, seed: int | None, progress: Progress) -> Escape:
    problem, from_zero = TRAPS[name]
    x = problem.start()
    law = None if seed is None else o2nc.Exponential()
    momentum = problem.momentum if isinstance(problem, Resonance) else 0.9
    optimizer: o2nc.ExponentiatedO2NC | o2nc.ScaledSGDM
    if from_zero:  # the map of Section "Unraveling the update", read backwards
        lr = problem.lr * (1 - momentum) / momentum
        learner = o2nc.learners.OGD(lr=lr, decay=(BETA / momentum - 1) / lr)
        optimizer = o2nc.ExponentiatedO2NC([x], learner, beta=BETA, scaling=law, seed=seed or 0)
    else:
        optimizer = o2nc.ScaledSGDM(
            [x], problem.lr, momentum, dampening=momentum, scaling=law, seed=seed or 0, average=BETA
        )
    before, certificates = problem.value(x).item(), []
    for t in range(1, STEPS + 1):
        x.grad = problem.gradient(x)
        optimizer.step()
        if t > STEPS // 2 and t % 10 == 0:
            certificates.append(optimizer.certificate(C))
    progress(STEPS)
    change = problem.value(x).item() - before
    gradient, spread = fmean(c.gradient for c in certificates), fmean(c.spread for c in certificates)
    return Escape(name, law is not None, seed, gradient, spread, change)


def jobs(seeds: Sequence[int]) -> list[Callable[[Progress], list[Escape]]]:
    """Return the work for `o2nc_experiments.pool`: every trap, with up to three seeds."""
    return [partial(escapes, name, list(seeds[:MOST_SEEDS])) for name in TRAPS]


def steps(seeds: Sequence[int]) -> int:
    """Return the number of steps of all `jobs`."""
    return len(TRAPS) * (1 + len(seeds[:MOST_SEEDS])) * STEPS
