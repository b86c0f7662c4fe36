"""Images per second of ResNet-18 in training, from plain float32 to captured trials at once; error of bfloat16.

    python experiments/benchmarks/cifar10.py [--device cuda] [--rounds 5] [--out FOLDER]

Random images of CIFAR-10's shape: no data set is needed. All ways take turns in one run, so that ratios are fair. The
second table has the error of every kind of convolution of the network in bfloat16, in its output and both gradients,
against float64 on the same (rounded) numbers.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from o2nc_experiments import record
from o2nc_experiments.cifar10.arms import parse
from o2nc_experiments.cifar10.batches import Images, to_device
from o2nc_experiments.cifar10.data import Data
from o2nc_experiments.cifar10.names import TABLE
from o2nc_experiments.cifar10.options import Settings
from o2nc_experiments.cifar10.training import Trial
from o2nc_experiments.classification.resnet import ResNet18, layout
from o2nc_experiments.record import describe, find_device

SIZES = {"cpu": (8, 2000, 4), "cuda": (64, 50_000, 60)}  # width, images, steps per round
WARM_UP = 8
FAST = "bfloat16, compiled and captured"
TOGETHER = (1, 3, 4, 6)  # trials at once


def main() -> None:
    """Measure and print; write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = find_device(asked.device)
    width, count, steps = SIZES[device.type]
    about = record.circumstances(
        "python experiments/benchmarks/cifar10.py", batch=128, width=width, **describe(device)
    )
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    rows = speeds(device, width, count, steps, asked.rounds)
    print("| way | at once | ms per step | images/s | against float32 |\n|---|--:|--:|--:|--:|")
    for row in rows:
        print(f"| {row['way']} | {row['at once']} | {row['ms']:.3f} | {row['images/s']:,.0f} | {row['ratio']:.2f} |")
    errors = [error(layer, device) for layer in layers(width)]
    print("\n| convolution | output | gradient of the input | of the weights |\n|---|--:|--:|--:|")
    for row in errors:
        print(f"| {row['convolution']} | {row['output']:.1e} | {row['input']:.1e} | {row['weights']:.1e} |")
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        record.write(asked.out / "cifar10_speed.json", {"circumstances": about, "speeds": rows, "errors": errors})


def speeds(device: torch.device, width: int, count: int, steps: int, rounds: int) -> list[dict[str, Any]]:
    """Return one row per way of training."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count + 1000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (count + 1000,), generator=generator)
    data = to_device(Data(images[1000:], labels[1000:], images[:1000], labels[:1000], "random", ""), device)
    settings = Settings(width=width)
    full = make(settings, data, fast=False)
    full.autocast = nullcontext  # float32 throughout, as torch has it: convolutions on a GPU may use tf32
    ways = [("float32, launched one by one", [full])]
    if device.type == "cuda":
        ways.append(("bfloat16, launched one by one", [make(settings, data, fast=False)]))
        ways += [(FAST, [make(settings, data, seed) for seed in range(k)]) for k in TOGETHER]
    times: list[list[float]] = [[] for _ in ways]
    for turn in range(rounds + 1):
        for (_, trials), found in zip(ways, times, strict=True):
            made = WARM_UP if turn == 0 else steps
            for trial in trials:
                trial.begin_epoch()
            _wait(device)
            begin = perf_counter()
            for _ in range(made):
                for trial in trials:
                    trial.step()
            _wait(device)
            if turn:
                found.append((perf_counter() - begin) / made / len(trials))
    middle = [median(found) for found in times]
    return [
        {"way": way, "at once": len(trials), "ms": 1e3 * t, "images/s": settings.batch / t, "ratio": middle[0] / t}
        for (way, trials), t in zip(ways, middle, strict=True)
    ]


def make(settings: Settings, data: Images, seed: int = 0, *, fast: bool = True) -> Trial:
    """Return a trial."""
    trial = Trial(parse(TABLE[1]), seed, settings, data, fast=fast)
    _wait(data.train.device)
    return trial


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def layers(width: int) -> list[tuple[nn.Conv2d, tuple[int, ...]]]:
    """Return the network's different convolutions and the shapes of their inputs, for a batch of 128."""
    found: dict[str, tuple[nn.Conv2d, tuple[int, ...]]] = {}
    model = ResNet18(width=width)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(
                lambda layer, x: found.setdefault(str((str(layer), x[0].shape)), (layer, x[0].shape)) and None
            )
    with torch.no_grad():
        model.eval()(torch.zeros(128, 3, 32, 32))
    return list(found.values())


def error(layer: tuple[nn.Conv2d, tuple[int, ...]], device: torch.device) -> dict[str, Any]:
    """Return ‖bfloat16 − float64‖ / ‖float64‖ of a convolution and its gradients."""
    conv, shape = layer
    generator = torch.Generator().manual_seed(0)

    def run(dtype: torch.dtype) -> list[Tensor]:
        x, weight = (
            torch.randn(size, generator=generator.manual_seed(i))
            .to(device, torch.bfloat16, memory_format=layout(device))
            .to(dtype)
            .requires_grad_()
            for i, size in enumerate((shape, conv.weight.shape))
        )
        y = conv2d(x, weight, stride=conv.stride, padding=conv.padding)
        upstream = torch.randn(y.shape, generator=generator.manual_seed(2)).to(device, torch.bfloat16).to(dtype)
        return [y.detach(), *torch.autograd.grad(y, (x, weight), upstream)]

    found = [
        float((half.double() - exact).norm() / exact.norm())
        for half, exact in zip(run(torch.bfloat16), run(torch.float64), strict=True)
    ]
    kernel = f"{conv.kernel_size[0]}×{conv.kernel_size[1]}, stride {conv.stride[0]}"
    name = f"{conv.in_channels} → {conv.out_channels}, {kernel}, {shape[2]}×{shape[3]}"
    return {"convolution": name, **dict(zip(("output", "input", "weights"), found, strict=True))}


if __name__ == "__main__":
    main()
