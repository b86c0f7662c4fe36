"""The pictures of two H200 records: one run at a constant learning rate, read at x̄, against decayed runs.

    python experiments/benchmarks/overview.py --records docs/results --images docs/images

It draws `gpt.png` and `overview.png` from `gpt_h200_small.json`, a record of `o2nc gpt` at commit cf6f9b7 whose rows
name an arm by a code, and from `cifar10.json`; n = 3 seeds, learning rates chosen on a fourth.
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from o2nc_experiments import gpt, kit

TUNED, SEEDS = 100, (0, 1, 2)
STEPS, EPOCHS = (250, 500, 1000, 2000, 4000), (10, 20, 40, 80, 200)
CODES = {  # arm and weights of the old record
    "constant": ("adamw(lr=2e-3):constant+t^4+t^8+t^12+t^16", "t^12"),
    "wsd": ("adamw(lr=2e-3):wsd20", "last"),
    "linear": ("adamw(lr=2e-3):linear", "last"),
    "cosine": ("adamw(lr=2.828e-3):cosine", "last"),
    "schedule-free": ("schedule-free(lr=4e-3):constant", "average"),
}
ONE_RUN: dict[str, Any] = {"label": "one run, constant lr, at its average x̄", "color": "blue", "linewidth": 2.4}
COSINE = gpt.ARMS["cosine"].style | {"label": "cosine decay"}
UNTUNED = COSINE | {"label": "cosine decay, lr 0.01, not tuned", "color": "orange", "marker": "s"}
Points = dict[int, list[float]]


def read_gpt(path: Path) -> gpt.Results:
    """Return the losses of every arm at the learning rate that is best on the tuning seed."""
    known = {tuple(row[:5]): row[5] for row in json.loads(path.read_text())["rows"]}
    losses: dict[str, Any] = {}
    for name, (code, weights) in CODES.items():
        lrs = sorted({key[1] for key in known if key[0] == code})
        losses[name] = {"average": {}, "last": {}}
        for group in [STEPS] if gpt.ARMS[name].is_one_run else [(h,) for h in STEPS]:
            tried = [lr for lr in lrs if all((code, lr, TUNED, h, weights) in known for h in group)]
            best = gpt.choose({lr: [known[code, lr, TUNED, h, weights] for h in group] for lr in tried})
            for kind, used in (("average", weights), ("last", "last" if name != "schedule-free" else weights)):
                found = {h: [known[code, best, seed, h, used] for seed in SEEDS] for h in group}
                losses[name][kind] |= found
    return gpt.Results(losses, {}, frozenset())


def read_cifar10(path: Path) -> list[tuple[Points, dict[str, Any]]]:
    """Return test accuracies by number of epochs, with the style of every line."""
    runs = [run for run in json.loads(path.read_text())["runs"].values() if run["seed"] in SEEDS]

    def points(arm: str, column: str) -> Points:
        own = [run for run in runs if run["arm"] == arm]
        ends = EPOCHS if arm == "no schedule" else sorted({run["epochs"] for run in own})
        return {
            h: [run["course"][column][h - 1] for run in own if arm == "no schedule" or run["epochs"] == h]
            for h in ends
        }

    return [
        (points("no schedule", "average accuracy"), ONE_RUN),
        (points("no schedule", "test accuracy"), gpt.LAST),
        (points("cosine, tuned", "test accuracy"), COSINE),
        (points("SGD with momentum", "test accuracy"), UNTUNED),
    ]


def draw_gpt(axes: Axes, results: gpt.Results) -> None:
    """Draw losses under shorter labels."""
    labels = {"wsd": "decayed over the last 20 %", "linear": "linear decay", "cosine": "cosine decay"}
    for name, losses in results.losses.items():
        label = labels.get(name, gpt.ARMS[name].label)
        style = ONE_RUN if name == "constant" else gpt.ARMS[name].style | {"label": label}
        kit.draw_means(axes, losses["average"], {**style, "zorder": 3 if name == "constant" else 2})
    kit.draw_means(axes, results.losses["constant"]["last"], gpt.LAST)
    kit.style_panel(axes, "GPT, 7 M parameters, AdamW", "steps of the run", "loss on held-out text (nats)")
    kit.horizon_axis(axes, STEPS)


def main(records: Path, images: Path) -> None:
    """Write `gpt.png` and `overview.png`."""
    results = read_gpt(records / "gpt_h200_small.json")
    drawn = gpt.figure(results, STEPS, "GPT of 7.3 M parameters on Linux sources, H200")
    kit.write_bytes(images / "gpt.png", kit.draw(drawn, "png"))
    drawn = kit.new_figure(10.5, 4.4)
    left, right = drawn.subplots(1, 2)
    draw_gpt(left, results)
    for points, style in read_cifar10(records / "cifar10.json"):
        kit.draw_means(right, points, style)
    kit.style_panel(right, "ResNet-18 on CIFAR-10, SGD with momentum", "epochs of the run", "test accuracy")
    kit.horizon_axis(right, EPOCHS)
    right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    pairs = [pair for axes in (left, right) for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in pairs}
    drawn.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    kit.write_bytes(images / "overview.png", kit.draw(drawn, "png"))


if __name__ == "__main__":
    kit.run_script(main)
