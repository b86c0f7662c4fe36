"""The optimizers that can be compared, by name.

    NAME            sgdm, adamw, or a learner: ogd, ball-ogd, ftrl, adagrad, scale-free, coin-betting
    NAME+LAW        the same with its updates scaled by s: exponential, uniform, weibull, gamma
    NAME(key=value, …)+LAW(key=value, …)        with other numbers than the defaults

``sgdm`` and ``sgdm+exponential`` are the two columns of Table 1. A learner plays in `ExponentiatedO2NC` with
``beta=0.9``; its weight decay is part of the loss, as SGD's is. Only SGD's numbers are the paper's: the others put
the first steps on about the same scale and have not been tuned.
"""

import ast
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from o2nc import ExponentiatedO2NC, ScaledSGDM, checks, learners, random_scaling, scaling
from o2nc.scaling import Law

LAWS: dict[str, tuple[type, dict[str, float]]] = {
    "exponential": (scaling.Exponential, {}),
    "uniform": (scaling.Uniform, {}),
    "weibull": (scaling.Weibull, {"shape": 1.5}),
    "gamma": (scaling.Gamma, {"shape": 1.5}),
}
_PLAYED = {"beta": 0.9, "weight_decay": 5e-4}  # what every learner's arm takes beside the learner's own
LEARNERS: dict[str, tuple[type, dict[str, Any]]] = {
    "ogd": (learners.OGD, {"lr": 0.011}),  # sgdm's lr / 0.9: the same steps, up to torch's first
    "ball-ogd": (learners.BallOGD, {"lr": 0.011, "radius": 0.2}),
    "ftrl": (learners.FTRL, {"lr": 0.011}),
    "adagrad": (learners.AdaGrad, {"lr": 2e-4, "diagonal": True}),
    "scale-free": (learners.ScaleFree, {"lr": 2e-4}),  # Adam's lr / 4.4, see the learner
    "coin-betting": (learners.CoinBetting, {"wealth": 0.1, "lipschitz": 5.0}),
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "sgdm": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "nesterov": False},
    "adamw": {"lr": 1e-3, "weight_decay": 0.05},
} | {name: {f.name: f.default for f in fields(learner)} | own | _PLAYED for name, (learner, own) in LEARNERS.items()}
TABLE = ("sgdm", "sgdm+exponential")
LONGEST = 200


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        name: as the user wrote it, without spaces.
        base: sgdm, adamw or a learner's name.
        options: its numbers, defaults filled in.
        law: of s, None for no scaling.
    """

    name: str
    base: str
    options: dict[str, Any]
    law: Law | None

    @property
    def penalty(self) -> float:
        """The weight decay that is not the optimizer's: the trainer adds this multiple of x to the gradient."""
        return self.options["weight_decay"] if self.base in LEARNERS else 0.0

    @property
    def on_device(self) -> bool:
        """Whether a step on a GPU takes nothing from the host, so that a CUDA graph can hold it."""
        if self.base == "adamw":
            return self.law is None  # `random_scaling` multiplies lr on the host
        return not isinstance(self.law, scaling.Gamma)

    def make(self, params: Iterable[Tensor], average: float, seed: int, device: torch.device) -> Optimizer:
        """Return the optimizer.

        Args:
            params: of the model.
            average: the discount of x̄ and ḡ; a learner's is its own β, and AdamW has none.
            seed: of s.
            device: where the parameters are.
        """
        params, options = list(params), dict(self.options)
        in_graph = True if device.type == "cuda" and self.on_device else None
        match self.base:
            case "sgdm":
                return ScaledSGDM(params, **options, scaling=self.law, seed=seed, average=average, fused=in_graph)
            case "adamw":
                optimizer = AdamW(params, **options, fused=device.type == "cuda", capturable=bool(in_graph))
                return optimizer if self.law is None else random_scaling(optimizer, self.law, seed)
        beta, _ = options.pop("beta"), options.pop("weight_decay")
        learner = LEARNERS[self.base][0](**options)
        return ExponentiatedO2NC(params, learner, beta=beta, scaling=self.law, seed=seed, fused=in_graph)


def parse(text: str) -> Arm:
    """Return the arm of this name.

    Raises:
        ValueError: it cannot be understood; the text says what can.

    Example:
        >>> parse("sgdm(lr=0.1)+uniform").law
        Uniform(low=0.0, high=2.0, weighted=False)
    """
    if len(text) > LONGEST:
        raise ValueError(f"arm {text[:20]!r}… is longer than {LONGEST} characters")
    compact = "".join(text.split())
    name, options, rest = _split(compact, text)
    if name not in DEFAULTS:
        raise ValueError(f"arm {text!r}: the optimizer is one of {', '.join(DEFAULTS)}")
    unknown = options.keys() - DEFAULTS[name].keys()
    if unknown:
        raise ValueError(f"arm {text!r}: {name} has no {', '.join(unknown)}, but {', '.join(DEFAULTS[name])}")
    wanted, given, end = _split(rest[1:], text) if rest[:1] == "+" else ("", {}, rest)
    if end.startswith("(") and ")" not in end:
        raise ValueError(f"arm {text!r}: a closing parenthesis is missing")
    if end or (wanted and wanted not in LAWS):
        raise ValueError(f"arm {text!r}: after the optimizer comes nothing, or '+' and one of {', '.join(LAWS)}")
    unknown = given.keys() - {f.name for f in fields(LAWS[wanted][0])} if wanted else set()
    if unknown:
        own = ", ".join(f.name for f in fields(LAWS[wanted][0]))
        raise ValueError(f"arm {text!r}: {wanted} has no {', '.join(unknown)}, but {own}")
    try:  # laws and optimizers know best what they take
        law = LAWS[wanted][0](**LAWS[wanted][1] | given) if wanted else None
        arm = Arm(compact, name, DEFAULTS[name] | options, law)
        checks.non_negative("weight_decay", arm.options["weight_decay"])
        if name == "sgdm":  # torch takes more, with which nothing can converge
            checks.number("momentum", arm.options["momentum"], "a number in [0, 1)", lambda v: 0 <= v < 1)
        x = torch.nn.Parameter(torch.zeros(1))
        x.grad = torch.ones(1)
        arm.make([x], 0.9, 0, x.device).step()
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"arm {text!r}: {error}") from None
    return arm


def _split(text: str, whole: str) -> tuple[str, dict[str, Any], str]:
    """Return the name at the beginning, its options in parentheses, and what comes after."""
    found = re.match(r"([a-z-]+)(\([^()]*\))?", text)
    if found is None:
        raise ValueError(f"arm {whole!r}: write NAME, NAME+LAW or NAME(key=value)+LAW(key=value), in small letters")
    try:
        call = ast.parse(f"f{found[2] or '()'}", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or not all(keyword.arg for keyword in call.keywords):
            raise ValueError
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        finite = all(isinstance(value, int | float) and math.isfinite(value) for value in options.values())
        if not finite or len(options) < len(call.keywords):
            raise ValueError
    except (SyntaxError, ValueError, OverflowError):
        raise ValueError(f"arm {whole!r}: options are (key=value, …), each once, with finite numbers") from None
    return found[1], options, text[found.end() :]
