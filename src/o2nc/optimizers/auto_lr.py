"""``lr="auto"``: a short probe finds the learning rate, then the run begins close to its first weights.

    probe     AdamW moves at lr = d_t, from d_1 = 1e-3·rms(x_0) on, and d grows as far as a distance estimate allows:
                  r_t = β₁r_{t−1} + (1 − β₁)⟨g_t, x_0 − x_t⟩,   d_{t+1} = max(d_t, 4r_t/‖m_t‖₁),
              m_t being Adam's own mean of the gradients; with weight decay λ, d is at most 1/(4λ). It ends when d has
              settled, after 20 to 40 steps, and leaves lr* = min(d, max_t 4r̂_t/‖√v̂_t‖₁): v_t is Adam's mean of the
              squares, and the hats are its corrections for the first steps.
    rewind    x becomes x_0 + 0.15(x − x_0), or x_0 where x is not finite, and the optimizer's state is dropped
    warm-up   lr rises to lr* over 100 steps; without an average it is a plain number from then on
    control   with x̄ beside the run, h is the mean of ⟨g_t, x_t − x̄_t⟩ over 50 steps, of which every fifth is looked
              at. After each 50 steps lr is multiplied by 0.3·max r/h, but at most by 1.1 and at least by 1/1.1, and
              stays between lr*/10 and lr*. It ends as soon as somebody else sets lr, or a graph is captured.

The distance estimate is Prodigy's (Mishchenko and Defazio): where F is convex, ⟨g, x_0 − x⟩ <= ⟨g, x_0 − x*⟩, so the
mean r of the left sides is at most ⟨m, x_0 − x*⟩ <= ‖m‖₁·max|x_0 − x*|: r/‖m‖₁ never exceeds the distance that a
coordinate has to go. Prodigy weighs gradients by d², which takes a buffer of its own; Adam's mean is there already.
x_0 is kept while there is no x̄ yet, which takes its place: the probe needs no memory beyond the run's.

A step of the size d would be right for gradients that agree with one another. ‖m̂‖₁/‖√v̂‖₁ is 1 for such, and small
where they are mostly noise; lr* is d times that. At lr*, a step changes the loss by 4 max r̂ at most, to first order.

The noise that builds up later shows in h. g_t is of a new batch, so the mean of the products is ⟨∇F(x), x − x̄⟩, for a
quadratic F(x) − F(x̄) + ½⟨x − x̄, H(x − x̄)⟩: it grows with lr and with the noise, and needs no value of the loss. The
largest r of the probe has the same unit, so lr does not depend on the scale of the loss. The numbers were chosen on
fourteen small models; docs/no-learning-rate.md has how others fare.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from o2nc.averages.update import Iterate
from o2nc.persist.compiling import is_capturing
from o2nc.persist.plain import KEY
from o2nc.vector import dots, gradients, real, squares, values, wide

AUTO = "auto"  # the argument, and the entry of the settings until lr is a plain number
FIRST = 1e-6  # d_1 where all parameters are zero
RELATIVE = 1e-3  # d_1 in units of rms(x_0)
GROWTH = 4.0  # how many times the estimates d and lr* are
KEPT = 0.15  # of the way that the probe went
WARMUP = 100  # steps
SETTLED = 6  # steps in which d has grown by less than a tenth
LONGEST = 200  # steps of the probe at most
HEAT = 0.3  # what h is kept at, in units of the largest r of the probe
CHANGE = 1.1  # how many times larger or smaller lr becomes at once
LOWEST = 0.1  # lr in units of what the warm-up rose to
LOOK, REVIEW = 5, 50  # steps from one product to the next, and from one change of lr to the next
LEAST = 4.0  # a probe in which d has not grown so many times goes on to its longest


def begin_probe(optimizer: Any) -> None:
    """Have the next step of a new optimizer begin the probe."""
    for group in optimizer.param_groups:
        if group["lr"] != FIRST:
            raise ValueError(f'lr="auto" is one for all parameter groups, got lr={group["lr"]!r} in a group')
    _refuse_params(optimizer)
    counts = {"probed": 0, "quiet": 0, "peak": 0.0, "rate": 0.0}
    optimizer.param_groups[0][KEY][AUTO] = {"lr": FIRST, "d": FIRST, **counts}


def take_step(optimizer: Any) -> bool:
    """Take a step of the probe and return True; after it set this step's lr and return False."""
    settings = optimizer.param_groups[0][KEY]
    auto = settings[AUTO]
    if "heat" in auto:
        _control(optimizer, auto)
        return False
    _refuse(optimizer, auto["lr"])
    if "d" in auto:
        _probe(optimizer, auto)
        return True
    t = optimizer._steps_done() + 1
    lr = auto["target"] * min(1.0, t / WARMUP)
    _show(optimizer, lr)
    settings[AUTO] = auto | {"lr": lr}
    if t >= WARMUP and optimizer._window is None:
        del settings[AUTO]
    elif t >= WARMUP:
        settings[AUTO] |= {"heat": 0.0, "looks": 0}
    return False


def _control(optimizer: Any, auto: dict[str, Any]) -> None:
    """Take ⟨g, x − x̄⟩ in where it is due, and change lr where that is; end if lr is somebody else's by now."""
    settings, groups, t = optimizer.param_groups[0][KEY], optimizer.param_groups, optimizer._steps_done() + 1
    is_taken = any(group["lr"] != auto["lr"] or "initial_lr" in group for group in groups)
    if is_taken or optimizer._is_sharded or is_capturing():
        del settings[AUTO]
        return
    if t % LOOK == 0:
        heat = _heat(optimizer)
        if math.isfinite(heat):
            auto = auto | {"heat": auto["heat"] + heat, "looks": auto["looks"] + 1}
    if t % REVIEW == 0 and auto["looks"]:
        h = auto["heat"] / auto["looks"]
        factor = min(max(auto["goal"] / h, 1 / CHANGE), CHANGE) if h > 0 else CHANGE
        lr = min(max(factor * auto["lr"], LOWEST * auto["target"]), auto["target"])
        auto = auto | {"lr": lr, "heat": 0.0, "looks": 0}
        _show(optimizer, lr)
    settings[AUTO] = auto


@torch.no_grad()
def _heat(optimizer: Any) -> float:
    """Return ⟨g, x − x̄⟩, nan if there is none."""
    products = []
    for group in optimizer.param_groups:
        params = [p for p in group["params"] if p.grad is not None and "average" in optimizer.state[p].get(KEY, ())]
        for p, x, g in zip(params, values(params), gradients(params), strict=True):
            lag = x - optimizer.state[p][KEY]["average"].to(x.device)
            products.append(dots([g], [-lag if group["maximize"] else lag]))
    return float(torch.cat([own.to(products[0].device) for own in products]).sum()) if products else math.nan


def _refuse(optimizer: Any, lr: float) -> None:
    """Raise if somebody else changes lr, or a graph would freeze it."""
    for group in optimizer.param_groups:
        if "initial_lr" in group:
            raise ValueError(
                'lr="auto" is still finding lr, and a scheduler was made already, which would go back to the lr that '
                f"it saw: make it after {AUTO!r} has left param_groups[0][{KEY!r}], or pass lr as a number"
            )
        if group["lr"] != lr:
            raise ValueError(
                f'lr="auto" is still finding lr, which was {lr:g} and is now {group["lr"]!r} in a group: use no '
                f"scheduler and no lr of a group's own before {AUTO!r} has left param_groups[0][{KEY!r}], "
                "or pass lr as a number"
            )
    _refuse_params(optimizer)
    if is_capturing():
        raise RuntimeError(f'lr="auto" is still finding lr: capture after {AUTO!r} has left param_groups[0][{KEY!r}]')


def _refuse_params(optimizer: Any) -> None:
    """Raise if the parameters are sharded, or would not move at the smallest d."""
    if optimizer._is_sharded:
        raise ValueError(
            'lr="auto" needs whole parameters, got sharded ones: find lr without shards, pass the number'
        )
    half = {p.dtype for p in optimizer._known_params if p.dtype.itemsize < 4 * (1 + p.is_complex())}
    if half:
        raise ValueError(
            f'lr="auto" needs parameters of at least 32 bits, got {sorted(map(str, half))}: the first steps of its '
            "probe would be lost in rounding (autocast computes in 16 bits and keeps parameters in 32)"
        )


def _show(optimizer: Any, lr: float) -> None:
    for group in (*optimizer.param_groups, optimizer.defaults):  # groups that are added take the default
        group["lr"] = lr


@torch.no_grad()
def _probe(optimizer: Any, auto: dict[str, Any]) -> None:
    """Take one step at lr = d, then let d grow; after the last one rewind."""
    state = optimizer.state
    betas = {p: float(group["betas"][0]) for group in optimizer.param_groups for p in group["params"]}
    signs = {p: -1.0 if group["maximize"] else 1.0 for group in optimizer.param_groups for p in group["params"]}
    params = [p for p in betas if p.grad is not None]
    new = {p: {"start": p.detach().clone(), "numerator": 0.0} for p in params if KEY not in state.get(p, ())}
    entries = [new[p] if p in new else state[p][KEY] for p in params]
    if not auto["probed"]:
        auto = auto | dict.fromkeys(("lr", "d", "first", "reference"), _first(params))
        _show(optimizer, auto["d"])
    lags = [_values(entry["start"]) - _values(p) for p, entry in zip(params, entries, strict=True)]
    products = dots(gradients(params), lags)
    del lags
    optimizer._move(Iterate())
    for p, entry in new.items():
        state[p][KEY] = entry
    steps = auto["probed"] + 1
    sums = [products]
    for key, power in (("exp_avg", 1.0), ("exp_avg_sq", 0.5)):
        moments = (_values(state[p][key]).abs().pow(power) for p in params)
        sums.append(torch.stack([own.sum(dtype=torch.float64).to(products.device) for own in moments]))
    found, means, roots = torch.stack(sums).tolist()  # the one time that it waits for a device
    if all(map(math.isfinite, found)):
        for p, entry, product in zip(params, entries, found, strict=True):
            entry["numerator"] = betas[p] * entry["numerator"] + (1 - betas[p]) * signs[p] * product
    r = sum(entry["numerator"] for entry in entries)
    beta1, beta2 = map(float, optimizer.param_groups[0]["betas"])
    corrected = r / (1 - beta1**steps) * math.sqrt(1 - beta2**steps)
    rate = max(auto["rate"], GROWTH * corrected / (sum(roots) or math.inf))  # max keeps it where the new one is nan
    auto = auto | {"probed": steps, "peak": max(auto["peak"], r), "rate": rate}
    _go_on(optimizer, auto, GROWTH * r / (sum(means) or math.inf))


def _go_on(optimizer: Any, auto: dict[str, Any], estimate: float) -> None:
    """Let d grow to the estimate; rewind if it has settled."""
    decay = max(float(group["weight_decay"]) for group in optimizer.param_groups)
    most = 1 / (4 * decay) if decay else math.inf  # decoupled weight decay alone would overshoot at four times that
    d = min(max(auto["d"], estimate), most)
    grows = d > 1.1 * auto["reference"]
    auto = auto | {"lr": d, "d": d, "quiet": 0 if grows else auto["quiet"] + 1}
    auto["reference"] = d if grows else auto["reference"]
    has_grown = d >= LEAST * auto["first"]
    if auto["probed"] < LONGEST and not (auto["quiet"] >= SETTLED and has_grown):
        optimizer.param_groups[0][KEY][AUTO] = auto
        _show(optimizer, d)
        return
    lr = min(d, auto["rate"]) if has_grown else d / GROWTH
    if d == most:
        warnings.warn(
            f'lr="auto": {lr:.3g} is as much as weight_decay={decay:g} allows, and the distance is longer: '
            "pass lr as a number, or less weight decay",
            stacklevel=5,
        )
    if not has_grown:
        warnings.warn(
            f'lr="auto": {auto["probed"]} steps gave no estimate of the learning rate; {lr:.3g} is little more than '
            "a guess: pass lr as a number",
            stacklevel=5,
        )
    for p in optimizer._known_params:
        if KEY in optimizer.state.get(p, ()):
            start = optimizer.state.pop(p)[KEY]["start"]
            x = start + KEPT * (p.detach() - start)
            p.detach().copy_(torch.where(x.isfinite(), x, start))
    optimizer.param_groups[0][KEY][AUTO] = {"lr": lr / WARMUP, "target": lr, "goal": HEAT * auto["peak"]}
    _show(optimizer, lr / WARMUP)


def _first(params: list[Any]) -> float:
    """Return d_1."""
    size = float(squares([_values(p) for p in params]).sum())
    return RELATIVE * math.sqrt(size / max(1, sum(p.numel() for p in params))) or FIRST


def _values(x: Any) -> Tensor:
    """Return a tensor as real numbers of at least 32 bits."""
    x = real(x.detach())
    return x.to(wide(x.dtype))
