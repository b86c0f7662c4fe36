"""How much do optimal weights gain in `o2nc.certify`, and what do they cost?

    python experiments/benchmarks/certify.py            # the last row holds 8 GB of iterates and gradients
    python experiments/benchmarks/certify.py --quick    # without it

Result: docs/paper.md, section 6 (two cores, torch 2.13 on a CPU).
"""

import resource
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

import o2nc
from o2nc.problems import DoubleWell
from o2nc_experiments import kit

BETA, C = 0.99, 1.0
Run = tuple[Callable[[Tensor], Tensor] | list[Tensor], list[Tensor]]


def double_well(dimension: int, steps: int) -> Run:
    """Return the gradient of a non-smooth problem and the iterates of Algorithm 2 with random scaling on it."""
    problem = DoubleWell(dimension)
    x = problem.start().requires_grad_()
    optimizer = o2nc.ExponentiatedO2NC([x], o2nc.learners.OGD(lr=0.02 * dimension**0.5, decay=1.0), beta=BETA, seed=0)
    iterates = []
    for _ in range(steps):
        iterates.append(x.detach().clone())
        x.grad = problem.gradient(x.detach())
        optimizer.step()
    return problem.gradient, iterates


def kink(dimension: int, steps: int) -> Run:
    """Return the gradients of (|x|₁ + ½‖x‖²)/√d along a random walk that drifts to the kink at 0, and the walk."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(dimension, generator=generator)
    iterates, gradients = [], []
    for _ in range(steps):
        iterates.append(x.clone())
        gradients.append((x.sign() + x) / dimension**0.5)
        x = 0.95 * x + (0.3 / dimension**0.5) * torch.randn(dimension, generator=generator)
    return gradients, iterates


def row(name: str, run: Run) -> list[str]:
    """Return the table's row: both certificates, the gain, the duality gap, seconds and megabytes."""
    gradient, iterates = run
    plain = o2nc.certify(gradient, iterates, C, beta=BETA, weights="exponential")
    memory, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, perf_counter()
    best = o2nc.certify(gradient, iterates, C, beta=BETA, weights="optimal")
    seconds = perf_counter() - begun
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 2**10  # kB on Linux
    gap = kit.NONE if best.gap is None else f"{best.gap:.0e}"
    values = [f"{plain.value:.4g}", f"{best.value:.4g}", f"{plain.value / best.value:.2f}"]
    return [name, *values, gap, f"{seconds:.2f}", f"{grown:.0f}"]


def main(quick: bool = False) -> None:
    """Print the table."""
    rows = [row("double well, d = 10, 1,000 iterates", double_well(10, 1000))]
    rows += [row(f"double well, d = 1,000, {n:,} iterates", double_well(1000, n)) for n in (100, 300, 1000)]
    rows += [] if quick else [row("kink, d = 1,000,000, 1,000 iterates", kink(1_000_000, 1000))]
    head = ["run", "exponential weights", "optimal weights", "gain", "gap", "seconds", "MB"]
    about = kit.circumstances("certify.py", c=C, beta=BETA)
    kit.Terminal().table(kit.Table(head, rows, notes=", ".join(f"{key} {value}" for key, value in about.items())))


if __name__ == "__main__":
    kit.run_script(main)
