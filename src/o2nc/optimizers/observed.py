"""The rule of a step that somebody else takes: parameters and gradients are taken in, and nothing is moved."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.averages import Coupling
from o2nc.step import Draw, Step
from o2nc.vector import real, wide


class Observed:
    """The rule of a step that somebody else takes: nothing is moved.

    Args:
        progress: whether Δ is wanted, for which the last iterate is kept.
    """

    def __init__(self, progress: bool) -> None:
        self.progress = progress
        self.begun: list[tuple[Tensor, dict[str, Any]]] = []  # of parameters that the optimizer has no state of yet

    def structure(self, group: Any) -> tuple[Any, ...]:
        """Return what must stay as it is in a group for tables of addresses to hold."""
        return self.progress, group["certificate"]

    def numbers(self, group: Any) -> tuple[Any, ...]:
        """Return the sign of the gradient; nothing else is needed."""
        return -1.0 if group.get("maximize") else 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0

    def parts(self, step: Step, unscale: float) -> "Iterator[Seen]":
        """Yield the parameters of every group that have gradients."""
        found = [[p for p in group["params"] if p.grad is not None] for group in step.groups]
        if step.window is not None:
            for params in found:
                for p in params:
                    assert p.grad is not None
                    checks.gradient(p.grad)
        for k, (group, params) in enumerate(zip(step.groups, found, strict=True)):
            if params:
                yield self.part(k, group, params, step, -unscale if group.get("maximize") else unscale)

    def part(self, key: int, group: Any, params: list[Tensor], step: Step, scale: float) -> "Seen":
        """Return those of one group."""
        return Seen(key, params, step, scale, self)


class Seen:
    """Parameters and their gradients, to be taken in.

    An optimizer begins the state of a parameter when it finds none, so ours is added when it has made its own.
    """

    reads_buffer = False
    in_blocks = False

    def __init__(self, key: int, params: list[Tensor], step: Step, scale: float, rule: Observed) -> None:
        self.key, self.params, self.coupling = key, params, Coupling(scale)
        self.grads: list[Any] = [p.grad for p in params]
        self.states: list[dict[str, Any]] = [step.state.get(p) or {} for p in params]
        self.updates = self._updates() if rule.progress and step.window is not None else None
        if step.window is not None:
            rule.begun += [(p, new) for p, new in zip(params, self.states, strict=True) if not new]

    @torch.no_grad()
    def _updates(self) -> list[Tensor]:
        """Return what was added last."""
        found = []
        for p, state in zip(self.params, self.states, strict=True):
            x = real(p).to(wide(p.dtype))
            found.append(x - state["previous"] if "previous" in state else torch.zeros_like(x))
        return found

    @torch.no_grad()
    def move_(self, draw: Draw) -> float:
        """Move nothing; note where everything was before the step."""
        for p, state in zip(self.params, self.states, strict=True) if self.updates is not None else ():
            if "previous" in state:
                state["previous"].copy_(real(p))
            else:
                state["previous"] = real(p).clone()
        rate = 1.0 if draw.s is None else 1 / draw.s if draw.s else 0.0
        return rate if math.isfinite(rate) else 0.0  # s = 0, or as good as that: nothing moves, and Δ is not seen

    def move_block_(self, x: list[Tensor], g: list[Tensor], u: list[Tensor], draw: Draw) -> float:
        """Nothing is moved in blocks either."""
        raise AssertionError
