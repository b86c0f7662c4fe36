"""What parameters without a gradient, certificates, checkpoints and half-precision learners cost, as ratios.

    python experiments/benchmarks/costs.py --device cpu --rounds 20

Every ratio is of medians of one run, its two sides taken in turns: a step with most parameters frozen to a step with
all of them, ours beside torch.optim.SGD's; a certificate and a state_dict of many tensors to one step; the memory
that a learner takes in a step beside its state, in float32 copies of the model.
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.profiler import ProfilerActivity, profile

import o2nc
from o2nc import learners
from o2nc_experiments import kit

FROZEN = {"9 of 10 tensors frozen": (10, 1), "8 of 200 experts active": (200, 8)}
SIZE = 1 << 20  # elements of a tensor
MANY = 580  # tensors of a certificate, as many as a large network has


def main(device: str | None = None, rounds: int = 20) -> None:
    """Measure and print."""
    where = kit.find_device(device)
    about = kit.circumstances("python experiments/benchmarks/costs.py", where, rounds=rounds)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    for title, (tensors, active) in FROZEN.items():
        frozen(title, where, tensors, active, rounds)
    certificates(where, rounds)
    memory(where, partial(_cuda_peak, where) if where.type == "cuda" else _cpu_peak)


def frozen(title: str, device: torch.device, tensors: int, active: int, rounds: int) -> None:
    """Compare steps with all parameters to steps with a few."""
    size = SIZE * 10 // tensors
    makers: dict[str, Callable[[list[Tensor]], Optimizer]] = {
        "SGD": lambda ps: SGD(ps, lr=0.01, momentum=0.9, foreach=True),
        "ScaledSGDM with averages": lambda ps: o2nc.ScaledSGDM(ps, lr=0.01, momentum=0.9, average=0.99),
        "ExponentiatedO2NC(ScaleFree)": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.ScaleFree(lr=1e-4)),
    }
    runs: dict[str, Callable[[], Any]] = {}
    for name, make in makers.items():
        for few in (False, True):
            params = [torch.nn.Parameter(torch.randn(size, device=device)) for _ in range(tensors)]
            opt = make(list(params))
            _give_gradients(params)
            for _ in range(3):
                opt.step()
            for p in params[active:] if few else []:
                p.grad = None
            for _ in range(3):
                opt.step()
            runs[f"{name}, {'few' if few else 'all'}"] = opt.step
    times = in_turns(runs, device, rounds)
    for name in makers:
        all_, few_ = times[f"{name}, all"], times[f"{name}, few"]
        print(f"{title}: {name} {1e3 * all_:.2f} ms with all, {1e3 * few_:.3f} ms: {few_ / all_:.3f}")


def certificates(device: torch.device, rounds: int) -> None:
    """Compare a certificate and a checkpoint of many tensors to a step."""
    params = [torch.nn.Parameter(torch.randn(1000, device=device)) for _ in range(MANY)]
    for average in (0.9, 0.99):
        opt = o2nc.ScaledSGDM(params, lr=0.01, momentum=0.9, average=average)
        _give_gradients(params)
        for _ in range(4):
            opt.step()
        asked: dict[str, Callable[[], Any]] = {
            "step": opt.step,
            "certificate": opt.certificate,
            "state_dict": opt.state_dict,
        }
        times = in_turns(asked, device, rounds)
        told = ", ".join(f"{name} {1e3 * t:.2f} ms ({t / times['step']:.2f})" for name, t in times.items())
        print(f"{MANY} tensors, momentum 0.9, average {average}: {told}")


def memory(device: torch.device, peak: Callable[[Callable[[], Any]], int]) -> None:
    """Measure what learners take in a step beside their state, in bfloat16 and off the fused path."""
    for learner in (
        learners.OGD(lr=0.01),
        learners.FTRL(lr=0.01),
        learners.AdaGrad(lr=0.01, diagonal=True),
        learners.ScaleFree(lr=0.01),
        learners.BallOGD(lr=0.01, radius=1.0),
        learners.ScaleFree(lr=0.01, diagonal=False),
    ):
        params = [torch.nn.Parameter(torch.ones(1 << 24, device=device, dtype=torch.bfloat16)) for _ in range(8)]
        opt = o2nc.ExponentiatedO2NC(params, learner, average=False, fused=False)
        _give_gradients(params)
        opt.step()
        taken = peak(opt.step) / (4 * 8 * (1 << 24))
        print(f"bfloat16, off the fused path: {learner} takes {taken:.2f} float32 copies of the model in a step")


def in_turns(runs: dict[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, float]:
    """Return the median time of each, which ends when its work is done."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            _wait(device)
            start = perf_counter()
            run()
            _wait(device)
            times[name].append(perf_counter() - start)
    return {name: median(found) for name, found in times.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _give_gradients(params: list[Any]) -> None:
    for p in params:
        p.grad = torch.full_like(p, 1e-3)


def _cuda_peak(device: torch.device, step: Callable[[], Any]) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    return torch.cuda.max_memory_allocated(device) - before


def _cpu_peak(step: Callable[[], Any]) -> int:
    """Return the most memory that was alive at once, from the profiler's account of it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
        step()
    alive = most = 0
    for event in told.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most


if __name__ == "__main__":
    kit.run_script(main)
