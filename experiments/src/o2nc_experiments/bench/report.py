"""A whole run: what is asked for, what is found, and how it is written down."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from o2nc_experiments import record
from o2nc_experiments.bench import view
from o2nc_experiments.bench.contenders import MODELS, MOMENTUM, SMALL, line_up
from o2nc_experiments.bench.steps import Row, measure, needed, release
from o2nc_experiments.bench.timing import Progress
from o2nc_experiments.bench.training import MODES, TRAINED, TrainingRow, measure_training
from o2nc_experiments.record import available, describe, find_device


@dataclass
class Report:
    """What is asked for and what has been found so far.

    Attributes:
        device: where.
        models: the sets of parameters.
        left_out: one sentence for each set that does not fit.
        rounds: timed steps of every contender.
        seed: of everything that is random.
        training: whether training steps are measured as well.
        rows: step times.
        trained: times of training steps.
        complete: whether everything was measured.
    """

    device: torch.device
    models: list[str]
    left_out: list[str]
    rounds: int
    seed: int
    training: bool
    rows: list[Row] = field(default_factory=list)
    trained: list[TrainingRow] = field(default_factory=list)
    complete: bool = False

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
        return steps + [
            f"{r.contender} in training: {r.error}" for r in self.trained if r.error is not None and r.mode != "graph"
        ]

    @property
    def command(self) -> str:
        """The command line that makes this report again."""
        models = "".join(f" --model {model}" for model in self.models)
        training = " --training" if self.training else ""
        return f"o2nc bench{models} --rounds {self.rounds} --device {self.device} --seed {self.seed}{training}"


def plan(
    models: Sequence[str] = (), *, rounds: int, device: str | None = None, training: bool = False, seed: int = 0
) -> Report:
    """Return an empty report of what is to be measured; ValueError if that cannot be done.

    Args:
        models: names in `MODELS`; none means all that fit, and on a CPU the small ones.
        rounds: timed steps of every contender.
        device: cpu, cuda or cuda:N; None for the GPU if there is one.
        training: measure training steps as well.
        seed: of everything that is random.
    """
    for model in models:
        if model not in MODELS:
            raise ValueError(f"--model must be one of {', '.join(MODELS)}, got {model!r}")
    where = find_device(device)
    asked = list(dict.fromkeys(models)) or [m for m in MODELS if where.type == "cuda" or m in SMALL]
    free = available(where)
    needs = {model: needed(model, where.type) for model in asked}
    fits = [model for model in asked if free is None or needs[model] <= free]
    refusals = [
        f"{model} needs {need / 1e9:.1f} GB of memory, {(free or 0) / 1e9:.1f} GB are free on {where}"
        for model, need in needs.items()
        if model not in fits
    ]
    if refusals and (models or not fits):
        raise ValueError("; ".join(refusals))
    return Report(where, fits, refusals, rounds, seed, training)


def run(report: Report, progress: Progress | None = None) -> None:
    """Measure, row by row into the report, so that an interrupted one keeps what was finished.

    Args:
        report: what `plan` returned.
        progress: called with the number of steps made since its last call.
    """
    device = report.device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for model in report.models:
            for row in measure(model, device, report.rounds, report.seed, progress):
                report.rows.append(row)
            release(device)
        if report.training:
            for trained in measure_training(device, report.rounds, report.seed, progress):
                report.trained.append(trained)
    report.complete = True


def circumstances(report: Report) -> dict[str, Any]:
    """Return what is needed to make the report again."""
    settings = {"models": report.models, "rounds": report.rounds, "seed": report.seed, "momentum": MOMENTUM}
    return record.circumstances(report.command, **settings, **describe(report.device))


def save(report: Report, out: Path) -> list[Path]:
    """Write bench.json and bench.md; return their paths."""
    about = circumstances(report)
    files = [out / "bench.json", out / "bench.md"]
    record.write(
        files[0],
        {
            "circumstances": about,
            "complete": report.complete,
            "left_out": report.left_out,
            "steps": [asdict(r) | {"rate": r.rate, "share": r.share} for r in report.rows],
            "training": [asdict(r) for r in report.trained],
        },
    )
    record.write_text(files[1], view.markdown(report.rows, report.trained, about))
    return files
