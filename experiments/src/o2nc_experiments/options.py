"""Options of a command, declared once: the fields of a dataclass, which typer reads, or argparse where it is missing.

@dataclass(frozen=True)
class Options:
    seeds: int = option(3, "Trials of every arm.", min=1)
    arm: tuple[str, ...] = option((), "An optimizer. May be repeated.")
"""

import argparse
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import Field, field, fields
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

T = TypeVar("T")

LARGEST_SEED = 2**32  # torch takes no larger ones than 2^64, people no longer ones
DEVICE = "cpu, cuda or cuda:N; the GPU if there is one."
FIRST_SEED = "First of the consecutive seeds."
QUIET = "Print nothing but errors."
SAVE_EVERY = "Seconds between checkpoints."


def option(default: Any, text: str, *names: str, **how: Any) -> Any:
    """Declare an option: its default, what it is, names other than the field's, and how typer is to take it.

    One that is False is a flag; one that is True can be denied. ``()`` may be repeated. A folder need not be there.
    """
    return field(default=default, metadata={"names": names, "help": text, **how})


def taking(kind: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Make a function of such a dataclass one of typer's commands, with all its options."""
    import typer

    from o2nc_experiments.console import folder_name

    def parameter(one: Field[Any], hint: Any) -> Parameter:
        how = dict(one.metadata)
        names = how.pop("names") or (_name(one) + (f"/--no-{one.name}" if one.default is True else ""),)
        if how.pop("folder", False):
            how |= {"parser": folder_name, "metavar": "<dir>"}
        default, wanted = (None, list[str] | None) if one.default == () else (one.default, hint)
        annotation: Any = Annotated[wanted, typer.Option(*names, **how)]
        return Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def decorate(run: Callable[[T], None]) -> Callable[..., None]:
        @wraps(run)
        def command(**given: Any) -> None:
            run(_made(kind, given))

        hints = get_type_hints(kind)
        parameters = [parameter(one, hints[one.name]) for one in fields(kind)]  # type: ignore[arg-type]
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return decorate


def read(kind: type[T], program: str, description: str) -> T:
    """Return the options of this process's command line, by argparse."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    hints = get_type_hints(kind)
    for one in fields(kind):  # type: ignore[arg-type]
        names, text = one.metadata["names"] or (_name(one),), one.metadata["help"].replace("%", "%%")
        how: dict[str, Any] = {"default": one.default, "dest": one.name, "help": text}
        if isinstance(one.default, bool):
            how["action"] = argparse.BooleanOptionalAction
        elif one.default == ():
            how |= {"action": "append", "default": None}
        else:
            how["type"] = next(k for k in (Path, int, float, str) if hints[one.name] in (k, k | None))
        parser.add_argument(*names, **how)
    return _made(kind, vars(parser.parse_args()))


def written(program: str, options: Any, *, always: Sequence[str] = (), never: Sequence[str] = ()) -> str:
    """Return the command line of the options that are not the usual ones."""
    parts = [program]
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name in never or (value == one.default and one.name not in always):
            continue
        if isinstance(value, bool):
            parts.append(_name(one) if value else f"--no-{one.name}")
            continue
        values = value if isinstance(value, tuple | list) else [value]
        parts += [f"{_name(one)} {shlex.quote(str(v))}" for v in values]
    return " ".join(parts)


def _name(one: Field[Any]) -> str:
    return f"--{one.name.replace('_', '-')}"


def _made(kind: type[T], given: dict[str, Any]) -> T:
    many = {one.name for one in fields(kind) if one.default == ()}  # type: ignore[arg-type]
    return kind(**{name: tuple(value or ()) if name in many else value for name, value in given.items()})


def read_whole(name: str, text: str | None, least: int) -> tuple[int, ...]:
    """Return whole numbers that stand with commas between them."""
    if text is None:
        return ()
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < least or max(found) > 2**31:
        raise ValueError(f"{name} takes whole numbers >= {least} with commas between, got {text!r}")
    return found


def read_sweep(text: str | None) -> tuple[tuple[float, ...], bool]:
    """Return the numbers after lr=, and whether they are multiples."""
    if text is None:
        return (), False
    key, _, values = text.replace(" ", "").partition("=")
    each = values.split(",")
    relative = all(value.startswith("x") for value in each)
    try:
        found = tuple(float(value.removeprefix("x") if relative else value) for value in each)
    except ValueError:
        found = ()
    if key != "lr" or not found or not all(0 < value < float("inf") for value in found):
        raise ValueError(
            "--sweep takes lr=VALUE,VALUE,… or, as multiples of every arm's own lr, lr=xVALUE,xVALUE,…; "
            f"other numbers are part of an arm; got {text!r}"
        )
    return found, relative


def check_number(
    name: str, value: float, allowed: str = "a finite number >= 0", within: Callable[[float], bool] = lambda v: True
) -> None:
    """Refuse a number unless it is finite, not negative, and within what is allowed: ValueError."""
    if isinstance(value, bool) or not (math.isfinite(value) and value >= 0 and within(value)):
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
