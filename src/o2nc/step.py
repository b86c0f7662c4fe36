"""One step as a value: what an optimizer describes and a backend carries out.

    g_t  →  averages  →  Δ_{t+1}  →  s_{t+1}  →  x_{t+1}

`Step` says which rule plays Δ, which law draws s, which window weights the averages, and where the numbers of the
groups and the state of the parameters are. `o2nc.backends.eager` carries it out operation by operation,
`o2nc.backends.triton` in one pass over memory.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from o2nc import averages
from o2nc.averages import Coupling, Window
from o2nc.scaling import OUTPUT, ROUNDING, SETTLING, Law, progress_weight, uniform

COUNTERS = ("step", *averages.COUNTERS)  # in every group, the same in each


class Draw(NamedTuple):
    """The random numbers of one step t."""

    s: float | None  # s_{t+1}; None without a law
    weight: float  # of x_t among the losses and averages
    progress_weight: float  # of ⟨g_t, Δ_t⟩
    dither: float  # u − ½, for the rounding of x̄
    renews: bool  # whether an output is drawn anew: a step t uniform over all so far
    settles: bool  # whether one that was drawn and not taken yet is x̄_t, at t or a geometric time after it


def draw(law: Law | None, seed: int, t: int, *, averaged: bool = True, count: int = 0, settling: float = 1.0) -> Draw:
    """Draw all random numbers of step t.

    Args:
        law: of s.
        seed: the seed.
        t: the number of the step, >= 1.
        averaged: whether those of the averages are wanted.
        count: which of the averages this is that the output is drawn from; 0 for none.
        settling: with which probability an output that was drawn is taken now.
    """
    s = None if law is None else law.sample(seed, t + 1)
    weight = 1.0
    if not averaged:
        return Draw(s, weight, 1.0, 0.0, False, False)
    renews = count > 0 and uniform(seed, count, stream=OUTPUT) * count < 1  # a reservoir of size one
    settles = count > 0 and uniform(seed, count, stream=SETTLING) < settling
    dither = uniform(seed, t, stream=ROUNDING) - 0.5
    return Draw(s, weight, progress_weight(law, seed, t), dither, renews, settles)


class Part(Protocol):
    """Parameters that step together, as parallel lists, and the arithmetic of their rule."""

    key: Any  # by which a backend finds again what it has laid out for them
    params: list[Tensor]  # those that have a gradient
    grads: list[Tensor]
    states: list[dict[str, Any]]
    coupling: Coupling  # what makes of g the gradient that the rule is given
    reads_buffer: bool  # whether ḡ of one that is new will be read off a momentum buffer
    updates: list[Tensor] | None  # the directions u of the updates that led here, Δ_t = rate·u; None before any
    in_blocks: bool  # whether `move_block_` does: the rule is by coordinate and keeps nothing but u

    def move_(self, draw: Draw) -> float:
        """Play Δ_{t+1} and set x ← x + s·Δ_{t+1}; return the rate of its directions."""

    def move_block_(self, x: list[Tensor], g: list[Tensor], u: list[Tensor], draw: Draw) -> float:
        """Do so for some of the parameters, or for some of their coordinates."""


class Rule(Protocol):
    """What plays Δ: SGD with momentum, an online learner, Adam; or what only observes another optimizer's."""

    def structure(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return what must stay as it is in a group for tables of addresses to hold."""

    def numbers(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return the sign of the gradient, coupled weight decay, lr and four more, as numbers or tensors."""

    def parts(self, step: "Step", unscale: float) -> Iterator[Part]:
        """Yield the parameters that have gradients, with the rule's state made; ``unscale`` undoes a scaled loss.

        All gradients are checked before anything is made.
        """


class Step(NamedTuple):
    """One step of an optimizer."""

    # what any optimizer's step has; `CertifiedOptimizer` fills it in
    owner: str  # the name of the optimizer's class, for messages
    groups: list[dict[str, Any]]
    state: dict[Tensor, dict[str, Any]]
    window: Window | None  # None keeps no averages
    law: Law | None
    seed: int
    fused: bool | None = False  # True insists on the fused step, None takes it where it applies
    is_sharded: bool = False
    found_inf: Tensor | None = None  # a GradScaler's flag and scale, where it leaves them to the step
    grad_scale: Tensor | None = None
    settling: float = 1.0  # with which probability an output that was drawn is taken at a step

    # what is an optimizer's own
    rule: Any = None  # a `Rule`
    certificate: bool = True  # whether ḡ is kept
    between: bool = False  # Algorithm 1: gradients are taken at x_{t−1} + s_tΔ_t, so (1 − s_t)Δ_t is still to come
    block: int | None = None  # Algorithm 1: which block ends, to be published; 0 within one, None without blocks
    restarts: bool = False  # Algorithm 1: so does the learner
    is_thinned: bool = False  # whether iterates were passed over: what has no gradient now may have moved since
