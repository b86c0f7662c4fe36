"""What can be asked for on the command line, with its checks."""

import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from o2nc_experiments.gpt.arms import parse
from o2nc_experiments.gpt.planning import Goal

SIZES = ("layers", "width", "heads", "context", "batch", "warmup", "evaluated")


@dataclass(frozen=True)
class Settings:
    """What all runs of a folder have in common.

    Attributes:
        layers: blocks of the model.
        width: of its stream.
        heads: per block.
        context: tokens that it reads at once.
        batch: tokens per step.
        warmup: steps in which lr rises.
        evaluated: tokens that are held out and evaluated on, at most.
        clip: gradients longer than this are shortened to it.
    """

    layers: int = 8
    width: int = 512
    heads: int = 8
    context: int = 512
    batch: int = 32_768
    warmup: int = 100
    evaluated: int = 524_288
    clip: float = 1.0

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return self.batch // self.context

    def check(self) -> None:
        """Refuse sizes that do not fit each other: ValueError."""
        if self.width % (2 * self.heads):
            raise ValueError(f"--width {self.width} must be a multiple of twice --heads {self.heads}")
        if self.batch % self.context:
            raise ValueError(f"--batch {self.batch} must be a multiple of --context {self.context}")
        if self.evaluated < self.context:
            raise ValueError(f"--evaluated {self.evaluated} must be at least --context {self.context}")


SMALL = Settings(layers=2, width=64, heads=4, context=64, batch=1024, warmup=20, evaluated=16_384)
# small models like larger steps
ARMS = {
    "cuda": ("adamw:constant+t^12", "adamw:wsd20", "adamw:linear"),
    "cpu": ("adamw(lr=4e-3):constant+t^12", "adamw(lr=4e-3):wsd20", "adamw(lr=4e-3):linear"),
}
HORIZONS = {"cuda": (250, 500, 1000, 2000, 4000), "cpu": (50, 100, 200, 400)}
SEEDS = {"cuda": (0, 1, 2), "cpu": (0, 1)}


@dataclass(frozen=True)
class Options:
    """The arguments of the command line, as they were given; None is the default for the device.

    Attributes:
        data: a text, a folder of texts, or token files; None for Python's standard library.
        out: folder of the results.
        arm: the arms, of `arms`.
        horizons: numbers of steps, with commas between.
        seeds: likewise.
        sweep: lr=VALUE,VALUE,…, the learning rates; xVALUE is a multiple of every arm's own.
        tune: the seed on which they are chosen.
        widen: by how many values a grid may grow where its best value is at its edge.
        each: whether every horizon has a learning rate of its own, also where nothing decays.
        layers: see `Settings`, and so are the others up to ``evaluated``.
        device: its name.
        save_every: seconds between checkpoints.
        costs: whether to time the parts of a step.
        quiet: whether to print errors only.
    """

    data: Path | None = None
    out: Path = Path("o2nc-gpt")
    arm: tuple[str, ...] = ()
    horizons: str | None = None
    seeds: str | None = None
    sweep: str | None = None
    tune: int | None = None
    widen: int = 0
    each: bool = False
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    context: int | None = None
    batch: int | None = None
    warmup: int | None = None
    evaluated: int | None = None
    device: str | None = None
    save_every: float = 120.0
    costs: bool = True
    quiet: bool = False

    def settings(self, kind: str) -> Settings:
        """Return the sizes for a device of this kind; ValueError if they do not fit."""
        usual = asdict(Settings() if kind == "cuda" else SMALL)
        found = Settings(**usual | {key: value for key in SIZES if (value := getattr(self, key)) is not None})
        found.check()
        return found

    def goal(self, kind: str) -> Goal:
        """Return what is to be compared; ValueError if it cannot be understood."""
        names = tuple(dict.fromkeys("".join(name.split()) for name in self.arm)) or ARMS[kind]
        horizons = sorted(set(read_whole("--horizons", self.horizons, 1) or HORIZONS[kind]))
        seeds = read_whole("--seeds", self.seeds, 0) or SEEDS[kind]
        warmup = self.settings(kind).warmup
        if horizons[0] <= warmup:
            raise ValueError(f"--horizons must be longer than the warm-up of {warmup} steps, got {horizons[0]}")
        if self.tune is not None and self.tune in seeds:
            raise ValueError(f"--tune {self.tune} must not be one of --seeds {', '.join(map(str, seeds))}")
        if (self.tune is not None or self.widen) and self.sweep is None:
            raise ValueError("--tune and --widen need a grid, --sweep lr=…, to choose from")
        if self.widen and self.tune is None:
            raise ValueError("--widen needs a seed to choose on, --tune")
        sweep, relative = read_sweep(self.sweep)
        return Goal(
            [parse(name) for name in names], horizons, seeds, sweep, relative, self.tune, self.widen, self.each
        )

    @property
    def command(self) -> str:
        """The command line that makes the same results."""
        parts = ["o2nc gpt", *(["--data DATA"] if self.data else [])]
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if value != field.default and field.name not in ("data", "out", "quiet", "save_every", "costs"):
                if value is True:
                    parts.append(f"--{field.name}")
                    continue
                values = value if isinstance(value, tuple) else [value]
                parts += [f"--{field.name.replace('_', '-')} {shlex.quote(str(one))}" for one in values]
        return " ".join(parts)


def read_whole(name: str, text: str | None, least: int) -> tuple[int, ...]:
    """Return whole numbers that stand with commas between them."""
    if text is None:
        return ()
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < least or max(found) > 2**31:
        raise ValueError(f"{name} takes whole numbers >= {least} with commas between, got {text!r}")
    return found


def read_sweep(text: str | None) -> tuple[tuple[float, ...], bool]:
    """Return the numbers after lr=, and whether they are multiples."""
    if text is None:
        return (), False
    key, _, values = text.replace(" ", "").partition("=")
    each = values.split(",")
    relative = all(value.startswith("x") for value in each)
    try:
        found = tuple(float(value.removeprefix("x") if relative else value) for value in each)
    except ValueError:
        found = ()
    if key != "lr" or not found or not all(0 < value < float("inf") for value in found):
        raise ValueError(
            "--sweep takes lr=VALUE,VALUE,… or, as multiples of every arm's own lr, lr=xVALUE,xVALUE,…; "
            f"other numbers are part of an arm; got {text!r}"
        )
    return found, relative
