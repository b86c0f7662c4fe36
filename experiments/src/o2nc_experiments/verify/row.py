"""A row: a function that measures the two sides of a statement where they come closest to contradicting it.

A statement is right if its two sides are related as claimed and ``also`` holds. A row named erratum-* has the printed
form, which should fail, and ``also`` says whether the corrected form holds.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Z = 5.0  # a mean of random runs may differ by this many standard errors, no more
ROUNDING = 1e-9  # relative, forgiven in every comparison


class Sides(NamedTuple):
    """What a row found."""

    measured: str  # what was measured, in one line
    left: float  # the left side, at the worst case found
    right: float  # the right side there
    relation: str = "<="  # how the statement relates them: "<=", ">=" or "=="
    also: bool = True  # whether all else holds: of a statement its tightness, of an erratum the corrected form
    tolerance: float = 0.0  # by how much the two sides of an equation may differ

    @property
    def holds(self) -> bool:
        """Whether the two sides are related as stated, up to rounding."""
        largest = max(abs(self.left), abs(self.right))
        rounding = ROUNDING * largest if math.isfinite(largest) else 0.0
        if self.relation == "==":
            return abs(self.left - self.right) <= max(self.tolerance, rounding)
        low, high = (self.left, self.right) if self.relation == "<=" else (self.right, self.left)
        return low <= high + rounding

    @property
    def slack(self) -> float:
        """How well the relation is met, 1 at the border: right/left, left/right, or tolerance/|left − right|."""
        pairs = {"<=": (self.right, self.left), ">=": (self.left, self.right)}
        above, below = pairs.get(self.relation, (self.tolerance, abs(self.left - self.right)))
        return above / below if below else math.copysign(math.inf, above)


class Result(NamedTuple):
    """A line of the table."""

    key: str
    claim: str
    left: float
    relation: str
    right: float
    slack: float
    verdict: bool
    seconds: float
    measured: str


Measure = Callable[[int, float], Sides]
ROWS: dict[str, tuple[str, Measure]] = {}  # by key: the claim, and what measures it


def row(key: str, claim: str) -> Callable[[Measure], Measure]:
    """Register a function of a seed and a scale, by which the amount of work is multiplied."""

    def register(measure: Measure) -> Measure:
        ROWS[key] = claim, measure
        return measure

    return register


def check(key: str, seed: int = 0, scale: float = 1.0) -> Result:
    """Measure one row, and judge it; what is not a number is wrong."""
    claim, measure = ROWS[key]
    begin = time.perf_counter()
    found = measure(seed, scale)
    left, right = float(found.left), float(found.right)
    verdict = not math.isnan(left + right) and bool(found.also) and bool(found.holds) != key.startswith("erratum")
    seconds = time.perf_counter() - begin
    return Result(key, claim, left, found.relation, right, float(found.slack), verdict, seconds, found.measured)


def mean_error(samples: Sequence[float] | Array) -> tuple[float, float]:
    """Return the mean and its standard error."""
    return float(np.mean(samples)), float(np.std(samples, ddof=1) / math.sqrt(len(samples)))


def agree(a: Sequence[float] | Array, b: Sequence[float] | Array) -> bool:
    """Return whether two means over the same runs differ by at most `Z` standard errors."""
    mean, error = mean_error(np.subtract(a, b))
    return abs(mean) <= Z * error


def worst(found: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the tuple whose first number is greatest; nan counts as the greatest."""
    return max(found, key=lambda numbers: math.inf if math.isnan(numbers[0]) else numbers[0])


def enough(number: int, scale: float, least: int = 2) -> int:
    """Return the scaled number of repetitions."""
    return max(least, round(number * scale))


def discounted(rows: Array, beta: float) -> Array:
    """Return Σ_{t<=n} β^{n−t} row_t for every n; the steps are the last axis but one."""
    sums = np.array(rows)
    for n in range(1, rows.shape[-2]):
        sums[..., n, :] += beta * sums[..., n - 1, :]
    return sums
