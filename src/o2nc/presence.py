"""Averages of parameters that come late or stay away: begun, brought up to date, and let go.

The weights are those of the joint iterate, the same for all parameters; one without a gradient counts with the
gradient zero. It is left alone until it has one again, or is asked for: the product of the 1 − γ that it missed is
exp(−difference of ``log_decay``), and with it in the place of one 1 − γ the formulas of `o2nc.averages` make up for
all of them.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from o2nc.averages import FIELDS, Coupling, Iterate, Weights, begin_counters, inner, move_, widen_
from o2nc.vector import as_numbers, real, wide


def begin(x: Tensor, gradient: Tensor | None, weights: Weights | None = None) -> dict[str, Any]:
    """Return the averages of one parameter at its first step.

    A parameter that joins late stood still before: x̄ = x. Its earlier gradients were not seen and count as the first.

    Args:
        x: the parameter, as a real tensor.
        gradient: the gradient that the learner is given, or None when ḡ is read off the momentum buffer.
        weights: those of the iterates, this one included; None where a kernel will fill in what depends on them.
    """
    state: dict[str, Any] = {"average": x.detach().to(wide(x.dtype), copy=True)}
    if gradient is not None:
        state["gradient"] = gradient.detach().to(wide(x.dtype), copy=True)
    for key in ("spread", "progress"):
        state[key] = x.new_zeros((), dtype=torch.float64)
    state["rate"] = 0.0  # the first Δ is zero
    state["log_decay"] = math.nan if weights is None else weights.log_decay
    state["joined"] = -math.inf if weights is None else weights.joined
    return state


@torch.no_grad()
def catch_up_(params: Sequence[Tensor], states: Sequence[dict[str, Any]], log_decay: float, dither: float) -> None:
    """Bring the averages of parameters up to date that stood still, without a gradient, for a while.

    Args:
        params: the parameters.
        states: theirs; their numbers may be tensors.
        log_decay: the decay of the weights up to now.
        dither: u − ½, for the rounding.
    """
    for p, state, then in zip(params, states, as_numbers([s["log_decay"] for s in states]), strict=True):
        if not then < log_decay:
            continue
        x = real(p.detach()).to(state["average"].device)
        share = math.exp(then - log_decay)  # what is left of the weight of what was averaged before
        iterate = Iterate(x, x, None, state["average"], None)
        square, _ = move_(iterate, 1 - share, Coupling(), inner, dither=dither)
        widen_(state["spread"], square, 1 - share)
        if "gradient" in state:
            state["gradient"].mul_(share) if share else state["gradient"].zero_()  # be it infinite
        for key, value in (("rate", 0.0), ("log_decay", log_decay)):  # it has not moved
            if isinstance(state[key], Tensor):
                state[key].fill_(value)
            else:
                state[key] = value


def end(groups: list[dict[str, Any]], states: Iterable[dict[str, Any]]) -> None:
    """Let go of the averages, where a group no longer asks for them: they would not be those of a run."""
    for state in states:
        for key in FIELDS:
            state.pop(key, None)
    for group in groups:
        group.update(begin_counters())
