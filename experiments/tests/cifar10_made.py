"""Small images of CIFAR-10's shape and tables of them; as a script, ``o2nc cifar10`` on unofficial files."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from o2nc_experiments import cli
from o2nc_experiments.cifar10.arms import parse
from o2nc_experiments.cifar10.batches import to_device
from o2nc_experiments.cifar10.checkpoints import Store
from o2nc_experiments.cifar10.data import BINARY, Data, DataError, load
from o2nc_experiments.cifar10.experiment import Experiment
from o2nc_experiments.cifar10.options import Settings
from o2nc_experiments.processes import World

CPU = torch.device("cpu")
SMALL = Settings(epochs=3, batch=32, average=0.9, width=2)
CLOCK = "seconds"  # the only column that two runs may differ in


def images_and_labels(n, seed):
    """Noise on a grey that grows with the label, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, n)
    pixels = rng.normal(25.0 * labels[:, None] + 15, 30, (n, 3072)).clip(0, 255)
    return pixels.astype(np.uint8), labels


def data(train=48, test=12, seed=0):
    """The data set, without files."""
    parts = []
    for n, own in ((train, 2 * seed), (test, 2 * seed + 1)):
        pixels, labels = images_and_labels(n, own)
        parts += [torch.from_numpy(pixels).reshape(n, 3, 32, 32), torch.from_numpy(labels)]
    return Data(*parts, "binary", f"made with seed {seed}")


def images(train=48, test=12, seed=0, dtype=torch.float32):
    """The same on the device."""
    return to_device(data(train, test, seed), CPU, dtype=dtype)


def as_binary(pixels, labels):
    """A file of the binary layout: a label and 3072 pixels per record."""
    return np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1).tobytes()


def write_files(folder, train=160, test=32, seed=0):
    """Write it in the binary layout, in five files and one."""
    folder.mkdir(parents=True, exist_ok=True)
    made = data(train, test, seed)
    pixels = [*made.train_images.flatten(1).tensor_split(5), made.test_images.flatten(1)]
    labels = [*made.train_labels.tensor_split(5), made.test_labels]
    for file, x, y in zip(BINARY.files, pixels, labels, strict=True):
        (folder / file.name).write_bytes(as_binary(x.numpy(), y.numpy()))
    return folder


@contextmanager
def refused(*parts):
    """Check that what is done inside is refused in one sentence that has these parts."""
    import pytest  # not for the processes

    with pytest.raises(DataError) as info:
        yield
    for part in parts:
        assert str(part) in str(info.value), info.value
    assert "\n" not in str(info.value), info.value


def train_by_hand(trial, epochs=None):
    """Train a trial for so many epochs, all if None, and return their rows."""
    rows = []
    while not trial.finished and len(rows) != epochs:
        for _ in range(trial.begin_epoch()):
            trial.step()
        trial.launch_evaluation()
        rows.append(trial.end_epoch())
    return rows


def timeless(rows):
    """Rows without the time they took."""
    return [row._replace(**{CLOCK: 0.0}) for row in rows]


def bits(tensors):
    """All numbers of a nested state, as they lie in memory: equal only if every bit is."""
    if isinstance(tensors, torch.Tensor):
        flat = tensors.detach().cpu().contiguous()
        return (str(flat.dtype), tuple(flat.shape), flat.numpy().tobytes())
    if isinstance(tensors, dict):
        return {key: bits(value) for key, value in tensors.items()}
    if isinstance(tensors, list | tuple):
        return [bits(value) for value in tensors]
    return tensors


# --- tables

ARMS = ("sgdm+exponential", "scale-free+exponential", "adamw+uniform")


def make_table(folder, arms=ARMS, seeds=(0,), settings=SMALL, digest="made", **more):
    return Experiment(
        [parse(arm) for arm in arms], seeds, settings, Store(folder), digest, **{"save_every": 0, **more}
    )


def run_table(table, tell=lambda news: None, own=None):
    """Train a table in this process; return what is known of its trials."""
    with table.opened(World()) as entries:
        table.train(entries, images() if own is None else own, World(), tell)
    return entries


def outcome(table, entries):
    """Everything that must not depend on interruptions: rows but for the time, and the last states."""
    states = {entry.name: table.store.load(entry.name) for entry in entries}
    kept = {name: {key: state[key] for key in ("epoch", "model", "optimizer")} for name, state in states.items()}
    return {entry.name: timeless(entry.rows) for entry in entries}, bits(kept)


def undisturbed(folder, *given, own=None, **more):
    """The outcome of a table that nothing interrupts; in one thread, since a module's fixtures precede that one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    table = make_table(folder, *given, **more)
    found = outcome(table, run_table(table, own=own))
    torch.set_num_threads(threads)
    return found


def stop_after(count, error=KeyboardInterrupt):
    """A function that raises at its call of this number."""
    calls = []

    def function(*_):
        calls.append(1)
        if len(calls) == count:
            raise error

    return function


# --- the command line in a process of its own

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default", "PYTHONIOENCODING": "utf-8"}


def arguments(files, out, *more):
    """The arguments of a small run on a CPU."""
    small = {"--data": files, "--out": out, "--width": 2, "--batch": 32, "--average": 0.9, "--device": "cpu"}
    return [*(str(part) for pair in small.items() for part in pair), *map(str, more)]


def start(*given, team=1, **more):
    """Begin ``o2nc cifar10``, by torchrun if there is a team."""
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={team}", "--standalone"] if team > 1 else []
    return subprocess.Popen(
        [sys.executable, *torchrun, __file__, "cifar10", *given],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        **more,
    )


def finish(process, timeout=120):
    """Wait for it; return its code, stdout and stderr."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def wait_for(condition, process, seconds=60):
    """Wait until something is so, as long as the process lives."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def call(monkeypatch, capsys, *given):
    """Run the command line in this process, on files of any size; return its code, stdout and stderr."""
    import pytest  # not for the processes

    from o2nc_experiments.cifar10 import study

    monkeypatch.setattr(study, "load", partial(load, verify=False))
    monkeypatch.setattr(sys, "argv", ["o2nc", "cifar10", *map(str, given)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def recorded(out):
    """What the run has written down, rows without their time."""
    found = json.loads((Path(out) / "cifar10.json").read_text(encoding="utf-8"))
    at = found["columns"].index(CLOCK)
    return found | {"rows": [row[:at] + row[at + 1 :] for row in found["rows"]]}


if __name__ == "__main__":
    from o2nc_experiments.cifar10 import study

    study.load = partial(load, verify=False)
    cli.main()
