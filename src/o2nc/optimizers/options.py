"""Checks of the arguments that optimizers share, and the settings that they become."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.averages.windows import as_window
from o2nc.persist.plain import to_dict
from o2nc.scaling import check_law


def new_settings(average: Any, scaling: Any, seed: int, certificate: bool, offload: bool) -> dict[str, Any]:
    """Return ``param_groups[0]["o2nc"]`` before the first step, from the arguments of `Averaged`."""
    window = as_window(average)
    check_law(scaling)
    checks.integer("seed", seed, 0)
    checks.flag("certificate", certificate)
    checks.flag("offload", offload)
    if offload and window is None:
        raise ValueError("offload=True says where averages are kept, and there are none: pass average=…")
    return {
        "step": torch.zeros((), dtype=torch.int64, device="cpu"),  # a tensor, so that a captured step can count
        "average": to_dict(window),
        "scaling": to_dict(scaling),
        "seed": int(seed),
        "certificate": certificate,
        "offload": offload,
    }


def check_options(numbers: Iterable[str], options: Mapping[str, Any]) -> None:
    """Raise if one of these options of a parameter group, or arguments of an optimizer, is no number in its range."""
    if isinstance(options.get("lr"), str):
        where = 'lr="auto" is an argument of o2nc.AdamW alone, for all groups'
        raise TypeError(f"lr must be a number or a tensor, got {options['lr']!r}; {where}")
    for name in sorted(options.keys() & {*numbers}):
        value, (allowed, within) = options[name], _ALLOWED.get(name, ("a finite number >= 0", lambda v: v >= 0))
        if name == "betas" and not (isinstance(value, tuple | list) and len(value) == 2):
            raise TypeError(f"betas must be {allowed}, got {value!r}")
        for number in value if name == "betas" else [value]:
            if not isinstance(number, Tensor):
                checks.number(name, number, allowed, within)


_ALLOWED: dict[str, tuple[str, Callable[[float], bool]]] = {
    "betas": ("two numbers in [0, 1)", lambda v: 0 <= v < 1),
    "dampening": ("a finite number", lambda v: True),
}
