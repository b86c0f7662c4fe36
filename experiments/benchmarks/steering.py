"""What `diagnose` says along a run, and what `o2nc.Ladder`, ``lr="auto"`` and `o2nc.find_lr` do to it.

    python experiments/benchmarks/steering.py --out steering                # digits (scikit-learn) and three kinks
    python experiments/benchmarks/steering.py --out steering --tasks resnet --cifar DIR --seeds 0,1
    python experiments/benchmarks/steering.py --out steering --tasks resnet --cifar DIR --arms AdamW --lr 0.001,0.002
    python experiments/benchmarks/steering.py --out steering --tasks resnet --cifar DIR --arms "find,find AdamW"
    python experiments/benchmarks/steering.py --out steering --tasks gpt --corpus DIR --seeds 0,1

Every run is read at x̄, and `diagnose` looks at it 40 times. A run is a file in ``--out``, so that several commands
may share the folder; a finished run is not repeated. Each command ends with steering.json, which has all of them, and
steering.png. Result, seeds and hardware: docs/run.md.
"""

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LinearLR

import o2nc
from o2nc.certificates.diagnosis import STATIONARY, STRAIGHT
from o2nc_experiments import cifar10, gpt, kit, nonsmooth, text
from o2nc_experiments.cifar10_data import Data, Epoch, load, memory_format, normalise
from o2nc_experiments.cifar10_model import make_model

WINDOW = o2nc.Polynomial(12)
LOOKS = 40  # along a run
HELD_OUT = 1000  # images for the heat


@dataclass(frozen=True)
class Arm:
    """One way to choose the learning rate."""

    adamw: bool = False  # AdamW also where the task has SGD
    ladder: bool = False
    auto: bool = False
    finds: bool = False  # lr by find_lr

    @property
    def needs_lr(self) -> bool:
        """Whether it has to be given one."""
        return not (self.auto or self.finds)


ARMS = {
    "constant": Arm(),
    "ladder": Arm(ladder=True),
    "AdamW": Arm(adamw=True),
    "auto": Arm(adamw=True, auto=True),
    "find": Arm(finds=True),
    "find AdamW": Arm(adamw=True, finds=True),
}


class Task(NamedTuple):
    """A model at its start, and how it is trained."""

    model: nn.Module
    loss: Callable[[int], Tensor]  # of batch t
    look: Callable[[], Tensor]  # the loss for the heat
    score: Callable[[], dict[str, float]]  # of the weights that the model has
    lr: float
    steps: int
    is_adamw: bool = False
    decay: float = 0.0  # weight decay
    warmup: int = 0  # of AdamW at a constant learning rate
    clip: float = math.inf
    batches: Callable[[], Iterable[Tensor]] | None = None  # for the BatchNorm statistics of x̄


class Place(NamedTuple):
    """Where a task runs and where its data are."""

    out: Path
    device: torch.device
    cifar: Path | None
    corpus: Path | None
    width: int  # of ResNet-18
    limit: int | None  # training images
    size: str  # of the GPT


# ---- tasks ---------------------------------------------------------------------------------------------------------


@cache
def images(place: Place) -> Data:
    """Return CIFAR-10."""
    if place.cifar is None:
        raise kit.UsageError("--tasks resnet needs --cifar, the folder of the official binary files")
    return load(place.cifar, place.limit).to(place.device)


def resnet(place: Place, seed: int) -> Task:
    """Return ResNet-18 on CIFAR-10, as `o2nc cifar10` trains it."""
    data, device = images(place), place.device
    model = make_model(place.width, seed, device, memory_format(device))
    forward: Any = torch.compile(model, dynamic=False) if device.type == "cuda" else model
    batches = len(data.train) // cifar10.BATCH
    draw = cache(lambda epoch: Epoch.draw(seed, epoch, len(data.train), device))

    def loss(t: int) -> Tensor:
        model.train()
        x, y = draw(t // batches).batch(data, t % batches * cifar10.BATCH, cifar10.BATCH)
        with cifar10.autocast(device):
            return cross_entropy(forward(x), y)

    def look() -> Tensor:
        model.train()  # with the BatchNorm statistics of these images
        with cifar10.autocast(device):
            return cross_entropy(model(normalise(data.test[:HELD_OUT])), data.test_labels[:HELD_OUT])

    def score() -> dict[str, float]:
        return dict(zip(("loss", "accuracy"), cifar10.evaluate(model, data), strict=True))

    def typical() -> Iterable[Tensor]:
        rows = min(HELD_OUT, len(data.train))
        return (draw(0).batch(data, i * rows, rows)[0] for i in range(min(5, len(data.train) // rows)))

    decay = cifar10.WEIGHT_DECAY
    return Task(model, loss, look, score, 0.05, 15 * batches, decay=decay, warmup=100, batches=typical)


@cache
def lab(place: Place) -> gpt.Lab:
    """Return the GPT and its tokens."""
    return gpt.Lab(place.out, text.load(place.corpus), gpt.SIZES[place.size], place.device, "steering.py", math.inf)


def language(place: Place, seed: int) -> Task:
    """Return the GPT of `o2nc gpt`, on its corpus."""
    its, size, steps = lab(place), gpt.SIZES[place.size], 1000
    model, train = its.model, its.train_tokens
    model.init_weights_(seed)
    starts = text.row_starts(len(train), size.context, size.rows, 10 * steps, seed).to(place.device)

    def loss(t: int) -> Tensor:
        with its.autocast():
            found: Tensor = model(text.read_rows(train, starts[t], size.context))
        return found

    def look() -> Tensor:
        with its.autocast():
            return torch.stack([model(batch) for batch in its.held_out[:2]]).mean()

    def score() -> dict[str, float]:
        return {"loss": its.evaluate()}

    return Task(model, loss, look, score, 1.4 * size.lr, steps, True, gpt.WEIGHT_DECAY, size.warmup, gpt.CLIP)


def digits(place: Place, seed: int) -> Task:
    """Return two layers of 64 ReLUs on scikit-learn's digits."""
    from sklearn.datasets import load_digits

    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    x, y = (x[order] / 16).float(), y[order]
    drawn = torch.randint(1200, (10_000, 32), generator=torch.Generator().manual_seed(seed + 1000))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    model = nn.Sequential(*layers)

    def loss(at: Any) -> Tensor:
        return cross_entropy(model(x[at]), y[at])

    rest = slice(1200, None)
    score = torch.no_grad()(lambda: {"loss": loss(rest).item()})
    return Task(model, lambda t: loss(drawn[t]), lambda: loss(rest), score, 0.05, 3000)


def kinks(name: str, exponent: float, place: Place, seed: int) -> Task:
    """Return one of the 13 problems of `o2nc paper nonsmooth`."""
    oracle, generator = nonsmooth.PROBLEMS[name], torch.Generator().manual_seed(seed)
    problem, start = oracle.problem, oracle.problem.start()
    near = 0.1 * problem.gap / problem.lipschitz / math.sqrt(problem.dimension)
    start += near * torch.randn(start.shape, generator=generator, dtype=start.dtype)
    model = nn.ParameterList([nn.Parameter(start)])

    def loss(t: int) -> Tensor:
        g = oracle.sample(model[0].detach(), generator)
        return (g * model[0]).sum()  # its gradient is g

    def value() -> Tensor:
        return problem.value(model[0].detach())

    lr = nonsmooth.learning_rate(oracle, nonsmooth.Arm(), exponent)
    return Task(model, loss, value, lambda: {"loss": value().item()}, lr, 3000)


TASKS: dict[str, Callable[[Place, int], Task]] = {
    "gpt": language,
    "resnet": resnet,
    "digits": digits,
    "max-affine": partial(kinks, "max-affine, d = 20", -2),
    "kinks with noise": partial(kinks, "kinks, d = 10, noise", 0),
    "Rosenbrock": partial(kinks, "Chebyshev–Rosenbrock, d = 4", 2),
}


# ---- a run ---------------------------------------------------------------------------------------------------------


def train(task: Task, arm: Arm, lr: float, steps: int) -> dict[str, Any]:
    """Train, and return the scores at x̄ and at the last iterate, and the trace."""
    params, begun, trace = list(task.model.parameters()), time.perf_counter(), []
    is_adamw = arm.adamw or task.is_adamw
    decay = 100 * task.decay if arm.adamw and not task.is_adamw else task.decay  # decoupled from the gradient

    def clip(*_: Any) -> None:
        clip_grad_norm_(params, task.clip)

    def make(lr: Any) -> Any:
        kind, memory = (o2nc.AdamW, (0.9, 0.95)) if is_adamw else (o2nc.SGD, 0.9)
        opt: Any = kind(params, lr, memory, weight_decay=decay, average=WINDOW)
        if task.clip < math.inf:
            opt.register_step_pre_hook(clip)
        return opt

    if arm.finds:
        lr = o2nc.find_lr(make, task.loss, range(steps), steps=steps).lr
    opt = make("auto" if arm.auto else lr)
    warmup = task.warmup if (is_adamw and not arm.auto) or arm.finds else 0
    ladder = o2nc.Ladder(opt) if arm.ladder else None
    schedulers = [LinearLR(opt, 1 / warmup, total_iters=warmup)] if warmup else []
    for t in range(1, steps + 1):
        opt.zero_grad()
        task.loss(t - 1).backward()
        opt.step()
        for scheduler in (*schedulers, ladder) if ladder else schedulers:
            scheduler.step()
        if t % max(1, steps // LOOKS) == 0:
            found = opt.diagnose(task.look)
            names = ("displacement", "heat", "turnover", "loss", "loss_averaged")
            numbers = {name: cifar10.round_off(found.evidence.get(name)) for name in names}
            trace.append({"step": t, "verdict": found.verdict, "lr": opt.param_groups[0]["lr"], **numbers})
    last = task.score()
    with opt.averaged(task.model, batches=task.batches()) if task.batches else opt.averaged():
        average = task.score()
    seconds = round(time.perf_counter() - begun, 1)
    halvings = ladder.rung if ladder else 0
    return {"steps": steps, "average": average, "last": last, "rung": halvings, "seconds": seconds, "trace": trace}


# ---- the picture, and the command ----------------------------------------------------------------------------------

COLOURS = {
    "straight": "sky",
    "travelling": "green",
    "stationary": "red",
    "too hot": "orange",
    "spike": "pink",
    "broken": "black",
}
TITLES = {"gpt": "GPT", "resnet": "ResNet-18", "digits": "digits, 2 × 64", "Rosenbrock": "Chebyshev–Rosenbrock"}


def picture(shown: dict[str, dict[str, Any]]) -> Any:
    """Draw J coloured by verdict, the heat, and the loss at x̄ beside that with `Ladder`: a column for every task."""
    figure = kit.new_figure(2.2 * len(shown) + 0.6, 6.2)
    panels = figure.subplots(3, len(shown), sharex="col", squeeze=False, height_ratios=[1.2, 1, 1])
    said = {row["verdict"] for own in shown.values() for row in own["constant"]["trace"]}
    seen = [verdict for verdict in COLOURS if verdict in said]
    for (above, middle, below), (task, own) in zip(panels.T, shown.items(), strict=True):
        trace, other = own["constant"]["trace"], own["ladder"]["trace"]
        steps = [row["step"] for row in trace]
        above.axhspan(STATIONARY, STRAIGHT, color=kit.COLOURS["green"], alpha=0.07, linewidth=0)
        above.plot(
            steps, [row["displacement"] or math.nan for row in trace], color=kit.COLOURS["grey"], linewidth=0.8
        )
        for verdict in seen:
            rows = [row for row in trace if row["verdict"] == verdict]
            points = [row["step"] for row in rows], [row["displacement"] for row in rows]
            above.plot(*points, "o", color=kit.COLOURS[COLOURS[verdict]], markersize=4)
        above.set(yscale="log", ylim=(0.015, 8), yticks=[0.1, 1], yticklabels=["0.1", "1"])
        middle.axhline(0, color=kit.COLOURS["grey"], linewidth=0.8)
        middle.plot(steps, [row["heat"] for row in trace], color=kit.COLOURS["blue"], linewidth=1.4)
        losses = [[row["loss_averaged"] for row in rows] for rows in (trace, other)]
        below.plot(steps, losses[0], color=kit.COLOURS["blue"], linewidth=1.8)
        below.plot([row["step"] for row in other], losses[1], "--", color=kit.COLOURS["red"], linewidth=1.4)
        if max(losses[0]) > 100 * min(losses[1]):
            below.set_yscale("log")
        for axes, title, x in ((above, TITLES.get(task, task), ""), (middle, "", ""), (below, "", "steps")):
            kit.style_panel(axes, title, x)
            axes.tick_params(labelsize=8)
    for axes, title in zip(panels[:, 0], ("J", "heat F(x) − F(x̄)", "F(x̄)"), strict=True):
        axes.set_ylabel(title)
    for verdict in seen:
        panels[0, 0].plot([], [], "o", color=kit.COLOURS[COLOURS[verdict]], label=verdict)
    panels[0, 0].plot([], [], color=kit.COLOURS["blue"], label="constant lr")
    panels[0, 0].plot([], [], "--", color=kit.COLOURS["red"], label="with Ladder")
    figure.legend(loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    return figure


def collect(out: Path) -> dict[str, dict[str, Any]]:
    """Write all runs of the folder to steering.json; return by task and arm what a picture can be drawn of."""
    runs: dict[str, Any] = {path.stem: kit.read_json(path) for path in sorted((out / "runs").glob("*.json"))}
    kit.write_json(out / "steering.json", {"runs": runs})
    found = {task: {run["arm"]: run for run in runs.values() if run["task"] == task} for task in TASKS}
    return {task: own for task, own in found.items() if {"constant", "ladder"} <= own.keys()}


def main(
    out: Path,
    tasks: str = "digits,max-affine,kinks with noise,Rosenbrock",
    arms: str = "constant,ladder",
    lr: str | None = None,
    seeds: str = "0",
    steps: int | None = None,
    cifar: Path | None = None,
    corpus: Path | None = None,
    width: int = 64,
    limit: int | None = None,
    size: str = "small",
    device: str | None = None,
) -> None:
    """Run what is not there yet, print a line for every run, and draw.

    Args:
        out: folder of the results.
        tasks: keys of TASKS.
        arms: keys of ARMS.
        lr: learning rates; else each task has its own.
        seeds: the seeds.
        steps: of a run; else each task has its own.
        cifar: folder of CIFAR-10's binary files.
        corpus: what the GPT reads, as for `o2nc gpt`; else Python's standard library.
        width: of ResNet-18.
        limit: training images to use, for a try.
        size: of the GPT, a key of gpt.SIZES.
        device: cpu, cuda or cuda:N; else the GPU if there is one.
    """
    where = kit.find_device(device)
    place = Place(out, where, cifar, corpus, width, limit, size)
    kit.make_folder(out / "runs")
    names, found = tasks.split(",") if tasks else [], kit.numbers("--seeds", seeds)
    for option, given, known in (("--tasks", names, TASKS), ("--arms", arms.split(","), ARMS)):
        if unknown := [word for word in given if word not in known]:
            raise kit.UsageError(f"{option} has {unknown[0]!r}; known: {', '.join(known)}")
    if lr is None and "AdamW" in arms.split(","):
        raise kit.UsageError("--arms AdamW needs --lr")
    if where.type == "cpu":
        torch.set_num_threads(1)
    about = kit.circumstances("steering.py", where)
    rates = [None] if lr is None else kit.numbers("--lr", lr, float)
    for name, seed, arm in [(n, s, a) for n in names for s in found for a in arms.split(",")]:
        for rate in rates if ARMS[arm].needs_lr else [None]:
            task = TASKS[name](place, seed)
            its_lr, length = rate or task.lr, steps or task.steps
            title = f"gpt {size}" if name == "gpt" else name
            shown = f"{its_lr:.4g}" if ARMS[arm].needs_lr else "auto"
            key = f"{title}, {arm}, lr {shown}, {length} steps, seed {seed}"
            path = out / "runs" / f"{key}.json"
            if path.exists():
                continue
            run = train(task, ARMS[arm], its_lr, length)
            facts = {"task": name, "arm": arm, "lr": its_lr, "seed": seed, "circumstances": about}
            kit.write_json(path, facts | run)
            print(
                f"{key}: x̄ {run['average']}, last {run['last']}, rung {run['rung']}, {run['seconds']} s", flush=True
            )
    if drawn := collect(out):
        with suppress(ImportError):  # no picture where matplotlib is missing
            kit.write_bytes(out / "steering.png", kit.draw(picture(drawn), "png"))


if __name__ == "__main__":
    kit.run_script(main)
