"""What does a step cost? Times as ratios to torch's own step, and bytes of state and checkpoint per parameter.

    o2nc bench                                           # a CPU: ResNet-18 and 1,000 small tensors, about two minutes
    o2nc bench --models gpt2-xl --device cuda            # 1.56 billion parameters, 70 GB
    python -m o2nc_experiments.bench --models resnet18   # where only torch is installed

Every optimizer takes turns with torch's fused one of its kind on the same parameters and gradients. A turn is 8
steps, so that ``every=8`` pays its one update of the averages in each; the ratio is the median over the rounds.

Result: GPT-2 XL, float32, H200, torch 2.11, median of 7 rounds, in ms: torch AdamW fused 12.8, o2nc.AdamW 10.7,
with x̄ 13.9 (every=8: 11.2), with x̄ and certificate 17.2 (every=8: 11.6), extend with x̄ every=8 13.3, torch with
swa_utils' EMA 17.8. docs/performance.md has the rest.
"""

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import o2nc
from o2nc_experiments import kit
from o2nc_experiments.kit import Table, UsageError

# ---- knobs ---------------------------------------------------------------------------------------------------------

BURST = 8  # steps of a turn
WARM_UP = 2  # turns before the clock counts: they create the state and compile kernels
LR, MOMENTUM = 1e-6, 0.9
WINDOW = partial(o2nc.Polynomial, 12)
Shapes = list[tuple[int, ...]]
Params = list[Tensor]


def resnet18() -> Shapes:
    """Return the shapes of ResNet-18's parameters, with a 3×3 stem and ten classes."""
    found: Shapes = [(64, 3, 3, 3), (64,), (64,)]
    widths = [64, 64, 128, 256, 512]
    for before, width in pairwise(widths):
        for inputs in (before, width):
            found += [(width, inputs, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if inputs != width:
                found += [(width, inputs, 1, 1), (width,), (width,)]
    return [*found, (10, 512), (10,)]


def gpt2(width: int, layers: int) -> Shapes:
    """Return the shapes of GPT-2's parameters; its head is the embedding."""
    norm: Shapes = [(width,), (width,)]
    attention: Shapes = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    mlp: Shapes = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(50257, width), (1024, width), *[*norm, *attention, *norm, *mlp] * layers, *norm]


MODELS: dict[str, Callable[[], Shapes]] = {
    "resnet18": resnet18,
    "gpt2": partial(gpt2, 768, 12),
    "gpt2-xl": partial(gpt2, 1600, 48),
    "many": lambda: [(100,)] * 1000,  # nothing to move: what the host does between tensors
}
BYTES_NEEDED = 48  # per parameter: itself, its gradient and two optimizers


class WithEma:
    """torch's AdamW followed by torch's own average of the weights."""

    def __init__(self, params: Params) -> None:
        self.optimizer = AdamW(params, LR, fused=True)
        self.model = torch.nn.Module()
        for i, p in enumerate(params):
            self.model.register_parameter(f"p{i}", p)  # type: ignore[arg-type]
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.999))

    def step(self) -> None:
        """Step, then update the average."""
        self.optimizer.step()
        self.average.update_parameters(self.model)

    @property
    def state(self) -> Any:
        """The state of both."""
        return [self.optimizer.state, list(self.average.parameters())]

    def state_dict(self) -> dict[str, Any]:
        """Return the checkpoint of both."""
        return {"optimizer": self.optimizer.state_dict(), "average": self.average.state_dict()}


def extended(params: Params, **more: Any) -> Optimizer:
    """Return torch's AdamW, extended."""
    return o2nc.extend(AdamW(params, LR, fused=True), **more)


def line_up(cuda: bool) -> dict[str, dict[str, Callable[[Params], Any]]]:
    """Return the optimizers in two families, torch's fused one first: the others take turns with it."""
    fused: dict[str, Any] = {"fused": True} if cuda else {}
    scale_free = o2nc.learners.ScaleFree(lr=LR)
    return {
        "SGD with momentum": {
            "torch SGD, fused": partial(SGD, lr=LR, momentum=MOMENTUM, fused=True),
            "torch SGD, foreach": partial(SGD, lr=LR, momentum=MOMENTUM, foreach=True),
            **averages("o2nc.SGD", lambda params, **more: o2nc.SGD(params, LR, MOMENTUM, fused=True, **more)),
            "o2nc.ScaledSGDM": partial(o2nc.ScaledSGDM, lr=LR, momentum=MOMENTUM, **fused),
            "o2nc.ScaledSGDM, average=0.999": partial(
                o2nc.ScaledSGDM, lr=LR, momentum=MOMENTUM, average=0.999, **fused
            ),
        },
        "AdamW": {
            "torch AdamW, fused": partial(AdamW, lr=LR, fused=True),
            "torch AdamW, foreach": partial(AdamW, lr=LR, foreach=True),
            **averages("o2nc.AdamW", lambda params, **more: o2nc.AdamW(params, LR, fused=True, **more)),
            **averages("o2nc.extend(torch AdamW)", extended),
            "o2nc.ExponentiatedO2NC(ScaleFree), no average": partial(
                o2nc.ExponentiatedO2NC, learner=scale_free, average=False, **fused
            ),
            "o2nc.ExponentiatedO2NC(ScaleFree)": partial(o2nc.ExponentiatedO2NC, learner=scale_free, **fused),
            "torch AdamW + swa_utils' EMA": WithEma,
        },
    }


def averages(name: str, make: Callable[..., Any]) -> dict[str, Callable[[Params], Any]]:
    """Return an optimizer without averages, with x̄, with x̄ and certificate, and with every=8."""
    return {
        name: partial(make, average=None),
        f"{name}, x̄": lambda params: make(params, average=WINDOW(), certificate=False),
        f"{name}, x̄ every 8": lambda params: make(params, average=WINDOW(every=8), certificate=False),
        f"{name}, x̄ and certificate": lambda params: make(params, average=WINDOW(), certificate=True),
        f"{name}, both every 8": lambda params: make(params, average=WINDOW(every=8), certificate=True),
    }


# ---- measuring -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What one optimizer costs on one set of parameters; None where it could not run, and why."""

    model: str
    family: str
    name: str
    milliseconds: float | None = None  # of a step, median over the rounds
    ratio: float | None = None  # to torch's fused step in the same round, median over the rounds
    state: float | None = None  # bytes per parameter beside parameter and gradient
    checkpoint: float | None = None  # bytes per parameter of the tensors in a saved state_dict
    error: str = ""


def parameters(model: str, device: torch.device) -> Params:
    """Return random parameters with random gradients."""
    source = torch.Generator(device).manual_seed(0)
    found: Params = []
    for shape in MODELS[model]():
        p = torch.nn.Parameter(torch.randn(shape, device=device, generator=source))
        p.grad = torch.randn(shape, device=device, generator=source).mul_(1e-3)
        found.append(p)
    return found


def turn(step: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a step, on average over one burst."""
    begun = perf_counter()
    for _ in range(BURST):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (perf_counter() - begun) / BURST


def measure(
    make: Callable[[Params], Any], base: Callable[[Params], Any], params: Params, rounds: int
) -> dict[str, Any]:
    """Return time, ratio, state and checkpoint of an optimizer that takes turns with another one."""
    device, count = params[0].device, sum(p.numel() for p in params)
    both = {"mine": make(params), "base": base(params)}
    times: dict[str, list[float]] = {name: [] for name in both}
    order = random.Random(0)
    for i in range(WARM_UP + rounds):
        for name in order.sample(["mine", "base"], 2):  # what a step finds in the cache depends on who was before it
            taken = turn(both[name].step, device)
            times[name] += [taken] if i >= WARM_UP else []
    ratio = median(mine / other for mine, other in zip(times["mine"], times["base"], strict=True))
    state = sum(tensor.nbytes for tensor in tensors(both["mine"].state)) / count
    checkpoint = bytes_of_checkpoint(both["mine"].state_dict()) / count
    return {"milliseconds": 1e3 * median(times["mine"]), "ratio": ratio, "state": state, "checkpoint": checkpoint}


def tensors(state: Any) -> Iterator[Tensor]:
    """Yield all tensors in nested dicts and lists."""
    if isinstance(state, Tensor):
        yield state
    items = state.values() if isinstance(state, Mapping) else state if isinstance(state, (list, tuple)) else ()
    for item in items:
        yield from tensors(item)


def bytes_of_checkpoint(state_dict: Any) -> int:
    """Return how many bytes of tensors torch.save writes: of every storage all, and only once."""
    storages = [tensor.untyped_storage() for tensor in tensors(state_dict)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def table(model: str, costs: Sequence[Cost]) -> Table:
    """Return the costs on one set of parameters."""
    shapes = MODELS[model]()
    count = sum(torch.Size(shape).numel() for shape in shapes)
    rows = []
    for cost in costs:
        cells = [cost.milliseconds, cost.ratio, cost.state, cost.checkpoint]
        forms = [".3f", ".2f", ".1f", ".1f"]
        numbers = [kit.NONE if x is None else f"{x:{form}}" for x, form in zip(cells, forms, strict=True)]
        rows.append([f"{cost.name}: {cost.error}" if cost.error else cost.name, *numbers])
    head = ["optimizer", "step, ms", "× torch fused", "state, bytes", "checkpoint, bytes"]
    note = "Ratios are to torch's fused step of the same kind, in turns with it. Bytes are per parameter."
    return Table(head, rows, f"{model}: {len(shapes):,} tensors, {count:,} parameters", note)


def main(
    out: Path = Path("o2nc-bench"),
    models: str | None = None,
    rounds: int = 11,
    device: str | None = None,
    quiet: bool = False,
) -> None:
    """Measure; write bench.json and bench.md into ``out``. Exit code 1 if an optimizer fails.

    Args:
        out: folder of the results.
        models: keys of MODELS; else what fits.
        rounds: timed turns of every optimizer.
        device: cpu, cuda or cuda:N; else the GPU if there is one.
        quiet: print nothing.
    """
    where, terminal = kit.find_device(device), kit.Terminal(quiet)
    cuda = where.type == "cuda"
    names = models.split(",") if models else [name for name in MODELS if cuda or name in ("resnet18", "many")]
    if unknown := [name for name in names if name not in MODELS]:
        raise UsageError(f"--models has {unknown[0]!r}; known: {', '.join(MODELS)}")
    kit.at_least(1, rounds=rounds)
    kit.make_folder(out)
    costs, found = list[Cost](), list[Table]()
    families = line_up(cuda)
    with terminal.progress(len(names) * sum(map(len, families.values())), "steps") as advance:
        for model in list(names):
            needed = BYTES_NEEDED * sum(torch.Size(shape).numel() for shape in MODELS[model]())
            if cuda and needed > torch.cuda.mem_get_info(where)[0]:
                terminal.say(f"{model} is left out: it needs {needed / 1e9:.0f} GB")
                names.remove(model)
                continue
            params = parameters(model, where)
            for family, members in families.items():
                base = next(iter(members.values()))
                for name, make in members.items():
                    advance(0, f"{model}: {name}")
                    try:
                        cost = Cost(model, family, name, **measure(make, base, params, rounds))
                    except Exception as error:  # a row that cannot run must not cost the others
                        cost = Cost(model, family, name, error=f"failed, {str(error).splitlines()[0][:80]}")
                    costs.append(cost)
                    if cuda:  # free the optimizers before the next two are made
                        gc.collect()
                    advance(1, "")
            found.append(table(model, [cost for cost in costs if cost.model == model]))
            terminal.table(found[-1])
    about = kit.circumstances(f"o2nc bench --models {','.join(names)} --rounds {rounds}", where, burst=BURST)
    kit.write_json(out / "bench.json", {"circumstances": about, "costs": [asdict(cost) for cost in costs]})
    kit.write_text(out / "bench.md", "\n\n".join(one.markdown() for one in found) + "\n")
    terminal.say(f"Written to {out}: bench.json, bench.md")
    if any(cost.error for cost in costs):
        raise SystemExit(1)


if __name__ == "__main__":
    kit.run_script(main)
