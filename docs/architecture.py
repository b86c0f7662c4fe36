"""Draw docs/images/architecture.png: python docs/architecture.py."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

BLUE, GREEN, ORANGE, GREY = "#dbe9f6", "#dff0d8", "#fdebd0", "#f2f2f2"


def box(ax, x, y, width, height, title, text, colour):
    """Draw a box with a bold title and lines of text."""
    style = "round,pad=0.02,rounding_size=0.08"
    ax.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=colour, edgecolor="0.45", linewidth=1)
    )
    ax.text(x + width / 2, y + height - 0.14, title, ha="center", va="top", fontsize=12, weight="bold")
    ax.text(x + width / 2, y + height - 0.5, text, ha="center", va="top", fontsize=10, linespacing=1.45)


def arrow(ax, start, end, text="", offset=(0, 0.08)):
    """Draw an arrow with a word on it."""
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.3", "linewidth": 1.4})
    at = ((start[0] + end[0]) / 2 + offset[0], (start[1] + end[1]) / 2 + offset[1])
    ax.text(*at, text, ha="center", va="bottom", fontsize=10, color="0.25")


figure, ax = plt.subplots(figsize=(12, 6.2), layout="constrained")
ax.set(xlim=(0, 12), ylim=(0, 6.2))
ax.axis("off")

ax.text(0.1, 5.95, "One class before three kinds of rules", fontsize=11, color="0.35")
box(ax, 0.1, 4.35, 3.6, 1.4, "SGD, AdamW", "Averaged before torch's class:\nthe rule is torch's own step", BLUE)
box(
    ax,
    4.2,
    4.35,
    3.6,
    1.4,
    "extend(optimizer)",
    "the same class made for any optimizer:\nthe rule is its own step",
    BLUE,
)
box(
    ax,
    8.3,
    4.35,
    3.6,
    1.4,
    "the paper's three",
    "the rule is SGD or an online learner;\nΔ is known: output(), progress",
    BLUE,
)

ax.text(0.1, 3.85, "One step", fontsize=11, color="0.35")
box(ax, 0.1, 2.1, 2.2, 1.5, "iterate", "x, g and their state\nas one value", GREY)
box(ax, 3.2, 2.1, 2.4, 1.5, "averages", "window: γ\nx̄, ḡ, V take x, g in\nif it is their turn", GREEN)
box(ax, 6.5, 2.1, 2.4, 1.5, "rule", "Δ\ntorch's step, or\nan online learner", ORANGE)
box(ax, 9.8, 2.1, 2.1, 1.5, "scaling", "x + sΔ\ns = 1, or random", ORANGE)
arrow(ax, (2.32, 2.85), (3.18, 2.85), "x, g")
arrow(ax, (5.62, 2.85), (6.48, 2.85), "g")
arrow(ax, (8.92, 2.85), (9.78, 2.85), "Δ")

ax.text(0.1, 1.6, "Read between steps", fontsize=11, color="0.35")
box(ax, 3.2, 0.15, 2.4, 1.25, "averaged()", "x̄ in the model, to\nevaluate and to ship", GREEN)
box(ax, 0.1, 0.15, 2.2, 1.25, "certificate()", "‖ḡ‖ + c·V", GREEN)
box(
    ax,
    6.5,
    0.15,
    5.4,
    1.25,
    "fused/",
    "the same step in one pass over memory on a GPU:\na rule names its device form, no optimizer is imported",
    GREY,
)
arrow(ax, (4.4, 2.08), (4.4, 1.42))
arrow(ax, (3.7, 2.08), (1.9, 1.42))
figure.savefig(Path(__file__).parent / "images" / "architecture.png", dpi=110)
