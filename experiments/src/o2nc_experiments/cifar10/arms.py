"""An arm by name: optimizer × schedule × law × window, with the grammar of `o2nc_experiments.gpt.arms`.

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

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from o2nc import ExponentiatedO2NC, Gamma, Law, ScaledSGDM, learners, random_scaling
from o2nc.averages import Polynomial
from o2nc_experiments import laws
from o2nc_experiments.gpt.arms import Schedule, window

_USUAL = {"jitter": {"width": 0.25}, "weibull": {"shape": 1.5}, "gamma": {"shape": 1.5}}
LAWS: dict[str, tuple[type, dict[str, float]]] = {n: (law, _USUAL.get(n, {})) for n, law in laws.LAWS.items()}
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
TABLE = ("sgdm", "sgdm+exponential")
SCHEDULES = ("cosine", "constant", "linear")
OPTIONS = "options are (key=value, …), each once, with finite numbers"
LONGEST, MOST = 200, 10**6


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
    if len(text) > LONGEST:
        raise ValueError(f"arm {text[:20]!r}… is longer than {LONGEST} characters")
    try:  # laws and optimizers know best what they take
        return _parse("".join(text.split()))
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"arm {text!r}: {error}") from None


@cache
def _variant(name: str) -> Arm:
    return parse(name)


def _parse(compact: str) -> Arm:
    name, positional, options, rest = _split(compact)
    if name not in DEFAULTS:
        raise ValueError(f"the optimizer is one of {', '.join(DEFAULTS)}")
    if positional:
        raise ValueError(OPTIONS)
    schedule = re.match(r":([a-z]+)(\d*)", rest)
    if schedule is not None and schedule[1] not in SCHEDULES:
        raise ValueError(f"the schedule is one of {', '.join(SCHEDULES)}, got {schedule[1]}")
    kind, end = (schedule[1], int(schedule[2] or 0)) if schedule else ("cosine", 0)
    if schedule is not None and schedule[2] and not 1 <= end <= MOST:
        raise ValueError(f"a schedule ends after 1 to {MOST} epochs, got {schedule[2]}")
    tail = rest[schedule.end() :] if schedule else rest
    scaled = re.match(r"[~+](?=[a-z])(?!t\^)", tail)
    wanted, first, given, after = _split(tail[1:]) if scaled else ("", [], {}, tail)
    if after.startswith("(") and ")" not in after:
        raise ValueError("a closing parenthesis is missing")
    if (after and after[0] != "+") or (wanted and wanted not in LAWS) or re.match(r"\+(?!t\^|[\d.])", after):
        raise ValueError(
            f"after the optimizer comes :SCHEDULE, +LAW and +WINDOW, or some of them; LAW is one of {', '.join(LAWS)}"
        )
    own = laws.members(wanted) if wanted else []
    if len(first) > len(own) or given.keys() & set(own[: len(first)]):
        raise ValueError(f"{wanted} takes {', '.join(own)}, each once")
    given |= dict(zip(own, first, strict=False))
    for part, said, known in ((name, options, list(DEFAULTS[name])), (wanted, given, own)):
        if unknown := said.keys() - set(known):
            raise ValueError(f"{part} has no {', '.join(unknown)}, but {', '.join(known)}")
    law = LAWS[wanted][0](**LAWS[wanted][1] | given) if wanted else None
    if after and name != "sgdm":
        raise ValueError("only sgdm takes a window; a learner averages by its beta, and adamw keeps no averages")
    numbers = DEFAULTS[name] | options
    arm = Arm(compact, name, numbers, law, Schedule(kind), end or None, after[1:] or None, options, tail)
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


def arm_names(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names without spaces, each once; Table 1's if there are none."""
    return tuple(dict.fromkeys("".join(name.split()) for name in names)) if names else TABLE


def _split(text: str) -> tuple[str, list[Any], dict[str, Any], str]:
    """Return the name at the beginning, its numbers in parentheses, without names and with, and what comes after."""
    found = re.match(r"([a-z-]+)(\([^()]*\))?", text)
    if found is None:
        raise ValueError("write NAME, NAME+LAW or NAME(key=value)+LAW(key=value), in small letters")
    try:
        positional, options = laws.numbers(found[2], (int, float, bool))
    except ValueError:
        raise ValueError(OPTIONS) from None
    return found[1], positional, options, text[found.end() :]


def check_number(
    name: str, value: float, allowed: str = "a finite number >= 0", within: Callable[[float], bool] = lambda v: True
) -> None:
    """Refuse a number unless it is finite, not negative, and within what is allowed: ValueError."""
    if isinstance(value, bool) or not (math.isfinite(value) and value >= 0 and within(value)):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
