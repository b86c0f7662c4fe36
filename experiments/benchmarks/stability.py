"""What learning rate momentum bears when its steps, or its queries, are random: a table and a picture.

    python experiments/benchmarks/stability.py --images docs/images

The lines are the thresholds of ℓλ on F = λx²/2, by `o2nc.theory.stable_lr` for random steps and by the recursion of
second moments for queries at x_{t−1} + uΔ_t, u ~ U[0, 1]. The last panel has the loss that noisy gradients leave.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

import o2nc
from o2nc import Law
from o2nc.theory import stable_lr
from o2nc_experiments import kit

LAWS: dict[str, tuple[Law | None, str]] = {
    "s = 1": (None, "black"),
    "Jitter(¼)": (o2nc.Jitter(0.25), "blue"),
    "Gamma(16)": (o2nc.Gamma(16), "sky"),
    "Jitter(½)": (o2nc.Jitter(0.5), "green"),
    "U(0, 2)": (o2nc.Jitter(1), "orange"),
    "Exp(1)": (o2nc.Exponential(), "red"),
}
QUERY = ("random query", "pink")
MOMENTA = 1 - np.geomspace(1, 1e-3, 121)
TOLD = (0.0, 0.5, 0.9, 0.95, 0.99)  # momenta of the table


def main(images: Path) -> None:
    """Print the table and draw."""
    rows = []
    for nesterov in (False, True):
        lead = "yes" if nesterov else "no"
        for name, (law, _) in LAWS.items():
            told = (f"{stable_lr(b, law, nesterov=nesterov):.3g}" for b in TOLD)
            rows.append([name, f"{square(law) - 1:.3g}", lead, *told])
        rows.append([QUERY[0], kit.NONE, lead, *(f"{query_bears(b, nesterov):.3g}" for b in TOLD)])
    head = ["law, query", "Var s", "lead", *(f"momentum {b:g}" for b in TOLD)]
    kit.Terminal().table(kit.Table(head, rows, "Largest stable ℓλ"))
    figure = kit.new_figure(11.5, 3.9)
    plain, led, noisy = figure.subplots(1, 3)
    led.sharey(plain)
    draw_thresholds(plain, nesterov=False)
    draw_thresholds(led, nesterov=True)
    kit.style_panel(plain, "Momentum", "momentum b", "largest stable ℓλ")
    kit.style_panel(led, "Momentum with Nesterov's lead", "momentum b")
    draw_noise(noisy, 0.9)
    kit.write_bytes(images / "stability.png", kit.draw(figure, "png"))


def square(law: Law | None) -> float:
    """Return E s²."""
    return 1.0 if law is None else float(law.second_moment)  # type: ignore[attr-defined]


def query_bears(b: float, nesterov: bool) -> float:
    """Return the ℓλ up to which full steps with a random query are stable, by bisection.

    The state (x, m/λ, Δ) is multiplied by A + ωB, ω = 1 − u being the lag of the query behind x with E ω = 1/2 and
    E ω² = 1/3; its second moments are multiplied by E (A + ωB)⊗(A + ωB).
    """
    low, high = 0.0, 10.0
    for _ in range(50):
        h = (low + high) / 2
        moved = [-h * (1 + b), -h * b**2, 0] if nesterov else [-h, -h * b, 0]
        lag = h * (1 + b) if nesterov else h
        fixed = np.array([np.add([1, 0, 0], moved), [1, b, 0], moved])
        random = np.array([[0, 0, lag], [0, 0, -1], [0, 0, lag]])
        mixed = np.kron(fixed, random) + np.kron(random, fixed)
        moments = np.kron(fixed, fixed) + mixed / 2 + np.kron(random, random) / 3
        grows = np.abs(np.linalg.eigvals(moments)).max() > 1
        low, high = (low, h) if grows else (h, high)
    return low


def draw_thresholds(axes: Axes, *, nesterov: bool) -> None:
    """Draw the threshold against 1 − b for every law, and for the query."""
    x = 1 - MOMENTA
    ends = {}
    for name, (law, colour) in LAWS.items():
        bears = [stable_lr(b, law, nesterov=nesterov) for b in MOMENTA]
        axes.loglog(x, bears, color=kit.COLOURS[colour], linewidth=1.6)
        ends[name] = (bears[-1], colour)
    bears = [query_bears(b, nesterov) for b in MOMENTA]
    axes.loglog(x, bears, color=kit.COLOURS[QUERY[1]], linestyle=(0, (4, 2)), linewidth=1.6)
    ends[QUERY[0]] = (bears[-1], QUERY[1])
    spread_labels(axes, ends, x[-1])
    axes.axvline(0.1, color=kit.COLOURS["grey"], linewidth=0.8, linestyle=":")
    axes.set(xlim=(1, 1e-3), ylim=(1.3e-3, 6))
    axes.set_xticks([1, 0.1, 0.01, 0.001], ["0", "0.9", "0.99", "0.999"])
    axes.set_yticks([1e-2, 1e-1, 1], ["0.01", "0.1", "1"])


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
        axes.annotate(
            name, place, (4, 0), textcoords="offset points", color=kit.COLOURS[colour], fontsize=8, va="center"
        )


def draw_noise(axes: Axes, b: float) -> None:
    """Draw the loss that noise leaves against ℓλ; every line ends at its threshold."""
    for name, (law, colour) in LAWS.items():
        bears, v = stable_lr(b, law), square(law)
        h = np.geomspace(0.01, 0.9995 * bears, 400)
        axes.loglog(
            h, h * (v * (1 - b) + 2 * b) / (4 * (1 - b**2) * (1 - h / bears)), color=kit.COLOURS[colour], label=name
        )
        axes.axvline(bears, color=kit.COLOURS[colour], linewidth=0.7, linestyle=":")
    kit.style_panel(axes, f"Loss that noise leaves, b = {b:g}", "ℓλ", "E F in units of σ²/λ")
    axes.set(xlim=(0.01, 5), ylim=(0.03, 100))
    axes.set_xticks([0.01, 0.1, 1], ["0.01", "0.1", "1"])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])


if __name__ == "__main__":
    kit.run_script(main)
