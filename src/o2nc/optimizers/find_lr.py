"""`find_lr`: a learning rate from short runs, each of them read at its average x̄.

    log lr = Σ w_i log lr_i − ⅓ log(steps/probe),   w_i ∝ exp((min F − F_i)/(0.02·(F_start − min F)))

Every lr_i is tried for ``probe`` steps, from the same start, on the same batches, with the same random numbers. F_i
is the loss at x̄ on batches that come before those. Learning rates are a factor 2 apart, on both sides of the best;
shorter runs, a factor 4 apart, say where to begin. The mean is kept a factor 4 below those that diverged and higher
ones that learned nothing. The best learning rate falls with the length of a run, about as its cube root (Bjorck and
others, arXiv:2409.19913, have the power 0.32 for language models): docs/no-learning-rate.md has what that is tested
on, and how far off it is.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.nn import Module

from o2nc import checks
from o2nc.optimizers.wrapped import averaged, averaged_optimizer
from o2nc.persist.private import clear_cast_caches, foreach_copy_
from o2nc.persist.restored import all_restored, modules_of
from o2nc.text import printable
from o2nc.vector import values

PROGRESS = 0.02  # the share of F_start − min F that tells learning rates apart
LEARNED = 0.01  # a fall of the loss by less than this share of it is none
FALL, FALL_ERROR = 1 / 3, 0.1  # the power of the run's length with which lr falls, and how well it is known
HELD_OUT = 16  # batches on which x̄ is judged
WARM_UP = 0.2  # of a probe
FURTHEST = 2.0**20  # from ``start``


@dataclass(frozen=True)
class FoundLR:
    """What `find_lr` has found.

    Attributes:
        lr: the learning rate for a run of ``steps`` steps.
        low, high: the range that the best one is in, 9 times out of 10 (two standard deviations).
        steps: the length of the run that it is for.
        losses: of every learning rate that was tried for ``probe`` steps, the loss at x̄ then; inf if it diverged.

    Example:
        >>> print(FoundLR(0.002, 0.0014, 0.003, 1000, {0.001: 2.5, 0.002: 2.4, 0.004: 2.41, 0.008: 2.9}))
        lr 0.002 (0.0014 to 0.003) for 1,000 steps; tried: 0.001: 2.5, 0.002: 2.4, 0.004: 2.41, 0.008: 2.9
    """

    lr: float
    low: float
    high: float
    steps: int
    losses: Mapping[float, float] = field(repr=False)

    def __str__(self) -> str:
        tried = ", ".join(f"{lr:.3g}: {loss:.4g}" for lr, loss in sorted(self.losses.items()))
        found = f"lr {self.lr:.3g} ({self.low:.3g} to {self.high:.3g}) for {self.steps:,} steps"
        return printable(f"{found}; tried: {tried}")


def find_lr(
    make: Callable[[float], Any],
    loss: Callable[[Any], Any],
    batches: Iterable[Any],
    *,
    steps: int,
    probe: int = 300,
    start: float = 1e-3,
    callback: Callable[[float, float], Any] | None = None,
) -> FoundLR:
    """Try learning rates in short runs from the model as it is, and return one for a run of ``steps`` steps.

    It takes about four runs of ``probe`` steps, and before them five of a quarter of that, or, where these are too
    short to learn anything, of as much. They have averages and a warm-up of their own. Afterwards random numbers,
    parameters, and gradients, buffers and modes of the models that have them are as before. Call it in the mode and
    under the autocast of the training, on every process if there are several.

    Args:
        make: returns a new optimizer with averages for a learning rate, ``lambda lr: o2nc.AdamW(model.parameters(),
            lr=lr, average=o2nc.Polynomial(12))``, or a list of them. A step hook of it may clip the gradients.
        loss: returns the loss of a batch as a tensor, for ``backward()``.
        batches: the batches, such as a DataLoader. They are gone through again for every learning rate, and again
            from the first if there are fewer than a run needs; what an iterator yields is kept. The first 16 are
            kept, too, and only x̄ is judged on them.
        steps: the length of the run that lr is for; with several in view, the shortest.
        probe: steps of the runs that decide; for a long run a fiftieth of it, say.
        start: the learning rate to try first, rather too low than too high.
        callback: called after every run with its learning rate, and its loss.

    Warns:
        UserWarning: the best run lowered the loss by less than 1 %.

    Raises:
        RuntimeError: no learning rate within a factor of a million of ``start`` has lowered the loss, or the best is
            at the end of that range.

    Example:
        >>> import torch, o2nc
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(10, 1), torch.randn(4000, 10)
        >>> batches = torch.utils.data.DataLoader(x, batch_size=32, shuffle=True)
        >>> make = lambda lr: o2nc.AdamW(model.parameters(), lr=lr, average=o2nc.Polynomial(12))
        >>> found = o2nc.find_lr(make, lambda x: (model(x)[:, 0] - x.sum(1)).abs().mean(), batches, steps=1000)
        >>> 1e-3 < found.low < found.lr < found.high < 1
        True
    """
    checks.integer("steps", steps, 2)
    checks.integer("probe", probe, 2)
    checks.positive("start", start)
    for name, value in {"make": make, "loss": loss, "callback": callback or print}.items():
        if not callable(value):
            raise TypeError(f"{name} must be a function, got {value!r}")
    if not isinstance(batches, Iterable):
        raise TypeError(f"batches must be a DataLoader, a list or another iterable, got {batches!r}")
    probe, start = min(probe, steps), float(start)
    is_kept = isinstance(batches, Iterator)
    if is_kept:
        batches = list(islice(batches, probe + HELD_OUT))
    coarse = max(1, probe // 4)  # steps of the runs that find where to look

    def optimizers(lr: float) -> list[Any]:
        """Return new optimizers, checked."""
        with all_restored([], []):  # make may draw random numbers
            return _optimizers(make(lr), coarse)

    params = _params(optimizers(start))
    modules = modules_of(params)
    with _undone(params, modules, batches):
        held_out = list(islice(_endless(batches), HELD_OUT))
        before = _mean_loss(loss, held_out, params)
    if not math.isfinite(before):
        raise RuntimeError(f"find_lr: the loss is {before} before the first step")

    def search(first: float, factor: float, length: int) -> dict[float, float]:
        """Make runs at learning rates this factor apart until the best has a neighbour on both sides."""
        found: dict[float, float] = {}
        new = {first}
        while new:
            for lr in sorted(new):
                made = optimizers(lr)
                if [*map(id, _params(made))] != [*map(id, params)]:
                    raise ValueError("make must return optimizers of the same parameters at every call")
                with _undone(params, modules, batches):
                    own = islice(_endless(batches), HELD_OUT, HELD_OUT + length)
                    found[lr] = _train(made, loss, map(deepcopy, own) if is_kept else own, length, held_out)
                if callback is not None:
                    callback(lr, found[lr])
            best = _best(found)
            is_near = start / FURTHEST < best < start * FURTHEST
            new = {best / factor, best * factor} - found.keys() if is_near else set()
        return found

    rough = search(start, 4.0, coarse)
    if before - min(rough.values()) < LEARNED * abs(before):  # which is best then is chance
        rough = search(start, 4.0, probe)
    if len({*rough.values()}) == 1 and math.isfinite(rough[start]):
        raise RuntimeError("find_lr: all learning rates led to the same loss; does make use its argument?")
    losses = search(_best(rough), 2.0, probe)
    tried, best = rough | losses, _best(losses)
    if not losses[best] < before:
        several = f"{len(tried)} learning rates from {min(tried):.2g} to {max(tried):.2g}"
        what = "lowered the loss" if math.isfinite(losses[best]) else "kept the loss finite"
        raise RuntimeError(f"find_lr: in {probe} steps none of {several} {what}, which is {before:.4g}")
    if not {best / 2, best * 2} <= losses.keys():
        raise RuntimeError(f"find_lr: the best learning rate, {best:.2g}, is the last that was tried: start there")
    if before - losses[best] < LEARNED * abs(before):
        fell = f"the loss fell from {before:.6g} to {losses[best]:.6g} only"
        warnings.warn(f"find_lr: in {probe} steps {fell}; what it found may be chance: pass probe=…", stacklevel=2)
    return _mean(losses, [lr for lr in tried if math.isinf(tried[lr])], before, probe, steps)


def _best(losses: Mapping[float, float]) -> float:
    """Return the learning rate of the least loss: of equal ones the highest, or the lowest if all diverged."""
    least = min(losses.values())
    return max(lr for lr in losses if losses[lr] == least) if math.isfinite(least) else min(losses)


def _mean(losses: Mapping[float, float], diverged: list[float], before: float, probe: int, steps: int) -> FoundLR:
    """Return the mean of the learning rates and how far it may be off, both in their logarithms."""
    logs, reached = np.log2([*losses]), np.array([*losses.values()])
    least = reached.min()
    weights = np.exp((least - reached) / (PROGRESS * (before - least)))
    mean = np.average(logs, weights=weights)
    failed = logs[(reached >= before) & (logs > mean)]  # those that learned nothing; a longer run may do so sooner
    mean = min(mean, min([*failed, *np.log2(diverged)], default=np.inf) - 2)
    variance = np.average((logs - mean) ** 2, weights=weights) + 1 / 12  # of a point between two neighbours
    octaves = math.log2(steps / probe)
    log, width = mean - FALL * octaves, 2 * (math.sqrt(variance) + FALL_ERROR * octaves)
    lr, low, high = (float(2.0**x) for x in (log, log - width, log + width))
    return FoundLR(lr, low, high, steps, dict(sorted(losses.items())))


def _optimizers(made: Any, shortest: int) -> list[Any]:
    """Return the optimizers of ``make`` as a list; raise unless they are new and average within the shortest run."""
    found = [averaged_optimizer(optimizer) for optimizer in (made if isinstance(made, list | tuple) else [made])]
    if not found:
        raise ValueError("make returned no optimizer")
    for optimizer in found:
        if optimizer._steps_done():
            raise ValueError("make must return a new optimizer at every call, and this one has made steps")
        if any("initial_lr" in group for group in optimizer.param_groups):
            raise ValueError("make must leave schedulers and warm-ups out: short runs have a warm-up of their own")
        window: Any = optimizer._window
        if window.count(shortest) < min(shortest, 3) or not window.complete(shortest):
            raise ValueError(f"{window} of make must average three iterates in {shortest} steps, the shortest run")
    return found


def _params(optimizers: list[Any]) -> list[Any]:
    """Return the parameters of all optimizers."""
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


def _train(
    optimizers: list[Any], loss: Callable[[Any], Any], batches: Iterable[Any], length: int, held_out: list[Any]
) -> float:
    """Train on the batches, so many; return the loss at x̄ on those held out, or inf if the run diverged."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    params, rates = _params(optimizers), [group["lr"] for group in groups]
    for t, batch in enumerate(batches, 1):
        for group, lr in zip(groups, rates, strict=True):
            group["lr"] = lr * min(1.0, t / max(1.0, WARM_UP * length))
        for optimizer in optimizers:
            optimizer.zero_grad()
        clear_cast_caches()  # an autocast around all of it would keep the first weights
        with torch.enable_grad():
            value = loss(batch)
        number = _over_processes(checks.scalar("loss", value), params)
        if not getattr(value, "requires_grad", False):
            raise TypeError(f"loss must return a tensor that depends on the parameters, got {value!r}")
        if not math.isfinite(number):
            return math.inf
        value.backward()
        for optimizer in optimizers:
            optimizer.step()
    with averaged(*optimizers):
        found = _mean_loss(loss, held_out, params)
    return found if math.isfinite(found) else math.inf


def _mean_loss(loss: Callable[[Any], Any], batches: Iterable[Any], params: list[Any]) -> float:
    """Return the mean loss over some batches, and over the processes."""
    clear_cast_caches()
    with torch.enable_grad():  # a loss may differentiate, and write into its batch
        values = [checks.scalar("loss", loss(deepcopy(batch))) for batch in batches]
    return _over_processes(fmean(values), params)


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    """Go through the batches again and again."""
    while True:
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
        if is_empty:
            raise ValueError("batches must not be empty; they are gone through again and again")


@contextmanager
def _undone(params: list[Any], modules: list[Module], batches: Any) -> Iterator[None]:
    """Undo a run on leaving: restore the parameters, the generators of a DataLoader, and what `all_restored` does."""
    former = [x.clone() for x in values(params)]
    batch_sampler = getattr(batches, "batch_sampler", None)
    sources = batches, getattr(batches, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)
    drawn: dict[Any, Any] = dict.fromkeys(getattr(source, "generator", None) for source in sources)
    states = [(generator, generator.get_state()) for generator in drawn if generator is not None]
    with all_restored(params, modules):
        try:
            yield
        finally:
            foreach_copy_(values(params), former)
            for generator, state in states:
                generator.set_state(state)
            clear_cast_caches()


def _over_processes(number: float, params: list[Any]) -> float:
    """Return the mean of a number over the processes, so that all of them decide alike."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return number
    joint = torch.tensor([number], dtype=torch.float64, device=values(params[:1])[0].device)
    distributed.all_reduce(joint)
    return float(joint) / distributed.get_world_size()
