"""An arm by one grammar: optimizer × schedule × law × windows.

    OPTIMIZER[(key=value, …)]:SCHEDULE[~LAW[(…)]][+WINDOW …]

    adamw:linear                                a run per horizon, evaluated at its last iterate
    adamw:constant+t^12                         one run for all horizons, evaluated at x̄ by t^12 and at the last x
    adamw:constant+t^4+t^12+0.999               the same run, with three averages
    adamw(lr=2e-3,beta2=0.99):wsd20             decayed to 0 over the last 20 %
    adamw:constant~jitter(0.25)+t^12            updates scaled by s ~ U(¾, 5/4)
    muon:rsqrt1000+t^12                         lr falls as t^-½ from step 1000 on, with no horizon
    schedule-free(beta1=0.95,r=3):constant      has an average of its own

The first window is the optimizer's own (``average=``) and comes with the certificate; the others are running means
that the experiment keeps (`Means`). A window is t^POWER or a discount in (0, 1).
"""

import math
import re
from dataclasses import dataclass

from torch import optim

from o2nc import Law, Polynomial
from o2nc_experiments import laws

LAST, OWN = "last", "average"  # how the last iterate and schedule-free's x are called in results
OPTIMIZERS: dict[str, dict[str, float]] = {
    "adamw": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
    "sgdm": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
    # embedding and head by AdamW: lr·adam times the same schedule
    "muon": {"lr": 1e-3, "momentum": 0.95, "weight_decay": 0.1, "adam": 1.0},
    "scale-free": {"lr": 2.5e-4, "beta": 0.9},
    "schedule-free": {"lr": 2e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "r": 0.0},
}
# torch's others, extended; named in small letters, with their own defaults
OTHERS: dict[str, type[optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(optim).items()
    if isinstance(kind, type)
    and issubclass(kind, optim.Optimizer)
    and name not in ("Optimizer", "Adam", "AdamW", "Muon", "LBFGS", "SparseAdam")
}
SCHEDULES = "constant, linear, cosine, wsdPERCENT, rsqrt or rsqrtSTEP"
GRAMMAR = "OPTIMIZER(key=value):SCHEDULE~LAW(…)+WINDOW, as in adamw:linear or 'adamw(lr=2e-3):constant+t^12'"
LONGEST = 200


@dataclass(frozen=True)
class Schedule:
    """What the learning rate is multiplied by, after a linear warm-up.

    Attributes:
        kind: constant, linear, cosine, wsd or rsqrt.
        number: the percentage of wsd, the step of rsqrt (None: the warm-up's end).
    """

    kind: str
    number: float | None = None

    @property
    def decays(self) -> bool:
        """Whether it ends at a horizon, so that every horizon needs a run of its own."""
        return self.kind in ("linear", "cosine", "wsd")

    def factor(self, step: int, horizon: int, warmup: int) -> float:
        """Return the multiple of lr in a step, counted from 0, of a run that ends after ``horizon`` steps.

        Example:
            >>> [round(Schedule("wsd", 20).factor(t, 10, 2), 2) for t in range(10)]
            [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]
        """
        rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return rise * self._fall(step, horizon, warmup)

    def _fall(self, step: int, horizon: int, warmup: int) -> float:
        left = horizon - step
        match self.kind:
            case "linear":
                return min(1.0, left / (horizon - warmup))
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * max(0, step - warmup) / (horizon - warmup)))
            case "wsd":
                return min(1.0, left / (horizon - self.fork(horizon)))
            case "rsqrt":
                since = warmup if self.number is None else self.number
                return min(1.0, math.sqrt(max(since, 1) / (step + 1)))
        return 1.0

    def fork(self, horizon: int) -> int:
        """Return until which step a decay to this horizon is like no decay: the run before it can be shared."""
        if self.kind == "wsd":
            assert self.number is not None
            return horizon - max(1, round(horizon * self.number / 100))
        return 0 if self.decays else horizon

    @property
    def trunk(self) -> "Schedule | None":
        """The schedule up to the fork, without a horizon; None where there is nothing to share."""
        return None if self.kind in ("linear", "cosine") else Schedule("constant") if self.kind == "wsd" else self


@dataclass(frozen=True)
class Arm:
    """One way to train and to read off.

    Attributes:
        name: as the user wrote it, without spaces.
        optimizer: its name.
        options: its numbers, defaults filled in, lr apart.
        lr: learning rate.
        schedule: of lr.
        law: of s, None for no scaling.
        windows: of the averages, as they were written.
    """

    name: str
    optimizer: str
    options: dict[str, float]
    lr: float
    schedule: Schedule
    law: Law | None
    windows: tuple[str, ...]

    @property
    def base(self) -> str:
        """What two arms have in common whose iterates are the same as long as their learning rates are."""
        numbers = ",".join(f"{key}={value:g}" for key, value in sorted(self.options.items()))
        return f"{self.optimizer}({numbers})~{self.law}"

    @property
    def weights(self) -> tuple[str, ...]:
        """What is evaluated: the averages, then the last iterate."""
        return (OWN,) if self.optimizer == "schedule-free" else (*self.windows, LAST)


def window(text: str) -> float | Polynomial:
    """Return the library's window; ValueError if there is none.

    Example:
        >>> window("t^12"), window("0.999")
        (Polynomial(power=12.0, start=0), 0.999)
    """
    try:
        if text.startswith("t^"):
            return Polynomial(float(text[2:]))
        beta = float(text)
    except ValueError:
        beta = math.nan
    if not 0 < beta < 1:
        raise ValueError(f"a window is t^POWER, as t^12, or a discount in (0, 1), as 0.999; got {text!r}")
    return beta


def parse(text: str) -> Arm:
    """Return the arm of this name.

    Raises:
        ValueError: it cannot be understood; the text says what can.

    Example:
        >>> arm = parse("adamw(lr=2e-3):wsd20+t^12")
        >>> arm.lr, arm.schedule, arm.weights
        (0.002, Schedule(kind='wsd', number=20.0), ('t^12', 'last'))
    """
    compact = "".join(text.split())
    try:
        if len(compact) > LONGEST:
            raise ValueError(f"it is longer than {LONGEST} characters")
        return _parse(compact)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"arm {text[:LONGEST]!r}: {error}") from None


def _parse(text: str) -> Arm:
    call = r"([a-z-]+)(\([^()]*\))?"
    found = re.fullmatch(rf"{call}:([a-z]+)([\d.]*)(?:~{call})?((?:\+[^+()~:]+)*)", text)
    if found is None:
        raise ValueError(f"write {GRAMMAR}")
    name, numbers, kind, number, law, arguments, tail = found.groups()
    defaults = _defaults(name)
    positional, options = laws.numbers(numbers)
    if positional or options.keys() - defaults.keys():
        raise ValueError(f"{name} takes {', '.join(f'{key}=…' for key in defaults)}, not {numbers}")
    options = defaults | options
    lr = options.pop("lr")
    if not 0 < lr < math.inf:
        raise ValueError(f"lr must be a finite number > 0, got {lr!r}")
    windows = tuple(dict.fromkeys(tail.split("+")[1:]))
    for one in windows:
        window(one)
    if name == "schedule-free" and (windows or law):
        raise ValueError("schedule-free has an average of its own (beta1, r): it takes neither windows nor a law")
    scaling = laws.parse(law + (arguments or "")) if law else None
    return Arm(text, name, options, lr, _schedule(kind, number), scaling, windows)


def _defaults(name: str) -> dict[str, float]:
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    if name not in OTHERS:
        raise ValueError(f"the optimizer is one of {', '.join([*OPTIMIZERS, *OTHERS])}")
    import inspect

    found: dict[str, float] = {}
    for key, parameter in inspect.signature(OTHERS[name]).parameters.items():
        if key == "betas":
            found |= {"beta1": parameter.default[0], "beta2": parameter.default[1]}
        elif isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
            found[key] = parameter.default
    return found


def _schedule(kind: str, number: str) -> Schedule:
    known = {"constant": False, "linear": False, "cosine": False, "wsd": True, "rsqrt": True}
    if kind not in known or (number and not known[kind]) or (kind == "wsd" and not number):
        raise ValueError(f"the schedule is {SCHEDULES}, got {kind}{number}")
    value = float(number) if number else None
    if kind == "wsd" and not (value and value < 100):
        raise ValueError(f"wsd takes a percentage in (0, 100), as wsd20, got {kind}{number}")
    if kind == "rsqrt" and value is not None and value < 1:
        raise ValueError(f"rsqrt takes a step >= 1, as rsqrt1000, got {kind}{number}")
    return Schedule(kind, value)
