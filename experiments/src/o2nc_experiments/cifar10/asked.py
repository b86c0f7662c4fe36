"""What was asked for on the command line."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from o2nc_experiments.cifar10 import arms
from o2nc_experiments.cifar10.settings import Settings


@dataclass(frozen=True)
class Asked:
    """The arguments of the command line, as they were given.

    Attributes:
        data: folder of the data set, None for the folder ``data`` in ``out``.
        fetch: whether to download it there if it is missing.
        out: folder of the run.
        arms: names of the optimizers.
        seeds: of the trials.
        settings: of all trials.
        device: its name, None for the GPU if there is one.
        at_once: trials that share a GPU, None for as many as are good.
        save_every: seconds between checkpoints.
        c: the price of spread in the certificates that are shown.
        quiet: whether to print errors only.
    """

    data: Path | None
    fetch: bool
    out: Path
    arms: Sequence[str]
    seeds: range
    settings: Settings
    device: str | None
    at_once: int | None
    save_every: float
    c: float
    quiet: bool

    @property
    def place_of_data(self) -> Path:
        """The folder that the data set is read from, and fetched to."""
        return self.data or self.out / "data"

    @property
    def command(self) -> str:
        """The command line that makes the same table."""
        s, usual = self.settings, Settings()
        parts = ["o2nc cifar10 --data DIR"]
        parts += [f"--arm '{arm}'" for arm in self.arms if tuple(self.arms) != arms.TABLE]
        parts += [f"--seed {self.seeds[0]}"] if self.seeds[0] else []
        parts += [f"--seeds {len(self.seeds)} --epochs {s.epochs}"]
        for name in ("batch", "average", "width", "limit"):
            if getattr(s, name) != getattr(usual, name):
                parts.append(f"--{name} {getattr(s, name)}")
        parts += [f"--c {self.c:g}"] if self.c != 1 else []
        parts += [f"--device {shlex.quote(self.device)}"] if self.device else []
        return " ".join(parts)
