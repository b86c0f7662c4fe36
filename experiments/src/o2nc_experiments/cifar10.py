"""``o2nc cifar10``: ResNet-18 on CIFAR-10, the paper's Table 1, and one run without a schedule against every horizon.

    o2nc cifar10 --data DIR                       # Table 1, on a GPU
    o2nc cifar10 --data DIR --study horizons      # in the same folder: finished runs are not repeated
    o2nc cifar10 --data DIR --out try --seeds 0 --epochs 2 --width 8 --limit 2000      # a try on a CPU

Where only torch is installed, ``python -m o2nc_experiments.cifar10 --out DIR`` takes the same options.

Result (docs/cifar10.md; one H200, torch 2.11, 3 seeds, 200 epochs, mean ± std): test accuracy at the best epoch
94.68 ± 0.28 % for SGD with momentum and 94.40 ± 0.04 % scaled by Exp(1); the paper has 94.6 ± 0.1 and 94.4 ± 0.2.
Without a schedule, at x̄: 89.69, 92.44, 93.98, 94.88, 95.64 % after 10, 20, 40, 80, 200 epochs; a cosine tuned for
each: 88.86, 91.78, 93.56, 94.54, 95.33 %.

To add an arm, add a line to ARMS and its name to a study.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import o2nc
from o2nc_experiments import cifar10_results, kit
from o2nc_experiments.cifar10_data import OFFICIAL, Data, Epoch, download, load, memory_format, normalise
from o2nc_experiments.cifar10_model import make_model

BATCH, MOMENTUM, WEIGHT_DECAY = 128, 0.9, 5e-4
EPOCHS, SEEDS, WIDTH = 200, "0,1,2", 64
HORIZONS = "10,20,40,80,200"  # epochs after which the study "horizons" compares
EVALUATED, RECALIBRATED = 1000, 5  # images in a batch of evaluation, and such batches for BatchNorm at x̄
SAVE_EVERY = 60.0  # seconds between checkpoints, which are made at the end of an epoch


@dataclass(frozen=True)
class Arm:
    """One way to train: SGD with momentum 0.9 and weight decay 5e-4, and these."""

    lr: float | dict[int, float] = 0.01  # or by the number of epochs from which on it is taken
    constant: bool = False  # no schedule, instead of a cosine per epoch
    scaling: o2nc.Law | None = None  # the law of s
    average: float | o2nc.Polynomial = 0.999  # the window of x̄

    def lr_for(self, epochs: int) -> float:
        """Return the learning rate of a run of so many epochs."""
        return self.lr if isinstance(self.lr, float) else self.lr[max(n for n in self.lr if n <= epochs)]


ARMS = {
    "SGD with momentum": Arm(),
    "scaled by Exp(1)": Arm(scaling=o2nc.Exponential()),
    "scaled by Gamma(16)": Arm(scaling=o2nc.Gamma(16.0)),
    "no schedule": Arm(lr=0.02, constant=True, average=o2nc.Polynomial(12)),
    "cosine, tuned": Arm(lr={0: 0.02, 20: 0.05}),  # the best of 0.02, 0.05, 0.1 on seed 100, up to 40 epochs
}
STUDIES = {
    "table": ("SGD with momentum", "scaled by Exp(1)"),
    "horizons": ("no schedule", "SGD with momentum", "cosine, tuned"),
    "laws": ("SGD with momentum", "scaled by Exp(1)", "scaled by Gamma(16)"),
}


class Run(NamedTuple):
    """An arm with a learning rate, a length and a seed; arms of one seed begin alike and see the same images."""

    arm: str
    lr: float
    epochs: int
    seed: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return f"{self.arm}, lr {self.lr:g}, {self.epochs} epochs, seed {self.seed}"

    @property
    def file(self) -> str:
        """The name of its checkpoint."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()) + ".pt"


def plan(study: str, seeds: list[int], epochs: int, horizons: list[int], lr: float | None) -> list[Run]:
    """Return the runs of a study: one per seed, of decayed arms one per seed and horizon."""
    runs = []
    for seed in seeds:
        for name in STUDIES[study]:
            arm = ARMS[name]
            lengths = [epochs] if study != "horizons" else horizons[-1:] if arm.constant else horizons
            runs += [Run(name, lr or arm.lr_for(length), length, seed) for length in lengths]
    return list(dict.fromkeys(runs))


@dataclass
class Training:
    """A run under way."""

    run: Run
    data: Data
    width: int
    looks: frozenset[int]  # epochs after which x̄ is evaluated
    checkpoint: Path
    rows: list[dict[str, Any]] = field(default_factory=list)  # one for every epoch that is over

    def __post_init__(self) -> None:
        arm, device = ARMS[self.run.arm], self.data.train.device
        self.model = make_model(self.width, self.run.seed, device, memory_format(device))
        self.optimizer = o2nc.ScaledSGDM(
            self.model.parameters(),
            lr=self.run.lr,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY,
            scaling=arm.scaling,
            seed=self.run.seed,
            average=arm.average,
            fused=True if device.type == "cuda" else None,  # without a law it has to be asked for
        )
        self.forward: Any = torch.compile(self.model, dynamic=False) if device.type == "cuda" else self.model
        saved = kit.load_checkpoint(self.checkpoint, device)
        if saved is not None:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.rows = saved["rows"]

    def save(self) -> None:
        """Write what is needed to go on with the next epoch."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "rows": self.rows}
        kit.save_checkpoint(self.checkpoint, state)

    def lr(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        if ARMS[self.run.arm].constant:
            return self.run.lr
        return self.run.lr * (1 + math.cos(math.pi * epoch / self.run.epochs)) / 2

    def epoch(self) -> None:
        """Train for an epoch, evaluate, and add its row."""
        number, data, begin = len(self.rows), self.data, time.perf_counter()
        lr, drawn = self.lr(number), Epoch.draw(self.run.seed, number, len(data.train), data.train.device)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.model.train()
        tally = torch.zeros(2, dtype=torch.float64, device=data.train.device)
        firsts = range(0, len(data.train) - BATCH + 1, BATCH)  # the few images that are left over wait
        for first in firsts:
            images, labels = drawn.batch(data, first, BATCH)
            with autocast(images.device):
                logits = self.forward(images)
                loss = cross_entropy(logits, labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            tally += torch.stack([loss.detach() * BATCH, (logits.argmax(1) == labels).sum()])
        train_loss, train_accuracy = (tally / (len(firsts) * BATCH)).tolist()  # the host waits here, once per epoch
        test_loss, test_accuracy = evaluate(self.model, data)
        certificate = self.optimizer.certificate()
        row = {
            "lr": lr,
            "train loss": train_loss,
            "train accuracy": train_accuracy,
            "test loss": test_loss,
            "test accuracy": test_accuracy,
            "gradient": certificate.gradient,
            "spread": certificate.spread,
        }
        if number + 1 in self.looks or number + 1 == self.run.epochs:
            with self.optimizer.averaged(self.model, batches=self._typical(drawn)):
                row["average loss"], row["average accuracy"] = evaluate(self.model, data)
        self.rows.append(row | {"seconds": time.perf_counter() - begin})

    def _typical(self, drawn: Epoch) -> Iterator[Tensor]:
        """Yield some batches of training images, augmented as in training, as autocast has them."""
        size = min(EVALUATED, len(self.data.train))
        for i in range(min(RECALIBRATED, len(self.data.train) // size)):
            yield drawn.batch(self.data, i * size, size)[0]

    def result(self) -> dict[str, list[Any]]:
        """Return the columns over the epochs; None where there is no number."""
        columns = dict.fromkeys(name for row in self.rows for name in row)
        return {name: [round_off(row.get(name)) for row in self.rows] for name in columns}


def round_off(value: float | None) -> float | None:
    """Return six digits of a number, None if there is none."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def autocast(device: torch.device) -> torch.autocast:
    """Return the context of a forward pass: convolutions in bfloat16 on a GPU; weights and loss stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def evaluate(model: nn.Module, data: Data) -> tuple[float, float]:
    """Return loss and accuracy on the test set."""
    model.eval()
    tally = torch.zeros(2, dtype=torch.float64, device=data.test.device)
    for images, labels in zip(data.test.split(EVALUATED), data.test_labels.split(EVALUATED), strict=True):
        with autocast(images.device):
            logits = model(normalise(images))
            loss = cross_entropy(logits, labels, reduction="sum")
        tally += torch.stack([loss, (logits.argmax(1) == labels).sum()])
    loss_sum, right = tally.tolist()
    return loss_sum / len(data.test), right / len(data.test)


def train(training: Training, tell: Callable[[Mapping[str, Any], int], None], save_every: float = SAVE_EVERY) -> None:
    """Train to the end, with a checkpoint at the end of an epoch whenever the last is old enough."""
    saved = time.monotonic()
    while len(training.rows) < training.run.epochs:
        training.epoch()
        tell(training.rows[-1], len(training.rows))
        if time.monotonic() - saved >= save_every:
            training.save()
            saved = time.monotonic()


def main(
    out: Path = Path("o2nc-cifar10"),
    data: Path | None = None,
    study: str = "table",
    seeds: str = SEEDS,
    epochs: int = EPOCHS,
    horizons: str = HORIZONS,
    lr: float | None = None,
    width: int = WIDTH,
    limit: int | None = None,
    device: str | None = None,
    save_every: float = SAVE_EVERY,
    quiet: bool = False,
) -> None:
    """Train ResNet-18 on CIFAR-10; the same command goes on where it stopped, and finished runs are not repeated.

    Args:
        out: folder of the results.
        data: folder of the official binary files; else they are downloaded.
        study: key of STUDIES.
        seeds: the seeds that are reported.
        epochs: of a run, for all studies but horizons.
        horizons: numbers of epochs after which the study "horizons" compares.
        lr: of every arm; else each has its own.
        width: of the network.
        limit: images to use of each part, for a try.
        device: cpu, cuda or cuda:N; else the GPU if there is one.
        save_every: seconds between two checkpoints.
        quiet: print nothing.
    """
    if study not in STUDIES:
        raise kit.UsageError(f"--study must be one of {', '.join(STUDIES)}, got {study!r}")
    if epochs < 1 or width < 1 or (limit is not None and limit < BATCH) or (lr is not None and not 0 < lr < math.inf):
        raise kit.UsageError(f"--epochs and --width are at least 1, --limit at least {BATCH}, --lr positive")
    ends = sorted(kit.numbers("--horizons", horizons, least=1))
    runs = plan(study, kit.numbers("--seeds", seeds), epochs, ends, lr)
    place, terminal = kit.find_device(device), kit.Terminal(quiet)
    kit.make_folder(out)
    if data is None:
        download(out / "data")
    images = load(data or out / "data", limit).to(place)
    if len(images.train) < BATCH:
        raise kit.UsageError(f"a batch has {BATCH} images, the training set only {len(images.train)}")
    if images.digest != OFFICIAL:
        terminal.say("note: these files are not the official CIFAR-10")
    asked = {"study": study, "seeds": seeds, "epochs": epochs, "horizons": horizons, "lr": lr, "width": width}
    about = kit.circumstances(kit.written_command("o2nc cifar10 --data DIR", main, **asked, limit=limit), place)
    settings = {"width": width, "limit": limit, "batch": BATCH, "data": images.digest}
    store = kit.Store(out / "cifar10.json", settings, about)
    left = [run for run in runs if run.name not in store.runs]
    terminal.say(f"{len(runs)} runs on {place}, {len(runs) - len(left)} of them finished")
    with terminal.progress(sum(run.epochs for run in left), "CIFAR-10") as advance:
        for run in left:
            looks = frozenset(ends) | frozenset(range(max(1, run.epochs // 10), run.epochs, max(1, run.epochs // 10)))
            checkpoint = out / run.file
            training = Training(run, images, width, looks, checkpoint)
            if training.rows:
                terminal.say(f"{run.name}: goes on after epoch {len(training.rows)}")
                advance(len(training.rows), "")

            def tell(row: Mapping[str, Any], epoch: int, run: Run = run) -> None:
                text = f"{run.name}: epoch {epoch}, test accuracy {100 * row['test accuracy']:.2f} %"
                advance(1, text)
                if not terminal.is_interactive or epoch == run.epochs:
                    terminal.say(f"{text}, {row['seconds']:.1f} s")

            train(training, tell, save_every)
            store.add(
                run.name,
                run._asdict() | {"hardware": about["hardware"], "torch": about["torch"], "course": training.result()},
            )
            checkpoint.unlink(missing_ok=True)
    tables = cifar10_results.write(out, store.runs, about, ends)
    for table in tables:
        terminal.table(table)
    terminal.say(f"Written to {out}: cifar10.json, cifar10.md, report.html")


if __name__ == "__main__":
    kit.run_script(main)
