"""The README's picture: one run at a constant learning rate, read off at x̄, against runs decayed to end there.

    python experiments/benchmarks/overview.py docs/results docs/images

It draws two records, `gpt_h200_small.json` of ``o2nc gpt`` and `cifar10_horizons.json` of ``o2nc cifar10``, in words
rather than by the names of their arms.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from o2nc_experiments.cifar10 import horizons
from o2nc_experiments.classification import from_columns
from o2nc_experiments.comparison import Line
from o2nc_experiments.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    draw_points,
    save,
    style_horizons,
)
from o2nc_experiments.gpt import results
from o2nc_experiments.gpt.planning import Row

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
CIFAR10 = {
    "sgdm(lr=0.02):constant+t^12, x̄": ONE_RUN,
    "sgdm(lr=0.02):constant+t^12, last": LAST,
    "sgdm, last": {"label": "cosine", "color": GREEN, "marker": "D"},
    "sgdm(lr=0.01), last": {"label": "cosine, lr 0.01, not tuned", "color": ORANGE, "marker": "s"},
}


def main() -> None:
    """Draw, and write `overview.png`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="the folder of the two records")
    parser.add_argument("images", type=Path, help="the folder for the picture")
    asked = parser.parse_args()
    drawn = Figure(figsize=(10.5, 4.4), dpi=130, layout="constrained")
    left, right = drawn.subplots(1, 2)
    draw(left, read_gpt(asked.records / "gpt_h200_small.json"), GPT, (250, 500, 1000, 2000, 4000), "steps")
    left.set(title="GPT, 7 M parameters, AdamW", ylabel="loss on held-out text (nats)")
    draw(right, read_cifar10(asked.records / "cifar10_horizons.json"), CIFAR10, (10, 20, 40, 80, 200), "epochs")
    right.set(title="ResNet-18 on CIFAR-10, SGD with momentum", ylabel="test accuracy")
    right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    pairs = (axes.get_legend_handles_labels() for axes in (left, right))
    found = {label: artist for artists, labels in pairs for artist, label in zip(artists, labels, strict=True)}
    drawn.legend(found.values(), found, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save(drawn, asked.images, "overview", ["png"])


def read_gpt(path: Path) -> Sequence[Line]:
    """Return the losses."""
    record = json.loads(path.read_text())
    return results.make_lines(results.goal_of(record), [Row(*row) for row in record["rows"]])


def read_cifar10(path: Path) -> Sequence[Line]:
    """Return the accuracies."""
    record = json.loads(path.read_text())
    goal = horizons.Goal.from_record(record)
    assert goal is not None
    return horizons.make_lines(goal, from_columns(record))


def draw(
    axes: Axes, lines: Sequence[Line], styles: Mapping[str, dict[str, Any]], lengths: Sequence[int], unit: str
) -> None:
    """Draw the lines that have a style against the length of the run; of several of one name the first."""
    named = {line.name: line for line in reversed(lines)}
    for name, style in styles.items():
        marks: dict[str, Any] = {"linestyle": "none", "markersize": 6} if "marker" in style else {}
        own = {length: named[name].of(length) for length in lengths if named[name].of(length)}
        draw_points(axes, own, marks | style, bars=True)
    style_horizons(axes, lengths, unit)


if __name__ == "__main__":
    main()
