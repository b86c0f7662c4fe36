"""How long an optimizer's step takes, against torch's own and against what the memory allows.

    time >= (bytes that the step has to move) / (bytes per second of a plain copy)

* `contenders`: who is compared, with the bytes that each has to move, and on which parameters.
* `timing`: the clocks; `measure`: the times of all contenders, of steps and of whole training steps.
* `view`: the tables; `command`: ``o2nc bench`` with a progress bar, and its article of the page.

``python -m o2nc_experiments.bench`` needs torch and numpy only, for machines without the rest.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from o2nc_experiments import record
from o2nc_experiments.bench.contenders import MODELS, MOMENTUM, SMALL, line_up
from o2nc_experiments.bench.measure import (
    MODES,
    TRAINED,
    StepTime,
    TrainingTime,
    measure_steps,
    measure_training,
    needed,
    release,
)
from o2nc_experiments.bench.view import markdown
from o2nc_experiments.pool import Progress, ignore
from o2nc_experiments.record import available, describe, find_device


@dataclass
class Benchmark:
    """What is asked for and what has been found so far."""

    device: torch.device  # where
    models: list[str]  # the sets of parameters
    left_out: list[str]  # one sentence for each set that does not fit
    rounds: int  # timed steps of every contender
    seed: int  # of everything that is random
    training: bool  # whether training steps are measured as well
    rows: list[StepTime] = field(default_factory=list)  # step times
    trained: list[TrainingTime] = field(default_factory=list)  # times of training steps
    complete: bool = False  # whether everything was measured

    @property
    def total(self) -> int:
        """What `run` will report as progress, all together."""
        turns = len(self.models) * len(line_up(self.device.type))
        turns += len(MODES[self.device.type]) * len(TRAINED) if self.training else 0
        return turns * self.rounds

    @property
    def failed(self) -> list[str]:
        """Who raised, and why; a step that cannot be captured as a graph is no failure."""
        steps = [f"{r.contender} on {r.model}: {r.error}" for r in self.rows if r.error is not None]
        failed = [r for r in self.trained if r.error is not None and r.mode != "graph"]
        return steps + [f"{r.contender} in training: {r.error}" for r in failed]

    @property
    def circumstances(self) -> dict[str, Any]:
        """What is needed to make the benchmark again."""
        models = "".join(f" --model {model}" for model in self.models)
        training = " --training" if self.training else ""
        command = f"o2nc bench{models} --rounds {self.rounds} --device {self.device} --seed {self.seed}{training}"
        settings = {"models": self.models, "rounds": self.rounds, "seed": self.seed, "momentum": MOMENTUM}
        return record.circumstances(command, **settings, **describe(self.device))


def plan(
    models: Sequence[str] = (), *, rounds: int, device: str | None = None, training: bool = False, seed: int = 0
) -> Benchmark:
    """Return a benchmark, still without times, of these `MODELS`, or of all that fit, and on a CPU the small ones.

    ValueError if that cannot be done, such as a model that is named and does not fit.
    """
    for model in models:
        if model not in MODELS:
            raise ValueError(f"--model must be one of {', '.join(MODELS)}, got {model!r}")
    where = find_device(device)
    wanted = list(dict.fromkeys(models)) or [m for m in MODELS if where.type == "cuda" or m in SMALL]
    free = available(where)
    needs = {model: needed(model, where.type) for model in wanted}
    fits = [model for model in wanted if free is None or needs[model] <= free]
    refusals = [
        f"{model} needs {need / 1e9:.1f} GB of memory, {(free or 0) / 1e9:.1f} GB are free on {where}"
        for model, need in needs.items()
        if model not in fits
    ]
    if refusals and (models or not fits):
        raise ValueError("; ".join(refusals))
    return Benchmark(where, fits, refusals, rounds, seed, training)


def run(benchmark: Benchmark, progress: Progress = ignore) -> None:
    """Measure, row by row into the benchmark, so that an interrupted one keeps what was finished."""
    device = benchmark.device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for model in benchmark.models:
            for row in measure_steps(model, device, benchmark.rounds, benchmark.seed, progress):
                benchmark.rows.append(row)
            release(device)
        if benchmark.training:
            for trained in measure_training(device, benchmark.rounds, benchmark.seed, progress):
                benchmark.trained.append(trained)
    benchmark.complete = True


def save(benchmark: Benchmark, out: Path) -> list[Path]:
    """Write bench.json and bench.md; return their paths."""
    about, files = benchmark.circumstances, [out / "bench.json", out / "bench.md"]
    found = {
        "circumstances": about,
        "complete": benchmark.complete,
        "left_out": benchmark.left_out,
        "steps": [asdict(r) | {"rate": r.rate, "share": r.share} for r in benchmark.rows],
        "training": [asdict(r) for r in benchmark.trained],
    }
    record.write(files[0], found)
    record.write_text(files[1], markdown(benchmark.rows, benchmark.trained, about))
    return files
