"""A check, the two sides that it finds, and the result: whether they are as they should be."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from o2nc_experiments.console import one_thread

Z = 5.0  # a mean of random runs may differ by this many standard errors, no more
ROUNDING = 1e-9  # relative, forgiven in every comparison


@dataclass(frozen=True)
class Finding:
    """The two sides of a statement as they were found, and whether what belongs to it holds as well."""

    measured: str  # what was measured, in one line
    left: float  # the left side, at the worst case found
    right: float  # the right side there
    relation: str = "<="  # how the statement relates them: "<=", "<", ">=" or "=="
    # whether everything else that the check asks for holds: of a statement its tightness, of an erratum the
    # corrected form
    also: bool = True
    tolerance: float = 0.0  # by how much the two sides of an equation may differ

    @property
    def slack(self) -> float:
        """How well the relation is fulfilled, 1 being the border.

        right/left for "<=" and "<", left/right for ">=", tolerance/|left − right| for "==".
        """
        if self.relation == "==":
            return _ratio(self.tolerance, abs(self.left - self.right))
        return _ratio(self.left, self.right) if self.relation == ">=" else _ratio(self.right, self.left)

    @property
    def holds(self) -> bool:
        """Whether the two sides are related as stated, up to rounding."""
        largest = max(abs(self.left), abs(self.right))
        rounding = ROUNDING * largest if math.isfinite(largest) else 0.0
        if self.relation == "==":
            return abs(self.left - self.right) <= max(self.tolerance, rounding)
        if self.relation == ">=":
            return self.left >= self.right - rounding
        return self.left <= self.right + rounding if self.relation == "<=" else self.left < self.right - rounding


@dataclass(frozen=True)
class Result:
    """What became of a check: a line of every table."""

    key: str  # the check's short name
    statement: str  # what is claimed
    measured: str  # as in `Finding`, like the next four; of an erratum, of its printed form
    left: float  # the left side
    right: float  # the right side
    relation: str  # "<=", "<", ">=" or "=="
    slack: float  # how well the relation is fulfilled, 1 being the border
    # right or wrong. A statement is right if it holds; an erratum if the printed form fails and the corrected one
    # holds
    verdict: bool
    seconds: float  # how long it took


@dataclass(frozen=True)
class Check:
    """A statement of the paper or one of its errata, and how it is checked."""

    key: str  # its short name
    statement: str  # what is claimed, in a few symbols; of an erratum, what is printed
    # makes the finding from a seed and a scale, by which the amount of work is multiplied
    measure: Callable[[int, float], Finding]
    erratum: bool = False  # whether the claim should fail
    longest: ClassVar[int] = 46  # characters of a statement, so that the table fits

    def run(self, seed: int = 0, scale: float = 1.0) -> Result:
        """Measure, and judge."""
        begin = time.perf_counter()
        with one_thread():
            found = self.measure(seed, scale)
        seconds = time.perf_counter() - begin
        left, right, slack = float(found.left), float(found.right), float(found.slack)
        numbers = not (math.isnan(left) or math.isnan(right))
        verdict = numbers and bool(found.also) and bool(found.holds) != self.erratum
        return Result(self.key, self.statement, found.measured, left, right, found.relation, slack, verdict, seconds)


def statement(key: str, text: str) -> Callable[[Callable[[int, float], Finding]], Check]:
    """Make a check of a function that measures a statement."""
    return lambda measure: Check(key, text, measure)


def erratum(key: str, text: str) -> Callable[[Callable[[int, float], Finding]], Check]:
    """Make a check of a function that measures a form that is printed and wrong."""
    return lambda measure: Check(key, text, measure, erratum=True)


def mean_error(samples: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error."""
    n = len(samples)
    mean = math.fsum(samples) / n
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in samples) / (n - 1) / n)


def greatest(*values: Any, key: Callable[[Any], Any] = lambda v: v) -> Any:
    """Return the largest, as ``max`` does; but what is not a number comes before all: it must not be lost."""
    return _pick(max, values, key)


def least_of(*values: Any, key: Callable[[Any], Any] = lambda v: v) -> Any:
    """Return the smallest, as ``min`` does; what is not a number comes before all."""
    return _pick(min, values, key)


def _pick(choose: Callable[..., Any], values: tuple[Any, ...], key: Callable[[Any], Any]) -> Any:
    listed = list(values[0]) if len(values) == 1 else values
    strange = [v for v in listed if _is_nan(key(v))]
    return strange[0] if strange else choose(listed, key=key)


def _is_nan(value: Any) -> bool:
    return any(map(_is_nan, value)) if isinstance(value, tuple) else math.isnan(value)


def enough(number: int, scale: float, least: int = 2) -> int:
    """Return the scaled number of repetitions."""
    return max(least, round(number * scale))


def _ratio(a: float, b: float) -> float:
    if b == 0:
        return math.inf if a >= 0 else -math.inf
    return a / b
