"""Is ``opt.diagnose()`` right? 200 runs whose state is known by construction, half of them held out.

    python experiments/benchmarks/verdicts.py --out verdicts               # docs/results/verdicts.json
    python experiments/benchmarks/verdicts.py --out verdicts --pictures    # docs/images/verdicts.png

Labels were fixed before any threshold: a run at a kink or at its noise floor, long after it arrived, is "stationary";
a network in the midst of its training, at a good learning rate, "travelling"; one at a tenth of it, and a function at
a hundredth, "straight"; a network at ten times it "too hot"; one that met a batch with gradients 30 times as long in
the last tenth of its run "spike". Every other run of each kind is held out.

Result: docs/run.md (two cores, torch 2.13 on a CPU).
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import o2nc
from o2nc.certificates.diagnosis import ADVICE
from o2nc_experiments import kit, nonsmooth
from o2nc_experiments.nonsmooth import PROBLEMS
from o2nc_experiments.nonsmooth_runs import Arm

AVERAGE = o2nc.Polynomial(12, every=4)
KINKS = {  # by problem, log2 of a learning rate that reaches its kinks soon
    "double well, d = 10": 2,
    "kinks, d = 10, noise": 0,
    "max-affine, d = 20": -2,
    "ReLU net, d = 16": 2,
    "phase retrieval, d = 10": -2,
    "blind deconvolution, d = 20": -2,
}
NETWORKS = {  # by task and optimizer, a good learning rate of a factor-3 grid for 800 steps
    ("classes", "SGD"): 0.03,
    ("classes", "AdamW"): 0.01,
    ("tokens", "SGD"): 0.05,
    ("tokens", "AdamW"): 0.01,
    ("regression", "AdamW"): 0.01,
}


class Case(NamedTuple):
    """One run, and what it is doing at its end."""

    label: str
    name: str
    run: Callable[[], o2nc.Diagnosis]


def optimizer(kind: str, params: Any, lr: float) -> Any:
    """Return SGD with momentum, or AdamW, with averages."""
    if kind == "SGD":
        return o2nc.SGD(params, lr=lr, momentum=0.9, average=AVERAGE)
    return o2nc.AdamW(params, lr=lr, betas=(0.9, 0.95), average=AVERAGE)


def minimise(value: Any, gradient: Any, start: Tensor, lr: float, steps: int, kind: str = "SGD") -> o2nc.Diagnosis:
    """Run an optimizer on a function and diagnose it."""
    x = nn.Parameter(start.clone())
    opt = optimizer(kind, [x], lr)
    for _ in range(steps):
        x.grad = gradient(x.detach())
        opt.step()
    return opt.diagnose(lambda: value(x.detach()))


def on_problem(name: str, exponent: float, seed: int, steps: int) -> o2nc.Diagnosis:
    """Run SGD on one of the 13 problems."""
    oracle, generator = PROBLEMS[name], torch.Generator().manual_seed(seed)
    start = oracle.problem.start()
    start += 0.1 * oracle.problem.gap / oracle.problem.lipschitz * torch.randn(start.shape, generator=generator) / 3
    lr = nonsmooth.learning_rate(oracle, Arm(), exponent)
    return minimise(oracle.problem.value, partial(oracle.sample, generator=generator), start, lr, steps)


def on_floor(kind: str, seed: int, lr: float, steps: int, noise: float = 1.0) -> o2nc.Diagnosis:
    """Run on a quadratic or a logistic regression with noise, of 30 variables."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "quadratic":
        curvatures = torch.arange(1, 31, dtype=torch.float64) ** -0.7

        def gradient(x: Tensor) -> Tensor:
            return curvatures * x + noise * torch.randn(30, generator=generator, dtype=torch.float64)

        start = 5 * torch.randn(30, generator=generator, dtype=torch.float64)
        return minimise(lambda x: (curvatures * x**2).sum() / 2, gradient, start, lr, steps)
    data = torch.randn(500, 30, generator=generator, dtype=torch.float64)
    labels = (data @ torch.randn(30, generator=generator, dtype=torch.float64) > 0).double() * 2 - 1
    flipped = torch.rand(500, generator=generator) < 0.2
    labels[flipped] *= -1

    def batch_gradient(x: Tensor) -> Tensor:
        i = torch.randint(500, (4,), generator=generator)
        return -(labels[i] * torch.sigmoid(-labels[i] * (data[i] @ x))) @ data[i] / 4 + 0.01 * x

    def value(x: Tensor) -> Tensor:
        return nn.functional.softplus(-labels * (data @ x)).mean() + 0.005 * x.square().sum()

    return minimise(value, batch_gradient, torch.zeros(30, dtype=torch.float64), lr, steps)


def network(task: str, seed: int) -> tuple[nn.Module, Callable[[int], tuple[Tensor, Tensor]], Any]:
    """Return a small network, its batches, and the loss."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if task == "tokens":
            table = 1.5 * torch.randn(64, 64)
            model = nn.Sequential(nn.Embedding(64, 24), nn.Flatten(), nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 64))

            def tokens(n: int) -> tuple[Tensor, Tensor]:
                x = torch.randint(64, (n, 2), generator=generator)
                logits = table[x[:, 0]] + table.T[x[:, 1]].roll(7, 1)
                return x, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]

            return model, tokens, cross_entropy
        sizes, activation = ((16, 32, 1), nn.Tanh) if task == "regression" else ((20, 40, 10), nn.ReLU)
        teacher = nn.Sequential(nn.Linear(sizes[0], sizes[1]), activation(), nn.Linear(sizes[1], sizes[2]))
        next(teacher.requires_grad_(False).parameters()).mul_(3.0)
        model = nn.Sequential(nn.Linear(sizes[0], 64), activation(), nn.Linear(64, sizes[2]))

    def pairs(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, sizes[0], generator=generator)
        y = 3 * teacher(x)
        return x, y + 0.1 * torch.randn(n, 1, generator=generator) if task == "regression" else (
            y - y.mean(0)
        ).argmax(1)

    return model, pairs, mse_loss if task == "regression" else cross_entropy


def on_network(task: str, kind: str, lr: float, seed: int, steps: int, bad_batch: bool = False) -> o2nc.Diagnosis:
    """Train a small network and diagnose it on 500 fresh examples."""
    model, batch, criterion = network(task, seed)
    opt, bad = optimizer(kind, model.parameters(), lr), int(steps * (0.91 + 0.08 * (seed % 10) / 10))
    for t in range(steps):
        x, y = batch(32)
        opt.zero_grad()
        (criterion(model(x), y) * (30.0 if bad_batch and t == bad else 1.0)).backward()
        opt.step()
    x, y = batch(500)
    return opt.diagnose(lambda: criterion(model(x), y))


def cases() -> Iterator[Case]:
    """Yield 200 runs."""
    for i in range(36):
        name, exponent = list(KINKS.items())[i % 6]
        yield Case(
            "stationary", f"kinks: {name}", partial(on_problem, name, exponent + i // 12 - 1, i, 1000 + 100 * (i % 5))
        )
    for i in range(30):
        kind, lr = ("quadratic", 0.05) if i % 2 else ("logistic", 0.03)
        yield Case(
            "stationary", f"noise floor: {kind}", partial(on_floor, kind, i, lr * 2 ** (i % 3), 1500 + 50 * (i % 7))
        )
    for i in range(45):
        (task, kind), lr = list(NETWORKS.items())[i % 5]
        yield Case(
            "travelling", f"learning: {task}, {kind}", partial(on_network, task, kind, lr, i, 300 + 60 * (i // 5))
        )
    for i in range(30):
        (task, kind), lr = list(NETWORKS.items())[i % 5]
        yield Case(
            "straight", f"lr/10: {task}, {kind}", partial(on_network, task, kind, lr / 10, i, 300 + 60 * (i // 5))
        )
    for i in range(14):
        name, exponent = list(KINKS.items())[1 + i % 5]  # the double well's start is next to one of its kinks
        run = (
            partial(on_problem, name, exponent - 7, i, 300)
            if i < 12
            else partial(on_floor, "quadratic", i, 5e-4, 400)
        )
        yield Case("straight", f"lr/100: {name if i < 12 else 'quadratic'}", run)
    for i in range(25):
        (task, kind), lr = list(NETWORKS.items())[i % 5]
        yield Case(
            "too hot", f"lr·10: {task}, {kind}", partial(on_network, task, kind, lr * 10, i, 300 + 60 * (i // 5))
        )
    for i in range(20):
        task = ("classes", "tokens")[i % 2]
        run = partial(on_network, task, "SGD", NETWORKS[task, "SGD"], i, 400 + 20 * i, bad_batch=True)
        yield Case("spike", f"bad batch: {task}", run)


class Scene(NamedTuple):
    """A made-up run of two coordinates for the picture, and what it shows."""

    shows: str
    value: Callable[[Tensor], Tensor]  # F, of points (…, 2)
    start: tuple[float, float]
    lr: float
    noise: float = 0.0  # of every gradient, in each coordinate
    steps: int = 400
    bad: float = 1.0  # what the gradient of step 370 is multiplied by


def valley(y: Tensor) -> Tensor:
    """Return F of a valley with a kink at its bottom, along which F falls slowly."""
    return 4 * y[..., 1].abs() + 0.01 * (80 - y[..., 0]).clamp(min=0)


def bowl(y: Tensor) -> Tensor:
    """Return F of a round bowl, 60 away from 0 and not steep."""
    return ((y - torch.tensor([60.0, 60.0], dtype=y.dtype)).square().sum(-1) + 1).sqrt()


SCENES = {
    "too early": Scene("fewer than 130 steps", bowl, (20.0, 40.0), 0.02, 1.0, steps=60),
    "straight": Scene("one way, in small steps", bowl, (20.0, 40.0), 0.004, 0.3),
    "travelling": Scene("onwards, by detours", bowl, (20.0, 40.0), 0.008, 4.0),
    "stationary": Scene("hops around one place", lambda y: (y - 30).abs().sum(-1), (28.0, 29.0), 0.02, 0.5),
    "too hot": Scene("hops across the valley that it follows", valley, (60.0, 1.0), 0.01, 1.5),
    "spike": Scene("one step longer than all before", bowl, (20.0, 40.0), 0.01, 6.0, bad=60.0),
    "broken": Scene("not finite from here on", bowl, (20.0, 40.0), 0.008, 4.0, bad=math.inf),
}


def picture() -> Any:
    """Return one run for every verdict: its path over lines of equal F, with x̄."""
    figure = kit.new_figure(10.0, 5.2)
    panels = figure.subplots(2, 4).flatten()
    for axes, (name, scene) in zip(panels, SCENES.items(), strict=False):
        generator = torch.Generator().manual_seed(2)
        x = nn.Parameter(torch.tensor(scene.start, dtype=torch.float64))
        opt, path, average = optimizer("SGD", [x], scene.lr), [], x.detach()
        for t in range(scene.steps):
            (g,) = torch.autograd.grad(scene.value(x), x)
            error = scene.noise * torch.randn(2, generator=generator, dtype=x.dtype)
            x.grad = (g + error) * (scene.bad if t == 370 else 1.0)
            opt.step()
            path.append(x.detach().clone())
        found = opt.diagnose(partial(scene.value, x) if name == "too hot" else None)
        print(name, found)
        points = torch.stack([y for y in path[-200:] if y.isfinite().all()])
        if name != "broken":
            with opt.averaged():
                average = x.detach().clone()
            axes.plot(*average, "x", color=kit.COLOURS["black"], markersize=8, markeredgewidth=2, zorder=3)
        axes.plot(*points.T, linewidth=0.9, color=kit.COLOURS["blue"])
        axes.plot(*points[-1], "o", color=kit.COLOURS["red"], markersize=5)
        axes.plot(*points[0], "o", color=kit.COLOURS["red"], markersize=5, markerfacecolor="none")
        low, high = (getattr(points, side)(0).values for side in ("min", "max"))
        edges = zip(low - 0.1 * (high - low), high + 0.1 * (high - low), strict=True)
        sides = [torch.linspace(float(first), float(last), 80, dtype=x.dtype) for first, last in edges]
        grid = torch.stack(torch.meshgrid(*sides, indexing="xy"), -1)
        axes.contour(*sides, scene.value(grid), 8, colors=kit.COLOURS["grey"], linewidths=0.5, alpha=0.5)
        axes.set(xticks=[], yticks=[])
        j = found.evidence["displacement"]
        axes.set_title(f"{found.verdict}\n" + ("no J" if math.isnan(j) else f"J = {j:.2g}"), fontsize=11)
        axes.set_xlabel(scene.shows, fontsize=9)
    panels[-1].axis("off")
    panels[-1].plot([], [], "o", color=kit.COLOURS["red"], markerfacecolor="none", label="x before")
    for marker, colour, text in (
        ("-", "blue", "its path, of up to 200 steps"),
        ("o", "red", "x now"),
        ("x", "black", "x̄"),
    ):
        panels[-1].plot([], [], marker, color=kit.COLOURS[colour], label=text)
    panels[-1].plot([], [], "-", color=kit.COLOURS["grey"], linewidth=0.5, label="lines of equal F")
    panels[-1].legend(loc="center", frameon=False)
    return figure


def main(out: Path, pictures: bool = False) -> None:
    """Run all cases, write them down and print who was right; or draw one run for every verdict."""
    kit.make_folder(out)
    if pictures:
        kit.write_bytes(out / "verdicts.png", kit.draw(picture(), "png"))
        return
    found = []
    for case in cases():
        result = case.run()
        numbers = {key: v if math.isfinite(v) else None for key, v in result.evidence.items()}
        found.append({"label": case.label, "name": case.name, "verdict": result.verdict, "evidence": numbers})
        print(len(found), case.label, case.name, str(result)[:150], flush=True)
    kit.write_json(out / "verdicts.json", {"circumstances": kit.circumstances("verdicts.py"), "runs": found})
    labels = [label for label in ADVICE if any(run["label"] == label for run in found)]
    for half, title in ((0, "used to choose the thresholds"), (1, "held out")):
        runs = [run for label in labels for run in [r for r in found if r["label"] == label][half::2]]
        head = ["verdict", "runs", "recall", "false alarms", "said instead"]
        rows = [row(label, runs) for label in labels]
        kit.Terminal().table(kit.Table(head, rows, title))


def row(label: str, runs: list[dict[str, Any]]) -> list[str]:
    """Return recall and false alarms of one verdict."""
    own, others = [r for r in runs if r["label"] == label], [r for r in runs if r["label"] != label]
    right, alarms = sum(r["verdict"] == label for r in own), sum(r["verdict"] == label for r in others)
    missed = {v: n for v in ADVICE if v != label and (n := sum(r["verdict"] == v for r in own))}
    said = ", ".join(f"{v} {n}" for v, n in missed.items()) or kit.NONE
    return [label, str(len(own)), f"{right / len(own):.0%}", f"{alarms / len(others):.1%}", said]


if __name__ == "__main__":
    kit.run_script(main)
