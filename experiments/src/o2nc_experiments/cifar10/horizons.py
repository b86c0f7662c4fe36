"""One run at a constant learning rate, read off at x̄, against a run that is decayed to every horizon.

    asked: arms, horizons, seeds, a grid of lr  →  tuning: trials on a seed of its own  →  plan: the trials to report

An arm that decays has a trial for every horizon, an arm that does not has one trial that goes through all of them.
Learning rates are those in the arms' names; where a name has none and there is a grid, lr is chosen on a seed that
is not reported, by test accuracy: of x̄ where lr is constant, of the last iterate where it decays. A decay has an lr
for every horizon up to ``tune_epochs``, longer ones take that of the longest; a constant lr is chosen there alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from o2nc_experiments import comparison
from o2nc_experiments.cifar10.arms import Arm, parse
from o2nc_experiments.classification import Epoch, from_columns, mean_of, written
from o2nc_experiments.comparison import Line, rates
from o2nc_experiments.tables import NONE, Column, Table, signed

AVERAGE, LAST = "x̄", "last"
Plan = dict[str, dict[int, Arm]]  # by the name that was asked for and the horizon, the trials' arm


@dataclass(frozen=True)
class Goal:
    """What is asked for."""

    arms: Sequence[Arm]
    horizons: Sequence[int]  # numbers of epochs, ascending; all trials without an end of their own go to the last
    seeds: Sequence[int]  # reported
    sweep: Sequence[float] = ()  # learning rates of arms that name none
    relative: bool = False  # whether these are multiples of an arm's usual one
    tune: int | None = None  # the seed that they are chosen on
    tune_epochs: int = 0  # after how many epochs
    is_plain: bool = False  # whether there is nothing to compare but the ends of all trials, as in Table 1

    def to_record(self) -> dict[str, Any]:
        """Return it for JSON."""
        return vars(self) | {"arms": [arm.name for arm in self.arms]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Goal | None":
        """Return what a record's command was to find, None where that was Table 1 alone."""
        asked = record.get("goal")
        return asked and cls(**asked | {"arms": [parse(name) for name in asked["arms"]]})

    def grid(self, arm: Arm) -> list[float]:
        """Return the learning rates that an arm is tried at; none where its name has one."""
        usual = arm.options.get("lr", 1.0) if self.relative else 1.0
        return [] if arm.lr is not None else sorted({float(f"{usual * value:.4g}") for value in self.sweep})

    def ends(self, arm: Arm) -> list[int]:
        """Return after how many epochs an arm is read off."""
        return [arm.end] if arm.end else list(self.horizons)

    def tuned(self, arm: Arm) -> list[int]:
        """Return after how many epochs an arm's learning rates are compared."""
        most = min(self.tune_epochs, self.ends(arm)[-1])
        return [h for h in self.ends(arm) if h < most and arm.schedule.decays] + [most]

    def ended(self, arm: Arm, epochs: int) -> Arm:
        """Return an arm whose trials end there; those that go to the last horizon need not say so."""
        return arm if epochs in (arm.end, self.horizons[-1]) else arm.variant(end=epochs)

    def tuning(self) -> list[Arm]:
        """Return the arms to be trained on the tuning seed."""
        return [
            self.ended(arm.variant(lr=lr), epochs)
            for arm in self.arms
            for epochs in self.tuned(arm)
            for lr in self.grid(arm)
        ]

    def tried(self, arm: Arm, epochs: int, rows: Iterable[Epoch]) -> dict[float, float | None]:
        """Return by learning rate the accuracies on the tuning seed that are known."""
        names = {self.ended(arm.variant(lr=lr), epochs).name: lr for lr in self.grid(arm)}
        found = (row for row in rows if row.seed == self.tune and row.epoch == epochs)
        return {names[row.arm]: accuracy(row, weights(arm)[0]) for row in found if row.arm in names}

    def choose(self, arm: Arm, epochs: int, rows: Sequence[Epoch]) -> float:
        """Return the lr of an arm that is read off after so many epochs; KeyError if it is not known yet."""
        at = max((h for h in self.tuned(arm) if h <= epochs), default=self.tuned(arm)[0])
        known = self.tried(arm, at, rows)
        return max(self.grid(arm), key=lambda lr: known[lr] or 0.0)

    def plan(self, rows: Sequence[Epoch]) -> Plan:
        """Return what is to be trained on the reported seeds, without arms whose lr is not known yet."""
        found: Plan = {}
        for arm in self.arms:
            with suppress(KeyError):
                for h in self.ends(arm):
                    own = arm if self.is_plain else arm.variant()  # `sgdm(lr=0.01)` is `sgdm`, which may be known
                    if self.grid(arm):
                        own = arm.variant(lr=self.choose(arm, h, rows))
                    end = self.ended(own, h) if arm.schedule.decays else own
                    found.setdefault(arm.name, {})[h] = end
        return found


def weights(arm: Arm) -> tuple[str, ...]:
    """Return what is read off, what counts first: a decayed run's last iterate, else x̄ if there is one."""
    if not arm.averages:
        return (LAST,)
    return (LAST, AVERAGE) if arm.schedule.decays else (AVERAGE, LAST)


def accuracy(row: Epoch, what: str) -> float | None:
    """Return the test accuracy of x̄ or of the last iterate."""
    return row.average_accuracy if what == AVERAGE else row.test_accuracy


def make_lines(goal: Goal, rows: Sequence[Epoch]) -> list[Line]:
    """Return the lines of the table, as far as there are results."""
    plan, found = goal.plan(rows), []
    for arm in goal.arms:
        trials, one_run = plan.get(arm.name, {}), not arm.schedule.decays
        ends = {own.name: h for h, own in trials.items()}
        mine = [row for row in rows if row.seed in goal.seeds and row.arm in ends]
        lrs = [own.options["lr"] for own in trials.values() if "lr" in own.options]
        for i, what in enumerate(weights(arm)):
            values: dict[int, dict[int, float]] = {}
            for row in mine:
                value = accuracy(row, what)
                if value is not None and (one_run or row.epoch == ends[row.arm]):
                    values.setdefault(row.epoch, {})[row.seed] = value
            if values:
                found.append(Line(f"{arm.name}, {what}", rates(lrs), one_run, i > 0, values))
    return found


def accuracies(goal: Goal, lines: Sequence[Line]) -> Table:
    """Return test accuracies by horizon, those of one run first."""
    notes = (
        "test accuracy in %; mean ± standard deviation (n − 1) over the seeds; "
        "x̄: with BatchNorm's statistics made anew"
    )

    def cell(line: Line, h: int) -> str:
        return written(mean_of(own), 1e2) if (own := line.of(h)) else NONE

    return comparison.by_horizon("epochs", goal.horizons, lines, cell, notes)


def paired(goal: Goal, lines: Sequence[Line]) -> Table | None:
    """Return the differences to the first arm that decays, seed by seed; None if there is none."""
    decayed = next((line for line in lines if not line.is_one_run), None)
    if decayed is None:
        return None
    notes = "points of test accuracy, seed by seed; mean ± standard deviation; positive: better than that"
    others = dict.fromkeys(goal.horizons, decayed)
    return comparison.paired(f"minus {decayed.name}", lines, others, points, notes)


def points(ahead: Sequence[float]) -> str:
    """Return differences of accuracy in points."""
    if not ahead:
        return NONE
    mean = mean_of([100 * value for value in ahead])
    return signed(mean.value) + ("" if mean.deviation is None else f" ± {mean.deviation:.2f}")


def grids(goal: Goal, rows: Sequence[Epoch]) -> Table | None:
    """Return the accuracies at all learning rates that were tried; None if there was no choice."""
    rates = sorted({lr for arm in goal.arms for lr in goal.grid(arm)})
    if not rates:
        return None
    notes = f"test accuracy in % on seed {goal.tune}; ✓: chosen; !: at the edge of what was tried"
    table = Table([Column("arm", "left"), "epochs", *(f"lr {lr:g}" for lr in rates)], notes=notes)
    for arm in goal.arms:
        for epochs in goal.tuned(arm) if goal.grid(arm) else ():
            known = goal.tried(arm, epochs, rows)
            best = goal.choose(arm, epochs, rows) if len(known) == len(goal.grid(arm)) else None
            mark = " ✓ !" if best in (goal.grid(arm)[0], goal.grid(arm)[-1]) else " ✓"
            cells = {lr: f"{100 * own:.2f}{mark * (lr == best)}" for lr, own in known.items() if own is not None}
            table.add(arm.name, str(epochs), *(cells.get(lr, NONE) for lr in rates))
    return table


def reported(record: Mapping[str, Any]) -> list[Epoch]:
    """Return the rows of a record, without those of the seed that learning rates were chosen on."""
    tune = record.get("goal", {}).get("tune")
    return [row for row in from_columns(record) if row.seed != tune]


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Return all tables of a record, none where nothing was asked for but Table 1."""
    goal, rows = Goal.from_record(record), from_columns(record)
    if goal is None:
        return []
    lines = make_lines(goal, rows)
    found = [grids(goal, rows), accuracies(goal, lines) if lines else None, paired(goal, lines)]
    return [table for table in found if table is not None]
