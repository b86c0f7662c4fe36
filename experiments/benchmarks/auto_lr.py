"""``lr="auto"`` against the best constant learning rate, both read off at x̄: small models on a CPU.

    python experiments/benchmarks/auto_lr.py --out results/auto-lr --seeds 14,15

Constant learning rates warm up over 50 steps and are √2 apart. GPTs read Python's standard library, a byte a token,
128 to 256 of them a step, or as many as their names say; digits need scikit-learn. A finished run is not repeated.
Result, seeds and hardware: docs/no-learning-rate.md.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

import o2nc
from o2nc.optimizers import auto_lr
from o2nc_experiments import kit, text
from o2nc_experiments.gpt_model import GPT

HORIZONS = (300, 1000)
WARMUP = 50  # steps, of constant learning rates
GRID = range(-22, -3)  # lr = 2^(k/2)
GRIDS = {"GPT": range(-22, -12), "logistic": range(-25, -3), "ViT": range(-18, -5), "diffusion": range(-20, -6)}


# ---- the models


class Task(NamedTuple):
    """A model at its start, the loss of batch t, the loss on held-out data, AdamW's options, tokens of a step."""

    model: nn.Module
    loss: Callable[[int], Tensor]
    evaluate: Callable[[], Tensor]
    options: dict[str, Any]
    tokens: int | None = None


def gpt(seed: int, width: int, layers: int, rows: int, context: int = 32) -> Task:
    """Return a GPT on bytes of Python's standard library."""
    corpus, cpu = text.load(None), torch.device("cpu")
    train, held = text.to_device(corpus.train, cpu), text.to_device(corpus.held_out, cpu)
    model = GPT(layers, width, max(2, width // 32), context, text.BYTES)
    model.init_weights_(seed)
    starts = text.row_starts(len(train), context, rows, 4000, seed)
    rest = text.read_rows(held, text.row_starts(len(held), context, 8192 // context, 1, 99)[0], context)
    options = {"betas": (0.9, 0.95), "weight_decay": 0.1}
    loss, evaluate = lambda t: model(text.read_rows(train, starts[t], context)), lambda: model(rest)
    return Task(model, loss, evaluate, options, rows * context)


def learn(seed: int, model: nn.Module, data: Any, rows: int, kept: int, criterion: Callable[..., Tensor]) -> Task:
    """Return a model on rows drawn from the first ``kept`` of the data; the others are held out."""
    x, y = data
    drawn = torch.randint(0, kept, (4000, rows), generator=torch.Generator().manual_seed(seed + 1000))

    def loss(at: Any) -> Tensor:
        found = model(x[at])
        return criterion(found[:, 0] if found.shape[1] == 1 else found, y[at])

    return Task(model, lambda t: loss(drawn[t]), lambda: loss(slice(kept, None)), {"weight_decay": 0.0})


def images() -> tuple[Tensor, Tensor]:
    """Return scikit-learn's digits, 8 × 8 pixels in [0, 1], and their classes."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    return torch.tensor(x / 16, dtype=torch.float32)[order], torch.tensor(y)[order]


def digits(seed: int, width: int, depth: int, rows: int) -> Task:
    """Return a network of ReLUs that classifies digits."""
    sizes = [64, *[width] * depth, 10]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return learn(seed, nn.Sequential(*layers[:-1]), images(), rows, 1200, cross_entropy)


class ViT(nn.Module):
    """A vision transformer on 16 patches of 2 × 2 pixels."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.inputs, self.outputs = nn.Linear(4, width), nn.Linear(width, 10)
        self.places = nn.Parameter(0.02 * torch.randn(16, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        patches = x.view(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        outputs: Tensor = self.outputs(self.blocks(self.inputs(patches) + self.places).mean(1))
        return outputs


def vit(seed: int, width: int, layers: int, rows: int) -> Task:
    """Return a vision transformer that classifies digits."""
    return learn(seed, ViT(width, layers), images(), rows, 1200, cross_entropy)


def diffusion(seed: int, width: int, rows: int) -> Task:
    """Return a network that predicts the noise in noisy digits, as a diffusion model does."""
    x, generator = 2 * images()[0] - 1, torch.Generator().manual_seed(3)
    angle = torch.rand(len(x), 50, 1, generator=generator) * torch.pi / 2  # 50 levels and draws of noise for each
    noise = torch.randn(len(x), 50, 64, generator=generator)
    noisy = torch.cat([angle.cos() * x[:, None] + angle.sin() * noise, angle], 2)
    sizes = [65, width, width, 64]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())]
    data = noisy.flatten(0, 1), noise.flatten(0, 1)
    return learn(seed, nn.Sequential(*layers[:-1]), data, rows, 1200 * 50, mse_loss)


def regression(seed: int, features: int, scale: float, hidden: int) -> Task:
    """Return a regression on features of this size, linear or with a hidden layer."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(6000, features, generator=generator) * scale
    w, v = (torch.randn(features, generator=generator) / features**0.5 for _ in range(2))
    y = (x / scale @ w).sin() * 2 + (x / scale @ v).abs() + 0.3 * torch.randn(6000, generator=generator)
    sizes = [features, hidden, 1] if hidden else [features, 1]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
    return learn(seed, nn.Sequential(*layers[:-1]), (x, y), 32, 4000, mse_loss)


def logistic(seed: int, features: int, scale: float, rows: int) -> Task:
    """Return logistic regression from zero, on features of different sizes."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(8000, features, generator=generator) * scale * torch.linspace(0.1, 2, features)
    w = torch.randn(features, generator=generator) * 3 / features**0.5
    y = (torch.rand(8000, generator=generator) < torch.sigmoid(x / scale @ w)).float()
    model = nn.Linear(features, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return learn(seed, model, (x, y), rows, 5000, binary_cross_entropy_with_logits)


MODELS: dict[str, Callable[[int], Task]] = {
    "GPT 48 × 2": partial(gpt, width=48, layers=2, rows=4),
    "GPT 96 × 1": partial(gpt, width=96, layers=1, rows=4),
    "GPT 24 × 3": partial(gpt, width=24, layers=3, rows=8),
    "GPT 64 × 1": partial(gpt, width=64, layers=1, rows=2, context=64),
    "regression 50": partial(regression, features=50, scale=5.0, hidden=0),
    "regression 10-200": partial(regression, features=10, scale=0.3, hidden=200),
    "logistic 200": partial(logistic, features=200, scale=10.0, rows=64),
    "digits 32 × 4": partial(digits, width=32, depth=4, rows=16),
    "digits 256 × 1": partial(digits, width=256, depth=1, rows=64),
    "ViT 64 × 2": partial(vit, width=64, layers=2, rows=64),
    "diffusion 256 × 2": partial(diffusion, width=256, rows=128),
}
for width, layers, rows in (96, 1, 1), (48, 2, 1), (96, 1, 16), (48, 2, 16), (96, 1, 64):  # batches × ¼, × 4, × 16
    MODELS[f"GPT {width} × {layers}, {32 * rows:,} tokens"] = partial(gpt, width=width, layers=layers, rows=rows)


# ---- the comparison


def train(make: Callable[[int], Task], seed: int, lr: float | str) -> dict[str, Any]:
    """Return the loss at x̄ at every horizon, and lr at the end."""
    torch.manual_seed(seed)
    task = make(seed)
    options = task.options | ({"tokens": task.tokens} if lr == "auto" else {})
    opt = o2nc.AdamW(task.model.parameters(), lr=lr, average=o2nc.Polynomial(12), **options)
    found = dict[str, float]()
    for t in range(1, HORIZONS[-1] + 1):
        opt.zero_grad()
        task.loss(t - 1).backward()
        if isinstance(lr, float):
            opt.param_groups[0]["lr"] = lr * min(1, t / WARMUP)
        opt.step()
        if t in HORIZONS:
            with torch.no_grad(), opt.averaged():
                found[str(t)] = float(task.evaluate())
    return {"loss": found, "lr": opt.param_groups[0]["lr"]}


def loss_of(run: dict[str, Any], horizon: str) -> float:
    """Return the loss of a run; infinity if it has diverged."""
    loss = run["loss"][horizon]
    return math.inf if loss is None or math.isnan(loss) else loss


def main(out: Path, seeds: str = "14,15", quiet: bool = False) -> None:
    """Run what is not there yet, and print the table."""
    torch.set_num_threads(1)
    terminal = kit.Terminal(quiet)
    command = f"python experiments/benchmarks/auto_lr.py --out {out} --seeds {seeds}"
    settings = {"horizons": HORIZONS, "warmup": WARMUP, "scale": auto_lr.SCALE, "usual": auto_lr.USUAL}
    store = kit.Store(kit.make_folder(out) / "auto_lr.json", settings, kit.circumstances(command))
    tried, rows = kit.numbers("--seeds", seeds), []

    def get(name: str, seed: int, lr: float | str) -> dict[str, Any]:
        key = f"{name}, seed {seed}, {lr if isinstance(lr, str) else f'{lr:.6g}'}"
        if key not in store.runs:
            store.add(key, train(MODELS[name], seed, lr))
            terminal.say(f"{key}: {store.runs[key]['loss']}")
        return dict(store.runs[key])

    for name in MODELS:
        autos = [get(name, seed, "auto") for seed in tried]
        grid = [2 ** (k / 2) for k in GRIDS.get(name.split()[0], GRID)]
        for h in map(str, HORIZONS):
            bests = [min((loss_of(get(name, seed, lr), h), lr) for lr in grid) for seed in tried]
            more = [loss_of(auto, h) - loss for auto, (loss, _) in zip(autos, bests, strict=True)]
            rates = [lr for _, lr in bests], [auto["lr"] for auto in autos]
            shown = [", ".join(f"{lr:.2g}" for lr in own) for own in rates]
            rows.append([f"{name}; {h}", kit.mean_std([loss for loss, _ in bests]), *shown, kit.mean_std(more)])
    head = ["model; steps", "best constant lr: loss", "that lr", "auto: lr", "auto: more"]
    table = kit.Table(head, rows, "Held-out loss at x̄, mean ± std over seeds; auto's is relative to the best")
    terminal.table(table)
    kit.write_text(out / "auto_lr.md", table.markdown() + "\n")


if __name__ == "__main__":
    kit.run_script(main)
