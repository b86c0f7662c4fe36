"""Parameter groups: what all of them have in common, also one that is added late, and what none may hope for."""

from typing import Any

from torch import Tensor

from o2nc import checks


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
