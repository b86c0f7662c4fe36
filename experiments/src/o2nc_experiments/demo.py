"""The demo: weights that need no schedule, and steps that a non-smooth loss cannot trap. Two minutes on two cores.

    o2nc demo

1. A small GPT on the sources of Python's standard library. One run of `o2nc.AdamW` at a constant learning rate keeps
   its average x̄ and is evaluated there as it goes; beside it runs whose learning rate was decayed to end at 100, 200,
   400 or 800 steps, one run for each.
2. A sawtooth slope on which momentum walks uphill forever, and the same momentum when every step is multiplied by
   one random number that is 1 on average.

Result: one core of an AMD EPYC, torch 2.13, seed 0, lr 4e-3 for all, nats per held-out byte; with seeds 0, 1, 2 the
one run at x̄ is −0.017 to +0.011 from the better decay of the same seed and length:

    steps                            100     200     400     800
    one run at x̄                     2.512   2.277   2.088   1.902
    its last iterate                 2.518   2.307   2.170   1.980
    decay over the last 20 %         2.526   2.283   2.084   1.894
    linear decay                     2.576   2.343   2.131   1.918
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

import o2nc
from o2nc.problems import Climber
from o2nc_experiments import gpt, kit, text
from o2nc_experiments.kit import Section, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- knobs ---------------------------------------------------------------------------------------------------------

SIZE = replace(gpt.SIZES["tiny"], rows=8)  # 512 bytes a step
HORIZONS = (100, 200, 400, 800)
READINGS = 20  # how often the run without a schedule is evaluated
DECAYS = {"wsd": "decayed over the last 20 %", "linear": "decayed linearly"}
CLIMBER_STEPS, BLOCK = 5000, 50
LAWS: dict[str, tuple[o2nc.Law | None, str]] = {  # of the random number, and the colour
    "momentum alone": (None, "red"),
    "each step times Gamma(16)": (o2nc.Gamma(16.0), "blue"),
    "each step times Exp(1)": (o2nc.Exponential(), "green"),
}
CODE = """import o2nc

# opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
opt = o2nc.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1, average=o2nc.Polynomial(12))  # and no scheduler

# … train as before …

with opt.averaged():  # the weights are x̄ in here: evaluate at any moment, then go on training
    ...
torch.save(opt.averaged_state_dict(model), "weights.pt")  # the weights to ship
"""


@dataclass(frozen=True)
class Found:
    """What the demo measured: losses by number of steps, and heights by law."""

    average: Mapping[int, float]  # of the one run, at x̄
    last: Mapping[int, float]  # of the one run, at its last iterate
    decayed: Mapping[str, Mapping[int, float]]  # one run for each
    climber: Mapping[str, Sequence[float]]  # F after 0, 1, 2, … steps

    @property
    def lines(self) -> dict[str, Mapping[int, float]]:
        """The losses under their labels."""
        one = {"no schedule: one run, at its average x̄": self.average, "the same run, at its last iterate": self.last}
        return one | {f"{words}, a run for each": self.decayed[name] for name, words in DECAYS.items()}


def train(
    lab: gpt.Lab, horizons: Sequence[int], seed: int, advance: Callable[[float, str], None]
) -> tuple[dict[int, float], dict[int, float], dict[str, dict[int, float]]]:
    """Return the losses of the one run at x̄ and at its last iterate, and those of the decayed runs."""
    every = max(1, horizons[-1] // READINGS)
    readings = sorted({*horizons, *range(max(every, horizons[0]), horizons[-1] + 1, every)})
    one = lab.run("constant", lab.size.lr, seed, horizons[-1], readings, advance)["losses"]
    decayed = {
        name: {h: lab.run(name, lab.size.lr, seed, h, [h], advance)["losses"][str(h)]["last"] for h in horizons}
        for name in DECAYS
    }
    average, last = ({h: one[str(h)][weights] for h in readings} for weights in ("average", "last"))
    return average, last, decayed


def climb(law: o2nc.Law | None, steps: int, seed: int) -> list[float]:
    """Return F after every step of momentum on the slope; nothing is random without a law.

    Example:
        >>> heights = climb(None, steps=50, seed=0)
        >>> f"{heights[0]:.2f} -> {heights[-1]:.2f}"  # 0.1 uphill in every step
        '0.53 -> 5.53'
    """
    problem = Climber(1)
    x = problem.start()
    # momentum as a mean of gradients: dampening equals the momentum
    optimizer = o2nc.SGD([x], problem.lr, momentum=0.9, dampening=0.9, scaling=law, seed=seed)
    heights = [problem.value(x).item()]
    for _ in range(steps):
        x.grad = problem.gradient(x)
        optimizer.step()
        heights.append(problem.value(x).item())
    return heights


def draw_losses(axes: "Axes", found: Found, horizons: Sequence[int]) -> None:
    """Draw the losses: a line for the one run, a mark for every decayed one."""
    styles = [gpt.ARMS["constant"].style, gpt.LAST, *(gpt.ARMS[name].style for name in DECAYS)]
    for (label, points), style in zip(found.lines.items(), styles, strict=True):
        kit.draw_means(axes, {h: [loss] for h, loss in points.items()}, {**style, "label": label})
    kit.style_panel(axes, "A GPT without a schedule", "steps of the run", "loss on held-out text (nats per byte)")
    kit.horizon_axis(axes, horizons)
    axes.legend(frameon=False, fontsize=9)


def draw_climber(axes: "Axes", found: Found) -> None:
    """Draw F over the steps for every law, averaged over blocks of steps."""
    for name, heights in found.climber.items():
        blocks = [heights[i : i + BLOCK] for i in range(0, len(heights) - BLOCK + 1, BLOCK)]
        style: dict[str, Any] = {
            "color": kit.COLOURS[LAWS[name][1]],
            "linewidth": 2.4 if LAWS[name][0] is None else 1.4,
        }
        axes.plot([BLOCK * i for i in range(len(blocks))], [fmean(block) for block in blocks], **style, label=name)
    kit.style_panel(axes, "A sawtooth slope: momentum alone walks uphill", "steps", "height F (the bottom is 0)")
    axes.set_yscale("log")
    axes.legend(frameon=False, fontsize=9, loc="center right", bbox_to_anchor=(1.0, 0.62))


def figure(found: Found, horizons: Sequence[int]) -> "Figure":
    """Return the picture with both panels."""
    drawn = kit.new_figure(10.5, 4.3)
    left, right = drawn.subplots(1, 2, width_ratios=[1.25, 1])
    draw_losses(left, found, horizons)
    draw_climber(right, found)
    return drawn


def tables(found: Found, horizons: Sequence[int]) -> list[Table]:
    """Return the losses, and where the climbers ended."""
    rows = [[label, *(f"{own[h]:.3f}" for h in horizons)] for label, own in found.lines.items()]
    note = "Loss in nats per byte on text that was held out; n = 1 seed; differences vary by about 0.01 with it."
    ends = [[name, f"{heights[0]:.2f}", f"{heights[-1]:.2f}"] for name, heights in found.climber.items()]
    return [
        Table(["a small GPT", *(f"{h} steps" for h in horizons)], rows, notes=note),
        Table(["the sawtooth slope", "F at the start", "F at the end"], ends, notes="The least value of F is 0."),
    ]


def sections(found: Found, horizons: Sequence[int]) -> list[Section]:
    """Return the page."""
    one, best = found.average, {h: min(own[h] for own in found.decayed.values()) for h in horizons}
    gaps = [one[h] - best[h] for h in horizons]
    steps, total = horizons[-1], sum(horizons)
    no_schedule = (
        "A learning rate is usually decayed so that a run ends well, and the decay has to know where the end is. "
        "Here one run keeps its learning rate constant and is read at x̄, an average of its own weights over the last "
        "8 % of the run so far: good weights at any moment, without a horizon.\n"
        f"Between {horizons[0]} and {steps} steps x̄ is {min(gaps):+.3f} to {max(gaps):+.3f} nats from the better of "
        f"two decayed runs that were made for exactly that length. The one run took {steps:,} steps; each kind of "
        f"decay took {total:,}, a new run for every length."
    )
    ends = {name: heights[-1] for name, heights in found.climber.items()}
    start = found.climber["momentum alone"][0]
    trap = (
        "A sawtooth slope, in a shallow valley. Momentum's steps happen to be one tooth long, so it always lands "
        "where the ground falls ahead of it, steps over the steep sides that lead up, and climbs "
        f"from {start:.2f} to {ends['momentum alone']:.0f}. One random number per step, 1 on average, breaks the "
        f"resonance: F ends at {ends['each step times Gamma(16)']:.2g} with Gamma(16) and at "
        f"{ends['each step times Exp(1)']:.2g} with Exp(1). On a GPT Gamma(16) costs 0.004 ± 0.011 nats, Exp(1) 0.32."
    )
    both = figure(found, horizons)
    caption = (
        "Left: the line is one run, every mark a run of its own. Right: the same momentum, with and without scaling."
    )
    losses, ends_table = tables(found, horizons)
    return [
        Section("Weights that need no schedule", no_schedule, [(both, caption)], [losses]),
        Section("Steps that a non-smooth loss cannot trap", trap, (), [ends_table]),
        Section("In your own training", "Only the optimizer changes, and the scheduler goes.", code=CODE),
    ]


def main(
    out: Path = Path("o2nc-demo"),
    seed: int = 0,
    horizons: str = ",".join(map(str, HORIZONS)),
    quiet: bool = False,
) -> Found:
    """Run the demo; write demo.json, demo.png and report.html into ``out``. Finished runs are not repeated.

    Args:
        out: folder of the results.
        seed: of everything that is random.
        horizons: numbers of steps to compare at.
        quiet: print nothing.
    """
    kit.at_least(0, seed=seed)
    terminal, begun = kit.Terminal(quiet), perf_counter()
    lengths = sorted(kit.numbers("--horizons", horizons, int, SIZE.warmup + 1))
    torch.set_num_threads(1)  # fastest for matrices this small, and sums do not depend on the number of cores
    command = f"o2nc demo --seed {seed} --horizons {','.join(map(str, lengths))}"
    lab = gpt.Lab(kit.make_folder(out), text.load(None), SIZE, torch.device("cpu"), command, save_every=30.0)
    terminal.say(
        "A small GPT on Python's own sources: one run without a schedule, and a decayed run for every length."
    )
    with terminal.progress(lengths[-1] + len(DECAYS) * sum(lengths), "training") as advance:
        losses = train(lab, lengths, seed, advance)
    found = Found(*losses, {name: climb(law, CLIMBER_STEPS, seed) for name, (law, _) in LAWS.items()})
    seconds = round(perf_counter() - begun)
    for table in tables(found, lengths):
        terminal.table(table)
    about = {**lab.store.about, "seed": seed, "seconds": seconds}
    thinned = asdict(found) | {"climber": {name: own[::BLOCK] for name, own in found.climber.items()}}
    kit.write_json(out / "demo.json", {"circumstances": about, **thinned})
    kit.write_bytes(out / "demo.png", kit.draw(figure(found, lengths), "png"))
    lead = "o2nc gives the optimizer that you have weights that need no schedule, and steps that nothing can trap."
    kit.write_page(out / "report.html", "o2nc in two minutes", lead, sections(found, lengths), about)
    terminal.say(f"Report: {out / 'report.html'}")
    return found


if __name__ == "__main__":
    kit.run_script(main)
