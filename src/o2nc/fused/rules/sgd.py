"""SGD with momentum, as torch.optim.SGD has it.

The first slot is the momentum buffer, also the direction last added; where both are kept, it is the direction and the
second is the buffer.
"""

from typing import Any

import triton
import triton.language as tl

from o2nc.fused.rule import Layout, Rule, Scalars


@triton.jit
def sgd_coefficients(group, kept, prepared, s, constants):
    lr, momentum, dampening = group[0], group[1], group[2]
    return -lr, (momentum, 1 - dampening), kept


@triton.jit
def plain_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    return x + scale * g, slots[0], (g,)  # g is stored where the layout has a slot


@triton.jit
def momentum_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    momentum, gain = own
    buffer = momentum * slots[0] + gain * g
    return x + scale * buffer, slots[0], (buffer,)


@triton.jit
def nesterov_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    momentum, gain = own
    buffer = momentum * slots[0] + gain * g
    return x + scale * (g + momentum * buffer), slots[0], (buffer,)


@triton.jit
def kept_nesterov_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    momentum, gain = own
    buffer = momentum * slots[1] + gain * g
    direction = g + momentum * buffer
    return x + scale * direction, slots[0], (direction, buffer)


def _scalars(group: dict[str, Any]) -> Scalars:
    sign = -1.0 if group["maximize"] else 1.0
    return Scalars(sign, group["weight_decay"], group["lr"], group["momentum"], group["dampening"])


def _layout(group: dict[str, Any]) -> Layout:
    if group["momentum"] == 0:
        return Layout(plain_update, ())
    return Layout(nesterov_update if group["nesterov"] else momentum_update, ("momentum_buffer",))


def _layout_with_progress(group: dict[str, Any]) -> Layout:
    """Keep the direction where the buffer does not tell it one step later."""
    if group["momentum"] == 0:
        return Layout(plain_update, ("update",))
    if group["nesterov"]:
        return Layout(kept_nesterov_update, ("update", "momentum_buffer"))
    return Layout(momentum_update, ("momentum_buffer",))


def sgd() -> Rule:
    """Return the rule of torch.optim.SGD."""
    return Rule(sgd_coefficients, 2, _layout, _scalars)


def scaled_sgdm() -> Rule:
    """Return the rule of `ScaledSGDM` with averages, which has the progress as well."""
    return Rule(sgd_coefficients, 2, _layout_with_progress, _scalars, progress=True)
