"""What do averages cost a training step of a GPT: beside the parameters, and in the host's memory (``offload``)?

    python experiments/benchmarks/offload.py                                      # 162 M parameters, for a GPU
    python experiments/benchmarks/offload.py --layers 2 --width 64 --heads 4 --context 64 --rows 8 --vocabulary 256

Optimizers take turns of some steps each; ratios are to torch's fused AdamW in the same round, medians over rounds.

Result: docs/performance.md, "Averages in the host's memory" (H200, torch 2.11).
"""

from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.optim import AdamW

import o2nc
from o2nc_experiments import kit
from o2nc_experiments.gpt_model import GPT

LR = 1e-6
BASE = "torch AdamW, fused"


def line_up(every: list[int]) -> dict[str, Callable[[Any], Any]]:
    """Return the optimizers that take turns."""
    found: dict[str, Callable[[Any], Any]] = {
        BASE: lambda params: AdamW(params, LR, fused=True),
        "o2nc.AdamW, x̄ and certificate": lambda params: o2nc.AdamW(
            params, LR, average=o2nc.Polynomial(12), certificate=True
        ),
    }
    for k in every:
        found[f"o2nc.AdamW, x̄ in the host's memory, every {k} steps"] = lambda params, k=k: o2nc.AdamW(  # type: ignore[misc]
            params, LR, average=o2nc.Polynomial(12, every=k), offload=True
        )
    return found


def main(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    context: int = 1024,
    rows: int = 32,
    vocabulary: int = 50_304,
    every: str = "16,64",
    rounds: int = 3,
    device: str | None = None,
) -> None:
    """Measure and print."""
    where, terminal = kit.find_device(device), kit.Terminal()
    cuda, counts = where.type == "cuda", kit.numbers("--every", every, int, 1)
    model = GPT(layers, width, heads, context, vocabulary).to(where)
    model.init_weights_(0)
    if cuda:
        model.compile(dynamic=False)
    batch = torch.randint(vocabulary, (rows, context + 1), device=where)
    count, steps = sum(p.numel() for p in model.parameters()), max(counts)
    times: dict[str, list[float]] = {}
    state: dict[str, float] = {}
    for i in range(rounds + 1):
        for name, make in line_up(counts).items():
            optimizer = make(list(model.parameters()))
            for _ in range(3):  # create the state
                train(model, optimizer, batch)
            begun = _now(cuda)
            for _ in range(steps):
                train(model, optimizer, batch)
            if i:  # the first round compiles kernels
                times.setdefault(name, []).append((_now(cuda) - begun) / steps)
            tensors = [v for own in optimizer.state.values() for v in own.values() if isinstance(v, torch.Tensor)]
            state[name] = sum(v.numel() * v.element_size() for v in tensors if v.device.type == where.type) / count
    table = []
    for name, taken in times.items():
        ratio = median(a / b for a, b in zip(taken, times[BASE], strict=True))
        table.append([name, f"{1e3 * median(taken):.2f}", f"{ratio:.3f}", f"{state[name]:.1f}"])
    head = ["a training step with", "ms", "× torch", "state on the device, bytes per parameter"]
    about = kit.circumstances("offload.py", where, parameters=count, tokens=rows * context, rounds=rounds)
    terminal.table(kit.Table(head, table, notes=", ".join(f"{key} {value}" for key, value in about.items())))


def train(model: GPT, optimizer: Any, batch: torch.Tensor) -> None:
    """Make one training step."""
    with torch.autocast("cuda", torch.bfloat16) if batch.is_cuda else nullcontext():
        loss = model(batch)
    model.zero_grad()
    loss.backward()
    optimizer.step()


def _now(cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    return perf_counter()


if __name__ == "__main__":
    kit.run_script(main)
