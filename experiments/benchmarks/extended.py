"""What averages add to torch's AdamW on a CPU, in times of its foreach step alone.

    python experiments/benchmarks/extended.py [--model resnet18] [--rounds 30] [--threads 1]

The optimizers take turns, and every ratio is taken within a round: the time that a step adds, of this process, over
that of AdamW's. The last rows are of o2nc.AdamW, and of the average that torch offers.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

import o2nc
from o2nc_experiments import record
from o2nc_experiments.bench.contenders import MODELS, WithEma, parameters
from o2nc_experiments.record import describe

WARM_UP = 3
ALONE = "AdamW(foreach=True)"
MODELS["matrices"] = lambda: [(1024, 1024)] * 24
WINDOW = o2nc.Polynomial(12)


def extended(params: list[Tensor], **options: Any) -> Any:
    """Return torch's AdamW with averages."""
    return o2nc.extend(AdamW(params, foreach=True), average=WINDOW, **options)


ENTRANTS: dict[str, Callable[[list[Tensor]], Any]] = {
    ALONE: partial(AdamW, foreach=True),
    "extend, x̄": partial(extended, certificate=False, progress=False),
    "extend, x̄ and certificate": partial(extended, progress=False),
    "extend, x̄, certificate and progress": extended,
    "o2nc.AdamW, x̄": partial(o2nc.AdamW, foreach=True, average=WINDOW, certificate=False),
    "o2nc.AdamW, x̄ and certificate": partial(o2nc.AdamW, foreach=True, average=WINDOW, progress=False),
    "o2nc.AdamW, x̄, certificate and progress": partial(o2nc.AdamW, foreach=True, average=WINDOW),
    "swa_utils' EMA": partial(WithEma, foreach=True),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    cpu = torch.device("cpu")
    about = record.circumstances("python experiments/benchmarks/extended.py", rounds=asked.rounds, **describe(cpu))
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    for model in asked.model or ("many", "resnet18", "matrices"):
        steps = {name: make(parameters(model, cpu, 0)).step for name, make in ENTRANTS.items()}
        times = in_turns(steps, asked.rounds)
        alone = times.pop(ALONE)
        print(f"{model}: {ALONE} {1e3 * median(alone):.2f} ms")
        for name, found in times.items():
            added = median((t - base) / base for t, base in zip(found, alone, strict=True))
            print(f"  {name}: {1e3 * median(found):.2f} ms, adds {added:.2f} of it")


def in_turns(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of this process that each step took, round by round."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(WARM_UP + rounds):
        for name, step in steps.items():
            begin = process_time()
            step()
            if turn >= WARM_UP:
                times[name].append(process_time() - begin)
    return times


if __name__ == "__main__":
    main()
