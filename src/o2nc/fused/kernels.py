"""The kernels. A tensor is row t of the tables; a program works on one chunk of one tensor.

``which`` and ``first`` map programs to tensors: chunk k belongs to tensor which[k], whose chunks start at first[t].
``addresses`` has one column per kind of tensor, ``gradients`` the addresses of the gradients (0: none now).
``coefficients`` is what `open_kernel` settles for every tensor, ``state_numbers`` what survives from step to step,
``scaler`` a GradScaler's flag and scale. What a rule has of its own, in a table or in memory, it gets and gives as
tuples: see `o2nc.backends.triton.rules`.
"""

import triton
import triton.language as tl

from o2nc import averages
from o2nc.backends.triton.laws import uniform

# columns of `addresses`; a rule has up to three slots
X, SLOT, AVERAGE, GRADIENT, OUTPUT = (tl.constexpr(i) for i in (0, 1, 4, 5, 6))
COLUMNS = 7
# columns of `coefficients`; from OWN on they are the rule's
UNIT, DECAY, SCALE, RATE, FRESH, LEFT, MOVED, OWN = (tl.constexpr(i) for i in range(8))
# columns of `state_numbers`: the state of every tensor that is a number; from KEPT on it is the rule's
SPREAD, PROGRESS, LAST_RATE, IS_FRESH, LOG_DECAY, JOINED, KEPT = (tl.constexpr(i) for i in range(7))
# entries of `now`
S, GAMMA, WEIGHT, RELATIVE, KEEP, GO, BEFORE, AFTER, JOINING, DITHER = (tl.constexpr(i) for i in range(10))
NOW = 10
ALL_GONE = tl.constexpr(averages.ALL_GONE)
EXPONENT = tl.constexpr(averages.EXPONENT)
# entries of `constants`: of the window a discount, or else a power and a start; how soon an output is taken; the
# law's mean and two parameters; then the rule's
DISCOUNT, POWER, START, SETTLING, LAW_MEAN, LAW_A, LAW_B, RULE = (tl.constexpr(i) for i in range(8))
# numbers of a parameter group: the sign of the gradient, coupled weight decay, lr, and four of the rule's
SIGN, COUPLED, LR = (tl.constexpr(i) for i in range(3))
NUMBERS = tl.constexpr(7)


@triton.jit
def read(at, stride, mask, other, COUNT: tl.constexpr):
    """Load a tuple of numbers, at least one, of all tensors that ``at`` points at."""
    found = (tl.load(at, mask=mask, other=other),)
    for k in tl.static_range(1, COUNT):
        found = found + (tl.load(at + k * stride, mask=mask, other=other),)
    return found


@triton.jit
def narrowed(numbers, TYPE: tl.constexpr, COUNT: tl.constexpr):
    """Cast a tuple of numbers."""
    found = (numbers[0].to(TYPE),)
    for k in tl.static_range(1, COUNT):
        found = found + (numbers[k].to(TYPE),)
    return found


@triton.jit
def write(at, stride, values, mask, COUNT: tl.constexpr):
    """Store a tuple of numbers likewise."""
    for k in tl.static_range(COUNT):
        tl.store(at + k * stride, values[k], mask=mask)


@triton.jit
def point(address, start, TYPE: tl.constexpr):
    """Make a pointer of an address, ``start`` elements further on."""
    return tl.load(address).to(tl.pointer_type(TYPE)) + start


@triton.jit
def point_slots(
    address, n, start,
    SLOTS: tl.constexpr, SLOT_0: tl.constexpr, SLOT_1: tl.constexpr, SLOT_2: tl.constexpr,
):  # fmt: skip
    """Return pointers to the slots of a chunk; to nowhere if there are none."""
    found = (point(address, start, SLOT_0),)
    if SLOTS > 1:
        found = found + (point(address + n, start, SLOT_1),)
    if SLOTS > 2:
        found = found + (point(address + 2 * n, start, SLOT_2),)
    return found


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
def fold(partial, chunks, low, high, WIDTH: tl.constexpr):
    """Add up the partial sums of chunks low to high, in a fixed order."""
    first = tl.zeros([WIDTH], tl.float64)
    second = tl.zeros([WIDTH], tl.float64)
    for k in range(low, high, WIDTH):
        i = k + tl.arange(0, WIDTH)
        first += tl.load(partial + i, mask=i < high, other=0.0)
        second += tl.load(partial + chunks + i, mask=i < high, other=0.0)
    return tl.sum(first, 0), tl.sum(second, 0)


@triton.jit
def open_kernel(
    step, weight_sum, weight_square_sum, log_decay, averaged, pending, keys, constants, now, gradients, numbers,
    group_of, state_numbers, coefficients, totals, scaler, n,
    SAMPLE: tl.constexpr, WEIGHT_OF: tl.constexpr, WEIGHTED: tl.constexpr, ESTIMATES: tl.constexpr,
    AVERAGED: tl.constexpr, SCALED_LOSS: tl.constexpr, TICK: tl.constexpr, SETTLE: tl.constexpr, GATHER: tl.constexpr,
    JOINT: tl.constexpr, SUMS: tl.constexpr, CONSTANTS: tl.constexpr, COEFFICIENTS: tl.constexpr,
    NUMBERS_KEPT: tl.constexpr, DECOUPLED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Tick: draw s, find γ, advance the counters. Settle: the coefficients of every tensor."""
    if TICK:
        t = tl.load(step) + 1
        go = tl.where(t > 0, 1.0, 0.0)
        if SCALED_LOSS:
            go = tl.where(tl.load(scaler) == 0, 1.0, 0.0)
        a = tl.load(constants + LAW_A)
        b = tl.load(constants + LAW_B)
        key = tl.load(keys)
        s = SAMPLE(key, t + 1, a, b)
        weight = s * 0 + 1.0
        if WEIGHTED or ESTIMATES:
            weight = WEIGHT_OF(SAMPLE(key, t, a, b), a, b)
        relative = 1.0 + weight * 0
        if WEIGHTED:
            relative = tl.where(t == 1, 1.0, weight)
        if not ESTIMATES:
            weight = tl.load(constants + LAW_MEAN)
        tl.store(now + S, s)
        tl.store(now + WEIGHT, weight)
        tl.store(now + RELATIVE, relative)
        tl.store(now + GO, go)
        if AVERAGED:
            count = tl.load(averaged) + 1
            power = tl.load(constants + POWER)
            passed = tl.maximum(count.to(tl.float64) - tl.load(constants + START) - 1, 0.0)
            discount = passed / tl.where(passed > 0, passed + power, 1.0)
            discount = tl.where(power < 0, tl.load(constants + DISCOUNT), discount)
            old = tl.load(weight_sum)
            total = relative + discount * old
            square = relative * relative + discount * discount * tl.load(weight_square_sum)
            before = tl.load(log_decay)
            stays = discount * old / total
            fall = tl.where(stays > 0, -tl.log(tl.where(stays > 0, stays, 1.0)), tl.where(old > 0, ALL_GONE, 0.0))
            after = before + fall
            missed = 1 - square / (total * total)
            joining = after + 0.5 * tl.log(tl.where(missed > 0, missed, 1.0))
            joining = tl.where(missed > 0, joining, float("-inf"))
            chances = tl.maximum(passed + 1, 1.0)
            renews = uniform(tl.load(keys + 1), chances.to(tl.int64)) * chances < 1
            waits = tl.where(renews, 1, tl.load(pending))
            settles = uniform(tl.load(keys + 3), chances.to(tl.int64)) < tl.load(constants + SETTLING)
            keep = tl.where(settles, waits, 0).to(tl.float64)
            tl.store(pending, tl.where(settles, 0, waits), mask=go != 0)
            tl.store(now + GAMMA, relative / total)
            tl.store(now + BEFORE, before)
            tl.store(now + AFTER, after)
            tl.store(now + JOINING, joining)
            tl.store(now + KEEP, keep)
            tl.store(now + DITHER, (uniform(tl.load(keys + 2), t) - 0.5) * 1.1920928955078125e-07)  # 2^−23
            tl.store(log_decay, after, mask=go != 0)
            tl.store(weight_sum, total, mask=go != 0)
            tl.store(weight_square_sum, square, mask=go != 0)
            tl.store(averaged, count, mask=go != 0)
        tl.store(step, t, mask=go != 0)
    else:
        s = tl.load(now + S)
        relative = tl.load(now + RELATIVE)
        go = tl.load(now + GO)
        if AVERAGED:
            before = tl.load(now + BEFORE)
            after = tl.load(now + AFTER)
            joining = tl.load(now + JOINING)
            keep = tl.load(now + KEEP)
    if SETTLE is not None:
        settled = read(constants + RULE, 1, None, None, CONSTANTS)
        j0 = s * 0.0  # zeros in float64
        j1 = s * 0.0
        j2 = s * 0.0
        j3 = s * 0.0
        if JOINT:
            for k in range(0, n, WIDTH):
                i = k + tl.arange(0, WIDTH)
                mask = i < n
                lr = tl.load(numbers + NUMBERS * tl.load(group_of + i, mask=mask, other=0) + LR)
                kept = read(state_numbers + KEPT * n + i, n, mask, 0.0, NUMBERS_KEPT)
                g0, g1, g2, g3 = GATHER(lr, kept, read(totals + i, n, mask, 0.0, SUMS), settled)
                j0 += tl.sum(tl.where(mask, g0, 0.0), 0)
                j1 += tl.sum(tl.where(mask, g1, 0.0), 0)
                j2 += tl.sum(tl.where(mask, g2, 0.0), 0)
                j3 += tl.sum(tl.where(mask, g3, 0.0), 0)
        unit = 1.0
        if SCALED_LOSS:
            unit = 1.0 / tl.load(scaler + 1).to(tl.float64)
        for k in range(0, n, WIDTH):
            i = k + tl.arange(0, WIDTH)
            mask = i < n
            at = numbers + NUMBERS * tl.load(group_of + i, mask=mask, other=0)
            here = tl.load(gradients + i, mask=mask, other=0) != 0
            fresh = tl.load(state_numbers + IS_FRESH * n + i, mask=mask, other=0.0)  # 1: averages, 2: buffer, 3: both
            kept = read(state_numbers + KEPT * n + i, n, mask, 0.0, NUMBERS_KEPT)
            sums = (fresh, fresh, fresh)
            if SUMS > 0:
                sums = read(totals + i, n, mask, 0.0, SUMS)
            rate, own, kept = SETTLE(
                read(at + LR, 1, mask, 0.0, 5), fresh >= 2, kept, sums, (j0, j1, j2, j3), (s, relative), settled
            )
            decay = tl.where(here, tl.load(at + COUPLED), 0.0)  # without a gradient nothing is seen
            joins = (fresh == 1) | (fresh == 3)
            common = (
                unit * tl.load(at + SIGN),
                decay,
                rate * s,
                tl.where(here, rate, 0.0),
                tl.where(joins, 1.0, 0.0),
            )
            write(coefficients + i, n, common, mask, 5)
            write(coefficients + OWN * n + i, n, own, mask, COEFFICIENTS)
            # one without a gradient waits, but for a joint norm; one that never had a gradient except in steps that
            # were called off has not joined yet
            known = here | (fresh != 3)
            played = known if JOINT else here
            goes = i < tl.where(go != 0, n, 0)
            tl.store(state_numbers + IS_FRESH * n + i, tl.where(here, 0.0, fresh), mask=goes & known)
            write(state_numbers + KEPT * n + i, n, kept, goes & played, NUMBERS_KEPT)
            if DECOUPLED:  # after the rule's own numbers: what the last decay was, and what this one is
                decay_at = state_numbers + (KEPT + NUMBERS_KEPT) * n + i
                last_move, last_decay = read(decay_at, n, mask, 0.0, 2)
                pull = tl.load(at + LR) * tl.load(at + LR + 1)
                pulls = (last_move, last_decay, 1 / (1 - last_move * last_decay), s * pull)
                write(coefficients + (OWN + COEFFICIENTS) * n + i, n, pulls, mask, 4)
                write(decay_at, n, (tl.where(here, -s, 0.0), tl.where(here, -pull, 0.0)), goes, 2)
            if AVERAGED:
                # what is left of the weight of its averages after the steps that it has missed; 1 if none
                joins = joins & here
                then = tl.load(state_numbers + LOG_DECAY * n + i, mask=mask, other=0.0)
                left = tl.where(joins, 1.0, tl.where(then < before, tl.exp(then - before), 1.0))
                moved = here | (known & (i < tl.where(keep != 0, n, 0)) & (fresh != 1))
                write(coefficients + LEFT * n + i, n, (left, tl.where(moved, 1.0, 0.0)), mask, 2)
                tl.store(state_numbers + LOG_DECAY * n + i, after, mask=goes & moved)
                tl.store(state_numbers + JOINED * n + i, joining, mask=goes & joins)


@triton.jit
def step_kernel(
    which, first, sizes, addresses, gradients, now, coefficients, partial, n, low, chunks,
    PLAY: tl.constexpr, MOVES: tl.constexpr, COEFFICIENTS: tl.constexpr, SLOTS: tl.constexpr,
    AVERAGED: tl.constexpr, SUMMED: tl.constexpr, HAS_GRADIENT: tl.constexpr, JOINT: tl.constexpr,
    DECOUPLED: tl.constexpr, ROUNDED: tl.constexpr, FLOOR: tl.constexpr,
    X_TYPE: tl.constexpr, SLOT_0: tl.constexpr, SLOT_1: tl.constexpr, SLOT_2: tl.constexpr, WIDE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Move one chunk: learner, parameters, averages, and its share of the sums."""
    chunk = low + tl.program_id(0)
    go = tl.load(now + GO) != 0
    t = tl.load(which + chunk)
    start = (chunk - tl.load(first + t)) * CHUNK
    size = tl.where(go, tl.load(sizes + t) - start, 0)  # a step that is called off touches nothing
    address = tl.load(gradients + t)
    present = tl.where(address != 0, size, 0)
    averaged = present
    if AVERAGED:
        averaged = tl.where(tl.load(coefficients + MOVED * n + t) != 0, size, 0)
    played = present
    if JOINT:
        played = size
    if tl.maximum(averaged, played) <= 0:
        return  # without a gradient now; `close_kernel` does not ask for its sums either
    g_at = address.to(tl.pointer_type(X_TYPE)) + start
    x_at = point(addresses + X * n + t, start, X_TYPE)
    unit = tl.load(coefficients + UNIT * n + t).to(WIDE)
    decay = tl.load(coefficients + DECAY * n + t).to(WIDE)
    scale = tl.load(coefficients + SCALE * n + t).to(WIDE)
    own = narrowed(read(coefficients + OWN * n + t, n, None, None, COEFFICIENTS), WIDE, COEFFICIENTS)
    slots_at = point_slots(addresses + SLOT * n + t, n, start, SLOTS, SLOT_0, SLOT_1, SLOT_2)
    if DECOUPLED:
        pulls = narrowed(read(coefficients + (OWN + COEFFICIENTS) * n + t, n, None, None, 4), WIDE, 4)
        last_move, last_decay, back, shrink = pulls
    if AVERAGED:
        exact = tl.load(now + GAMMA)
        left = tl.load(coefficients + LEFT * n + t)
        share = exact.to(WIDE)  # of this gradient in ḡ, and with no steps missed of x − x̄ in x̄
        gamma = tl.where(left == 1, exact, 1 - left * (1 - exact)).to(WIDE)
        keep = tl.where(left == 1, 1 - exact, left * (1 - exact)).to(WIDE)
        dither = tl.load(now + DITHER).to(WIDE)
        kept = tl.where(tl.load(now + KEEP) != 0, averaged, 0)
        average_at = point(addresses + AVERAGE * n + t, start, WIDE)
        output_at = point(addresses + OUTPUT * n + t, start, WIDE)
        # a float32 parameter's in float32 within a chunk: float64 here would cost bandwidth, for |x − x̄| beyond 1e19
        squares = tl.zeros([BLOCK], WIDE)
        slopes = tl.zeros([BLOCK], WIDE)
        if HAS_GRADIENT:
            fresh = (tl.load(coefficients + FRESH * n + t) != 0) | (share == 1)
            gradient_at = point(addresses + GRADIENT * n + t, start, WIDE)
    for j in tl.static_range(0, CHUNK, BLOCK):
        i = j + tl.arange(0, BLOCK)
        i = tl.max_contiguous(tl.multiple_of(i, 16), 16)
        mask = i < size
        # all loads before the first store, so that they are under way together
        x = tl.load(x_at + i, mask=mask, other=0.0).to(WIDE)
        g = tl.load(g_at + i, mask=i < present, other=0.0).to(WIDE)
        slots = read_slots(slots_at, i, mask, x, SLOTS)
        if AVERAGED:
            average = tl.load(average_at + i, mask=mask, other=0.0)
        if HAS_GRADIENT:
            gradient = tl.load(gradient_at + i, mask=mask, other=0.0)
        d = g * unit
        d = tl.where(decay != 0, d + decay * x, d)
        x_next, last, played_slots = PLAY(x, d, slots, scale, own, FLOOR)
        if DECOUPLED:
            x_next -= shrink * x
            last += last_decay * ((x + last_move * last) * back)
        if MOVES:
            tl.store(x_at + i, x_next, mask=i < present)
        for k in tl.static_range(SLOTS):
            tl.store(slots_at[k] + i, played_slots[k], mask=i < played)
        if AVERAGED:
            e = x - average
            if SUMMED:
                squares += e * e
                if SLOTS > 0:
                    slopes += d * last
            move = gamma * e
            if ROUNDED:  # at random, see o2nc.averages
                power = (average.to(tl.int32, bitcast=True) & EXPONENT).to(tl.float32, bitcast=True)
                move += tl.where(e > 0, dither * power, tl.where(e < 0, -dither * power, 0.0))
            average = tl.where(gamma == 1, x, average + move)
            tl.store(average_at + i, average, mask=i < averaged)
            tl.store(output_at + i, average, mask=i < kept)
        if HAS_GRADIENT:
            tl.store(gradient_at + i, tl.where(fresh, d, keep * gradient + share * d), mask=i < averaged)
    if SUMMED:
        tl.store(partial + chunk, tl.sum(squares, 0).to(tl.float64))
        tl.store(partial + chunks + chunk, tl.sum(slopes, 0).to(tl.float64))


@triton.jit
def close_kernel(first, now, coefficients, state_numbers, partial, n, chunks, WIDTH: tl.constexpr):
    """Bring one tensor's V, progress and rate up to date: V ← (1 − γ)(V + γ‖e‖²), progress += w·rate·⟨g, u⟩."""
    if tl.load(now + GO) == 0:
        return
    t = tl.program_id(0)
    low = tl.load(first + t)
    high = tl.load(first + t + 1)
    if tl.load(coefficients + MOVED * n + t) == 0:
        return
    left = tl.load(coefficients + LEFT * n + t)
    gamma = tl.load(now + GAMMA)
    gamma = tl.where(left == 1, gamma, 1 - left * (1 - gamma))
    square, slope = fold(partial, chunks, low, high, WIDTH)
    spread = tl.load(state_numbers + SPREAD * n + t)
    tl.store(state_numbers + SPREAD * n + t, tl.where(gamma == 1, 0.0, (1 - gamma) * (spread + gamma * square)))
    rate = tl.load(state_numbers + LAST_RATE * n + t)
    gain = tl.where((rate == 0) | (left != 1), 0.0, rate * tl.load(now + WEIGHT) * slope)  # it may not have moved
    tl.store(state_numbers + PROGRESS * n + t, tl.load(state_numbers + PROGRESS * n + t) + gain)
    tl.store(state_numbers + LAST_RATE * n + t, tl.load(coefficients + RATE * n + t))


@triton.jit
def measure_kernel(
    which, first, sizes, addresses, gradients, now, numbers, group_of, constants, scaler, partial, n, low, chunks,
    MEASURE: tl.constexpr, CONSTANTS: tl.constexpr, SLOTS: tl.constexpr, SCALED_LOSS: tl.constexpr,
    FLOOR: tl.constexpr,
    X_TYPE: tl.constexpr, SLOT_0: tl.constexpr, SLOT_1: tl.constexpr, SLOT_2: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum what a learner with a joint norm must know before it plays, in float64."""
    chunk = low + tl.program_id(0)
    if tl.load(now + GO) == 0:
        return
    t = tl.load(which + chunk)
    start = (chunk - tl.load(first + t)) * CHUNK
    size = tl.load(sizes + t) - start
    address = tl.load(gradients + t)
    present = tl.where(address != 0, size, 0)
    g_at = address.to(tl.pointer_type(X_TYPE)) + start
    unit = tl.load(now + RELATIVE)
    if SCALED_LOSS:
        unit = unit / tl.load(scaler + 1).to(tl.float64)
    at = numbers + NUMBERS * tl.load(group_of + t)
    unit *= tl.load(at + SIGN)
    lr = tl.load(at + LR)
    settled = read(constants + RULE, 1, None, None, CONSTANTS)
    slots_at = point_slots(addresses + SLOT * n + t, n, start, SLOTS, SLOT_0, SLOT_1, SLOT_2)
    ps = tl.zeros([BLOCK], tl.float64)
    qs = tl.zeros([BLOCK], tl.float64)
    rs = tl.zeros([BLOCK], tl.float64)
    for j in tl.static_range(0, CHUNK, BLOCK):
        i = j + tl.arange(0, BLOCK)
        mask = i < size
        d = tl.load(g_at + i, mask=i < present, other=0.0).to(tl.float64) * unit
        slots = read_slots(slots_at, i, mask, d, SLOTS)
        p, q, r = MEASURE(d, slots, lr, settled, FLOOR)
        ps += tl.where(mask, p, 0.0)
        qs += tl.where(mask, q, 0.0)
        rs += tl.where(mask, r, 0.0)
    tl.store(partial + chunk, tl.sum(ps, 0))
    tl.store(partial + chunks + chunk, tl.sum(qs, 0))
    tl.store(partial + 2 * chunks + chunk, tl.sum(rs, 0))


@triton.jit
def total_kernel(first, now, partial, totals, n, chunks, WIDTH: tl.constexpr):
    """Fold what was measured, tensor by tensor."""
    if tl.load(now + GO) == 0:
        return
    t = tl.program_id(0)
    low = tl.load(first + t)
    high = tl.load(first + t + 1)
    p, q = fold(partial, chunks, low, high, WIDTH)
    q, r = fold(partial + chunks, chunks, low, high, WIDTH)
    tl.store(totals + t, p)
    tl.store(totals + n + t, q)
    tl.store(totals + 2 * n + t, r)
