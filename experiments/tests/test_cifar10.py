"""`o2nc cifar10` on made images: data, batches, training, what survives kill −9, tables."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from o2nc_experiments import cifar10, kit
from o2nc_experiments import cifar10_data as data
from o2nc_experiments import cifar10_results as results

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def write_files(folder, images=64, test=40, seed=0):
    """Write noise on a grey that grows with the label, in the binary layout."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name in data.FILES:
        n = test if name.startswith("test") else images
        labels = rng.integers(0, 10, n)
        pixels = rng.normal(25.0 * labels[:, None] + 15, 30, (n, data.PIXELS)).clip(0, 255)
        np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8).tofile(folder / name)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


def without_clock(record):
    """The runs of a record without what two runs may differ in."""
    runs = json.loads(json.dumps(record["runs"]))
    for run in runs.values():
        del run["course"]["seconds"]
    return runs


# ---- data and batches


def test_files_are_read_as_they_are(folder, tmp_path):
    found = data.load(folder)
    first = np.fromfile(folder / data.FILES[0], np.uint8).reshape(-1, 3073)[0]
    assert found.train.shape == (320, 3, 32, 32)
    assert found.test.shape == (40, 3, 32, 32)
    assert found.train[0].flatten().tolist() == first[1:].tolist()
    assert found.train_labels[0] == first[0]
    limited = data.load(folder, limit=100)
    assert (len(limited.train), len(limited.test), limited.digest) == (100, 20, found.digest)
    (tmp_path / data.FOLDER).symlink_to(folder)
    assert data.load(tmp_path).digest == found.digest


@pytest.mark.parametrize(
    ("contents", "words"),
    [(None, "is missing: --data names"), (b"", "is truncated: 0 bytes"), (b"\x01" * 3000, "truncated: 3000"),
     (b"\x0a" + bytes(3072), "the label 10, outside 0 to 9")],
)  # fmt: skip
def test_files_that_cannot_be_used(folder, tmp_path, contents, words):
    for name in data.FILES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / data.FILES[2]).unlink()
    if contents is not None:
        (tmp_path / data.FILES[2]).write_bytes(contents)
    with pytest.raises(OSError, match=words):
        data.load(tmp_path)


def test_download_checks_the_archive(folder, tmp_path, monkeypatch):
    import hashlib
    import tarfile

    (tmp_path / "official").mkdir()
    with tarfile.open(tmp_path / "made.tar.gz", "w:gz") as tar:
        for name in data.FILES:
            tar.add(folder / name, f"{data.FOLDER}/{name}")
    monkeypatch.setattr(data, "URL", (tmp_path / "made.tar.gz").as_uri())
    with pytest.raises(OSError, match="checksum"):
        data.download(tmp_path / "got")
    monkeypatch.setattr(data, "MD5", hashlib.md5((tmp_path / "made.tar.gz").read_bytes()).hexdigest())
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "got/cifar-10-binary.tar.gz.part").symlink_to(tmp_path / "victim")  # planted where it was written
    data.download(tmp_path / "got")
    assert (tmp_path / "victim").read_text() == "precious"
    (tmp_path / "got/cifar-10-binary.tar.gz.part").unlink()
    monkeypatch.setattr(data, "URL", "http://nowhere.invalid")
    data.download(tmp_path / "got")  # is there already
    assert data.load(tmp_path / "got").digest == data.load(folder).digest
    assert not list((tmp_path / "got").glob("*.part"))


def test_every_crop_and_flip_is_a_shift_of_the_framed_image():
    image = torch.arange(3 * 32 * 32).remainder(251).to(torch.uint8).reshape(1, 3, 32, 32)
    framed = torch.nn.functional.pad(image, (4,) * 4)
    for case in range(data.CASES):
        top, left, mirrored = case // 18, case // 2 % 9, case % 2
        wanted = framed[:, :, top : top + 32, left : left + 32]
        wanted = wanted.flip(3) if mirrored else wanted
        assert torch.equal(data.augment(image, torch.tensor([case])), wanted), case


def test_epochs_are_permutations_of_their_own():
    first, again, other = (data.Epoch.draw(3, epoch, 320, CPU) for epoch in (0, 0, 1))
    assert first.order.sort().values.tolist() == list(range(320))
    assert torch.equal(first.order, again.order)
    assert not torch.equal(first.order, other.order)
    assert first.cases.unique().numel() > 100


def test_normalised_images_have_the_scale_of_the_network():
    grey = torch.full((1, 3, 2, 2), 125, dtype=torch.uint8)
    found = data.normalise(grey)[0, :, 0, 0]
    wanted = [(125 / 255 - m) / s for m, s in zip(data.MEAN, data.STD, strict=True)]
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-5, atol=1e-5)


# ---- the runs


def test_plan_has_a_run_per_seed_and_of_decayed_arms_one_per_horizon():
    table = cifar10.plan("table", [0, 1], 200, [10, 20], None)
    assert {(run.arm, run.epochs, run.lr) for run in table} == {
        ("SGD with momentum", 200, 0.01),
        ("scaled by Exp(1)", 200, 0.01),
    }
    assert len(table) == 4
    found = cifar10.plan("horizons", [0], 200, [10, 20], None)
    assert [(run.arm, run.epochs, run.lr) for run in found] == [
        ("no schedule", 20, 0.02),
        ("SGD with momentum", 10, 0.01),
        ("SGD with momentum", 20, 0.01),
        ("cosine, tuned", 10, 0.02),
        ("cosine, tuned", 20, 0.05),
    ]
    assert {run.lr for run in cifar10.plan("horizons", [100], 200, [10], 0.1)} == {0.1}
    assert len({run.file for run in table}) == 4


def training(folder, tmp_path, arm="SGD with momentum", epochs=3):
    run = cifar10.Run(arm, 0.05, epochs, 0)
    return cifar10.Training(run, data.load(folder), 2, frozenset([2]), tmp_path / run.file)


def test_a_run_that_stopped_goes_on_as_if_it_had_not(folder, tmp_path):
    whole, part = training(folder, tmp_path / "a"), training(folder, tmp_path)
    cifar10.train(whole, lambda row, epoch: None, save_every=1e9)
    part.epoch()
    part.save()
    part.epoch()  # lost
    again = training(folder, tmp_path)
    assert len(again.rows) == 1
    cifar10.train(again, lambda row, epoch: None, save_every=1e9)
    wanted, found = whole.result(), again.result()
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in wanted.items() if k != "seconds"}
    assert [v is not None for v in found["average accuracy"]] == [False, True, True]
    assert found["lr"] == pytest.approx([0.05, 0.0375, 0.0125])


def test_without_a_schedule_x_bar_is_not_the_last_iterate(folder, tmp_path):
    run = training(folder, tmp_path, "no schedule", epochs=2)
    cifar10.train(run, lambda row, epoch: None)
    assert run.result()["lr"] == [0.05, 0.05]
    assert run.rows[-1]["average loss"] != run.rows[-1]["test loss"]
    weights = [p.clone() for p in run.model.parameters()]
    with run.optimizer.averaged():
        assert any(not torch.equal(p, w) for p, w in zip(run.model.parameters(), weights, strict=True))


def command(folder, out, *more):
    words = f"--data {folder} --out {out} --width 2 --seeds 0 --epochs 3 --save-every 0".split()
    return [sys.executable, "-m", "o2nc_experiments.cifar10", *words, *more]


@pytest.mark.parametrize("sent", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_killed_it_goes_on_with_the_same_command(folder, tmp_path, sent):
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command(folder, tmp_path / "out"), env=env, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 120
    while not list((tmp_path / "out").glob("*.pt")) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (-sent if sent == signal.SIGKILL else 130), errors
    done = subprocess.run(
        command(folder, tmp_path / "out"), env=env, capture_output=True, text=True, timeout=240, check=True
    )
    assert "goes on after epoch" in done.stdout or "1 of them finished" in done.stdout
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as the processes had: others add in another order
    cifar10.main(tmp_path / "whole", folder, seeds="0", epochs=3, width=2, quiet=True)
    torch.set_num_threads(threads)
    records = [json.loads((tmp_path / name / "cifar10.json").read_text()) for name in ("out", "whole")]
    assert without_clock(records[0]) == without_clock(records[1])
    assert not list((tmp_path / "out").glob("*.p*t"))


def test_finished_runs_are_not_repeated_and_other_settings_refused(folder, tmp_path, monkeypatch, capsys):
    options = {"study": "horizons", "horizons": "1,2", "seeds": "0", "width": 2}
    cifar10.main(tmp_path, folder, **options)
    printed = capsys.readouterr().out
    assert "5 runs on cpu, 0 of them finished" in printed
    assert "no schedule: one run, at x̄" in printed
    monkeypatch.setattr(cifar10, "Training", None)
    cifar10.main(tmp_path, folder, **options)
    assert "5 of them finished" in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"cifar10.json", "cifar10.md", "horizons.png", "report.html"}
    with pytest.raises(kit.UsageError, match="has runs with width 2, not width 3"):
        cifar10.main(tmp_path, folder, **options | {"width": 3})


@pytest.mark.parametrize(
    ("options", "words"),
    [({"study": "all"}, "--study must be"), ({"limit": 5}, "--limit at least 128"), ({"seeds": "x"}, "--seeds"),
     ({"lr": -1.0}, "--lr positive"), ({"device": "tpu"}, "--device"), ({"horizons": "0"}, "--horizons")],
)  # fmt: skip
def test_options_that_cannot_be_used(folder, tmp_path, options, words):
    with pytest.raises(kit.UsageError, match=words):
        cifar10.main(tmp_path, folder, **options)


# ---- tables


def test_table_1_and_horizons_of_the_record():
    """The tables of docs/cifar10.md, from the record of the runs on an H200."""
    runs = list(json.loads((RESULTS / "cifar10.json").read_text())["runs"].values())
    table = {row[0]: row[1:] for row in results.table_1(results.longest(runs)).rows}
    assert table["SGD with momentum"] == [
        *("9.68 ± 0.15", "100.0 ± 0.0", "21.05 ± 0.66", "94.68 ± 0.28", "94.60 ± 0.24", "94.60 ± 0.29"),
        *("0.0107 ± 0.0003", "3 × 200"),
    ]
    assert table["scaled by Exp(1)"][:4] == ["9.91 ± 0.43", "100.0 ± 0.0", "22.28 ± 0.73", "94.40 ± 0.04"]
    ends = [10, 20, 40, 80, 200]
    rows = {row[0]: row[1:] for row in results.horizons_table(results.lines(runs, ends), ends).rows}
    assert rows["no schedule: one run, at x̄"][0] == "89.69 ± 0.04"
    assert rows["cosine, tuned: a run for every length"][-1] == "95.33 ± 0.06"
    assert rows["x̄ less cosine, tuned"] == ["0.83 ± 0.18", "0.66 ± 0.12", "0.42 ± 0.36", "0.34 ± 0.30", "0.32 ± 0.24"]


def test_a_run_that_diverged_is_told():
    course = {"lr": [0.1], "train loss": [None], "train accuracy": [0.1], "test loss": [None], "test accuracy": [0.1],
              "gradient": [None], "spread": [None], "average accuracy": [0.1], "seconds": [1.0]}  # fmt: skip
    run = {"arm": "SGD with momentum", "lr": 0.1, "epochs": 1, "seed": 0, "course": course}
    assert results.table_1(results.longest([run])).rows[0][1] == "diverged"
