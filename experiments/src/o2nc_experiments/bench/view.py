"""Step times as tables."""

from collections.abc import Sequence
from typing import Any

from o2nc_experiments.bench.contenders import BASE
from o2nc_experiments.bench.measure import StepTime, TrainingTime
from o2nc_experiments.tables import NONE, Column, Table

NOTE = (
    "B: bytes per parameter that a step has to move\n"
    "GB/s: these over the time of a step; of copy: compared with the GB/s of a plain copy\n"
    "× peer: to torch's own of the same kind (SGD foreach, Adam fused)\n"
    "again: SGD fused against itself, the noise"
)
GPU_NOTE = (
    "step: between events around a step, gaps between launches included\n"
    "host: until step() returns; a step that takes as long as this waits for the host\n"
    "graph: replayed as a CUDA graph, without gaps"
)
TRAINING_NOTE = "medians of time and ratio over interleaved bursts"


def tables(steps: Sequence[StepTime], training: Sequence[TrainingTime]) -> list[Table]:
    """Return one table per set of parameters and one of training steps, the notes below the last of a kind."""
    found = [steps_table([t for t in steps if t.model == model]) for model in dict.fromkeys(t.model for t in steps)]
    if found:
        notes = f"{NOTE}\n{GPU_NOTE}" if any(t.host is not None for t in steps) else NOTE
        found[-1].notes += notes.splitlines()
    return [*found, *([training_table(training)] if training else [])]


def steps_table(steps: Sequence[StepTime]) -> Table:
    """Return the step times on one set of parameters."""
    gpu = any(t.host is not None for t in steps)
    head = ["B", "step ms", *(["host ms", "graph ms"] if gpu else []), "GB/s", "of copy", f"× {BASE}", "× peer"]
    title = f"{steps[0].model}: {steps[0].tensors:,} tensors, {steps[0].numbers:,} numbers"
    found = _table(f"{title}; a copy moves {steps[0].copy / 1e9:,.0f} GB/s", head)
    for t in steps:
        digits = 0 if (t.rate or 0) > 1e11 else 1 if (t.rate or 0) > 1e10 else 2
        cells = [_number(t.step, ".3f", 1e3)]
        cells += [_number(t.host, ".3f", 1e3), _number(t.graph, ".3f", 1e3)] if gpu else []
        cells += [_number(t.rate, f".{digits}f", 1e-9), _number(t.share, ".0%"), _number(t.ratio, ".2f")]
        cells += [NONE if t.peer == BASE else _number(t.peer_ratio, ".2f")]
        _add(found, t.contender, t.error, f"{t.traffic}", *cells)
    return found


def training_table(training: Sequence[TrainingTime]) -> Table:
    """Return the times of training steps, mode beside mode."""
    modes = list(dict.fromkeys(t.mode for t in training))
    by_name = {(t.contender, t.mode): t for t in training}
    head = [cell for mode in modes for cell in (f"{mode} ms", f"× {BASE}")]
    found = _table("Training step of ResNet-18, CIFAR-10 shapes", head, TRAINING_NOTE)
    for name in dict.fromkeys(t.contender for t in training):
        own = [by_name[name, mode] for mode in modes if (name, mode) in by_name]
        cells = [cell for t in own for cell in (_number(t.step, ".3f", 1e3), _number(t.ratio, ".3f"))]
        error = own[0].error if own[0].mode == "eager" else None
        _add(found, name, error, *cells, *[NONE] * (len(head) - len(cells)))
    return found


def _table(title: str, head: Sequence[str], notes: str = "") -> Table:
    return Table([Column("contender", "left", wrap=True), *map(Column, head)], title, notes)


def _add(table: Table, name: str, error: str | None, *cells: str) -> None:
    """Add a row, in red and with the reason if it has failed."""
    table.add(name if error is None else f"{name}: failed, {error}", *cells, style="bold red" if error else "")


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return NONE if value is None else f"{scale * value:{form}}"


def heading(about: dict[str, Any]) -> str:
    """Return on what was measured, in one line."""
    parts = [str(about["hardware"]), f"{about['threads']} threads" if about["device"] == "cpu" else ""]
    parts += [f"torch {about['torch']}", f"CUDA {about['cuda']}" if about.get("cuda") else ""]
    parts += [f"triton {about['triton']}" if about.get("triton") else "", "float32", f"momentum {about['momentum']}"]
    parts += [f"median of {about['rounds']} rounds"]
    return ", ".join(part for part in parts if part)


def markdown(steps: Sequence[StepTime], training: Sequence[TrainingTime], about: dict[str, Any]) -> str:
    """Return all tables with their circumstances."""
    found = [f"{heading(about)} (`{about['command']}`).\n"]
    return "\n".join([*found, *(f"{table.markdown()}\n" for table in tables(steps, training))])
