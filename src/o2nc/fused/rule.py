"""What a rule brings along to run as kernels.

    measure(g, slots, lr, constants, FLOOR) → three terms
        per element, before anything moves: ``sums`` are those terms added up over a tensor (joint norms only)
    reduce(lr, kept, sums, constants) → four terms
        per tensor: ``joint`` are those terms added up over all tensors
    coefficients(group, kept, sums, joint, s, constants) → rate, own, kept
        per tensor: Δ = rate·direction, what `update` needs to know, and the numbers that survive
    update(x, g, slots, scale, own, FLOOR) → x, last, slots
        per element: x + scale·direction, with scale = s·rate; ``last`` is the direction that led to x

``slots`` is the state of the parameter's shape, up to three. ``kept`` is the state that is a number, ``constants``
what the rule was made with, ``group`` the lr and four more numbers of the parameter group. They are tuples, whose
entries get their names where a rule takes them apart. `update` gets everything in at least float32, g with its sign
and coupled weight decay; decoupled decay is its own, and ``last`` counts only with the progress. FLOOR is compiled
in, the smallest divisor.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from o2nc.persist.plain import KEY
from o2nc.vector import wide

CHUNK, BLOCK = 1024, 512  # elements of a program, and at a time: measured, larger ones are slower


class DeviceRule(NamedTuple):
    """The device form of a rule, by name: nothing of it is imported before it is needed."""

    form: str  # "module:function", which returns a `o2nc.fused.rule.Rule` for the parameter groups
    arguments: tuple[Any, ...] = ()  # further arguments of that function
    moves: bool = True  # False: the kernels only average, and the optimizer moves by itself
    is_bitwise: bool = False  # whether it has the bits of torch's own step

    def resolve(self, groups: list[dict[str, Any]]) -> "Rule | None":
        """Return the rule, or None if it has no device form."""
        if not self.form:
            return None
        module, _, function = self.form.partition(":")
        found: Rule = getattr(importlib.import_module(module), function)(groups, *self.arguments)
        return found


class OtherDtype(Exception):
    """A gradient has not the dtype of its parameter."""


class Request(NamedTuple):
    """One step, as kernels are asked to take it."""

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
    numbers: tuple[str, ...] = ()  # keys of the state that is one number per parameter
    constants: tuple[float, ...] = ()
    measure: Any = None
    reduce: Any = None
    prepare: Any = None  # fills in, by torch, what `coefficients` gets of every parameter in the place of sums
    prepared: int = 0  # how many numbers that is
    count: str | None = None  # key of torch's count of a parameter's steps, which `prepare` advances
    moves: bool = True  # whether x is written
    progress: bool = False  # whether ⟨g, Δ⟩ is summed
    decoupled: bool = False  # whether decoupled weight decay is added to what it plays, or was to what it last played
    not_kept: tuple[str, ...] = ()  # keys of the state that make no sense unless they are slots
    # where sums are made as well, as measured: elements at a time, and registers per thread in float32 (None: all)
    block: int = BLOCK
    registers: int | None = None

    def with_decay(self) -> "Rule":
        """Return this rule with decoupled weight decay."""
        return self if self.decoupled else replace(self, decoupled=True)

    def block_of(self, sums: bool) -> int:
        """Return how many elements a program takes at a time."""
        return self.block if sums else BLOCK

    @property
    def sums(self) -> int:
        """How many numbers `coefficients` gets of a parameter: three sums of a joint rule, or what is prepared."""
        return self.prepared if self.measure is None else 3


def learner_rule(
    groups: list[dict[str, Any]], update: Any, *slots: str, coefficients: Any, own: int, **others: Any
) -> Rule:
    """Return the rule of an online learner: its Δ is the direction, and its lr that of the group."""

    def scalars(group: dict[str, Any]) -> Scalars:
        sign = -1.0 if group["maximize"] else 1.0
        return Scalars(sign, lr=group["lr"], first=group["weight_decay"])

    layout = Layout(update, slots)
    decoupled = any(group["weight_decay"] for group in groups)
    return Rule(coefficients, own, lambda group: layout, scalars, progress=True, decoupled=decoupled, **others)


def smallest(groups: list[dict[str, Any]]) -> torch.finfo:
    """Return the limits of the narrowest dtype that the parameters' state has."""
    dtypes = {wide(p.dtype) for group in groups for p in group["params"]}
    return torch.finfo(min(dtypes, key=lambda dtype: dtype.itemsize))
