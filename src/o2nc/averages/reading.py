"""Reads an optimizer's averages, or says why there are none yet; changes nothing."""

from typing import Any

from o2nc.averages.update import AVERAGES, Entry
from o2nc.persist.plain import KEY, from_dict


class NoAverages(RuntimeError, AttributeError):
    """There are no averages to read; as an AttributeError, so that ``hasattr(opt, "progress")`` is False."""


def entries_of(optimizer: Any) -> dict[Any, Entry]:
    """Return ``state[p]["o2nc"]`` of all parameters that have averages."""
    params = (p for group in optimizer.param_groups for p in group["params"])
    found = {p: optimizer.state.get(p, {}).get(KEY, {}) for p in params}
    return {p: entry for p, entry in found.items() if "average" in entry}


def readable(optimizer: Any, wish: str) -> tuple[dict[Any, Entry], int]:
    """Return the last complete averages by parameter, and how many iterates they are made of.

    If there are none it raises `NoAverages`, with the reason and with ``wish``, the call that needs them.
    """
    settings = optimizer.param_groups[0][KEY]
    window = optimizer._window
    if window is None:
        raise NoAverages(f"{wish} needs averages, and this optimizer was made with {optimizer.advice}")
    t = int(settings["step"])
    if t == 0:
        raise NoAverages(f"{wish}: nothing is averaged before the first step()")
    if t <= window.start:
        raise NoAverages(f"{wish}: the averages begin after {window.start} steps, and {t} were taken")
    turn = window.turn(t)
    prefix = "" if turn.complete else "last_"
    if prefix and t < window.period:
        raise NoAverages(f"{wish}: no block is complete before step() was called {window.period} times")
    entries = {}
    for p, entry in entries_of(optimizer).items():
        found = {key: entry[prefix + key] for key in AVERAGES if prefix + key in entry}
        entries[p] = found | {"since": entry["since"]}
    if not entries:  # as after loading a checkpoint without state
        raise NoAverages(f"{wish}: no parameter has averages yet, which begin with its next gradient")
    return entries, turn.n


def has_averages(optimizer: Any) -> bool:
    """Return whether there are averages to read."""
    try:
        return bool(readable(optimizer, "averaged()"))
    except NoAverages:
        return False


def has_certificate(optimizer: Any) -> bool:
    """Return whether there is a certificate to read."""
    return optimizer.param_groups[0][KEY]["certificate"] and has_averages(optimizer)


def decays_of(optimizer: Any) -> dict[Any, float]:
    """Return for every parameter the λ for which g + λx is the gradient of F with its weight decay.

    It is 0 where weight decay is decoupled, as AdamW's, and negative where F is maximized.
    """
    decays: dict[Any, float] = {}
    for group in optimizer.param_groups:
        is_coupled = optimizer.couples_decay and not group.get("decoupled_weight_decay")  # NAdam's option, say
        decay = float(group["weight_decay"]) if is_coupled else 0.0
        decays |= dict.fromkeys(group["params"], -decay if group.get("maximize") else decay)
    return decays


def made_with(optimizer: Any) -> dict[str, Any]:
    """Return the options of the first parameter group and ours, with window, law and learner as objects."""
    group = optimizer.param_groups[0]
    return group | {key: from_dict(value) for key, value in group.get(KEY, {}).items() if key != "auto"}


def parameter_names(optimizer: Any) -> dict[Any, str | int]:
    """Return each parameter's name, from the optimizer or a trainer's model, or else its index."""
    names: dict[Any, str | int] = {}
    model, taken = optimizer._model(), {None}
    known = {p: name for name, p in model.named_parameters()} if model is not None else {}
    for group in optimizer.param_groups:
        given = group.get("param_names", [known.get(p) for p in group["params"]])
        for p, name in zip(group["params"], given, strict=True):
            names[p] = len(names) if name in taken else name
            taken.add(name)
    return names
