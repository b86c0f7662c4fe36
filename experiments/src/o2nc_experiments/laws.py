"""Laws of s by name, as commands and arms take them: exponential, jitter(0.25), uniform(0, 2), gamma(shape=16)."""

import ast
import math
import re
from collections.abc import Mapping
from inspect import signature
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from o2nc import Law

LAWS = ("exponential", "uniform", "jitter", "weibull", "gamma")  # the library's classes, in small letters


def parse(text: str, usual: Mapping[str, Mapping[str, float]] = MappingProxyType({})) -> "Law":
    """Return the law of this name; of one that is ``usual`` the numbers may be left out.

    Raises:
        ValueError: it cannot be understood; the text says what can.

    Example:
        >>> parse("gamma(16)"), parse("jitter(width=0.25)")
        (Gamma(shape=16, scale=0.0625, weighted=False), Jitter(width=0.25, weighted=False))
    """
    import o2nc

    found = re.fullmatch(r"([a-z]+)(\([^()]*\))?", "".join(text.split()))
    if found is None or found[1] not in LAWS:
        raise ValueError(f"the law is one of {', '.join(LAWS)}, with numbers as in gamma(16), got {text[:40]!r}")
    name, (positional, named) = found[1], numbers(found[2], (int, float, bool))
    kind = getattr(o2nc, name.capitalize())
    takes = list(signature(kind).parameters)
    if unknown := named.keys() - set(takes):
        raise ValueError(f"{name} has no {', '.join(unknown)}, but {', '.join(takes)}")
    known = {key: value for key, value in usual.get(name, {}).items() if key not in takes[: len(positional)]}
    try:
        signature(kind).bind(*positional, **known | named)
    except TypeError:
        twice = len(positional) > len(takes) or named.keys() & set(takes[: len(positional)])
        more = "each once" if twice else f"got {found[2] or 'none'}"
        raise ValueError(f"{name} takes {', '.join(takes)}, {more}") from None
    try:
        return kind(*positional, **known | named)
    except TypeError as error:
        raise ValueError(f"law {text!r}: {error}") from None


def numbers(text: str | None, kinds: tuple[type, ...] = (int, float)) -> tuple[list[float], dict[str, float]]:
    """Return the numbers in parentheses, of these types, and those with names.

    Example:
        >>> numbers("(1, 2.5, lr=1e-3)")
        ([1, 2.5], {'lr': 0.001})
    """
    try:
        call = ast.parse(f"f{text or '()'}", mode="eval").body
        assert isinstance(call, ast.Call)
        positional: list[Any] = [ast.literal_eval(value) for value in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        given = [*positional, *named.values()]
        known = all(keyword.arg for keyword in call.keywords) and len(named) == len(call.keywords)
        if not known or not all(type(n) in kinds and math.isfinite(n) for n in given):
            raise ValueError
    except (SyntaxError, ValueError, OverflowError, AssertionError):
        raise ValueError(f"{text}: options are finite numbers, (key=value, …), each once") from None
    return positional, named
