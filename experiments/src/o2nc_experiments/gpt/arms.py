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

import inspect
import math
from dataclasses import dataclass

from torch import optim

from o2nc import Law
from o2nc_experiments import laws
from o2nc_experiments.arms import Schedule, read, split, window

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


def parse(text: str) -> Arm:
    """Return the arm of this name.

    Raises:
        ValueError: it cannot be understood; the text says what can.

    Example:
        >>> arm = parse("adamw(lr=2e-3):wsd20+t^12")
        >>> arm.lr, arm.schedule, arm.weights
        (0.002, Schedule(kind='wsd', number=20.0), ('t^12', 'last'))
    """
    return read(text, _parse)


def _parse(text: str) -> Arm:
    name, numbers, kind, number, law, windows, _ = split(text, GRAMMAR)
    if not kind:
        raise ValueError(f"write {GRAMMAR}")
    defaults = _defaults(name)
    positional, options = laws.numbers(numbers)
    if positional or options.keys() - defaults.keys():
        raise ValueError(f"{name} takes {', '.join(f'{key}=…' for key in defaults)}, not {numbers}")
    options = defaults | options
    lr = options.pop("lr")
    if not 0 < lr < math.inf:
        raise ValueError(f"lr must be a finite number > 0, got {lr!r}")
    for one in windows:
        window(one)
    if name == "schedule-free" and (windows or law):
        raise ValueError("schedule-free has an average of its own (beta1, r): it takes neither windows nor a law")
    return Arm(text, name, options, lr, _schedule(kind, number), laws.parse(law) if law else None, windows)


def _defaults(name: str) -> dict[str, float]:
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    if name not in OTHERS:
        raise ValueError(f"the optimizer is one of {', '.join([*OPTIMIZERS, *OTHERS])}")
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
