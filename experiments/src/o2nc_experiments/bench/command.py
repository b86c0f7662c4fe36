"""``o2nc bench``: measure with a progress bar, show, write; and its article of the page."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from o2nc_experiments import bench, page, record
from o2nc_experiments.bench import Benchmark
from o2nc_experiments.bench.contenders import AGAIN, BASE
from o2nc_experiments.bench.measure import StepTime, TrainingTime
from o2nc_experiments.bench.view import heading, tables
from o2nc_experiments.console import make_console, print_error, print_files, print_plain, progress_bar
from o2nc_experiments.figures import BLUE, GREY, style_axes
from o2nc_experiments.page import Article, Picture, Section

TORCHS = ("SGD", "Adam")  # how the names of torch's own begin


def show(planned: Benchmark, out: Path | None, quiet: bool) -> bool:
    """Measure what was planned, show and write it; return whether no contender failed."""
    console = make_console(quiet)
    for refusal in planned.left_out:
        print_plain(console, f"left out: {refusal}")
    try:
        with progress_bar(console) as bar:
            task = bar.add_task(", ".join(planned.models), total=planned.total)
            bench.run(planned, lambda made: bar.advance(task, made))
    finally:
        if planned.rows or planned.trained:
            print_plain(console, heading(planned.circumstances))
            for table in tables(planned.rows, planned.trained):
                console.print(table)
            if out is not None:
                print_files(console, [*bench.save(planned, out), page.write([out])])
        if not planned.complete:
            made, wanted = len(planned.rows) + len(planned.trained), planned.total // planned.rounds
            console.print(f"{made} of {wanted} rows made")
    for failure in planned.failed:
        print_error(f"failed: {failure}")
    return not planned.failed


def article(found: dict[str, Any]) -> Article:
    """Return the article of `bench.json`."""
    rows = [record.revive(StepTime, row) for row in found["steps"]]
    trained = [record.revive(TrainingTime, row) for row in found["training"]]
    models = list(dict.fromkeys(row.model for row in rows))
    where = found["circumstances"].get("hardware") or found["circumstances"].get("device", "an unknown device")
    steps = Section(
        "Optimizer steps",
        "Blue is o2nc, grey is torch. The step alone, on random gradients, nothing of the network. Optimizers take "
        "turns, so that whatever else the machine does falls on all alike.",
        pictures=[_picture(model, [row for row in rows if row.model == model]) for model in models],
        tables=tables(rows, []),
    )
    training = Section(
        "Training steps",
        "The whole of a training step of ResNet-18, forward and backward included: what an optimizer costs where it "
        "is used.",
        tables=tables([], trained),
    )
    sections = [section for section, measured in ((steps, rows), (training, trained)) if measured]
    return Article("Step times against torch's optimizers", f"{_ratios(rows)} Measured on {where}.", sections)


def _ratios(rows: Sequence[StepTime]) -> str:
    ours = [row for row in rows if row.ratio is not None and not row.contender.startswith(TORCHS)]
    quickest = {row.model: row for row in sorted(ours, key=lambda row: -(row.ratio or 0))}
    parts = [f"{row.ratio:.2f} ({row.contender} on {model})" for model, row in quickest.items()]
    again = [row.ratio for row in rows if row.contender == AGAIN and row.ratio is not None]
    noise = f" SGD fused against itself: {min(again):.2f} to {max(again):.2f}, which is the noise." if again else ""
    return (
        f"The quickest of ours, in times of {BASE}: {', '.join(parts)}.{noise}" if parts else "Nothing was measured."
    )


def _picture(model: str, rows: Sequence[StepTime]) -> Picture:
    says = (
        f"{rows[0].tensors:,} tensors, {rows[0].numbers:,} numbers. Milliseconds, shorter is better; the thin line "
        "spans half of all steps."
    )
    return Picture(model, says, partial(_bars, rows=rows), size=(5.4, 0.7 + 0.25 * len(rows)))


def _bars(axes: Axes, rows: Sequence[StepTime]) -> None:
    for i, row in enumerate(rows):
        if row.step is None:
            axes.text(0, i, " failed", va="center", fontsize=8)
            continue
        axes.barh(i, 1e3 * row.step, color=GREY if row.contender.startswith(TORCHS) else BLUE, height=0.66)
        if row.quartiles is not None:
            axes.plot([1e3 * q for q in row.quartiles], [i, i], color="black", linewidth=1.0)
    axes.set_yticks(range(len(rows)), [row.contender for row in rows])
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel="ms per step")
    style_axes(axes, "x")
