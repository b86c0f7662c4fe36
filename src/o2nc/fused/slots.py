"""Parameters made ready for the kernels: state that is missing is begun, as no step had touched it."""

from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from o2nc import presence
from o2nc.backends.host import copy_on_host
from o2nc.backends.triton.rules import SGD_PLAYS, device_rule, play_adamw, play_amsgrad, play_observed
from o2nc.optimizers.adamw import Adam, complete_
from o2nc.optimizers.learned import Learned
from o2nc.optimizers.observed import Observed
from o2nc.optimizers.sgdm import Momentum, buffer_is_mean, keep_own_gradient
from o2nc.step import Step
from o2nc.torch_support.device_state import BOTH, FRESH_AVERAGES, FRESH_RULE
from o2nc.vector import wide


class State(dict[str, Any]):
    """A parameter's state that tells when an entry is replaced; copies and pickles of it are plain dictionaries."""

    def __init__(self, entries: dict[str, Any]) -> None:
        super().__init__(entries)
        self.touched: list[bool] = []  # shared by all states of a table, empty as long as none was touched

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _noting(name: str) -> Any:
    method = getattr(dict, name)

    @wraps(method)
    def touch(self: State, *args: Any, **kwargs: Any) -> Any:
        self.touched.append(True)
        return method(self, *args, **kwargs)

    return touch


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(State, _name, _noting(_name))


class Row(NamedTuple):
    """One parameter as the kernels know it."""

    param: Tensor
    state: State
    group: int  # index of its parameter group
    play: Any  # the rule, per element
    slots: tuple[str, ...]  # keys of the state it works on: first the direction that was last added, if it is kept


@torch.no_grad()
def lay_out(step: Step) -> list[Row]:
    """Return the parameters that take part, with all state made that they need."""
    key, begin = _BEGINNINGS[type(step.rule)]
    key = step.rule.key if isinstance(step.rule, Learned) else key
    rows = []
    for k, group in enumerate(step.groups):
        for p in group["params"]:
            known = step.state.get(p, ())
            if p.grad is None and not (key in known if key else known):
                continue
            state = step.state[p]
            if not isinstance(state, State):
                state = step.state[p] = State(state)
            play, slots = begin(step, group, p, state)
            rows.append(Row(p, state, k, play, slots))
    return rows


def _momentum(step: Step, group: dict[str, Any], p: Tensor, state: State) -> tuple[Any, tuple[str, ...]]:
    """Begin the state of SGD with momentum where it is missing."""
    momentum, averaged = group["momentum"] != 0, step.window is not None
    nesterov = momentum and group["nesterov"]
    reads_buffer = buffer_is_mean(group) and wide(p.dtype) == p.dtype
    fresh = 0 if state else BOTH
    if averaged and (not reads_buffer or p.grad is None):
        keep_own_gradient(state, group["weight_sum"])
    # ḡ can be read off the buffer from the very first step on
    in_buffer = reads_buffer and fresh and not isinstance(group["step"], Tensor) and group["step"] == 0
    if momentum and state.get("momentum_buffer") is None:
        state["momentum_buffer"] = torch.zeros_like(p)
        fresh |= FRESH_RULE
    if averaged and "average" not in state:
        _begin_averages(state, p, own=not in_buffer)
        fresh |= FRESH_AVERAGES
    # Δ is read off the buffer one step later, except with Nesterov or without momentum
    keeps = averaged and (nesterov or not momentum or "update" in state)
    if keeps and "update" not in state:
        known = state.get("momentum_buffer", torch.zeros_like(p))
        state["update"] = known.to(wide(p.dtype), copy=True)
    _mark(state, fresh)
    slots = ("update",) * keeps + ("momentum_buffer",) * momentum
    return SGD_PLAYS[momentum, nesterov, keeps], slots


def _learned(step: Step, group: dict[str, Any], p: Tensor, state: State) -> tuple[Any, tuple[str, ...]]:
    """Begin the state of a learner where it is missing."""
    rule = device_rule(step)
    assert rule is not None
    assert isinstance(step.rule, Learned)
    fresh = BOTH if step.rule.begin(state, p) else 0
    if step.window is not None and "average" not in state:
        _begin_averages(state, p, own=True)
        fresh |= FRESH_AVERAGES
    _mark(state, fresh)
    return rule.play, ("delta", *rule.slots) if rule.keeps else rule.slots


def _observed(step: Step, group: dict[str, Any], p: Tensor, state: State) -> tuple[Any, tuple[str, ...]]:
    """Take state as it is: an optimizer that is observed has begun its own, and ours was added."""
    _mark(state, 0)
    return play_observed, ("previous",) * step.rule.progress


def _adam(step: Step, group: dict[str, Any], p: Tensor, state: State) -> tuple[Any, tuple[str, ...]]:
    """Begin the state of AdamW where it is missing."""
    slots = ("exp_avg", "exp_avg_sq") + ("max_exp_avg_sq",) * group["amsgrad"]
    fresh = 0
    if "exp_avg" not in state:
        state["step"] = 0.0
        fresh = BOTH
    complete_(state, group)
    for key in slots:
        if key not in state:
            state[key] = torch.zeros_like(p, memory_format=torch.preserve_format)
    if step.window is not None and "average" not in state:
        _begin_averages(state, p, own=step.certificate)
        fresh |= FRESH_AVERAGES
    _mark(state, fresh)
    return play_amsgrad if group["amsgrad"] else play_adamw, slots


# by rule: the state by which one is known that has no gradient now, and what begins it
_BEGINNINGS: dict[type, tuple[str | None, Any]] = {
    Momentum: (None, _momentum),
    Learned: (None, _learned),
    Observed: ("average", _observed),
    Adam: ("exp_avg", _adam),
}


def _mark(state: State, fresh: int) -> None:
    """Note what no step has touched yet, beside what was noted before."""
    if fresh or "fresh" not in state:
        state["fresh"] = int(state.get("fresh", 0)) | fresh


def _begin_averages(state: dict[str, Any], x: Tensor, own: bool) -> None:
    """Begin the averages; being fresh, ḡ is set to its first gradient by the kernel."""
    state.update(presence.begin(x, torch.zeros_like(x) if own else None))
    state["output"] = copy_on_host(state["average"])
