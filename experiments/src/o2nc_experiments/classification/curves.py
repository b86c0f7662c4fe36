"""Losses, accuracies and certificates over the epochs: the paper's Figure 1, and what the paper does not have."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import cycle
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, PercentFormatter

from o2nc_experiments.classification import Arms, Epoch, by_arm, certificate
from o2nc_experiments.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION, style_axes
from o2nc_experiments.page import Picture

Read = Callable[[Epoch], float | None]

COLOURS = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK, GREY)
DASHES: tuple[Any, ...] = ("-", (0, (5, 1)), (0, (6, 1, 1, 1)))  # in turn: equal curves are all seen, styles unlike
HOLLOW: dict[str, Any] = {"linestyle": ":", "marker": "o", "markersize": 5, "markerfacecolor": "white"}  # x̄
FEW = 20  # up to so many epochs curves have markers
LETTERS = 11  # of a legend's text, per inch
LATE = 0.75  # the share of the epochs from which on accuracies are enlarged


class Panel(NamedTuple):
    """One pair of axes."""

    title: str  # what is drawn
    reads: tuple[Read, ...]  # what is read of every epoch; the second of two is drawn hollow
    log: bool = False  # whether the axis is logarithmic; one that is not shows shares of 1 in per cent
    enlarged: bool = False  # whether the end is drawn again, larger, where there is room


FIGURE = (
    Panel("Train loss", (lambda row: row.train_loss,), log=True),
    Panel("Train accuracy", (lambda row: row.train_accuracy,)),
    Panel("Test accuracy", (lambda row: row.test_accuracy,), enlarged=True),
)
TITLE = "CIFAR-10, ResNet-18"
AVERAGE = Line2D([], [], color=GREY, **HOLLOW, label="x̄, BatchNorm made anew")


def certificate_panels(c: float) -> tuple[Panel, ...]:
    """Return the panels of what the averages say, at this price of spread."""
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


def figure(epochs: Sequence[Epoch], title: str = TITLE) -> Figure:
    """Draw Figure 1: train loss, train accuracy and test accuracy over the epochs, the end of the last enlarged.

    Lines are means over an arm's trials, bands one standard deviation to either side, at the epochs that all trials
    have reached; where some have not, or one has diverged, every trial is also drawn as a thin line.
    """
    picture = Figure(figsize=(13, 4.4), dpi=150, layout="constrained")
    arms = by_arm(epochs)
    _fill(picture, picture.subplots(1, 3), FIGURE, arms, legend(arms), title)
    return picture


def certificates(epochs: Sequence[Epoch], c: float = 1.0, title: str = TITLE) -> Figure | None:
    """Draw ‖ḡ‖, V and ‖ḡ‖ + cV over the epochs, and the test accuracy of x̄ beside that of the last iterate.

    Arms that keep no averages are left out, with the colours of the others unchanged; None if no arm keeps them.
    """
    arms = averaging(epochs)
    if not any(arms.values()):
        return None
    picture = Figure(figsize=(11, 7.6), dpi=150, layout="constrained")
    _fill(picture, picture.subplots(2, 2).flat, certificate_panels(c), arms, [*legend(arms), AVERAGE], title)
    return picture


def averaging(epochs: Sequence[Epoch]) -> Arms:
    """Return the arms, without trials those that keep no averages."""
    averaged = {row.arm for row in epochs if row.gradient is not None}
    return {arm: trials if arm in averaged else [] for arm, trials in by_arm(epochs).items()}


def draw(axes: Axes, panel: Panel, arms: Arms) -> None:
    """Draw one panel, without its title."""
    for i, read in enumerate(panel.reads):
        _draw(axes, arms, read, log=panel.log, hollow=i > 0)
    if panel.enlarged:
        _enlarge(axes, arms, *panel.reads)
    low, high = axes.get_ylim()
    if panel.log and high < 10 * low:  # with hardly a power of ten in sight
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("epochs")


def pictures(panels: Sequence[Panel], captions: Sequence[str], arms: Arms) -> list[Picture]:
    """Return the panels for the page."""
    return [
        Picture(panel.title, caption, partial(draw, panel=panel, arms=arms))
        for panel, caption in zip(panels, captions, strict=True)
    ]


def _fill(
    picture: Figure, panels: Iterable[Axes], drawn: Sequence[Panel], arms: Arms, handles: list[Line2D], title: str
) -> None:
    for axes, panel in zip(panels, drawn, strict=True):
        draw(axes, panel, arms)
        axes.set_title(panel.title, fontsize=11)
    picture.suptitle(f"{title}: {over_trials(arms)}", fontsize=14, fontweight="bold")
    wide, high = picture.get_size_inches()
    room = int(wide * LETTERS)
    for handle in handles:
        handle.set_label("\n".join(wrap(str(handle.get_label()), room - 6)))
    longest = max((len(line) for handle in handles for line in str(handle.get_label()).split("\n")), default=0)
    columns = max(1, min(len(handles), room // (longest + 6)))
    picture.set_size_inches(wide, high + 0.2 * max(0, -(-len(handles) // columns) - 2))
    picture.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def _draw(axes: Axes, arms: Arms, read: Read, *, log: bool = False, hollow: bool = False) -> None:
    final = _final(arms)
    margin = 0.03 * final if final > 1 else 0.5
    axes.set_xlim(1 - margin if 0 < final <= FEW else 0, max(final, 1) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if log:
        axes.set_yscale("log")
    else:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if final == 1:
            axes.set_ylim(0, 1)
    style_axes(axes)
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
    return [
        Line2D([], [], color=colour, linestyle=dash, label=f"{arm} (diverged)" if diverged(own) else arm)
        for (arm, own), colour, dash in styles
        if own
    ]


def diverged(trials: Sequence[Sequence[Epoch]]) -> bool:
    """Say whether a trial has ended without a loss."""
    losses = [trial[-1].train_loss for trial in trials]
    return any(loss is None or not math.isfinite(loss) for loss in losses)


def over_trials(arms: Arms) -> str:
    """Return what lines and bands are."""
    least, most = (pick((len(own) for own in arms.values() if own), default=0) for pick in (min, max))
    trials = f"{most} trials" if least == most else f"up to {most} trials"
    return "one trial per arm" if most == 1 else f"mean ± standard deviation over {trials}"
