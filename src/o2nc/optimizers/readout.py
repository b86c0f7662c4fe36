"""What an optimizer says of its averages between two steps: certificate, x̄, output and progress.

Functions of an optimizer, behind the methods of the same names. They read state that the steps have left; all that
they write are averages of parameters that were without a gradient, which they bring up to date first. Sums over
coordinates are added up here, over the processes too where parameters are sharded. ``group`` is the first parameter
group, with our entries under our names.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from o2nc import checks, presence
from o2nc.averages import Weights
from o2nc.certificates.certificate import Certificate
from o2nc.scaling import ROUNDING, uniform
from o2nc.torch_support.device_state import FRESH_AVERAGES
from o2nc.torch_support.shards import assemble, is_sharded
from o2nc.vector import as_numbers, real, squares

if TYPE_CHECKING:
    from o2nc.optimizers.base import CertifiedOptimizer


class NoAverages(RuntimeError, AttributeError):
    """There are no averages to speak of; for a property that means, as ever in Python, that it is not there."""


class Published(NamedTuple):
    """The names, in the state of a parameter, of the averages that can be asked for."""

    average: str = "average"
    spread: str = "spread"
    gradient_squared: str | None = None  # None: that of ḡ
    nothing_yet: str = "nothing is averaged before the first step()"


@torch.no_grad()
def certificate(optimizer: "CertifiedOptimizer", c: float) -> Certificate:
    """Return the certificate, as `CertifiedOptimizer.certificate` says."""
    checks.positive("c", c)
    c = float(c)
    group, published = optimizer._groups[0], optimizer.published
    _refuse_unless(group, "certificate()", "certificate")
    with optimizer._local():
        names, params, states = _averages(optimizer, group, "certificate()", published.average)
        catch_up(optimizer, group, params, states)
        parts = torch.stack(_squares_and_spreads(published, group, states))
        squared, spreads = totals(optimizer, parts, params)
        sizes = _sample_sizes(optimizer, group, states)
    by_parameter: dict[str | int, Certificate] = {
        name: Certificate(c, square**0.5, spread, ess)
        for name, square, spread, ess in zip(names, squared, spreads, sizes, strict=True)
    }
    return Certificate(c, math.fsum(squared) ** 0.5, math.fsum(spreads), min(sizes), by_parameter)


@contextmanager
def averaged(optimizer: "CertifiedOptimizer") -> Iterator[None]:
    """Put x̄ into the parameters, as `CertifiedOptimizer.averaged` says."""
    group, key = optimizer._groups[0], optimizer.published.average
    with optimizer._local():
        _, params, states = _averages(optimizer, group, "averaged()", key)
        catch_up(optimizer, group, params, states)
    backup = [p.detach().clone() for p in params]
    optimizer._swaps.append(optimizer)
    try:
        for p, state in zip(params, states, strict=True):
            real(p.detach()).copy_(state[key])
        yield
    finally:
        optimizer._swaps.pop()
        with ExitStack() as restore:  # all of them, even if one cannot be
            for p, former in zip(params, backup, strict=True):
                restore.callback(p.detach().copy_, former)


def output(optimizer: "CertifiedOptimizer") -> list[Tensor]:
    """Return x̄_n for an n that was drawn, as `CertifiedOptimizer.output` says."""
    group = optimizer._groups[0]
    with optimizer._local():
        _, params, states = _averages(optimizer, group, "output()", "output")
        is_pending = bool(int(group.get("pending", 0)))  # then it is the average of now
        if is_pending:
            catch_up(optimizer, group, params, states)
    optimizer._wait()
    result = []
    for p in optimizer._all_params:
        kept = optimizer.state.get(p, {}).get("average" if is_pending else "output")
        if kept is None:
            result.append(p.detach().clone())
            continue
        kept = kept.to(p.device, copy=True)
        kept = torch.view_as_complex(kept) if p.is_complex() else kept
        result.append(assemble(p, kept) if is_sharded(p) else kept)
    return result


def progress(optimizer: "CertifiedOptimizer") -> float:
    """Return Σ w(s_n)⟨g_n, Δ_n⟩, as `CertifiedOptimizer.progress` says."""
    group = optimizer._groups[0]
    _refuse_unless(group, "progress", "progress")
    with optimizer._local():
        _, params, states = _averages(optimizer, group, "progress", "progress")
        gains = [state["progress"] for state in states]
        together = torch.stack([gain.to(gains[0].device) for gain in gains])
        return math.fsum(totals(optimizer, together, params))


def progress_of(optimizer: "CertifiedOptimizer") -> float:
    """Return the progress, or nan where the optimizer was made without."""
    return optimizer.progress if optimizer._groups[0].get("progress", True) else math.nan


def has_averages(optimizer: "CertifiedOptimizer") -> bool:
    """Say whether there is anything to certify: a step was made, and with `OriginalO2NC` a block is complete."""
    group = optimizer._groups[0]
    if group.get("average", 0.0) is None or not group.get("certificate", True):  # as a checkpoint can have it
        return False
    begun = any(optimizer.published.average in state for state in optimizer.state.values())
    return begun and int(group["step"]) > 0 and _has_started(optimizer, group)


def catch_up(
    optimizer: "CertifiedOptimizer", group: Any, params: Sequence[Tensor], states: Sequence[dict[str, Any]]
) -> None:
    """Bring averages up to date, of parameters without a gradient at the last steps, too."""
    dither = uniform(group["seed"], max(int(group["step"]), 1), stream=ROUNDING, draw=1) - 0.5
    weights = Weights(*as_numbers(optimizer._window.weights(group)))
    presence.catch_up_(params, states, weights.log_decay, dither)


def totals(optimizer: "CertifiedOptimizer", values: Tensor, params: list[Tensor]) -> Any:
    """Return sums over coordinates as numbers, over all processes that have a shard.

    Args:
        optimizer: whose parameters they are.
        values: one row of numbers, or several; a column for each parameter.
        params: the parameters.
    """
    shards = optimizer._shards
    if shards is not None:
        rows = [shards.total(row, params) for row in values.reshape(-1, len(params))]
        values = torch.stack(rows).reshape(values.shape)
    return values.tolist()


def _refuse_unless(group: Any, wish: str, option: str) -> None:
    """Refuse what the optimizer was made without."""
    if option == "progress" and group.get("offload") is not None:
        raise NoAverages(f"{wish}: not with offload={group['offload']}, by which iterates are passed over")
    if not group.get(option, True) and group.get("average") is not None:
        raise NoAverages(f"{wish}: this optimizer was made with {option}=False; pass {option}=True")


def _averages(
    optimizer: "CertifiedOptimizer", first: Any, wish: str, key: str
) -> tuple[list[str | int], list[Tensor], list[dict[str, Any]]]:
    """Return names, parameters and states of all that have averages, or say why there are none."""
    if first.get("average", 0.0) is None:
        raise NoAverages(f"{wish} needs averages, and this optimizer was made with {optimizer.advice}")
    names: dict[str | int, None] = {}
    params, states = [], []
    waiting = _not_begun(optimizer)
    i = 0
    for group in optimizer.param_groups:
        given = group.get("param_names", range(i, i + len(group["params"])))
        for name, p in zip(given, group["params"], strict=True):
            state = optimizer.state.get(p, {})
            if key in state and id(state) not in waiting:
                names[i if name in names else name] = None
                params.append(p)
                states.append(state)
            i += 1
    if not params or first["step"] == 0:
        raise NoAverages(f"{wish}: {optimizer.published.nothing_yet}")
    start = getattr(first.get("average"), "start", 0)
    if key != "progress" and start and not _has_started(optimizer, first):
        raise NoAverages(f"{wish}: the averages begin after {start} steps (start={start} in average=…)")
    return [*names], params, states


def _has_started(optimizer: "CertifiedOptimizer", group: Any) -> bool:
    """Say whether the window has begun."""
    window = optimizer._window
    return window is None or not window.start or int(group["averaged"]) > window.start


def _not_begun(optimizer: "CertifiedOptimizer") -> set[int]:
    """Return the ids of states whose averages wait for a first step: all so far were called off."""
    states = [state for state in optimizer.state.values() if isinstance(state.get("fresh"), Tensor)]
    flags = as_numbers([state["fresh"] for state in states]) if states else []
    return {id(state) for state, flag in zip(states, flags, strict=True) if int(flag) & FRESH_AVERAGES}


def _squares_and_spreads(keys: Published, group: Any, states: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
    """Return ‖ḡ‖² and V of every parameter, as two tensors on the device."""
    if keys.gradient_squared is not None:
        found = torch.stack([s[keys.gradient_squared].to(states[0][keys.spread].device) for s in states])
    else:
        # where there is no ḡ the momentum buffer is Σβ^{n−t}g_t
        in_buffer = ["gradient" not in state for state in states]
        pairs = zip(states, in_buffer, strict=True)
        found = squares([real(state["momentum_buffer"]) if is_sum else state["gradient"] for state, is_sum in pairs])
        if any(in_buffer):
            total = torch.as_tensor(group["weight_sum"], dtype=torch.float64, device=found.device)
            are_sums = torch.tensor(in_buffer, device="cpu").to(found.device)
            found = torch.where(are_sums, found / total.square(), found)
    return found, torch.stack([state[keys.spread].to(found.device) for state in states])


def _sample_sizes(optimizer: "CertifiedOptimizer", group: Any, states: list[dict[str, Any]]) -> list[float]:
    """Return every parameter's effective sample size."""
    weights = Weights(*as_numbers(optimizer._window.published(group)))
    return [weights.ess(joined) for joined in as_numbers([state["joined"] for state in states])]
