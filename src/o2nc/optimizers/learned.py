"""The rule of an online learner: what it is asked, what it keeps, and how the parameters follow its Δ.

All parameters that have gradients are one vector of R^d. `ExponentiatedO2NC` and `OriginalO2NC` step by it.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from o2nc import averages, checks
from o2nc.averages import Coupling
from o2nc.learners import Learner
from o2nc.state import Field, Fields, Kind, fields_of
from o2nc.step import Draw, Step
from o2nc.torch_support.private import foreach_add_, foreach_mul, foreach_mul_
from o2nc.torch_support.shards import joint_norms
from o2nc.vector import DECAYED, real, wide, with_decay

# what torch's other optimizers read from a parameter group and these do not
FOREIGN = frozenset(("weight_decay", "momentum", "dampening", "nesterov", "maximize", "betas"))
_SLICE = 1 << 24  # elements that a learner by coordinate is asked for at a time


class Learned:
    """The rule of an online learner: all parameters that have gradients are one vector of R^d.

    Args:
        learner: the learner.
        beta: the discount of its losses.
        keeps: whether Δ is kept even where the learner ``recalls`` it by its other state.
    """

    def __init__(self, learner: Learner, beta: float, *, keeps: bool = True) -> None:
        self.learner, self.beta = learner, beta
        self.keeps = keeps or not getattr(learner, "recalls", False)
        self.is_elementwise = is_elementwise(learner)
        # by which a parameter is known that has begun
        self.key = "delta" if self.keeps else _first_key(learner)  # type: ignore[arg-type]

    @property
    def fields(self) -> Fields:
        """Δ, what the learner says that it keeps, and what the last decay was."""
        delta = torch.zeros(2, 3, device="cpu")
        found = fields_of(initial(self.learner, delta), delta) | dict.fromkeys(DECAYED, Field(Kind.NUMBER))
        return found | {"delta": Field(Kind.SHAPED)} if self.keeps else found

    def structure(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return what must stay as it is in a group for tables of addresses to hold."""
        return group["learner"], group["beta"], bool(group.get("weight_decay"))

    def numbers(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return the sign of the gradient, no coupled weight decay, lr, λ and three that are free."""
        sign = -1.0 if group.get("maximize") else 1.0
        return sign, 0.0, group["lr"], group.get("weight_decay", 0.0), 0.0, 0.0, 0.0

    def begin(self, state: dict[str, Any], x: Tensor) -> bool:
        """Begin the state of a parameter where it is missing; return whether it was."""
        if not self.keeps and "delta" in state:  # of a checkpoint written when it was kept
            self.learner.last_updates([state])  # type: ignore[attr-defined]
        if self.key in state:
            return False
        delta = torch.zeros_like(x, dtype=wide(x.dtype))
        state.update(initial(self.learner, delta))
        if self.keeps:
            state["delta"] = delta
        return True

    def parts(self, step: Step, unscale: float) -> "Iterator[VectorPart]":
        """Yield the vector.

        A parameter without a gradient now is not moved. To a learner with a joint norm its gradient is zero, since
        the norm is over all of them; other learners are not asked for it, and its state waits.
        """
        everyone = [(p, group) for group in step.groups for p in group["params"]]
        present = [p.grad for p, _ in everyone if p.grad is not None]
        if not present:
            return
        for g in present:
            if g.layout is not torch.strided or not g.is_floating_point():
                checks.gradient(g)
        known = set() if self.is_elementwise else {p for p, state in step.state.items() if self.key in state}
        found = [(p, group) for p, group in everyone if p.grad is not None or p in known]
        states = [step.state[p] for p, _ in found]
        for (p, _), state in zip(found, states, strict=True):
            self.begin(state, _real(p))
        yield VectorPart(self, step, [p for p, _ in found], states, [group for _, group in found], unscale)


class VectorPart:
    """The parameters that a learner is asked for, as parallel lists; those that have gradients are moved."""

    key = "all"
    reads_buffer = False
    in_blocks = False

    def __init__(
        self,
        rule: Learned,
        step: Step,
        everyone: list[Tensor],
        states: list[dict[str, Any]],
        groups: list[dict[str, Any]],
        unscale: float,
    ) -> None:
        self.rule, self.step = rule, step
        self.coupling = Coupling(-unscale if groups[0].get("maximize") else unscale)
        self.everyone, self.all_states = everyone, states
        self.lrs = [float(group["lr"]) for group in groups]
        at = [i for i, p in enumerate(everyone) if p.grad is not None]
        self.params = [everyone[i] for i in at]
        self.grads: list[Any] = [p.grad for p in self.params]
        self.states = [states[i] for i in at]
        self.pulls = [self.lrs[i] * groups[i].get("weight_decay", 0.0) for i in at]  # lr·λ
        self.updates = None if step.window is None else self._updates()

    @torch.no_grad()
    def _updates(self) -> list[Tensor]:
        """Return Δ_t, with the decay that was a part of it."""
        kept = self.rule.keeps
        deltas = [s["delta"] for s in self.states] if kept else self.rule.learner.last_updates(self.states)  # type: ignore[attr-defined]
        return [with_decay(u, _real(p), s) for u, p, s in zip(deltas, self.params, self.states, strict=True)]

    def move_(self, draw: Draw) -> float:
        """Ask the learner, and move."""
        step, s = self.step, 1.0 if draw.s is None else draw.s
        if step.between:
            assert step.law is not None
            self._add_(1 - step.law.sample(step.seed, step.groups[0]["step"] + 1))
        if any(self.pulls) or any(DECAYED[0] in state for state in self.states):
            self._decay_(s)
        if step.restarts:
            for state in step.state.values():
                state["delta"].zero_()
                state.update(self.rule.learner.init(state["delta"]))
        else:
            self._play(draw.weight, s)
        if step.between:
            moved = {id(state) for state in self.states}
            for state in step.state.values():
                if id(state) not in moved:
                    state["delta"].zero_()  # it stays at w_n, which so becomes its x_n
        if self.rule.keeps:
            self._add_(s)
        return 1.0

    def move_block_(self, x: list[Tensor], g: list[Tensor], u: list[Tensor], draw: Draw) -> float:
        """A learner is asked for all parameters at once."""
        raise AssertionError

    def _add_(self, s: float) -> None:
        foreach_add_([_real(p) for p in self.params], [state["delta"] for state in self.states], alpha=s)

    def _decay_(self, s: float) -> None:
        """Set x ← x − s·lr·λx, and note it for the next progress."""
        foreach_mul_([_real(p) for p in self.params], [1 - s * pull for pull in self.pulls])
        for state, pull in zip(self.states, self.pulls, strict=True):
            state.update(zip(DECAYED, (-s, -pull), strict=True))

    def _play(self, weight: float, s: float) -> None:
        """Have the learner replace Δ_t by Δ_{t+1}; where that is not kept, move at once.

        It is given gradients of at least float32. One that plays by coordinate is asked for a slice at a time, so
        that copies of half-precision gradients, and its own temporaries, never are as large as the model.
        """
        learner, factor = self.rule.learner, weight * self.coupling.scale
        for low, high in self._slices() if self.rule.is_elementwise else [(0, len(self.everyone))]:
            params, states = self.everyone[low:high], self.all_states[low:high]
            kept = self.rule.keeps
            deltas = [state["delta"] if kept else torch.empty_like(state[self.rule.key]) for state in states]
            gs = [
                torch.zeros_like(delta) if p.grad is None else _real(p.grad).to(delta.dtype)
                for p, delta in zip(params, deltas, strict=True)
            ]
            if factor != 1:
                gs = list(foreach_mul(gs, factor))
            with joint_norms(params) if self.step.is_sharded else nullcontext():
                returned = learner.update(deltas, gs, states, self.lrs[low:high], self.rule.beta)  # type: ignore[func-returns-value]
            if returned is not None:
                raise TypeError(f"{type(learner).__name__}.update must change deltas in place and return None")
            if not kept:
                moved = [(_real(p), delta) for p, delta in zip(params, deltas, strict=True) if p.grad is not None]
                foreach_add_([x for x, _ in moved], [delta for _, delta in moved], alpha=s)

    def _slices(self) -> Iterator[tuple[int, int]]:
        """Yield runs of parameters that have about as many elements as a slice."""
        low = elements = 0
        for high, p in enumerate(self.everyone, 1):
            elements += p.numel()
            if elements >= _SLICE or high == len(self.everyone):
                yield low, high
                low, elements = high, 0


@cache
def _first_key(learner: Learner) -> str:
    """Return the name of the first state of a learner that recalls Δ, which has the parameter's shape."""
    return next(iter(learner.init(torch.zeros(1, device="cpu"))))


def _real(p: Tensor) -> Tensor:
    return real(p.detach()) if p.is_complex() else p.detach()


def is_elementwise(learner: Learner) -> bool:
    """Say whether the learner plays every coordinate by itself.

    It can then be asked for some of the parameters alone, which saves memory; one without a gradient waits.
    """
    return getattr(learner, "elementwise", False)


def check_learner(learner: object) -> None:
    """Refuse ``learner`` unless it is a dataclass instance that offers lr, init and update."""
    if isinstance(learner, type) or not (isinstance(learner, Learner) and is_dataclass(learner)):
        raise TypeError(f"learner must be an online learner such as o2nc.learners.OGD(lr=0.01), got {learner!r}")


def initial(learner: Learner, delta: Tensor) -> dict[str, Any]:
    """Return the learner's own state of one parameter, refused where it would collide with ours."""
    state = learner.init(delta)
    name = type(learner).__name__
    if not isinstance(state, dict):
        raise TypeError(f"{name}.init must return a dict of tensors and numbers, got {state!r}")
    taken = [key for key in state if key in RESERVED]
    if taken:
        raise ValueError(f"{name}.init must not use the names {taken}: the optimizer keeps its own state under them")
    return state


BLOCK_FIELDS = {  # what Algorithm 1 publishes of a complete block
    "block_average": Field(Kind.SHAPED, like="average"),
    "block_spread": Field(Kind.SUM, like="spread"),
    "block_gradient_squared": Field(Kind.SUM, like="spread"),
}
RESERVED = frozenset((*averages.FIELDS, *BLOCK_FIELDS, *DECAYED, "delta", "fresh", "blank"))
