"""How were the GPTs trained, and how do I add an arm? Language models without a schedule, against decayed runs.

One run at a constant learning rate is evaluated at its average x̄ (weights t^12: the last 8 % of the run so far) at
every horizon; every other arm is a run per horizon that decays its learning rate to end there. Learning rates are
chosen on one seed and reported on others.

    o2nc gpt                                                    # tiny, on a CPU: about four minutes on one core
    o2nc gpt --size small --data DIR --arms constant,wsd,linear,cosine,schedule-free --grid 0.5,0.71,1,1.41,2
    python -m o2nc_experiments.gpt --arms muon,muon-wsd         # where only torch is installed

Result: size small (7.3 M parameters), Linux sources, H200, torch 2.11, bfloat16, n = 3 seeds, nats per token:

    steps                               250             500             1,000           2,000           4,000
    one run, lr 2.8e-3, at x̄            3.783 ± 0.017   3.241 ± 0.034   2.248 ± 0.026   1.952 ± 0.025   1.781 ± 0.012
    WSD 20 %, lr tuned for each         3.790 ± 0.013   3.388 ± 0.095   2.233 ± 0.022   1.939 ± 0.011   1.774 ± 0.014
    linear decay, lr tuned for each     3.781 ± 0.013   3.415 ± 0.037   2.439 ± 0.091   1.989 ± 0.019   1.794 ± 0.019

(made at commit cf6f9b7; docs/no-schedule.md has all arms). To add an arm, add an entry to `ARMS`. The GPT of 98 M
parameters is benchmarks/gpt2.py, which uses this file.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import optim
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

import o2nc
from o2nc_experiments import kit, text
from o2nc_experiments.gpt_model import GPT
from o2nc_experiments.kit import Section, Table, UsageError
from o2nc_experiments.schedule_free import ScheduleFreeAdamW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- knobs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """A model, its batches and the learning rate at the centre of its grid."""

    layers: int
    width: int
    heads: int
    context: int
    rows: int  # of a batch: a step reads rows × context tokens
    warmup: int  # steps in which lr rises
    evaluated: int  # held-out tokens to evaluate on, at most
    lr: float


SIZES = {
    "tiny": Size(layers=2, width=64, heads=4, context=64, rows=16, warmup=20, evaluated=16_384, lr=4e-3),
    "small": Size(layers=4, width=256, heads=4, context=512, rows=32, warmup=100, evaluated=262_144, lr=2e-3),
    "medium": Size(layers=8, width=512, heads=8, context=512, rows=64, warmup=100, evaluated=524_288, lr=1e-3),
}
BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.1, 1.0
WINDOW = o2nc.Polynomial(12)


def adamw(model: GPT, lr: float, seed: int, **more: Any) -> list[Optimizer]:
    """Return o2nc's AdamW, by default without averages: then it is torch's."""
    fused = True if model.head.weight.is_cuda else None
    return [o2nc.AdamW(model.parameters(), lr, BETAS, weight_decay=WEIGHT_DECAY, fused=fused, seed=seed, **more)]


def averaged_adamw(model: GPT, lr: float, seed: int, **more: Any) -> list[Optimizer]:
    """Return AdamW that keeps x̄."""
    return adamw(model, lr, seed, average=WINDOW, **more)


def scaled_adamw(model: GPT, lr: float, seed: int) -> list[Optimizer]:
    """Return AdamW whose steps are multiplied by s ~ Gamma(16), which is 1 on average."""
    return adamw(model, lr, seed, scaling=o2nc.Gamma(16.0))


def schedule_free(model: GPT, lr: float, seed: int) -> list[Optimizer]:
    """Return schedule-free AdamW."""
    return [ScheduleFreeAdamW(model.parameters(), lr, BETAS, weight_decay=WEIGHT_DECAY)]


def muon(model: GPT, lr: float, seed: int) -> list[Optimizer]:
    """Return torch's Muon for the matrices of the blocks and AdamW for embedding and head."""
    if not hasattr(optim, "Muon"):
        raise UsageError(f"the arms with Muon need torch 2.9 or later, this is {torch.__version__}")
    hidden, rest = list(model.blocks.parameters()), [model.embedding.weight, model.head.weight]
    matrices = optim.Muon(hidden, lr, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
    return [matrices, optim.AdamW(rest, lr, BETAS, weight_decay=WEIGHT_DECAY)]


def averaged_muon(model: GPT, lr: float, seed: int) -> list[Optimizer]:
    """Return the same two optimizers with averages: `o2nc.extend` works for any optimizer of torch's."""
    return [o2nc.extend(optimizer, average=WINDOW) for optimizer in muon(model, lr, seed)]


# What lr is multiplied by in a step, after the warm-up.
def constant(step: int, steps: int, warmup: int) -> float:
    """Return 1."""
    return 1.0


def linear(step: int, steps: int, warmup: int) -> float:
    """Return what falls linearly to 0."""
    return min(1.0, (steps - step) / (steps - warmup))


def cosine(step: int, steps: int, warmup: int) -> float:
    """Return what falls to 0 along half a cosine."""
    return (1 - math.cos(math.pi * linear(step, steps, warmup))) / 2


def wsd(step: int, steps: int, warmup: int) -> float:
    """Return 1, and what falls linearly to 0 in the last 20 % of the run."""
    return min(1.0, (steps - step) / (0.2 * steps))


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        label: in tables and pictures.
        make: returns the optimizers, given the model, the learning rate and the seed.
        decay: what lr is multiplied by; `constant` needs no horizon, so one run serves all of them.
        style: of its line or marks.
        lr: the centre of its grid, as a multiple of the size's.
    """

    label: str
    make: Callable[..., list[Optimizer]]
    decay: Callable[[int, int, int], float]
    style: dict[str, Any]
    lr: float = 1.0

    @property
    def is_one_run(self) -> bool:
        """Whether one run serves all horizons."""
        return self.decay is constant


def _line(colour: str) -> dict[str, Any]:
    return {"color": colour, "linewidth": 2.2}


def _marks(colour: str, marker: str) -> dict[str, Any]:
    return {"color": colour, "marker": marker, "markersize": 6.5, "linestyle": "none"}


ARMS = {
    "constant": Arm("AdamW, constant lr, one run at its average x̄", averaged_adamw, constant, _line("blue")),
    "wsd": Arm("AdamW, warm-up-stable-decay (last 20 %)", adamw, wsd, _marks("red", "o")),
    "linear": Arm("AdamW, linear decay", adamw, linear, _marks("orange", "^")),
    "cosine": Arm("AdamW, cosine decay", adamw, cosine, _marks("green", "D")),
    "schedule-free": Arm("schedule-free AdamW, one run", schedule_free, constant, _line("sky"), lr=2.0),
    "scaled": Arm("AdamW, last 20 %, steps scaled by Gamma(16)", scaled_adamw, wsd, _marks("pink", "v")),
    "muon": Arm("Muon, constant lr, one run at its average x̄", averaged_muon, constant, _line("green")),
    "muon-wsd": Arm("Muon, warm-up-stable-decay (last 20 %)", muon, wsd, _marks("black", "s")),
}
LAST: dict[str, Any] = {"label": "the same run at its last iterate", "color": "grey"}
LAST |= {"linewidth": 1.2, "linestyle": (0, (3, 2))}


# ---- training ------------------------------------------------------------------------------------------------------


class Lab:
    """One model for all runs, compiled once on a GPU; ``gpt.json`` has finished runs, ``run.pt`` the current one."""

    def __init__(
        self, out: Path, corpus: text.Corpus, size: Size, device: torch.device, command: str, save_every: float
    ) -> None:
        for what, tokens in (("to train on", corpus.train), ("held out", corpus.held_out)):
            if len(tokens) <= size.context:
                raise UsageError(
                    f"--data {corpus.name} has {len(tokens):,} tokens {what}; {size.context + 1} are needed"
                )
        self.size, self.device, self.save_every = size, device, save_every
        self.checkpoint = out / "run.pt"
        settings = {**asdict(size), "data": corpus.name, "digest": corpus.digest, "vocabulary": corpus.vocabulary}
        self.store = kit.Store(out / "gpt.json", settings, kit.circumstances(command, device))
        self.model = GPT(size.layers, size.width, size.heads, size.context, corpus.vocabulary).to(device)
        if device.type == "cuda":
            self.model.compile_parts()
        self.train_tokens, held_out = (text.to_device(tokens, device) for tokens in (corpus.train, corpus.held_out))
        rows = min(size.evaluated, len(held_out) - 1) // size.context
        starts = torch.arange(rows, device=device) * size.context
        self.held_out = [text.read_rows(held_out, part, size.context) for part in starts.split(size.rows)]

    def autocast(self) -> Any:
        """Return the precision of forward passes: bfloat16 on a GPU."""
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the mean loss on the held-out tokens."""
        with self.autocast():
            losses = [self.model(batch).double() * len(batch) for batch in self.held_out]
        return float(sum(losses)) / sum(map(len, self.held_out))

    def run(
        self,
        name: str,
        lr: float,
        seed: int,
        steps: int,
        horizons: Sequence[int],
        advance: Callable[[float, str], None],
    ) -> dict[str, Any]:
        """Train an arm, or return its finished run: losses by horizon, at x̄ ("average") and at the last iterate."""
        arm, key = ARMS[name], f"{name}, lr {lr:.4g}, seed {seed}, {steps} steps"
        words = f"{arm.label}, lr {lr:.2g}, seed {seed}"
        optimizers = arm.make(self.model, lr, seed)
        if arm.is_one_run and not all(hasattr(optimizer, "averaged") for optimizer in optimizers):
            raise UsageError(f"the arm {name} has no decay and no average: o2nc.extend(optimizer, average=WINDOW)")
        made = sha256(repr(optimizers).encode()).hexdigest()[:12]
        if (found := self.store.runs.get(key)) and found.get("made", made) != made:
            raise UsageError(f"the arm {name} has changed since its runs in {self.store.path}: take another --out")
        if found and {str(h) for h in horizons} <= found["losses"].keys():
            advance(steps, words)
            return found
        self.model.init_weights_(seed)
        base = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
        starts = text.row_starts(len(self.train_tokens), self.size.context, self.size.rows, steps, seed)
        starts = starts.to(self.device)
        first, spent, losses, this = 0, 0.0, dict[str, dict[str, float]](), [key, made, list(horizons)]
        if (saved := kit.load_checkpoint(self.checkpoint, self.device)) and saved["run"] == this:
            first, spent, losses = saved["step"], saved["seconds"], saved["losses"]
            self.model.load_state_dict(saved["model"])
            for optimizer, its_state in zip(optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(its_state)
        advance(first, words)
        begun = saved_at = perf_counter()
        for step in range(first, steps):
            factor = min(1.0, (step + 1) / self.size.warmup) * arm.decay(step, steps, self.size.warmup)
            for optimizer, lrs in zip(optimizers, base, strict=True):
                for group, its_lr in zip(optimizer.param_groups, lrs, strict=True):
                    group["lr"] = its_lr * factor
            with self.autocast():
                loss = self.model(text.read_rows(self.train_tokens, starts[step], self.size.context))
            self.model.zero_grad()
            loss.backward()
            clip_grad_norm_(self.model.parameters(), CLIP)
            for optimizer in optimizers:
                optimizer.step()
            advance(1, "")
            if step + 1 in horizons:
                losses[str(step + 1)] = self.losses(arm, optimizers)
                if not math.isfinite(losses[str(step + 1)]["last"]):
                    break  # diverged
            now = perf_counter()
            if now - saved_at > self.save_every:
                state: dict[str, Any] = {"run": this, "step": step + 1, "losses": losses}
                state |= {"seconds": spent + now - begun, "model": self.model.state_dict()}
                kit.save_checkpoint(self.checkpoint, state | {"optimizers": [o.state_dict() for o in optimizers]})
                saved_at = perf_counter()
        for h in horizons:
            losses.setdefault(str(h), {"average": math.inf, "last": math.inf})
        losses = {**found["losses"], **losses} if found else losses  # other horizons of the same run
        found = {"losses": losses, "seconds": round(spent + perf_counter() - begun, 1), "made": made}
        self.store.add(key, found)
        self.checkpoint.unlink(missing_ok=True)
        return found

    def losses(self, arm: Arm, optimizers: Sequence[Any]) -> dict[str, float]:
        """Return the held-out loss at the last iterate and, for an arm without a horizon, at the average."""
        found = {"last": self.evaluate()}
        with ExitStack() as stack:
            for optimizer in optimizers if arm.is_one_run else ():
                stack.enter_context(optimizer.averaged())
            return {"average": self.evaluate() if arm.is_one_run else found["last"], **found}


# ---- the comparison ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """Losses by arm, weights ("average" or "last") and horizon, one per seed; and the learning rates."""

    losses: Mapping[str, Mapping[str, Mapping[int, list[float]]]]
    lrs: Mapping[str, Mapping[int, float]]
    edges: frozenset[str]  # arms that chose a learning rate at the edge of their grid

    def best_decay(self, horizon: int) -> list[float] | None:
        """Return the losses of the decayed arm with the least mean, one per seed."""
        decayed = [self.losses[name]["average"][horizon] for name in self.losses if not ARMS[name].is_one_run]
        return min(decayed, key=lambda own: fmean(own) if all(map(math.isfinite, own)) else math.inf, default=None)

    def difference(self, name: str, horizon: int, weights: str = "average") -> list[float]:
        """Return the losses less those of the best decayed arm, seed by seed; empty without decayed arms."""
        pairs = zip(self.losses[name][weights][horizon], self.best_decay(horizon) or [], strict=False)
        return [own - best for own, best in pairs]


def compare(
    lab: Lab, arms: Sequence[str], horizons: Sequence[int], seeds: Sequence[int], tune_seed: int,
    grid: Sequence[float], advance: Callable[[float, str], None],
) -> Results:  # fmt: skip
    """Choose learning rates on one seed, then run the others with them."""

    def run(name: str, lr: float, seed: int, horizon: int) -> dict[int, dict[str, float]]:
        """Return losses by horizon, nan for what JSON could not store; one run serves all horizons if it can."""
        ends = list(horizons) if ARMS[name].is_one_run else [horizon]
        found = lab.run(name, lr, seed, ends[-1], ends, advance)["losses"]
        return {h: {k: math.nan if v is None else v for k, v in found[str(h)].items()} for h in ends}

    losses: dict[str, Any] = {name: {"average": {}, "last": {}} for name in arms}
    lrs: dict[str, dict[int, float]] = {}
    edges = set()
    for name in arms:
        tried = [lab.size.lr * ARMS[name].lr * factor for factor in grid]
        groups = [horizons] if ARMS[name].is_one_run else [[h] for h in horizons]
        lrs[name] = {}
        for group in groups:
            best = tried[0]
            if len(tried) > 1:
                tuned = {lr: run(name, lr, tune_seed, group[-1]) for lr in tried}
                best = choose({lr: [tuned[lr][h]["average"] for h in group] for lr in tried})
                edges |= {name} if best in (min(tried), max(tried)) else set()
            for seed in seeds:
                for h, found in run(name, best, seed, group[-1]).items():
                    lrs[name][h] = best
                    for weights, loss in found.items():
                        losses[name][weights].setdefault(h, []).append(loss)
    return Results(losses, lrs, frozenset(edges))


def choose(losses: Mapping[float, Sequence[float]]) -> float:
    """Return the learning rate that is least behind the best one, in the median over the horizons.

    Example:
        >>> choose({1e-3: [3.0, 2.1, 1.0], 2e-3: [2.9, 1.9, 1.1], 4e-3: [2.8, math.nan, 2.0]})
        0.002
    """
    finite = {lr: [x if math.isfinite(x) else math.inf for x in own] for lr, own in losses.items()}
    best = [min(column) for column in zip(*finite.values(), strict=True)]
    behind = {
        lr: median(x - b if x < math.inf else x for x, b in zip(own, best, strict=True)) for lr, own in finite.items()
    }
    return min(behind, key=lambda lr: (behind[lr], lr))


def tables(results: Results, horizons: Sequence[int]) -> list[Table]:
    """Return losses, and differences to the best decayed arm of each horizon."""
    head = ["", "lr", *(f"{h:,} steps" for h in horizons)]
    rows, differences = [], []
    for name, by_weights in results.losses.items():
        arm, lrs = ARMS[name], list(dict.fromkeys(results.lrs[name].values()))
        lr = f"{min(lrs):.2g}" if len(lrs) == 1 else f"{min(lrs):.2g} to {max(lrs):.2g}"
        label = arm.label + " (lr at the edge of its grid)" * (name in results.edges)
        rows.append([label, lr, *(kit.mean_std(by_weights["average"][h]) for h in horizons)])
        if arm.is_one_run and arm.make is not schedule_free:
            rows.append([LAST["label"], lr, *(kit.mean_std(by_weights["last"][h]) for h in horizons)])
        cells = [kit.mean_std(results.difference(name, h)) for h in horizons]
        differences.append([label, *(c if c[0] in "-–d" else f"+{c}" for c in cells)])
    n = len(next(iter(results.losses.values()))["average"][horizons[0]])
    note = f"Loss in nats per token on text that was held out; mean ± standard deviation over the seeds, n = {n}."
    found = [Table(head, rows, "Loss", note)]
    if results.best_decay(horizons[0]):
        note = "Seed by seed: arms of one seed start with the same weights and see the same batches."
        found.append(Table(["", *head[2:]], differences, "Loss less that of the best decayed arm", note))
    return found


def figure(results: Results, horizons: Sequence[int], title: str) -> "Figure":
    """Return the picture: loss against the length of the run, and the difference to the best decay."""
    drawn = kit.new_figure(10.5, 4.9)
    left, right = drawn.subplots(1, 2)
    draw_losses(left, results, horizons)
    right.axhline(0, color=kit.COLOURS["grey"], linewidth=0.8)
    for name in results.losses if results.best_decay(horizons[0]) else ():
        kit.draw_means(right, {h: results.difference(name, h) for h in horizons}, ARMS[name].style)
    kit.style_panel(
        right, "Difference to the best decayed run", "steps of the run", "nats per token (lower is better)"
    )
    kit.horizon_axis(right, horizons)
    drawn.suptitle(title, fontsize=12, parse_math=False)  # a file's name may have a $
    drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return drawn


def draw_losses(axes: "Axes", results: Results, horizons: Sequence[int]) -> None:
    """Draw loss against horizon: a line for one run, a mark for every run that was decayed to end there."""
    for name, by_weights in results.losses.items():
        arm = ARMS[name]
        kit.draw_means(axes, by_weights["average"], arm.style | {"label": arm.label})
        if arm.is_one_run and arm.make is not schedule_free:
            kit.draw_means(axes, by_weights["last"], LAST)
    kit.style_panel(axes, "Loss on held-out text", "steps of the run", "nats per token (lower is better)")
    kit.horizon_axis(axes, horizons)


def main(
    out: Path = Path("o2nc-gpt"),
    data: Path | None = None,
    arms: str = "constant,wsd,linear",
    size: str | None = None,
    horizons: str | None = None,
    seeds: str = "0,1",
    tune_seed: int = 100,
    grid: str = "0.5,1,2",
    device: str | None = None,
    save_every: float = 120.0,
    quiet: bool = False,
) -> Results:
    """Run the comparison; write gpt.json, gpt.png and report.html into ``out``.

    Args:
        out: folder of the results; the same command goes on with what is there.
        data: a text, a folder of texts or token files (`o2nc_experiments.text`); else Python's own sources.
        arms: keys of ARMS.
        size: key of SIZES; else tiny on a CPU and medium on a GPU.
        horizons: numbers of steps to compare at.
        seeds: the seeds that are reported.
        tune_seed: the seed on which learning rates are chosen.
        grid: learning rates to try, as multiples of the arm's; one value switches tuning off.
        device: cpu, cuda or cuda:N; else the GPU if there is one.
        save_every: seconds between two checkpoints of the current run.
        quiet: print nothing.
    """
    where, terminal = kit.find_device(device), kit.Terminal(quiet)
    on_gpu = where.type == "cuda"
    size = size or ("medium" if on_gpu else "tiny")
    names = list(dict.fromkeys(arms.split(",")))
    for option, given, known in (("--arms", names, ARMS), ("--size", [size], SIZES)):
        if unknown := [word for word in given if word not in known]:
            raise UsageError(f"{option} has {unknown[0]!r}; known: {', '.join(known)}")
    lengths = sorted(
        kit.numbers("--horizons", horizons or ("250,500,1000,2000,4000" if on_gpu else "50,100,200,400"))
    )
    reported, factors = kit.numbers("--seeds", seeds), kit.numbers("--grid", grid, float, 1e-9)
    if lengths[0] <= SIZES[size].warmup:
        raise UsageError(
            f"--horizons must be longer than the warm-up of {SIZES[size].warmup} steps, got {lengths[0]}"
        )
    if len(factors) > 1 and tune_seed in reported:
        raise UsageError(f"--tune-seed {tune_seed} must not be one of --seeds {seeds}")
    if not on_gpu and SIZES[size].width < 128:
        torch.set_num_threads(1)  # fastest for small matrices, and sums do not depend on the number of cores
    asked = {"arms": arms, "size": size, "horizons": ",".join(map(str, lengths)), "seeds": seeds, "grid": grid}
    command = kit.written_command("o2nc gpt --data DATA" if data else "o2nc gpt", main, **asked, tune_seed=tune_seed)
    corpus = text.load(data)
    lab = Lab(kit.make_folder(out), corpus, SIZES[size], where, command, save_every)
    runs = len(reported) + (len(factors) if len(factors) > 1 else 0)
    steps = sum(lengths[-1] if ARMS[name].is_one_run else sum(lengths) for name in names) * runs
    parameters = sum(p.numel() for p in lab.model.parameters())
    title = f"GPT of {parameters / 1e6:.2g} M parameters on {corpus.name}"
    terminal.say(f"{title}; {steps:,} steps of {SIZES[size].rows * SIZES[size].context:,} tokens on {where}")
    with terminal.progress(steps, title) as advance:
        results = compare(lab, names, lengths, reported, tune_seed, factors, advance)
    found = tables(results, lengths)
    lab.store.write(tables=[asdict(table) for table in found])
    for table in found:
        terminal.table(table)
    try:
        import jinja2 as _jinja2  # noqa: F401
        import matplotlib as _matplotlib  # noqa: F401
    except ImportError:
        terminal.say(f"Results: {out / 'gpt.json'} (matplotlib and jinja2 are needed for the picture and the page)")
        return results
    drawn = figure(results, lengths, title)
    kit.write_bytes(out / "gpt.png", kit.draw(drawn, "png"))
    lead = "One run at a constant learning rate, read at its average x̄, against runs that were decayed to end there."
    caption = (
        "Lines are one run each, read at every horizon; every mark is a run of its own. Bars: ± std over the seeds."
    )
    sections = [Section("Loss against the length of the run", "", [(drawn, caption)], found)]
    kit.write_page(out / "report.html", title, lead, sections, lab.store.about)
    terminal.say(f"Report: {out / 'report.html'}")
    return results


if __name__ == "__main__":
    kit.run_script(main)
