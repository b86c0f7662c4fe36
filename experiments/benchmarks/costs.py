"""What do frozen parameters, certificates, checkpoints and averaged_state_dict cost, in times of a step?

    python experiments/benchmarks/costs.py --device cpu --rounds 20

All rows of a table take turns; times are medians. The first tables compare a step in which some parameters have a
gradient with one in which all have; the second what one asks of an optimizer of many tensors with its step.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import o2nc
from o2nc_experiments import kit

FROZEN = {"9 of 10 tensors frozen": (10, 1), "8 of 200 experts active": (200, 8)}
SIZE = 10 << 20  # elements of all tensors together
MANY = 580  # tensors, as many as a large network has
MAKERS: dict[str, Callable[[list[Tensor]], Any]] = {
    "torch SGD, foreach": lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9, foreach=True),
    "o2nc.AdamW, x̄ and certificate": lambda ps: o2nc.AdamW(ps, 1e-3, average=o2nc.Polynomial(12), certificate=True),
    "ScaledSGDM, average=0.99": lambda ps: o2nc.ScaledSGDM(ps, lr=0.01, momentum=0.9, average=0.99),
    "ExponentiatedO2NC(ScaleFree)": lambda ps: o2nc.ExponentiatedO2NC(ps, o2nc.learners.ScaleFree(lr=1e-4)),
}


def frozen(device: torch.device, tensors: int, active: int, rounds: int) -> list[list[str]]:
    """Return rows: a step with all parameters, with a few, and their ratio."""
    steps: dict[str, Callable[[], Any]] = {}
    for name, make in MAKERS.items():
        for few in (False, True):
            params = [nn.Parameter(torch.randn(SIZE // tensors, device=device)) for _ in range(tensors)]
            optimizer = make(list(params))
            give_gradients(params)
            optimizer.step()  # creates the state
            for p in params[active:] if few else []:
                p.grad = None
            steps[f"{name}, {'few' if few else 'all'}"] = optimizer.step
    times = take_turns(steps, device, rounds)
    pairs = {name: (times[f"{name}, all"], times[f"{name}, few"]) for name in MAKERS}
    return [[name, f"{1e3 * a:.2f}", f"{1e3 * b:.3f}", f"{b / a:.3f}"] for name, (a, b) in pairs.items()]


def questions(device: torch.device, rounds: int) -> list[list[str]]:
    """Return rows: what is asked of an optimizer of many tensors, in milliseconds and in steps."""
    model = nn.ParameterList(torch.randn(1000, device=device) for _ in range(MANY))
    optimizer = MAKERS["o2nc.AdamW, x̄ and certificate"](list(model.parameters()))
    give_gradients(list(model.parameters()))
    optimizer.step()
    asked: dict[str, Callable[[], Any]] = {
        "step": optimizer.step,
        "certificate": optimizer.certificate,
        "state_dict": optimizer.state_dict,
        "averaged_state_dict": lambda: optimizer.averaged_state_dict(model),
    }
    times = take_turns(asked, device, rounds)
    return [[name, f"{1e3 * t:.2f}", f"{t / times['step']:.2f}"] for name, t in times.items()]


def take_turns(work: dict[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, float]:
    """Return the median seconds of each, until the device is done; two rounds are not counted."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(2 + rounds):
        for name, run in work.items():
            begun = perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(perf_counter() - begun)
    return {name: median(found[2:]) for name, found in times.items()}


def give_gradients(params: list[Any]) -> None:
    """Give every parameter a small gradient."""
    for p in params:
        p.grad = torch.full_like(p, 1e-3)


def main(device: str | None = None, rounds: int = 20) -> None:
    """Measure and print."""
    where, terminal = kit.find_device(device), kit.Terminal()
    for title, (tensors, active) in FROZEN.items():
        head = ["optimizer", "all, ms", "few, ms", "ratio"]
        terminal.table(kit.Table(head, frozen(where, tensors, active, rounds), title))
    about = kit.circumstances("python experiments/benchmarks/costs.py", where, rounds=rounds)
    notes = ", ".join(f"{name} {value}" for name, value in about.items())
    title = f"o2nc.AdamW, x̄ and certificate, {MANY} tensors"
    terminal.table(kit.Table(["what is asked", "ms", "in steps"], questions(where, rounds), title, notes))


if __name__ == "__main__":
    kit.run_script(main)
