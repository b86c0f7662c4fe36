"""Argument checks: every error names the argument, its value and what is allowed."""

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor


def number(name: str, value: Any, allowed: str, within: Callable[[float], bool], *, infinite: bool = False) -> None:
    """Raise unless ``value`` is a real number, finite (unless ``infinite``), with ``within(value)``."""
    if not isinstance(value, float) and (isinstance(value, bool) or not isinstance(value, Real)):
        raise TypeError(f"{name} must be {allowed}, got {value!r} of type {type(value).__name__}")
    try:
        v = float(value)
    except OverflowError:  # an integer beyond all floats
        v = math.nan
    if math.isnan(v) or (math.isinf(v) and not infinite) or not within(v):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def positive(name: str, value: Any, *, infinite: bool = False) -> None:
    """Raise unless ``value`` is a number > 0."""
    allowed = "a number > 0, inf allowed" if infinite else "a finite number > 0"
    number(name, value, allowed, lambda v: v > 0, infinite=infinite)


def non_negative(name: str, value: Any) -> None:
    """Raise unless ``value`` is a finite number >= 0."""
    number(name, value, "a finite number >= 0", lambda v: v >= 0)


def fraction(name: str, value: Any) -> None:
    """Raise unless ``value`` lies strictly between 0 and 1."""
    number(name, value, "a number in (0, 1)", lambda v: 0 < v < 1)


def integer(name: str, value: Any, low: int) -> None:
    """Raise unless ``value`` is an integer >= ``low``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer >= {low}, got {value!r} of type {type(value).__name__}")
    if value < low:
        raise ValueError(f"{name} must be an integer >= {low}, got {value!r}")


def flag(name: str, value: Any) -> None:
    """Raise unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r} of type {type(value).__name__}")


def choice(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise unless ``value`` is one of ``allowed``."""
    if isinstance(value, bool) or value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")


def scalar(name: str, value: Any) -> float:
    """Return what the function of this name has returned, as a number; raise if it is none."""
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must return a scalar, got {value!r}") from error


def known(**values: Any) -> None:
    """Check the constants of theorems and problems, each by its name; a name that is not in the table is skipped."""
    for name, value in values.items():
        for names, check in _BY_NAME.items():
            if name in names.split():
                check(name, value)


_BY_NAME: dict[str, Callable[[str, Any], None]] = {
    "steps dimension samples pieces inputs hidden batch check n": lambda name, v: integer(name, v, 1),
    "seed": lambda name, v: integer(name, v, 0),
    "eps c gap lipschitz smoothness second_order curvature largest margin slope": positive,
    "noise": non_negative,
    "position": lambda name, v: number(name, v, "a finite number", lambda _: True),
    "beta threshold failure": fraction,
    "ramp": lambda name, v: number(name, v, "a number in [0, 1]", lambda w: 0 <= w <= 1),
    "momentum": lambda name, v: number(name, v, "a number in [0, 1)", lambda w: 0 <= w < 1),
}


def gradient(g: Tensor) -> None:
    """Raise if a gradient is sparse or not of a floating dtype."""
    if g.layout != torch.strided:
        raise RuntimeError(
            f"o2nc does not support sparse gradients (layout {g.layout}): make the layer's gradient dense, "
            "as with torch.nn.Embedding(sparse=False)"
        )
    if not (g.is_floating_point() or g.is_complex()):
        raise TypeError(f"gradients must be floating point or complex, got dtype {g.dtype}")
