"""SGD with momentum, as torch.optim.SGD has it.

The first slot is the momentum buffer, also the direction last added; where both are kept, it is the direction and the
second is the buffer.
"""

import triton
import triton.language as tl


@triton.jit
def settle_sgd(group, is_new, kept, sums, joint, weight, constants):
    lr, momentum, dampening = group
    gain = tl.where(is_new, 1.0, 1 - dampening)  # torch starts the buffer at g_1, undampened
    return -lr, (momentum, gain * weight, weight), kept


@triton.jit
def play_sgd(g, slots, coefficients, FLOOR: tl.constexpr):
    g *= coefficients[2]
    return g, (g,)


@triton.jit
def play_momentum(g, slots, coefficients, FLOOR: tl.constexpr):
    momentum, gain, weight = coefficients
    buffer = momentum * slots[0] + gain * g
    return buffer, (buffer,)


@triton.jit
def play_kept_momentum(g, slots, coefficients, FLOOR: tl.constexpr):
    momentum, gain, weight = coefficients
    buffer = momentum * slots[1] + gain * g
    return buffer, (buffer, buffer)


@triton.jit
def play_nesterov(g, slots, coefficients, FLOOR: tl.constexpr):
    momentum, gain, weight = coefficients
    buffer = momentum * slots[0] + gain * g
    return weight * g + momentum * buffer, (buffer,)


@triton.jit
def play_kept_nesterov(g, slots, coefficients, FLOOR: tl.constexpr):
    momentum, gain, weight = coefficients
    buffer = momentum * slots[1] + gain * g
    direction = weight * g + momentum * buffer
    return direction, (direction, buffer)


SGD_PLAYS = {  # (has momentum, is Nesterov, keeps the direction beside the buffer)
    (False, False, True): play_sgd,
    (False, False, False): play_sgd,
    (True, False, False): play_momentum,
    (True, False, True): play_kept_momentum,
    (True, True, False): play_nesterov,
    (True, True, True): play_kept_nesterov,
}
