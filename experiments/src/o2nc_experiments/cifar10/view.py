"""The paper's Table 1 with ours, as a table, a document and an article of the page."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from o2nc_experiments import classification
from o2nc_experiments.cifar10.checkpoints import differences
from o2nc_experiments.cifar10.options import unlike_paper
from o2nc_experiments.classification import Best, Epoch, Mean, best, by_arm, curves, from_columns, written
from o2nc_experiments.page import Article, Section
from o2nc_experiments.tables import NONE, Table, duration, plural

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
    rows, about, trials = from_columns(record), record["circumstances"], record["trials"]
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
    return "\n".join([*lines, "", f"{below[0].upper()}{below[1:]}.", ""])


FIGURE_CAPTIONS = (
    "On the batches as they were seen, logarithmic. Where the lines lie on each other, scaling costs nothing.",
    "On the same batches.",
    "Images that were never trained on. The end is drawn again, larger, where there is room.",
)
CERTIFICATE_CAPTIONS = (
    "The length of the averaged gradient. Falling: the averaged weights get nearer to a stationary point.",
    "How far the iterates lie from their average, squared. It falls with the learning rate.",
    "Both together: at most so far from stationary are the averaged weights, up to the noise of the batches.",
    "Hollow: the averaged weights x̄. Early on they are ahead of the last iterate; at the end they meet.",
)


def article(record: dict[str, Any]) -> Article:
    """Return the article of `cifar10.json`."""
    rows = from_columns(record)
    arms, c, seconds = by_arm(rows), record["circumstances"].get("c", 1.0), record.get("seconds")
    found = ", ".join(f"{arm} {written(b.test_accuracy, 1e2)} %" for arm, b in best(rows).items())
    epochs = max((row.epoch for row in rows), default=0)
    trials = max((len(own) for own in arms.values()), default=0)
    time = f", in {duration(seconds)} on {record['circumstances'].get('hardware')}" if seconds else ""
    summary = (
        f"The paper's experiment: {len(arms)} optimizers, {plural(trials, 'trial')} each, {epochs} "
        f"epochs{time}. Best test accuracy: {found}."
    )
    shown = sections(rows, c, note(record.get("settings", {}))) if rows else ()
    return Article("ResNet-18 on CIFAR-10", summary, shown)


def sections(rows: list[Epoch], c: float, notes: str) -> list[Section]:
    """Return Figure 1 with Table 1, and what the averages say."""
    arms, averaged = by_arm(rows), curves.averaging(rows)
    found = [
        Section(
            "Training",
            f"Lines are {curves.over_trials(arms)}. An arm's name is its optimizer, with the law of the random "
            "scalar after +. The table has the best epoch of each trial, as the paper does, with the paper's own "
            "figures in grey below.",
            pictures=curves.pictures(curves.FIGURE, FIGURE_CAPTIONS, arms),
            legend=curves.legend(arms),
            tables=[table(rows, c, notes)],
        )
    ]
    if any(averaged.values()):
        found.append(
            Section(
                "The certificate",
                "It costs no evaluation: the optimizer keeps the averages x̄ of its iterates and ḡ of its "
                f"gradients as it goes. ‖ḡ‖ + cV bounds how far x̄ is from stationary, here with c = {c:g}.",
                pictures=curves.pictures(curves.certificate_panels(c), CERTIFICATE_CAPTIONS, averaged),
                legend=[*curves.legend(averaged), curves.AVERAGE],
            )
        )
    return found
