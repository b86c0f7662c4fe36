"""``lr="auto"`` against the best constant learning rate, both read off at x̄: small models on a CPU.

    python experiments/benchmarks/auto_lr.py --out results/auto-lr --seeds 10,11
    python experiments/benchmarks/auto_lr.py --out results/auto-lr-tuned --models tuned --seeds 0

Constant learning rates warm up over 50 steps and are √2 apart, those of GPTs only around the best, else 2.
"no rewind" goes on from the end of the probe at 0.3·d; "estimate" has no probe: lr = d_t = max(d_{t−1}, r_t/‖m_t‖₁)
throughout. All steps count, those of the probe too. GPTs read Python's standard library, a byte a token; digits need
scikit-learn. A finished run is not repeated. Result, seeds and hardware: docs/no-learning-rate.md.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import o2nc
from o2nc.optimizers.auto_lr import GROWTH, SETTLED, SHARE
from o2nc_experiments import kit
from small_models import MODELS, Task, train_stack

HORIZONS = (300, 1000)
WARMUP = 50  # steps, of constant learning rates
FIRST_GRID = (2**-9, 2**-8, 2**-7)  # of GPTs; it grows until the best is inside
GRID = [2 ** (k / 2) for k in range(-22, -3)]
ARMS = ("auto", "no rewind", "estimate")


class Estimate:
    """The distance estimate along a run, from outside: for the arms that do not rewind."""

    def __init__(self, opt: Any, growth: float) -> None:
        self.opt, self.growth, self.params = opt, growth, opt.param_groups[0]["params"]
        self.starts, self.r, self.quiet = [p.detach().clone() for p in self.params], 0.0, 0
        self.d = 1e-3 * float(torch.cat([p.flatten() for p in self.starts]).square().mean().sqrt()) or 1e-6
        self.first = self.reference = self.d

    @torch.no_grad()
    def before_step(self) -> None:
        """Take the product in, and set lr."""
        lags = zip(self.params, self.starts, strict=True)
        self.r = 0.9 * self.r + 0.1 * sum(float((p.grad * (start - p)).sum()) for p, start in lags)
        self.opt.param_groups[0]["lr"] = self.d

    def after_step(self) -> bool:
        """Let d grow; return whether it has settled."""
        size = sum(float(self.opt.state[p]["exp_avg"].abs().sum()) for p in self.params)
        self.d = max(self.d, self.growth * self.r / size)
        grows = self.d > 1.1 * self.reference
        self.reference, self.quiet = (self.d, 0) if grows else (self.reference, self.quiet + 1)
        return self.quiet >= SETTLED and self.d > 4 * self.first


def train(make: Callable[[int], Task], seed: int, arm: str | float) -> dict[str, Any]:
    """Return the loss at x̄ at every horizon, lr at the end, and lr and loss along the way."""
    task = make(seed)
    lr: Any = "auto" if arm == "auto" else arm if isinstance(arm, float) else 1e-3
    opt = o2nc.AdamW(task.model.parameters(), lr=lr, average=o2nc.Polynomial(12), **task.options)
    estimate = Estimate(opt, 1.0 if arm == "estimate" else GROWTH) if arm in ARMS[1:] else None
    rates, losses, found, probed = [], [], {}, 0
    for t in range(1, HORIZONS[-1] + 1):
        opt.zero_grad()
        loss = task.loss(t - 1)
        loss.backward()
        if isinstance(arm, float):
            opt.param_groups[0]["lr"] = arm * min(1, t / WARMUP)
        if estimate is not None:
            estimate.before_step()
        opt.step()
        if estimate is not None and estimate.after_step() and arm == "no rewind":
            opt.param_groups[0]["lr"], estimate, probed = SHARE * estimate.d, None, t
        probed = t if "d" in opt.param_groups[0]["o2nc"].get("auto", ()) else probed
        rates.append(opt.param_groups[0]["lr"])
        losses.append(float(loss.detach()))
        if t in HORIZONS:
            with torch.no_grad(), opt.averaged():
                found[str(t)] = float(task.evaluate())
    run = {"loss": found, "lr": rates[-1], "probed": probed + (arm == "auto")}
    if arm == "auto":
        kept = [t for t in range(len(rates)) if t < 100 or t % 10 == 9]
        run["course"] = [[t + 1, float(f"{rates[t]:.3g}"), float(f"{losses[t]:.3g}")] for t in kept]
    return run


def best_constant(get: Callable[[float], dict[str, Any]], grid: Sequence[float]) -> dict[str, tuple[float, float]]:
    """Return the least loss and its learning rate at every horizon, over a grid that grows until both are inside."""
    rates = [*grid]

    def best(horizon: int) -> float:
        return min(rates, key=lambda lr: loss_of(get(lr), horizon))

    while True:
        ends = [best(h) for h in HORIZONS]
        more = [lr / 2 for lr in ends if lr == min(rates)] + [lr * 2 for lr in ends if lr == max(rates)]
        if not more:
            break
        rates.append(more[0])
    if grid is FIRST_GRID:
        rates += [best(h) * 2**k for h in HORIZONS for k in (0.5, -0.5)]
    return {str(h): (loss_of(get(best(h)), h), best(h)) for h in HORIZONS}


def loss_of(run: dict[str, Any], horizon: int) -> float:
    """Return the loss of a run; infinity if it has diverged."""
    loss = run["loss"][str(horizon)]
    return math.inf if loss is None or math.isnan(loss) else loss


def main(out: Path, models: str = "reported", seeds: str = "10,11", quiet: bool = False) -> None:
    """Run what is not there yet, print the table, draw."""
    torch.set_num_threads(1)
    terminal = kit.Terminal(quiet)
    command = f"python experiments/benchmarks/auto_lr.py --out {out} --models {models} --seeds {seeds}"
    settings = {"horizons": HORIZONS, "warmup": WARMUP, "growth": GROWTH, "settled": SETTLED, "share": SHARE}
    store = kit.Store(kit.make_folder(out) / "auto_lr.json", settings, kit.circumstances(command))
    rows = []
    for name, make in MODELS[models].items():
        found: dict[tuple[str, str], list[float]] = {}
        for seed in kit.numbers("--seeds", seeds):

            def get(arm: str | float, make: Any = make, name: str = name, seed: int = seed) -> dict[str, Any]:
                key = f"{name}, seed {seed}, {arm if isinstance(arm, str) else f'{arm:.6g}'}"
                if key not in store.runs:
                    store.add(key, train(make, seed, arm))
                    terminal.say(f"{key}: {store.runs[key]['loss']}")
                return dict(store.runs[key])

            if not name.startswith("GPT") and f"{name}, seed {seed}, {GRID[0]:.6g}" not in store.runs:
                for lr, run in zip(GRID, train_stack(make, seed, GRID, HORIZONS, WARMUP), strict=True):
                    store.runs[f"{name}, seed {seed}, {lr:.6g}"] = run
            for h, (loss, lr) in best_constant(get, FIRST_GRID if name.startswith("GPT") else GRID).items():
                found.setdefault((h, "best"), []).append(loss)
                found.setdefault((h, "lr"), []).append(lr)
                for arm in ARMS:
                    found.setdefault((h, arm), []).append(loss_of(get(arm), int(h)) - loss)
            found.setdefault(("", "auto lr"), []).append(get("auto")["lr"])
            found.setdefault(("", "probed"), []).append(get("auto")["probed"])
        for h in map(str, HORIZONS):
            cells = [kit.mean_std(found[h, arm], 3) for arm in ("best", *ARMS)]
            lists = [", ".join(f"{lr:.2g}" for lr in found[key]) for key in ((h, "lr"), ("", "auto lr"))]
            probed = ", ".join(f"{n:g}" for n in found["", "probed"])
            rows.append([f"{name}; {h}", cells[0], *lists, *cells[1:], probed])
    head = ["model; steps", "best constant lr", "that lr", "lr found", *(f"{arm}: more" for arm in ARMS), "probe"]
    table = kit.Table(
        head, rows, "Loss on held-out data at x̄, mean ± std over seeds; the arms' is relative to the best"
    )
    terminal.table(table)
    kit.write_text(out / "auto_lr.md", table.markdown() + "\n")
    if models == "reported":
        draw(store.runs, kit.numbers("--seeds", seeds)[0], out / "auto_lr.png")


def draw(runs: dict[str, Any], seed: int, path: Path) -> None:
    """Draw lr and loss along one run of every GPT."""
    figure = kit.new_figure(9, 3.6)
    above, below = figure.subplots(1, 2)
    names = [name for name in MODELS["reported"] if name.startswith("GPT")]
    for name, colour in zip(names, ("blue", "red", "green", "orange"), strict=True):
        run, style = runs[f"{name}, seed {seed}, auto"], {"color": kit.COLOURS[colour], "linewidth": 1.4}
        steps, rates, losses = zip(*run["course"], strict=True)
        above.loglog(steps, rates, label=name, **style)
        below.semilogx(steps, losses, **style)
    kit.style_panel(above, "lr: the probe, the warm-up, a constant", "step", "lr")
    kit.style_panel(below, "Loss of the batch", "step", "nats")
    above.legend(frameon=False, fontsize=8)
    kit.write_bytes(path, kit.draw(figure, "png"))


if __name__ == "__main__":
    kit.run_script(main)
