"""Small models to try a learning rate on: GPTs on bytes, networks on digits, regressions.

``MODELS["tuned"]`` are those on which the constants of ``lr="auto"`` were chosen, ``MODELS["reported"]`` the others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

import o2nc
from o2nc_experiments import text
from o2nc_experiments.gpt_model import GPT


class Task(NamedTuple):
    """A model at its start, the loss of batch t, the loss on held-out data, and options of AdamW."""

    model: nn.Module
    loss: Callable[[int], Tensor]
    evaluate: Callable[[], Tensor]
    options: dict[str, Any]


def gpt(seed: int, width: int, layers: int, context: int, rows: int) -> Task:
    """Return a GPT on bytes of Python's standard library."""
    corpus, cpu = text.load(None), torch.device("cpu")
    train, held = text.to_device(corpus.train, cpu), text.to_device(corpus.held_out, cpu)
    model = GPT(layers, width, max(2, width // 32), context, text.BYTES)
    model.init_weights_(seed)
    starts = text.row_starts(len(train), context, rows, 4000, seed)
    rest = text.read_rows(held, text.row_starts(len(held), context, 8192 // context, 1, 99)[0], context)
    options = {"betas": (0.9, 0.95), "weight_decay": 0.1}
    return Task(model, lambda t: model(text.read_rows(train, starts[t], context)), lambda: model(rest), options)


def learn(seed: int, model: nn.Module, data: Any, rows: int, kept: int, criterion: Callable[..., Tensor]) -> Task:
    """Return a model on rows drawn from the first ``kept`` of the data; the others are held out."""
    x, y = data
    drawn = torch.randint(0, kept, (4000, rows), generator=torch.Generator().manual_seed(seed + 1000))

    def loss(at: Any) -> Tensor:
        found = model(x[at])
        return criterion(found[:, 0] if found.shape[1] == 1 else found, y[at])

    return Task(model, lambda t: loss(drawn[t]), lambda: loss(slice(kept, None)), {"weight_decay": 0.0})


def digits(seed: int, width: int, depth: int, rows: int) -> Task:
    """Return a network of ReLUs on scikit-learn's digits."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    data = torch.tensor(x / 16, dtype=torch.float32)[order], torch.tensor(y)[order]
    torch.manual_seed(seed)
    sizes = [64, *[width] * depth, 10]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return learn(seed, nn.Sequential(*layers[:-1]), data, rows, 1200, cross_entropy)


def regression(seed: int, features: int, scale: float, hidden: int) -> Task:
    """Return a regression on features of this size, linear or with a hidden layer."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(6000, features, generator=generator) * scale
    w, v = (torch.randn(features, generator=generator) / features**0.5 for _ in range(2))
    y = (x / scale @ w).sin() * 2 + (x / scale @ v).abs() + 0.3 * torch.randn(6000, generator=generator)
    torch.manual_seed(seed)
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


MODELS: dict[str, dict[str, Callable[[int], Task]]] = {
    "tuned": {
        "digits 64 × 2": partial(digits, width=64, depth=2, rows=32),
        "logistic 50": partial(logistic, features=50, scale=1.0, rows=32),
        "regression 20-64": partial(regression, features=20, scale=1.0, hidden=64),
        "GPT 64 × 2": partial(gpt, width=64, layers=2, context=32, rows=8),
        "GPT 32 × 3": partial(gpt, width=32, layers=3, context=32, rows=8),
    },
    "reported": {
        "GPT 48 × 2": partial(gpt, width=48, layers=2, context=32, rows=4),
        "GPT 96 × 1": partial(gpt, width=96, layers=1, context=32, rows=4),
        "GPT 24 × 3": partial(gpt, width=24, layers=3, context=32, rows=8),
        "regression 50": partial(regression, features=50, scale=5.0, hidden=0),
        "regression 10-200": partial(regression, features=10, scale=0.3, hidden=200),
        "logistic 200": partial(logistic, features=200, scale=10.0, rows=64),
        "digits 32 × 4": partial(digits, width=32, depth=4, rows=16),
        "digits 256 × 1": partial(digits, width=256, depth=1, rows=64),
        "GPT 64 × 1": partial(gpt, width=64, layers=1, context=64, rows=2),
    },
}


def train_stack(
    make: Callable[[int], Task], seed: int, rates: Sequence[float], horizons: Sequence[int], warmup: int
) -> list[dict[str, Any]]:
    """Return the losses at x̄ for every constant learning rate; all are trained at once, as one stack of models."""
    task = make(seed)
    names = [name for name, _ in task.model.named_parameters()]
    copies = [[nn.Parameter(p.detach().clone()) for p in task.model.parameters()] for _ in rates]
    opt = o2nc.AdamW([{"params": own} for own in copies], average=o2nc.Polynomial(12), foreach=True, **task.options)

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model

        def forward(self, t: int) -> Tensor:
            return task.evaluate() if t < 0 else task.loss(t)

    called, found = Called(), [dict[str, float]() for _ in rates]

    def losses(t: int) -> Tensor:
        stacks = {f"model.{name}": torch.stack(own) for name, *own in zip(names, *copies, strict=True)}
        return torch.func.vmap(lambda params: torch.func.functional_call(called, params, (t,)))(stacks)

    for t in range(1, horizons[-1] + 1):
        opt.zero_grad()
        losses(t - 1).sum().backward()
        for group, lr in zip(opt.param_groups, rates, strict=True):
            group["lr"] = lr * min(1, t / warmup)
        opt.step()
        if t in horizons:
            with torch.no_grad(), opt.averaged():
                for own, loss in zip(found, losses(-1).tolist(), strict=True):
                    own[str(t)] = loss
    return [{"loss": own, "lr": lr, "probed": 0} for own, lr in zip(found, rates, strict=True)]
