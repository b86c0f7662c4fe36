"""Time of one optimizer step on a CPU, as a ratio to torch.optim.SGD with the same setting.

All contenders are stepped in turn within one run, so that they share whatever the machine is doing; the figure is the
median over rounds of the ratio to SGD in the same round. "SGD again" is SGD against itself: the noise floor.

    python benchmarks/step_cpu.py [--rounds 41] [--json FILE]
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import o2nc

# the 62 parameters of ResNet-18 for CIFAR-10 (3×3 stem, 10 classes): 11,173,962 numbers
STAGES = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]


def resnet18() -> list[tuple[int, ...]]:
    """Return the shapes of ResNet-18's parameters."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    for wide_in, wide_out, stride in STAGES:
        for width in (wide_in, wide_out):
            shapes += [(wide_out, width, 3, 3), (wide_out,), (wide_out,)]
            shapes += [(wide_out, wide_out, 3, 3), (wide_out,), (wide_out,)]
            if width == wide_in and stride != 1:
                shapes += [(wide_out, wide_in, 1, 1), (wide_out,), (wide_out,)]
    return [*shapes, (10, 512), (10,)]


MODELS: dict[str, list[tuple[int, ...]]] = {
    "ResNet-18, 62 tensors": resnet18(),
    "2 tensors of 50 M": [(50_000_000,)] * 2,
    "1,000 tensors of 100": [(100,)] * 1000,
}
Make = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


def contenders(setting: dict[str, bool]) -> dict[str, Make]:
    """Return the optimizers to compare, SGD first."""
    common: dict[str, Any] = {"lr": 1e-3, "momentum": 0.9, **setting}
    return {
        "SGD": lambda ps: torch.optim.SGD(ps, **common),
        "SGD again": lambda ps: torch.optim.SGD(ps, **common),
        "ScaledSGDM": lambda ps: o2nc.ScaledSGDM(ps, **common),
        "ScaledSGDM average=0.999": lambda ps: o2nc.ScaledSGDM(ps, average=0.999, **common),
        "ScaledSGDM average=momentum": lambda ps: o2nc.ScaledSGDM(ps, average=0.9, **common),
    }


def measure(shapes: list[tuple[int, ...]], makers: dict[str, Make], rounds: int) -> dict[str, tuple[float, float]]:
    """Return the median ratio to the first contender and the median milliseconds, for each."""
    params = [torch.randn(shape, requires_grad=True) for shape in shapes]
    for p in params:
        p.grad = 1e-3 * torch.randn_like(p)
    optimizers = {name: make(params) for name, make in makers.items()}
    times: dict[str, list[float]] = {name: [] for name in makers}
    names = list(makers)
    for turn in range(rounds + 2):
        shift = turn % len(names)  # a different one goes first in each round
        for name in names[shift:] + names[:shift]:
            begin = time.perf_counter()
            optimizers[name].step()
            if turn >= 2:  # the first steps make the state
                times[name].append(time.perf_counter() - begin)
    base = times[names[0]]
    return {
        name: (
            statistics.median(t / b for t, b in zip(ts, base, strict=True)),
            1e3 * statistics.median(ts),
        )
        for name, ts in times.items()
    }


def main() -> None:
    """Run and print one table per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41, help="timed rounds per model")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    where = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    print(f"{where}; median of {arguments.rounds} interleaved rounds: ratio to SGD (milliseconds)\n")
    figures: dict[str, Any] = {"machine": where, "rounds": arguments.rounds}
    for setting in ({"foreach": True}, {"fused": True}):
        makers = contenders(setting)
        label = next(iter(setting))
        print(f"{label + '=True':28}" + "".join(f"{name:>26}" for name in MODELS))
        rows = {model: measure(shapes, makers, arguments.rounds) for model, shapes in MODELS.items()}
        for name in makers:
            cells = (f"{rows[model][name][0]:.2f} ({rows[model][name][1]:.2f})" for model in MODELS)
            print(f"{name:28}" + "".join(f"{cell:>26}" for cell in cells))
        print()
        figures[label] = rows
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
