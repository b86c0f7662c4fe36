"""Commands where only torch is installed: their options by argparse, and one line for whatever ends them."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from o2nc_experiments.console import INTERRUPTED, TERMINATED

T = TypeVar("T")


def read_options(kind: type[T], program: str, description: str) -> T:
    """Return the options of the command line as this dataclass, each field an option with the field's default.

    A sequence is an option that may be repeated.
    """
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    hints = get_type_hints(kind)
    for field in fields(kind):  # type: ignore[arg-type]
        name = f"--{field.name.replace('_', '-')}"
        if isinstance(field.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default)
        elif field.default == ():
            parser.add_argument(name, action="append", default=[], help="may be repeated")
        else:
            parser.add_argument(name, type=_type(hints[field.name]), default=field.default)
    given = vars(parser.parse_args())
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})


def _type(hint: Any) -> Any:
    """Return what an option is made of: ``int`` of ``int | None``."""
    return next(kind for kind in (Path, int, float, str) if hint in (kind, kind | None))


@contextmanager
def ending() -> Iterator[None]:
    """Say in one line what ends a command: Ctrl-C, SIGTERM, options and files that cannot be used."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except (OSError, ValueError) as error:
        sys.exit(str(error))
