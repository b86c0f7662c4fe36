"""SGD with momentum, as torch.optim.SGD has it.

a is the momentum buffer, also the direction last added; where both are kept, a is the direction and b the buffer.
"""

import triton
import triton.language as tl


@triton.jit
def settle_sgd(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    lr = tl.load(at)
    momentum = tl.load(at + 1)
    gain = tl.where(fresh, 1.0, 1 - tl.load(at + 2))  # torch starts the buffer at g_1, undampened
    decay = tl.where(here, tl.load(at + 3), 0.0)  # without a gradient nothing is seen
    return -lr * s, -lr, decay, momentum, gain * w, momentum, w, 0.0, h0, h1


@triton.jit
def play_sgd(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    d *= c3
    return d, d, b, c


@triton.jit
def play_momentum(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * a + c1 * d
    return m, m, b, c


@triton.jit
def play_kept_momentum(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * b + c1 * d
    return m, m, m, c


@triton.jit
def play_nesterov(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * a + c1 * d
    return c3 * d + c2 * m, m, b, c


@triton.jit
def play_kept_nesterov(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * b + c1 * d
    direction = c3 * d + c2 * m
    return direction, direction, m, c


SGD_PLAYS = {  # (has momentum, is Nesterov, keeps the direction beside the buffer)
    (False, False, True): play_sgd,
    (False, False, False): play_sgd,
    (True, False, False): play_momentum,
    (True, False, True): play_kept_momentum,
    (True, True, False): play_nesterov,
    (True, True, True): play_kept_nesterov,
}
