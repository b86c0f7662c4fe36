"""A row: a function that measures the two sides of a statement where they come closest to contradicting it.

    @row("theorem-sgdm", "E‖∇F(x̄)‖_c ≤ B(N, c, F*, G, σ)")
    def theorem_sgdm(seed, scale):
        return Sides("what was measured", left, right)

A statement is right if left <= right. A row named erratum-* has the printed form, which should fail, and
``also`` says whether the corrected form holds.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Z = 5.0  # a mean of random runs may differ by this many standard errors, no more
ROUNDING = 1e-9  # relative, forgiven in every comparison
SIGNS = {"<=": "≤", ">=": "≥", "==": "="}
FAILED = {"<=": "≰", ">=": "≱", "==": "≠"}


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
        rounding = ROUNDING * max(abs(self.left), abs(self.right))
        if self.relation == "==":
            return abs(self.left - self.right) <= max(self.tolerance, rounding)
        low, high = (self.left, self.right) if self.relation == "<=" else (self.right, self.left)
        return low <= high + rounding

    @property
    def slack(self) -> float:
        """How well the relation is met, 1 at the border: right/left, left/right, or tolerance/|left − right|."""
        above, below = {
            "<=": (self.right, self.left),
            ">=": (self.left, self.right),
            "==": (self.tolerance, abs(self.left - self.right)),
        }[self.relation]
        return above / below if below else math.copysign(math.inf, above)


@dataclass(frozen=True)
class Result:
    """A line of the table."""

    key: str
    claim: str
    measured: str
    left: float
    relation: str
    right: float
    slack: float
    verdict: bool
    seconds: float

    @property
    def is_erratum(self) -> bool:
        """Whether the claim should fail."""
        return self.key.startswith("erratum")

    @property
    def words(self) -> str:
        """The verdict as a word."""
        return ("shown" if self.is_erratum else "right") if self.verdict else "WRONG"

    @property
    def sign(self) -> str:
        """The relation, struck out where an erratum shows that it fails."""
        return (FAILED if self.is_erratum and self.verdict else SIGNS)[self.relation]

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON; None stands for a number that is not finite."""
        return asdict(self)


Measure = Callable[[int, float], Sides]
ROWS: dict[str, tuple[str, Measure]] = {}  # by key: the claim, and what measures it


def row(key: str, claim: str) -> Callable[[Measure], Measure]:
    """Register a function of a seed and a scale, by which the amount of work is multiplied."""

    def register(measure: Measure) -> Measure:
        ROWS[key] = claim, measure
        return measure

    return register


def check(key: str, seed: int = 0, scale: float = 1.0) -> Result:
    """Measure one row on one thread, and judge it."""
    claim, measure = ROWS[key]
    begin, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = measure(seed, scale)
    finally:
        torch.set_num_threads(threads)
    left, right = float(found.left), float(found.right)
    numbers = not (math.isnan(left) or math.isnan(right))
    verdict = numbers and bool(found.also) and bool(found.holds) != key.startswith("erratum")
    seconds = time.perf_counter() - begin
    return Result(key, claim, found.measured, left, found.relation, right, float(found.slack), verdict, seconds)


# ---- what rows are made of


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
