"""Who is compared, and on which parameters."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import o2nc
from o2nc_experiments.classification.resnet import ResNet18

LR = 1e-4  # small: thousands of steps along a fixed gradient have to leave the parameters finite
MOMENTUM = 0.9
LONG_AVERAGE = 0.999
WINDOW = o2nc.Polynomial(12)  # of AdamW's averages
BASE = "SGD fused"
AGAIN = f"{BASE} again"

Shapes = list[tuple[int, ...]]


def resnet18() -> Shapes:
    """Return the shapes of ResNet-18's parameters."""
    with torch.device("meta"):
        return [tuple(p.shape) for p in ResNet18().parameters()]


def gpt2(width: int, layers: int) -> Shapes:
    """Return the shapes of GPT-2's parameters; its head is the embedding."""
    norm: Shapes = [(width,), (width,)]
    attention: Shapes = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    perceptron: Shapes = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    layer = [*norm, *attention, *norm, *perceptron]
    return [(50257, width), (1024, width), *layer * layers, *norm]


MODELS: dict[str, Callable[[], Shapes]] = {
    "resnet18": resnet18,
    "gpt2": partial(gpt2, 768, 12),
    "gpt2-xl": partial(gpt2, 1600, 48),
    "many": lambda: [(100,)] * 1000,  # nothing to move: what the host does between tensors
}
SMALL = ("resnet18", "many")  # what a CPU is given unless more is asked for


def count(model: str) -> int:
    """Return how many numbers the parameters hold."""
    return sum(torch.Size(shape).numel() for shape in MODELS[model]())


def parameters(model: str, device: torch.device, seed: int) -> list[Tensor]:
    """Return random parameters with random gradients, which stay as they are."""
    source = torch.Generator(device).manual_seed(seed)
    params = [torch.randn(shape, device=device, generator=source).requires_grad_() for shape in MODELS[model]()]
    for p in params:
        p.grad = torch.randn(p.shape, device=device, generator=source).mul_(1e-3)
    return params


@dataclass(frozen=True)
class Contender:
    """An optimizer to time."""

    name: str  # of the row
    traffic: int  # bytes per parameter that one step has to move in float32, whichever way it is written
    held: int  # bytes per parameter that it keeps, or needs for a moment, beside the parameter and the gradient
    make: Callable[[list[Tensor]], Optimizer]  # makes it from the parameters
    peer: str = BASE  # torch's own optimizer of the same kind


def line_up(kind: str) -> list[Contender]:
    """Return all contenders on a device of this kind (cpu or cuda), everyone after its peer and the base again last.

    Traffic counts each array once per reading and once per writing: p, g and the momentum make 4·(2 + 1 + 2) = 20.
    """
    found = []
    kept = 4 if kind == "cpu" else 0  # the kept x̄ is in the host's memory
    for setting in ("fused", "foreach"):
        common: dict[str, Any] = {"lr": LR, "momentum": MOMENTUM, setting: True}
        peer, name, ours = f"SGD {setting}", f"ScaledSGDM {setting}", o2nc.ScaledSGDM
        found += [
            Contender(peer, 20, 4, partial(SGD, **common), peer),
            Contender(name, 20, 4, partial(ours, **common), peer),
            # x̄ is read and written as well; ḡ is read off the momentum
            Contender(f"{name}, average=momentum", 28, 8 + kept, partial(ours, average=MOMENTUM, **common), peer),
            Contender(
                f"{name}, average={LONG_AVERAGE}", 36, 12 + kept, partial(ours, average=LONG_AVERAGE, **common), peer
            ),
        ]
    adam: dict[str, Any] = {"lr": LR, "fused": True, "capturable": kind == "cuda"}
    # at this lr the learner is Adam with the other's lr and β₁ = β
    learner = o2nc.learners.ScaleFree(lr=LR / ((1 + MOMENTUM) / (1 - MOMENTUM)) ** 0.5)
    o2nc_: dict[str, Any] = {"learner": learner, "beta": MOMENTUM} | ({"fused": True} if kind == "cuda" else {})
    free, fused = partial(o2nc.ExponentiatedO2NC, **o2nc_), " fused" if kind == "cuda" else ""
    return [
        *found,
        *adamw(kind, kept),
        Contender("Adam fused", 28, 8, partial(Adam, **adam), "Adam fused"),
        # M, v are read and written, Δ is written; the averages add Δ's reading and x̄, ḡ
        Contender(f"ScaleFree{fused}, average=False", 28, 8, partial(free, average=False), "Adam fused"),
        Contender(f"ScaleFree{fused}, average=True", 44, 16 + kept, partial(free, average=True), "Adam fused"),
        Contender(AGAIN, 20, 4, partial(SGD, lr=LR, momentum=MOMENTUM, fused=True)),
    ]


def adamw(kind: str, kept: int) -> list[Contender]:
    """Return AdamW, ours, torch's extended, and torch's with the average that torch offers."""
    found = []
    for setting in ("fused", "foreach") if kind == "cpu" else ("fused",):
        common: dict[str, Any] = {"lr": LR, setting: True, "capturable": kind == "cuda"}
        peer, ours = f"AdamW {setting}", partial(o2nc.AdamW, **common)
        found += [
            Contender(peer, 28, 8, partial(AdamW, **common), peer),
            Contender(f"o2nc.{peer}", 28, 8, ours, peer),
            Contender(f"o2nc.{peer}, x̄", 36, 12 + kept, partial(ours, average=WINDOW, certificate=False), peer),
            Contender(f"o2nc.{peer}, x̄ and certificate", 44, 16 + kept, partial(ours, average=WINDOW), peer),
            Contender(f"extend({peer}), x̄ and certificate", 52, 16 + kept, partial(extended, **common), peer),
            Contender(f"{peer} and swa_utils' EMA", 40, 12, partial(WithEma, **common), peer),  # type: ignore[arg-type]
        ]
    return found


def extended(params: list[Tensor], **common: Any) -> Optimizer:
    """Return torch's AdamW, extended."""
    return o2nc.extend(AdamW(params, **common), average=WINDOW, progress=False)


class WithEma:
    """AdamW followed by torch's own average of the parameters."""

    def __init__(self, params: list[Tensor], **common: Any) -> None:
        self.optimizer = AdamW(params, **common)
        self.model = torch.nn.Module()
        for i, p in enumerate(params):
            self.model.register_parameter(f"p{i}", p if isinstance(p, torch.nn.Parameter) else torch.nn.Parameter(p))
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(LONG_AVERAGE))

    def step(self) -> None:
        """Make a step, and average."""
        self.optimizer.step()
        self.average.update_parameters(self.model)
