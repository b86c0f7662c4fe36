"""What can be asked for on the command line: settings of all trials, and all options together."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from o2nc_experiments.cifar10.arms import TABLE, arm_names, check_number, parse
from o2nc_experiments.cifar10.horizons import Goal
from o2nc_experiments.gpt.options import read_sweep, read_whole


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
    """The arguments of the command line, as they were given."""

    data: Path | None = None  # folder of the data set, None for the folder ``data`` in ``out``
    download: bool = False  # whether to fetch it there if it is missing
    out: Path = Path("o2nc-cifar10")  # folder of the run
    arm: Sequence[str] = ()  # names of the optimizers, none for Table 1's
    seed: int = 0  # first of the consecutive seeds
    seeds: int = 3  # trials of every arm
    epochs: int | None = None  # of every trial; None for the last horizon, or 200
    horizons: str | None = None  # numbers of epochs, with commas between
    sweep: str | None = None  # lr=VALUE,VALUE,…, the learning rates of arms that name none
    tune: int | None = None  # the seed on which they are chosen
    tune_epochs: int | None = None  # after how many epochs; None for the last horizon
    batch: int = Settings.batch  # see `Settings`, and so are the next three
    average: float = Settings.average
    width: int = Settings.width
    limit: int | None = Settings.limit
    device: str | None = None  # its name, None for the GPU if there is one
    at_once: int | None = None  # trials that share a GPU, None for as many as are good
    save_every: float = 120.0  # seconds between checkpoints
    c: float = 1.0  # the price of spread in the certificates that are shown
    quiet: bool = False  # whether to print errors only

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms, each once; Table 1's if there are none."""
        return arm_names(self.arm)

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

    def goal(self) -> Goal:
        """Return what is to be compared; ValueError says why it cannot be."""
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
        s, usual = self.settings, Options()
        parts = ["o2nc cifar10 --data DIR"]
        parts += [f"--arm '{arm}'" for arm in self.arms if self.arms != TABLE]
        parts += [f"--seed {self.seed}"] if self.seed else []
        parts += [f"--seeds {self.seeds}", f"--horizons {self.horizons}" if self.horizons else f"--epochs {s.epochs}"]
        for name in ("sweep", "tune", "tune_epochs", "batch", "average", "width", "limit"):
            if (value := getattr(self, name)) != getattr(usual, name):
                parts.append(f"--{name.replace('_', '-')} {value}")
        parts += [f"--c {self.c:g}"] if self.c != 1 else []
        parts += [f"--device {shlex.quote(self.device)}"] if self.device else []
        return " ".join(parts)
