"""FSDP2: parameters in shards step as if they were whole, and checkpoints go to other numbers of processes."""

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from fsdp_worker import LATER, OPTIMIZERS, STEPS, make, summary, train
from processes import NO_FSDP2, needs_fsdp2, torchrun

WORKER = Path(__file__).with_name("fsdp_worker.py")
NAMES = list(OPTIMIZERS)
WITHOUT_AVERAGES = ("sgdm, no averages", "AdamW, scaled")


def launch(folder, processes, *tasks):
    """Run tasks in so many processes and return what each has found, by task."""
    torchrun(WORKER, folder, *tasks, processes=processes)
    return [[torch.load(folder / f"{task}-{processes}-{rank}.pt") for rank in range(processes)] for task in tasks]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """2 processes train; 2 save and go on; 1 loads, saves and goes on; 2 load that."""
    if NO_FSDP2:
        pytest.skip(NO_FSDP2)
    folder = tmp_path_factory.mktemp("fsdp")
    equal, saved = launch(folder, 2, "equal", "save")
    (by_1,), (by_2,) = (launch(folder, processes, "load") for processes in (1, 2))
    return {"equal": equal, "saved by 2": saved, "loaded by 1": by_1, "loaded by 2": by_2}


def difference(a, b):
    """Return the largest difference between what two runs have found."""
    beside = {"shapes", "at once"}
    assert a.keys() - beside == b.keys() - beside
    pairs = [(a[key], b[key]) for key in a.keys() - beside]
    leaves = [(x, y) for u, v in pairs for x, y in zip(tree_leaves(u), tree_leaves(v), strict=True)]
    return max(float((torch.as_tensor(x) - torch.as_tensor(y)).abs().max()) for x, y in leaves)


def alone(name, steps, **more):
    model, optimizer = make(name, **more)
    train(model, optimizer, 0, steps)
    return summary(model, optimizer)


@pytest.mark.some(7)
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_equal_one(runs, name):
    """Parameters, x̄, output, certificates as a whole and by parameter, and progress."""
    found = runs["equal"][0][name]
    assert difference(found, alone(name, STEPS)) < 1e-13
    for x, y in zip(found["parameters"], found.get("restored", found["parameters"]), strict=True):
        assert torch.equal(x, y)


def test_parameters_may_be_sharded_after_the_optimizer_was_made(runs):
    """As accelerate does: it puts the sharded ones in the places of the others."""
    assert difference(runs["equal"][0]["exchanged"], alone("sgdm", STEPS)) < 1e-13


def test_a_compiled_step_takes_shards(runs):
    assert difference(runs["equal"][0]["compiled"], alone("ball", STEPS)) < 1e-13


def test_evaluations_at_the_average_do_not_disturb_the_run(runs):
    """FSDP2 keeps the root's weights gathered after an evaluation; the next step must not see x̄ in them."""
    found = runs["equal"][0]
    assert difference(found["evaluated"], alone("sgdm", STEPS)) < 1e-13
    model, optimizer = make("sgdm")
    train(model, optimizer, 0, STEPS)
    with optimizer.averaged():
        expected = model(torch.ones(1, 5).double()).sum().item()
    assert found["loss at the average"] == pytest.approx(expected, rel=1e-12)


def test_complex_parameters_in_shards_are_refused(runs):
    assert "must be real" in runs["equal"][0]["complex"]


def test_a_wrapper_that_is_of_our_class_answers_for_all_processes(runs):
    """As Lightning's."""
    assert difference(runs["equal"][1]["wrapped"], runs["equal"][0]["compiled"]) == 0


@pytest.mark.parametrize(
    ("task", "processes"), [("columns", 2), pytest.param("planes", 4, marks=[needs_fsdp2, pytest.mark.slow])]
)
def test_shards_by_tensor(tmp_path, task, processes):
    """Tensor parallelism alone, and below FSDP2 on a mesh of 2 × 2; a checkpoint says at once what was saved."""
    (found,) = launch(tmp_path, processes, task)
    for name in found[0]:
        expected = alone(name, STEPS, width=8)
        for rank in found:
            for run in rank[name]:
                assert difference(run, expected) < 1e-13


@pytest.mark.parametrize("name", NAMES)
def test_all_processes_find_the_same(runs, name):
    first, second = (rank[name] for rank in runs["equal"])
    assert difference(first, second) == 0


@pytest.mark.parametrize("name", NAMES)
def test_state_is_sharded_like_the_parameters(runs, name):
    """Every tensor of the state that is ours has the shape of the local part, or is one number."""
    for rank, parts in ((0, [(4, 5), (4,), (2, 7), (2,)]), (1, [(3, 5), (3,), (1, 7), (1,)])):
        found = runs["equal"][rank][name]["shapes"]
        assert [part for part, _ in found] == parts
        has_own_step = name in ("AdamW, scaled", "RAdam, extended", "RAdam, offloaded", "Muon")  # on DTensors
        torchs = {"exp_avg", "exp_avg_sq", "momentum_buffer"} if has_own_step else ()
        shapes = [(part, shape) for part, state in found for key, shape in state.items() if key not in torchs]
        assert all(shape in (part, ()) for part, shape in shapes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("run", ["loaded by 1", "loaded by 2"])
def test_checkpoints_continue_in_other_numbers_of_processes(runs, name, run):
    """2 → 1 → 2: the same numbers as without a stop, up to the order of a few sums."""
    unbroken = runs["saved by 2"][0][name]
    assert difference(runs[run][0][name], unbroken) < 1e-13
    assert difference(unbroken, alone(name, STEPS + LATER)) < 1e-13


@pytest.mark.parametrize("name", NAMES)
def test_the_same_number_of_processes_continues_to_the_bit(runs, name):
    """2 → 1 → 2 against 2 without a stop: gradients are made by the same two processes, so parameters and x̄ agree."""
    again, unbroken = (runs[run][0][name] for run in ("loaded by 2", "saved by 2"))
    for key in ("parameters", "averages"):
        assert (key in again) == (key == "parameters" or name not in WITHOUT_AVERAGES)
        for x, y in zip(again.get(key, []), unbroken.get(key, []), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_loaded_says_at_once_what_was_saved(runs, name):
    """By torch.distributed.checkpoint, by a deep copy (which async_save makes), and by a full state dict."""
    saved = runs["saved by 2"][0]
    for found in (runs["loaded by 2"][0][name]["at once"], saved[f"{name}, copied"], saved[f"{name}, full"]):
        assert difference(found, saved[name]["at once"]) < 1e-13
