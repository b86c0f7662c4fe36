"""What a rule brings along to run as kernels.

    coefficients(group, kept, prepared, s, constants) → rate, own, kept
        per tensor: the rate of Δ = rate·direction, the numbers that `update` gets as ``own``, and the new ``kept``
    update(x, g, slots, scale, own, FLOOR) → x, last, slots
        per element: x + scale·direction, with scale = s·rate; ``last`` is the direction that led to x

    group       lr and four more numbers of the parameter group, as in `Scalars`
    kept        the state that is one number per parameter
    prepared    four numbers that torch computed (`Rule.prepare`)
    constants   three numbers that the rule was made with
    slots       the state that has the parameter's shape: up to three values
    FLOOR       the smallest divisor, compiled in

All but ``kept`` and FLOOR are tuples. `update` gets everything in at least float32, and g with its sign and with
coupled weight decay; decoupled decay is up to it, unless `Rule.decoupled` leaves that to the kernel. ``last`` is
read only for the progress.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from o2nc.persist.plain import KEY

DECAYED = ("last_move", "last_decay")  # keys of −s and −lr·λ of the last update, of decoupled weight decay
CHUNK, BLOCK = 1024, 512  # elements of a program, and at a time: measured, larger ones are slower


class DeviceRule(NamedTuple):
    """The device form of a rule, by name: nothing of it is imported before it is needed."""

    form: str  # "module:function", which returns a `o2nc.fused.rule.Rule`; empty if there is none
    arguments: tuple[Any, ...] = ()  # further arguments of that function
    moves: bool = True  # False: the kernels only average, and the optimizer moves by itself
    is_bitwise: bool = False  # whether it has the bits of torch's own step

    def resolve(self) -> "Rule":
        """Return the rule."""
        module, _, function = self.form.partition(":")
        found: Rule = getattr(importlib.import_module(module), function)(*self.arguments)
        return found


class Request(NamedTuple):
    """What kernels need to know of an optimizer to take its step."""

    rule: DeviceRule
    groups: list[dict[str, Any]]
    state: dict[Any, dict[str, Any]]
    window: Any
    law: Any

    @property
    def settings(self) -> dict[str, Any]:
        """Our entries of the first parameter group."""
        found: dict[str, Any] = self.groups[0][KEY]
        return found


class Scalars(NamedTuple):
    """The numbers of a parameter group that are uploaded when they change; each may be a tensor."""

    sign: Any = 1.0  # of the gradient: −1 maximises
    coupled_decay: Any = 0.0  # weight decay that is part of the gradient
    lr: Any = 0.0
    first: Any = 0.0  # four of the rule's own
    second: Any = 0.0
    third: Any = 0.0
    fourth: Any = 0.0


class Layout(NamedTuple):
    """How the parameters of one group are updated."""

    update: Any  # the device function
    slots: tuple[str, ...]  # keys of the state that it works on; first the direction last added, if it is kept


@dataclass(frozen=True)
class Rule:
    """A rule as device functions and the state that they work on."""

    coefficients: Any
    own: int  # how many numbers `coefficients` gives to `update`
    layout: Callable[[dict[str, Any]], Layout]  # of a parameter group; compiled in, so that a change rewrites tables
    scalars: Callable[[dict[str, Any]], Scalars]
    number: str | None = None  # key of the state that is one number per parameter
    constants: tuple[float, ...] = (0.0, 0.0, 0.0)
    prepare: Any = None  # fills in, by torch, four numbers of every parameter for `coefficients`
    count: str | None = None  # key of torch's count of a parameter's steps, which `prepare` advances
    moves: bool = True  # whether x is written
    progress: bool = False  # whether ⟨g, Δ⟩ is summed
    decoupled: bool = False  # whether decoupled weight decay is added to its update
    # where sums are made as well, as measured: elements at a time, and registers per thread in float32 (None: all)
    block: int = BLOCK
    registers: int | None = None
