"""Random scaling: E[F(x + sΔ) − F(x)] = E[w(s)⟨∇F(x + sΔ), Δ⟩], with kinks all along the way.

Every case is a law, a kinked function, a point and a direction; the difference of the two sides is a mean over
samples of the law, and must vanish within `Z` of its standard errors. The case shown has the greatest z-score.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from o2nc import Exponential, Gamma, Law, Uniform, Weibull
from o2nc.problems import Climber, DoubleWell, MultiKink, Problem
from o2nc_experiments.verify.check import Finding, Z, enough, greatest, statement

_STEP = 3.0  # the mean length of a move, over several kinks


def _cases(seed: int, count: int) -> Iterator[tuple[Problem, torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        for problem in (MultiKink(1), MultiKink(5), DoubleWell(1), DoubleWell(4), Climber(2)):
            x, delta = torch.from_numpy(rng.normal(size=(2, problem.dimension)))
            yield problem, problem.start() + x, delta * (_STEP / delta.norm())


def worst_identity(laws: Sequence[Law], seed: int, samples: int, cases: int) -> Finding:
    """Return the two sides of the identity where they are furthest apart, in standard errors."""
    worst = (-1.0, 0.0, 0.0, 0.0)
    for law in laws:
        s = torch.tensor([law.sample(seed, n) for n in range(1, samples + 1)], dtype=torch.float64)
        w = torch.tensor([law.weight(v) for v in s.tolist()], dtype=torch.float64)
        for problem, x, delta in _cases(seed, cases):
            y = x + s[:, None] * delta
            gain = problem.value(y) - problem.value(x)
            slope = w * (problem.gradient(y) @ delta)
            error = ((gain - slope).std() / samples**0.5).item()
            z = abs((gain - slope).mean().item()) / error
            worst = greatest(worst, (z, gain.mean().item(), slope.mean().item(), error))
    z, left, right, error = worst
    count = len(laws) * 5 * cases
    measured = f"largest of {count} z-scores {z:.1f} (limit {Z:g}), {samples} samples of every law"
    return Finding(measured, left, right, "==", tolerance=Z * error)


@statement("exponential-scaling", "E[F(x+sΔ)−F(x)] = E⟨∇F(x+sΔ),Δ⟩/λ")
def exponential_scaling(seed: int, scale: float) -> Finding:
    """Lemma exp-scaling, for three rates λ."""
    laws = [Exponential(rate) for rate in (0.5, 1.0, 3.0)]
    return worst_identity(laws, seed, enough(50_000, scale), cases=2)


@statement("other-laws", "E[F(x+sΔ)−F(x)] = E[w(s)⟨∇F(x+sΔ),Δ⟩]")
def other_laws(seed: int, scale: float) -> Finding:
    """The same for laws with the weight w = survival/density."""
    laws: list[Law] = [Uniform(0, 2), Uniform(0, 1)]
    laws += [Weibull(0.8), Weibull(1.5), Gamma(0.5), Gamma(1.5)]
    return worst_identity(laws, seed, enough(15_000, scale), cases=2)
