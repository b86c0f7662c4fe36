"""What survives: checkpoints hold plain data, and bring a run back as it was.

torch's ``Optimizer.__getstate__`` keeps only ``state``, ``param_groups`` and ``defaults``, so the law, the learner,
the seed and the step counter live in the parameter groups, the same in each (`groups`). Here is seen to four things:

* ``state_dict`` writes laws and learners as plain dictionaries (`encoding`), and device numbers as plain ones;
* ``load_state_dict`` turns them back, and keeps what a checkpoint lacks (one of ``torch.optim.SGD``, say);
* no checkpoint changes a run without a word: see `CertifiedOptimizer.load_state_dict`;
* state keeps its dtype on loading, where torch would cast a float64 V to the parameter's dtype.
"""

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from o2nc import averages, checks, scaling
from o2nc.state import Fields, Kind
from o2nc.step import COUNTERS
from o2nc.torch_support.device_state import plain
from o2nc.torch_support.encoding import decode, encode, entries
from o2nc.torch_support.groups import refuse_foreign
from o2nc.torch_support.shards import distributed_runs, is_sharded, local, to_part, to_whole
from o2nc.vector import real

_HOW = ("average", "certificate", "progress", "offload")  # entries that say how averages are kept


# --- saving


def saved(optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state_dict of torch's with laws and learners as plain dictionaries, and whole state."""
    counters, states = plain(optimizer._groups[0], state_dict["state"], optimizer.fields)
    counters = {optimizer.names.get(k, k): v for k, v in counters.items()}
    groups = [{k: counters.get(k, encode(v)) for k, v in group.items()} for group in state_dict["param_groups"]]
    params = dict(enumerate(optimizer._all_params))
    kept = {i: state for i, state in states.items() if state is not None}
    if optimizer._keeps_state:
        kept = {i: _to_saved(optimizer, params[i], state) for i, state in kept.items()}
    return {**state_dict, "state": kept, "param_groups": groups}


def _to_saved(optimizer: Any, p: Tensor, state: dict[str, Any]) -> dict[str, Any]:
    # torch.distributed.checkpoint loads the keys that one step makes, into the tensors that are there: they must
    # be those of any checkpoint, with memory of their own. Without processes zeros need none
    fields = optimizer.fields
    late = {key: field.like for key, field in fields.items() if field.like is not None}
    if late and "average" in state:
        blank = [key for key in late if key not in state]
        for key in blank:
            like = state[late[key]]
            zeros = torch.zeros_like(like) if distributed_runs() else like.new_zeros(()).expand(like.shape)
            state = state | {key: zeros}
        state = state | {"blank": bool(blank)}
    return to_whole(p, state, optimizer._shards, fields, optimizer.is_guest) if is_sharded(p) else state


@contextmanager
def hooks_after_saving(optimizer: Any) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Give what calls the hooks of saving, which torch does not call within the ``with`` block.

    So they see, and may replace, what goes into the file.
    """
    hooks = optimizer._optimizer_state_dict_post_hooks

    def hooked(state_dict: dict[str, Any]) -> dict[str, Any]:
        for hook in hooks.values():
            state_dict = hook(optimizer, state_dict) or state_dict
        return state_dict

    try:
        optimizer._optimizer_state_dict_post_hooks = OrderedDict()
        yield hooked
    finally:
        optimizer._optimizer_state_dict_post_hooks = hooks


# --- loading


@contextmanager
def hooks_around(optimizer: Any, state_dict: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Call the hooks of loading before and after a ``with`` block, and not where torch would, within it.

    torch calls them around what it does itself; so they are around decoding and keeping dtypes, too.
    """
    before, after = optimizer._optimizer_load_state_dict_pre_hooks, optimizer._optimizer_load_state_dict_post_hooks
    state_dict = state_dict.copy()
    for hook in before.values():
        state_dict = hook(optimizer, state_dict) or state_dict
    try:
        optimizer._optimizer_load_state_dict_pre_hooks = OrderedDict()
        optimizer._optimizer_load_state_dict_post_hooks = OrderedDict()
        yield state_dict
    finally:
        optimizer._optimizer_load_state_dict_pre_hooks = before
        optimizer._optimizer_load_state_dict_post_hooks = after
    for post_hook in after.values():
        post_hook(optimizer)


def load(optimizer: Any, state_dict: dict[str, Any], by_torch: Any) -> None:
    """Load a state_dict as `CertifiedOptimizer.load_state_dict` says; ``by_torch`` is torch's own function."""
    saved = state_dict["param_groups"]
    groups = _groups_to_load(optimizer, saved)
    ids = [i for group in groups for i in group["params"]]
    strangers = state_dict["state"].keys() - {*ids}
    if strangers:
        raise ValueError(f"the checkpoint has state of parameters that are in none of its groups: {[*strangers]}")
    owners = dict(zip(ids, optimizer._all_params, strict=False))  # torch says itself when there are more of one
    states = state_dict["state"]
    # as they will be: the checkpoint's learner and averages win
    first = groups[0] if groups else optimizer.param_groups[0]
    fields, keeps = optimizer.fields_for(first), not optimizer.is_guest or first["average"] is not None
    if keeps:
        _refuse_incomplete(optimizer, saved, states, fields)
        guest = optimizer.is_guest
        states = {i: _from_saved(owners[i], s, fields, guest) if i in owners else s for i, s in states.items()}
        for state in states.values():
            if "average" in state and "log_decay" not in state:  # of 0.1.0's first checkpoints: none was ever absent
                state |= {"log_decay": groups[0].get("log_decay", 0.0), "joined": -math.inf}
    kept = _kept(owners, states, fields, optimizer.is_guest) if keeps else []
    by_torch({**state_dict, "state": states, "param_groups": groups})
    offload = optimizer.names.get("offload", "offload")
    if offload in optimizer.shared:  # the averages are of this
        optimizer.defaults[offload] = optimizer.param_groups[0][offload]
    for p, key, value in kept:
        place = "cpu" if key in fields and fields[key].on_host else p.device  # as the checkpoint has it
        optimizer.state[p][key] = value.detach().to(place, copy=True)


def _groups_to_load(optimizer: Any, saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a checkpoint's groups, decoded; say what of this optimizer they change, or refuse them."""
    name, shared = type(optimizer).__name__, optimizer.shared
    missing = [key for key in optimizer.needed if any(key not in group for group in saved)]
    if missing:
        raise ValueError(f"the checkpoint is not one of {name}: its groups lack {missing}")
    named = optimizer.names.get
    if any("scaling" in group and named("seed", "seed") not in group for group in saved):
        raise ValueError(
            f"the checkpoint is not one of {name}: its run is scaled, and its groups lack {named('seed', 'seed')!r}; "
            "one of ScaledSGDM is not one of random_scaling(SGD(…)), nor the other way round"
        )
    own = {key: optimizer.param_groups[0][key] for key in shared}
    # a checkpoint without counters, as torch's own, begins anew
    counters, offload = {named(key, key): key for key in COUNTERS}, named("offload", "offload")
    begin = own | {name: 0 if key in averages.WHOLE else 0.0 for name, key in counters.items() if name in own}
    groups = [begin | {k: decode(k, v, own[k]) if k in own else v for k, v in entries(group)} for group in saved]
    for group, theirs in zip(groups, saved, strict=True):
        if "averaged" in own and "averaged" not in theirs and group["weight_sum"]:  # of 0.1.0's first checkpoints
            group["averaged"] = group["step"]
    for group in groups:
        refuse_foreign(optimizer, group)
        _check(group, shared, {name: key for key, name in optimizer.names.items()})
    found = groups[0] if groups else own
    if own.get("average") is not None and found["average"] is None:
        warnings.warn(
            f"the checkpoint has no averages: those of average={own['average']!r} begin with the next step",
            stacklevel=4,
        )
        for group in groups:
            group |= {named(key, key): own[named(key, key)] for key in _HOW if named(key, key) in own}
    elif offload in own and saved and "average" in saved[0]:  # perhaps from before averages could be elsewhere
        for group, theirs in zip(groups, saved, strict=True):
            group[offload] = theirs.get(offload)
    changed = [key for key in shared if key not in counters and found[key] != own[key]]
    if changed:
        replaced = ", ".join(f"{key}={found[key]!r} (made with {own[key]!r})" for key in changed)
        or_else = "" if offload in changed else ", or set yours in param_groups after loading"
        warnings.warn(
            f"the checkpoint changes this {name}, which goes on with {replaced}: construct it with the checkpoint's "
            f"values if that is meant{or_else}",
            stacklevel=4,
        )
    for group, mine in zip(groups, optimizer.param_groups, strict=False):
        if "fused" in mine:  # how a step is carried out, not what it does; a GradScaler has asked the constructor
            group["fused"] = mine["fused"]
    return groups


def _check(group: dict[str, Any], shared: tuple[str, ...], names: dict[str, str]) -> None:
    """Refuse values that the constructors would refuse, too."""
    if not isinstance(group.get("lr", 0.0), Tensor):
        checks.non_negative("lr", group.get("lr", 0.0))
    for name in shared:
        key, value = names.get(name, name), group[name]
        if key in ("seed", *averages.WHOLE):
            checks.integer(key, int(value) if isinstance(value, Tensor) else value, 0)
        elif key in ("weight_sum", "weight_square_sum", "log_decay"):
            checks.non_negative(key, float(value))
        elif key == "scaling":
            scaling.check_law(value)
        elif key == "beta":
            checks.fraction(key, value)
        elif key == "average":
            averages.check_average(value)
        elif key == "output":
            averages.check_output(value, group["average"])
        elif key == "period" or (key == "offload" and value is not None):
            checks.integer(key, value, 1)


def _refuse_incomplete(optimizer: Any, groups: list[Any], states: dict[Any, Any], fields: Fields) -> None:
    """Refuse averages without what they cannot go on without."""
    averaged = {i: state for i, state in states.items() if "average" in state}
    names = (optimizer.names.get(key, key) for key in ("step", "weight_sum", "weight_square_sum"))
    counters = [name for name in names if name in optimizer.shared]
    missing = [key for key in counters if averaged and any(key not in group for group in groups)]
    if missing:
        raise ValueError(f"the checkpoint is incomplete: it has averages, and its groups lack {missing}")
    for i, state in averaged.items():
        missing = [key for key in ("spread", "progress", "rate") if key not in state]
        if any(field.like is not None for field in fields.values()) and "blank" not in state:
            missing.append("blank")
        if missing:
            raise ValueError(
                f"the checkpoint is incomplete: its state of parameter {i} lacks {missing} "
                "(torch.distributed.checkpoint drops state with flatten_optimizer_state_dict=True: load without)"
            )


def _from_saved(p: Tensor, state: dict[str, Any], fields: Fields, guest: bool) -> dict[str, Any]:
    state = to_part(p, state, fields, guest) if is_sharded(p) else state
    gone = {"blank"}
    if state.get("blank"):
        gone.update(key for key, field in fields.items() if field.like is not None)
    return {key: value for key, value in state.items() if key not in gone}


def _kept(
    owners: dict[Any, Tensor], states: dict[Any, Any], fields: Fields, guest: bool
) -> list[tuple[Tensor, str, Tensor]]:
    """Return the saved tensors that are to keep their dtype, with parameter and key; refuse other shapes."""
    kept = []
    for i, p in owners.items():
        shape = real(local(p)).shape
        for key, value in states.get(i, {}).items():
            field = fields.get(key)
            if isinstance(value, Tensor) and not (guest if field is None else field.is_torchs):
                if field is not None and field.kind is Kind.SHAPED and value.shape != shape:
                    raise ValueError(
                        f"the checkpoint's {key} of parameter {i} has shape {tuple(value.shape)}, "
                        f"the parameter has {tuple(shape)}: are the parameters in another order?"
                    )
                kept.append((p, key, value))
    return kept
