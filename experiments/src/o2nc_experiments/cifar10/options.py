"""What can be asked for on the command line: arms, settings, and all options together.

An arm is an optimizer by name:

    NAME            sgdm, adamw, or a learner: ogd, ball-ogd, ftrl, adagrad, ball-adagrad, scale-free, coin-betting
    NAME+LAW        the same with its updates scaled by s: exponential, uniform, weibull, gamma
    NAME(key=value, …)+LAW(key=value, …)        with other numbers than the defaults

``sgdm`` and ``sgdm+exponential`` are the two columns of Table 1. A learner plays in `ExponentiatedO2NC` with
``beta=0.9``; its weight decay is part of the loss, as SGD's is. Only SGD's numbers are the paper's: the others put
the first steps on about the same scale and have not been tuned.
"""

import ast
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from o2nc import ExponentiatedO2NC, Gamma, Law, ScaledSGDM, learners, random_scaling
from o2nc_experiments import laws

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
LONGEST = 200


@dataclass(frozen=True)
class Arm:
    """One way to train."""

    name: str  # as the user wrote it, without spaces
    base: str  # sgdm, adamw or a learner's name
    options: dict[str, Any]  # its numbers, defaults filled in
    law: Law | None  # of s, None for no scaling

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
        return not isinstance(self.law, Gamma)

    def make(self, params: Iterable[Tensor], average: float, seed: int, device: torch.device) -> Optimizer:
        """Return the optimizer, x̄ and ḡ being discounted by ``average``, or a learner's own β; AdamW has neither."""
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
    """Return the arm of this name, or say in a ValueError what can be understood.

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
    wanted, given, end = _split(rest[1:], text) if rest[:1] == "+" else ("", {}, rest)
    if end.startswith("(") and ")" not in end:
        raise ValueError(f"arm {text!r}: a closing parenthesis is missing")
    if end or (wanted and wanted not in LAWS):
        raise ValueError(f"arm {text!r}: after the optimizer comes nothing, or '+' and one of {', '.join(LAWS)}")
    own = laws.members(wanted) if wanted else []
    for part, said, known in ((name, options, list(DEFAULTS[name])), (wanted, given, own)):
        if unknown := said.keys() - set(known):
            raise ValueError(f"arm {text!r}: {part} has no {', '.join(unknown)}, but {', '.join(known)}")
    try:  # laws and optimizers know best what they take
        law = LAWS[wanted][0](**LAWS[wanted][1] | given) if wanted else None
        arm = Arm(compact, name, DEFAULTS[name] | options, law)
        _check("weight_decay", arm.options["weight_decay"])
        if name == "sgdm":  # torch takes more, with which nothing can converge
            _check("momentum", arm.options["momentum"], "a number in [0, 1)", lambda v: v < 1)
        x = torch.nn.Parameter(torch.zeros(1))
        x.grad = torch.ones(1)
        arm.make([x], 0.9, 0, x.device).step()
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"arm {text!r}: {error}") from None
    return arm


def arm_names(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names without spaces, each once; Table 1's if there are none."""
    return tuple(dict.fromkeys("".join(name.split()) for name in names)) if names else TABLE


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


def _check(
    name: str, value: float, allowed: str = "a finite number >= 0", within: Callable[[float], bool] = lambda v: True
) -> None:
    """Refuse a number unless it is finite, not negative, and within what is allowed."""
    if isinstance(value, bool) or not (math.isfinite(value) and value >= 0 and within(value)):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


@dataclass(frozen=True)
class Settings:
    """The setting of Table 1, or a smaller one."""

    epochs: int = 200  # how many times the training set is gone through
    batch: int = 128  # images per step, over all processes
    average: float = 0.999  # the discount of x̄ and ḡ, in (0, 1)
    width: int = 64  # channels of ResNet-18's first stage
    limit: int | None = None  # only so many training images, and a fifth as many test images

    def factor(self, epoch: int) -> float:
        """Return what the learning rate is multiplied by in an epoch, counted from 0: a cosine from 1 towards 0."""
        return 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))

    def steps(self, epoch: int, images: int) -> int:
        """Return how many steps come before an epoch: all batches that begin before it.

        Batches go on across the end of an epoch, so that every image is seen exactly once per epoch.
        """
        return -(-epoch * images // self.batch)

    def averages_are_due(self, epoch: int) -> bool:
        """Say whether x̄ is evaluated when so many epochs are over: ten times, and at the end."""
        return epoch == self.epochs or epoch % max(1, self.epochs // 10) == 0


def unlike_paper(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record's settings have that is not the paper's; the discount of x̄ is not in the paper."""
    usual, named = asdict(Settings()), ("epochs", "batch", "width", "limit")
    return {key: settings[key] for key in named if settings.get(key, usual[key]) != usual[key]}


@dataclass(frozen=True)
class Options:
    """The arguments of the command line, as they were given."""

    data: Path | None  # folder of the data set, None for the folder ``data`` in ``out``
    fetch: bool  # whether to download it there if it is missing
    out: Path  # folder of the run
    arms: Sequence[str]  # names of the optimizers
    seeds: range  # of the trials
    settings: Settings  # of all trials
    device: str | None  # its name, None for the GPU if there is one
    at_once: int | None  # trials that share a GPU, None for as many as are good
    save_every: float  # seconds between checkpoints
    c: float  # the price of spread in the certificates that are shown
    quiet: bool  # whether to print errors only

    def check(self) -> None:
        """Refuse numbers that typer cannot: ValueError."""
        _check("--average", self.settings.average, "a number in (0, 1)", lambda v: 0 < v < 1)
        _check("--c", self.c, "a finite number > 0", lambda v: v > 0)
        _check("--save-every", self.save_every)

    @property
    def data_folder(self) -> Path:
        """The folder that the data set is read from, and fetched to."""
        return self.data or self.out / "data"

    @property
    def command(self) -> str:
        """The command line that makes the same table."""
        s, usual = self.settings, Settings()
        parts = ["o2nc cifar10 --data DIR"]
        parts += [f"--arm '{arm}'" for arm in self.arms if tuple(self.arms) != TABLE]
        parts += [f"--seed {self.seeds[0]}"] if self.seeds[0] else []
        parts += [f"--seeds {len(self.seeds)} --epochs {s.epochs}"]
        for name in ("batch", "average", "width", "limit"):
            if getattr(s, name) != getattr(usual, name):
                parts.append(f"--{name} {getattr(s, name)}")
        parts += [f"--c {self.c:g}"] if self.c != 1 else []
        parts += [f"--device {shlex.quote(self.device)}"] if self.device else []
        return " ".join(parts)
