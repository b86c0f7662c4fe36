"""What learning rate momentum bears when its steps, or its queries, are random: a table and a picture.

    python experiments/benchmarks/stability.py docs/images

The lines are the thresholds of ℓλ on F = λx²/2, by `o2nc.theory.stable_lr` for random steps and by the recursion of
second moments for queries at x_{t−1} + uΔ_t, u ~ U[0, 1]. The last panel has the loss that noisy gradients leave.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import o2nc
from o2nc import Law, scaling
from o2nc.theory import stable_lr
from o2nc_experiments.figures import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION, save, style_axes
from o2nc_experiments.verify.stability import UNIT_QUERY, random_query, threshold

LAWS: dict[str, tuple[Law | None, str]] = {
    "s = 1": (None, BLACK),
    "Jitter(¼)": (o2nc.Jitter(0.25), BLUE),
    "Gamma(16)": (o2nc.Gamma(16), SKY),
    "Jitter(½)": (o2nc.Jitter(0.5), GREEN),
    "U(0, 2)": (o2nc.Jitter(1), ORANGE),
    "Exp(1)": (o2nc.Exponential(), VERMILION),
}
QUERY = ("query", PINK)
MOMENTA = 1 - np.geomspace(1, 1e-3, 121)
TOLD = (0.0, 0.5, 0.9, 0.95, 0.99)  # momenta of the table


def main() -> None:
    """Print the table and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print("| law, query | Var s | lead | " + " | ".join(f"{b:g}" for b in TOLD) + " |")
    print("|---|--:|---|" + "--:|" * len(TOLD))
    for nesterov in (False, True):
        for name, (law, _) in LAWS.items():
            told = " | ".join(f"{stable_lr(b, law, nesterov=nesterov):.3g}" for b in TOLD)
            print(f"| {name} | {scaling.second_moment(law) - 1:.3g} | {'yes' if nesterov else 'no'} | {told} |")
        told = " | ".join(f"{query_bears(b, nesterov):.3g}" for b in TOLD)
        print(f"| {QUERY[0]} | – | {'yes' if nesterov else 'no'} | {told} |")
    figure = Figure(figsize=(11.5, 3.9), dpi=110, layout="constrained")
    plain, led, noisy = figure.subplots(1, 3)
    led.sharey(plain)
    draw_thresholds(plain, nesterov=False)
    draw_thresholds(led, nesterov=True)
    plain.set(title="Momentum", ylabel="largest stable ℓλ")
    led.set(title="Momentum with Nesterov's lead")
    draw_noise(noisy, 0.9)
    print(*save(figure, folder, "stability", ("png",)))


def query_bears(b: float, nesterov: bool) -> float:
    """Return the threshold of full steps with a random query."""
    return threshold(partial(random_query, b=b, nesterov=nesterov), *UNIT_QUERY)


def draw_thresholds(axes: Axes, *, nesterov: bool) -> None:
    """Draw the threshold against 1 − b for every law, and for the query."""
    x = 1 - MOMENTA
    ends = {}
    for name, (law, colour) in LAWS.items():
        bears = [stable_lr(b, law, nesterov=nesterov) for b in MOMENTA]
        axes.loglog(x, bears, color=colour, linewidth=1.6)
        ends[name] = (bears[-1], colour)
    bears = [query_bears(b, nesterov) for b in MOMENTA]
    axes.loglog(x, bears, color=QUERY[1], linestyle=(0, (4, 2)), linewidth=1.6)
    ends[QUERY[0]] = (bears[-1], QUERY[1])
    spread_labels(axes, ends, x[-1])
    axes.axvline(0.1, color=GREY, linewidth=0.8, linestyle=":")
    axes.set(xlabel="momentum b", xlim=(1, 1e-3), ylim=(1.3e-3, 6))
    axes.set_xticks([1, 0.1, 0.01, 0.001], ["0", "0.9", "0.99", "0.999"])
    axes.set_yticks([1e-2, 1e-1, 1], ["0.01", "0.1", "1"])
    style_axes(axes)


def spread_labels(axes: Axes, ends: dict[str, tuple[float, str]], x: float) -> None:
    """Name the lines at their right ends, apart from each other."""
    names = sorted(ends, key=lambda name: ends[name][0])
    heights, apart = np.log([ends[name][0] for name in names]), 0.32
    for _ in range(300):
        push = np.clip(apart - np.diff(heights), 0, None) / 4
        heights[1:] += push
        heights[:-1] -= push
    for name, height in zip(names, np.exp(heights), strict=True):
        place, colour = (x, height), ends[name][1]
        axes.annotate(name, place, (4, 0), textcoords="offset points", color=colour, fontsize=8, va="center")


def draw_noise(axes: Axes, b: float) -> None:
    """Draw the loss that noise leaves against ℓλ; every line ends at its threshold."""
    for name, (law, colour) in LAWS.items():
        bears, v = stable_lr(b, law), scaling.second_moment(law)
        h = np.geomspace(0.01, 0.9995 * bears, 400)
        axes.loglog(h, h * (v * (1 - b) + 2 * b) / (4 * (1 - b**2) * (1 - h / bears)), color=colour, label=name)
        axes.axvline(bears, color=colour, linewidth=0.7, linestyle=":")
    axes.set(title=f"Loss that noise leaves, b = {b:g}", xlabel="ℓλ", ylabel="E F in units of σ²/λ")
    axes.set(xlim=(0.01, 5), ylim=(0.03, 100))
    axes.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    style_axes(axes)


if __name__ == "__main__":
    main()
