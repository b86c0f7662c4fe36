"""Step times, told."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from o2nc_experiments import record as records
from o2nc_experiments.bench.contenders import AGAIN, BASE
from o2nc_experiments.bench.steps import Row
from o2nc_experiments.bench.training import TrainingRow
from o2nc_experiments.bench.view import grids, named
from o2nc_experiments.figures import BLUE, GREY
from o2nc_experiments.page import Article as Story
from o2nc_experiments.page import Picture, Section

TORCHS = ("SGD", "Adam")  # how the names of torch's own begin


def tell(record: dict[str, Any]) -> Story:
    """Return the story of `bench.json`."""
    rows = [records.revive(Row, row) for row in record["steps"]]
    trained = [records.revive(TrainingRow, row) for row in record["training"]]
    models = list(dict.fromkeys(row.model for row in rows))
    where = record["circumstances"].get("hardware") or record["circumstances"].get("device", "an unknown device")
    sections = []
    if rows:
        sections.append(
            Section(
                "Optimizer steps",
                "Blue is o2nc, grey is torch. The step alone, on random gradients, nothing of the "
                "network. Optimizers take turns, so that whatever else the machine does falls on all alike.",
                pictures=[_picture(model, [row for row in rows if row.model == model]) for model in models],
                tables=list(grids(rows, [])),
            )
        )
    if trained:
        sections.append(
            Section(
                "Training steps",
                "The whole of a training step of ResNet-18, forward and backward included: what an optimizer "
                "costs where it is used.",
                tables=list(grids([], trained)),
            )
        )
    return Story("Step times against torch's optimizers", f"{_ratios(rows)} Measured on {where}.", sections)


def _ratios(rows: Sequence[Row]) -> str:
    found = [row for row in rows if row.ratio is not None and not row.contender.startswith(TORCHS)]
    quickest: dict[str, Row] = {}
    for row in sorted(found, key=lambda row: -(row.ratio or 0)):
        quickest[row.model] = row
    parts = [f"{row.ratio:.2f} ({row.contender} on {model})" for model, row in quickest.items()]
    again = [row.ratio for row in rows if row.contender == AGAIN and row.ratio is not None]
    noise = f" SGD fused against itself: {min(again):.2f} to {max(again):.2f}, which is the noise." if again else ""
    return (
        f"The quickest of ours, in times of {BASE}: {', '.join(parts)}.{noise}" if parts else "Nothing was measured."
    )


def _picture(model: str, rows: Sequence[Row]) -> Picture:
    says = (
        f"{rows[0].tensors:,} tensors, {rows[0].numbers:,} numbers. Milliseconds, shorter is better; the thin line "
        "spans half of all steps."
    )
    return Picture(model, says, partial(_bars, rows=rows), size=(5.4, 0.7 + 0.25 * len(rows)))


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    for i, row in enumerate(rows):
        if row.step is None:
            axes.text(0, i, " failed", va="center", fontsize=8)
            continue
        axes.barh(i, 1e3 * row.step, color=GREY if row.contender.startswith(TORCHS) else BLUE, height=0.66)
        if row.quartiles is not None:
            axes.plot([1e3 * q for q in row.quartiles], [i, i], color="black", linewidth=1.0)
    axes.set_yticks(range(len(rows)), [named(row.contender, None) for row in rows])
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel="ms per step")
    axes.grid(axis="x", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
