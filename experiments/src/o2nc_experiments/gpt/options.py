"""What can be asked for on the command line, with its checks."""

# ruff: noqa: RUF009 (`option` is a field of `dataclasses`)

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from o2nc_experiments.arms import distinct
from o2nc_experiments.options import DEVICE, QUIET, SAVE_EVERY, option, read_sweep, read_whole, written

if TYPE_CHECKING:
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
    """The arguments of the command line, as they were given; None is the default for the device."""

    data: Path | None = option(
        None, "A text, a folder of texts, or token files; else the standard library's sources."
    )
    out: Path = option(Path("o2nc-gpt"), "Folder of the results.", folder=True)
    arm: tuple[str, ...] = option(
        (),
        "adamw, sgdm, muon, scale-free, schedule-free or another of torch.optim : constant, linear, "
        "cosine, wsdPERCENT or rsqrt ~ law of s + windows of x̄ (t^POWER or a discount). May be repeated.",
        metavar="OPTIMIZER(key=value):SCHEDULE~LAW+WINDOW",
    )
    horizons: str | None = option(None, "Numbers of steps, with commas between.")
    seeds: str | None = option(None, "Seeds, with commas between.", "--seeds", "--seed")
    sweep: str | None = option(
        None, "Learning rates; xVALUE is a multiple of every arm's own.", metavar="lr=VALUE,VALUE"
    )
    tune: int | None = option(None, "Choose learning rates on this seed, and run --seeds with those only.", min=0)
    widen: int = option(0, "By how many values a grid may grow where the best is at its edge.", min=0, max=20)
    each: bool = option(False, "A learning rate for every horizon, also where nothing decays.")
    layers: int | None = option(None, "Blocks of the model.", min=1)
    width: int | None = option(None, "Its width.", min=2)
    heads: int | None = option(None, "Heads per block.", min=1)
    context: int | None = option(None, "Tokens that it reads at once.", min=1)
    batch: int | None = option(None, "Tokens per step.", min=1)
    warmup: int | None = option(None, "Steps in which lr rises.", min=0)
    evaluated: int | None = option(None, "Held-out tokens to evaluate on, at most.", min=1)
    device: str | None = option(None, DEVICE)
    save_every: float = option(120.0, SAVE_EVERY, min=0)
    costs: bool = option(True, "Time the parts of a step.")
    quiet: bool = option(False, QUIET)

    def settings(self, kind: str) -> Settings:
        """Return the sizes for a device of this kind; ValueError if they do not fit."""
        usual = asdict(Settings() if kind == "cuda" else SMALL)
        found = Settings(**usual | {key: value for key in SIZES if (value := getattr(self, key)) is not None})
        found.check()
        return found

    def goal(self, kind: str) -> "Goal":
        """Return what is to be compared; ValueError if it cannot be understood."""
        from o2nc_experiments.gpt.arms import parse
        from o2nc_experiments.gpt.planning import Goal

        names = distinct(self.arm) or ARMS[kind]
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
        program = "o2nc gpt --data DATA" if self.data else "o2nc gpt"
        return written(program, self, never=("data", "out", "quiet", "save_every", "costs"))
