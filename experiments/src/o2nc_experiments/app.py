"""What o2nc's commands have beyond typer's: they name all that is missing, and flags have no type in ``--help``."""

from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class Missing(typer.BadParameter):
    """Something must be given, and is not."""

    def format_message(self) -> str:
        """Return what."""
        return f"Missing {self.message}"


class Command(TyperCommand):
    """A command; of every group of options in ``one_of`` one must be given."""

    one_of: Sequence[Sequence[str]] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        """Return options and arguments."""
        return _shown(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; where something is missing, say all that is."""
        try:
            rest = super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if not hasattr(error, "param_type"):  # a value is wrong; the class for what is missing has moved, too
                raise
            raise Missing(self._missing(ctx), ctx) from None
        if missing := self._missing(ctx):
            raise Missing(missing, ctx)
        return rest

    def _missing(self, ctx: Any) -> str:
        """Return all that is missing; what is given has been read by then, also where typer has stopped at a gap."""
        known = {param.name: param for param in self.params}
        groups = [[name] for name, param in known.items() if param.required] + [*map(list, self.one_of)]
        return ", ".join(
            " or ".join(_label(known[name]) for name in group)
            for group in groups
            if not any(_is_given(ctx, name) for name in group)
        )


class Group(TyperGroup):
    """The commands together."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options before a command."""
        return _shown(super().get_params(ctx))


def explain(error: Any) -> str:
    """Return in one line what typer refuses; it ends with where to read on, unless it is about a value."""
    text, context = error.format_message(), getattr(error, "ctx", None)
    is_value = isinstance(error, typer.BadParameter) and not isinstance(error, Missing)
    return text if is_value or context is None else f"{text.removesuffix('.')} (see {context.command_path} --help)"


def _shown(params: Sequence[Any]) -> list[Any]:
    """Return options and arguments, flags without a type: there is nothing to write after them."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return list(params)


def _label(param: Any) -> str:
    return param.opts[0] if param.param_type_name == "option" else param.metavar or param.name.upper()


def _is_given(ctx: Any, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return name in ctx.params and source is not None and source.name == "COMMANDLINE"
