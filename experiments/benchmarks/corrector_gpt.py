"""What a law of s costs along a run of any optimizer, as `o2nc.CertificateLogger` measures it: a small GPT.

    python experiments/benchmarks/corrector_gpt.py [--steps 300] [--seed 0] [--arm 'muon(lr=0.016):wsd20~gamma(16)' …]

For each arm, which needs a law and is written as for `o2nc gpt`: how far F fell on the texts that are held out; the
progress, which estimates it; the price G·L·Σ‖Δ_{t+1} − Δ_t‖, by which the two may differ in the mean; the share
ρ = Σ‖Δ_{t+1} − Δ_t‖/Σ‖Δ_t‖ of a step that is new; and the certificate's ‖ḡ‖ by t^12 beside G·L·ρ, which is the price
in its units: Σ⟨g, Δ⟩ can be told up to the price, hence the mean of gradients along steps of length ‖Δ‖ up to G·L·ρ.
G is the largest gradient met; nothing is clipped, or the progress would be that of the clipped gradients. Every step
is measured, since the model is small.
"""

import argparse
import csv
import math
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import o2nc
from o2nc import scaling
from o2nc_experiments.gpt import data
from o2nc_experiments.gpt.arms import Arm, parse
from o2nc_experiments.gpt.options import SMALL
from o2nc_experiments.gpt.training import Trainer, Training

OPTIMIZERS = ("sgdm(lr=0.1)", "adamw(lr=4e-3)", "nadam(lr=4e-3)", "scale-free(lr=1e-3)", "muon(lr=0.016)")
LAWS = ("gamma(4)", "gamma(16)", "jitter(0.25)")
WINDOW = "t^12"


def measure(trainer: Trainer, arm: Arm, steps: int, seed: int) -> str:
    """Train, and return a line of the table."""
    assert arm.law is not None, f"{arm.name} has no law"
    training = Training(trainer, arm, arm.lr, seed, [WINDOW], steps)
    start, total, lipschitz = trainer.evaluate(), 0.0, 0.0
    params = list(trainer.model.parameters())
    x = flat(params)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as inside:
        paths = [Path(folder, f"{i}.csv") for i in range(len(training.optimizers))]
        for optimizer, path in zip(training.optimizers, paths, strict=True):
            logger = o2nc.CertificateLogger(optimizer, path, every=1, layers=False, corrector=1.0)
            inside.enter_context(logger)
        for t in range(1, steps + 1):
            training.advance(arm.schedule.factor(t - 1, steps, trainer.settings.warmup))
            before, x = x, flat(params)
            lipschitz = max(lipschitz, float(flat(p.grad for p in params if p.grad is not None).norm()))
            total += float((x - before).norm()) / arm.law.sample(seed, t + 1)
        inside.close()
        terms = [[float(row["corrector"]) for row in csv.DictReader(path.open())] for path in paths]
    joint = [math.hypot(*parts) for parts in zip(*terms, strict=True)]  # Muon's two optimizers are one vector
    price = lipschitz * sum(term for term in joint if not math.isnan(term))  # in the first two steps nothing is known
    fall, known = start - trainer.evaluate(), training.certificate()
    assert known is not None
    share = price / (lipschitz * scaling.price(arm.law) * total)
    cells = [fall, -known.progress, lipschitz, price, share, known.gradient, price / total]
    return f"| {arm.name} | " + " | ".join(f"{cell:.3g}" for cell in cells) + " |"


def flat(params: Iterable[Tensor]) -> Tensor:
    """Return all parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in params])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arm", action="append")
    given = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(data.load(None), replace(SMALL, clip=math.inf), torch.device("cpu"))
    print("| arm | F fell by | progress | G met | price | ρ | ‖ḡ‖ | G·L·ρ |\n|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in given.arm or [f"{optimizer}:wsd20~{law}" for optimizer in OPTIMIZERS for law in LAWS]:
        print(measure(trainer, parse(name), given.steps, given.seed), flush=True)


if __name__ == "__main__":
    main()
