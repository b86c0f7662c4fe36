"""Two processes train as one would: by torchrun, on CPUs. As a script, what those two processes do."""

import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from cifar10_made import (
    CPU,
    ENVIRONMENT,
    SMALL,
    arguments,
    bits,
    data,
    finish,
    recorded,
    start,
    timeless,
    train_by_hand,
    write_files,
)
from o2nc_experiments.cifar10.arms import parse
from o2nc_experiments.cifar10.batches import to_device
from o2nc_experiments.cifar10.checkpoints import Store
from o2nc_experiments.cifar10.data import load
from o2nc_experiments.cifar10.experiment import Experiment
from o2nc_experiments.cifar10.training import Trial, judge
from o2nc_experiments.classification import to_columns
from o2nc_experiments.classification.resnet import ResNet18
from o2nc_experiments.processes import JointBatchNorm2d, World, process_group

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not distributed.is_available() or sys.platform != "linux", reason="needs gloo and torchrun"),
]

ARMS = ("sgdm+exponential", "ball-ogd(lr=0.05,radius=0.05)+exponential")
SETTINGS = replace(SMALL, epochs=2)
COMMAND = ("--arm", ARMS[0], "--arm", "adamw+uniform", "--seeds", 1, "--epochs", 2, "--save-every", 0)


# --- what both processes do


def norm_batches():
    """Three batches of eight for both processes together, and the weights of a loss."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 8, 3, 5, 4, dtype=torch.float64, generator=generator) * k + k for k in (1, 2, 3)]


def normed(norm, share):
    """What a BatchNorm makes of its share of the batches: outputs, gradients, statistics."""
    norm = norm.double()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, -1.0, 2.0]))
        norm.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
    found = {"outputs": [], "inputs' gradients": []}
    for x, weight in norm_batches():
        x = share(x).clone().requires_grad_()
        y = norm(x)
        (y.square() * share(weight)).sum().backward()  # what happens to an image concerns all through the statistics
        found["outputs"].append(y.detach())
        found["inputs' gradients"].append(x.grad)
    found["gradients"] = {name: p.grad for name, p in norm.named_parameters()}
    found["statistics"] = dict(norm.named_buffers())
    found["evaluated"] = norm.eval()(share(norm_batches()[0][0])).detach()
    return found


def trained(team):
    """Trials of the arms in float64: rows, and all numbers at the end."""
    images = to_device(data(48, 17), CPU, team, torch.float64)
    found = {}
    for arm in ARMS:
        trial = Trial(parse(arm), 3, SETTINGS, images, team)
        rows = train_by_hand(trial)
        certificate = trial.optimizer.certificate()
        found[arm] = {
            "rows": [list(row) for row in timeless(rows)],
            "model": trial.model.state_dict(),
            "average": [trial.optimizer.state[p]["average"] for p in trial.model.parameters()],
            "certificate": [certificate.gradient, certificate.spread],
        }
    return found


def table_of(folder, made, **more):
    arms = [parse(name) for name in COMMAND[1:4:2]]
    return Experiment(arms, (0,), SETTINGS, Store(folder), made.digest, **{"save_every": 0.0, **more})


def tabled(team, folder, files):
    """A whole table, then one that both processes interrupt and go on with."""
    made = load(files, verify=False)
    images, found = to_device(made, CPU, team), {}
    table = table_of(folder / "table", made)
    with table.opened(team) as entries:
        table.train(entries, images, team, lambda news: None)
    found["whole"] = to_columns([row for entry in entries for row in timeless(entry.rows)])
    for count in (2, 2, 9):
        told, table = [], table_of(folder / "interrupted", made)

        def tell(news, told=told, count=count):
            told.append(news)
            if len(told) == count:
                raise KeyboardInterrupt

        try:
            with table.opened(team) as entries:
                table.train(entries, images, team, tell)
        except KeyboardInterrupt:
            found.setdefault("stops", []).append(count)
    found["interrupted"] = to_columns([row for entry in entries for row in timeless(entry.rows)])
    return found


def refused(team):
    """How a process ends when the first one cannot do its work, late; the second waits for it."""

    def work():
        time.sleep(0.2)
        raise OSError("it cannot be done")

    try:
        team.on_first(work)
    except (OSError, SystemExit) as error:
        return repr(error)


def script(folder, files):
    torch.set_num_threads(1)
    with process_group(CPU) as team:
        rank = distributed.get_rank()
        assert team == World(rank, 2)
        norms = {
            momentum: normed(JointBatchNorm2d(3, momentum=momentum), lambda x: x[4 * rank : 4 * rank + 4])
            for momentum in (0.1, None)
        }
        half = JointBatchNorm2d(3)(norm_batches()[0][0][4 * rank : 4 * rank + 4].bfloat16())
        found = {"norms": norms, "half": half.detach(), "trials": trained(team)}
        found |= {"table": tabled(team, folder, files), "heard": team.broadcast("news" if rank == 0 else None)}
        found |= {"first": team.on_first(lambda: rank), "refused": refused(team)}
        found["sum"] = team.sum_(torch.tensor([1.0, rank])).tolist()
        torch.save(found, folder / f"{rank}.pt")
    assert not distributed.is_initialized()


# --- what is to be seen


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"), 80, 17)


@pytest.fixture(scope="module")
def both(tmp_path_factory, files):
    """What the two processes found."""
    from processes import torchrun  # not there for the script

    folder = tmp_path_factory.mktemp("both")
    _, complaints = torchrun(__file__, folder, files, environment=ENVIRONMENT)
    assert complaints == ""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.some(1)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_joint_batchnorm_is_batchnorm_of_the_whole_batch(both, momentum):
    expected = normed(nn.BatchNorm2d(3, momentum=momentum), lambda x: x)
    zero, one = (found["norms"][momentum] for found in both)
    near = {"rtol": 1e-12, "atol": 1e-12}
    for name in ("outputs", "inputs' gradients"):
        for k in range(3):
            torch.testing.assert_close(torch.cat([zero[name][k], one[name][k]]), expected[name][k], **near)
    for name, gradient in expected["gradients"].items():  # DDP adds them up (and divides by 2)
        torch.testing.assert_close(zero["gradients"][name] + one["gradients"][name], gradient, **near)
    assert bits(zero["statistics"]) == bits(one["statistics"])
    torch.testing.assert_close(zero["statistics"], expected["statistics"], **near)
    torch.testing.assert_close(torch.cat([zero["evaluated"], one["evaluated"]]), expected["evaluated"], **near)


def test_joint_batchnorm_in_half_precision(both):
    half = torch.cat([found["half"] for found in both])
    assert half.dtype == torch.bfloat16
    expected = nn.BatchNorm2d(3)(norm_batches()[0][0].bfloat16().float())
    torch.testing.assert_close(half.float(), expected, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("arm", ARMS)
def test_two_processes_train_as_one(both, arm):
    """The same global batch, so the same gradients; the same seed, so the same s: nobody talks about it."""
    zero, one = (found["trials"][arm] for found in both)
    assert bits(zero) == bits(one)
    alone = trained(World())[arm]
    for name in ("model", "average"):
        torch.testing.assert_close(zero[name], alone[name], rtol=0, atol=1e-10)
    assert zero["certificate"] == pytest.approx(alone["certificate"], rel=1e-9)
    for row, other in zip(zero["rows"], alone["rows"], strict=True):
        assert row[:4] == other[:4]
        assert row[4:] == pytest.approx(other[4:], rel=1e-8)


def test_a_team_is_interrupted_and_goes_on(both):
    for found in both:
        assert found["table"]["stops"] == [2, 2]
        assert found["table"]["interrupted"] == found["table"]["whole"]
        assert len(found["table"]["whole"]["rows"]) == 4
    assert both[0]["table"] == both[1]["table"]


def test_what_the_first_says_all_hear(both):
    assert [found["heard"] for found in both] == ["news"] * 2
    assert [found["first"] for found in both] == [0, 0]
    assert [found["refused"] for found in both] == ["OSError('it cannot be done')", "SystemExit(1)"]
    assert [found["sum"] for found in both] == [[2.0, 1.0]] * 2


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_the_command_by_torchrun_killed_and_started_again(both, files, tmp_path):
    """One of its processes is killed: all of them end, and the next ones go on."""
    given = arguments(files, tmp_path, *COMMAND)
    process = start(*given, team=2)
    try:
        kept = tmp_path / "trials" / "sgdm+exponential_seed_0.pt"
        end = time.monotonic() + 60
        while not kept.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)
        workers = children(process.pid)
        assert len(workers) == 2
        os.kill(random.Random(0).choice(workers), signal.SIGKILL)
    finally:
        code, _, _ = finish(process)
    assert code != 0
    assert not (tmp_path / "trials" / "adamw+uniform_seed_0.pt").exists()

    code, out, err = finish(start(*given, team=2))
    assert (code, err) == (0, "")
    assert out.count("sgdm+exponential seed 0  epoch 2/2") <= 1  # said once, if it was not over before
    assert out.count("adamw+uniform seed 0  epoch 2/2") == 1
    assert out.count("Files: ") == 1
    found = recorded(tmp_path)
    assert found["complete"]
    assert found["circumstances"]["processes"] == 2
    whole = both[0]["table"]["whole"]
    at = whole["columns"].index("seconds")
    assert found["rows"] == [row[:at] + row[at + 1 :] for row in whole["rows"]]


@pytest.mark.slow
def test_the_command_by_torchrun_killed_at_any_moment(files, tmp_path, capsys):
    """Ten times, one of the two at random; the reference is the same command left alone."""
    rng, runs, good = random.Random(2), 10, 0
    begin = time.monotonic()
    assert finish(start(*arguments(files, tmp_path / "whole", *COMMAND), team=2))[0] == 0
    duration = time.monotonic() - begin
    for i in range(runs):
        given = arguments(files, tmp_path / str(i), *COMMAND)
        process = start(*given, team=2)
        time.sleep(rng.uniform(0.2, 1) * duration)
        workers = children(process.pid) if process.poll() is None else []
        if workers:
            os.kill(rng.choice(workers), signal.SIGKILL)
        finish(process)
        code, _, err = finish(start(*given, team=2))
        good += (code, err) == (0, "") and recorded(tmp_path / str(i))["rows"] == recorded(tmp_path / "whole")["rows"]
    with capsys.disabled():
        print(f"\n{good} of {runs} killed teams end with the numbers of one that was not")
    assert good == runs


# --- without processes


def test_a_team_of_one_is_nobody_to_talk_to(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with process_group(CPU) as team:
        assert team == World() == World(0, 1)
    assert not distributed.is_initialized()
    model = nn.Linear(2, 2)
    assert team.wrap(model) is model
    assert team.batch_norm is nn.BatchNorm2d
    assert team.broadcast([1]) == [1]
    assert team.sum_(torch.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_shares_make_the_whole(size):
    parts = [World(rank, size).share(32) for rank in range(size)]
    assert [i for first, count in parts for i in range(first, first + count)] == list(range(32))
    tests = [to_device(data(8, 11), CPU, World(rank, size)) for rank in range(size)]
    labels = sorted(int(label) for images in tests for _, truth in images.tests for label in truth)
    assert labels == sorted(data(8, 11).test_labels.tolist())
    assert all(images.test_size == 11 for images in tests)


def test_a_process_without_test_images_adds_nothing():
    """More processes than images to test on: a short try on many GPUs."""
    images, tally = to_device(data(8, 1), CPU, World(1, 2)), torch.zeros(2, dtype=torch.float64)
    model = ResNet18(width=1).eval()
    with torch.no_grad():
        for part in images.tests:
            judge(model, *part, tally)
    assert tally.tolist() == [0, 0]


if __name__ == "__main__":
    script(Path(sys.argv[1]), Path(sys.argv[2]))
