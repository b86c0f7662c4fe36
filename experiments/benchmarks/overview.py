"""One run at a constant learning rate, read at x̄, against runs decayed to end there: the picture of two H200 records.

    python experiments/benchmarks/overview.py --records docs/results --images docs/images

It draws `gpt_h200_small.json` and `cifar10.json`, records of `o2nc gpt` and `o2nc cifar10` at cf6f9b7,
whose rows name an arm by a code such as ``adamw(lr=2e-3):wsd20``; n = 3 seeds, learning rates chosen on a fourth.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from o2nc_experiments import kit
from o2nc_experiments.gpt import choose

TUNED, SEEDS = 100, (0, 1, 2)
STEPS, EPOCHS = (250, 500, 1000, 2000, 4000), (10, 20, 40, 80, 200)
ONE_RUN = {"label": "one run, constant lr, at its average x̄", "color": "blue", "linewidth": 2.4}
LAST = {"label": "its last iterate", "color": "grey", "linewidth": 1.2, "linestyle": (0, (3, 2))}
WSD, LINEAR, COSINE, UNTUNED = (
    {"label": label, "color": colour, "marker": marker, "markersize": 6, "linestyle": "none"}
    for label, colour, marker in (
        ("decayed over the last 20 %", "red", "o"),
        ("linear decay", "pink", "^"),
        ("cosine", "green", "D"),
        ("cosine, lr 0.01, not tuned", "orange", "s"),
    )
)
SCHEDULE_FREE = {"label": "schedule-free AdamW, one run", "color": "sky", "linewidth": 1.6}
Points = dict[int, list[float]]


def read_gpt(path: Path) -> list[tuple[Points, dict[str, Any]]]:
    """Return losses by horizon of every arm, with its style."""
    rows = json.loads(path.read_text())["rows"]

    def points(arm: str, weights: str, *, one_run: bool, chosen_at: str = "") -> Points:
        """Return losses at the learning rate that is best on the tuning seed, one for all horizons or for each."""
        by_lr: dict[float, dict[tuple[int, int], float]] = {}
        tuned_by: dict[float, dict[tuple[int, int], float]] = {}
        for its_arm, lr, seed, horizon, its_weights, loss, *_ in rows:
            if its_arm == arm and its_weights == weights:
                by_lr.setdefault(lr, {})[seed, horizon] = loss
            if its_arm == arm and its_weights == (chosen_at or weights):
                tuned_by.setdefault(lr, {})[seed, horizon] = loss
        found: Points = {}
        for group in [STEPS] if one_run else [(h,) for h in STEPS]:
            tried = {lr: own for lr, own in tuned_by.items() if all((TUNED, h) in own for h in group)}
            best = choose({lr: [own[TUNED, h] for h in group] for lr, own in tried.items()})
            found |= {h: [by_lr[best][seed, h] for seed in SEEDS] for h in group}
        return found

    constant = "adamw(lr=2e-3):constant+t^4+t^8+t^12+t^16"
    return [
        (points(constant, "t^12", one_run=True), ONE_RUN),
        (points(constant, "last", one_run=True, chosen_at="t^12"), LAST),
        (points("adamw(lr=2e-3):wsd20", "last", one_run=False), WSD),
        (points("adamw(lr=2e-3):linear", "last", one_run=False), LINEAR),
        (points("adamw(lr=2.828e-3):cosine", "last", one_run=False), COSINE),
        (points("schedule-free(lr=4e-3):constant", "average", one_run=True), SCHEDULE_FREE),
    ]


def read_cifar10(path: Path) -> list[tuple[Points, dict[str, Any]]]:
    """Return test accuracies by number of epochs of every arm, with its style."""
    runs = json.loads(path.read_text())["runs"]

    def points(arm: str, lrs: Mapping[int, float], column: str, length: int | None = None) -> Points:
        names = {h: f"{arm}, lr {lr:g}, {length or h} epochs" for h, lr in lrs.items()}
        return {
            h: [runs[f"{name}, seed {seed}"]["course"][column][h - 1] for seed in SEEDS] for h, name in names.items()
        }

    one_run = "no schedule", dict.fromkeys(EPOCHS, 0.02)
    return [
        (points(*one_run, "average accuracy", EPOCHS[-1]), ONE_RUN),
        (points(*one_run, "test accuracy", EPOCHS[-1]), LAST),
        (points("cosine, tuned", {h: 0.02 if h < 20 else 0.05 for h in EPOCHS}, "test accuracy"), COSINE),
        (points("SGD with momentum", dict.fromkeys(EPOCHS, 0.01), "test accuracy"), UNTUNED),
    ]


def draw(axes: Axes, lines: Sequence[tuple[Points, dict[str, Any]]], lengths: Sequence[int], *words: str) -> None:
    """Draw means and standard deviations against the length of the run."""
    for points, style in lines:
        kit.draw_means(axes, points, style)
    kit.style_panel(axes, *words)
    kit.horizon_axis(axes, lengths)


def main(records: Path, images: Path) -> None:
    """Write `overview.png`."""
    drawn = kit.new_figure(10.5, 4.4)
    left, right = drawn.subplots(1, 2)
    gpt = read_gpt(records / "gpt_h200_small.json")
    draw(left, gpt, STEPS, "GPT, 7 M parameters, AdamW", "steps of the run", "loss on held-out text (nats)")
    cifar10 = read_cifar10(records / "cifar10.json")
    draw(right, cifar10, EPOCHS, "ResNet-18 on CIFAR-10, SGD with momentum", "epochs of the run", "test accuracy")
    right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    pairs = [pair for axes in (left, right) for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in pairs}
    drawn.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    kit.write_bytes(images / "overview.png", kit.draw(drawn, "png"))


if __name__ == "__main__":
    kit.run_script(main)
