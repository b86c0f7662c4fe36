"""All runs of a goal, one after the other.

What is still to be run is worked out from the rows (`planning.wanted`), so nothing has to be remembered but them and
the state of the run under way.
"""

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch

from o2nc_experiments.gpt.planning import Goal, Leg, Row, Run, runs, wanted
from o2nc_experiments.gpt.store import Found, Point, Speed, Store, finite
from o2nc_experiments.gpt.training import Progress, Trainer, Training

POINTS = 40  # of a run's course
TOLD = 10  # steps between two words of progress
TERMINATED = 143


class Stop:
    """Ctrl-C and SIGTERM, answered between two steps: no state is half a step's.

    Args:
        trainer: of several processes all stop at the same step, one of those after which they report.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.asked: BaseException | None = None
        self.world, self.device = trainer.world, trainer.device

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note signals instead of being interrupted by them, in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        answers = {signal.SIGINT: KeyboardInterrupt(), signal.SIGTERM: SystemExit(TERMINATED)}

        def note(number: int, _: object) -> None:
            self.asked = self.asked or answers[signal.Signals(number)]

        before = {number: signal.signal(number, note) for number in answers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def check(self) -> None:
        """Raise what was asked for."""
        if self.asked is not None and self.world.size == 1:
            raise self.asked

    def check_together(self) -> None:
        """Raise what any of several processes was asked for."""
        if self.world.size > 1:
            asked = torch.tensor(float(self.asked is not None), device=self.device)
            if self.world.sum_(asked).item():
                raise self.asked or KeyboardInterrupt


Watch = Callable[[Run, int, Progress | None], object]  # the run, how many steps were made since, what is known


class Execution:
    """One run: the trunk, what is read off it, and the decays that branch off.

    Args:
        trainer: of the process.
        run: what is to be done.
        stop: asked before every step.
        watch: told of progress.
        keep: called with a state from which the run can go on.
        save_every: seconds between two such calls.
    """

    def __init__(
        self,
        trainer: Trainer,
        run: Run,
        stop: Stop,
        watch: Watch,
        keep: Callable[[dict[str, Any]], object],
        save_every: float,
    ) -> None:
        self.run, self.stop, self.watch, self.keep, self.save_every = run, stop, watch, keep, save_every
        first, self.warmup = run.legs[0], trainer.settings.warmup
        longest = max(leg.horizon for leg in run.legs)
        self.training = Training(trainer, first.arm, first.lr, first.seed, run.windows, longest)
        self.every = max(1, longest // POINTS)
        self.done = 0  # legs
        self.rows: list[Row] = []
        self.course: list[Point] = []
        self.spent, self.evaluating, self.steps, self.told = 0.0, 0.0, 0, 0
        self.fork: dict[str, Any] | None = None  # the trunk's state while a branch is under way
        self.saved = self.clock = perf_counter()

    def state(self) -> dict[str, Any]:
        """Return a state of the trunk from which the run can go on, and what is known there."""
        known = {"done": self.done, "rows": [list(row) for row in self.rows]}
        known |= {
            "course": [list(point) for point in self.course],
            "spent": [self.spent, self.evaluating, self.steps],
        }
        return (self.fork or self.training.state()) | known

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.training.restore(state)
        self.done, self.rows = state["done"], [Row(*row) for row in state["rows"]]
        self.course = [Point(*point) for point in state["course"]]
        self.spent, self.evaluating, self.steps = state["spent"]
        self._tell(None)

    def finish(self) -> tuple[list[Row], list[Point], Speed]:
        """Make the run; interrupted, it keeps what it has."""
        self.clock = perf_counter()
        try:
            for leg in self.run.legs[self.done :]:
                self._leg(leg)
                self.done += 1
        except (KeyboardInterrupt, SystemExit):
            self.keep(self.state())
            raise
        return self.rows, self.course, Speed(self.run.name, self.steps, self.spent, self.evaluating)

    def _leg(self, leg: Leg) -> None:
        """Go along the trunk to where the leg leaves it, and evaluate it, there or at the end of its branch."""
        if not self._to(leg.fork, self.run.schedule.factor, leg):
            return
        if leg.fork == leg.horizon:
            self._evaluate(leg)
            return
        self.fork = self.training.state()
        if self._to(leg.horizon, leg.arm.schedule.factor, leg):
            self._evaluate(leg)
        if leg is not self.run.legs[-1]:
            self.training.restore(self.fork)
        self.fork = None

    def _to(self, until: int, factor: Callable[[int, int, int], float], leg: Leg) -> bool:
        """Train up to a step; False if it has diverged, which the leg's rows then say."""
        training = self.training
        while training.step < until:
            self.stop.check()
            training.advance(factor(training.step, leg.horizon, self.warmup))
            self.steps += 1
            if training.step % self.every == 0 or training.step == until:
                if not math.isfinite(self._report()):
                    self.rows += [Row(*leg.key, weights, None) for weights in leg.arm.weights]
                    return False
            elif self.steps % TOLD == 0:
                self._tell(None)
        return True

    def _tell(self, known: Progress | None) -> None:
        self.watch(self.run, self.steps - self.told, known)
        self.told = self.steps

    def _report(self) -> float:
        known = self.training.report()
        self._lap()
        self._tell(known)
        if self.fork is None and known.step:
            parts = known.certificate or (None, None, None)
            numbers = (None if part is None else finite(part) for part in parts)
            self.course.append(Point(self.run.name, known.step, finite(known.loss), *numbers))
        if perf_counter() - self.saved >= self.save_every:
            self.keep(self.state())
            self.saved = self.clock = perf_counter()
        self.stop.check_together()
        return known.loss

    def _lap(self) -> None:
        now = perf_counter()
        self.spent, self.clock = self.spent + now - self.clock, now

    def _evaluate(self, leg: Leg) -> None:
        known = self.training.certificate()
        parts = (None, None) if known is None else (finite(known.gradient), finite(known.spread))
        for weights in leg.arm.weights:
            loss = finite(self.training.evaluate(weights))
            self.rows.append(Row(*leg.key, weights, loss, *parts))
        now = perf_counter()
        self.evaluating, self.clock = self.evaluating + now - self.clock, now


def carry_out(
    goal: Goal,
    found: Found,
    trainer: Trainer,
    store: Store,
    *,
    watch: Watch,
    on_run: Callable[[Sequence[Row]], object],
    save_every: float,
) -> None:
    """Make all runs that are still needed, and add what they find; interrupted, the one under way is kept."""
    stop = Stop(trainer)
    with stop.listening():
        while legs := wanted(goal, found.rows):
            run = runs(legs)[0]
            execution = Execution(trainer, run, stop, watch, partial(store.keep, run), save_every)
            state = store.kept(run)
            if state is not None:
                execution.restore(state)
            rows, course, speed = execution.finish()
            found.rows += rows
            found.course += course
            found.speeds.append(speed)
            on_run(rows)
            store.forget()
