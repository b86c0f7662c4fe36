"""The pictures, and the article of the page."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from o2nc_experiments import figures
from o2nc_experiments.cifar10 import horizons
from o2nc_experiments.cifar10.horizons import Goal
from o2nc_experiments.cifar10.results import note, table
from o2nc_experiments.classification import Epoch, best, by_arm, curves, from_columns, written
from o2nc_experiments.comparison import Line
from o2nc_experiments.page import Article, Picture, Section
from o2nc_experiments.tables import duration, plural

FIGURE_CAPTIONS = (
    "On the batches as they were seen, logarithmic. Where the lines lie on each other, scaling costs nothing.",
    "On the same batches.",
    "Images that were never trained on. The end is drawn again, larger, where there is room.",
)
CERTIFICATE_CAPTIONS = (
    "The length of the averaged gradient. Falling: the averaged weights get nearer to a stationary point.",
    "How far the iterates lie from their average, squared. It falls with the learning rate.",
    "Both together: at most so far from stationary are the averaged weights, up to the noise of the batches.",
    "Hollow: the averaged weights x̄. Early on they are ahead of the last iterate; at the end they meet.",
)


def shown(lines: Sequence[Line]) -> list[tuple[Line, dict[str, Any]]]:
    """Return the lines that are drawn, and how; of decayed runs what counts alone."""
    return figures.line_styles([line for line in lines if line.is_one_run or not line.is_aside])


def horizons_legend(lines: Sequence[Line]) -> list[Line2D]:
    """Return a stroke or a mark for every line."""
    return [Line2D([], [], label=line.name, **style) for line, style in shown(lines)]


def draw_horizons(axes: Axes, goal: Goal, lines: Sequence[Line]) -> None:
    """Draw test accuracy against epochs, from the first horizon on: where all seeds of a line have it."""
    for line, style in shown(lines):
        seeds = {seed for own in line.values.values() for seed in own}
        epochs = [e for e, own in sorted(line.values.items()) if e >= goal.horizons[0] and own.keys() == seeds]
        figures.draw_points(axes, {e: line.of(e) for e in epochs}, style, bars=not line.is_aside)
    figures.style_horizons(axes, goal.horizons, "epochs")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("test accuracy")


def horizons_figure(record: dict[str, Any], title: str) -> Figure | None:
    """Return one run against a run for every horizon; None where that was not asked for."""
    goal = Goal.from_record(record)
    lines = horizons.make_lines(goal, from_columns(record)) if goal else []
    if goal is None or not lines:
        return None
    drawn = Figure(figsize=(7.5, 5), dpi=150, layout="constrained")
    draw_horizons(drawn.subplots(), goal, lines)
    drawn.suptitle(title, fontsize=11)
    drawn.legend(handles=horizons_legend(lines), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return drawn


def article(record: dict[str, Any]) -> Article:
    """Return the article of `cifar10.json`."""
    rows = horizons.reported(record)
    arms, c, seconds = by_arm(rows), record["circumstances"].get("c", 1.0), record.get("seconds")
    found = ", ".join(f"{arm} {written(b.test_accuracy, 1e2)} %" for arm, b in best(rows).items())
    epochs = max((row.epoch for row in rows), default=0)
    trials = max((len(own) for own in arms.values()), default=0)
    time = f", in {duration(seconds)} on {record['circumstances'].get('hardware')}" if seconds else ""
    summary = (
        f"The paper's experiment: {len(arms)} optimizers, {plural(trials, 'trial')} each, {epochs} "
        f"epochs{time}. Best test accuracy: {found}."
    )
    shown = [*_comparison(record), *sections(rows, c, note(record.get("settings", {})))] if rows else ()
    return Article("ResNet-18 on CIFAR-10", summary, shown)


def _comparison(record: dict[str, Any]) -> list[Section]:
    goal = Goal.from_record(record)
    if goal is None:
        return []
    lines = horizons.make_lines(goal, from_columns(record))
    drawn = Picture(
        "Test accuracy",
        "Against the epochs, on a logarithmic axis; bars are standard deviations over the seeds.",
        lambda axes: draw_horizons(axes, goal, lines),
        (6.4, 4.2),
    )
    return [
        Section(
            "One run against a run for every horizon",
            "Lines are moments of one run at a learning rate that knows no horizon; marks are runs that were decayed "
            "to end where they stand.",
            pictures=[drawn] if lines else [],
            legend=horizons_legend(lines),
            tables=horizons.tables(record),
        )
    ]


def sections(rows: list[Epoch], c: float, notes: str) -> list[Section]:
    """Return Figure 1 with Table 1, and what the averages say."""
    arms, averaged = by_arm(rows), curves.averaging(rows)
    found = [
        Section(
            "Training",
            f"Lines are {curves.over_trials(arms)}. An arm's name is its optimizer, with the law of the random "
            "scalar after +. The table has the best epoch of each trial, as the paper does, with the paper's own "
            "figures in grey below.",
            pictures=curves.pictures(curves.FIGURE, FIGURE_CAPTIONS, arms),
            legend=curves.legend(arms),
            tables=[table(rows, c, notes)],
        )
    ]
    if any(averaged.values()):
        found.append(
            Section(
                "The certificate",
                "It costs no evaluation: the optimizer keeps the averages x̄ of its iterates and ḡ of its "
                f"gradients as it goes. ‖ḡ‖ + cV bounds how far x̄ is from stationary, here with c = {c:g}.",
                pictures=curves.pictures(curves.certificate_panels(c), CERTIFICATE_CAPTIONS, averaged),
                legend=[*curves.legend(averaged), curves.AVERAGE],
            )
        )
    return found
