"""The pictures, and the article of the page."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from o2nc_experiments import figures
from o2nc_experiments.comparison import differences
from o2nc_experiments.gpt import results
from o2nc_experiments.gpt.arms import LAST
from o2nc_experiments.gpt.results import Line
from o2nc_experiments.gpt.store import Found, Point
from o2nc_experiments.page import Article, Picture, Section
from o2nc_experiments.tables import plural

NEAR, TICKS = 0.02, (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def drawn_lines(found: Sequence[Line]) -> list[Line]:
    """Return what a picture shows: of several averages of an arm the one that was chosen, and its last iterate."""
    shown = {line.name: line for line in found if line.is_chosen or line.weights == LAST}
    return list(shown.values())  # arms that differ in their averages alone have the same last iterates


def legend(found: Sequence[Line]) -> list[Line2D]:
    """Return a stroke or a mark for every line that is drawn."""
    return [Line2D([], [], label=line.name, **style) for line, style in figures.line_styles(drawn_lines(found))]


def draw_losses(axes: Axes, found: Sequence[Line]) -> None:
    """Draw loss against horizon."""
    _draw(axes, drawn_lines(found), Line.of)
    axes.set_ylabel("loss on held-out text (nats)")


def draw_differences(axes: Axes, found: Sequence[Line]) -> None:
    """Draw the paired difference to the best decayed run against the horizon."""

    def to_best(line: Line, h: int) -> list[float]:
        best = results.best_decayed(found, h)
        return differences(line, best, h) if best else []

    # a last iterate far above everything would press all the rest together
    drawn = drawn_lines(found)
    shown = [line for line in drawn if not (line.is_one_run and line.is_aside)]
    axes.axhline(0, color=figures.GREY, linewidth=0.8)
    _draw(axes, shown, to_best, drawn)
    axes.set_yscale("symlog", linthresh=NEAR)  # hundredths matter, and tenths are to be seen
    axes.yaxis.set_major_locator(FixedLocator([side * value for value in TICKS for side in (-1, 1)]))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("minus the best decayed run (nats)")


def _draw(
    axes: Axes, shown: Sequence[Line], values: Callable[[Line, int], list[float]], found: Sequence[Line] = ()
) -> None:
    horizons = sorted({h for line in shown for h in line.values})
    for line, style in figures.line_styles(found or shown):
        if line in shown:
            known = {h: own for h in horizons if (own := values(line, h)) and all(map(math.isfinite, own))}
            figures.draw_points(axes, known, style, bars=True)
    figures.style_horizons(axes, horizons, "steps")


def figure(found: Sequence[Line], title: str) -> Figure:
    """Return both pictures side by side."""
    drawn = Figure(figsize=(10.5, 4.6), layout="constrained")
    left, right = drawn.subplots(1, 2)
    draw_losses(left, found)
    draw_differences(right, found)
    drawn.suptitle(title, fontsize=11)
    drawn.legend(handles=legend(found), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return drawn


def draw_course(axes: Axes, points: Sequence[Point], of: Callable[[Point], float | None], label: str) -> None:
    """Draw what is known along the way of the runs."""
    runs: dict[str, list[Point]] = {}
    for point in points:
        runs.setdefault(point.run, []).append(point)
    for own, colour in zip(runs.values(), cycle((figures.BLUE, figures.SKY, figures.GREY))):
        known = [(point.step, value) for point in own if (value := of(point)) is not None]
        axes.plot([step for step, _ in known], [value for _, value in known], color=colour, linewidth=1, alpha=0.8)
    axes.set_xlabel("steps")
    axes.set_ylabel(label)
    axes.set_yscale("log")
    figures.style_axes(axes)


def title(record: Mapping[str, Any]) -> str:
    """Return what was trained, in a line."""
    s = record["settings"]
    return (
        f"GPT of {s['parameters'] / 1e6:.3g} M parameters ({s['layers']} layers, width {s['width']}, context "
        f"{s['context']}), {s['batch']:,} tokens a step; data: {s['data']}"
    )


def article(record: dict[str, Any]) -> Article:
    """Return the article of `gpt.json`."""
    known, goal = Found.from_record(record), results.goal_of(record)
    found = results.make_lines(goal, known.rows)
    seeds = plural(len(goal.seeds), "seed")
    return Article(
        "A language model without a schedule",
        f"{title(record)}. {seeds.capitalize()}.\n{results.verdict(goal, found)}\n{results.speed(record)}",
        [*([_comparison(record, found)] if found else []), *_tuning(record), *_certificates(known), *_costs(known)],
    )


def _comparison(record: dict[str, Any], found: list[Line]) -> Section:
    goal = results.goal_of(record)
    tables = [results.losses(goal, found), results.paired(goal, found)]
    return Section(
        "One run against a run for every horizon",
        "Lines are moments of one run at a learning rate that knows no horizon; marks are runs that were decayed to "
        "end where they stand. Where a line goes through the marks or below, nobody had to know when to stop.",
        pictures=[
            Picture("Loss", "On texts that are held out; bars are standard deviations over the seeds.",
                    lambda axes: draw_losses(axes, found), (5.2, 3.8)),
            Picture("Difference to the best decayed run", "Seed by seed. Below zero the one run is ahead.",
                    lambda axes: draw_differences(axes, found), (5.2, 3.8)),
        ],
        legend=legend(found),
        tables=[table for table in tables if table is not None],
    )  # fmt: skip


def _tuning(record: dict[str, Any]) -> list[Section]:
    goal = results.goal_of(record)
    table = results.grids(goal, Found.from_record(record).rows)
    if table is None:
        return []
    on = "the reported seeds themselves" if goal.tune is None else f"seed {goal.tune}, which is not reported"
    text = f"Chosen on {on}: one for every horizon where lr decays, one for all where it does not."
    return [Section("Learning rates", text, tables=[table])]


def _certificates(known: Found) -> list[Section]:
    points = [point for point in known.course if point.gradient is not None]
    if not points:
        return []
    pictures = [
        Picture("‖ḡ‖", "The length of the averaged gradient.",
                lambda axes: draw_course(axes, points, lambda p: p.gradient, "‖ḡ‖")),
        Picture("V", "How far the iterates lie from their average, squared.",
                lambda axes: draw_course(axes, points, lambda p: p.spread, "V")),
        Picture("Loss on the batches", "Before each step, on average since the last point.",
                lambda axes: draw_course(axes, points, lambda p: p.train_loss, "nats")),
    ]  # fmt: skip
    text = "Along the runs that keep averages, without an evaluation: ‖ḡ‖ + cV bounds how far x̄ is from stationary."
    return [Section("The certificate", text, pictures=pictures)]


def _costs(known: Found) -> list[Section]:
    if not known.costs:
        return []
    return [Section("What a step costs", "Measured before the runs.", tables=[results.costs(known.costs)])]
