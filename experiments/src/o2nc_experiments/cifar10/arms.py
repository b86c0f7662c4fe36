"""An arm by name: optimizer × schedule × law × window, with the grammar of `o2nc_experiments.arms`.

    NAME[(key=value, …)][:SCHEDULE[EPOCHS]][~LAW[(…)]][+WINDOW]

    NAME                    sgdm, adamw, or a learner: ogd, ball-ogd, ftrl, adagrad, ball-adagrad, scale-free, …
    NAME+LAW, NAME~LAW      its updates scaled by s: exponential, uniform, jitter, weibull, gamma
    sgdm(lr=0.02)~gamma(16)         with other numbers than the defaults, those of a law also without their names
    sgdm:constant+t^12      at a constant learning rate, x̄ by weights t^12; constant, linear or cosine, the default
    sgdm:cosine40           decayed to end after 40 epochs, however long the others go on

``sgdm`` and ``sgdm+exponential`` are the two columns of Table 1. A learner plays in `ExponentiatedO2NC` with
``beta=0.9``; its weight decay is part of the loss, as SGD's is. Only SGD's numbers are the paper's: the others put
the first steps on about the same scale and have not been tuned.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from o2nc import ExponentiatedO2NC, Gamma, Law, ScaledSGDM, learners, random_scaling
from o2nc.averages import Polynomial
from o2nc_experiments import laws
from o2nc_experiments.arms import Schedule, read, split, window
from o2nc_experiments.cifar10.names import SCHEDULES
from o2nc_experiments.options import check_number

# numbers of a law that is named without
USUAL: dict[str, dict[str, float]] = {"jitter": {"width": 0.25}, "weibull": {"shape": 1.5}, "gamma": {"shape": 1.5}}
_PLAYED = {"beta": 0.9, "weight_decay": 5e-4}  # what every learner's arm takes beside the learner's own
LEARNERS: dict[str, tuple[type, dict[str, Any]]] = {
    "ogd": (learners.OGD, {"lr": 0.011}),  # sgdm's lr / 0.9: the same steps, up to torch's first
    "ball-ogd": (learners.BallOGD, {"lr": 0.011, "radius": 0.2}),
    "ftrl": (learners.FTRL, {"lr": 0.011}),
    "adagrad": (learners.AdaGrad, {"lr": 2e-4, "diagonal": True}),
    "ball-adagrad": (learners.BallAdaGrad, {"lr": 0.2}),
    "scale-free": (learners.ScaleFree, {"lr": 2e-4}),  # Adam's lr / 4.4, see the learner
    "coin-betting": (learners.CoinBetting, {"wealth": 0.1, "lipschitz": 5.0}),
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "sgdm": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": False},
    "adamw": {"lr": 1e-3, "weight_decay": 0.05},
} | {name: {f.name: f.default for f in fields(learner)} | own | _PLAYED for name, (learner, own) in LEARNERS.items()}
GRAMMAR = (
    "NAME(key=value), in small letters; after the optimizer comes :SCHEDULE, +LAW(…) and +WINDOW, or some of them; "
    "a window is t^POWER or a discount"
)
MOST = 10**6  # epochs


@dataclass(frozen=True)
class Arm:
    """One way to train."""

    name: str  # as the user wrote it, without spaces
    base: str  # sgdm, adamw or a learner's name
    options: dict[str, Any]  # its numbers, defaults filled in
    law: Law | None  # of s, None for no scaling
    schedule: Schedule  # of lr, epoch by epoch
    end: int | None  # after how many epochs it is over, None for as many as all others
    window: str | None  # of x̄ and ḡ, as it was written; None for that of all others
    given: dict[str, Any]  # those of its numbers that the name has
    tail: str  # law and window, as they were written

    @property
    def lr(self) -> float | None:
        """The learning rate that its name has, None if it leaves that open."""
        return self.given.get("lr")

    def epochs(self, usual: int) -> int:
        """Return how many epochs it has where all others have the usual number."""
        return self.end or usual

    def variant(self, *, lr: float | None = None, end: int | None = None) -> "Arm":
        """Return the same at another learning rate, or with an end of its own.

        Example:
            >>> parse("sgdm(momentum=0.8)~gamma(16)").variant(lr=0.02, end=40).name
            'sgdm(momentum=0.8,lr=0.02):cosine40~gamma(16)'
        """
        numbers = self.given | ({} if lr is None else {"lr": lr})
        if numbers.get("lr") == DEFAULTS[self.base].get("lr"):
            numbers.pop("lr", None)  # the usual one goes without saying: it is the same arm
        given = ",".join(f"{key}={value!r}" for key, value in numbers.items())
        end = self.end if end is None else end
        schedule = "" if (self.schedule.kind, end) == ("cosine", None) else f":{self.schedule.kind}{end or ''}"
        return _variant(f"{self.base}{f'({given})' if given else ''}{schedule}{self.tail}")

    @property
    def penalty(self) -> float:
        """The weight decay that is not the optimizer's: the trainer adds this multiple of x to the gradient."""
        return self.options["weight_decay"] if self.base in LEARNERS else 0.0

    @property
    def averages(self) -> bool:
        """Whether the optimizer keeps averages."""
        return self.base != "adamw"

    @property
    def on_device(self) -> bool:
        """Whether a step on a GPU takes nothing from the host, so that a CUDA graph can hold it."""
        if self.base == "adamw":
            return self.law is None  # `random_scaling` multiplies lr on the host
        return not (isinstance(self.law, Gamma) and (self.law.weighted or self.law.estimates))  # its weight is not

    def make(self, params: Iterable[Tensor], average: float, seed: int, device: torch.device) -> Optimizer:
        """Return the optimizer, x̄ and ḡ by its window, ``average`` or a learner's own β; AdamW has neither."""
        params, options = list(params), dict(self.options)
        kept: float | Polynomial = average if self.window is None else window(self.window)
        in_graph = True if device.type == "cuda" and self.on_device else None
        match self.base:
            case "sgdm":
                return ScaledSGDM(params, **options, scaling=self.law, seed=seed, average=kept, fused=in_graph)
            case "adamw":
                optimizer = AdamW(params, **options, fused=device.type == "cuda", capturable=bool(in_graph))
                return optimizer if self.law is None else random_scaling(optimizer, self.law, seed)
        beta, _ = options.pop("beta"), options.pop("weight_decay")
        learner = LEARNERS[self.base][0](**options)
        return ExponentiatedO2NC(params, learner, beta=beta, scaling=self.law, seed=seed, fused=in_graph)


def parse(text: str) -> Arm:
    """Return the arm of this name, or say in a ValueError what can be understood.

    Example:
        >>> arm = parse("sgdm(lr=0.1):constant~uniform(0.75,1.25)+t^12")
        >>> arm.law, arm.schedule.kind, arm.window
        (Uniform(low=0.75, high=1.25, weighted=False), 'constant', 't^12')
    """
    return read(text, _parse)


@cache
def _variant(name: str) -> Arm:
    return parse(name)


def _parse(compact: str) -> Arm:
    name, numbers, kind, end, law, windows, tail = split(compact, GRAMMAR, "~+")
    if name not in DEFAULTS:
        raise ValueError(f"the optimizer is one of {', '.join(DEFAULTS)}")
    positional, options = laws.numbers(numbers, (int, float, bool))
    if positional:
        raise ValueError("options are (key=value, …), each once, with finite numbers")
    if unknown := options.keys() - DEFAULTS[name].keys():
        raise ValueError(f"{name} has no {', '.join(unknown)}, but {', '.join(DEFAULTS[name])}")
    if kind and kind not in SCHEDULES:
        raise ValueError(f"the schedule is one of {', '.join(SCHEDULES)}, got {kind}")
    if end and not end.isdecimal():
        raise ValueError(f"write {GRAMMAR}")
    if end and not 1 <= int(end) <= MOST:
        raise ValueError(f"a schedule ends after 1 to {MOST} epochs, got {end}")
    if windows and name != "sgdm":
        raise ValueError("only sgdm takes a window; a learner averages by its beta, and adamw keeps no averages")
    arm = Arm(
        compact,
        name,
        DEFAULTS[name] | options,
        laws.parse(law, USUAL) if law else None,
        Schedule(kind or "cosine"),
        int(end) if end else None,
        "+".join(windows) or None,
        options,
        tail,
    )
    _check(arm)
    return arm


def _check(arm: Arm) -> None:
    """Refuse numbers with which nothing can be trained, by making a step."""
    decay, momentum = arm.options["weight_decay"], arm.options.get("momentum", 0.0)
    check_number("weight_decay", decay)
    if arm.base == "sgdm":  # torch takes more, with which nothing can converge
        check_number("momentum", momentum, "a number in [0, 1)", lambda v: v < 1)
    x = torch.nn.Parameter(torch.zeros(1))
    x.grad = torch.ones(1)
    arm.make([x], 0.9, 0, x.device).step()
