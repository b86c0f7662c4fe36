"""What an optimizer says of its averages between two steps. Nothing here changes the optimizer's state."""

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from o2nc import checks
from o2nc.averages.update import Entry
from o2nc.certificates.certificate import Certificate
from o2nc.persist.plain import KEY, from_dict
from o2nc.persist.shards import is_sharded, local, total
from o2nc.vector import real


class NoAverages(RuntimeError, AttributeError):
    """There are no averages to read; as an AttributeError, so that ``hasattr(opt, "progress")`` is False."""


class Published(NamedTuple):
    """The averages that can be read: the last that are complete."""

    entries: dict[Any, Entry]  # by parameter
    n: int  # how many iterates were averaged


def published(optimizer: Any, wish: str) -> Published:
    """Return the averages, or raise and say why there are none.

    Args:
        optimizer: the optimizer.
        wish: what needs them, for the message.
    """
    settings = optimizer.param_groups[0][KEY]
    window = optimizer._window
    if window is None:
        raise NoAverages(f"{wish} needs averages, and this optimizer was made with {optimizer.advice}")
    t = int(settings["step"])
    if "d" in settings.get("auto", ()):
        raise NoAverages(f'{wish}: lr="auto" is still finding the learning rate, and averages begin after it has')
    if t == 0:
        raise NoAverages(f"{wish}: nothing is averaged before the first step()")
    if t <= window.start:
        raise NoAverages(f"{wish}: the averages begin after {window.start} steps, and {t} were taken")
    turn = window.turn(t)
    prefix = "" if turn.complete else "last_"
    if prefix and t < window.period:
        raise NoAverages(f"{wish}: no block is complete before step() was called {window.period} times")
    keys = ("average", "gradient", "spread")
    entries = {}
    for p, entry in optimizer._entries().items():
        found = {key: entry[prefix + key] for key in keys if prefix + key in entry}
        entries[p] = found | {"since": entry["since"]}
    if not entries:  # as after loading a checkpoint without state
        raise NoAverages(f"{wish}: no parameter has averages yet, which begin with its next gradient")
    return Published(entries, turn.n)


def has_averages(optimizer: Any) -> bool:
    """Return whether there are averages to read."""
    try:
        return bool(published(optimizer, "averaged()").entries)
    except NoAverages:
        return False


def has_certificate(optimizer: Any) -> bool:
    """Return whether there is a certificate to read."""
    return optimizer.param_groups[0][KEY]["certificate"] and has_averages(optimizer)


def made_with(optimizer: Any) -> dict[str, Any]:
    """Return the options of the first parameter group and ours, with windows, laws and learners as objects."""
    group = optimizer.param_groups[0]
    return group | {key: from_dict(value) for key, value in group.get(KEY, {}).items() if key != "auto"}


def progress_of(optimizer: Any) -> float:
    """Return the progress, or nan of an optimizer that has none."""
    return getattr(optimizer, "progress", math.nan)


@torch.no_grad()
def certificate(optimizer: Any, c: float) -> Certificate:
    """Return the certificate, as `Readout.certificate` says."""
    checks.positive("c", c)
    c = float(c)
    settings = optimizer.param_groups[0][KEY]
    if settings["average"] is not None and not settings["certificate"]:
        raise NoAverages("certificate(): this optimizer was made with certificate=False; pass certificate=True")
    entries, n = published(optimizer, "certificate()")
    ess = {since: optimizer._window.ess(n, since) for since in {entry["since"] for entry in entries.values()}}
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    sums = []
    for p, entry in entries.items():
        gradient, average = entry["gradient"], entry["average"]
        if optimizer._is_sharded:
            gradient, average = local(gradient), local(average)
        if optimizer.couples_decay and groups[p]["weight_decay"]:  # averages are linear: ḡ of F + (λ/2)‖x‖²
            sign = -1.0 if groups[p]["maximize"] else 1.0
            gradient = (sign * gradient).add_(average, alpha=float(groups[p]["weight_decay"]))
        sums.append((_square(gradient), entry["spread"]))
    values = torch.stack(
        [torch.stack([v.to(sums[0][0].device) for v in column]) for column in zip(*sums, strict=True)]
    )
    squares, spreads = (total(values, list(entries)) if optimizer._is_sharded else values).tolist()
    names = parameter_names(optimizer)
    parts = {
        names[p]: Certificate(c, math.sqrt(square), spread, ess[entry["since"]])
        for (p, entry), square, spread in zip(entries.items(), squares, spreads, strict=True)
    }
    _say_where_it_broke(optimizer, {name: part.gradient + part.spread for name, part in parts.items()})
    gradient = math.hypot(*(part.gradient for part in parts.values()))  # squares may overflow
    return Certificate(c, gradient, sum(spreads), min(ess.values()), parts)


def _say_where_it_broke(optimizer: Any, values: dict[str | int, float]) -> None:
    """Warn of a certificate that is not finite, with the same words until it is again: Python shows them once."""
    t, names = int(optimizer.param_groups[0][KEY]["step"]), [k for k, v in values.items() if not math.isfinite(v)]
    if not names:
        optimizer._finite_at, optimizer._broken = t, ""
        return
    if not optimizer._broken:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        optimizer._broken = (
            f"the certificate is not finite: an iterate or a gradient of {', '.join(map(str, names[:3]))}{more} "
            f"was not at one of the steps {optimizer._finite_at + 1} to {t} (it is known as exactly as certificates "
            "were asked for); once they are finite again, restart_averages() begins anew"
        )
    warnings.warn(optimizer._broken, stacklevel=5)


def _square(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dtype=torch.float64).square()


def parameter_names(optimizer: Any) -> dict[Any, str | int]:
    """Return the name of every parameter, given or from a trainer's model, or its index if it has none of its own."""
    names: dict[Any, str | int] = {}
    model = optimizer._model()
    known = {p: name for name, p in model.named_parameters()} if model is not None else {}
    for group in optimizer.param_groups:
        given = group.get("param_names", [known.get(p) for p in group["params"]])
        for p, name in zip(group["params"], given, strict=True):
            names[p] = len(names) if name is None or name in names.values() else name
    return names


@torch.no_grad()
def averaged_state_dict(optimizer: Any, model: nn.Module) -> dict[str, Any]:
    """Return a copy of ``model.state_dict()`` with x̄ in it, as `Readout.averaged_state_dict` says."""
    entries, _ = published(optimizer, "averaged_state_dict()")
    kept, copies = model.state_dict(keep_vars=True), {}
    for name, value in kept.items():
        copies[name] = value.detach().clone() if isinstance(value, Tensor) else value
        if isinstance(value, Tensor) and value in entries:
            copy_average_(copies[name], entries[value]["average"])
    return copies


def copy_average_(x: Any, average: Any) -> None:
    """Copy x̄ into a tensor of the parameter's shape, dtype and placement."""
    if is_sharded(x):
        x, average = x.to_local(), local(average)
    real(x).copy_(average)
