"""What was found, as ratios to plain momentum with linear decay, and as tables."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from o2nc import Law, scaling
from o2nc_experiments.nonsmooth.arms import ARMS, DECAYED, FREE, LAWS, OTHERS, RANDOM, REFERENCE
from o2nc_experiments.nonsmooth.escapes import Escape
from o2nc_experiments.nonsmooth.objectives import OBJECTIVES
from o2nc_experiments.nonsmooth.study import CERTIFICATE, TOGETHER, VALUE, Result
from o2nc_experiments.tables import NONE, Column, Table

FLOOR = 1e-3  # certificates below this share of G count as that: gradients of kinks may cancel by chance
TINY = 1e-300


class Ratio(NamedTuple):
    """A geometric mean over the problems, relative to the reference."""

    mean: float  # of its logarithm over the seeds
    deviation: float  # standard deviation of it

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "∞" if self.mean > 0 else NONE
        value = math.exp(self.mean)
        return f"{value:.2f} ± {self.deviation:.2f}" if value < 100 else f"{value:.0f} ± {self.deviation:.2f}"


class Findings:
    """Results by what they are of."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._by = {(r.arm, r.objective, r.horizon, r.tuned): r for r in results}
        self.objectives = list(dict.fromkeys(r.objective for r in results))
        self.horizons = sorted({r.horizon for r in results})

    def logs(
        self,
        arm: str,
        objective: str,
        horizon: int,
        tuned: str,
        measure: str = VALUE,
        reference: str = REFERENCE.name,
    ) -> list[float]:
        """Return the logarithms of the ratio to the reference, for every seed that both were run with."""
        wanted = CERTIFICATE if tuned == CERTIFICATE else VALUE
        own, other = (
            self._by.get((name, objective, horizon, what)) for name, what in ((arm, tuned), (reference, wanted))
        )
        if own is None or other is None:
            return []
        pairs = zip(*((r.values if measure == VALUE else r.certificates) for r in (own, other)), strict=False)
        least = TINY if measure == VALUE else FLOOR * OBJECTIVES[objective].problem.lipschitz
        return [_log(a, least) - _log(b, least) for a, b in pairs]

    def ratio(
        self, arm: str, horizon: int, tuned: str, measure: str = VALUE, reference: str = REFERENCE.name
    ) -> Ratio:
        """Return the geometric mean over all objectives on which the arm was run."""
        known = [self.logs(arm, name, horizon, tuned, measure, reference) for name in self.objectives]
        by_seed = [fmean(logs) for logs in zip(*filter(None, known), strict=True)]
        if not by_seed:
            return Ratio(-math.inf, 0.0)
        if not all(map(math.isfinite, by_seed)):
            return Ratio(math.inf, 0.0)
        return Ratio(fmean(by_seed), stdev(by_seed) if len(by_seed) > 1 else 0.0)


def _log(value: float, least: float) -> float:
    return math.log(max(value, least)) if math.isfinite(value) else math.inf


def deviation(law: Law) -> float:
    """Return the standard deviation of a law of mean 1."""
    return math.sqrt(scaling.second_moment(law) - 1)


def price(value: float) -> str:
    """Return L in three digits at most."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def costs(found: Findings) -> Table:
    """Return what randomness costs with linear decay."""
    notes = (
        "F, certificate: geometric mean over the problems against SGDM, both with linear decay and tuned lr;\n"
        "± standard deviation of its logarithm over the seeds. own lr: lr tuned for the certificate in both;\n"
        f"certificates below {FLOOR:g}·G count as that; std, L: standard deviation of s, price of its law"
    )
    known = [h for h in found.horizons if found.ratio(RANDOM[1].name, h, VALUE).mean > -math.inf]
    shown = [(h, VALUE, VALUE, f"F\n{h:,}") for h in known]
    shown += [(known[-1], tuned, CERTIFICATE, f"{name}\n{known[-1]:,}") for tuned, name in _CERTIFICATES.items()]
    table = Table([Column("arm", "left"), "std", "L", *(head for *_, head in shown)], notes=notes)
    for arm in RANDOM:
        law = LAWS.get(arm.name.removeprefix("Nesterov, "))
        about = (NONE, NONE) if law is None else (f"{deviation(law):.2f}", price(scaling.price(law)))
        table.add(arm.name, *about, *(str(found.ratio(arm.name, h, *ways)) for h, *ways, _ in shown))
    return table


_CERTIFICATES = {VALUE: "certificate", CERTIFICATE: "certificate, own lr"}


def optimizers(found: Findings) -> Table:
    """Return what randomness costs other optimizers: against the same without a law, and against SGDM."""
    notes = (
        "F, certificate: geometric mean over the problems, all with linear decay and tuned lr, against the same\n"
        "optimizer without a law and (right) against SGDM; ± standard deviation of its logarithm over the seeds;\n"
        f"own lr: lr tuned for the certificate in both; certificates below {FLOOR:g}·G count as that"
    )
    last = found.horizons[-1]
    own = [(h, VALUE, VALUE, f"F\n{h:,}") for h in found.horizons]
    own += [(last, tuned, CERTIFICATE, f"{name}\n{last:,}") for tuned, name in _CERTIFICATES.items()]
    sgdm = [(last, VALUE, measure, f"{measure}\n/ SGDM, {last:,}") for measure in (VALUE, CERTIFICATE)]
    table = Table([Column("arm", "left"), *(head for *_, head in own + sgdm)], notes=notes)
    for arm in OTHERS:
        plain = arm.name.partition(", ")[0]
        ratios = [found.ratio(arm.name, h, tuned, measure, plain) for h, tuned, measure, _ in own]
        ratios += [found.ratio(arm.name, h, tuned, measure) for h, tuned, measure, _ in sgdm]
        table.add(arm.name, *map(str, ratios))
    return table


def horizons(found: Findings) -> Table:
    """Return how runs without a horizon compare with runs that were decayed to end there."""
    notes = (
        "F against SGDM with linear decay to that horizon and an lr tuned for it, as above;\n"
        "left: an lr for every horizon; right: one run, its lr tuned for all horizons together"
    )
    heads = [f"{h:,} steps{more}" for more in ("", "\none run") for h in found.horizons]
    table = Table([Column("arm", "left"), *heads], notes=notes)
    for title, arms in (("a run for every horizon", [REFERENCE, _NESTEROV, *DECAYED]), ("without a horizon", FREE)):
        table.add_heading(title)
        for arm in arms:
            ways = (VALUE,) if arm not in FREE else (VALUE, TOGETHER)
            cells = [str(found.ratio(arm.name, h, tuned)) for tuned in ways for h in found.horizons]
            table.add(f"  {arm.name}", *cells, *[NONE] * (len(heads) - len(cells)))
    return table


_NESTEROV = next(arm for arm in RANDOM if arm.name == "Nesterov")


def by_objective(found: Findings, horizon: int) -> Table:
    """Return F of the reference and every other arm's ratio to it, problem by problem."""
    names = [Column(f"{i}") for i in range(1, len(found.objectives) + 1)]
    notes = "\n".join(f"{i}: {name}" for i, name in enumerate(found.objectives, 1))
    table = Table([Column("arm", "left"), *names], f"F against SGDM's after {horizon:,} steps", notes)
    for name in ARMS:
        logs = [found.logs(name, objective, horizon, VALUE) for objective in found.objectives]
        if any(logs):
            table.add(name, *(f"{math.exp(min(fmean(own), 99.0)):.2g}" if own else NONE for own in logs))
    return table


def traps(found: Sequence[Escape]) -> Table:
    """Return how many runs end above their start and how many are held, arm by arm."""
    notes = (
        f"{found[0].steps:,} steps, seven learning rates around the trapped one. above: F(end) > F(start), linear\n"
        "decay; F: F(end)/F(start) there, geometric mean; held: at constant lr the mean gradient of the last tenth\n"
        "is half of the trap's slope or more. T0, Z0, L1 have minima of one height: no decayed run ends above there"
    )
    kinds = ("T0", "Z0", "L1", "climber")
    heads = ("above", "F, d = 1", "F, d = 10", *(f"held: {kind}" for kind in kinds))
    table = Table([Column("arm", "left"), *heads], notes=notes)
    for arm in dict.fromkeys(e.arm for e in found):
        own = [e for e in found if e.arm == arm]
        climbers = {e.trap: e for e in own if e.trap.startswith("climber")}
        held = [[e for e in own if e.trap.startswith(kind)] for kind in kinds]
        table.add(
            arm,
            f"{sum(e.above for e in own)} of {sum(e.runs for e in own)}",
            *(f"{climbers[f'climber, d = {d}'].ratio:.2g}" for d in (1, 10)),
            *(f"{sum(e.held for e in part)} of {sum(e.runs for e in part)}" if part else NONE for part in held),
        )
    return table
