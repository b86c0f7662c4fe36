"""The study from options to record, whoever shows it: the terminal, or ``python -m o2nc_experiments.gpt``."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import torch

from o2nc_experiments import console, record
from o2nc_experiments.gpt import costs, data
from o2nc_experiments.gpt.arms import Arm
from o2nc_experiments.gpt.experiment import Watch, carry_out
from o2nc_experiments.gpt.model import GPT
from o2nc_experiments.gpt.optimizers import make
from o2nc_experiments.gpt.options import Options
from o2nc_experiments.gpt.planning import Goal, Row, Run, runs, wanted
from o2nc_experiments.gpt.store import Found, Speed, Store
from o2nc_experiments.gpt.training import Trainer
from o2nc_experiments.processes import find_device, find_world, process_group
from o2nc_experiments.tables import plural

NARROW = (
    128  # up to this width one thread of a CPU is about as fast as several, and bits do not depend on their number
)


Say = Callable[[str], object]
Watching = Callable[[int], AbstractContextManager[Watch]]


def conduct(given: Options, say: Say, watching: Watching) -> tuple[Found, Goal, dict[str, Any]]:
    """Make the runs that are not there yet; return results, goal and record, of an interrupted study what there is.

    Args:
        given: the options.
        say: shows a line.
        watching: with the number of steps to be made, gives a function to be told of progress.

    Raises:
        ValueError: an option cannot be used; the text says why.
        OSError: data or folder cannot be used; likewise.
    """
    world = find_world()
    device = find_device(given.device, world)
    settings, goal = given.settings(device.type), given.goal(device.type)
    if settings.rows % world.size:
        raise ValueError(
            f"--batch {settings.batch} is {settings.rows} rows, which {world.size} processes cannot share"
        )
    for arm in goal.arms:
        check(arm, device)
    corpus = data.load(given.data)
    corpus.check(settings.context)
    with one_thread(device, settings.width), process_group(device):
        return _make_runs(given, goal, Trainer(corpus, settings, device, world), corpus, say, watching)


def _make_runs(
    given: Options, goal: Goal, trainer: Trainer, corpus: data.Corpus, say: Say, watching: Watching
) -> tuple[Found, Goal, dict[str, Any]]:
    """Make the runs; the trainer is let go before its process group is."""
    settings, device, world = trainer.settings, trainer.device, trainer.world
    common = asdict(settings) | {"parameters": trainer.parameters, "data": corpus.name, "digest": corpus.digest}
    store = Store(given.out, common | {"vocabulary": corpus.vocabulary}, world)
    about = record.circumstances(given.command, seeds=list(goal.seeds), **record.describe(device))
    about |= {"processes": world.size, "evaluated_tokens": trainer.evaluated}
    about["peak_tokens_per_second"] = trainer.peak
    with store.locked():
        found = store.load()
        legs = wanted(goal, found.rows)
        planned = runs(legs)
        say(opening(planned, found, about, trainer, corpus))
        if legs:
            about["warm_up_seconds"] = round(trainer.warm_up(), 1)
            if given.costs and not found.costs:
                found.costs = costs.measure(trainer)

        def save() -> dict[str, Any]:
            return store.save(found, about, goal, complete=not wanted(goal, found.rows))

        def finished(rows: Sequence[Row]) -> None:
            save()
            say(run_line(rows, found.speeds[-1], settings.batch))

        with watching(sum(run.steps for run in planned)) as watch:
            carry_out(goal, found, trainer, store, watch=watch, on_run=finished, save_every=given.save_every)
        return found, goal, save()


def check(arm: Arm, device: torch.device) -> None:
    """Refuse an arm whose optimizer refuses its numbers, before hours of training: ValueError."""
    model = GPT(1, 4, 1, 2, 2).to(device)
    model.begin_(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = make(arm, model, arm.windows[0] if arm.windows else None, 0)
            model(torch.ones(1, 3, dtype=torch.int64, device=device)).backward()
            for optimizer in made:
                optimizer.step()
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(f"arm {arm.name!r}: {error}") from None


def one_thread(device: torch.device, width: int) -> AbstractContextManager[Any]:
    """Return the context in which a small model is trained on a CPU."""
    if device.type != "cpu" or width > NARROW:
        return nullcontext()
    return console.one_thread()


def opening(
    planned: Sequence[Run], found: Found, about: dict[str, Any], trainer: Trainer, corpus: data.Corpus
) -> str:
    """Return what is to be done, on what, and what is done already."""
    left = f"; {plural(corpus.left_out, 'file')} left out, which are no text" if corpus.left_out else ""
    parts = [
        f"{plural(len(planned), 'run')} of {sum(run.steps for run in planned):,} steps in all on {about['device']} "
        f"({about['hardware']})",
        f"{trainer.parameters / 1e6:.3g} M parameters",
        f"{len(corpus.train):,} tokens of {corpus.name}, {len(corpus.held_out):,} held out{left}",
    ]
    if found.speeds:
        parts.append(f"{plural(len(found.speeds), 'run')} in the folder")
    return "; ".join(parts)


def run_line(rows: Sequence[Row], speed: Speed, batch: int) -> str:
    """Return a finished run in one line: the losses at the longest horizon of each of its arms, and its speed."""
    said = []
    for arm, horizon in {row.arm: row.horizon for row in rows}.items():  # ascending: the last one stays
        own = [row for row in rows if (row.arm, row.horizon) == (arm, horizon)]
        each = [f"{row.weights} {'diverged' if row.loss is None else f'{row.loss:.4f}'}" for row in own]
        said.append(f"{arm} to {horizon:,}: {', '.join(each)}")
    rate = f"{speed.steps * batch / speed.seconds:,.0f} tokens/s"
    return f"seed {rows[0].seed}, lr {rows[0].lr:g}: {'; '.join([*said, rate])}"
