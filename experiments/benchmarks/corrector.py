"""What a law of s costs along a run, as `o2nc.CertificateLogger` measures it: scikit-learn's digits, a small network.

    python experiments/benchmarks/corrector.py [--steps 1500] [--every 25]

Of every optimizer and law the table has F before and after, on all images; the progress, which estimates its fall;
and the measured sum of G·L·‖Δ_{t+1} − Δ_t‖, by which the two may differ in the mean; G is the largest gradient met.
"""

import argparse
import csv
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import o2nc
from o2nc import Law

LAWS: tuple[Law, ...] = (o2nc.Exponential(), o2nc.Gamma(2), o2nc.Gamma(4), o2nc.Gamma(16), o2nc.Jitter(0.25))
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "ScaledSGDM, lr 0.05": lambda ps, law: o2nc.ScaledSGDM(ps, lr=0.05, momentum=0.9, average=0.99, scaling=law),
    "AdamW, lr 1e-3": lambda ps, law: o2nc.AdamW(ps, lr=1e-3, average=0.99, scaling=law),
    "NAdam, lr 1e-3": lambda ps, law: o2nc.extend(torch.optim.NAdam(ps, lr=1e-3), average=0.99, scaling=law),
}


def measure(make: Callable[..., torch.optim.Optimizer], law: Law, steps: int, every: int) -> tuple[float, ...]:
    """Return F at the start and at the end, the progress, G and the corrector's price."""
    images, labels = (torch.tensor(found) for found in load_digits(return_X_y=True))
    images = images.float() / 16
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer, chance = make(model.parameters(), law), torch.Generator().manual_seed(1)
    start = cross_entropy(model(images), labels).item()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "certificate.csv")
        with o2nc.CertificateLogger(optimizer, path, every=every, layers=False, corrector=True):
            for _ in range(steps):
                batch = torch.randint(len(images), (64,), generator=chance)
                optimizer.zero_grad()
                cross_entropy(model(images[batch]), labels[batch]).backward()
                optimizer.step()
        rows = list(csv.DictReader(path.open()))
    price = every * float(np.nansum([float(row["corrector"]) for row in rows]))
    end = cross_entropy(model(images), labels).item()
    return start, end, float(rows[-1]["progress"]), float(rows[-1]["lipschitz"]), price


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--every", type=int, default=25)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| optimizer | law | F | progress | G met | price |\n|---|---|--:|--:|--:|--:|")
    for name, make in OPTIMIZERS.items():
        for law in LAWS:
            start, end, progress, lipschitz, price = measure(make, law, given.steps, given.every)
            print(
                f"| {name} | {law} | {start:.3f} to {end:.3f} | {progress:.2f} | {lipschitz:.2f} | {price:.3g} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
