"""What averages cost a training step of a GPT: beside the parameters, and in the host's memory with ``offload=k``.

    python experiments/benchmarks/offload.py [--layers 12 --width 768 --heads 12 --context 1024 --batch 32768]

The default is of GPT-2's size, 162 M parameters with a head of its own, in bfloat16 and compiled; on a CPU give
smaller numbers. The optimizers take turns of some steps each, and ratios are to torch's fused AdamW in the same
round. Every turn has one step at which the iterate is taken in for each k steps.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.optim import AdamW

import o2nc
from o2nc_experiments.gpt.data import Corpus
from o2nc_experiments.gpt.options import Settings
from o2nc_experiments.gpt.training import Trainer
from o2nc_experiments.record import describe

WINDOW = o2nc.Polynomial(12)
ALONE = "torch AdamW(fused=True)"


def entrants(every: list[int]) -> dict[str, Callable[[Any], Any]]:
    """Return what takes turns, by name."""
    found: dict[str, Callable[[Any], Any]] = {
        ALONE: lambda params: AdamW(params, lr=1e-6, fused=True),
        "o2nc.AdamW, x̄ and certificate": lambda params: o2nc.AdamW(params, lr=1e-6, average=WINDOW),
    }
    for k in every:
        found[f"o2nc.AdamW, offload={k}"] = lambda params, k=k: o2nc.AdamW(  # type: ignore[misc]
            params, lr=1e-6, fused=True, average=WINDOW, offload=k
        )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 12), ("width", 768), ("heads", 12), ("context", 1024), ("batch", 32_768)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--vocabulary", type=int, default=50_304)
    parser.add_argument("--offload", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    asked = vars(parser.parse_args())
    vocabulary, every, rounds = (asked.pop(name) for name in ("vocabulary", "offload", "rounds"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = Settings(**asked, evaluated=asked["context"])
    tokens = torch.randint(vocabulary, (4 * asked["batch"],), dtype=torch.int32).numpy().astype("uint16")
    trainer = Trainer(Corpus(tokens, tokens, vocabulary, "random"), settings, device)
    trainer.warm_up()
    print(f"{trainer.parameters / 1e6:.1f} M parameters, {asked['batch']} tokens a step; {describe(device)}")
    batch = trainer.read(torch.arange(settings.rows, device=device))
    steps = max(every)
    times: dict[str, list[float]] = {}
    bytes_kept: dict[str, float] = {}
    for r in range(rounds + 1):
        for name, make in entrants(every).items():
            taken = _turn(trainer, make(list(trainer.model.parameters())), batch, steps, name, bytes_kept)
            if r:  # the first round compiles kernels
                times.setdefault(name, []).append(taken)
    print("| a training step with | ms | of torch's | state, bytes per parameter on the device |")
    print("|---|--:|--:|--:|")
    for name, all_taken in times.items():
        ratio = median(a / b for a, b in zip(all_taken, times[ALONE], strict=True))
        print(f"| {name} | {1e3 * median(all_taken):.2f} | {ratio:.3f} | {bytes_kept[name]:.1f} |")


def _turn(
    trainer: Trainer, optimizer: Any, batch: torch.Tensor, steps: int, name: str, bytes_kept: dict[str, float]
) -> float:
    """Return the seconds of a step, after some that are not counted."""
    for counted in (False, True):
        _wait(trainer)
        begun = perf_counter()
        for _ in range(steps if counted else 3):
            trainer.backward(batch)
            optimizer.step()
        _wait(trainer)
    taken = (perf_counter() - begun) / steps
    kept = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    there = sum(v.numel() * v.element_size() for v in kept if v.device.type == trainer.device.type)
    bytes_kept[name] = there / trainer.parameters
    return taken


def _wait(trainer: Trainer) -> None:
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)


if __name__ == "__main__":
    main()
