"""The README's picture: one run at a constant learning rate, read off at x̄, against runs decayed to end there.

    python experiments/benchmarks/overview.py docs/results docs/images

It draws two records, `gpt_h200_small.json` of ``o2nc gpt`` and `cifar10_horizons.json` of ``o2nc cifar10``, in words
rather than by the names of their arms.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from o2nc_experiments.cifar10 import horizons
from o2nc_experiments.classification import from_columns
from o2nc_experiments.figures import BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION, save, style_axes
from o2nc_experiments.gpt import results
from o2nc_experiments.gpt.planning import Row

Known = Mapping[int, Sequence[float]]  # what every seed has, by the length of the run

ONE_RUN: dict[str, Any] = {"label": "one run, constant lr, at its average x̄", "color": BLUE, "linewidth": 2.4}
LAST: dict[str, Any] = {"label": "its last iterate", "color": GREY, "linewidth": 1.2, "linestyle": (0, (3, 2))}
GPT = {
    "adamw:constant, x̄ by t^12": ONE_RUN,
    "adamw:constant, last": LAST,
    "adamw:wsd20": {"label": "warm-up-stable-decay", "color": VERMILION, "marker": "o"},
    "adamw:linear": {"label": "linear decay", "color": PINK, "marker": "^"},
    "adamw:cosine": {"label": "cosine", "color": GREEN, "marker": "D"},
    "schedule-free:constant": {"label": "schedule-free AdamW, one run", "color": SKY, "linewidth": 1.6},
}
TUNED = {"label": "cosine", "color": GREEN, "marker": "D"}
CIFAR10 = {
    "sgdm(lr=0.02):constant+t^12, x̄": ONE_RUN,
    "sgdm(lr=0.02):constant+t^12, last": LAST,
    "sgdm(lr=0.02):cosine10, last": TUNED,
    "sgdm(lr=0.05):cosine20, last": TUNED,
    "sgdm(lr=0.05):cosine40, last": TUNED,
    "sgdm(lr=0.01), last": {"label": "cosine, at the paper's lr", "color": ORANGE, "marker": "s"},
}


def main() -> None:
    """Draw, and write `overview.png`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="the folder of the two records")
    parser.add_argument("images", type=Path, help="the folder for the picture")
    asked = parser.parse_args()
    drawn = Figure(figsize=(10.5, 4.4), dpi=130, layout="constrained")
    left, right = drawn.subplots(1, 2)
    draw(left, read_gpt(asked.records / "gpt_h200_small.json"), GPT)
    left.set(title="GPT, 7 M parameters, AdamW", xlabel="steps", ylabel="loss on held-out text (nats)")
    draw(right, read_cifar10(asked.records / "cifar10_horizons.json"), CIFAR10)
    right.set(title="ResNet-18 on CIFAR-10, SGD with momentum", xlabel="epochs", ylabel="test accuracy (%)")
    pairs = (axes.get_legend_handles_labels() for axes in (left, right))
    found = {label: artist for artists, labels in pairs for artist, label in zip(artists, labels, strict=True)}
    drawn.legend(found.values(), found, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save(drawn, asked.images, "overview", ["png"])


def read_gpt(path: Path) -> dict[str, Known]:
    """Return the losses by the arms' names; of several arms of one name the first."""
    record = json.loads(path.read_text())
    lines = results.make_lines(results.goal_of(record), [Row(*row) for row in record["rows"]])
    return {line.name: {h: [*own.values()] for h, own in line.losses.items()} for line in reversed(lines)}


def read_cifar10(path: Path) -> dict[str, Known]:
    """Return the accuracies in % by the arms' names, from the first horizon on."""
    record = json.loads(path.read_text())
    goal = horizons.Goal.from_record(record)
    assert goal is not None
    return {
        line.name: {e: [100 * v for v in own.values()] for e, own in line.values.items() if e in goal.horizons}
        for line in horizons.make_lines(goal, from_columns(record))
    }


def draw(axes: Axes, known: Mapping[str, Known], styles: Mapping[str, dict[str, Any]]) -> None:
    """Draw means with standard deviations against the length of the run, which is on a logarithmic axis."""
    lengths = sorted({length for name in styles for length in known[name]})
    for name, style in styles.items():
        own = dict(sorted(known[name].items()))
        marks: dict[str, Any] = {"linestyle": "none", "markersize": 6} if "marker" in style else {}
        means, deviations = map(fmean, own.values()), map(stdev, own.values())
        axes.errorbar(list(own), [*means], yerr=[*deviations], capsize=2, elinewidth=0.8, **(marks | style))
    axes.set_xscale("log")
    axes.set_xticks(lengths)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    style_axes(axes)


if __name__ == "__main__":
    main()
