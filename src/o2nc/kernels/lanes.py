"""Parameters made ready for the kernels: state that is missing is begun, as no step had touched it."""

from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from o2nc.averaging import start
from o2nc.kernels.rules import SGD_PLAYS, Rule
from o2nc.persistence import BOTH, FRESH_AVERAGES, FRESH_BUFFER
from o2nc.vector import wide


class State(dict[str, Any]):
    """A parameter's state that tells when an entry is replaced; copies and pickles of it are plain dictionaries."""

    def __init__(self, entries: dict[str, Any]) -> None:
        super().__init__(entries)
        self.touched: list[bool] = []  # shared by all states of a layout, empty as long as none was touched

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _telling(name: str) -> Any:
    method = getattr(dict, name)

    @wraps(method)
    def touch(self: State, *args: Any, **kwargs: Any) -> Any:
        self.touched.append(True)
        return method(self, *args, **kwargs)

    return touch


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(State, _name, _telling(_name))


class Lane(NamedTuple):
    """One parameter as the kernels see it."""

    param: Tensor
    state: State
    group: int  # index of its parameter group
    play: Any  # the learner's rule
    slots: tuple[str, ...]  # keys of the state it works on: first the direction that was last added, if it is kept


@torch.no_grad()
def sgd_lane(p: Tensor, state: State, k: int, group: dict[str, Any], *, buffer_tells: bool) -> Lane:
    """Return a parameter of SGD with momentum.

    Args:
        p: the parameter.
        state: its state, empty if it is new.
        k: the index of its group.
        group: its group.
        buffer_tells: whether ḡ of a new parameter will be read off the momentum buffer.
    """
    momentum, averaged = group["momentum"] != 0, group["average"] is not None
    nesterov = momentum and group["nesterov"]
    fresh = 0 if state else BOTH
    if momentum and state.get("momentum_buffer") is None:
        state["momentum_buffer"] = torch.zeros_like(p)
        fresh |= FRESH_BUFFER
    if averaged and "average" not in state:
        _begin_averages(state, p, own=not buffer_tells)
        fresh |= FRESH_AVERAGES
    # Δ is read off the buffer one step later, except with Nesterov or without momentum
    keeps = averaged and (nesterov or not momentum or "update" in state)
    if keeps and "update" not in state:
        known = state.get("momentum_buffer", torch.zeros_like(p))
        state["update"] = known.to(wide(p.dtype), copy=True)
    _mark(state, fresh)
    slots = ("update",) * keeps + ("momentum_buffer",) * momentum
    return Lane(p, state, k, SGD_PLAYS[momentum, nesterov, keeps], slots)


@torch.no_grad()
def learner_lane(p: Tensor, state: State, k: int, group: dict[str, Any], rule: Rule) -> Lane:
    """Return a parameter of a learner; the arguments are those of `sgd_lane`."""
    fresh = 0
    if "delta" not in state:
        delta = torch.zeros_like(p, dtype=wide(p.dtype))
        state.update(group["learner"].init(delta), delta=delta)
        fresh = BOTH
    if group["average"] is not None and "average" not in state:
        _begin_averages(state, p, own=True)
        fresh |= FRESH_AVERAGES
    _mark(state, fresh)
    return Lane(p, state, k, rule.play, ("delta", *rule.slots))


def _mark(state: State, fresh: int) -> None:
    """Note what no step has touched yet, beside what was noted before."""
    if fresh or "fresh" not in state:
        state["fresh"] = int(state.get("fresh", 0)) | fresh


def _begin_averages(state: dict[str, Any], x: Tensor, own: bool) -> None:
    """Begin the averages; being fresh, ḡ is set to its first gradient by the kernel."""
    state.update(start(x, torch.zeros_like(x) if own else None))
    state["output"] = state["average"].clone()
