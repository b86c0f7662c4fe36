"""Rates, guarantees, traps and the hard chain as tables."""

import math
from collections.abc import Callable, Sequence

from o2nc_experiments.rates import hard_chain, traps
from o2nc_experiments.rates.curves import Curve
from o2nc_experiments.rates.guarantees import Guarantee
from o2nc_experiments.rates.hard_chain import ChainSearch
from o2nc_experiments.rates.traps import Escape
from o2nc_experiments.tables import NONE, Cell, Column, Table

WRONG = Cell("WRONG", "bold red")
WIDE = 112  # columns of a terminal from which on nothing is left out


def rates_table(curves: Sequence[Curve], width: int = WIDE) -> Table:
    """Return one row per arm, study by study; a narrow terminal gets fewer columns."""
    notes = (
        "first, last: mean certificate at the fewest and the most steps; slope: over all N, tail: over the larger\n"
        "half, with 95 % intervals over the seeds; bound/value: the least over N, WRONG below 1\n"
        "shallow: the tail is flatter than the theorem's rate, which short runs may be: a bound promises no slope"
    )
    narrow = width < WIDE
    columns = ("arm", "first", "last", "slope", "tail", "theorem", "bound/value", "")
    kept = [i for i, name in enumerate(columns) if not (narrow and name in ("first", "slope", "theorem"))]
    heads = [Column(columns[i], "right" if i else "left") for i in kept]
    table = Table(heads, notes="" if narrow else notes)
    title = None
    for curve in curves:
        if curve.study != title:
            title = curve.study
            table.add_heading(title)
        verdict = WRONG if not curve.agrees else "shallow" if curve.shallow else "ok"
        cells = (
            f"  {curve.arm}",
            f"{curve.means[0]:.4f}",
            f"{curve.means[-1]:.4f}",
            _interval(*curve.slope),
            _interval(*curve.tail),
            f"{curve.exponent:.3f}" if curve.bounds else NONE,
            f"{curve.slack:.2f}" if curve.bounds else NONE,
            verdict if curve.bounds else "",
        )
        table.add(*(cells[i] for i in kept))
    return table


def _interval(middle: float, half: float) -> str:
    return f"{middle:.3f} ± {half:.3f}" if math.isfinite(half) else f"{middle:.3f}"


def guarantees_table(found: Sequence[Guarantee]) -> Table:
    """Return one row per arm, case by case."""
    notes = (
        "guaranteed: by the energy theorem (OGD) or the adaptive one, with the true G and σ, whatever was believed;\n"
        "attained: mean certificate under their output law, over the seeds"
    )
    table = Table([Column("arm", "left"), "guaranteed", "attained", "ratio", ""], notes=notes)
    title = None
    for g in found:
        if title != (g.case, g.steps):
            title = (g.case, g.steps)
            table.add_heading(f"{g.case}, {g.steps:,} steps")
        verdict = "ok" if g.agrees else WRONG
        table.add(f"  {g.arm}", f"{g.bound:.4f}", f"{g.value:.4f}", f"{g.slack:.2f}", verdict)
    return table


def traps_table(found: Sequence[Escape], width: int = WIDE) -> Table:
    """Return one row per trap, without scaling (1) and with it (Exp) side by side; fewer columns if it is narrow."""
    notes = (
        f"‖ḡ‖, certificate ‖ḡ‖ + cV (c = {traps.C:g}, β = {traps.BETA:g}): means over the second half of "
        f"{traps.STEPS} steps;\nchange: F(last) − F(start); (1): s = 1; (Exp): s ~ Exp(1), range over the seeds"
    )
    reads: dict[str, Callable[[Escape], float]] = {
        "‖ḡ‖": lambda e: e.gradient,
        "certificate": lambda e: e.certificate,
        "change": lambda e: e.change,
    }
    if width < WIDE:
        del reads["certificate"]
    heads = [f"{name} ({law})" for name in reads for law in ("1", "Exp")]
    table = Table([Column("trap", "left"), *heads], notes=notes if width >= WIDE else "")
    for name in dict.fromkeys(e.trap for e in found):
        groups = [[e for e in found if e.trap == name and e.scaled == scaled] for scaled in (False, True)]
        table.add(name, *(_range([read(e) for e in group]) for read in reads.values() for group in groups))
    return table


def _range(values: Sequence[float]) -> str:
    if not values:
        return NONE
    low, high = (f"{v:.2g}" if abs(v) < 10 else f"{v:.0f}" for v in (min(values), max(values)))
    low, high = ("0" if abs(float(v)) < 1e-9 else v for v in (low, high))
    return low if low == high else f"{low} to {high}"


def chain_table(found: Sequence[ChainSearch]) -> Table:
    """Return one row per ε."""
    known = hard_chain.CONSTANTS
    notes = (
        f"F* = {known['gap']:g}, G = σ = {known['lipschitz']:g}, c = {known['c']:g}; "
        "needed: half of all runs take longer;\n"
        "taken: median of the fastest setting; early: a setting's runs below needed"
    )
    table = Table(["ε", "links", "p", "needed", "taken", "taken/needed", "early", "runs", ""], notes=notes)
    for s in sorted(found, key=lambda s: -s.eps):
        ratio = f"{s.taken / s.needed:.2f}"
        cells = (f"{s.eps:g}", s.links, f"{s.probability:.4f}", s.needed, f"{s.taken:.0f}", ratio, s.early)
        table.add(*map(str, cells), f"{s.settings} × {s.seeds}", "ok" if s.agrees else WRONG)
    return table
