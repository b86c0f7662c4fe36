"""What can be asked for on the command line: settings of all trials, and all options together."""

# ruff: noqa: RUF009 (`option` is a field of `dataclasses`)

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from o2nc_experiments.arms import distinct
from o2nc_experiments.cifar10.names import OPTIMIZERS, SCHEDULES, TABLE
from o2nc_experiments.laws import LAWS
from o2nc_experiments.options import (
    DEVICE,
    FIRST_SEED,
    LARGEST_SEED,
    QUIET,
    SAVE_EVERY,
    check_number,
    option,
    read_sweep,
    read_whole,
    written,
)

if TYPE_CHECKING:
    from o2nc_experiments.cifar10.horizons import Goal


@dataclass(frozen=True)
class Settings:
    """The setting of Table 1, or a smaller one."""

    epochs: int = 200  # how many times the training set is gone through
    batch: int = 128  # images per step, over all processes
    average: float = 0.999  # the discount of x̄ and ḡ, in (0, 1)
    width: int = 64  # channels of ResNet-18's first stage
    limit: int | None = None  # only so many training images, and a fifth as many test images

    def steps(self, epoch: int, images: int) -> int:
        """Return how many steps come before an epoch: all batches that begin before it.

        Batches go on across the end of an epoch, so that every image is seen exactly once per epoch.
        """
        return -(-epoch * images // self.batch)

    def averages_are_due(self, epoch: int) -> bool:
        """Say whether x̄ is evaluated when so many epochs are over: ten times, and at the end."""
        return epoch == self.epochs or epoch % max(1, self.epochs // 10) == 0


def unlike_paper(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record's settings have that is not the paper's; the discount of x̄ is not in the paper."""
    usual, named = asdict(Settings()), ("epochs", "batch", "width", "limit")
    return {key: settings[key] for key in named if settings.get(key, usual[key]) != usual[key]}


@dataclass(frozen=True)
class Options:
    """The arguments of the command line, as they were given; none of the arms is Table 1's."""

    data: Path | None = option(None, "Folder of the official files, binary or python version.", file_okay=False)
    download: bool = option(False, "Fetch them (170 MB) if they are missing, to OUT/data without --data.")
    out: Path = option(Path("o2nc-cifar10"), "Folder of the run.", folder=True)
    arm: Sequence[str] = option(
        (),
        f"NAME: {', '.join(OPTIMIZERS)}. SCHEDULE: {', '.join(SCHEDULES[:-1])} or {SCHEDULES[-1]}. "
        f"LAW: {', '.join(LAWS)}, or none. WINDOW of x̄: t^POWER or a discount. May be repeated.",
        metavar="NAME:SCHEDULE~LAW+WINDOW",
    )
    seed: int = option(0, FIRST_SEED, min=0, max=LARGEST_SEED)
    seeds: int = option(3, "Trials of every arm.", min=1, max=1000)
    epochs: int | None = option(None, "How often every image is trained on; 200, or the last horizon.", min=1)
    horizons: str | None = option(
        None, "Numbers of epochs, with commas between: x̄ of one run against decayed runs that end there."
    )
    sweep: str | None = option(
        None,
        "Learning rates for arms that name none; xVALUE is a multiple of the usual one.",
        metavar="lr=VALUE,VALUE",
    )
    tune: int | None = option(None, "The seed to choose them on, which is not reported.", min=0)
    tune_epochs: int | None = option(None, "After how many epochs; all of them if nothing is said.", min=1)
    batch: int = option(Settings.batch, "Images per step, over all processes.", min=2)
    average: float = option(Settings.average, "Discount of x̄ and ḡ, in (0, 1).")
    width: int = option(Settings.width, "Channels of ResNet-18's first stage.", min=1, max=512)
    limit: int | None = option(
        Settings.limit, "Only so many training images, and a fifth as many to test on.", min=1, max=50_000
    )
    device: str | None = option(None, DEVICE)
    at_once: int | None = option(None, "Trials that share the GPU.", min=1)
    save_every: float = option(120.0, SAVE_EVERY, min=0)
    c: float = option(1.0, "Price of spread in the certificates shown.", max=1e9)
    quiet: bool = option(False, QUIET)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms, each once; Table 1's if there are none."""
        return distinct(self.arm) or TABLE

    @property
    def trials(self) -> range:
        """The seeds."""
        return range(self.seed, self.seed + self.seeds)

    @property
    def settings(self) -> Settings:
        """What all trials have in common."""
        horizons = read_whole("--horizons", self.horizons, 1)
        epochs = max(horizons, default=Settings.epochs) if self.epochs is None else self.epochs
        return Settings(epochs, self.batch, self.average, self.width, self.limit)

    def goal(self) -> "Goal":
        """Return what is to be compared; ValueError says why it cannot be."""
        from o2nc_experiments.cifar10.arms import parse
        from o2nc_experiments.cifar10.horizons import Goal

        epochs, tune = self.settings.epochs, self.tune
        horizons = sorted(read_whole("--horizons", self.horizons, 1)) or [epochs]
        if horizons[-1] != epochs:
            raise ValueError(f"--epochs {epochs} must be the last of --horizons {self.horizons}, or be left out")
        if (self.sweep is None) != (tune is None):
            raise ValueError("--sweep lr=… needs a seed to choose on, --tune, which needs a grid to choose from")
        if tune in self.trials:
            raise ValueError(f"--tune {tune} must not be one of the seeds {', '.join(map(str, self.trials))}")
        if self.tune_epochs is not None and (tune is None or not 1 <= self.tune_epochs <= epochs):
            raise ValueError(f"--tune-epochs goes with --tune, from 1 to {epochs}, got {self.tune_epochs}")
        check_number("--average", self.average, "a number in (0, 1)", lambda v: 0 < v < 1)
        check_number("--c", self.c, "a finite number > 0", lambda v: v > 0)
        check_number("--save-every", self.save_every)
        goal = Goal(
            [parse(name) for name in self.arms],
            horizons,
            list(self.trials),
            *read_sweep(self.sweep),
            tune,
            self.tune_epochs or epochs,
            is_plain=self.horizons is None and self.sweep is None,
        )
        goal.tuning()  # refuses arms that cannot be tuned
        return goal

    @property
    def data_folder(self) -> Path:
        """The folder that the data set is read from, and fetched to."""
        return self.data or self.out / "data"

    @property
    def command(self) -> str:
        """The command line that makes the same table."""
        plain = replace(
            self,
            arm=() if self.arms == TABLE else self.arms,
            epochs=None if self.horizons else self.settings.epochs,
        )
        never = ("data", "download", "out", "at_once", "save_every", "quiet")
        return written("o2nc cifar10 --data DIR", plain, always=["seeds"], never=never)
