"""SGD with momentum, as torch.optim.SGD has it.

The first slot is the momentum buffer, also the direction last added; where both are kept, it is the direction and the
second is the buffer.
"""

import triton
import triton.language as tl


@triton.jit
def settle_sgd(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    lr, momentum, dampening = group[0], group[1], group[2]
    gain = tl.where(is_new, 1.0, 1 - dampening)  # torch starts the buffer at g_1, undampened
    return -lr, (momentum, gain * weight, weight), kept


@triton.jit
def play_sgd(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    g *= coefficients[2]
    return x + scale * g, slots[0], (g,)


@triton.jit
def play_momentum(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    momentum, gain, weight = coefficients
    buffer = momentum * slots[0] + gain * g
    return x + scale * buffer, slots[0], (buffer,)


@triton.jit
def play_kept_momentum(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    momentum, gain, weight = coefficients
    buffer = momentum * slots[1] + gain * g
    return x + scale * buffer, slots[0], (buffer, buffer)


@triton.jit
def play_nesterov(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    momentum, gain, weight = coefficients
    buffer = momentum * slots[0] + gain * g
    return x + scale * (weight * g + momentum * buffer), slots[0], (buffer,)


@triton.jit
def play_kept_nesterov(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    momentum, gain, weight = coefficients
    buffer = momentum * slots[1] + gain * g
    direction = weight * g + momentum * buffer
    return x + scale * direction, slots[0], (direction, buffer)


SGD_PLAYS = {  # (has momentum, is Nesterov, keeps the direction beside the buffer)
    (False, False, True): play_sgd,
    (False, False, False): play_sgd,
    (True, False, False): play_momentum,
    (True, False, True): play_kept_momentum,
    (True, True, False): play_nesterov,
    (True, True, True): play_kept_nesterov,
}
