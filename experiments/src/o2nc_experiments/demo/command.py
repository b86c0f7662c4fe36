"""``o2nc demo``: run with a progress bar, show in the terminal, write the record, the picture and the page."""

import json
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import Progress

from o2nc_experiments import figures, page, record
from o2nc_experiments.classification import Epoch, to_columns
from o2nc_experiments.console import make_console, one_thread, print_plain, progress_bar, uninterrupted
from o2nc_experiments.demo import climber, digits

NAME = "demo.json"


def show(out: Path, seeds: range, steps: int, epochs: int, quiet: bool) -> None:
    """Run the demo, then show and write it; of an interrupted one the runs that finished.

    An interrupted demo never takes the place of a complete one.
    """
    console = make_console(quiet)
    data = digits.load()
    runs: list[climber.Run] = []
    rows: list[Epoch] = []
    begun, stopped = perf_counter(), None
    try:
        with one_thread(), progress_bar(console) as bar:
            climb(bar, runs, seeds, steps)
            train(bar, rows, seeds, epochs, data)
    except (KeyboardInterrupt, SystemExit) as stop:  # Ctrl-C, SIGTERM
        if not runs:
            raise
        stopped = stop
    with uninterrupted():
        kept = stopped is not None and complete(out)
        try:
            print_results(console, runs, rows, data)
        finally:  # the terminal may be gone
            if not kept:
                found = {
                    "circumstances": circumstances(seeds, steps, epochs, data),
                    "complete": stopped is None,
                    "seconds": perf_counter() - begun,
                    "climber": {"runs": [asdict(r) | {"certificates": r.certificates} for r in runs]},
                    "digits": to_columns(rows),
                }
                write(console, out, found, runs)
    if stopped is not None:
        finished, wanted = len(runs) + len(rows) // epochs, len(climber.trials(seeds)) + len(digits.trials(seeds))
        which = f"; the complete results in {out} are kept" if kept else ", which are kept"
        stopped.args += (f"after {finished} of {wanted} runs{which}",)
        raise stopped


def complete(out: Path) -> bool:
    """Say whether there are results of a complete demo."""
    try:
        return json.loads((out / NAME).read_text(encoding="utf-8"))["complete"] is True
    except (OSError, ValueError, LookupError, TypeError):
        return False


def print_results(console: Console, runs: list[climber.Run], rows: list[Epoch], data: digits.Digits) -> None:
    """Show tables and sentences."""
    console.print(climber.table(runs))
    if rows:
        console.print(digits.table(rows))
    console.print(f"\n{climber.summary(runs)}\n{digits.summary(rows, len(data.test))}".rstrip(), markup=False)


def write(console: Console, out: Path, found: dict[str, Any], runs: list[climber.Run]) -> None:
    """Write the record, the picture and the report, and say where it is."""
    record.write(out / NAME, found)
    figures.save(climber.plot(runs), out, "climber", ["png"])
    written = page.write([out / NAME], out / page.NAME)
    print_plain(console, f"Report: {written}")


def climb(bar: Progress, runs: list[climber.Run], seeds: range, steps: int) -> None:
    """Add the climbers to the runs, as they finish."""
    trials = climber.trials(seeds)
    task = bar.add_task(f"{len(trials)} climbers", total=len(trials) * steps)
    for trial in trials:
        runs.append(climber.climb(*trial, steps, lambda made: bar.advance(task, made)))
    bar.remove_task(task)


def train(bar: Progress, rows: list[Epoch], seeds: range, epochs: int, data: digits.Digits) -> None:
    """Add the trials to the rows, as they finish."""
    trials = digits.trials(seeds)
    task = bar.add_task(f"{len(trials)} networks", total=len(trials) * epochs)

    def show_epoch(row: Epoch) -> None:
        bar.update(task, advance=1, description=f"{digits.NAMES[row.arm]}: {100 * row.test_accuracy:.1f} % right")

    for trial in trials:
        rows += digits.train(*trial, epochs, data, show_epoch)


def circumstances(seeds: range, steps: int, epochs: int, data: digits.Digits) -> dict[str, Any]:
    """Return what is needed to make the results again."""
    return record.circumstances(
        f"o2nc demo --seed {seeds[0]} --steps {steps} --epochs {epochs}",
        seeds=list(seeds),
        climber_steps=steps,
        climber_momentum=climber.MOMENTUM,
        climber_average=climber.AVERAGE,
        climber_c=climber.C,
        digits_epochs=epochs,
        digits_train=len(data.train),
        digits_test=len(data.test),
        digits_channels=list(digits.CHANNELS),
        digits_batch=digits.BATCH,
        digits_lr=digits.LR,
        digits_momentum=digits.MOMENTUM,
        digits_weight_decay=digits.WEIGHT_DECAY,
        digits_average=digits.AVERAGE,
        digits_c=digits.C,
    )
