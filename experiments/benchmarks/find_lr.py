"""`o2nc.find_lr` against the best constant learning rate, both read off at x̄: small models on a CPU.

    python experiments/benchmarks/find_lr.py --out results/find-lr

Models of auto_lr.py with AdamW, more with other optimizers and longer runs, against grids √2 apart around what was
found; and the 13 problems of ``o2nc paper nonsmooth`` with SGD, with and without `o2nc.Ladder`, against a learning
rate that was tuned on other seeds. A finished run is not repeated. Result: docs/no-learning-rate.md.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import o2nc
from auto_lr import MODELS, Task, digits, images, learn, logistic, regression, vit
from o2nc.problems import Oracle, Subsampled
from o2nc_experiments import kit
from o2nc_experiments.nonsmooth import PROBLEMS

WINDOW, WARMUP, FALL = o2nc.Polynomial(12), 50, 1 / 3
SEEDS, GRID = (18, 19), range(-5, 6)  # lr = 2^(k/2) times what was found
TUNING, REPORTED = range(30, 36), range(20, 26)  # seeds of the 13 problems


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
}
CASES |= {f"{name}, AdamW": (make, adamw, (1000,)) for name, make in MODELS.items() if name != "GPT 48 × 2"}


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
        loss.backward()
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


def follow(task: Task, lr: float, steps: int) -> float:
    """Return F at x̄ after SGD with `o2nc.Ladder`; infinity if the run diverges."""
    [opt] = sgd(task, lr)
    ladder = o2nc.Ladder(opt)
    for t in range(steps):
        opt.zero_grad()
        loss = task.loss(t)
        if not math.isfinite(float(loss.detach())):
            return math.inf
        loss.backward()
        opt.step()
        ladder.step()
    with torch.no_grad(), opt.averaged():
        return float(task.evaluate())


def auto(task: Task, horizons: tuple[int, ...]) -> list[float]:
    """Return the loss at x̄ at every horizon with lr="auto"."""
    tokens = {"tokens": task.tokens} if task.tokens else {}
    opt, losses = (
        o2nc.AdamW(task.model.parameters(), lr="auto", average=WINDOW, **task.options, **tokens),
        list[float](),
    )
    for t in range(1, horizons[-1] + 1):
        opt.zero_grad()
        task.loss(t - 1).backward()
        opt.step()
        if t in horizons:
            with torch.no_grad(), opt.averaged():
                losses.append(float(task.evaluate()))
    return losses


def at(curve: dict[float, float], lr: float) -> float:
    """Return the loss at a learning rate by interpolation; nan outside of the grid."""
    rates = sorted(curve)
    return float(np.interp(math.log(lr), np.log(rates), [curve[r] for r in rates], left=math.nan, right=math.nan))


def compare(get: Callable[..., Any], name: str) -> list[list[Any]]:
    """Return rows of a model: what was found, the best lr over it, what its loss is above others, if it is inside."""
    start, make, horizons = CASES[name]
    found, short, curves, autos = {}, {}, {}, {}
    for seed in SEEDS:
        key = f"{name}, seed {seed}"

        def fresh(call: Callable[..., Any], *rest: Any, seed: int = seed) -> Any:
            torch.manual_seed(seed)
            return call(start(seed), *rest)

        found[seed] = get(key, partial(fresh, find, make, 1000))
        short[seed] = get(f"{key}, probe 100", partial(fresh, partial(find, probe=100), make, 1000))
        rates = {k: found[seed]["lr"] * 2 ** (k / 2) for k in GRID}
        runs = {lr: get(f"{key}, {k}", partial(fresh, train, make, lr, horizons, WARMUP)) for k, lr in rates.items()}
        for i, h in enumerate(horizons):
            curves[seed, h] = {lr: math.inf if run[i] is None else min(run[i], 20.0) for lr, run in runs.items()}
        if name.removesuffix(", AdamW") in MODELS:
            autos[seed] = get(f"{key}, auto", partial(fresh, auto, horizons))
    rows = []
    for i, h in enumerate(horizons):
        for seed, other in (SEEDS, SEEDS[::-1]):
            shift, curve = (1000 / h) ** FALL, curves[seed, h]
            best, tuned = (min(own, key=lambda lr: own[lr]) for own in (curve, curves[other, h]))
            own = found[seed]
            loss = at(curve, own["lr"] * shift)
            ruled = autos[seed][i] if seed in autos else math.nan
            losses = [loss - curve[best], loss - at(curve, tuned), ruled - curve[best], ruled - at(curve, tuned)]
            losses.append(at(curve, short[seed]["lr"] * shift) - curve[best])
            is_inside = own["low"] * shift <= best <= own["high"] * shift
            rows.append([name, h, own["lr"] * shift, best / own["lr"] / shift, *losses, is_inside])
    return rows


def solve(name: str, h: int) -> dict[str, Any]:
    """Return F of a problem after h steps, by seed: tuned, found, found with Ladder, 4 × found, tuned with it."""
    oracle, scores = PROBLEMS[name], dict[int, float]()
    floor = 1e-3 * oracle.problem.gap
    torch.manual_seed(30)
    centre = find(problem(oracle, 30), sgd, h)["lr"]

    def end(seed: int, lr: float) -> float:
        return max(train(problem(oracle, seed), sgd, lr, (h,), 1)[0], floor)

    def attempt(*exponents: int) -> None:
        for k in (k for k in exponents if k not in scores):
            scores[k] = fmean(math.log(min(end(seed, centre * 2 ** (k / 2)), 1e9)) for seed in TUNING)

    def best() -> int:
        return min(scores, key=lambda k: scores[k])

    attempt(*range(-12, 13, 2))
    while best() in (min(scores), max(scores)) and len(scores) < 20:
        attempt(best() - 2, best() + 2)
    attempt(best() - 1, best() + 1)
    tuned, rows = centre * 2 ** (best() / 2), []
    for seed in REPORTED:
        torch.manual_seed(seed)
        lr = find(problem(oracle, seed), sgd, h)["lr"]
        led = [max(follow(problem(oracle, seed), rate, h), floor) for rate in (lr, 4 * lr, tuned)]
        rows.append([end(seed, tuned), end(seed, lr), *led])
    return {"tuned": tuned, "rows": rows}


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

    rows = [row for name in CASES for row in compare(get, name)]
    written = [
        [f"{name}; {h:,}", f"{lr:.2g}", f"{times:.2g}", *(kit.NONE if math.isnan(v) else f"{v:.3f}" for v in losses)]
        for name, h, lr, times, *losses, _ in rows
    ]
    head = [
        "model; steps",
        "lr found",
        "best: times",
        "more",
        "than tuned",
        "auto: more",
        "than tuned",
        "probe=100: more",
    ]
    tables = [kit.Table(head, written, "Small models")]
    groups = {"GPTs, AdamW": ("GPT", "AdamW"), "others, AdamW": ("", "AdamW"), "other optimizers": ("", "")}
    left, summary = list(rows), []
    for label, (start, end) in groups.items():
        own = [row for row in left if row[0].startswith(start) and row[0].endswith(end)]
        left = [row for row in left if row not in own]
        for column, words in zip(range(4, 9), head[3:], strict=True):
            values = [row[column] for row in own if not math.isnan(row[column])]
            if values:
                share = f"{sum(v <= 0.01 for v in values)}, {sum(v <= 0.03 for v in values)} of {len(values)}"
                summary.append(
                    [
                        f"{label}: {words}",
                        f"{fmean(values):.4f}",
                        f"{median(values):.4f}",
                        f"{max(values):.3f}",
                        share,
                    ]
                )
        summary.append([f"{label}: inside", f"{sum(row[9] for row in own)} of {len(own)}", "", "", ""])
    tables.append(kit.Table(["", "mean", "median", "most", "≤ 0.010, ≤ 0.030"], summary))
    arms, rows = ["find_lr", "find_lr + Ladder", "4 × find_lr + Ladder", "tuned + Ladder"], []
    for h in (500, 2000):
        found = np.log([get(f"{name}, {h}", partial(solve, name, h))["rows"] for name in PROBLEMS])
        ratios = found[:, :, 1:] - found[:, :, :1]  # problems, seeds, arms
        for i, arm in enumerate(arms):
            means, worst = ratios[:, :, i].mean(0), math.exp(ratios[:, :, i].mean(1).max())
            rows.append([f"{arm}; {h:,}", f"{math.exp(means.mean()):.2f} ± {means.std(ddof=1):.2f}", f"{worst:.3g}"])
    tables.append(kit.Table(["13 problems; steps", "F against tuned, geometric mean ± std of log", "worst"], rows))
    for table in tables:
        terminal.table(table)
    kit.write_text(out / "find_lr.md", "\n\n".join(table.markdown() for table in tables) + "\n")


if __name__ == "__main__":
    kit.run_script(main)
