"""Step times as tables, in Markdown and for a terminal; only the latter needs rich."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from o2nc_experiments.bench.contenders import BASE
from o2nc_experiments.bench.steps import Row
from o2nc_experiments.bench.training import TrainingRow

if TYPE_CHECKING:
    from rich.table import Table

Cells = list[str]
NONE = "–"
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


def step_tables(rows: Sequence[Row]) -> Iterator[tuple[str, Cells, list[Cells]]]:
    """Yield title, head and cells of one table per set of parameters."""
    for model in dict.fromkeys(r.model for r in rows):
        mine = [r for r in rows if r.model == model]
        gpu = any(r.host is not None for r in mine)
        head = ["contender", "B", "step ms", *(["host ms", "graph ms"] if gpu else [])]
        head += ["GB/s", "of copy", f"× {BASE}", "× peer"]
        body = []
        for r in mine:
            body.append(
                [
                    named(r.contender, r.error),
                    f"{r.traffic}",
                    milliseconds(r.step),
                    *([milliseconds(r.host), milliseconds(r.graph)] if gpu else []),
                    NONE
                    if r.rate is None
                    else f"{r.rate / 1e9:.{0 if r.rate > 1e11 else 1 if r.rate > 1e10 else 2}f}",
                    NONE if r.share is None else f"{r.share:.0%}",
                    times(r.ratio),
                    NONE if r.peer == BASE else times(r.peer_ratio),
                ]
            )
        title = f"{model}: {mine[0].tensors:,} tensors, {mine[0].numbers:,} numbers"
        yield f"{title}; a copy moves {mine[0].copy / 1e9:,.0f} GB/s", head, body


def training_table(rows: Sequence[TrainingRow]) -> tuple[str, Cells, list[Cells]]:
    """Return title, head and cells of the table of training steps."""
    modes = list(dict.fromkeys(r.mode for r in rows))
    found = {(r.contender, r.mode): r for r in rows}
    body = []
    for name in dict.fromkeys(r.contender for r in rows):
        mine = [found[name, mode] for mode in modes if (name, mode) in found]
        cells = [cell for r in mine for cell in (milliseconds(r.step), times(r.ratio, 3))]
        cells += [NONE] * (2 * len(modes) - len(cells))
        body.append([named(name, mine[0].error if mine[0].mode == "eager" else None), *cells])
    head = ["contender", *(cell for mode in modes for cell in (f"{mode} ms", f"× {BASE}"))]
    return "Training step of ResNet-18, CIFAR-10 shapes", head, body


def named(name: str, error: str | None) -> str:
    """Return the name, with what went wrong."""
    return name if error is None else f"{name}: failed, {error}"


def milliseconds(seconds: float | None) -> str:
    """Write a time to a thousandth of a millisecond."""
    return NONE if seconds is None else f"{1e3 * seconds:.3f}"


def times(ratio: float | None, digits: int = 2) -> str:
    """Write a ratio."""
    return NONE if ratio is None else f"{ratio:.{digits}f}"


def heading(about: dict[str, Any]) -> str:
    """Return on what was measured, in one line."""
    parts = [str(about["hardware"]), f"{about['threads']} threads" if about["device"] == "cpu" else ""]
    parts += [f"torch {about['torch']}", f"CUDA {about['cuda']}" if about.get("cuda") else ""]
    parts += [f"triton {about['triton']}" if about.get("triton") else "", "float32", f"momentum {about['momentum']}"]
    parts += [f"median of {about['rounds']} rounds"]
    return ", ".join(part for part in parts if part)


def markdown(rows: Sequence[Row], trained: Sequence[TrainingRow], about: dict[str, Any]) -> str:
    """Return all tables with their circumstances."""
    lines = [f"{heading(about)} (`{about['command']}`).", ""]
    tables = [*step_tables(rows), *([training_table(trained)] if trained else [])]
    for title, head, body in tables:
        lines += [f"**{title}**", "", f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(head) - 1)}"]
        lines += [f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |" for cells in body]
        lines.append("")
    return "\n".join(lines)


def grids(rows: Sequence[Row], trained: Sequence[TrainingRow]) -> "Iterator[Table]":
    """Yield all tables for a terminal, the notes below the last of a kind."""
    steps = list(step_tables(rows))
    note = f"{NOTE}\n{GPU_NOTE}" if any(r.host is not None for r in rows) else NOTE
    for i, content in enumerate(steps):
        yield _grid(*content, caption=note if i + 1 == len(steps) else "")
    if trained:
        yield _grid(*training_table(trained), caption=TRAINING_NOTE)


def _grid(title: str, head: Cells, body: list[Cells], caption: str) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left", title=title)
    grid.caption, grid.caption_justify = caption, "left"
    for name in head:
        grid.add_column(name, justify="left" if name == head[0] else "right", no_wrap=name != head[0])
    for cells in body:
        grid.add_row(*map(Text, cells), style="bold red" if ": failed, " in cells[0] else "")
    return grid
