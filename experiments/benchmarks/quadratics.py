"""An average against a decay where both can be computed: noisy parabolas, in exact expectation.

    python experiments/benchmarks/quadratics.py --steps 1000,4000 --dimension 500

SGD on F(x) = ½Σ h_i x_i² with h_i = i^{−α}, the gradient off by √h_i times a normal number of variance 1, as in least
squares; every x_i begins at the same distance. All iterates are linear in the start and in the noise, so E F of the
last one, at any learning rates, and of x̄ with any weights are sums: nothing is drawn. Each way has the best of a grid
of learning rates a factor 2^¼ apart. The table has E F relative to that of linear decay.

Result: docs/no-schedule.md, "Why it works": x̄ by t^2 is ahead of every decay, t^12 of a decay over the last 20 %.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from o2nc_experiments import kit

SETTINGS = ((1.5, 1.0), (1.5, 4.0), (1.1, 2.0))  # α, and the distance from 0 at which every x_i starts
LEARNING_RATES = [2 ** (k / 4) for k in range(-28, 4)]
POWERS = (2, 4, 8, 12, 16)
DECAYS: Mapping[str, Callable[[Tensor], Tensor]] = {  # of the share of the run that is left
    "linear": lambda left: left,
    "cosine": lambda left: (1 - torch.cos(math.pi * left)) / 2,
    "last 40 %": lambda left: (left / 0.4).clamp(max=1),
    "last 20 %": lambda left: (left / 0.2).clamp(max=1),
    "last 10 %": lambda left: (left / 0.1).clamp(max=1),
    "constant": lambda left: torch.ones_like(left),
}


def main(steps: str = "1000,4000", dimension: int = 500) -> None:
    """Compute and print."""
    found = {}
    for alpha, distance in SETTINGS:
        curvatures = torch.arange(1, dimension + 1, dtype=torch.float64) ** -alpha
        for n in kit.numbers("--steps", steps, int, 1):
            found[f"{alpha:g}, {distance:g}; {n:,}"] = compare(curvatures, distance, n)
    names = next(iter(found.values()))
    rows = [[name, *(f"{own[name] / own['linear']:.2f}" for own in found.values())] for name in names]
    kit.Terminal().table(kit.Table(["α, distance; steps", *found], rows))


def compare(curvatures: Tensor, distance: float, steps: int) -> dict[str, float]:
    """Return the least E F of every way, over the learning rates."""
    left = 1 - torch.arange(steps, dtype=torch.float64) / steps
    found = {
        name: min(decayed(curvatures, distance, lr * decay(left)) for lr in LEARNING_RATES)
        for name, decay in DECAYS.items()
    }
    share = torch.arange(1, steps + 1, dtype=torch.float64) / steps
    weights = torch.stack([share**power / (share**power).sum() for power in POWERS])
    averages = torch.stack([averaged(curvatures, distance, lr, weights) for lr in LEARNING_RATES]).amin(dim=0)
    return found | {f"x̄ by t^{power}": float(value) for power, value in zip(POWERS, averages, strict=True)}


def decayed(curvatures: Tensor, distance: float, lrs: Tensor) -> float:
    """Return E F of the last iterate."""
    mean, variance = torch.full_like(curvatures, distance), torch.zeros_like(curvatures)
    for lr in lrs.tolist():
        shrinks = 1 - lr * curvatures
        mean, variance = shrinks * mean, shrinks**2 * variance + lr**2 * curvatures
    return float((curvatures * (mean**2 + variance)).sum() / 2)


def averaged(curvatures: Tensor, distance: float, lr: float, weights: Tensor) -> Tensor:
    """Return E F of x̄ for every row of weights; going back in time, ``factor`` is what a step's noise counts in x̄."""
    shrinks = 1 - lr * curvatures
    factor = torch.zeros(len(weights), len(curvatures), dtype=torch.float64)
    squares = torch.zeros_like(factor)
    for weight in weights.T.flip(0):
        factor = weight[:, None] + shrinks * factor
        squares += factor**2
    mean, variance = shrinks * factor * distance, lr**2 * curvatures * squares
    return (curvatures * (mean**2 + variance)).sum(dim=1) / 2


if __name__ == "__main__":
    kit.run_script(main)
