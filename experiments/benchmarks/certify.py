"""Values, gaps and times of `o2nc.certify`: exponential weights, optimal ones, optimal ones with the same mean.

    python experiments/benchmarks/certify.py [--quick]

The last row holds 8 GB of iterates and gradients; --quick leaves it out.
"""

import argparse
import importlib.metadata
import platform
import resource
import time
from collections.abc import Callable

import torch
from torch import Tensor

import o2nc
from o2nc.problems import DoubleWell

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


def synthetic(dimension: int, steps: int) -> Run:
    """Return iterates of a random walk that drifts to a kink at 0, and the gradients of (|x|_1 + ½‖x‖²)/√d there."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(dimension, generator=generator)
    iterates, gradients = [], []
    for _ in range(steps):
        iterates.append(x.clone())
        gradients.append((x.sign() + x) / dimension**0.5)
        x = 0.95 * x + (0.3 / dimension**0.5) * torch.randn(dimension, generator=generator)
    return gradients, iterates


def row(name: str, run: Run) -> str:
    """Certify one run in the three ways and return a line of the table."""
    gradient, iterates = run
    cells = []
    for weights, centre in (("exponential", "free"), ("optimal", "free"), ("optimal", "fixed")):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        certificate = o2nc.certify(gradient, iterates, C, beta=BETA, weights=weights, centre=centre)
        seconds = time.perf_counter() - begin
        extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10  # kB on Linux
        gap = "" if certificate.gap is None else f" gap {certificate.gap:.0e}"
        cells.append((certificate.value, f"{certificate.value:.4g}{gap}, {seconds:.2f} s, {extra:.0f} MB"))
    gains = " ".join(f"{cells[0][0] / value:.2f}x" for value, _ in cells[1:])
    return f"{name:24}" + "".join(f"{text:>38}" for _, text in cells) + f"   {gains}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out d = 1e6")
    quick = parser.parse_args().quick
    versions = f"torch {torch.__version__}, clarabel {importlib.metadata.version('clarabel')}"
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, {versions}; c = {C:g}, beta = {BETA:g}")
    print(
        "each cell: value, duality gap, seconds, growth of peak memory; gain: exponential / optimal, free and fixed\n"
    )
    print(f"{'run':24}{'exponential':>38}{'optimal, free':>38}{'optimal, fixed':>38}   gain")
    print(row("double well 10, K=1000", double_well(10, 1000)))
    for steps in (100, 300, 1000):
        print(row(f"double well 1000, K={steps}", double_well(1000, steps)))
    if not quick:
        print(row("kink 1e6, K=1000", synthetic(1_000_000, 1000)))


if __name__ == "__main__":
    main()
