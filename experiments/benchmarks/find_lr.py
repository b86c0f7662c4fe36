"""`o2nc.find_lr` against the best constant learning rate, both read off at x̄: small models on a CPU.

    python experiments/benchmarks/find_lr.py --out results/find-lr

Models and grids of auto_lr.py and its record (AdamW, seed 15); six more with other optimizers and longer runs, grids
√2 apart around what was found; and the 13 problems of ``o2nc paper nonsmooth`` with SGD. A finished run is not
repeated. Result, seeds and hardware: docs/no-learning-rate.md.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import o2nc
from auto_lr import MODELS, Task, digits, images, learn, logistic, regression, vit
from o2nc_experiments import kit
from o2nc_experiments.nonsmooth import PROBLEMS, Oracle, Subsampled

WINDOW, WARMUP, FALL = o2nc.Polynomial(12), 50, 1 / 3
RECORD = Path(__file__).parents[2] / "docs/results/auto_lr.json"


class Convolutions(nn.Module):
    """Two convolutions with BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        second = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()
        self.layers = nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits; BatchNorm is in training mode throughout, and so has x̄'s statistics at x̄."""
        found: Tensor = self.layers(x.view(-1, 1, 8, 8))
        return found


def convolutions(seed: int) -> Task:
    """Return the network with BatchNorm on digits."""
    return learn(seed, Convolutions(), images(), 32, 1200, cross_entropy)


def adamw(task: Task, lr: float) -> list[Any]:
    """Return AdamW."""
    return [o2nc.AdamW(task.model.parameters(), lr=lr, average=WINDOW, **task.options)]


def sgd(task: Task, lr: float) -> list[Any]:
    """Return SGD with momentum."""
    return [o2nc.SGD(task.model.parameters(), lr=lr, momentum=0.9, average=WINDOW)]


def nadam(task: Task, lr: float) -> list[Any]:
    """Return torch's NAdam, extended."""
    return [o2nc.extend(torch.optim.NAdam(task.model.parameters(), lr=lr), average=WINDOW)]


def muon(task: Task, lr: float) -> list[Any]:
    """Return torch's Muon for the matrices of the blocks, and AdamW at a tenth of its lr for the rest."""
    named = list(task.model.named_parameters())
    matrices = [p for name, p in named if "blocks" in name and p.dim() == 2]
    others = [p for name, p in named if not ("blocks" in name and p.dim() == 2)]
    matrix_rule = o2nc.extend(torch.optim.Muon(matrices, lr=lr, weight_decay=0.1), average=WINDOW)
    return [matrix_rule, o2nc.AdamW(others, lr=lr / 10, average=WINDOW, **task.options)]


CASES: dict[str, tuple[Callable[[int], Task], Callable[[Task, float], list[Any]], tuple[int, ...]]] = {
    "digits 32 × 4, SGD": (partial(digits, width=32, depth=4, rows=16), sgd, (1000,)),
    "digits 256 × 1, SGD": (partial(digits, width=256, depth=1, rows=64), sgd, (1000,)),
    "regression 50, SGD": (partial(regression, features=50, scale=5.0, hidden=0), sgd, (1000,)),
    "logistic 200, SGD": (partial(logistic, features=200, scale=10.0, rows=64), sgd, (1000,)),
    "ViT 64 × 2, SGD": (partial(vit, width=64, layers=2, rows=64), sgd, (1000,)),
    "convolutions, SGD": (convolutions, sgd, (1000, 3900)),
    "convolutions, AdamW": (convolutions, adamw, (1000,)),
    "digits 32 × 4, NAdam": (partial(digits, width=32, depth=4, rows=16), nadam, (1000,)),
    "GPT 48 × 2, Muon": (MODELS["GPT 48 × 2"], muon, (1000,)),
    "GPT 48 × 2, AdamW": (MODELS["GPT 48 × 2"], adamw, (1000, 3900)),
    "digits 256 × 1, AdamW": (MODELS["digits 256 × 1"], adamw, (1000, 3900)),
    "logistic 200, AdamW": (MODELS["logistic 200"], adamw, (1000, 3900)),
    "diffusion 256 × 2, AdamW": (MODELS["diffusion 256 × 2"], adamw, (1000, 3900)),
}


def find(task: Task, make: Callable[[Task, float], list[Any]], steps: int, **options: Any) -> dict[str, Any]:
    """Return what find_lr finds for so many steps."""
    found = o2nc.find_lr(lambda lr: make(task, lr), task.loss, range(3000), steps=steps, **options)
    return {"lr": found.lr, "low": found.low, "high": found.high, "tried": list(found.losses.items())}


def train(
    task: Task, make: Callable[[Task, float], list[Any]], lr: float, horizons: tuple[int, ...], warmup: int
) -> list[float]:
    """Return the loss at x̄ at every horizon; infinity if the run diverges."""
    optimizers, losses = make(task, lr), list[float]()
    groups = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]
    for t in range(1, horizons[-1] + 1):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for group, full in groups:
            group["lr"] = full * min(1.0, t / warmup)
        loss = task.loss(t - 1)
        if not math.isfinite(float(loss.detach())):
            return losses + [math.inf] * (len(horizons) - len(losses))
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        if t in horizons:
            with torch.no_grad(), o2nc.averaged(*optimizers):
                value = float(task.evaluate())
            losses.append(value if math.isfinite(value) else math.inf)
    return losses


class Point(nn.Module):
    """A point of R^d."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x)


def problem(oracle: Oracle, seed: int) -> Task:
    """Return a problem near its start; a batch is a random number, which gives ⟨noise, x⟩ to the loss."""
    drawn, of = torch.Generator().manual_seed(seed), oracle.problem
    away = normalize(torch.randn(of.dimension, generator=drawn, dtype=torch.float64), dim=0)
    model = Point(of.start() + 0.1 * of.gap / of.lipschitz * away)

    def loss(t: int) -> Tensor:
        x, value = model.x, of.value(model.x.detach())
        if not isinstance(oracle, Subsampled) and oracle.noise == 0:
            return of.value(x)
        g = oracle.sample(x.detach(), torch.Generator().manual_seed(10_000 * seed + t))
        error = g - oracle.gradient(x.detach())
        return of.value(x) + error @ x if not isinstance(oracle, Subsampled) else value + g @ (x - x.detach())

    return Task(model, loss, lambda: of.value(model.x), {})


def behind(grid: dict[int, float], at: float) -> tuple[float, float]:
    """Return the loss at 2^(at/2) by interpolation, less the least of the grid, and where that is."""
    exponents = sorted(grid)
    best = min(exponents, key=lambda k: grid[k])
    return float(np.interp(at, exponents, [grid[k] for k in exponents])) - grid[best], 2 ** ((best - at) / 2)


def main(out: Path, quiet: bool = False) -> None:
    """Run what is not there yet, and print the tables."""
    torch.set_num_threads(1)
    terminal = kit.Terminal(quiet)
    command = f"python experiments/benchmarks/find_lr.py --out {out}"
    store = kit.Store(kit.make_folder(out) / "find_lr.json", {"warmup": WARMUP}, kit.circumstances(command))

    def get(key: str, make: Callable[[], Any]) -> Any:
        if key not in store.runs:
            store.add(key, make())
            terminal.say(f"{key}: {store.runs[key]}")
        return store.runs[key]

    rows, record = [], json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
    for name, start in MODELS.items():
        torch.manual_seed(15)
        found = get(f"{name}, seed 15", lambda s=start: find(s(15), adamw, 1000))  # type: ignore[misc]
        keys = [key for key in record if key.startswith(f"{name}, seed 15, ") and not key.endswith("auto")]
        for h in (300, 1000):
            grid = {2 * math.log2(float(key.rsplit(", ", 1)[1])): record[key]["loss"][str(h)] for key in keys}
            known = {k: loss for k, loss in grid.items() if loss is not None and not math.isnan(loss)}
            lr = found["lr"] * (1000 / h) ** FALL
            more, times = behind(known, 2 * math.log2(lr))  # type: ignore[arg-type]
            auto = record[f"{name}, seed 15, auto"]["loss"][str(h)] - min(known.values())
            rows.append([f"{name}; {h}", f"{lr:.2g}", f"{times:.2g}", f"{more:.3f}", f"{auto:.3f}"])
    head = ["model; steps", "lr", "best: times", "more", "auto: more"]
    tables = [kit.Table(head, rows, "AdamW, seed 15")]
    rows = []
    for name, (start, make, horizons) in CASES.items():
        for seed in (16, 17):
            torch.manual_seed(seed)
            found = get(f"{name}, seed {seed}", lambda s=start, m=make, n=seed: find(s(n), m, 1000))  # type: ignore[misc]

            def run(
                k: int, s: Any = start, m: Any = make, n: int = seed, lr: float = found["lr"], at: Any = horizons
            ):  # type: ignore[no-untyped-def]
                torch.manual_seed(n)
                return train(s(n), m, lr * 2 ** (k / 2), at, WARMUP)

            grids = {k: get(f"{name}, seed {seed}, {k}", partial(run, k)) for k in range(-6, 7)}
            for i, h in enumerate(horizons):
                at = -2 * FALL * math.log2(h / 1000)
                losses = {k: math.inf if grid[i] is None else grid[i] for k, grid in grids.items()}
                more, times = behind(losses, at)
                rows.append(
                    [
                        f"{name}, seed {seed}; {h}",
                        f"{found['lr'] * 2 ** (at / 2):.2g}",
                        f"{times:.2g}",
                        f"{more:.3f}",
                        f"{min(losses.values()):.3f}",
                    ]
                )
    tables.append(kit.Table(["model; steps", "lr", "best: times", "more", "best loss"], rows, "Other optimizers"))
    rows, ratios = [], dict[int, list[float]]()
    for name, oracle in PROBLEMS.items():
        for seed in (20, 21):
            for h in (500, 2000):
                found = get(f"{name}, seed {seed}, {h}", lambda o=oracle, s=seed, n=h: find(problem(o, s), sgd, n))  # type: ignore[misc]
                grid = {}
                for k in range(-12, 13):
                    lr = found["lr"] * 2 ** (k / 2)
                    made = partial(problem, oracle, seed)
                    grid[k] = get(
                        f"{name}, seed {seed}, {h}, {k}", lambda p=made, lr=lr, n=h: train(p(), sgd, lr, (n,), 1)
                    )[0]  # type: ignore[misc]
                known = {k: math.inf if loss is None else loss for k, loss in grid.items()}
                best, floor = min(known, key=lambda k: known[k]), 1e-3 * oracle.problem.gap
                ratio = max(known[0], floor) / max(known[best], floor)
                ratios.setdefault(h, []).append(ratio)
                rows.append(
                    [f"{name}, seed {seed}; {h}", f"{found['lr']:.2g}", f"{2 ** (best / 2):.2g}", f"{ratio:.3g}"]
                )
    tables.append(kit.Table(["problem; steps", "lr", "best: times", "F in times of the best"], rows, "SGD"))
    for table in tables:
        terminal.table(table)
    kit.write_text(out / "find_lr.md", "\n\n".join(table.markdown() for table in tables) + "\n")
    terminal.say(str({h: math.exp(np.mean(np.log(found))) for h, found in ratios.items()}))


if __name__ == "__main__":
    kit.run_script(main)
