"""What came out, as lines of tables: losses by horizon, and paired differences to the best decayed run."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any

from o2nc_experiments import comparison
from o2nc_experiments.comparison import by_horizon, differences, head, rates
from o2nc_experiments.gpt.arms import LAST, Arm, parse
from o2nc_experiments.gpt.planning import Goal, Results, Row, explored, favourite, lines, parts
from o2nc_experiments.gpt.store import Found, Speed
from o2nc_experiments.tables import NONE, Cell, Column, Table, plural, signed

NOTE = (
    "loss in nats per token on texts that are held out; mean ± standard deviation (n − 1) over the seeds; bold: the "
    "best of a column"
)


@dataclass(frozen=True)
class Line(comparison.Line):
    """One line of the table; a loss is inf where a run diverged."""

    arm: Arm  # how it was trained
    weights: str  # what was evaluated
    lrs: Mapping[int, float]  # by horizon
    is_chosen: bool  # whether these are the weights by which the arm is judged

    def mean(self, horizon: int) -> float:
        """Return the mean loss over the seeds, inf if there is none."""
        return fmean(self.of(horizon)) if self.of(horizon) else math.inf


def goal_of(record: Mapping[str, Any]) -> Goal:
    """Return what a record's command was to find."""
    asked = dict(record["goal"])
    return Goal(**asked | {"arms": [parse(name) for name in asked["arms"]]})


def make_lines(goal: Goal, rows: Sequence[Row]) -> list[Line]:
    """Return the lines of the table, as far as there are results of the seeds that are reported."""
    results = Results(rows)
    titles = _titles(goal)
    found = []
    for arm, weights, lrs in lines(goal, rows):
        values: dict[int, dict[int, float]] = {}
        for horizon, lr in lrs.items():
            for seed in goal.seeds:
                loss = results.losses.get((arm.name, lr, seed, horizon), {}).get(weights)
                if loss is not None:
                    values.setdefault(horizon, {})[seed] = loss
        if values:
            what = f", x̄ by {weights}" if weights in arm.windows else f", {LAST}" if arm.windows else ""
            is_aside = weights == LAST and len(arm.weights) > 1
            common = (titles[arm.name] + what, rates([*lrs.values()]), not arm.schedule.decays, is_aside, values)
            is_chosen = weights == favourite(goal, arm, lrs, results)
            found.append(Line(*common, arm, weights, lrs, is_chosen))
    return found


def _titles(goal: Goal) -> dict[str, str]:
    """Return names of the arms without their windows; where learning rates were tried, without the arm's own, too."""
    plain = {arm.name: arm.name.partition("+")[0] for arm in goal.arms}
    bare = {name: re.sub(r"\(lr=[^,)]*\)|(?<=\()lr=[^,)]*,|,lr=[^,)]*", "", title) for name, title in plain.items()}
    return bare if goal.sweep and len({*bare.values()}) == len({*plain.values()}) else plain


def best_decayed(found: Sequence[Line], horizon: int) -> Line | None:
    """Return the decayed runs with the least mean loss at a horizon."""
    decayed = [line for line in found if not line.is_one_run and math.isfinite(line.mean(horizon))]
    return min(decayed, key=lambda line: line.mean(horizon), default=None)


def written(values: Sequence[float], *, sign: bool = False) -> str:
    """Return mean ± standard deviation.

    Example:
        >>> written([1.25, 1.75]), written([0.01], sign=True), written([])
        ('1.500 ± 0.354', '+0.0100', '–')
    """
    if not values:
        return NONE
    if not all(map(math.isfinite, values)):
        return "diverged"
    decimals = 4 if sign else 3
    mean = signed(fmean(values), decimals) if sign else f"{fmean(values):.{decimals}f}"
    return f"{mean} ± {stdev(values):.{decimals}f}" if len(values) > 1 else mean


def losses(goal: Goal, found: Sequence[Line]) -> Table:
    """Return the losses of all arms, those of one run first."""
    best = {h: min((line.mean(h) for line in found), default=math.inf) for h in goal.horizons}

    def cell(line: Line, h: int) -> Cell:
        return Cell(written(line.of(h)), "bold" if line.mean(h) == best[h] else "")

    return by_horizon("steps", goal.horizons, found, cell, NOTE)


def paired(goal: Goal, found: Sequence[Line]) -> Table | None:
    """Return the differences to the best decayed run, seed by seed; None if there is none."""
    best = {h: best_decayed(found, h) for h in goal.horizons}
    if not any(best.values()):
        return None
    names: dict[str, list[int]] = {}
    for h, line in best.items():
        names.setdefault(line.name if line else NONE, []).append(h)
    each = (f"{name} at {', '.join(f'{h:,}' for h in own)}" for name, own in names.items())
    notes = f"the best decayed runs: {'; '.join(each)}\nnegative: better than that"
    write = partial(written, sign=True)
    return comparison.paired("difference to the best decayed run", found, best, write, notes)


def grids(goal: Goal, rows: Sequence[Row]) -> Table | None:
    """Return the losses of all learning rates that were tried, the chosen ones bold; None if there was but one."""
    results = Results(rows)
    seeds = goal.seeds if goal.tune is None else [goal.tune]
    table = Table(
        head(goal.horizons, "arm", "lr"),
        notes=f"mean over seed {', '.join(map(str, seeds))}, the best average of an arm; "
        "bold: chosen; !: chosen at the edge of what was tried",
    )
    for arm in goal.arms:
        averages = [w for w in arm.weights if w != LAST] or [LAST]
        tried = {h: explored(goal, arm, part, results) for part in parts(goal, arm) for h in part}
        chosen = next((line.lrs for line in make_lines(goal, rows) if line.arm is arm), {})
        grid = sorted({lr for lrs in tried.values() for lr in lrs})
        for lr in grid if len(grid) > 1 else ():
            cells = []
            for h in goal.horizons:
                known = [results.losses.get((arm.name, lr, seed, h)) for seed in seeds]
                means = [fmean(one[w] for one in known if one) for w in averages if all(known)]
                text = NONE if not means else f"{min(means):.3f}" if math.isfinite(min(means)) else "diverged"
                is_chosen = chosen.get(h) == lr
                edge = " !" if is_chosen and lr in (tried[h][0], tried[h][-1]) else ""
                cells.append(Cell(text + edge, "bold" if is_chosen else ""))
            table.add(arm.name, f"{lr:g}", *cells)
    return table if table.lines else None


def verdict(goal: Goal, found: Sequence[Line]) -> str:
    """Return in a sentence how the one run compares, as far as there is something to compare."""
    one = next((line for line in found if line.is_one_run and line.is_chosen), None)
    if one is None:
        return ""
    said = [
        f"{written(differences(one, other, h), sign=True)} at {h:,}"
        for h in goal.horizons
        if (other := best_decayed(found, h)) and h in one.values
    ]
    if not said:
        return ""
    same = ", one run" if len(set(one.lrs.values())) == 1 else ""
    tuned = "" if len(goal.sweep) > 1 else " No learning rate was tuned: --sweep and --tune do that."
    return f"{one.name} at lr {one.lr}{same}, minus the best decayed run in nats: {', '.join(said)}.{tuned}"


COSTS = {
    "model": "forward and backward",
    "clipping": "clipping",
    "adamw": "AdamW",
    "adamw_mean": "AdamW with x̄",
    "adamw_mean_certificate": "AdamW with x̄ and certificate",
    "further_mean": "a further mean",
    "evaluation": "one evaluation",
}


def costs(found: Mapping[str, float]) -> Table:
    """Return what the parts of a step take."""
    table = Table([Column("part of a step", "left"), "ms", "% of a step"], notes="a step: model, clipping, AdamW")
    step = sum(found[key] for key in ("model", "clipping", "adamw"))
    for key, name in COSTS.items():
        table.add(name, f"{found[key]:.2f}", f"{100 * found[key] / step:.1f}")
    return table


def tables(goal: Goal, found: Found) -> list[Table]:
    """Return all tables there are."""
    shown = make_lines(goal, found.rows)
    known = [grids(goal, found.rows), losses(goal, shown), paired(goal, shown)]
    return [table for table in [*known, costs(found.costs) if found.costs else None] if table is not None]


def speed(record: Mapping[str, Any]) -> str:
    """Return how fast it was."""
    speeds, about = [Speed(*row) for row in record["speed_rows"]], record["circumstances"]
    steps, seconds = sum(s.steps for s in speeds), sum(s.seconds for s in speeds)
    if not seconds:
        return ""
    rate = steps * record["settings"]["batch"] / seconds
    peak = about.get("peak_tokens_per_second")
    used = f", {100 * rate / peak:.1f} % of the peak's floating point operations" if peak else ""
    return (
        f"{plural(len(speeds), 'run')}, {steps:,} steps at {1e3 * seconds / steps:.1f} ms on {about['hardware']}: "
        f"{rate:,.0f} tokens/s{used}."
    )
