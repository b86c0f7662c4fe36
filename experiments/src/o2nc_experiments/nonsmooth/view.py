"""The pictures, and the article of the page."""

import math
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from o2nc import Gamma, Law, scaling
from o2nc_experiments import record as records
from o2nc_experiments.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION, style_axes
from o2nc_experiments.nonsmooth import tables
from o2nc_experiments.nonsmooth.arms import LAWS, OTHERS, REFERENCE, jitter
from o2nc_experiments.nonsmooth.escapes import PATIENCE, Escape, Freedom
from o2nc_experiments.nonsmooth.study import CERTIFICATE, VALUE, Result
from o2nc_experiments.nonsmooth.tables import Findings, deviation
from o2nc_experiments.page import Article, Picture, Section

NEVER = 2 * PATIENCE  # where runs that did not get free are drawn
SHOWN: dict[str, dict[str, Any]] = {  # arms in the picture of horizons
    "constant, last iterate": {"color": GREY, "linestyle": (0, (3, 2))},
    "constant, x̄ by t^12": {"color": BLUE},
    "t^−½, x̄ by t^12": {"color": SKY},
    "anchor U(0.9, 1), t^3": {"color": PINK},
    "schedule-free AdamW, 0.95, t^3": {"color": ORANGE},
    "restarts": {"color": GREEN, "linestyle": (0, (3, 2))},
    "restarts, Nesterov, peaks fall": {"color": GREEN},
    "SGDM, WSD 20 %": {"color": VERMILION, "marker": "s", "linestyle": "none"},
    "Nesterov": {"color": BLACK, "marker": "o", "linestyle": "none"},
}


def load(record: dict[str, Any]) -> tuple[Findings, list[Escape], list[Freedom]]:
    """Return what is in a record; None stands for a number that JSON has no word for."""
    results = [Result(*row[:5], *(_filled(part) for part in row[5:])) for row in record["rows"]]
    escapes = [records.revive(Escape, escape) for escape in record["escapes"]]
    freedoms = [Freedom(f["width"], f["deviation"], _filled(f["steps"])) for f in record["freedoms"]]
    return Findings(results), escapes, freedoms


def _filled(values: Sequence[float | None]) -> list[float]:
    return [math.inf if value is None else value for value in values]


def draw_freedom(axes: Axes, freedoms: Sequence[Freedom]) -> None:
    """Draw how long a trapped run takes to get free, against the standard deviation of s."""
    ordered = sorted(freedoms, key=lambda f: f.width)
    x = [f.deviation for f in ordered]
    low, middle, high = (
        [min(float(np.quantile(f.steps, q, method="lower")), NEVER) for f in ordered] for q in (0.1, 0.5, 0.9)
    )
    axes.fill_between(x, low, high, color=BLUE, alpha=0.18, linewidth=0)
    axes.plot(x, middle, "o-", color=BLUE, markersize=4.5)
    axes.axhline(PATIENCE, color=GREY, linewidth=0.8, linestyle="--")
    place: dict[str, Any] = {"xytext": (0, 4), "textcoords": "offset points", "ha": "right", "fontsize": 9}
    axes.annotate(f"not within {PATIENCE:,} steps", (max(x), PATIENCE), **place)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="standard deviation of s ~ U(1 − w, 1 + w)",
        ylabel="steps until F is halved",
    )
    _deviations(axes, x)
    style_axes(axes)


def draw_prices(axes: Axes, found: Findings) -> None:
    """Draw what a law costs against its standard deviation: L in the guarantee, F and certificate as measured."""
    widths = np.geomspace(0.1, 1.0, 13)
    shapes = np.geomspace(1.0, 64.0, 13)
    both: list[tuple[list[Law], str]] = [([jitter(w) for w in widths], "-"), ([Gamma(k) for k in shapes], "--")]
    for laws, line in both:
        axes.plot([*map(deviation, laws)], [*map(scaling.price, laws)], line, color=VERMILION)
    axes.set(xscale="log", yscale="log", xlabel="standard deviation of s", ylim=(0.08, 4000))
    axes.set_ylabel("L, the price in the guarantee", color=VERMILION)
    horizon = _horizon(found)
    other = axes.twinx()
    marks = (("", VALUE, BLUE, "o"), ("", CERTIFICATE, GREEN, "^"), ("Nesterov, ", VALUE, BLACK, "D"))
    for prefix, measure, colour, marker in marks:
        for name, law in LAWS.items():
            ratio = found.ratio(prefix + name, horizon, VALUE, measure)
            if math.isfinite(ratio.mean):
                look: dict[str, Any] = {
                    "color": colour,
                    "markerfacecolor": colour if name.startswith("U") else "white",
                }
                other.plot(deviation(law), math.exp(ratio.mean), marker, markersize=5, **look)
    other.axhline(1.0, color=GREY, linewidth=0.8)
    other.set(yscale="log", ylim=(0.3, 6.0))
    other.set_yticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
    other.yaxis.set_minor_locator(NullLocator())
    other.set_ylabel("measured, against SGDM", color=BLUE)
    other.spines["top"].set_visible(False)
    _deviations(axes, [0.06, 0.1, 0.2, 0.5, 1.0])
    style_axes(axes, "x")


def price_legend() -> list[Line2D]:
    """Return what the lines and marks of the prices are."""
    return [
        Line2D([], [], color=VERMILION, label="L of U(1 − w, 1 + w)"),
        Line2D([], [], color=VERMILION, linestyle="--", label="L of Gamma(k)"),
        Line2D([], [], color=BLUE, marker="o", linestyle="none", label="F (open: Exp, Gamma)"),
        Line2D([], [], color=BLACK, marker="D", linestyle="none", label="F, Nesterov"),
        Line2D([], [], color=GREEN, marker="^", linestyle="none", label="certificate"),
    ]


def draw_horizons(axes: Axes, found: Findings) -> None:
    """Draw F against that of SGDM with linear decay, horizon by horizon."""
    for name, style in SHOWN.items():
        points = {h: found.ratio(name, h, VALUE) for h in found.horizons}
        known = {h: math.exp(ratio.mean) for h, ratio in points.items() if math.isfinite(ratio.mean)}
        look: dict[str, Any] = {"marker": "o", "markersize": 3.5} | style
        axes.plot(list(known), list(known.values()), **look)
    axes.axhline(1.0, color=VERMILION, linewidth=1.2)
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="F against SGDM with linear decay")
    axes.set_xticks(found.horizons, [f"{h:,}" for h in found.horizons])
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    ticks = [v for v in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low < v < high]
    axes.set_yticks(ticks, [f"{v:g}" for v in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    style_axes(axes)


def horizon_legend() -> list[Line2D]:
    """Return a stroke or a mark for every arm that is drawn."""
    decays = [Line2D([], [], color=VERMILION, label=f"{REFERENCE.name}, linear decay")]
    label = {"Nesterov": "Nesterov, linear decay"}
    return decays + [Line2D([], [], label=label.get(name, name), **style) for name, style in SHOWN.items()]


def law_figure(found: Findings, freedoms: Sequence[Freedom]) -> Figure:
    """Draw both panels: how long a trapped run takes to get free, and what that costs."""
    picture = Figure(figsize=(10.0, 4.2), dpi=150, layout="constrained")
    left, right = picture.subplots(1, 2)
    draw_freedom(left, freedoms)
    left.set_title("How long the climber stays trapped", fontsize=12)
    draw_prices(right, found)
    right.set_title("What the law costs", fontsize=12)
    picture.legend(handles=price_legend(), frameon=False, fontsize=10, loc="outside lower right", ncols=5)
    return picture


def horizon_figure(found: Findings) -> Figure:
    """Draw the runs without a horizon against the decayed ones."""
    picture = Figure(figsize=(8.6, 4.4), dpi=150, layout="constrained")
    draw_horizons(picture.subplots(), found)
    picture.legend(handles=horizon_legend(), frameon=False, fontsize=9, loc="outside right center")
    return picture


def _deviations(axes: Axes, x: Sequence[float]) -> None:
    ticks = [v for v in (0.03, 0.05, 0.1, 0.2, 0.5, 1.0) if min(x) * 0.9 <= v <= max(x) * 1.1]
    axes.set_xticks(ticks, [f"{v:g}" for v in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _horizon(found: Findings) -> int:
    """Return the longest horizon at which the laws were run."""
    return max(h for h in found.horizons if math.isfinite(found.ratio("Exp(1)", h, VALUE).mean))


def article(record: dict[str, Any]) -> Article:
    """Return the article on `nonsmooth.json`."""
    found, escapes, freedoms = load(record)
    if not freedoms:
        return _others(found, escapes)
    horizon = _horizon(found)
    freed = median(next(f for f in freedoms if f.width == 0.25).steps)
    cost = {name: math.exp(found.ratio(name, horizon, VALUE).mean) for name in ("Exp(1)", "U(¾, 5/4)")}
    sections = [
        Section(
            "What randomness costs, and what it buys",
            "Momentum with linear decay and a law of s, tuned, against the same without one.",
            pictures=[
                Picture(
                    "How long the climber stays trapped",
                    "Median, and 10 to 90 % of the seeds.",
                    partial(draw_freedom, freedoms=freedoms),
                ),
                Picture("What the law costs", "In the guarantee, and measured.", partial(draw_prices, found=found)),
            ],
            legend=price_legend(),
            tables=[tables.costs(found), tables.traps(escapes)],
        ),
        Section(
            "Without a horizon",
            "One run, read off wherever one likes, against runs that were decayed to end there.",
            pictures=[
                Picture("F against the horizon", "1 is SGDM with linear decay.", partial(draw_horizons, found=found))
            ],
            legend=horizon_legend(),
            tables=[tables.horizons(found), tables.by_objective(found, horizon)],
        ),
    ]
    return Article(
        "Non-smooth problems",
        f"After {horizon:,} steps Exp(1) has {cost['Exp(1)']:.2f} times plain momentum's F, U(¾, 5/4) "
        f"{cost['U(¾, 5/4)']:.2f} times; with the latter a trapped run is free after {freed:.0f} steps.",
        sections,
    )


def _others(found: Findings, escapes: Sequence[Escape]) -> Article:
    """Return the article on a record of `--others`."""
    horizon, law = found.horizons[-1], "Gamma(16)"
    plain = [arm.name for arm in OTHERS if arm.law is None]
    ratios = (found.ratio(f"{name}, {law}", horizon, VALUE, reference=name) for name in plain)
    said = (
        f"{math.exp(min(ratio.mean, 99.0)):.2f} times {name}'s" for name, ratio in zip(plain, ratios, strict=True)
    )
    text = "Each with linear decay and a law of s, tuned, against the same without one."
    shown = [tables.optimizers(found), tables.traps(escapes), tables.by_objective(found, horizon)]
    return Article(
        "Non-smooth problems: other optimizers",
        f"After {horizon:,} steps {law} has {', '.join(said)} F.",
        [Section("What randomness costs, and what it buys", text, tables=shown)],
    )
