"""Rates, traps and the hard chain, told."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from o2nc_experiments import rates_view
from o2nc_experiments import record as records
from o2nc_experiments.extremes import Escape, Search
from o2nc_experiments.figures import BLUE, GREY, VERMILION
from o2nc_experiments.page import Article as Story
from o2nc_experiments.page import Picture, Section
from o2nc_experiments.rates import Curve, revive

TOO_SMALL = 1e-4  # gradients below are drawn there


def tell(record: dict[str, Any]) -> Story:
    """Return the story of `rates.json`."""
    curves = [revive(curve) for curve in record["curves"]]
    escapes = [records.revive(Escape, escape) for escape in record["traps"]]
    searches = [records.revive(Search, search) for search in record["chain"]]
    return Story(
        "How fast, and against which bounds", _summary(curves, searches), _sections(curves, escapes, searches)
    )


def _summary(curves: Sequence[Curve], searches: Sequence[Search]) -> str:
    bounded = [curve for curve in curves if curve.bounds]
    over = [f"{curve.study}, {curve.arm}" for curve in bounded if not curve.agrees]
    over += [f"hard chain at ε = {search.eps:g}" for search in searches if not search.agrees]
    slack = min((curve.slack for curve in bounded), default=float("nan"))
    says = f"{len(bounded)} curves have a theorem's bound"
    if over:
        return f"{says}. Not respected: {'; '.join(over)}."
    return (
        f"{says}, and all stay below it; where they come closest, the bound is {slack:.2f} times what was measured."
    )


def _sections(curves: Sequence[Curve], escapes: Sequence[Escape], searches: Sequence[Search]) -> list[Section]:
    sections = []
    if curves:
        sections.append(
            Section(
                "Certificates against the number of steps",
                "Each run has the hyperparameters that the theorem prescribes for its number of steps N. Both "
                "axes are logarithmic: a rate is a slope. Lines are means over the seeds, bands their range, "
                "dashed lines the bounds.",
                pictures=[
                    Picture(title, rates_view.setting(title), partial(_study, title=title, curves=curves))
                    for title in rates_view.titles(curves)
                ],
                legend=rates_view.legend(),
                tables=[rates_view.rates_table(curves)],
            )
        )
    if escapes:
        sections.append(
            Section(
                "Traps",
                "Functions on which momentum without random scaling meets the same slope for ever, and what one "
                "random scalar per step changes.",
                pictures=[
                    Picture(
                        "‖ḡ‖ in the second half of the run",
                        "Orange: without scaling; blue: with it, every seed.",
                        partial(_traps, found=escapes),
                    )
                ],
                tables=[rates_view.traps_table(escapes)],
            )
        )
    if searches:
        sections.append(
            Section(
                "The hard instance",
                "A chain on which no algorithm of this kind can be quick. The bound holds for half of all runs; "
                "the quickest of many settings takes a little longer than it must.",
                pictures=[
                    Picture(
                        "Steps against ε",
                        "Grey: what is needed, proved. Blue: what the quickest setting took.",
                        partial(_chain, found=searches),
                    )
                ],
                tables=[rates_view.chain_table(searches)],
            )
        )
    return sections


def _study(axes: Axes, title: str, curves: Sequence[Curve]) -> None:
    rates_view.panel(axes, title, [curve for curve in curves if curve.study == title])
    axes.set(xlabel="steps N", ylabel="mean of ‖ḡ‖ + cV")


def _traps(axes: Axes, found: Sequence[Escape]) -> None:
    names = list(dict.fromkeys(escape.trap for escape in found))
    for escape in sorted(found, key=lambda e: e.scaled):
        colour = BLUE if escape.scaled else VERMILION
        axes.plot(
            max(escape.gradient, TOO_SMALL), names.index(escape.trap), "o", color=colour, markersize=6, alpha=0.8
        )
    axes.set(xscale="log", ylim=(len(names) - 0.4, -0.6), xlabel="‖ḡ‖")
    axes.set_yticks(range(len(names)), names)
    _plain(axes)


def _chain(axes: Axes, found: Sequence[Search]) -> None:
    ordered = sorted(found, key=lambda search: search.eps)
    eps = [search.eps for search in ordered]
    axes.plot(eps, [search.needed for search in ordered], "s--", color=GREY)
    axes.plot(eps, [search.taken for search in ordered], "o-", color=BLUE)
    axes.set(xscale="log", yscale="log", xlabel="ε", ylabel="steps")
    axes.set_xticks(eps, [f"{e:g}" for e in eps])
    axes.minorticks_off()
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
