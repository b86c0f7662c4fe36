"""The kernels. A tensor is row t of the tables; a program works on one chunk of one tensor.

``which`` and ``first`` map programs to tensors: chunk k belongs to tensor which[k], whose chunks start at first[t].
``addresses`` has one column per kind of tensor, ``gradients`` the addresses of the gradients (0: none now).
``coefficients`` is what `open_kernel` computes for every tensor, ``state_numbers`` what survives from step to step.
What a rule has of its own, in a table or in memory, it gets and gives as tuples: see `o2nc.fused.rule`.
"""

import triton
import triton.language as tl

from o2nc.averages import update
from o2nc.fused.laws import uniform

# columns of `addresses`; a rule has up to three slots
X, SLOT, AVERAGE, GRADIENT, OUTPUT = (tl.constexpr(i) for i in (0, 1, 4, 5, 6))
COLUMNS = 7
# columns of `coefficients`: what every rule has, four of decoupled weight decay, and from OWN on the rule's
DECAY, SCALE, RATE, UNIT, PULLS, OWN = (tl.constexpr(i) for i in (0, 1, 2, 3, 4, 8))
# rows of `state_numbers`: the state of every tensor that is a number; KEPT is the rule's
SPREAD, PROGRESS, LAST_RATE, KEPT, LAST_PULL = (tl.constexpr(i) for i in range(5))
# entries of `now`: s, the share γ of this iterate, the weight of ⟨g, Δ⟩, whether x̄ is the output, whether this
# iterate counts, and what the rounding of x̄ adds
S, GAMMA, WEIGHT, KEEP, COUNTS, DITHER = (tl.constexpr(i) for i in range(6))
NOW = 6
EXPONENT = tl.constexpr(update.EXPONENT)
# entries of `constants`: of the window log b, or else a power; start and every; the probability with which an output
# is accepted; the law's mean and two parameters; then the rule's
LOG_DISCOUNT, POWER, START, EVERY, TAKING, LAW_MEAN, LAW_A, LAW_B, RULE = (tl.constexpr(i) for i in range(9))
CONSTANTS, PREPARED = tl.constexpr(3), tl.constexpr(4)  # of a rule: its constants, and what torch computes for it
# numbers of a parameter group, as in `o2nc.fused.rule.Scalars`
SIGN, COUPLED, LR = (tl.constexpr(i) for i in range(3))
SCALARS = tl.constexpr(7)


@triton.jit
def read(at, stride, mask, other, COUNT: tl.constexpr, TYPE: tl.constexpr = tl.float64):
    """Load a tuple of numbers, at least one, of all tensors that ``at`` points at."""
    found = (tl.load(at, mask=mask, other=other).to(TYPE),)
    for k in tl.static_range(1, COUNT):
        found = found + (tl.load(at + k * stride, mask=mask, other=other).to(TYPE),)
    return found


@triton.jit
def write(at, stride, values, mask, COUNT: tl.constexpr):
    """Store a tuple of numbers."""
    for k in tl.static_range(COUNT):
        tl.store(at + k * stride, values[k], mask=mask)


@triton.jit
def point(address, start, TYPE: tl.constexpr):
    """Make a pointer of an address, ``start`` elements further on."""
    return tl.load(address).to(tl.pointer_type(TYPE)) + start


@triton.jit
def read_slots(at, i, mask, like, SLOTS: tl.constexpr):
    """Load the slots; ``like`` stands in if there are none."""
    found = (like,)
    if SLOTS > 0:
        found = (tl.load(at[0] + i, mask=mask, other=0.0).to(like.dtype),)
    for k in tl.static_range(1, SLOTS):
        found = found + (tl.load(at[k] + i, mask=mask, other=0.0).to(like.dtype),)
    return found


@triton.jit
def open_kernel(
    step, pending, keys, constants, now, gradients, scalars, group_of, state_numbers, coefficients, prepared, n,
    SAMPLE: tl.constexpr, WEIGHT_OF: tl.constexpr, AVERAGED: tl.constexpr, OUTPUTS: tl.constexpr,
    MOVES: tl.constexpr, COEFFICIENTS: tl.constexpr, OWN_COUNT: tl.constexpr, DECOUPLED: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Draw s, find γ, advance the counter. Then the coefficients of every tensor."""
    t = tl.load(step) + 1
    a = tl.load(constants + LAW_A)
    b = tl.load(constants + LAW_B)
    key = tl.load(keys)
    s = SAMPLE(key, t + 1, a, b)
    weight = tl.load(constants + LAW_MEAN)
    if WEIGHT_OF is not None:
        weight = WEIGHT_OF(SAMPLE(key, t, a, b), a, b)
    tl.store(now + S, s)
    tl.store(now + WEIGHT, weight)
    if AVERAGED:
        passed = t.to(tl.float64) - tl.load(constants + START) - 1
        every = tl.load(constants + EVERY)
        n_averaged = tl.floor(passed / every) + 1
        counts = (passed >= 0) & ((n_averaged - 1) * every == passed)
        n_averaged = tl.maximum(n_averaged, 1.0)
        power = tl.load(constants + POWER)
        log_b = tl.load(constants + LOG_DISCOUNT)
        discounted = (tl.exp(log_b) - 1) / (tl.exp(n_averaged * log_b) - 1)
        gamma = tl.where(power < 0, discounted, (power + 1) / (n_averaged + power))
        tl.store(now + GAMMA, tl.where(n_averaged == 1, 1.0, gamma))
        tl.store(now + COUNTS, tl.where(counts, 1.0, 0.0))
        tl.store(now + DITHER, (uniform(tl.load(keys + 2), t) - 0.5) * 1.1920928955078125e-07)  # 2^−23
        if OUTPUTS:
            k = n_averaged.to(tl.int64)
            drawn = uniform(tl.load(keys + 1), k) * n_averaged < 1
            waits = tl.where(drawn, 1, tl.load(pending))
            takes = uniform(tl.load(keys + 3), k) < tl.load(constants + TAKING)
            tl.store(now + KEEP, tl.where(takes & counts, waits, 0).to(tl.float64))
            tl.store(pending, tl.where(takes, 0, waits), mask=counts)
    if MOVES:
        tl.store(step, t)
        own_constants = read(constants + RULE, 1, None, None, CONSTANTS)
        for k in range(0, n, WIDTH):
            i = k + tl.arange(0, WIDTH)
            mask = i < n
            at = scalars + SCALARS * tl.load(group_of + i, mask=mask, other=0)
            here = tl.load(gradients + i, mask=mask, other=0) != 0
            kept_at = state_numbers + KEPT * n + i
            kept = tl.load(kept_at, mask=mask, other=0.0)
            group = read(at + LR, 1, mask, 0.0, 5)
            given = read(prepared + i, n, mask, 0.0, PREPARED)
            rate, own, kept = COEFFICIENTS(group, kept, given, s, own_constants)
            common = (tl.load(at + COUPLED), rate * s, tl.where(here, rate, 0.0), tl.load(at + SIGN))
            write(coefficients + i, n, common, mask, 4)
            write(coefficients + OWN * n + i, n, own, mask, OWN_COUNT)
            tl.store(kept_at, kept, mask=mask & here)  # one without a gradient waits
            if DECOUPLED:  # what the last decay was, and what this one is
                pull_at = state_numbers + LAST_PULL * n + i
                last_move, last_decay = read(pull_at, n, mask, 0.0, 2)
                pull = tl.load(at + LR) * tl.load(at + LR + 1)
                pulls = (last_move, last_decay, 1 / (1 - last_move * last_decay), s * pull)
                write(coefficients + PULLS * n + i, n, pulls, mask, 4)
                write(pull_at, n, (-s + pull * 0, -pull), mask & here, 2)


@triton.jit
def step_kernel(
    which, first, sizes, addresses, gradients, now, coefficients, partial, n, low, chunks,
    UPDATE: tl.constexpr, MOVES: tl.constexpr, OWN_COUNT: tl.constexpr, SLOTS: tl.constexpr,
    AVERAGED: tl.constexpr, OUTPUTS: tl.constexpr, HAS_GRADIENT: tl.constexpr, SUMS_PROGRESS: tl.constexpr,
    DECOUPLED: tl.constexpr, ROUNDED: tl.constexpr, FLOOR: tl.constexpr,
    X_TYPE: tl.constexpr, SLOT_0: tl.constexpr, SLOT_1: tl.constexpr, SLOT_2: tl.constexpr, WIDE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Move one chunk: rule, parameters, averages, and its share of the sums."""
    chunk = low + tl.program_id(0)
    t = tl.load(which + chunk)
    start = (chunk - tl.load(first + t)) * CHUNK
    size = tl.load(sizes + t) - start
    address = tl.load(gradients + t)
    present = tl.where(address != 0, size, 0)
    averaged = present * 0
    if AVERAGED:
        averaged = tl.where(tl.load(now + COUNTS) != 0, size, 0)
    moved = present if MOVES else present * 0
    if tl.maximum(averaged, moved) <= 0:
        return  # `close_kernel` does not ask for its sums either
    g_at = address.to(tl.pointer_type(X_TYPE)) + start
    x_at = point(addresses + X * n + t, start, X_TYPE)
    unit = tl.load(coefficients + UNIT * n + t).to(WIDE)
    decay = tl.where(present > 0, tl.load(coefficients + DECAY * n + t), 0.0).to(WIDE)
    scale = tl.load(coefficients + SCALE * n + t).to(WIDE)
    own = read(coefficients + OWN * n + t, n, None, None, OWN_COUNT, WIDE)
    slot = addresses + SLOT * n + t  # those that the rule does not have point to nowhere
    slots_at = point(slot, start, SLOT_0), point(slot + n, start, SLOT_1), point(slot + 2 * n, start, SLOT_2)
    if DECOUPLED:
        last_move, last_decay, back, shrink = read(coefficients + PULLS * n + t, n, None, None, 4, WIDE)
    # in float64, since V is part of an upper bound, and float32 under- and overflows; by fours, to save registers
    squares = tl.zeros([BLOCK // 4], tl.float64)
    slopes = tl.zeros([BLOCK], WIDE)
    if AVERAGED:
        exact = tl.load(now + GAMMA)
        gamma = exact.to(WIDE)
        left = (1 - exact).to(WIDE)
        dither = tl.load(now + DITHER).to(WIDE)
        average_at = point(addresses + AVERAGE * n + t, start, WIDE)
        if OUTPUTS:
            kept = tl.where(tl.load(now + KEEP) != 0, averaged, 0)
            output_at = point(addresses + OUTPUT * n + t, start, WIDE)
        if HAS_GRADIENT:
            gradient_at = point(addresses + GRADIENT * n + t, start, WIDE)
    for j in range(0, CHUNK, BLOCK):  # not unrolled: that costs registers, and loads do not pass stores anyway
        i = j + tl.arange(0, BLOCK)
        i = tl.max_contiguous(tl.multiple_of(i, 16), 16)
        mask = i < size
        # all loads before the first store, so that they are under way together
        x = tl.load(x_at + i, mask=mask, other=0.0).to(WIDE)
        g = tl.load(g_at + i, mask=i < present, other=0.0).to(WIDE)
        slots = read_slots(slots_at, i, mask, x, SLOTS)
        if AVERAGED:
            average = tl.load(average_at + i, mask=i < averaged, other=0.0)
        if HAS_GRADIENT:
            gradient = tl.load(gradient_at + i, mask=i < averaged, other=0.0)
        d = g * unit
        d = tl.where(decay != 0, d + decay * x, d)
        x_next, last, next_slots = UPDATE(x, d, slots, scale, own, FLOOR)
        if DECOUPLED:
            x_next -= shrink * x
            last += last_decay * ((x + last_move * last) * back)
        if MOVES:
            tl.store(x_at + i, x_next, mask=i < present)
        for k in tl.static_range(SLOTS):
            tl.store(slots_at[k] + i, next_slots[k], mask=i < present)
        if SUMS_PROGRESS:
            slopes += d * last
        if AVERAGED:
            e = x - average
            if HAS_GRADIENT:
                exact_e = tl.reshape(e, [BLOCK // 4, 4]).to(tl.float64)
                squares += tl.sum(exact_e * exact_e, 1)
                tl.store(gradient_at + i, tl.where(gamma == 1, g, left * gradient + gamma * g), mask=i < averaged)
            move = gamma * e
            if ROUNDED:  # at random, see o2nc.averages.update
                power = (average.to(tl.int32, bitcast=True) & EXPONENT).to(tl.float32, bitcast=True)
                move += tl.where(e > 0, dither * power, tl.where(e < 0, -dither * power, 0.0))
            average = tl.where(gamma == 1, x, average + move)
            tl.store(average_at + i, average, mask=i < averaged)
            if OUTPUTS:
                tl.store(output_at + i, average, mask=i < kept)
    if HAS_GRADIENT:
        tl.store(partial + chunk, tl.sum(squares, 0))
    if SUMS_PROGRESS:
        tl.store(partial + chunks + chunk, tl.sum(slopes, 0).to(tl.float64))


@triton.jit
def close_kernel(
    first, gradients, now, coefficients, state_numbers, partial, n, chunks,
    AVERAGED: tl.constexpr, SUMS_PROGRESS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Update one tensor's V, progress and rate: V ← (1 − γ)(V + γ‖e‖²), progress += w·rate·⟨g, u⟩."""
    t = tl.program_id(0)
    high = tl.load(first + t + 1)
    squares = tl.zeros([WIDTH], tl.float64)
    slopes = tl.zeros([WIDTH], tl.float64)
    for k in range(tl.load(first + t), high, WIDTH):  # in a fixed order
        i = k + tl.arange(0, WIDTH)
        squares += tl.load(partial + i, mask=i < high, other=0.0)
        slopes += tl.load(partial + chunks + i, mask=i < high, other=0.0)
    if AVERAGED:
        gamma = tl.load(now + GAMMA)
        spread = tl.load(state_numbers + SPREAD * n + t)
        spread = tl.where(gamma == 1, 0.0, (1 - gamma) * (spread + gamma * tl.sum(squares, 0)))
        tl.store(state_numbers + SPREAD * n + t, spread, mask=tl.load(now + COUNTS) != 0)
    if SUMS_PROGRESS:
        rate = tl.load(state_numbers + LAST_RATE * n + t)
        here = tl.load(gradients + t) != 0
        # it may not have moved
        gain = tl.where((rate == 0) | (here == 0), 0.0, rate * tl.load(now + WEIGHT) * tl.sum(slopes, 0))
        tl.store(state_numbers + PROGRESS * n + t, tl.load(state_numbers + PROGRESS * n + t) + gain)
        tl.store(state_numbers + LAST_RATE * n + t, tl.load(coefficients + RATE * n + t))
