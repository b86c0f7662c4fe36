"""Windows, laws and learners as plain dictionaries, which is how parameter groups hold them.

Checkpoints are then plain data that ``torch.load(weights_only=True)`` reads. Saving, loading, copying and pickling
convert nothing: the objects are rebuilt from the dictionaries when they are needed.
"""

from dataclasses import fields, is_dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

from o2nc import laws, learners, scaling
from o2nc.averages import windows

KEY = "o2nc"  # our key in the first parameter group and in every parameter's state
AVERAGED = "averaged"  # a setting while a step is under way; if it fails, x_t is not averaged twice
_NAME = "class"  # a keyword, so no field has this name


def _key(cls: type) -> str:
    """Return the name that a class is stored under: its own if it is o2nc's, else with its module."""
    own = cls.__module__.partition(".")[0] == "o2nc"
    return cls.__name__ if own else f"{cls.__module__}.{cls.__qualname__}"


_KNOWN: dict[str, type] = {
    name: cls
    for module in (windows, scaling, laws, learners)
    for name, cls in vars(module).items()
    if isinstance(cls, type) and is_dataclass(cls)
}


def to_dict(value: Any) -> Any:
    """Return a dataclass as a dictionary of its name and fields, a number as Python's own, anything else as it is."""
    if isinstance(value, Real) and not isinstance(value, bool):  # NumPy's are not read with weights_only=True
        return int(value) if isinstance(value, Integral) else float(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    _KNOWN[_key(type(value))] = type(value)  # classes of the user's, too
    members = {field.name: to_dict(getattr(value, field.name)) for field in fields(value) if field.init}
    return {_NAME: _key(type(value)), **members}


def from_dict(value: Any) -> Any:
    """Return the object that `to_dict` was given, the same one for equal dictionaries.

    Raises:
        ValueError: the class is not known, or has no such fields.
    """
    if not isinstance(value, dict):
        return value
    cls = _KNOWN.get(value.get(_NAME, ""))
    if cls is None:
        raise ValueError(
            f"the class {value.get(_NAME)!r} is not known: construct an optimizer with it first, then load"
        )
    members = tuple((k, from_dict(v) if isinstance(v, dict) else v) for k, v in value.items() if k != _NAME)
    try:
        return _build(cls, members)
    except TypeError as error:
        raise ValueError(f"{cls.__name__} cannot be built from {value!r}: {error}") from error


@lru_cache(maxsize=256)
def _build(cls: type, members: tuple[tuple[str, Any], ...]) -> Any:
    return cls(**dict(members))
