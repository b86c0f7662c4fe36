"""The paper's Table 1 from a run's rows, for a terminal and as a document.

A trial's best is the lowest loss or the highest accuracy of all its epochs. A nan, or None, is never the best; a
trial that has nothing else makes its arm's mean nan: it is shown, not left out. Standard deviations over n trials
divide by n − 1; one trial has none.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from o2nc_experiments.cifar10.entry import differences
from o2nc_experiments.cifar10.fitting import Fitting, least_width
from o2nc_experiments.cifar10.rows import Row, untidy
from o2nc_experiments.cifar10.settings import unlike_paper

Arms = dict[str, list[list[Row]]]  # an arm's trials, a trial's rows in the order of its epochs

NONE, PRINTED = "–", "  paper"
HUGE = 6  # the power of ten from which on numbers are written with one


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


PAPER = {
    "sgdm": Best(Mean(9.82e-4, 0.21e-4), Mean(1.0, 0.0), Mean(0.216, 0.001), Mean(0.946, 0.001)),
    "sgdm+exponential": Best(Mean(9.55e-4, 0.37e-4), Mean(1.0, 0.0), Mean(0.220, 0.004), Mean(0.944, 0.002)),
}
HEAD = ("arm", "train loss\n×10⁻⁴", "train acc.\n%", "test loss\n×10⁻²", "test acc.\n%")
SCALES = (1e4, 1e2, 1e2, 1e2)
NOTE = (
    "train, test: the best of each trial's epochs; last: its last epoch's; x̄: its last measurement, with BatchNorm's "
    "statistics made anew; mean ± standard deviation (n − 1) over the trials; nan: a trial diverged; "
    "paper: its Table 1, 3 trials"
)


def note(settings: Mapping[str, Any]) -> str:
    """Return what stands below the table of a record with these settings."""
    others = ", ".join(f"{key} {value}" for key, value in unlike_paper(settings).items())
    return f"{NOTE}, not in this setting ({others})" if others else NOTE


def best(rows: Sequence[Row]) -> dict[str, Best]:
    """Return every arm's best iterates, which need not be the same for all four."""
    found = {}
    for arm, trials in by_arm(rows).items():
        means = []
        for name in Best._fields:
            pick = np.fmin if name.endswith("loss") else np.fmax  # they pass over nan
            means.append(_mean([float(pick.reduce([_number(getattr(row, name)) for row in t])) for t in trials]))
        found[arm] = Best(*means)
    return found


def last(rows: Sequence[Row], c: float = 1.0) -> dict[str, Last]:
    """Return every arm's last iterates, with ‖ḡ‖ + cV for this c."""
    found = {}
    for arm, trials in by_arm(rows).items():
        averages = [[r.average_accuracy for r in trial if r.average_accuracy is not None] for trial in trials]
        kept = any(row.gradient is not None for trial in trials for row in trial)
        found[arm] = Last(
            _mean([_number(trial[-1].test_accuracy) for trial in trials]),
            _mean([values[-1] for values in averages if values]) if any(averages) else None,
            _mean([_number(certificate(trial[-1], c)) for trial in trials]) if kept else None,
        )
    return found


def certificate(row: Row, c: float) -> float | None:
    """Return ‖ḡ‖ + cV, None without averages."""
    return None if row.gradient is None or row.spread is None else row.gradient + c * row.spread


def by_arm(rows: Sequence[Row]) -> Arms:
    """Return every arm's trials, in the order in which arms occur, of seeds and of epochs."""
    found: dict[str, dict[int, list[Row]]] = {row.arm: {} for row in rows}
    for row in sorted(rows, key=lambda row: (row.seed, row.epoch)):
        found[row.arm].setdefault(row.seed, []).append(row)
    return {arm: list(trials.values()) for arm, trials in found.items()}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _mean(values: Sequence[float]) -> Mean:
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


def contents(rows: Sequence[Row], c: float, printed: Mapping[str, Best] = PAPER) -> tuple[list[str], list[list[str]]]:
    """Return the head, and a row per arm with the printed one below it."""
    price = "V" if c == 1 else f"{c:g}V"
    head = [*HEAD, "last\ntest acc. %", "x̄\ntest acc. %", f"last\n‖ḡ‖ + {price}", "trials ×\nepochs"]
    body, bests, lasts = [], best(rows), last(rows, c)
    for arm, trials in by_arm(rows).items():
        cells = [written(m, k, decimals=d) for m, k, d in zip(bests[arm], SCALES, (2, 1, 2, 2), strict=True)]
        cells += [written(lasts[arm].test_accuracy, 1e2), written(lasts[arm].average_accuracy, 1e2)]
        cells += [written(lasts[arm].certificate, decimals=6, digits=3)]
        least, most = (pick(trial[-1].epoch for trial in trials) for pick in (min, max))
        body.append([arm, *cells, f"{len(trials)} × {most if least == most else f'{least}–{most}'}"])
        if arm in printed:
            cells = [written(m, k, decimals=d) for m, k, d in zip(printed[arm], SCALES, (2, 1, 1, 1), strict=True)]
            body.append([PRINTED, *cells, *[NONE] * (len(head) - len(HEAD))])
    return head, body


def table(rows: Sequence[Row], *, c: float = 1.0, printed: Mapping[str, Best] = PAPER, note: str = NOTE) -> Table:
    """Return Table 1 beside the printed figures, and below it what the paper does not have.

    80 columns hold it; where numbers would be cut, it is a list.
    """
    head, body = contents(rows, c, printed)
    first, second = slice(0, len(HEAD)), slice(len(HEAD), None)
    pairs = zip(range(1, len(HEAD)), range(len(HEAD), len(head)), strict=True)  # the second part is below the first
    least = least_width(*([cells[i] for cells in (head, *body) for i in pair] for pair in pairs))
    labels = [name.replace("\n", " ") for name in head]
    blocks = [(arm, zip(labels[1:], cells, strict=True)) for arm, *cells in body]
    grid = Fitting(
        least,
        [(arm, [(label, cell) for label, cell in lines if cell != NONE]) for arm, lines in blocks],
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption=note,
        caption_justify="left",
    )
    for i, name in enumerate(head[first]):
        grid.add_column(name, justify="right" if i else "left", no_wrap=i > 0, overflow="fold", vertical="bottom")
    for arm, *cells in (cells[first] for cells in body):
        grid.add_row(Text(arm), *cells, style="dim" if arm == PRINTED else "")
    grid.add_section()
    grid.add_row(*(Text(name, style="bold") for name in ("arm", *head[second])))
    for cells in body:
        if cells[0] != PRINTED:
            grid.add_row(Text(cells[0]), *cells[second])
    return grid


def markdown(record: dict[str, Any], *, c: float = 1.0) -> str:
    """Return the table as a document that says how it came about.

    Args:
        record: circumstances, settings, trials and rows of a run, complete or not.
        c: the price of V in the certificate.
    """
    rows, about, trials = untidy(record), record["circumstances"], record["trials"]
    done = f"{sum(bool(trial['complete']) for trial in trials)} of {len(trials)}"
    places = [f"{about.get('hardware', 'hardware unknown')}, device {about.get('device', 'unknown')}"]
    places += [f"{about['processors']} processors"] if about.get("processors") else []
    places += [f"{name} {about[name]}" for name in ("o2nc", "torch", "cuda", "triton", "python") if about.get(name)]
    settings = [f"{name} {value}" for name, value in record["settings"].items() if value is not None]
    pace = f"{np.median([row.seconds for row in rows]):.3g} s" if rows else NONE
    total = NONE if record["seconds"] is None else clock(record["seconds"])
    head, body = contents(rows, c)
    warning = ["", f"**Not complete: {done} trials are over.** These are the figures so far."]
    differ = differences(trials)
    lines = [
        "# CIFAR-10 with ResNet-18",
        *([] if record["complete"] else warning),
        *(["", f"**Not all trained alike:** {differ}."] if differ else []),
        "",
        f"- command: `{about['command']}`",
        f"- on: {', '.join(places)}",
        f"- settings: {', '.join(settings) or NONE}",
        f"- trials: {done} complete, {len(rows):,} epochs; per epoch {pace} (median), in total {total}",
        "",
        f"| {' | '.join(name.replace(chr(10), ' ') for name in head)} |",
        f"|---|{'--:|' * (len(head) - 1)}",
        *(f"| {' | '.join(cell.strip().replace('|', '∣') for cell in cells)} |" for cells in body),
    ]
    below = note(record["settings"])
    return "\n".join([*lines, "", f"{below[0].upper()}{below[1:]}.", ""])


def line(row: Row, epochs: int, images_per_second: float, left: float | None) -> str:
    """Return an epoch in one line.

    Args:
        row: the epoch.
        epochs: of the whole trial.
        images_per_second: how fast it was.
        left: seconds until all is over, None if nobody knows.
    """
    parts = [f"{row.arm} seed {row.seed}", f"epoch {row.epoch:>{len(str(epochs))}}/{epochs}"]
    parts.append(f"train {_number(row.train_loss):.4f} {100 * _number(row.train_accuracy):4.1f} %")
    parts.append(f"test {_number(row.test_loss):.4f} {100 * _number(row.test_accuracy):4.1f} %")
    parts.append(f"{images_per_second:,.0f} images/s")
    return "  ".join([*parts, *([] if left is None else [f"{clock(left)} left"])])


def clock(seconds: float) -> str:
    """Return a time as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
