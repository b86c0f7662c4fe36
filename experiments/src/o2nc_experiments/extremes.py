"""The two ends of the scale: where random scaling is what saves momentum, and where nothing helps.

`escapes`: the resonance traps and the climber, run with and without random scaling, everything else equal.

`search`: the hard instance of Corollary lower-bound. However the learning rate and the momentum are tuned, a run
finds a point with ‖∇F(x̄)‖ <= ε before the steps that are proved necessary with probability ½ at most. The fastest of
many settings is reported, by its median; the corollary is refuted if one setting is early too often for a fair coin.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import cast

import torch
from scipy import stats
from torch import Tensor

import o2nc
from o2nc import theory
from o2nc.problems import Chain, Climber, Resonance, ZeroChainOracle, hard_instance
from o2nc.scaling import Exponential
from o2nc_experiments.batch import Progress, Trial, exponentiated

# of the traps
BETA = 0.999  # of the certificate
STEPS = 5000  # of a run; the second half is looked at
C = 1e-5
TRAP_SEEDS = 3

# of the chain
EPSILONS = (0.05, 0.03, 0.02)
CHAIN = {"c": 1.0, "gap": 400.0, "lipschitz": 10.0}
BETAS = (0.5, 0.9, 0.99)
REACHES = (0.03, 0.1, 0.3, 1.0, 3.0)  # how far a shown link moves its coordinate, in widths
CHAIN_SEEDS = 24  # fewer could not tell a fair coin from a bad one
PATIENCE = 6  # a run is given up after so many times the necessary steps


@dataclass(frozen=True)
class Escape:
    """One trap, with and without random scaling: means over the second half of a run.

    Attributes:
        trap: its name.
        scaled: with random scaling.
        seed: of the scalars; None where there are none.
        gradient: ‖ḡ‖.
        spread: V.
        change: F(last) − F(start).
    """

    trap: str
    scaled: bool
    seed: int | None
    gradient: float
    spread: float
    change: float

    @property
    def certificate(self) -> float:
        """‖ḡ‖ + C·V."""
        return self.gradient + C * self.spread


def traps() -> dict[str, tuple[Resonance | Climber, bool]]:
    """Return the traps by name, and whether the momentum buffer begins with 0 (and not with the first gradient)."""
    return {
        "T0, zigzag": (Resonance.buffer(), False),
        "Z0, momentum 0.9": (Resonance.zero(), True),
        "Z0, momentum 0.5": (Resonance.zero(momentum=0.5), True),
        "L1, phase-locked": (Resonance.locked(), False),
        "L1, d = 10": (Resonance.locked(10), False),
        "climber": (Climber(1), False),
        "climber, d = 10": (Climber(10), False),
    }


def escapes(name: str, seeds: Sequence[int], progress: Progress | None = None) -> list[Escape]:
    """Run one trap without scaling, once, and with scaling for every seed."""
    problem, from_zero = traps()[name]
    return [_escape(name, problem, from_zero, seed, progress) for seed in (None, *seeds)]


def _escape(
    name: str, problem: Resonance | Climber, from_zero: bool, seed: int | None, progress: Progress | None
) -> Escape:
    x = problem.start()
    law = None if seed is None else Exponential()
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
    before, seen = problem.value(x).item(), []
    for t in range(1, STEPS + 1):
        x.grad = problem.gradient(x)
        optimizer.step()
        if t > STEPS // 2 and t % 10 == 0:
            seen.append(optimizer.certificate(C))
    if progress is not None:
        progress(STEPS)
    change = problem.value(x).item() - before
    return Escape(name, law is not None, seed, fmean(s.gradient for s in seen), fmean(s.spread for s in seen), change)


@dataclass(frozen=True)
class Search:
    """The hard instance at one ε.

    Attributes:
        eps: ε.
        links: T, the length of the chain.
        probability: p, with which a query shows a new link.
        needed: steps before which no zero-respecting algorithm is done, as likely as not.
        formula: F*G²c^½ε^{−7/2}, the lower bound with its constant left at 1.
        taken: of the fastest setting, the median over the seeds.
        early: of the setting where they are most, the number of runs that took fewer than needed.
        settings: how many were tried.
        seeds: how many runs each had.
    """

    eps: float
    links: int
    probability: float
    needed: int
    formula: float
    taken: float
    early: int
    settings: int
    seeds: int

    @property
    def agrees(self) -> bool:
        """Whether the early runs may be chance: what a fair coin gives, for all settings at once, at 0.1 %."""
        return float(stats.binom.sf(self.early - 1, self.seeds, 0.5)) * self.settings > 1e-3


def _oracle(eps: float) -> ZeroChainOracle:
    return hard_instance(eps, gap=CHAIN["gap"], smoothness=math.sqrt(CHAIN["c"] * eps), noise=CHAIN["lipschitz"])


def search(eps: float, seeds: Sequence[int], progress: Progress | None = None) -> list[Search]:
    """Run Algorithm 2 with many settings on the hard instance."""
    oracle = _oracle(eps)
    chain, p = cast(Chain, oracle.problem), oracle.probability
    needed = oracle.steps(0.5)
    # a shown link has a derivative of about steepness/p and moves its coordinate by lr/(1 − β) times that
    settings = [(reach * chain.width * (1 - beta) * p / chain.steepness, beta) for beta in BETAS for reach in REACHES]
    trials = [Trial(PATIENCE * needed, lr, 0.0, beta, CHAIN["c"], seed) for seed in seeds for lr, beta in settings]

    def good(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(chain.gradient(x), dim=-1) <= eps

    outcomes = exponentiated(oracle, trials, good=good, noise_seed=seeds[0], progress=progress)
    firsts = [[o.first for o in outcomes[i :: len(settings)]] for i in range(len(settings))]
    early = max(sum(n < needed for n in runs) for runs in firsts)
    formula = theory.lower_bound(eps, **CHAIN)
    return [Search(eps, chain.length, p, needed, formula, min(map(median, firsts)), early, len(settings), len(seeds))]


def jobs(seeds: Sequence[int]) -> list[Callable[[Progress], list[Escape] | list[Search]]]:
    """Return the work for `o2nc_experiments.pool`: the traps with up to three seeds, the chain with many."""
    many = list(range(seeds[0], seeds[0] + CHAIN_SEEDS))
    searches = [partial(search, eps, many) for eps in reversed(EPSILONS)]
    return [*searches, *(partial(escapes, name, list(seeds[:TRAP_SEEDS])) for name in traps())]


def steps(seeds: Sequence[int]) -> int:
    """Return the number of steps of all `jobs`."""
    runs = len(traps()) * (1 + len(seeds[:TRAP_SEEDS]))
    return runs * STEPS + sum(PATIENCE * _oracle(eps).steps(0.5) for eps in EPSILONS)
