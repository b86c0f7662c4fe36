"""The page's article on rates, guarantees, traps and the hard chain."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from o2nc_experiments import record as records
from o2nc_experiments.page import Article, Picture, Section
from o2nc_experiments.rates import pictures, tables
from o2nc_experiments.rates.curves import Curve, revive
from o2nc_experiments.rates.guarantees import Guarantee
from o2nc_experiments.rates.hard_chain import ChainSearch
from o2nc_experiments.rates.traps import Escape


def article(record: dict[str, Any]) -> Article:
    """Return the article on `rates.json`."""
    curves = [revive(curve) for curve in record["curves"]]
    escapes = [records.revive(Escape, escape) for escape in record["traps"]]
    searches = [records.revive(ChainSearch, search) for search in record["chain"]]
    promises = [records.revive(Guarantee, promise) for promise in record.get("guarantees", [])]
    sections = [_rates(curves)] if curves else []
    sections += [_guarantees(promises)] if promises else []
    sections += [_traps(escapes)] if escapes else []
    sections += [_chain(searches)] if searches else []
    return Article("How fast, and against which bounds", _summary(curves, searches, promises), sections)


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


def _rates(curves: Sequence[Curve]) -> Section:
    return Section(
        "Certificates against the number of steps",
        "Each run has the hyperparameters that the theorem prescribes for its number of steps N. Both axes are "
        "logarithmic: a rate is a slope. Lines are means over the seeds, bands their range, dashed lines the bounds.",
        pictures=[
            Picture(title, pictures.setting(title), partial(_study, title=title, curves=curves))
            for title in pictures.titles(curves)
        ],
        legend=pictures.legend(),
        tables=[tables.rates_table(curves)],
    )


def _study(axes: Axes, title: str, curves: Sequence[Curve]) -> None:
    pictures.panel(axes, title, [curve for curve in curves if curve.study == title])
    axes.set(xlabel="steps N", ylabel="mean of ‖ḡ‖ + cV")


def _guarantees(promises: Sequence[Guarantee]) -> Section:
    return Section(
        "Promised and attained",
        "On the washboard, a slope among ripples too fine to be seen, momentum is as slow as is proved. Then "
        "what becomes of a run that was told ten times or a tenth of the true G and σ, beside a learner that asks "
        "for neither.",
        tables=[tables.guarantees_table(promises)],
    )


def _traps(escapes: Sequence[Escape]) -> Section:
    picture = Picture(
        "‖ḡ‖ in the second half of the run",
        "Orange: without scaling; blue: with it, every seed.",
        partial(pictures.draw_traps, found=escapes),
    )
    return Section(
        "Traps",
        "Functions on which momentum without random scaling meets the same slope for ever, and what one random "
        "scalar per step changes.",
        pictures=[picture],
        tables=[tables.traps_table(escapes)],
    )


def _chain(searches: Sequence[ChainSearch]) -> Section:
    picture = Picture(
        "Steps against ε",
        "Grey: what is needed, proved. Blue: what the quickest setting took.",
        partial(pictures.draw_chain, found=searches),
    )
    return Section(
        "The hard instance",
        "A chain on which no algorithm of this kind can be quick. The bound holds for half of all runs; the quickest "
        "of many settings takes a little longer than it must.",
        pictures=[picture],
        tables=[tables.chain_table(searches)],
    )
