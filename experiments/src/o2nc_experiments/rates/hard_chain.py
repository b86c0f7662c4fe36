"""The hard instance of Corollary lower-bound: however Algorithm 2 is tuned, it cannot be quick.

Whatever the learning rate and the momentum, a run finds a point with ‖∇F(x̄)‖ <= ε before the steps that are proved
necessary with probability ½ at most. The fastest of many settings is reported, by its median; the corollary is
refuted if one setting is early too often for a fair coin.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import cast

import torch
from scipy import stats
from torch import Tensor

from o2nc import theory
from o2nc.problems import Chain, ZeroChainOracle, hard_instance
from o2nc_experiments.batch import Algorithm2, run_algorithm_2
from o2nc_experiments.pool import Progress, ignore

EPSILONS = (0.05, 0.03, 0.02)
CONSTANTS = {"c": 1.0, "gap": 400.0, "lipschitz": 10.0}
BETAS = (0.5, 0.9, 0.99)
REACHES = (0.03, 0.1, 0.3, 1.0, 3.0)  # how far a shown link moves its coordinate, in widths
SEEDS = 24  # fewer could not tell a fair coin from a bad one
PATIENCE = 6  # a run is given up after so many times the necessary steps


@dataclass(frozen=True)
class ChainSearch:
    """The hard instance at one ε."""

    eps: float  # ε
    links: int  # T, the length of the chain
    probability: float  # p, with which a query shows a new link
    needed: int  # steps before which no zero-respecting algorithm is done, as likely as not
    formula: float  # F*G²c^½ε^{−7/2}, the lower bound with its constant left at 1
    taken: float  # of the fastest setting, the median over the seeds
    early: int  # of the setting where they are most, the number of runs that took fewer than needed
    settings: int  # how many were tried
    seeds: int  # how many runs each had

    @property
    def agrees(self) -> bool:
        """Whether the early runs may be chance: what a fair coin gives, for all settings at once, at 0.1 %."""
        return float(stats.binom.sf(self.early - 1, self.seeds, 0.5)) * self.settings > 1e-3


def _oracle(eps: float) -> ZeroChainOracle:
    smoothness = math.sqrt(CONSTANTS["c"] * eps)
    return hard_instance(eps, gap=CONSTANTS["gap"], smoothness=smoothness, noise=CONSTANTS["lipschitz"])


def search(eps: float, seeds: Sequence[int], progress: Progress = ignore) -> list[ChainSearch]:
    """Run Algorithm 2 with many settings on the hard instance."""
    oracle = _oracle(eps)
    chain, p = cast(Chain, oracle.problem), oracle.probability
    needed = oracle.steps(0.5)
    # a shown link has a derivative of about steepness/p and moves its coordinate by lr/(1 − β) times that
    settings = [(reach * chain.width * (1 - beta) * p / chain.steepness, beta) for beta in BETAS for reach in REACHES]
    most, c = PATIENCE * needed, CONSTANTS["c"]
    runs = [Algorithm2(most, lr, 0.0, beta, c, seed) for seed in seeds for lr, beta in settings]

    def good(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(chain.gradient(x), dim=-1) <= eps

    outcomes = run_algorithm_2(oracle, runs, good=good, noise_seed=seeds[0], progress=progress)
    firsts = [[o.first for o in outcomes[i :: len(settings)]] for i in range(len(settings))]
    early = max(sum(n < needed for n in ns) for ns in firsts)
    taken, formula = min(map(median, firsts)), theory.lower_bound(eps, **CONSTANTS)
    return [ChainSearch(eps, chain.length, p, needed, formula, taken, early, len(settings), len(seeds))]


def jobs(first_seed: int) -> list[Callable[[Progress], list[ChainSearch]]]:
    """Return the work for `o2nc_experiments.pool`, the long ones first."""
    seeds = list(range(first_seed, first_seed + SEEDS))
    return [partial(search, eps, seeds) for eps in reversed(EPSILONS)]


def steps() -> int:
    """Return the number of batched steps of all `jobs`."""
    return sum(PATIENCE * _oracle(eps).steps(0.5) for eps in EPSILONS)
