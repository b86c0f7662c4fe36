"""Rates, guarantees, traps and the hard chain as pictures and as the page's article."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from o2nc_experiments import record as records
from o2nc_experiments.figures import BLUE, GREEN, GREY, VERMILION, style_axes
from o2nc_experiments.page import Article, Picture, Section
from o2nc_experiments.rates import studies, tables
from o2nc_experiments.rates.curves import Curve, revive
from o2nc_experiments.rates.guarantees import Guarantee
from o2nc_experiments.rates.hard_chain import ChainSearch
from o2nc_experiments.rates.studies import ORIGINAL, Study, least_error
from o2nc_experiments.rates.traps import Escape

# by arm: colour, line, marker, and what the legend says
STYLES: dict[str, tuple[str, Any, str | None, str]] = {
    "sharp": (BLUE, "-", "o", "sharp constants, s ~ Exp(1)"),
    "sharp, s = 1": (BLUE, ":", None, "sharp constants, s = 1"),
    "paper": (VERMILION, "-", "s", "paper's constants, s ~ Exp(1)"),
    "paper, s = 1": (VERMILION, ":", None, "paper's constants, s = 1"),
    ORIGINAL: (GREEN, "-", "^", "Algorithm 1"),
}
TOO_SMALL = 1e-4  # gradients below are drawn there


def figure(curves: Sequence[Curve], *, complete: bool = True) -> Figure:
    """Draw one panel per study: certificates against N, bounds dashed, the lower bound at the foot."""
    names = titles(curves)
    columns = min(4, len(names) + 1)
    rows = -(-(len(names) + 1) // columns)
    picture = Figure(figsize=(3.6 * columns, 3.2 * rows + 0.5), dpi=150, layout="constrained")
    panels = list(picture.subplots(rows, columns, squeeze=False, sharex=True).flat)
    for i, (axes, name) in enumerate(zip(panels, names, strict=False)):
        panel(axes, name, [c for c in curves if c.study == name])
        axes.set_title(f"{name}\n{setting(name)}", fontsize=10)
        if i % columns == 0:
            axes.set_ylabel("mean of ‖ḡ‖ + cV")
        if i + columns >= len(names):
            axes.set_xlabel("steps N")
            axes.tick_params(labelbottom=True)
    for axes in panels[len(names) :]:
        axes.axis("off")
    panels[len(names)].legend(handles=legend(), loc="center", frameon=False, fontsize=10)
    title = "Measured certificates against the theorems' bounds" + ("" if complete else " (interrupted)")
    picture.suptitle(title, fontsize=14, fontweight="bold")
    return picture


def titles(curves: Sequence[Curve]) -> list[str]:
    """Return the studies that the curves belong to, in order."""
    return [study.title for study in studies.STUDIES if any(c.study == study.title for c in curves)]


def setting(title: str) -> str:
    """Return c and σ of a study."""
    study = _study(title)
    chosen = {"smoothness": "c = H²/ε", "second_order": "c = ρ/2"}
    price = f"c = {study.c:g}" if study.c is not None else chosen[study.regime]
    return f"{price}, σ = {study.oracle.noise:.2g}"


def _study(title: str) -> Study:
    return next(study for study in studies.STUDIES if study.title == title)


def panel(axes: Axes, title: str, curves: Sequence[Curve]) -> None:
    """Draw the curves of one study, with bounds, without a title."""
    for curve in curves:
        colour, line, marker, _ = STYLES[curve.arm]
        values = np.array(curve.values)
        axes.plot(curve.steps, curve.means, color=colour, linestyle=line, marker=marker, markersize=4, linewidth=1.6)
        if line == "-":
            axes.fill_between(curve.steps, values.min(1), values.max(1), color=colour, alpha=0.18, linewidth=0)
        if curve.bounds:
            axes.plot(curve.steps, curve.bounds, color=colour, linestyle="--", linewidth=1.0, alpha=0.8)
    problem, first = _study(title).oracle.problem, curves[0]
    floor = [
        least_error(n, c, gap=problem.gap, lipschitz=problem.lipschitz)
        for n, c in zip(first.steps, first.c, strict=True)
    ]
    axes.plot(first.steps, floor, color=GREY, linestyle="-.", linewidth=1.0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    style_axes(axes)


def legend() -> list[Line2D]:
    """Return what the lines are."""
    lines = [
        Line2D([], [], color=colour, linestyle=line, marker=marker, markersize=4, label=label)
        for colour, line, marker, label in STYLES.values()
    ]
    lines.append(Line2D([], [], color="black", linestyle="--", linewidth=1.0, label="its theorem's bound"))
    lines.append(Line2D([], [], color=GREY, linestyle="-.", linewidth=1.0, label="lower bound, on the hard instance"))
    return lines


def draw_traps(axes: Axes, found: Sequence[Escape]) -> None:
    """Draw ‖ḡ‖ of every run, a line for each trap."""
    names = list(dict.fromkeys(escape.trap for escape in found))
    for escape in sorted(found, key=lambda e: e.scaled):
        colour = BLUE if escape.scaled else VERMILION
        axes.plot(
            max(escape.gradient, TOO_SMALL), names.index(escape.trap), "o", color=colour, markersize=6, alpha=0.8
        )
    axes.set(xscale="log", ylim=(len(names) - 0.4, -0.6), xlabel="‖ḡ‖")
    axes.set_yticks(range(len(names)), names)
    style_axes(axes)


def draw_chain(axes: Axes, found: Sequence[ChainSearch]) -> None:
    """Draw the steps that are needed and those that were taken, against ε."""
    ordered = sorted(found, key=lambda search: search.eps)
    eps = [search.eps for search in ordered]
    axes.plot(eps, [search.needed for search in ordered], "s--", color=GREY)
    axes.plot(eps, [search.taken for search in ordered], "o-", color=BLUE)
    axes.set(xscale="log", yscale="log", xlabel="ε", ylabel="steps")
    axes.set_xticks(eps, [f"{e:g}" for e in eps])
    axes.minorticks_off()
    style_axes(axes)


def article(record: dict[str, Any]) -> Article:
    """Return the article on `rates.json`."""
    curves = [revive(curve) for curve in record["curves"]]
    escapes = [records.revive(Escape, escape) for escape in record["traps"]]
    searches = [records.revive(ChainSearch, search) for search in record["chain"]]
    promises = [records.revive(Guarantee, promise) for promise in record.get("guarantees", [])]
    studied = [
        Picture(title, setting(title), partial(_draw_study, title=title, curves=curves)) for title in titles(curves)
    ]
    trapped = Picture(
        "‖ḡ‖ in the second half of the run",
        "Orange: without scaling; blue: with it, every seed.",
        partial(draw_traps, found=escapes),
    )
    chained = Picture(
        "Steps against ε",
        "Grey: what is needed, proved. Blue: what the quickest setting took.",
        partial(draw_chain, found=searches),
    )
    sections = [
        Section(
            "Certificates against the number of steps",
            "Each run has the hyperparameters that the theorem prescribes for its number of steps N. Both axes are "
            "logarithmic: a rate is a slope. Lines are means over the seeds, bands their range, dashed lines the "
            "bounds.",
            pictures=studied,
            legend=legend(),
            tables=[tables.rates_table(curves)],
        ),
        Section(
            "Promised and attained",
            "On the washboard, a slope among ripples too fine to be seen, momentum is as slow as is proved. Then "
            "what becomes of a run that was told ten times or a tenth of the true G and σ, beside a learner that "
            "asks for neither.",
            tables=[tables.guarantees_table(promises)],
        ),
        Section(
            "Traps",
            "Functions on which momentum without random scaling meets the same slope for ever, and what one random "
            "scalar per step changes.",
            pictures=[trapped],
            tables=[tables.traps_table(escapes)],
        ),
        Section(
            "The hard instance",
            "A chain on which no algorithm of this kind can be quick. The bound holds for half of all runs; the "
            "quickest of many settings takes a little longer than it must.",
            pictures=[chained],
            tables=[tables.chain_table(searches)],
        ),
    ]
    there = [section for section, found in zip(sections, (curves, promises, escapes, searches), strict=True) if found]
    return Article("How fast, and against which bounds", _summary(curves, searches, promises), there)


def _summary(curves: Sequence[Curve], searches: Sequence[ChainSearch], promises: Sequence[Guarantee]) -> str:
    bounded = [curve for curve in curves if curve.bounds]
    over = [f"{curve.study}, {curve.arm}" for curve in bounded if not curve.agrees]
    over += [f"hard chain at ε = {search.eps:g}" for search in searches if not search.agrees]
    over += [f"{promise.case}, {promise.arm}" for promise in promises if not promise.agrees]
    slack = min((curve.slack for curve in bounded), default=float("nan"))
    says = f"{len(bounded)} curves have a theorem's bound"
    if over:
        return f"{says}. Not respected: {'; '.join(over)}."
    return (
        f"{says}, and all stay below it; where they come closest, the bound is {slack:.2f} times what was measured."
    )


def _draw_study(axes: Axes, title: str, curves: Sequence[Curve]) -> None:
    panel(axes, title, [curve for curve in curves if curve.study == title])
    axes.set(xlabel="steps N", ylabel="mean of ‖ḡ‖ + cV")
