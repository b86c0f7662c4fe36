"""What a log of certificates costs: training steps of ResNet-18 with `CertificateLogger` and without it, in turns.

    python experiments/benchmarks/logger.py [--device cpu] [--batch 4] [--every 100] [--rows 4]

Two networks with the same weights, data and optimizer take a training step each, turn by turn, so that whatever else
the machine does falls on both alike. The ratio is that of the times added up over all steps, rows included; the
medians have no row in them, and show what the hook costs in the steps between. A row is timed on its own as well.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import cross_entropy

import o2nc
from o2nc.logger import CertificateLogger
from o2nc_experiments import record
from o2nc_experiments.bench.timing import take_turns
from o2nc_experiments.classification.resnet import ResNet18
from o2nc_experiments.record import describe, find_device

TIMED = 20  # rows on their own


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--batch", type=int, help="4 on a CPU, 128 on a GPU")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--rows", type=int, default=4, help="how many are written in the steps that are compared")
    asked = parser.parse_args()
    device = find_device(asked.device)
    batch = asked.batch or {"cpu": 4, "cuda": 128}[device.type]
    about = record.circumstances(
        "python experiments/benchmarks/logger.py", batch=batch, every=asked.every, **describe(device)
    )
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    with tempfile.TemporaryDirectory() as folder:
        _, plain = make(device, batch)
        optimizer, logged = make(device, batch)
        log = CertificateLogger(optimizer, Path(folder) / "certificate.csv", every=asked.every)
        found = take_turns({"plain": plain, "logged": logged}, asked.rows * asked.every)
        written = len(log.path.read_text().splitlines()) - 1
        rows = [time_row(log, logged) for _ in range(TIMED)]
    without, with_log = (found[name].times for name in ("plain", "logged"))
    step, row = median(without), median(rows)
    print(f"{len(without)} training steps, {written} rows of {len(list(optimizer.state))} parameters")
    print(f"all steps: {sum(with_log):.2f} s with, {sum(without):.2f} s without: {sum(with_log) / sum(without):.4f}")
    print(f"medians: {1e3 * median(with_log):.2f} ms with, {1e3 * step:.2f} ms without")
    print(f"one row: {1e3 * row:.2f} ms, that is {row / (asked.every * step):.2%} of {asked.every} steps")


def make(device: torch.device, batch: int) -> tuple[o2nc.ScaledSGDM, Callable[[], None]]:
    """Return an optimizer and a training step, which ends when its work is done."""
    torch.manual_seed(0)
    model = ResNet18().to(device)
    optimizer = o2nc.ScaledSGDM(model.named_parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, average=0.999)
    images, labels = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return optimizer, step


def time_row(log: CertificateLogger, step: Callable[[], None]) -> float:
    """Return the seconds that a row takes after one more step."""
    step()
    begin = perf_counter()
    log.record()
    return perf_counter() - begin


if __name__ == "__main__":
    main()
