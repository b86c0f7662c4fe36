"""What survives: parameter groups hold the factors, checkpoints hold plain data.

torch's ``Optimizer.__getstate__`` keeps only ``state``, ``param_groups`` and ``defaults``, so the law, the learner,
the seed and the step counter live in the parameter groups, the same in each. Here is seen to five things:

* the shared entries are the same in all groups, also in one that is added late;
* ``state_dict`` writes laws and learners as plain dictionaries, which ``torch.load(weights_only=True)`` reads;
* ``load_state_dict`` turns them back, and keeps what a checkpoint lacks (one of ``torch.optim.SGD``, say);
* no checkpoint changes a run without a word: see `CertifiedOptimizer.load_state_dict`;
* state keeps its dtype on loading, where torch would cast a float64 V to the parameter's dtype.

While the fused step runs, counters and some numbers of the state are tensors on the device. Checkpoints, and steps of
another kind, have plain numbers in their place, and no state that only steps called off by a GradScaler have seen.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import fields as members_of
from dataclasses import is_dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from o2nc import averages, checks, laws, learners, scaling
from o2nc.state import Fields, Kind
from o2nc.step import COUNTERS
from o2nc.torch_support.shards import distributed_runs, is_sharded, local, to_part, to_whole
from o2nc.vector import as_numbers, real

_KNOWN = {
    cls.__name__: cls
    for cls in (
        scaling.Exponential,
        laws.Uniform,
        laws.Jitter,
        laws.Weibull,
        laws.Gamma,
        averages.Polynomial,
        learners.OGD,
        learners.BallOGD,
        learners.FTRL,
        learners.AdaGrad,
        learners.BallAdaGrad,
        learners.ScaleFree,
        learners.CoinBetting,
    )
}
# ``fresh`` in a parameter's state says what of it no step has touched yet: its averages, its rule's state, or both
FRESH_AVERAGES, FRESH_RULE, BOTH = 1, 2, 3
_NAME = "__name__"  # no field can be called so
_OFFLOAD = "average_offload"
_HOW = ("average", "average_certificate", "average_progress", _OFFLOAD)  # entries that say how averages are kept
_WEIGHTED = {cls.__name__ for cls in _KNOWN.values() if any(f.name == "weighted" for f in members_of(cls))}


def encode(value: Any) -> Any:
    """Return a law or learner as a plain dictionary, a number as Python's own, anything else as it is."""
    if isinstance(value, Real) and not isinstance(value, bool):  # numpy's are not read with weights_only=True
        return int(value) if isinstance(value, Integral) else float(value)
    if is_dataclass(value) and not isinstance(value, type):
        members = {f.name: encode(getattr(value, f.name)) for f in members_of(value) if f.init}
        return {_NAME: type(value).__name__, **members}
    return value


def decode(key: str, value: Any, live: Any) -> Any:
    """Undo `encode`; ``live`` is the optimizer's own entry, whose class may be one of the user's."""
    if not isinstance(value, dict) or _NAME not in value:
        return value
    members = {k: decode(k, v, getattr(live, k, None)) for k, v in value.items() if k != _NAME}
    cls = type(live) if type(live).__name__ == value[_NAME] else _KNOWN.get(value[_NAME])
    if cls is None:
        raise ValueError(
            f"the checkpoint has {key}={value[_NAME]}(…), which o2nc does not know: "
            f"construct the optimizer with that {key} first, then load"
        )
    try:
        return cls(**members)
    except TypeError as error:
        raise ValueError(f"the checkpoint's {key} does not fit {cls.__name__}: {error}") from error


# --- while kernels run


def to_host(groups: list[dict[str, Any]], state: dict[Any, dict[str, Any]], fields: Fields) -> None:
    """Turn what is on the device back into plain numbers, in place, for a step that no kernel takes."""
    if not isinstance(groups[0].get("step"), Tensor):
        return
    counters, states = plain(groups[0], dict(state), fields)
    for group in groups:
        group.update(counters)
    for p, kept in states.items():
        if kept is None:
            del state[p]
        else:
            state[p] = kept


def plain(
    group: dict[str, Any], states: dict[Any, dict[str, Any]], fields: Fields
) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Return counters and states as they are without kernels, waiting for the device once.

    Args:
        group: a parameter group.
        states: of the parameters, by whatever key.
        fields: what the states hold.

    Returns:
        The counters of the group; the states, with None for a parameter all of whose steps so far were called off.
    """
    keys = [key for key in COUNTERS if key in group]
    numbers = ["fresh", *(key for key, field in fields.items() if field.kind in (Kind.NUMBER, Kind.COUNT))]
    entries = [(k, key) for k, state in states.items() for key in numbers if key in state and "fresh" in state]
    found = as_numbers([group[key] for key in keys] + [states[k][key] for k, key in entries])
    counters = dict(zip(keys, found, strict=False))
    counters |= {key: int(counters[key]) for key in averages.WHOLE if key in counters}
    read: dict[Any, dict[str, Any]] = {}
    for (k, key), number in zip(entries, found[len(keys) :], strict=True):
        counts = key in fields and fields[key].kind is Kind.COUNT
        read.setdefault(k, {})[key] = torch.tensor(number, dtype=torch.float32, device="cpu") if counts else number
    return counters, {k: _begun(state | read[k], fields) if k in read else state for k, state in states.items()}


def _begun(state: dict[str, Any], fields: Fields) -> dict[str, Any] | None:
    """Return of a parameter's state what a step has touched; None for nothing."""
    fresh = int(state["fresh"])
    gone = {"fresh"}
    if fresh & FRESH_AVERAGES:
        gone.update(averages.FIELDS)
    if fresh & FRESH_RULE:
        gone.update(fields.keys() - averages.FIELDS.keys())
    return {key: value for key, value in state.items() if key not in gone} if fresh != BOTH else None


# --- groups


def check_group(optimizer: Any, group: Any) -> None:
    """Refuse a group that repeats parameters, or hopes for what the optimizer does not do; share what is shared."""
    if not isinstance(group, dict):
        return  # torch says so itself
    params = group["params"]
    if not isinstance(params, Tensor | set):
        params = group["params"] = list(params)
        tensors = [p[1] if isinstance(p, tuple) else p for p in params]
        if len({id(p) for p in tensors}) != len(tensors):
            raise ValueError("params must not repeat: a parameter appears twice in one group")
    refuse_foreign(optimizer, group)
    if "lr" in group and not isinstance(group["lr"], Tensor):
        checks.non_negative("lr", group["lr"])
    adopt(optimizer, group, optimizer.param_groups[0] if optimizer.param_groups else optimizer.defaults)


def adopt(optimizer: Any, group: dict[str, Any], reference: dict[str, Any]) -> None:
    """Give a group the entries that all groups have in common; refuse one that has others."""
    for key in optimizer.shared:
        if key in reference and group.setdefault(key, reference[key]) != reference[key]:
            raise ValueError(
                f"{key} is one for all parameter groups ({reference[key]!r}), got {group[key]!r} in a group"
            )


def refuse_foreign(optimizer: Any, group: dict[str, Any]) -> None:
    """Refuse a group that hopes for what the optimizer does not do."""
    for key in optimizer.foreign & group.keys():
        if group[key]:
            raise ValueError(f"{type(optimizer).__name__} has no {key}, got {group[key]!r} in a group")


# --- saving


def saved(optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a state_dict of torch's with laws and learners as plain dictionaries, and whole state."""
    counters, states = plain(optimizer._groups[0], state_dict["state"], optimizer.fields)
    counters = {optimizer.names.get(k, k): v for k, v in counters.items()}
    groups = [{k: counters.get(k, encode(v)) for k, v in group.items()} for group in state_dict["param_groups"]]
    params = dict(enumerate(optimizer._listed))
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


# --- loading


def load(optimizer: Any, state_dict: dict[str, Any], by_torch: Any) -> None:
    """Load a state_dict as `CertifiedOptimizer.load_state_dict` says; ``by_torch`` is torch's own function."""
    saved = state_dict["param_groups"]
    groups = _groups_to_load(optimizer, saved)
    ids = [i for group in groups for i in group["params"]]
    strangers = state_dict["state"].keys() - {*ids}
    if strangers:
        raise ValueError(f"the checkpoint has state of parameters that are in none of its groups: {[*strangers]}")
    owners = dict(zip(ids, optimizer._listed, strict=False))  # torch says itself when there are more of one
    fields = optimizer.fields
    states = state_dict["state"]
    if optimizer._keeps_state:
        _refuse_incomplete(optimizer, saved, states, fields)
        guest = optimizer.is_guest
        states = {i: _from_saved(owners[i], s, fields, guest) if i in owners else s for i, s in states.items()}
        for state in states.values():
            if "average" in state and "log_decay" not in state:  # of 0.1.0's first checkpoints: none was ever absent
                state |= {"log_decay": groups[0].get("log_decay", 0.0), "joined": -math.inf}
    kept = _kept(owners, states, fields, optimizer.is_guest) if optimizer._keeps_state else []
    by_torch({**state_dict, "state": states, "param_groups": groups})
    if _OFFLOAD in optimizer.shared:  # the averages are of this
        optimizer.defaults[_OFFLOAD] = optimizer.param_groups[0][_OFFLOAD]
    for p, key, value in kept:
        place = "cpu" if key in fields and optimizer.fields[key].on_host else p.device  # as the checkpoint has it
        optimizer.state[p][key] = value.detach().to(place, copy=True)


def _groups_to_load(optimizer: Any, saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a checkpoint's groups, decoded; say what of this optimizer they change, or refuse them."""
    name, shared = type(optimizer).__name__, optimizer.shared
    missing = [key for key in optimizer.needed if any(key not in group for group in saved)]
    if missing:
        raise ValueError(f"the checkpoint is not one of {name}: its groups lack {missing}")
    own = {key: optimizer.param_groups[0][key] for key in shared}
    # a checkpoint without counters, as torch's own, begins anew
    counters = {optimizer.names.get(key, key): key for key in COUNTERS}
    begin = own | {name: 0 if key in averages.WHOLE else 0.0 for name, key in counters.items() if name in own}
    groups = [begin | {k: decode(k, v, own[k]) if k in own else v for k, v in _known(group)} for group in saved]
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
            stacklevel=5,
        )
        for group in groups:
            group |= {key: own[key] for key in _HOW if key in own}
    elif _OFFLOAD in own and saved and "average" in saved[0]:  # perhaps from before averages could be elsewhere
        for group, theirs in zip(groups, saved, strict=True):
            group[_OFFLOAD] = theirs.get(_OFFLOAD)
    changed = [key for key in shared if key not in counters and found[key] != own[key]]
    if changed:
        replaced = ", ".join(f"{key}={found[key]!r} (made with {own[key]!r})" for key in changed)
        or_else = "" if _OFFLOAD in changed else ", or set yours in param_groups after loading"
        warnings.warn(
            f"the checkpoint changes this {name}, which goes on with {replaced}: construct it with the checkpoint's "
            f"values if that is meant{or_else}",
            stacklevel=5,
        )
    for group, mine in zip(groups, optimizer.param_groups, strict=False):
        if "fused" in mine:  # how a step is carried out, not what it does; a GradScaler has asked the constructor
            group["fused"] = mine["fused"]
    return groups


def _known(group: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a checkpoint's group; a law without ``weighted`` is from when that was the default."""
    for key, value in group.items():
        if isinstance(value, dict) and value.get(_NAME) in _WEIGHTED and "weighted" not in value:
            weighted = "learner" in group  # SGD's gradients had none
            warnings.warn(
                f"the checkpoint's {key}={value[_NAME]}(…) is from before laws said whether they are weighted: "
                f"it goes on with weighted={weighted}",
                stacklevel=6,
            )
            value = value | {"weighted": weighted}
        yield key, value


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
