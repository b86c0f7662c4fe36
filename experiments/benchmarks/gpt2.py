"""``lr="auto"`` and `o2nc.find_lr` at the size of GPT-2 against learning rates that were tuned, and other ways.

    python experiments/benchmarks/gpt2.py --data DIR --out results/gpt2 --minutes 11      # one GPU
    python experiments/benchmarks/gpt2.py --size tiny --steps 200,400                     # a CPU, two minutes

12 layers of width 768, context 1,024: GPT-2's 124 M parameters, 98 M where there are 8,192 tokens. A step reads 32
rows in bfloat16. Runs are taken in the order of `plan` while the time lasts, and written as they end; a finished run
is not repeated. Every constant learning rate serves twice: at its average x̄, and, branching off at 80 % of a horizon,
as torch's AdamW whose lr falls linearly to 0 (WSD). Result, seeds and hardware: docs/no-learning-rate.md.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, optim
from torch.nn.utils import clip_grad_norm_

import o2nc
from o2nc_experiments import gpt, kit, text
from o2nc_experiments.prodigy import Prodigy

SIZES = gpt.SIZES | {
    "narrow": gpt.Size(layers=3, width=128, heads=4, context=256, rows=16, warmup=100, evaluated=262_144, lr=4e-3),
    "wide": gpt.Size(layers=4, width=1024, heads=16, context=512, rows=32, warmup=100, evaluated=262_144, lr=5e-4),
    "gpt2": gpt.Size(layers=12, width=768, heads=12, context=1024, rows=32, warmup=100, evaluated=524_288, lr=1e-3),
    "tiny": gpt.Size(layers=2, width=32, heads=2, context=32, rows=8, warmup=20, evaluated=4096, lr=4e-3),
}
NARROW = 2**0.5  # from one learning rate to the next
GROWTHS = 2  # how often the grid grows at most where the best is at its end
UNKNOWN = (float("nan"), float("nan"))
PROBES = 1500  # steps that find_lr takes, about


def prodigy(model: Any, lr: float, seed: int, average: Any = None) -> list[Any]:
    """Return Prodigy, which needs no learning rate: lr = 1; with x̄ if there is a window."""
    opt = Prodigy(model.parameters(), lr, gpt.BETAS, weight_decay=gpt.WEIGHT_DECAY)
    return [o2nc.extend(opt, average=average) if average else opt]


ARMS = {
    "constant": gpt.Arm("constant lr, x̄", gpt.averaged_adamw, gpt.constant, {"color": "blue", "linewidth": 0.8}),
    "auto": gpt.Arm('lr="auto", x̄', gpt.averaged_adamw, gpt.constant, {"color": "red"}),
    "find": gpt.Arm("find_lr, x̄", gpt.averaged_adamw, gpt.constant, {"color": "pink"}),
    "prodigy": gpt.Arm("Prodigy, x̄", partial(prodigy, average=gpt.WINDOW), gpt.constant, {"color": "green"}),
    "prodigy-cosine": gpt.Arm("Prodigy, cosine", prodigy, gpt.cosine, {"color": "green", "linestyle": ":"}),
    "schedule-free": gpt.Arm("schedule-free AdamW", gpt.schedule_free, gpt.constant, {"color": "orange"}),
}
WARM = ("constant", "find", "schedule-free")  # their lr warms up


class Job(NamedTuple):
    """A run: an arm, the lr that its optimizer gets or how it comes by one, the seed, and steps."""

    arm: str
    lr: Any
    seed: int
    steps: int

    @property
    def key(self) -> str:
        """The run's name; one run serves all horizons unless it decays."""
        length = "" if ARMS[self.arm].is_one_run else f", {self.steps} steps"
        return f"{self.arm}, lr {self.lr if isinstance(self.lr, str) else f'{self.lr:.3g}'}, seed {self.seed}{length}"


def losses(runs: dict[str, Any], name: str, horizon: int) -> dict[int, tuple[float, float]]:
    """Return an arm's loss and last lr by seed, of constant learning rates and of "wsd" the best."""
    arm, kind = ("constant", "wsd") if name == "wsd" else (name, "losses")
    found: dict[int, list[tuple[float, float]]] = {}
    for run in runs.values():
        if run["arm"] == arm and run[kind].get(str(horizon)) is not None:  # None: diverged
            found.setdefault(run["seed"], []).append((run[kind][str(horizon)], run["course"][-1][1]))
    return {seed: min(own) for seed, own in found.items()}


def plan(runs: dict[str, Any], centre: float, horizons: tuple[int, ...]) -> Iterator[Job]:
    """Yield what to run, the most important first; it looks at the runs that are finished by then."""
    steps = horizons[-1]
    grid = [centre, centre * NARROW, centre / NARROW]
    yield Job("constant", centre, 0, steps)
    yield Job("auto", "auto", 0, steps)
    yield Job("find", "found", 0, steps)
    yield from (Job("constant", lr, 0, steps) for lr in grid[1:])
    for _ in range(GROWTHS):
        bests = {losses(runs, name, h).get(0, UNKNOWN)[1] for name in ("constant", "wsd") for h in horizons}
        more = [max(grid) * NARROW] * (max(grid) in bests) + [min(grid) / NARROW] * (min(grid) in bests)
        yield from (Job("constant", lr, 0, steps) for lr in more)
        grid += more
    lr = losses(runs, "constant", steps).get(0, (0.0, centre))[1]
    yield Job("prodigy", 1.0, 0, steps)
    yield Job("auto", "auto", 1, steps)
    yield Job("find", "found", 1, steps)
    yield Job("constant", lr, 1, steps)
    yield Job("schedule-free", 2 * lr, 0, steps)
    yield from (Job("prodigy-cosine", 1.0, 0, h) for h in horizons)


class Trainer:
    """Trains one model again and again."""

    def __init__(self, lab: gpt.Lab, horizons: tuple[int, ...]) -> None:
        self.lab, self.horizons, self.block = lab, horizons, horizons[0] // 10
        self.params = list(lab.model.parameters())
        self.seconds = 0.0  # of a step, evaluation included

    def steps_of(self, job: Job) -> int:
        """Return how many steps a job takes, those of the branches included."""
        return job.steps + PROBES * (job.arm == "find") + sum(h // 5 for h in self.horizons if job.arm == "constant")

    def run(self, job: Job) -> dict[str, Any]:
        """Return losses by horizon, seconds of a step, and lr and training loss along the way."""
        arm, size, t, begun, total = ARMS[job.arm], self.lab.size, 0, perf_counter(), self.steps_of(job)
        run: dict[str, Any] = {"arm": job.arm, "seed": job.seed, "losses": {}, "wsd": {}}
        run |= {"times": [], "wsd_times": [], "course": []}
        self.lab.model.init_weights_(job.seed)
        more = {"tokens": size.rows * size.context} if job.arm == "auto" else {}
        starts = text.row_starts(len(self.lab.train_tokens), size.context, size.rows, job.steps, job.seed)
        starts = starts.to(self.lab.device)
        lr = job.lr
        if job.arm == "find":
            found = self.find(job, starts)
            lr, run["found"] = found.lr, str(found)
        opt: Any = arm.make(self.lab.model, lr, job.seed, **more)[0]

        def rate(step: int) -> float:
            warm = min(1.0, (step + 1) / size.warmup) if job.arm in WARM else 1.0
            return lr * warm * arm.decay(step, job.steps, 0)

        while t < job.steps:
            part = starts, t, t + self.block
            run["course"] += self.advance(opt, *part, None if job.arm == "auto" else rate, run["times"])
            t += self.block
            if t == job.steps or (arm.is_one_run and 2 * t % self.horizons[0] == 0):
                with opt.averaged() if arm.is_one_run else nullcontext():
                    run["losses"][str(t)] = self.lab.evaluate()
            for h in self.horizons:
                if job.arm == "constant" and 5 * t == 4 * h:
                    run["wsd"][str(h)] = self.decay(opt, lr, starts, t, h, run["wsd_times"])
        self.seconds = (perf_counter() - begun) / total if self.seconds else 1.1 * median(run["times"])
        return run

    def find(self, job: Job, starts: Tensor) -> o2nc.FoundLR:
        """Return what `o2nc.find_lr` finds for the first horizon, on this run's batches."""

        def clip(*_: Any) -> None:
            clip_grad_norm_(self.params, gpt.CLIP)

        def make(lr: float) -> Any:
            opt: Any = ARMS[job.arm].make(self.lab.model, lr, job.seed)[0]
            opt.register_step_pre_hook(clip)
            return opt

        def loss(start: Tensor) -> Tensor:
            with self.lab.autocast():
                return self.lab.model(text.read_rows(self.lab.train_tokens, start, self.lab.size.context))

        return o2nc.find_lr(make, loss, starts, steps=self.horizons[0])

    def advance(
        self, opt: Any, starts: Tensor, first: int, last: int, rate: Callable[[int], float] | None, times: list[float]
    ) -> list[list[float]]:
        """Train, append the seconds of a step to the times, return [step, lr, mean loss] of every ten steps."""
        begun, found, lrs = perf_counter(), [], []
        for t in range(first, last):
            if rate is not None:
                opt.param_groups[0]["lr"] = rate(t)
            with self.lab.autocast():
                loss = self.lab.model(text.read_rows(self.lab.train_tokens, starts[t], self.lab.size.context))
            opt.zero_grad()
            loss.backward()
            clip_grad_norm_(self.params, gpt.CLIP)
            opt.step()
            found.append(loss.detach())
            lrs.append(opt.param_groups[0]["lr"] * opt.param_groups[0].get("d", 1.0))  # d is Prodigy's
        means = torch.stack(found).view(-1, 10).mean(1).tolist()  # waits for the device
        times.append((perf_counter() - begun) / (last - first))
        return [[first + 10 * i + 10, lrs[10 * i + 9], mean] for i, mean in enumerate(means)]

    def decay(self, trunk: Any, lr: float, starts: Tensor, first: int, last: int, times: list[float]) -> float:
        """Return the loss of a branch whose lr falls to 0; the trunk and its parameters are as before."""
        before = [p.detach().clone() for p in self.params]
        options: Any = {"weight_decay": gpt.WEIGHT_DECAY, "fused": before[0].is_cuda or None}
        branch = optim.AdamW(self.params, lr, gpt.BETAS, **options)
        for p in self.params:
            branch.state[p] = {key: trunk.state[p][key].clone() for key in ("step", "exp_avg", "exp_avg_sq")}
        for t in range(first, last, self.block):
            self.advance(branch, starts, t, t + self.block, lambda step: lr * gpt.wsd(step, last, 0), times)
        loss = self.lab.evaluate()
        with torch.no_grad():
            for p, x in zip(self.params, before, strict=True):
                p.copy_(x)
        return loss


def tables(runs: dict[str, Any], horizons: tuple[int, ...]) -> list[kit.Table]:
    """Return the losses and what they are above the best constant lr and the best WSD, and the times of a step."""
    labels, rows, times = {name: arm.label for name, arm in ARMS.items()} | {"wsd": "WSD 20 %"}, [], []
    for h in horizons:
        for name, label in labels.items():
            found = losses(runs, name, h)
            bases = losses(runs, "constant", h), losses(runs, "wsd", h)
            pairs = [[found[seed][0] - base[seed][0] for seed in found.keys() & base.keys()] for base in bases]
            cells = [kit.mean_std(own, 4) for own in ([loss for loss, _ in found.values()], *pairs)]
            rows += [[f"{label}; {h:,}", ", ".join(f"{lr:.2g}" for _, lr in found.values()), *cells]] * bool(found)
    for name, label in (*labels.items(), ("wsd", "AdamW without an average")):
        own = [run["times"] for run in runs.values() if run["arm"] == name]
        own = [run["wsd_times"] for run in runs.values() if run["wsd_times"]] if label.startswith("AdamW") else own
        times += [[label, kit.mean_std([1e3 * median(each) for each in own], 2)]] * bool(own)
    head = ["arm; steps", "lr at the end, by seed", "held-out loss", "− best constant", "− best WSD"]
    return [kit.Table(head, rows), kit.Table(["arm", "ms a step: median of a run, over runs"], times)]


def draw(runs: dict[str, Any], path: Path) -> None:
    """Draw held-out losses and learning rates along the runs of seed 0."""
    figure = kit.new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    for run in (run for run in runs.values() if run["seed"] == 0 and run["arm"] in ARMS):
        arm, (steps, rates, _) = ARMS[run["arm"]], zip(*run["course"], strict=True)
        style = {**arm.style, "color": kit.COLOURS[arm.style["color"]]}
        left.plot([*map(int, run["losses"])], [*run["losses"].values()], label=arm.label, marker=".", **style)
        left.plot([*map(int, run["wsd"])], [*run["wsd"].values()], "kx")
        right.loglog(steps, rates, **style)
    kit.style_panel(left, "Held-out loss; crosses: WSD", "step", "nats")
    kit.style_panel(right, "lr", "step")
    names = dict(zip(*left.get_legend_handles_labels()[::-1], strict=True))
    left.legend(names.values(), names, frameon=False, fontsize=8)
    kit.write_bytes(path, kit.draw(figure, "png"))


def main(
    out: Path = Path("results/gpt2"),
    data: Path | None = None,
    size: str = "gpt2",
    rows: int | None = None,
    steps: str = "500,1000",
    minutes: float = 11.0,
    arms: str = ",".join(ARMS),
    device: str | None = None,
    quiet: bool = False,
) -> None:
    """Run what is not there yet and fits into the time, print the tables, draw.

    Args:
        out: folder of the results; finished runs in it are not repeated.
        data: folder with train.bin and val.bin, as of ``o2nc gpt``.
        size: of the model, a key of SIZES.
        rows: of a batch; else the size has its own.
        steps: horizons, separated by commas; the first, a multiple of 100, divides the others.
        minutes: no run is begun that would end later; 0 only prints and draws.
        arms: which to run, separated by commas.
        device: cpu or cuda.
        quiet: print nothing.
    """
    begun, terminal, where = perf_counter(), kit.Terminal(quiet), kit.find_device(device)
    for option, words, known in (("--arms", {*arms.split(",")}, ARMS), ("--size", {size}, SIZES)):
        if unknown := words - known.keys():
            raise kit.UsageError(f"{option} has {min(unknown)!r}; known: {', '.join(known)}")
    given = {"size": size, "rows": rows, "steps": steps, "minutes": minutes, "arms": arms}
    command = kit.written_command("python experiments/benchmarks/gpt2.py", main, **given)
    horizons, its = tuple(kit.numbers("--steps", steps)), replace(SIZES[size], rows=rows or SIZES[size].rows)
    runs = (kit.read_json(kit.make_folder(out) / "gpt.json") or {}).get("runs", {})
    if minutes > 0:
        lab = gpt.Lab(out, text.load(data), its, where, command, save_every=float("inf"))
        trainer, runs = Trainer(lab, horizons), lab.store.runs
        for job in plan(runs, its.lr, horizons):
            seconds = perf_counter() - begun
            if job.arm not in arms.split(",") or str(job.steps) in runs.get(job.key, {"losses": ()})["losses"]:
                continue
            if seconds + trainer.seconds * trainer.steps_of(job) > 60 * minutes:
                terminal.say(f"{job.key}: no time left for {job.steps} steps")
                continue
            try:
                run = trainer.run(job)
            except RuntimeError as error:  # out of memory, say: the others go on
                terminal.say(f"{job.key}: {error}")
                continue
            lab.store.add(job.key, run)
            took, each = perf_counter() - begun - seconds, 1e3 * median(run["times"])
            found = [f"{kind} {h}: {loss:.4f}" for kind in ("losses", "wsd") for h, loss in run[kind].items()]
            terminal.say(f"{job.key}: {took:.0f} s, {each:.2f} ms a step; {', '.join(found)} {run.get('found', '')}")
    for table in tables(runs, horizons):
        terminal.table(table)
    try:
        draw(runs, out / "gpt2.png")
    except ImportError:
        terminal.say("matplotlib is needed for the picture")


if __name__ == "__main__":
    kit.run_script(main)
