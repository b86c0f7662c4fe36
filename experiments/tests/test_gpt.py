"""``o2nc gpt``: arms, schedules, choice of learning rates; finished runs are kept, and a killed one goes on."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim import NAdam

from o2nc_experiments import gpt, kit, text
from o2nc_experiments.kit import UsageError
from o2nc_experiments.schedule_free import ScheduleFreeAdamW

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
SMALL = gpt.Size(layers=1, width=8, heads=2, context=8, rows=4, warmup=3, evaluated=128, lr=1e-2)


def nothing(amount, words):
    pass


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(0)
    tokens = (rng.integers(0, 8, 4000) * np.arange(4000) % 11).astype(np.uint8)
    return text.Corpus(tokens[:3500], tokens[3500:], 16, "numbers")


@pytest.fixture
def lab(tmp_path, corpus):
    return gpt.Lab(tmp_path, corpus, SMALL, CPU, "o2nc gpt", save_every=1e9)


def test_one_run_serves_all_horizons_and_decays_are_a_run_each(lab, tmp_path):
    found = gpt.compare(lab, ["constant", "wsd", "linear"], [8, 16], [0, 1], 100, [0.5, 1, 2], nothing)
    assert sum(name.startswith("constant") for name in lab.store.runs) == 3 + 2  # 3 learning rates tried, 2 seeds
    assert sum(name.startswith("linear") for name in lab.store.runs) == 2 * (3 + 2)
    for name in ("constant", "wsd", "linear"):
        assert [len(found.losses[name]["average"][h]) for h in (8, 16)] == [2, 2]
    assert len(set(found.lrs["constant"].values())) == 1
    assert found.losses["linear"]["average"] == found.losses["linear"]["last"]
    assert found.losses["constant"]["average"] != found.losses["constant"]["last"]
    best = found.best_decay(16)
    assert sum(best) == min(sum(found.losses[name]["average"][16]) for name in ("wsd", "linear"))
    losses, differences = gpt.tables(found, [8, 16])
    assert losses.rows[0][0].startswith(gpt.ARMS["constant"].label)
    assert losses.rows[1][0] == gpt.LAST["label"]
    assert all("±" in cell for row in losses.rows for cell in row[2:])
    assert len(differences.rows) == 3
    kit.draw(gpt.figure(found, [8, 16], "GPT on a file called $x_{$"), "png")  # no formula


@pytest.mark.parametrize("name", gpt.ARMS)
def test_every_arm_trains_and_is_repeatable(name, lab, tmp_path, corpus):
    if name.startswith("muon") and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has no Muon")
    first = lab.run(name, 1e-2, 0, 30, [15, 30], nothing)["losses"]
    assert first["30"]["average"] < math.log(16)
    again = gpt.Lab(tmp_path / "again", corpus, SMALL, CPU, "", 1e9)
    (tmp_path / "again").mkdir()
    assert again.run(name, 1e-2, 0, 30, [15, 30], nothing)["losses"] == first
    assert again.run(name, 1e-2, 1, 30, [15, 30], nothing)["losses"] != first
    assert (first["30"]["average"] != first["30"]["last"]) is gpt.ARMS[name].is_one_run


def test_labels_are_words():
    labels = [arm.label for arm in gpt.ARMS.values()]
    assert len(set(labels)) == len(labels)
    assert not any(mark in label for label in labels for mark in "~:^_")


@pytest.mark.parametrize(("decay", "values"), [
    (gpt.constant, [1, 1, 1, 1]), (gpt.linear, [1, 0.5, 0.25, 0.0125]), (gpt.wsd, [1, 1, 1, 0.05]),
    (gpt.cosine, [1, 0.5, 0.1464, 0.0004]),
])  # fmt: skip
def test_schedules(decay, values):
    steps = (20, 60, 80, 99)  # of 100, after 20 of warm-up
    assert [decay(step, 100, 20) for step in steps] == pytest.approx(values, abs=1e-4)


def test_an_arm_that_has_changed_is_refused(lab, monkeypatch):
    """Its old losses would be shown under its name."""
    lab.run("wsd", 1e-2, 0, 6, [6], nothing)
    changed = replace(gpt.ARMS["wsd"], make=lambda *arguments: gpt.adamw(*arguments, amsgrad=True))
    monkeypatch.setitem(gpt.ARMS, "wsd", changed)
    with pytest.raises(UsageError, match=r"the arm wsd has changed since its runs in .*gpt\.json"):
        lab.run("wsd", 1e-2, 0, 6, [6], nothing)


def test_an_interrupted_arm_that_has_changed_begins_again(lab, monkeypatch):
    lab.save_every, amounts = 0.0, []

    def stop(amount, words):
        amounts.append(amount)
        if len(amounts) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab.run("wsd", 1e-2, 0, 6, [6], stop)
    assert lab.checkpoint.exists()
    changed = replace(gpt.ARMS["wsd"], make=lambda *arguments: gpt.adamw(*arguments, amsgrad=True))
    monkeypatch.setitem(gpt.ARMS, "wsd", changed)
    lab.run("wsd", 1e-2, 0, 6, [6], lambda amount, words: amounts.append(amount))
    assert amounts[4:] == [0, *[1] * 6]  # none of the three steps that were saved


def test_an_arm_that_neither_decays_nor_averages_is_refused(lab, monkeypatch):
    plain = replace(gpt.ARMS["wsd"], decay=gpt.constant, make=lambda model, lr, seed: [NAdam(model.parameters(), lr)])
    monkeypatch.setitem(gpt.ARMS, "plain", plain)
    with pytest.raises(UsageError, match="the arm plain has no decay and no average"):
        lab.run("plain", 1e-2, 0, 6, [6], nothing)


def test_a_finished_run_is_not_repeated(lab, monkeypatch):
    first = lab.run("constant", 1e-2, 0, 6, [6], nothing)
    monkeypatch.setattr(lab.model, "init_weights_", lambda seed: pytest.fail("repeated"))
    assert lab.run("constant", 1e-2, 0, 6, [6], nothing) == first
    assert not lab.checkpoint.exists()


def test_other_horizons_of_a_run_are_added(lab):
    lab.run("constant", 1e-2, 0, 6, [4, 6], nothing)
    found = lab.run("constant", 1e-2, 0, 6, [5, 6], nothing)
    assert sorted(found["losses"]) == ["4", "5", "6"]


@pytest.mark.parametrize("name", ["constant", "muon", "schedule-free"])
def test_an_interrupted_run_goes_on_from_its_checkpoint(name, lab, tmp_path, corpus):
    """At most what came after the last save is lost, and on a CPU the losses are those of an uninterrupted run."""
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has no Muon")
    whole = lab.run(name, 1e-2, 0, 20, [10, 20], nothing)["losses"]
    (tmp_path / "b").mkdir()
    stopped = gpt.Lab(tmp_path / "b", corpus, SMALL, CPU, "", save_every=0.0)  # saves after every step
    made = []

    def stop(amount, words):
        made.append(amount)
        if sum(made) == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.run(name, 1e-2, 0, 20, [10, 20], stop)
    later, made = gpt.Lab(tmp_path / "b", corpus, SMALL, CPU, "", 1e9), []
    assert later.run(name, 1e-2, 0, 20, [10, 20], lambda amount, words: made.append(amount))["losses"] == whole
    assert made == [12, *[1] * 8]  # twelve steps were saved
    assert not later.checkpoint.exists()


def test_divergence_is_reported(lab):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "evaluate", lambda: math.nan)
        found = lab.run("constant", 1e-2, 0, 9, [3, 6, 9], nothing)["losses"]
    assert not any(math.isfinite(loss) for own in found.values() for loss in own.values())
    results = gpt.compare(lab, ["constant"], [3, 6, 9], [0], 9, [1.0], nothing)
    assert gpt.tables(results, [3, 6, 9])[0].rows[0][2:] == ["diverged"] * 3


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ({1.0: [3.0], 2.0: [2.0]}, 2.0),
        ({1.0: [3.0, 2.1, 1.0], 2.0: [2.9, 1.9, 1.1], 4.0: [2.8, math.nan, 2.0]}, 2.0),
        ({1.0: [1.0], 2.0: [math.nan]}, 1.0),
        ({1.0: [math.nan], 2.0: [math.nan]}, 1.0),
    ],
)
def test_the_choice_of_a_learning_rate(losses, best):
    assert gpt.choose(losses) == best


def test_schedule_free_is_the_published_algorithm():
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = ScheduleFreeAdamW([p], 0.1, (0.9, 0.95), 1e-8, 0.1, r=1.0)
    z, x, v, total = p.detach().clone(), p.detach().clone(), torch.zeros_like(p), 0.0
    for t in range(1, 6):
        y = 0.1 * z + 0.9 * x
        assert torch.allclose(p, y, atol=1e-12)
        p.grad = 2 * y
        optimizer.step()
        v = 0.95 * v + 0.05 * (2 * y) ** 2
        z = z - 0.1 * (2 * y / ((v / (1 - 0.95**t)).sqrt() + 1e-8) + 0.1 * y)
        total += t * 0.01
        x = x + t * 0.01 / total * (z - x)
    with optimizer.averaged():
        assert torch.allclose(p, x, atol=1e-12)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "does not exist"),
        ({"a.txt": b""}, "none of its 1 files"),
        ({"a.txt": bytes(range(256))}, "none of its 1 files"),
        ({"d/a": b"\x00", "d/b": b""}, "none of its 2 files"),
        ({"a.bin": b"abc"}, "3 bytes; tokens are 16-bit integers"),
        ({"a.txt": b"short"}, "tokens"),
    ],
)
def test_data_that_cannot_be_used(tmp_path, files, said):
    for name, contents in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents)
    place = tmp_path / next((name.split("/")[0] for name in files), "missing")
    with pytest.raises(kit.UsageError, match=said):
        gpt.main(tmp_path / "out", data=place, horizons="30", grid="1", device="cpu", quiet=True)
    assert not (tmp_path / "out" / "gpt.json").exists()


@pytest.mark.parametrize("kind", ["text", "folder", "tokens"])
def test_data_of_a_user(tmp_path, kind):
    if kind == "text":
        (tmp_path / "a.txt").write_text("ḡ and x̄ " * 500)
        found = text.load(tmp_path / "a.txt")
    elif kind == "folder":
        for i in range(40):
            (tmp_path / f"{i}.txt").write_text(f"{i} " * 100)
        (tmp_path / ".hidden").write_text("no")
        found = text.load(tmp_path)
        assert not set(found.held_out.tobytes().split(b"\0")[1:]) & set(found.train.tobytes().split(b"\0"))
    else:
        np.arange(5000, dtype="<u2").tofile(tmp_path / "train.bin")
        np.arange(100, dtype="<u2").tofile(tmp_path / "val.bin")
        found = text.load(tmp_path)
        assert found.vocabulary == 5056
    assert len(found.held_out) * 10 < len(found.train)
    assert found.digest == text.load(tmp_path / "a.txt" if kind == "text" else tmp_path).digest


def test_every_piece_is_read_once_before_any_is_read_again():
    starts = text.row_starts(tokens=101, context=10, rows=2, steps=10, seed=3)
    assert sorted(starts[:5].flatten().tolist()) == list(range(0, 100, 10))
    assert torch.equal(text.row_starts(101, 10, 2, 5, 3), starts[:5])
    rows = text.read_rows(torch.arange(101), starts[0], 10)
    assert rows[0].tolist() == list(range(starts[0, 0], starts[0, 0] + 11))


WORDS = ["gpt", "--horizons", "25,120", "--arms", "constant,wsd", "--grid", "1", "--seeds", "0", "--device", "cpu"]
COMMAND = [sys.executable, "-m", "o2nc_experiments", *WORDS, "--save-every", "0.3", "--out"]
ENV = os.environ | {"OMP_NUM_THREADS": "1"}


def losses_in(out):
    return {key: run["losses"] for key, run in kit.read_json(out / "gpt.json")["runs"].items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    subprocess.run([*COMMAND, out], env=ENV, check=True, capture_output=True, timeout=300)
    return losses_in(out)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_killed_command_goes_on(tmp_path, undisturbed, how, code):
    """Kill the command in its second run; the same command goes on from the checkpoint."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # a shell's background job ignores SIGINT
    listen = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    process = subprocess.Popen([*COMMAND, tmp_path], env=ENV, **pipes, **listen)
    deadline = time.monotonic() + 120
    while not ((tmp_path / "gpt.json").exists() and (tmp_path / "run.pt").exists()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said == ("o2nc: interrupted; the same command goes on\n" if how == signal.SIGINT else "")
    assert torch.load(tmp_path / "run.pt", weights_only=True)["step"] > 0
    assert losses_in(tmp_path).items() <= undisturbed.items()
    subprocess.run([*COMMAND, tmp_path], env=ENV, check=True, capture_output=True, timeout=300)
    assert losses_in(tmp_path) == undisturbed
    assert not (tmp_path / "run.pt").exists()


@pytest.mark.slow
def test_where_only_torch_is_installed(tmp_path):
    for name in ("rich", "matplotlib", "jinja2"):
        (tmp_path / f"{name}.py").write_text("raise ImportError(__name__)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = ["--horizons", "25", "--grid", "1", "--seeds", "0", "--device", "cpu", "--out", tmp_path / "out"]
    command = [sys.executable, "-m", "o2nc_experiments.gpt", *words]
    done = subprocess.run(command, env=ENV | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"| {gpt.ARMS['constant'].label} | 0.004 | " in done.stdout
    assert os.listdir(tmp_path / "out") == ["gpt.json"]
