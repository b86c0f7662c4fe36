"""Several processes are one: with FSDP2, whose checkpoints go to other numbers of processes, and with DDP.

FSDP1 and ZeRO give an optimizer a part of the parameters and no way to the others: averages, certificates and joint
norms would be every process's own, so they are refused.
"""

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from logged import read
from logged import steps as logged_steps
from o2nc.logger import CertificateLogger
from processes import NO_FSDP2, needs_fsdp2, torchrun
from shards_worker import LATER, OPTIMIZERS, STEPS, converted, diagnosed, learning_rate, make, summary, train

TESTS = Path(__file__).parent.parent
SAMPLE = ("AdamW", "AdamW offload", "CoinBetting", "OriginalO2NC")
every_optimizer = pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS]
)


def launch(folder, processes, names, *tasks):
    """Run tasks in so many processes and return what each has found, by task."""
    torchrun(TESTS / "shards_worker.py", folder, "|".join(names), *tasks, processes=processes, seconds=300)
    return [[torch.load(folder / f"{task}-{processes}-{rank}.pt") for rank in range(processes)] for task in tasks]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    """2 processes train; 2 save and go on; 1 loads, saves and goes on; 2 load that. With those that are asked for."""
    if NO_FSDP2:
        pytest.skip(NO_FSDP2)
    folder = tmp_path_factory.mktemp("shards")
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    names = [name for name in OPTIMIZERS if name in asked] or SAMPLE[:1]
    equal, saved = launch(folder, 2, names, "equal", "save")
    (by_1,), (by_2,) = (launch(folder, processes, names, "load") for processes in (1, 2))
    return {"folder": folder, "equal": equal, "saved by 2": saved, "loaded by 1": by_1, "loaded by 2": by_2}


def difference(a, b):
    """Return the largest difference between what two runs have found."""
    assert a.keys() == b.keys()
    leaves = zip(tree_leaves([a[key] for key in a]), tree_leaves([b[key] for key in a]), strict=True)
    return max(float((torch.as_tensor(x) - torch.as_tensor(y)).abs().max()) for x, y in leaves)


def alone(name, steps, **more):
    model, optimizer = make(name, **more)
    train(model, optimizer, 0, steps)
    return summary(model, optimizer)


@every_optimizer
def test_two_processes_equal_one(runs, name):
    """Parameters, x̄, output, certificates as a whole and by parameter, and progress; on both alike."""
    first, second = (rank[name] for rank in runs["equal"])
    assert difference(first, alone(name, STEPS)) < 1e-13
    assert difference(first, second) == 0
    assert all(map(torch.equal, [first["restored"][i] for i in first["at"]], first["x"]))


WAYS = {"converted": None, "exchanged": "ScaledSGDM", "compiled": "BallOGD", "evaluated": "ScaledSGDM"}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_done_to_the_model_does_not_disturb_the_run(runs, way):
    """Converted; sharded after the optimizer was made, as by accelerate; compiled; evaluated at x̄ in between."""
    expected = alone(WAYS[way], STEPS) if WAYS[way] else converted()
    assert difference(runs["equal"][0][way], expected) < 1e-13


@every_optimizer
def test_state_is_of_the_local_shard_and_saved_as_dtensors(runs, name):
    """x̄, ḡ and all of the parameter's shape; in a checkpoint they are placed like the parameter."""
    for rank, parts in ((0, [(4, 5), (4,), (2, 7), (2,)]), (1, [(3, 5), (3,), (1, 7), (1,)])):
        found = runs["equal"][rank][f"{name}, kept"]
        assert [part for part, *_ in found] in (parts, parts[::2], [])
        assert bool(found) == ("no averages" not in name and "nothing of ours" not in name)
        for part, shapes, placed in found:
            assert set(shapes.values()) <= {part, ()}
            assert placed == {key for key, shape in shapes.items() if shape == part}


def test_shards_are_diagnosed_together(runs):
    """Displacements of whole parameters, and one learning rate for all processes."""
    (first, second), whole = (rank["diagnosed"] for rank in runs["equal"]), diagnosed()
    assert first == second
    assert first["verdict"] == whole["verdict"] != "too early"
    assert first["numbers"] == pytest.approx(whole["numbers"], rel=1e-9)


def test_the_first_process_logs_for_all(runs, tmp_path):
    """The norms are those of all shards; logs that began before the processes knew of each other have one writer."""
    model, optimizer = make("ScaledSGDM")
    with CertificateLogger(optimizer, tmp_path / "alone.csv", every=2) as log:
        train(model, optimizer, 0, STEPS)
    for a, b in zip(read(runs["folder"] / "log of 0.csv"), read(log.path), strict=True):
        assert a.verdict == b.verdict
        assert a[2:] == pytest.approx(b[2:], rel=1e-12, nan_ok=True)
    assert not (runs["folder"] / "log of 1.csv").exists()
    assert logged_steps(runs["folder"] / "early.csv") == [2, 4]


def test_evaluations_are_at_the_average(runs):
    """FSDP2 keeps the root's weights gathered after an evaluation."""
    found = runs["equal"][0]
    model, optimizer = make("ScaledSGDM")
    train(model, optimizer, 0, STEPS)
    with optimizer.averaged():
        expected = model(torch.ones(1, 5).double()).sum().item()
    assert found["loss at the average"] == pytest.approx(expected, rel=1e-12)
    for x, y in zip(found["shipped"], optimizer.averaged_state_dict(model).values(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


def test_complex_parameters_in_shards_are_refused(runs):
    assert "must be real" in runs["equal"][0]["complex"]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=needs_fsdp2)])
def test_shards_by_tensor(tmp_path, processes):
    """Tensor parallelism alone, and below FSDP2 on a mesh of 2 × 2; a checkpoint says at once what was saved."""
    names = OPTIMIZERS if processes == 2 else SAMPLE
    (found,) = launch(tmp_path, processes, names, "tensors")
    for name in names:
        expected = alone(name, STEPS, width=8)
        for run in (run for rank in found for run in rank[name]):
            assert difference(run, expected) < 1e-13


@every_optimizer
def test_checkpoints_continue_in_other_numbers_of_processes(runs, name):
    """2 → 1 → 2: the numbers of the unbroken run up to the order of a few sums; with 2 again, x and x̄ bitwise."""
    unbroken = runs["saved by 2"][0][name]
    assert difference(unbroken, alone(name, STEPS + LATER)) < 1e-13
    for run in ("loaded by 1", "loaded by 2"):
        assert difference(runs[run][0][name], unbroken) < 1e-13
    for key in {"x", "average"} & unbroken.keys():
        assert all(map(torch.equal, runs["loaded by 2"][0][name][key], unbroken[key]))


@every_optimizer
def test_what_is_loaded_says_at_once_what_was_saved(runs, name):
    """By torch.distributed.checkpoint, flattened too, by a deep copy (as async_save makes), by a full state dict."""
    saved, by_1, by_2 = (runs[run][0] for run in ("saved by 2", "loaded by 1", "loaded by 2"))
    loaded = [run[f"{name}, {kind}"] for run in (by_1, by_2) for kind in ("saved", "flat")]
    for found in (*loaded, saved[f"{name}, copied"], saved[f"{name}, full"]):
        assert difference(found, saved[f"{name}, at once"]) < 1e-13


needs_processes = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without processes")


@needs_processes
def test_two_processes_with_half_batches_are_one_with_the_whole(tmp_path):
    """DDP: nothing but gradients is communicated; s_n is known to every rank, and all ranks agree bitwise."""
    ((first, second),) = launch(tmp_path, 2, OPTIMIZERS, "replicated")
    for name in OPTIMIZERS:
        assert difference(first[name], second[name]) == 0
        assert difference(first[name], alone(name, STEPS)) < 1e-11
    assert first["find_lr"] == second["find_lr"]
    lr, losses = learning_rate(make("SGD")[0], lambda x: x)
    assert first["find_lr"][0] == pytest.approx(lr, rel=1e-6)
    assert first["find_lr"][1] == pytest.approx(losses, rel=1e-6)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("partial"), 2, ["SGD"], "partial")[0]


@needs_processes
@pytest.mark.parametrize("name", ["averages", "extended", "joint norm", "OriginalO2NC"])
@pytest.mark.parametrize("way", ["FSDP1", "FSDP1 after", "ZeRO"])
def test_a_part_of_the_parameters_is_refused(outcomes, way, name):
    for outcome in (rank[f"{way}, {name}"] for rank in outcomes):
        assert "has only a part of the parameters" in outcome
        assert {"F": "FSDP1", "Z": "ZeroRedundancyOptimizer"}[way[0]] in outcome
        assert "fully_shard" in outcome


@needs_processes
@pytest.mark.parametrize("name", ["by coordinate", "no averages"])
@pytest.mark.parametrize("way", ["FSDP1", "ZeRO"])
def test_what_is_played_by_coordinate_is_right_on_a_part(outcomes, way, name):
    assert [rank[f"{way}, {name}"] for rank in outcomes] == ["same", "same"]
