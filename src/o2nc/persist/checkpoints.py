"""Checkpoints: torch's own, with one dictionary of ours in the first group and one in every parameter's state.

Saving is torch's own. Loading adds three things: our tensors keep their dtype and device (torch would cast them to
the parameter's), checkpoints of another kind are refused, and settings that differ from the optimizer's are taken
over with a warning.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.averages.update import AVERAGES
from o2nc.persist.plain import AVERAGED, KEY, from_dict
from o2nc.persist.shards import SUMS, assemble, is_first_share
from o2nc.vector import is_sharded, local, total

_COUNTERS = frozenset(("step", "pending"))
_TRANSIENT = frozenset(("auto", AVERAGED))  # settings that exist during some steps only


def saved(optimizer: Any, by_torch: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return torch's state_dict; entries of sharded parameters are DTensors, and sums are over all processes."""
    if not optimizer._is_sharded:
        return by_torch()
    params = [p for group in optimizer.param_groups for p in group["params"]]

    def make_whole(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        states = {i: _whole(params[i], state) for i, state in state_dict["state"].items()}
        return {**state_dict, "state": states}

    hook = optimizer.register_state_dict_post_hook(make_whole, prepend=True)  # before the user's hooks
    try:
        return by_torch()
    finally:
        hook.remove()


def _whole(p: Any, state: dict[str, Any]) -> dict[str, Any]:
    if KEY not in state or not is_sharded(p):
        return state
    shard, entry = p.to_local(), dict(state[KEY])
    for key, value in entry.items():
        if key in SUMS:
            entry[key] = total(value.reshape(1), [p]).reshape(())
        elif isinstance(value, Tensor) and value.dim() and value.shape == shard.shape:
            entry[key] = assemble(p, value.to(shard.device))
    return {**state, KEY: entry}


def load(optimizer: Any, state_dict: dict[str, Any], by_torch: Callable[[dict[str, Any]], None]) -> None:
    """Load a state_dict as `Averaged.load_state_dict` says; ``by_torch`` is torch's own function."""
    entries: dict[Any, dict[str, Any]] = {}
    messages: list[str] = []

    def take_out(_: Any, loaded: dict[str, Any]) -> dict[str, Any]:
        """Take our entries out before torch can cast them."""
        groups = [dict(group) for group in loaded["param_groups"]]
        _refuse_other_kinds(optimizer, groups)
        if groups:
            groups[0][KEY] = _settings_to_load(optimizer, groups[0].get(KEY), messages)
        for group, mine in zip(groups, optimizer.param_groups, strict=False):
            if "fused" in mine:  # an implementation, not a hyperparameter: ours stays
                group["fused"] = mine["fused"]
        ids = [i for group in groups for i in group["params"]]
        strangers = loaded["state"].keys() - {*ids}
        if strangers:
            raise ValueError(f"the checkpoint has state of parameters that are in none of its groups: {[*strangers]}")
        states = {i: dict(state) for i, state in loaded["state"].items()}
        _refuse_other_state(optimizer, states)
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for i, p in zip(ids, params, strict=False):  # torch says itself when there are more of one
            entry = states.get(i, {}).pop(KEY, None)
            if entry is not None:
                entries[p] = _own_entry(optimizer, i, p, entry, groups[0][KEY])
        return {**loaded, "state": states, "param_groups": groups}

    def put_back(_: Any) -> None:
        for p, entry in entries.items():
            optimizer.state[p][KEY] = entry

    # last before torch loads and first after it, so that hooks of the user see everything
    was_warming_up = "auto" in optimizer.param_groups[0][KEY]
    before = optimizer.register_load_state_dict_pre_hook(take_out)
    after = optimizer.register_load_state_dict_post_hook(put_back, prepend=True)
    try:
        by_torch(state_dict)
    finally:
        before.remove()
        after.remove()
    if was_warming_up:
        optimizer.defaults["lr"] = optimizer.param_groups[0]["lr"]  # groups that are added take it
    for message in messages:
        warnings.warn(message, stacklevel=3)


def _refuse_other_kinds(optimizer: Any, groups: list[dict[str, Any]]) -> None:
    """Raise if a checkpoint's groups lack a number that this optimizer has as an option, or one that it lacks."""
    name = type(optimizer).__name__
    numbers = [k for k, v in optimizer.defaults.items() if isinstance(v, int | float | tuple) and type(v) is not bool]
    missing = [key for key in numbers if any(key not in group for group in groups)]
    if missing:
        raise ValueError(f"the checkpoint is not one of {name}: its groups lack {missing}")
    for group in groups:
        for key in optimizer.unsupported_keys & group.keys():
            if group[key]:
                raise ValueError(f"the checkpoint is not one of {name}: its groups have {key}={group[key]!r}")
        if isinstance(group.get("lr"), int | float):
            checks.non_negative("lr", group["lr"])


def _refuse_other_state(optimizer: Any, states: dict[Any, dict[str, Any]]) -> None:
    """Raise if a checkpoint has state that none of this optimizer's steps creates, as NAdam's beside Adam's."""
    unknown = {key for state in states.values() for key in state} - {*optimizer.state_keys, KEY}
    is_known = optimizer.state_keys and type(optimizer).__module__.startswith("o2nc.")  # a subclass may have more
    if unknown and is_known:
        name = type(optimizer).__name__
        raise ValueError(f"the checkpoint is not one of {name}: its state has {sorted(map(str, unknown))}")


def _settings_to_load(optimizer: Any, theirs: dict[str, Any] | None, messages: list[str]) -> dict[str, Any]:
    """Return the settings to continue with: the checkpoint's, or ours where it has none."""
    ours, name = optimizer.param_groups[0][KEY], type(optimizer).__name__
    # the checkpoint decides whether lr is still warming up, and whether a step was cut short
    ours = {key: value for key, value in ours.items() if key not in _TRANSIENT}
    if theirs is None and "learner" not in ours:  # a checkpoint of torch's own optimizer
        return ours | {key: ours[key].new_zeros((), device="cpu") for key in _COUNTERS & ours.keys()}
    if theirs is None or theirs.keys() - _TRANSIENT != ours.keys():
        raise ValueError(f"the checkpoint is not one of {name}: its groups have other entries under {KEY!r}")
    theirs = theirs | {key: theirs[key].detach().cpu().clone() for key in _COUNTERS & theirs.keys()}
    _check(theirs)
    if theirs["average"] is None and ours["average"] is not None:
        window = optimizer._window
        messages.append(f"the checkpoint has no averages: those of average={window!r} begin with the next step")
        theirs |= {key: ours[key] for key in ("average", "certificate", "offload")}
        if "start" in ours["average"]:
            theirs["average"] = ours["average"] | {"start": ours["average"]["start"] + int(theirs["step"])}
        return theirs
    changed = [key for key in ours if key not in _COUNTERS and theirs[key] != ours[key]]
    if changed:
        replaced = (f"{key}={from_dict(theirs[key])!r} (made with {from_dict(ours[key])!r})" for key in changed)
        messages.append(
            f"the checkpoint changes this {name}, which goes on with {', '.join(replaced)}: construct it with the "
            "checkpoint's values if that is meant"
        )
    return theirs


def _check(settings: dict[str, Any]) -> None:
    """Raise for values that the constructors would refuse."""
    for key in _COUNTERS & settings.keys():
        checks.integer(key, settings[key].item(), 0)
    checks.integer("seed", settings["seed"], 0)
    checks.flag("certificate", settings["certificate"])
    checks.flag("offload", settings["offload"])
    for key, value in settings.get("auto", {}).items():
        checks.non_negative(f'"auto" of the checkpoint: {key}', value)
    for key, member in (("average", "gamma"), ("scaling", "sample"), ("learner", "update")):
        found = from_dict(settings.get(key))
        if found is not None and not hasattr(found, member):
            raise ValueError(f"the checkpoint's {key} is {found!r}")


def _refuse_other_averages(i: Any, entry: dict[str, Any], certifies: bool) -> None:
    """Raise if the averages in a parameter's entry are incomplete, or no tensors of the right kind."""
    wanted = ("average", "since", *(("gradient", "spread") if certifies else ())) if entry.keys() & AVERAGES else ()
    if missing := [key for key in wanted if key not in entry]:
        raise ValueError(f"the checkpoint is incomplete: its state of parameter {i} lacks {missing}")
    for key in wanted:
        value, allowed = entry[key], "a floating-point tensor" + " without axes" * (key == "spread")
        fits = isinstance(value, Tensor) and value.is_floating_point() and not (key == "spread" and value.dim())
        if key == "since":
            fits, allowed = isinstance(value, int) and value >= 1, "an integer >= 1"
        if not fits:
            raise ValueError(f"the checkpoint's {key} of parameter {i} must be {allowed}, got {value!r}")


def _own_entry(optimizer: Any, i: Any, p: Any, entry: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a parameter's entry, checked, with its tensors on the right devices."""
    _refuse_other_averages(i, entry, settings["average"] is not None and settings["certificate"])
    sharded = optimizer._is_sharded and is_sharded(p)
    shape, device = (p.shape if not p.is_complex() else (*p.shape, 2)), p.device
    found = {}
    for key, value in entry.items():
        if isinstance(value, Tensor):
            if key in optimizer.shaped_entries and value.shape != shape:
                raise ValueError(
                    f"the checkpoint's {key} of parameter {i} has shape {tuple(value.shape)}, "
                    f"the parameter has {tuple(shape)}: are the parameters in another order?"
                )
            if sharded and is_sharded(value):
                value = local(value.redistribute(p.device_mesh, p.placements))  # type: ignore[attr-defined]
            if sharded and key in SUMS and not is_first_share(p):
                value = torch.zeros_like(value)
            on_host = key == "output" or (settings["offload"] and key in AVERAGES)
            beside = value.dim() or key in SUMS or key == "rate"  # the parameter; else wherever it was
            value = value.detach().to("cpu" if on_host else device if beside else value.device, copy=True)
        found[key] = value
    return found
