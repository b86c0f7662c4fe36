"""The paper's Figure 1 from a run's rows, and the certificates over the epochs."""

import math
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from o2nc.experiments.cifar10.rows import Row
from o2nc.experiments.cifar10.view import Arms, by_arm, certificate
from o2nc.experiments.colours import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION
from o2nc.experiments.record import write_bytes

Read = Callable[[Row], float | None]

COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK, GREY)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1)))  # in turn, so that equal curves are both seen
HOLLOW: dict[str, Any] = {"linestyle": ":", "marker": "o", "markersize": 5, "markerfacecolor": "white"}  # x̄
FEW = 20  # up to so many epochs curves have markers
LATE = 0.75  # the share of the epochs from which on accuracies are enlarged


class Panel(NamedTuple):
    """One pair of axes.

    Attributes:
        title: what is drawn.
        reads: what is read of every epoch; the second of two is drawn hollow.
        log: whether the axis is logarithmic; one that is not shows shares of 1 in per cent.
        enlarged: whether the end is drawn again, larger, where there is room.
    """

    title: str
    reads: tuple[Read, ...]
    log: bool = False
    enlarged: bool = False


FIGURE = (
    Panel("Train loss", (lambda row: row.train_loss,), log=True),
    Panel("Train accuracy", (lambda row: row.train_accuracy,)),
    Panel("Test accuracy", (lambda row: row.test_accuracy,), enlarged=True),
)
AVERAGE = Line2D([], [], color=GREY, **HOLLOW, label="x̄, BatchNorm made anew")


def certificate_panels(c: float) -> tuple[Panel, ...]:
    """Return the panels of what the averages tell, at this price of spread."""
    return (
        Panel("‖ḡ‖", (lambda row: row.gradient,), log=True),
        Panel("V", (lambda row: row.spread,), log=True),
        Panel(f"Certificate ‖ḡ‖ + cV, c = {c:g}", (lambda row: certificate(row, c),), log=True),
        Panel(
            "Test accuracy, last iterate and x̄",
            (lambda row: row.test_accuracy, lambda row: row.average_accuracy),
            enlarged=True,
        ),
    )


def figure(rows: Sequence[Row]) -> Figure:
    """Draw Figure 1: train loss, train accuracy and test accuracy over the epochs, the end of the last enlarged.

    Lines are means over an arm's trials, bands one standard deviation to either side, at the epochs that all trials
    have reached; where some have not, or one has diverged, every trial is also drawn as a thin line.
    """
    picture = Figure(figsize=(13, 4.4), dpi=150, layout="constrained")
    arms = by_arm(rows)
    _fill(picture, picture.subplots(1, 3), FIGURE, arms, legend(arms))
    return picture


def certificates(rows: Sequence[Row], c: float = 1.0) -> Figure | None:
    """Draw ‖ḡ‖, V and ‖ḡ‖ + cV over the epochs, and the test accuracy of x̄ beside that of the last iterate.

    Arms that keep no averages are left out, with the colours of the others unchanged; None if no arm keeps them.
    """
    arms = averaging(rows)
    if not any(arms.values()):
        return None
    picture = Figure(figsize=(11, 7.6), dpi=150, layout="constrained")
    _fill(picture, picture.subplots(2, 2).flat, certificate_panels(c), arms, [*legend(arms), AVERAGE])
    return picture


def averaging(rows: Sequence[Row]) -> Arms:
    """Return the arms, without trials those that keep no averages."""
    kept = {row.arm for row in rows if row.gradient is not None}
    return {arm: trials if arm in kept else [] for arm, trials in by_arm(rows).items()}


def draw(axes: Axes, panel: Panel, arms: Arms) -> None:
    """Draw one panel, without its title."""
    for i, read in enumerate(panel.reads):
        _draw(axes, arms, read, log=panel.log, hollow=i > 0)
    if panel.enlarged:
        _enlarge(axes, arms, *panel.reads)
    axes.set_xlabel("epochs")


def _fill(picture: Figure, panels: Iterable[Axes], drawn: Sequence[Panel], arms: Arms, handles: list[Line2D]) -> None:
    for axes, panel in zip(panels, drawn, strict=True):
        draw(axes, panel, arms)
        axes.set_title(panel.title, fontsize=11)
    picture.suptitle(f"CIFAR-10, ResNet-18: {over_trials(arms)}", fontsize=14, fontweight="bold")
    columns = len(handles) if len(handles) <= 5 else -(-len(handles) // 2)
    picture.legend(handles=handles, loc="outside lower center", ncols=max(columns, 1), frameon=False)


def _draw(axes: Axes, arms: Arms, read: Read, *, log: bool = False, hollow: bool = False) -> None:
    final = _final(arms)
    axes.set_xlim(0, 1.03 * max(final, 1))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if log:
        axes.set_yscale("log")
    else:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if final == 1:
            axes.set_ylim(0, 1)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    for trials, colour, dash in zip(arms.values(), cycle(COLOURS), cycle(DASHES)):
        found = [{row.epoch: value for row in trial if (value := read(row)) is not None} for trial in trials]
        epochs = sorted({epoch for trial in found for epoch in trial})
        if not epochs:
            continue
        values = np.array([[trial.get(epoch, math.nan) for epoch in epochs] for trial in found])
        values[np.isinf(values) | (log & (values <= 0))] = np.nan
        mean = values.mean(0)  # nan where a trial has none
        thin = values if np.isnan(mean).any() else values[:0]
        for line, width, stroke in [*((one, 0.7, "-") for one in thin), (mean, 1.6, dash)]:
            few = final <= FEW or np.isfinite(line).sum() == 1
            style = HOLLOW if hollow else {"linestyle": stroke, "marker": "o" if few else None, "markersize": 4}
            axes.plot(epochs, line, linewidth=width, color=colour, **style)
        if len(trials) > 1 and not hollow:
            deviation = values.std(0, ddof=1)
            low, high = mean - deviation, mean + deviation
            band = (np.where(low > 0, low, values.min(0)), high) if log else (low.clip(0, 1), high.clip(0, 1))
            axes.fill_between(epochs, *band, color=colour, alpha=0.18, linewidth=0)


def _enlarge(axes: Axes, arms: Arms, *reads: Read) -> None:
    """Draw the end again, larger, in the corner that rising curves leave empty, if they do; second reads hollow."""
    final, (bottom, top) = _final(arms), axes.get_ylim()
    rows = [row for trials in arms.values() for trial in trials for row in trial]
    found = [(row.epoch / final, value) for read in reads for row in rows if (value := read(row)) is not None]
    if final <= FEW or not all(value > bottom + 0.65 * (top - bottom) for share, value in found if share > 0.25):
        return
    late = [value for share, value in found if share >= LATE]
    inset = axes.inset_axes((0.4, 0.1, 0.57, 0.52))
    for i, read in enumerate(reads):
        _draw(inset, arms, read, hollow=i > 0)
    margin = 0.1 * (max(late) - min(late)) + 0.001
    inset.set(xlim=(LATE * final, final), ylim=(min(late) - margin, max(late) + margin))
    inset.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    inset.tick_params(labelsize=8)
    axes.indicate_inset_zoom(inset, edgecolor=GREY)


def _final(arms: Arms) -> int:
    return max((trial[-1].epoch for trials in arms.values() for trial in trials), default=0)


def legend(arms: Arms) -> list[Line2D]:
    """Return a line for every arm that has trials."""
    styles = zip(arms.items(), cycle(COLOURS), cycle(DASHES))
    return [Line2D([], [], color=colour, linestyle=dash, label=arm) for (arm, own), colour, dash in styles if own]


def over_trials(arms: Arms) -> str:
    """Return what lines and bands are."""
    least, most = (pick((len(own) for own in arms.values() if own), default=0) for pick in (min, max))
    trials = f"{most} trials" if least == most else f"up to {most} trials"
    return "one trial per arm" if most == 1 else f"mean ± standard deviation over {trials}"


def save(picture: Figure, folder: Path, name: str) -> list[Path]:
    """Write the picture as PNG and SVG, each whole or not at all."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        drawn = BytesIO()
        picture.savefig(drawn, format=path.suffix[1:])
        write_bytes(path, drawn.getbuffer())
    return paths
