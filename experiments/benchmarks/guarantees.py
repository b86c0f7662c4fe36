"""`o2nc.theory.guarantee` against measured runs: for random learning rates and momenta, and for every law of s.

    python experiments/benchmarks/guarantees.py [--pairs 30] [--steps 2000] [--seeds 8] [--long 16384] [--laws]

Attained is the mean of ‖Σp∇F‖ + cV over a run by the law of the output, and over the seeds. The first table has the
least bound/attained on problems of the library, with noise and without; the second the price of each law, the steps
that are guaranteed at c = F* = G = 1, ε = 0.1, and the least bound/attained with it. The third and fourth have what
each law attains in ``--long`` steps, on the adversary and on problems: with the best lr and β that its own guarantee
knows, beside the guarantee; and with those of Exp(1). ``--laws`` prints these two only.
"""

import argparse
import math
import platform
from typing import Any

import numpy as np
import torch

import o2nc
from o2nc import Law, problems, theory
from o2nc.problems import Additive, Oracle, Subsampled
from o2nc_experiments.batch import Algorithm2, run_algorithm_2

ORACLES: dict[str, Oracle] = {
    "double well": Additive(problems.DoubleWell(10), 1.0),
    "double well, exact": Additive(problems.DoubleWell(10), 0.0),
    "many kinks": Additive(problems.MultiKink(10), 1.0),
    "cosines": Additive(problems.Cosine(10), 1.0),
    "ripples": Additive(problems.Ripple(4), 0.0),
    "max of affine pieces": Additive(problems.MaxAffine(20, 30), 1.0),
    "Chebyshev–Rosenbrock": Additive(problems.ChebyshevRosenbrock(5), 1.0),
    "phase retrieval": Subsampled(problems.PhaseRetrieval(5, 40), 4),
    "ReLU regression": Subsampled(problems.ReluRegression(5, 8, 40), 4),
    "trap L1": Additive(problems.Resonance.locked(1), 0.0),
    "climber": Additive(problems.Climber(1), 0.0),
}
LAWS: tuple[Law, ...] = (
    o2nc.Exponential(),
    o2nc.Gamma(2.0),
    o2nc.Weibull(1.5),
    o2nc.Gamma(4.0),
    o2nc.Jitter(1.0),
    o2nc.Gamma(16.0),
    o2nc.Jitter(0.5),
    o2nc.Jitter(0.25),
)
C = 1.0
LONG: dict[str, Oracle | float] = {
    "washboard, σ = 0": 0.0,  # the adversary is made against each plan, by its noise alone
    "washboard, σ = 1": 1.0,
    "double well": ORACLES["double well"],
    "many kinks": ORACLES["many kinks"],
    "max of affine pieces": ORACLES["max of affine pieces"],
}


def random_runs(oracle: Oracle, pairs: int, steps: int, seed: int) -> list[tuple[float, float, float, str]]:
    """Draw lr, momentum, c and the law of the output; the lr around what moves a tenth of the gap in a run."""
    rng, problem = np.random.default_rng(seed), oracle.problem
    size = math.hypot(problem.lipschitz, oracle.noise)
    drawn = []
    for i in range(pairs):
        momentum = 1 - 10 ** rng.uniform(-3, -0.5)
        lr = problem.gap / (size**2 * steps) * 10 ** rng.uniform(-1, 2.5)
        drawn.append((lr, momentum, 10 ** rng.uniform(-3, 1), ("uniform", "geometric")[i % 2]))
    return drawn


def ratios(oracle: Oracle, law: Law, pairs: int, steps: int, seeds: int, seed: int = 0) -> list[tuple[float, float]]:
    """Return bound and attained of every random run."""
    problem, drawn = oracle.problem, random_runs(oracle, pairs, steps, seed)
    runs = [
        Algorithm2(steps, lr / momentum, 0.0, momentum, c, seed + k, law, output)
        for lr, momentum, c, output in drawn
        for k in range(seeds)
    ]
    attained = np.array([run.certificate for run in run_algorithm_2(oracle, runs, noise_seed=seed)])
    known = {"steps": steps, "gap": problem.gap, "lipschitz": problem.lipschitz, "noise": oracle.noise, "law": law}
    bounds = [theory.guarantee(lr=lr, momentum=b, c=c, output=out, **known).bound for lr, b, c, out in drawn]  # type: ignore[arg-type]
    return list(zip(bounds, attained.reshape(pairs, seeds).mean(1).tolist(), strict=True))


def attained(where: Oracle | float, steps: int, seeds: int) -> list[tuple[float, float, float]]:
    """Return for every law what its own plan guarantees, what that attains, and what the plan of Exp(1) attains."""
    known = _constants(where)
    plans = [theory.plan(steps, C, **known, law=law) for law in LAWS]
    jobs = list(zip(plans, LAWS, strict=True)) + [(plans[0], law) for law in LAWS]
    oracles = [_oracle(where, plan, steps) for plan, _ in jobs]
    values = np.empty(len(jobs))
    for oracle in dict.fromkeys(oracles):  # all runs on one problem together
        at = [i for i, other in enumerate(oracles) if other == oracle]
        runs = [Algorithm2.of(jobs[i][0], seed, jobs[i][1]) for i in at for seed in range(seeds)]
        found = [run.certificate for run in run_algorithm_2(oracle, runs)]
        values[at] = np.reshape(found, (len(at), seeds)).mean(1)
    half = len(LAWS)
    return list(zip((p.bound for p in plans), values[:half].tolist(), values[half:].tolist(), strict=True))


def _oracle(where: Oracle | float, plan: theory.Plan, steps: int) -> Oracle:
    if not isinstance(where, float):
        return where
    return Additive(problems.Washboard.against(plan.lr, plan.beta, steps), where)


def _constants(where: Oracle | float) -> dict[str, Any]:
    if isinstance(where, float):
        return {"gap": 1.0, "lipschitz": 1.0, "noise": where}
    return {"gap": where.problem.gap, "lipschitz": where.problem.lipschitz, "noise": where.noise}


def print_attained(steps: int, seeds: int) -> None:
    """Print what every law attains: with its own plan, and with that of Exp(1)."""
    found = [attained(where, steps, seeds) for where in LONG.values()]
    head = f"| law | {' | '.join(LONG)} |\n|---|{'--:|' * len(LONG)}"
    print(f"\nits own plan: attained of guaranteed, {steps:,} steps\n\n{head}")
    for law, row in zip(LAWS, zip(*found, strict=True), strict=True):
        assert all(bound >= value for bound, value, _ in row)
        print(f"| {law} | {' | '.join(f'{value:.3f} of {bound:.3f}' for bound, value, _ in row)} |")
    print(f"\nthe plan of Exp(1)\n\n{head}")
    for law, row in zip(LAWS, zip(*found, strict=True), strict=True):
        print(f"| {law} | {' | '.join(f'{value:.3f}' for *_, value in row)} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--long", type=int, default=1 << 14)
    parser.add_argument("--laws", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{given}, torch {torch.__version__}, {platform.machine()}\n")
    if given.laws:
        print_attained(given.long, given.seeds)
        return
    print("| problem | least bound/attained | median | not vacuous |\n|---|--:|--:|--:|")
    for name, oracle in ORACLES.items():
        found = ratios(oracle, LAWS[0], given.pairs, given.steps, given.seeds)
        quotients = [bound / attained for bound, attained in found]
        told = sum(bound < oracle.problem.lipschitz for bound, _ in found)
        print(f"| {name} | {min(quotients):.2f} | {np.median(quotients):.2f} | {told} of {len(found)} |")
    print("\n| law | E s² | L | steps, σ = 0 | steps, σ = 1 | least bound/attained |\n|---|--:|--:|--:|--:|--:|")
    for law in LAWS:
        steps = [theory.steps_for(0.1, 1.0, gap=1.0, lipschitz=1.0, noise=noise, law=law) for noise in (0.0, 1.0)]
        oracles = [ORACLES[name] for name in ("double well", "double well, exact", "many kinks", "climber")]
        few = max(given.pairs // 3, 1)
        found = [pair for oracle in oracles for pair in ratios(oracle, law, few, given.steps, given.seeds)]
        least = min(bound / attained for bound, attained in found)
        moment = law.second_moment  # type: ignore[attr-defined]
        price = law.price  # type: ignore[attr-defined]
        print(f"| {law} | {moment:.4g} | {price:.4g} | {steps[0]:,} | {steps[1]:,} | {least:.2f} |")
    print_attained(given.long, given.seeds)


if __name__ == "__main__":
    main()
