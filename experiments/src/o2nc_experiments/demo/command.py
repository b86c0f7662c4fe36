"""``o2nc demo``: run with a progress bar, show in the terminal, write the record, the picture and the page."""

import json
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from o2nc_experiments import figures, page, record
from o2nc_experiments.classification import Epoch, to_columns
from o2nc_experiments.console import make_console, one_thread, print_plain, progress_bar, uninterrupted
from o2nc_experiments.demo import climber, digits

NAME = "demo.json"


def show(out: Path, seeds: range, steps: int, epochs: int, quiet: bool) -> None:
    """Run the demo, then show and write it; of an interrupted one the runs that finished.

    An interrupted demo never takes the place of a complete one.
    """
    console, data = make_console(quiet), digits.load()
    runs: list[climber.Run] = []
    rows: list[Epoch] = []
    climbers, networks = climber.trials(seeds), digits.trials(seeds)
    begun, stopped = perf_counter(), None
    try:
        with one_thread(), progress_bar(console) as bar:
            task = bar.add_task(f"{len(climbers)} climbers", total=len(climbers) * steps)
            for trial in climbers:
                runs.append(climber.climb(*trial, steps, lambda made: bar.advance(task, made)))
            bar.remove_task(task)
            task = bar.add_task(f"{len(networks)} networks", total=len(networks) * epochs)

            def show_epoch(row: Epoch) -> None:
                found = f"{digits.NAMES[row.arm]}: {100 * row.test_accuracy:.1f} % right"
                bar.update(task, advance=1, description=found)

            for arm, seed in networks:
                rows += digits.train(arm, seed, epochs, data, show_epoch)
    except (KeyboardInterrupt, SystemExit) as stop:  # Ctrl-C, SIGTERM
        if not runs:
            raise
        stopped = stop
    with uninterrupted():
        kept = stopped is not None and complete(out)
        try:
            console.print(climber.table(runs))
            if rows:
                console.print(digits.table(rows))
            summary = f"\n{climber.summary(runs)}\n{digits.summary(rows, len(data.test))}"
            console.print(summary.rstrip(), markup=False)
        finally:  # the terminal may be gone
            if not kept:
                found = {
                    "circumstances": circumstances(seeds, steps, epochs, data),
                    "complete": stopped is None,
                    "seconds": perf_counter() - begun,
                    "climber": {"runs": [asdict(r) | {"certificates": r.certificates} for r in runs]},
                    "digits": to_columns(rows),
                }
                record.write(out / NAME, found)
                figures.save(climber.plot(runs), out, "climber", ["png"])
                print_plain(console, f"Report: {page.write([out / NAME], out / page.NAME)}")
    if stopped is not None:
        finished, wanted = len(runs) + len(rows) // epochs, len(climbers) + len(networks)
        which = f"; the complete results in {out} are kept" if kept else ", which are kept"
        stopped.args += (f"after {finished} of {wanted} runs{which}",)
        raise stopped


def complete(out: Path) -> bool:
    """Say whether there are results of a complete demo."""
    try:
        return json.loads((out / NAME).read_text(encoding="utf-8"))["complete"] is True
    except (OSError, ValueError, LookupError, TypeError):
        return False


def circumstances(seeds: range, steps: int, epochs: int, data: digits.Digits) -> dict[str, Any]:
    """Return what is needed to make the results again."""
    knobs = {f"climber_{name.lower()}": getattr(climber, name) for name in ("MOMENTUM", "AVERAGE", "C")}
    names = ("CHANNELS", "BATCH", "LR", "MOMENTUM", "WEIGHT_DECAY", "AVERAGE", "C")
    return record.circumstances(
        f"o2nc demo --seed {seeds[0]} --steps {steps} --epochs {epochs}",
        seeds=list(seeds),
        climber_steps=steps,
        **knobs,
        digits_epochs=epochs,
        digits_train=len(data.train),
        digits_test=len(data.test),
        **{f"digits_{name.lower()}": getattr(digits, name) for name in names},
    )
