"""Laws, learners and windows as plain dictionaries, which ``torch.load(weights_only=True)`` reads, and back."""

import warnings
from collections.abc import Iterator
from dataclasses import fields as members_of
from dataclasses import is_dataclass
from numbers import Integral, Real
from typing import Any

from o2nc import averages, laws, learners, scaling

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
_NAME = "__name__"  # no field can be called so
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


def entries(group: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a checkpoint's group; a law without ``weighted`` is from when that was the default."""
    for key, value in group.items():
        if isinstance(value, dict) and value.get(_NAME) in _WEIGHTED and "weighted" not in value:
            weighted = "learner" in group  # SGD's gradients had none
            warnings.warn(
                f"the checkpoint's {key}={value[_NAME]}(…) is from before laws said whether they are weighted: "
                f"it goes on with weighted={weighted}",
                stacklevel=5,
            )
            value = value | {"weighted": weighted}
        yield key, value
