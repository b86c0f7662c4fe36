"""Image classifiers in training: what is recorded of an epoch, over trials and arms, as numbers and as a table.

Shared by CIFAR-10 and the demo's digits. An arm is a way to train, a trial one run of it with a seed, and every epoch
of every trial makes one `Epoch`. `curves` draws them, `resnet` is a model.

A trial's best is the lowest loss or the highest accuracy of all its epochs. A nan, or None, is never the best; a
trial that has nothing else makes its arm's mean nan: it is shown, not left out. Standard deviations over n trials
divide by n − 1; one trial has none.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from o2nc_experiments.record import plain
from o2nc_experiments.tables import NONE, Column, Table

PRINTED = "  paper"
HUGE = 6  # the power of ten from which on numbers are written with one
BEST = ("arm", "train loss\n×10⁻⁴", "train acc.\n%", "test loss\n×10⁻²", "test acc.\n%")
SCALES = (1e4, 1e2, 1e2, 1e2)


class Epoch(NamedTuple):
    """One epoch of one trial; losses are means over images, None if they are not finite; accuracies are in [0, 1]."""

    arm: str  # the optimizer
    seed: int  # of the initial weights, the order and augmentation of the images, and the scalars s
    epoch: int  # how many are over, from 1
    lr: float  # the learning rate of this epoch
    train_loss: float | None  # over the epoch's batches, each seen before its step, as augmented
    train_accuracy: float  # likewise
    test_loss: float | None  # on the test set, by the iterate at the epoch's end
    test_accuracy: float  # likewise
    gradient: float | None  # ‖ḡ‖ at the epoch's end, None if the optimizer keeps no averages; so for all that follow
    spread: float | None  # V, so that the certificate is gradient + c·spread
    progress: float | None  # the estimate of F(x_n) − F(x_0) that costs no evaluation
    average_loss: float | None  # on the test set by x̄, with BatchNorm's statistics made anew; None at most epochs
    average_accuracy: float | None  # likewise
    # from the beginning of the epoch to its end, with evaluation, while other trials may run beside it
    seconds: float


Arms = dict[str, list[list[Epoch]]]  # an arm's trials, a trial's epochs in order


def to_columns(epochs: Sequence[Epoch]) -> dict[str, Any]:
    """Return the columns' names and the rows of values, for JSON, which knows no nan: None stands for it."""
    return {"columns": list(Epoch._fields), "rows": plain(epochs)}


def from_columns(record: Mapping[str, Any]) -> list[Epoch]:
    """Return the epochs of such a record."""
    return [Epoch(**dict(zip(record["columns"], row, strict=True))) for row in record["rows"]]


class Mean(NamedTuple):
    """A mean over trials, and their standard deviation unless there is but one."""

    value: float
    deviation: float | None = None


class Best(NamedTuple):
    """The best iterates of an arm."""

    train_loss: Mean
    train_accuracy: Mean
    test_loss: Mean
    test_accuracy: Mean


class Last(NamedTuple):
    """The last iterates of an arm, and x̄ when it was last measured; None without averages."""

    test_accuracy: Mean
    average_accuracy: Mean | None
    certificate: Mean | None


def by_arm(epochs: Sequence[Epoch]) -> Arms:
    """Return every arm's trials, in the order in which arms occur, of seeds and of epochs."""
    found: dict[str, dict[int, list[Epoch]]] = {row.arm: {} for row in epochs}
    for row in sorted(epochs, key=lambda row: (row.seed, row.epoch)):
        found[row.arm].setdefault(row.seed, []).append(row)
    return {arm: list(trials.values()) for arm, trials in found.items()}


def best(epochs: Sequence[Epoch]) -> dict[str, Best]:
    """Return every arm's best iterates, which need not be the same for all four."""
    found = {}
    for arm, trials in by_arm(epochs).items():
        means = []
        for name in Best._fields:
            pick = np.fmin if name.endswith("loss") else np.fmax  # they pass over nan
            means.append(mean_of([float(pick.reduce([_number(getattr(row, name)) for row in t])) for t in trials]))
        found[arm] = Best(*means)
    return found


def last(epochs: Sequence[Epoch], c: float = 1.0) -> dict[str, Last]:
    """Return every arm's last iterates, with ‖ḡ‖ + cV for this c."""
    found = {}
    for arm, trials in by_arm(epochs).items():
        averages = [[r.average_accuracy for r in trial if r.average_accuracy is not None] for trial in trials]
        averaged = any(row.gradient is not None for trial in trials for row in trial)
        found[arm] = Last(
            mean_of([_number(trial[-1].test_accuracy) for trial in trials]),
            mean_of([values[-1] for values in averages if values]) if any(averages) else None,
            mean_of([_number(certificate(trial[-1], c)) for trial in trials]) if averaged else None,
        )
    return found


def certificate(row: Epoch, c: float) -> float | None:
    """Return ‖ḡ‖ + cV, None without averages."""
    return None if row.gradient is None or row.spread is None else row.gradient + c * row.spread


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def mean_of(values: Sequence[float]) -> Mean:
    """Return mean and standard deviation."""
    with np.errstate(invalid="ignore", over="ignore"):  # inf − inf, and what comes near
        return Mean(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


def written(mean: Mean | None, scale: float = 1.0, *, decimals: int = 2, digits: int = 4) -> str:
    """Write a mean to at most so many decimals and digits, its deviation to as many; what is huge as 1.2e+09."""
    if mean is None:
        return NONE
    value = scale * mean.value
    if not math.isfinite(value):
        return f"{value}"
    power = math.floor(math.log10(abs(value) or 1.0))
    form = f".{max(0, min(decimals, digits - 1 - power))}f" if power < HUGE else ".1e"
    return f"{value:{form}}" + ("" if mean.deviation is None else f" ± {scale * mean.deviation:{form}}")


def table(
    epochs: Sequence[Epoch], *, c: float = 1.0, printed: Mapping[str, Best] | None = None, notes: str = ""
) -> Table:
    """Return a row per arm, the printed figures below it: the best of the epochs, then the last with ‖ḡ‖ + cV."""
    price = "V" if c == 1 else f"{c:g}V"
    head = [*BEST, "last\ntest acc. %", "x̄\ntest acc. %", f"last\n‖ḡ‖ + {price}", "trials ×\nepochs"]
    columns = [Column(head[0], "left", wrap=True), *map(Column, head[1:])]
    found, bests, lasts = Table(columns, notes=notes, fold=len(BEST)), best(epochs), last(epochs, c)
    for arm, trials in by_arm(epochs).items():
        cells = [written(m, k, decimals=d) for m, k, d in zip(bests[arm], SCALES, (2, 1, 2, 2), strict=True)]
        cells += [written(lasts[arm].test_accuracy, 1e2), written(lasts[arm].average_accuracy, 1e2)]
        cells += [written(lasts[arm].certificate, decimals=6, digits=3)]
        least, most = (pick(trial[-1].epoch for trial in trials) for pick in (min, max))
        found.add(arm, *cells, f"{len(trials)} × {most if least == most else f'{least}–{most}'}")
        if printed and arm in printed:
            cells = [written(m, k, decimals=d) for m, k, d in zip(printed[arm], SCALES, (2, 1, 1, 1), strict=True)]
            found.add(PRINTED, *cells, *[NONE] * (len(head) - len(BEST)), style="dim")
    return found
