"""The paper's Table 1 with ours, as a table and as a document; no pictures, so that torch and numpy are enough."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from o2nc_experiments import classification
from o2nc_experiments.cifar10 import horizons
from o2nc_experiments.cifar10.checkpoints import differences
from o2nc_experiments.cifar10.options import unlike_paper
from o2nc_experiments.classification import Best, Epoch, Mean
from o2nc_experiments.tables import NONE, Table, duration

PAPER = {
    "sgdm": Best(Mean(9.82e-4, 0.21e-4), Mean(1.0, 0.0), Mean(0.216, 0.001), Mean(0.946, 0.001)),
    "sgdm+exponential": Best(Mean(9.55e-4, 0.37e-4), Mean(1.0, 0.0), Mean(0.220, 0.004), Mean(0.944, 0.002)),
}
NOTE = (
    "train, test: the best of each trial's epochs; last: its last epoch's; x̄: its last measurement, with BatchNorm's "
    "statistics made anew; mean ± standard deviation (n − 1) over the trials; nan: a trial diverged; "
    "paper: its Table 1, 3 trials"
)


def note(settings: Mapping[str, Any]) -> str:
    """Return what stands below the table of a record with these settings."""
    others = ", ".join(f"{key} {value}" for key, value in unlike_paper(settings).items())
    return f"{NOTE}, not in this setting ({others})" if others else NOTE


def table(epochs: Sequence[Epoch], c: float = 1.0, notes: str = NOTE) -> Table:
    """Return Table 1 beside the printed figures, with what the paper does not have."""
    return classification.table(epochs, c=c, printed=PAPER, notes=notes)


def markdown(record: dict[str, Any], *, c: float = 1.0) -> str:
    """Return the table of a run, complete or not, as a document that says how it came about."""
    rows, about, trials = horizons.reported(record), record["circumstances"], record["trials"]
    done = f"{sum(bool(trial['complete']) for trial in trials)} of {len(trials)}"
    places = [f"{about.get('hardware', 'hardware unknown')}, device {about.get('device', 'unknown')}"]
    places += [f"{about['processors']} processors"] if about.get("processors") else []
    places += [f"{name} {about[name]}" for name in ("o2nc", "torch", "cuda", "triton", "python") if about.get(name)]
    settings = [f"{name} {value}" for name, value in record["settings"].items() if value is not None]
    pace = f"{np.median([row.seconds for row in rows]):.3g} s" if rows else NONE
    total = NONE if record["seconds"] is None else duration(record["seconds"])
    warning = ["", f"**Not complete: {done} trials are over.** These are the figures so far."]
    differ = differences(trials)
    lines = [
        "# CIFAR-10 with ResNet-18",
        *([] if record["complete"] else warning),
        *(["", f"**Not all trained alike:** {differ}."] if differ else []),
        "",
        f"- command: `{about['command']}`",
        f"- on: {', '.join(places)}",
        f"- settings: {', '.join(settings) or NONE}",
        f"- trials: {done} complete, {len(rows):,} epochs; per epoch {pace} (median), in total {total}",
        "",
        table(rows, c).markdown(),
    ]
    below = note(record["settings"])
    lines += ["", f"{below[0].upper()}{below[1:]}.", ""]
    for found in horizons.tables(record):
        lines += [found.markdown(), "", *(f"{text[0].upper()}{text[1:]}." for text in found.notes), ""]
    return "\n".join(lines)
