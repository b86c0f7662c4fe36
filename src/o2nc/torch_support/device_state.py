"""State while kernels run, and without them.

While the fused step runs, counters and some numbers of the state are tensors on the device. Checkpoints, and steps of
another kind, have plain numbers in their place, and no state that only steps called off by a GradScaler have seen.
"""

from typing import Any

import torch
from torch import Tensor

from o2nc import averages
from o2nc.state import Fields, Kind
from o2nc.step import COUNTERS
from o2nc.vector import as_numbers

# ``fresh`` in a parameter's state says what of it no step has touched yet: its averages, its rule's state, or both
FRESH_AVERAGES, FRESH_RULE, BOTH = 1, 2, 3


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
