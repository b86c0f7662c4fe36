"""What is recorded of a trial: one row per epoch, all rows of all trials in one tidy table."""

import math
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One epoch of one trial; losses are means over images (None once they are not finite), accuracies lie in [0, 1].

    Attributes:
        arm: the optimizer.
        seed: of the initial weights, the order and augmentation of the images, and the scalars s.
        epoch: how many are over, from 1.
        lr: the learning rate of this epoch.
        train_loss: over the epoch's batches, each seen before its step, as augmented.
        train_accuracy: likewise.
        test_loss: on the test set, by the iterate at the epoch's end.
        test_accuracy: likewise.
        gradient: ‖ḡ‖ at the epoch's end, None if the optimizer keeps no averages; so for all that follow.
        spread: V, so that the certificate is gradient + c·spread.
        progress: the estimate of F(x_n) − F(x_0) that costs no evaluation.
        average_loss: on the test set by x̄, with BatchNorm's statistics made anew; None at most epochs.
        average_accuracy: likewise.
        seconds: from the beginning of the epoch to its end, with evaluation, while other trials may run beside it.
    """

    arm: str
    seed: int
    epoch: int
    lr: float
    train_loss: float | None
    train_accuracy: float
    test_loss: float | None
    test_accuracy: float
    gradient: float | None
    spread: float | None
    progress: float | None
    average_loss: float | None
    average_accuracy: float | None
    seconds: float


def tidy(rows: list[Row]) -> dict[str, Any]:
    """Return the rows as columns' names and lists of values, for JSON, which knows no nan: None stands for it."""
    return {"columns": list(Row._fields), "rows": [[_plain(value) for value in row] for row in rows]}


def untidy(record: dict[str, Any]) -> list[Row]:
    """Return the rows of such a record."""
    return [Row(**dict(zip(record["columns"], row, strict=True))) for row in record["rows"]]


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
