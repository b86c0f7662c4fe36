"""Which window? Weights of the iterates, and the loss at x̄ against the window on a small noisy problem: a picture.

    python experiments/benchmarks/windows.py --images docs/images --lr 0.3 --distance 2.0

SGD at a constant learning rate on F(x) = ½Σ h_i x_i², as in least squares with a spectrum that falls like a power:
h_i is i^{−1.5}, the gradient is off by √h_i times a normal number, and every x_i begins at the same distance. The
picture has the mean of F(x̄) − min F over independent runs, for all windows at once, at four lengths of the run. Where
the best window is depends on the noise, which lr and the distance set.
"""

import math
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

from o2nc_experiments import kit

COLOURS = [kit.COLOURS[word] for word in ("blue", "green", "orange", "red")]  # of the lengths
POWERS = [0.0, *(0.75 * 2 ** (k / 2) for k in range(16))]  # 12 is among them
LENGTHS = [2 ** (k / 2) for k in range(2, 27)]  # 1/(1 − β)
TICKS = (0.06, 0.1, 0.2, 0.3, 0.5, 0.7)
HORIZONS = (300, 1_000, 3_000, 10_000)
RUNS, DIMENSION = 12, 500


def main(images: Path, lr: float = 0.3, distance: float = 2.0) -> None:
    """Measure, draw, and print what was best."""
    found = measure(lr, distance)
    for n, (at_x, powers, lengths) in found.items():
        r, length = POWERS[int(powers.argmin())], LENGTHS[int(lengths.argmin())]
        twelve = float(powers[POWERS.index(12.0)])
        print(
            f"{n} steps: at x {at_x:.3g}, power 12 {twelve:.3g}; best power {r:.3g}: {float(powers.min()):.3g}, "
            f"best 1/(1 − β) {length:.0f}: {float(lengths.min()):.3g}"
        )
    figure = kit.new_figure(11, 3.6)
    weights, by_power, by_length = figure.subplots(1, 3)
    by_length.sharey(by_power)
    draw_weights(weights)
    draw_losses(by_power, POWERS[1:], [(x, powers[1:]) for x, powers, _ in found.values()])
    kit.style_panel(by_power, "Polynomial: the same power at all lengths", "power", "F(x̄) − min F; at x dotted")
    by_power.axvline(12, color=kit.COLOURS["grey"], linewidth=0.8, linestyle=":")
    draw_losses(by_length, LENGTHS, [(x, lengths) for x, _, lengths in found.values()])
    kit.style_panel(by_length, "Discount: another one for every length", "1/(1 − β)")
    for (n, (_, powers, _)), colour in zip(found.items(), COLOURS, strict=True):
        at, above = (POWERS[1], float(powers[1])), {"xytext": (0, 4), "textcoords": "offset points"}
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over the dotted line of another length
        by_power.annotate(f"{n:,} steps", at, color=colour, fontsize=8, bbox=ground, **above)
    by_power.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    by_power.minorticks_off()
    kit.write_bytes(images / "windows.png", kit.draw(figure, "png"))


@torch.no_grad()
def measure(lr: float, distance: float) -> dict[int, tuple[float, Tensor, Tensor]]:
    """Return the mean loss at x, at x̄ of every power and at x̄ of every β, by the length of the run."""
    chance = torch.Generator().manual_seed(0)
    h = torch.arange(1, DIMENSION + 1, dtype=torch.float64) ** -1.5
    x = torch.full((RUNS, DIMENSION), distance, dtype=torch.float64)
    discounts = torch.tensor([1 - 1 / length for length in LENGTHS], dtype=torch.float64)
    powers = torch.tensor(POWERS, dtype=torch.float64)
    means = torch.zeros(len(POWERS) + len(LENGTHS), *x.shape, dtype=torch.float64)
    found = {}
    for n in range(1, max(HORIZONS) + 1):
        # weights t^r in the normalisation of o2nc.Polynomial: the n-th iterate has γ_n = (r + 1)/(n + r)
        gammas = (powers + 1) / (n + powers)
        gammas = torch.cat([gammas, (1 - discounts) / (1 - discounts**n)])
        means.lerp_(x.expand_as(means), gammas[:, None, None])
        if n in HORIZONS:
            losses = 0.5 * (h * means.square()).sum(-1).mean(-1)
            at_x = float(0.5 * (h * x.square()).sum(-1).mean())
            found[n] = (at_x, losses[: len(POWERS)], losses[len(POWERS) :])
        x = x - lr * (h * x + h.sqrt() * torch.randn(x.shape, generator=chance, dtype=x.dtype))
    return found


def draw_weights(axes: Axes) -> None:
    """Draw the weights of a run's iterates, as densities over the run."""
    t = torch.linspace(0, 1, 400, dtype=torch.float64)
    for r, colour in zip((0, 3, 12, 48), ("sky", "blue", "red", "pink"), strict=True):
        axes.plot(t, (r + 1) * t**r, color=kit.COLOURS[colour], label=f"Polynomial({r})")
    for length, style in ((0.05, ":"), (0.25, "--")):
        density = torch.exp((t - 1) / length) / (length * -math.expm1(-1 / length))
        axes.plot(
            t,
            density,
            color=kit.COLOURS["black"],
            linestyle=style,
            linewidth=1,
            label=f"1/(1 − β) = {length:g} of the run",
        )
    axes.set(xlim=(0.4, 1), ylim=(0, 20))
    axes.legend(frameon=False, fontsize=8)
    kit.style_panel(axes, "Weights of the iterates", "share of the run", "density")


def draw_losses(axes: Axes, windows: list[float], losses: list[tuple[float, Tensor]]) -> None:
    """Draw the loss at x̄ against the window for every length of a run, with its best marked, and that at x."""
    for (at_x, found), colour in zip(losses, COLOURS, strict=True):
        axes.loglog(windows, found, color=colour)
        best = int(found.argmin())
        axes.plot(windows[best], found[best], "o", color=colour, markersize=5)
        axes.axhline(at_x, color=colour, linewidth=0.7, linestyle=(0, (1, 3)))


if __name__ == "__main__":
    kit.run_script(main)
