"""A table of trials, told."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rich import box
from rich.table import Table

from o2nc_experiments.cifar10 import pictures, view
from o2nc_experiments.cifar10.rows import Row, untidy
from o2nc_experiments.page import Article as Story
from o2nc_experiments.page import Picture, Section

SEEN = {
    "Train loss": (
        "On the batches as they were seen, logarithmic. Where the lines lie on each other, scaling costs nothing."
    ),
    "Train accuracy": "On the same batches.",
    "Test accuracy": "Images that were never trained on. The end is drawn again, larger, where there is room.",
    "‖ḡ‖": "The length of the averaged gradient. Falling: the averaged weights get nearer to a stationary point.",
    "V": "How far the iterates lie from their average, squared. It falls with the learning rate.",
}
CERTIFICATE = (
    "Both together: at most so far from stationary are the averaged weights, up to the noise of the batches."
)
AVERAGE = "Hollow: the averaged weights x̄. Early on they are ahead of the last iterate; at the end they meet."


def tell(record: dict[str, Any]) -> Story:
    """Return the story of `cifar10.json`."""
    rows = untidy(record)
    c = record["circumstances"].get("c", 1.0)
    return Story(
        "ResNet-18 on CIFAR-10",
        _summary(record, rows),
        sections(rows, c, view.note(record.get("settings", {}))) if rows else (),
    )


def _summary(record: dict[str, Any], rows: list[Row]) -> str:
    best = view.best(rows)
    found = ", ".join(f"{arm} {view.written(b.test_accuracy, 1e2)} %" for arm, b in best.items())
    arms = view.by_arm(rows)
    epochs = max((row.epoch for row in rows), default=0)
    trials = max((len(own) for own in arms.values()), default=0)
    seconds = record.get("seconds")
    time = f", in {view.clock(seconds)} on {record['circumstances'].get('hardware')}" if seconds else ""
    return (
        f"The paper's experiment: {len(arms)} optimizers, {trials} trial{'s' if trials != 1 else ''} each, {epochs} "
        f"epochs{time}. Best test accuracy: {found}."
    )


def sections(rows: list[Row], c: float, note: str) -> list[Section]:
    """Return Figure 1 with Table 1, and what the averages tell."""
    arms, kept = view.by_arm(rows), pictures.averaging(rows)
    found = [
        Section(
            "Training",
            f"Lines are {pictures.over_trials(arms)}. An arm's name is its optimizer, with the law of the random "
            "scalar after +. The table has the best epoch of each trial, as the paper does, with the paper's own "
            "figures in grey below.",
            pictures=[
                Picture(panel.title, SEEN[panel.title], partial(pictures.draw, panel=panel, arms=arms))
                for panel in pictures.FIGURE
            ],
            legend=pictures.legend(arms),
            tables=[wide_table(rows, c, note=note)],
        )
    ]
    if any(kept.values()):
        says = dict(zip(pictures.certificate_panels(c), (SEEN["‖ḡ‖"], SEEN["V"], CERTIFICATE, AVERAGE), strict=True))
        found.append(
            Section(
                "The certificate",
                "It costs no evaluation: the optimizer keeps the averages x̄ of its iterates and ḡ of its "
                f"gradients as it goes. ‖ḡ‖ + cV bounds how far x̄ is from stationary, here with c = {c:g}.",
                pictures=[
                    Picture(panel.title, text, partial(pictures.draw, panel=panel, arms=kept))
                    for panel, text in says.items()
                ],
                legend=[*pictures.legend(kept), pictures.AVERAGE],
            )
        )
    return found


def wide_table(
    rows: list[Row], c: float, printed: Mapping[str, view.Best] = view.PAPER, note: str = view.NOTE
) -> Table:
    """Return the whole table, one row per arm with the printed one below it."""
    head, body = view.contents(rows, c, printed)
    grid = Table(box=box.SIMPLE_HEAD, caption=note)
    for i, name in enumerate(head):
        grid.add_column(name, justify="right" if i else "left")
    for cells in body:
        grid.add_row(*cells, style="dim" if cells[0] == view.PRINTED else "")
    return grid
