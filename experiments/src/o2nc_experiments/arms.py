"""The grammar of arms: optimizer × schedule × law × windows; each experiment has a vocabulary of its own.

OPTIMIZER[(key=value, …)][:SCHEDULE[NUMBER]][~LAW[(…)]][+WINDOW …]
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from o2nc import Polynomial

LONGEST = 200  # characters of a name
T = TypeVar("T")


class Parts(NamedTuple):
    """A name in its parts, as they were written; what is left out is ""."""

    optimizer: str
    options: str  # with their parentheses
    schedule: str
    number: str  # of the schedule
    law: str  # with its numbers
    windows: tuple[str, ...]
    tail: str  # law and windows


def split(text: str, grammar: str, marks: str = "~") -> Parts:
    """Return the parts of a name without spaces; a law comes after one of the marks.

    Raises:
        ValueError: it is none; the text says how it is written.

    Example:
        >>> split("adamw(lr=2e-3):wsd20~jitter(0.25)+t^4+0.99", "")[:5]
        ('adamw', '(lr=2e-3)', 'wsd', '20', 'jitter(0.25)')
    """
    law, windows = rf"(?:[{marks}](?!t\^)([a-z]+(?:\([^()]*\))?))?", r"((?:\+[^+()~:]+)*)"
    found = re.fullmatch(rf"([a-z-]+)(\([^()]*\))?(?::([a-z]+)([\d.]*))?({law}{windows})", text)
    if found is None:
        missing = text.count("(") > text.count(")")
        raise ValueError("a closing parenthesis is missing" if missing else f"write {grammar}")
    name, options, kind, number, tail, scaled, after = (part or "" for part in found.groups())
    return Parts(name, options, kind, number, scaled, tuple(dict.fromkeys(after.split("+")[1:])), tail)


def read(text: str, parse: Callable[[str], T]) -> T:
    """Return what a name says, given a parser of names without spaces; ValueError has the name and what is wrong."""
    compact = "".join(text.split())
    try:  # laws and optimizers know best what they take
        if len(compact) > LONGEST:
            raise ValueError(f"it is longer than {LONGEST} characters")
        return parse(compact)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"arm {text[:LONGEST]!r}: {error}") from None


def distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without spaces, each once."""
    return tuple(dict.fromkeys("".join(name.split()) for name in names))


def window(text: str) -> "float | Polynomial":
    """Return the library's window; ValueError if there is none.

    Example:
        >>> window("t^12"), window("0.999")
        (Polynomial(power=12.0, start=0), 0.999)
    """
    from o2nc import Polynomial

    try:
        if text.startswith("t^"):
            return Polynomial(float(text[2:]))
        beta = float(text)
    except ValueError:
        beta = math.nan
    if not 0 < beta < 1:
        raise ValueError(f"a window is t^POWER, as t^12, or a discount in (0, 1), as 0.999; got {text!r}")
    return beta


@dataclass(frozen=True)
class Schedule:
    """What the learning rate is multiplied by, after a linear warm-up.

    Attributes:
        kind: constant, linear, cosine, wsd or rsqrt.
        number: the percentage of wsd, the step of rsqrt (None: the warm-up's end).
    """

    kind: str
    number: float | None = None

    @property
    def decays(self) -> bool:
        """Whether it ends at a horizon, so that every horizon needs a run of its own."""
        return self.kind in ("linear", "cosine", "wsd")

    def factor(self, step: int, horizon: int, warmup: int) -> float:
        """Return the multiple of lr in a step, counted from 0, of a run that ends after ``horizon`` steps.

        Example:
            >>> [round(Schedule("wsd", 20).factor(t, 10, 2), 2) for t in range(10)]
            [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]
        """
        rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
        return rise * self._fall(step, horizon, warmup)

    def _fall(self, step: int, horizon: int, warmup: int) -> float:
        left = horizon - step
        match self.kind:
            case "linear":
                return min(1.0, left / (horizon - warmup))
            case "cosine":
                return 0.5 * (1 + math.cos(math.pi * max(0, step - warmup) / (horizon - warmup)))
            case "wsd":
                return min(1.0, left / (horizon - self.fork(horizon)))
            case "rsqrt":
                since = warmup if self.number is None else self.number
                return min(1.0, math.sqrt(max(since, 1) / (step + 1)))
        return 1.0

    def fork(self, horizon: int) -> int:
        """Return until which step a decay to this horizon is like no decay: the run before it can be shared."""
        if self.kind == "wsd":
            assert self.number is not None
            return horizon - max(1, round(horizon * self.number / 100))
        return 0 if self.decays else horizon

    @property
    def trunk(self) -> "Schedule | None":
        """The schedule up to the fork, without a horizon; None where there is nothing to share."""
        return None if self.kind in ("linear", "cosine") else Schedule("constant") if self.kind == "wsd" else self
