"""How far an average goes astray that is kept in 16 bits: x̄ and ḡ with β = 0.9999, after 20/(1 − β) steps.

    python experiments/benchmarks/sixteen_bits.py [--steps 200000]

A step changes x̄ by far less than a unit in its last place, so what is added has to be rounded at random. Three
formats by three ways of rounding, all coordinates with the same u at a step: to the nearest, u = ½; with u ~ U(0, 1);
and with u = n·0.618… mod 1, whose points are spread more evenly than random ones. `int16` has a scale for every 64
numbers.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

BETA, SIZE, BLOCK = 0.9999, 512, 64
GOLDEN = 0.6180339887498949


def cut(bits: int) -> Callable[[Tensor, float], Tensor]:
    """Return a rounding of float32 that leaves out so many bits, with the same range."""
    unit = 1 << bits
    return lambda x, u: ((x.view(torch.int32) + int(u * unit)) & -unit).view(torch.float32)


def by_blocks(x: Tensor, u: float) -> Tensor:
    """Round to whole multiples of a block's largest number over 32,767."""
    blocks = x.view(-1, BLOCK)
    unit = blocks.abs().amax(1, keepdim=True) / 32767
    return (torch.floor(blocks / unit + u) * unit).view(-1)


FORMATS = {"bfloat16": cut(16), "float16": cut(13), "int16, a scale for 64": by_blocks}
WAYS = ("nearest", "random", "golden")


def simulate(steps: int, adaptive: bool) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    """Return by format and way the relative error of x̄, and ‖ḡ‖ over that of float64."""
    torch.manual_seed(1)
    x, target = 0.02 * torch.randn(2, SIZE)
    momentum, square = torch.zeros(2, SIZE)
    x_exact, g_exact = x.double(), torch.zeros(SIZE, dtype=torch.float64)
    keys = [(name, way) for name in FORMATS for way in WAYS]
    x_mean, g_mean = {key: x.clone() for key in keys}, {key: torch.zeros(SIZE) for key in keys}
    for n in range(1, steps + 1):
        gamma = (1 - BETA) / (1 - BETA**n)
        u = {"nearest": 0.5, "random": torch.rand(()).item(), "golden": n * GOLDEN % 1}
        g = (2.5 if adaptive else 1.0) * (x - target) + (1.0 if adaptive else 0.02) * torch.randn(SIZE)
        x_exact += gamma * (x - x_exact)
        g_exact += gamma * (g - g_exact)
        for name, way in keys:
            for mean, value in ((x_mean, x), (g_mean, g)):
                old = mean[name, way]
                mean[name, way] = FORMATS[name](old + gamma * (value - old), u[way])
        if adaptive:
            momentum, square = 0.9 * momentum + 0.1 * g, 0.95 * square + 0.05 * g * g
            x = x - 3e-4 * momentum / (square.sqrt() + 1e-8)
        else:
            momentum = 0.9 * momentum + g
            x = x - 1e-5 * momentum
    errors = {key: float((mean - x_exact).norm() / x_exact.norm()) for key, mean in x_mean.items()}
    return errors, {key: float(mean.norm() / g_exact.norm()) for key, mean in g_mean.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=round(20 / (1 - BETA)))
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    (adam, adam_norm), (sgd, sgd_norm) = (simulate(steps, adaptive) for adaptive in (True, False))
    print("| format | rounding | x̄ of Adam | x̄ of SGD | ‖ḡ‖ of Adam | ‖ḡ‖ of SGD |\n|---|---|--:|--:|--:|--:|")
    for key in adam:
        print(
            f"| {' | '.join(key)} | {adam[key]:.1e} | {sgd[key]:.1e} | {adam_norm[key]:.3f} | {sgd_norm[key]:.3f} |"
        )


if __name__ == "__main__":
    main()
