"""The folder of a run: its lock, its settings, its checkpoints, whole, damaged or unreadable."""

import builtins
import errno
import io
import json
import os
import pickle
import random
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import filelock
import pytest
import torch

from cifar10_made import (
    ARMS,
    SMALL,
    arguments,
    bits,
    call,
    images,
    make_table,
    outcome,
    run_table,
    start,
    stop_after,
    timeless,
    train_by_hand,
    undisturbed,
    wait_for,
    write_files,
)
from o2nc_experiments.cifar10 import checkpoints as store_module
from o2nc_experiments.cifar10.arms import parse
from o2nc_experiments.cifar10.checkpoints import Store
from o2nc_experiments.cifar10.training import Trial

pytestmark = pytest.mark.usefixtures("one_thread")

TRIAL = "sgdm+exponential seed 0"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("whole"))


# --- the lock


def test_the_lock_is_let_go_after_an_error(tmp_path, monkeypatch):
    known, make = [], filelock.FileLock  # a lock that nobody knows any more is let go in any case
    monkeypatch.setattr(filelock, "FileLock", lambda *given, **more: known.append(make(*given, **more)) or known[-1])
    store = Store(tmp_path / "deep" / "folder")
    with pytest.raises(ZeroDivisionError), store.locked():
        raise ZeroDivisionError
    with store.locked(), pytest.raises(OSError, match="another process"), Store(store.folder).locked():
        pass
    with store.locked():
        pass


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path, monkeypatch, capsys):
    files = write_files(tmp_path / "files")
    given = arguments(files, tmp_path, "--arm", "sgdm", "--seeds", 1, "--epochs", 10_000, "--save-every", 0)
    first = start(*given)
    try:
        wait_for((tmp_path / "trials" / "sgdm_seed_0.pt").exists, first)
        said = f"{tmp_path}: another process is at work in this folder; choose another --out"
        monkeypatch.setattr(Trial, "step", stop_after(1, AssertionError("it was trained")))
        assert call(monkeypatch, capsys, *given) == (1, "", f"o2nc: {said}\n")
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()
    with Store(tmp_path).locked():
        pass


# --- the settings


@pytest.mark.parametrize(
    ("changes", "there", "here"),
    [
        ({"epochs": 4}, "epochs 3", "epochs 4"),
        ({"batch": 16}, "batch 32", "batch 16"),
        ({"average": 0.99}, "average 0.9", "average 0.99"),
        ({"width": 3}, "width 2", "width 3"),
        ({"limit": 80}, "limit None", "limit 80"),
        ({"digest": "other"}, "data made", "data other"),
        ({"epochs": 4, "width": 3}, "epochs 3, width 2", "epochs 4, width 3"),
    ],
)
def test_other_settings_are_refused_by_name(changes, there, here, tmp_path):
    make_table(tmp_path).store.settle({**asdict(SMALL), "data": "made"})
    Store(tmp_path).save("x", {})
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))}
    own = {key: value for key, value in changes.items() if key == "digest"}
    other = replace(SMALL, **{key: value for key, value in changes.items() if key != "digest"})
    with pytest.raises(OSError) as info:
        run_table(
            make_table(tmp_path, ARMS[1:], settings=other, **own), stop_after(1, AssertionError("it was trained"))
        )
    assert str(info.value) == f"{tmp_path} has trials with {there}, not {here}; choose another --out"
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))} == before


@pytest.mark.parametrize("contents", ["", "{", "[]", "null", '"x"', "\x00\x01", '{"epochs"'])
def test_damaged_settings_are_refused(contents, tmp_path):
    Store(tmp_path).save("x", {})
    (tmp_path / "settings.json").write_text(contents)
    with pytest.raises(OSError) as info:
        run_table(make_table(tmp_path))
    assert str(info.value) == f"{tmp_path / 'settings.json'} is damaged; choose another --out"


def test_settings_claim_nothing_before_there_is_a_checkpoint(tmp_path):
    store = Store(tmp_path)
    store.settle({"epochs": 1})
    store.settle({"epochs": 2})
    assert json.loads((tmp_path / "settings.json").read_text()) == {"epochs": 2}
    store.save("x", {})
    with pytest.raises(OSError, match="has trials with epochs 2, not epochs 1"):
        store.settle({"epochs": 1})


def test_checkpoints_know_their_settings_themselves(whole, tmp_path):
    run_table(make_table(tmp_path, ARMS[:1]))
    (tmp_path / "settings.json").unlink()
    other = make_table(tmp_path, ARMS[:1], settings=replace(SMALL, epochs=4))
    with pytest.raises(OSError, match=f"^{re.escape(TRIAL)} was begun with other settings in "):
        run_table(other, stop_after(1, AssertionError("it was trained")))
    with pytest.raises(OSError, match="begun with other settings"):  # nor beside it
        run_table(make_table(tmp_path, ARMS[1:2], settings=other.settings))
    assert json.loads((tmp_path / "settings.json").read_text())["epochs"] == 4
    (tmp_path / "settings.json").unlink()
    table = make_table(tmp_path)
    assert outcome(table, run_table(table)) == whole


@pytest.mark.parametrize(
    ("place", "kind", "said"),
    [
        ("trials", "file", "trials is there, but is no folder"),
        ("trials", "link", "trials is there, but is no folder"),
        ("settings.json", "folder", "settings.json cannot be read: Is a directory"),
        ("", "link", "run is there, but is no folder"),
        ("", "file", "run is there, but is no folder"),
    ],
)
def test_what_is_in_the_way_is_named_before_anything_is_trained(place, kind, said, tmp_path):
    folder = tmp_path / "run"
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    {"file": path.touch, "folder": path.mkdir, "link": lambda: path.symlink_to(tmp_path / "nowhere")}[kind]()
    with pytest.raises(OSError) as info:
        run_table(make_table(folder), stop_after(1, AssertionError("it was trained")))
    assert said in str(info.value)
    assert str(info.value).endswith("; choose another --out")


# --- checkpoints


@pytest.mark.parametrize(
    "arm", [*ARMS, "sgdm(momentum=0.9)", "coin-betting+gamma", "adagrad(diagonal=False)+weibull"]
)
def test_a_state_comes_back_to_the_bit(arm, tmp_path):
    trial, store = Trial(parse(arm), 3, SMALL, images()), Store(tmp_path)
    train_by_hand(trial, 1)
    store.save("x", trial.state())
    other = Trial(parse(arm), 3, SMALL, images())
    assert bits(other.state()) != bits(trial.state())
    other.restore(store.load("x"))
    assert bits(other.state()) == bits(trial.state())
    assert timeless(train_by_hand(other)) == timeless(train_by_hand(trial))
    assert bits(other.state()) == bits(trial.state())
    assert trial.finished
    assert other.finished


def test_names_of_trials_become_names_of_files(tmp_path):
    store = Store(tmp_path)
    names = ["sgdm seed 0", "sgdm seed 1", "sgdm(lr=0.1, momentum=0)+weibull(shape=1.5) seed 10", "../../x", "/etc/x"]
    names += ["a\\b", "c:d", "nul\x00l", "*?<>|\"'"]
    for name in names:
        store.save(name, {"name": name})
    assert [store.load(name)["name"] for name in names] == names
    assert len(list((tmp_path / "trials").iterdir())) == len(names)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["trials", *os.listdir(tmp_path / "trials")])
    assert store.load("none of them") is None


# --- damaged checkpoints


@pytest.fixture
def store(tmp_path):
    """A folder with a trial that was stopped after an epoch, and the path of its checkpoint."""
    table = make_table(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run_table(table, stop_after(2))
    path = tmp_path / "run" / "trials" / "sgdm+exponential_seed_0.pt"
    assert path.is_file()
    return table, path


class Bomb:
    """Calls a function when it is unpickled by whoever lets it."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def damages(good, state, mark, folder):
    """Files that are no checkpoints of this trial, by name."""
    rng = random.Random(0)
    yield "empty", b""
    yield "text", b"not a checkpoint\n"
    yield "zeros", bytes(len(good))
    yield "html", b"<html>" + bytes(5000)
    yield "zip", b"PK\x03\x04" + rng.randbytes(3000)
    yield "end first", good[::-1]
    for share in (0.001, 0.3, 0.7, 0.999):
        yield f"first {share}", good[: int(share * len(good))]
    yield "last half", good[len(good) // 2 :]
    yield "a hole", good[: len(good) // 2] + bytes(4096) + good[len(good) // 2 + 4096 :]
    for i in range(40):
        yield f"random {i}", rng.randbytes(rng.randrange(1, 200))
        yield f"like a pickle {i}", b"\x80\x02" + rng.randbytes(rng.randrange(1, 50))
    for name, thing in (("list", [1]), ("nothing", None), ("model", {"model": {}}), ("bomb", Bomb(mark))):
        yield f"pickled {name}", pickle.dumps(thing)
        torch.save(thing, folder / "other.pt")
        yield f"saved {name}", (folder / "other.pt").read_bytes()
    store = Store(folder / "other")
    state = {key: value for key, value in state.items() if key not in ("format", "trial")}
    for name, form, trial in (("another format", 2, TRIAL), ("another trial", 1, "sgdm seed 0")):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(store_module, "FORMAT", form)
            store.save(trial, state)
        yield name, next((folder / "other" / "trials").iterdir()).read_bytes()
        shutil.rmtree(folder / "other" / "trials")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_damaged_checkpoint_is_refused_with_its_path_and_advice(store, whole, tmp_path):
    table, path = store
    state = table.store.load(TRIAL)
    (tmp_path / "other").mkdir()
    escaped = {}
    for name, contents in damages(path.read_bytes(), state, tmp_path / "mark", tmp_path):
        path.write_bytes(contents)
        try:
            table.store.load(TRIAL)
            escaped[name] = "was taken"
        except OSError as error:
            said = str(error)
            if not (said.startswith(f"{path} is ") and said.endswith("; delete it to begin this trial again")):
                escaped[name] = said
            if "\n" in said or len(said) > len(str(path)) + 200 or "weights_only" in said:
                escaped[name] = said
        except Exception as error:
            escaped[name] = repr(error)
    assert not escaped
    assert not (tmp_path / "mark").exists()
    with pytest.raises(OSError, match="delete it to begin this trial again"):
        run_table(table, stop_after(1, AssertionError("it was trained")))
    path.unlink()
    assert outcome(table, run_table(table)) == whole


def without(key):
    return lambda state: state.pop(key)


def emptied(key):
    return lambda state: state[key].clear()


OTHER = {
    **{f"no {key}": without(key) for key in ("model", "optimizer", "rows", "spans", "settings", "epoch")},
    "another epoch": lambda state: state.update(epoch=1),
    "a short row": lambda state: state["rows"][0].pop(),
    "another trial's rows": lambda state: state["rows"][0].__setitem__(1, 7),
    "no spans but numbers": lambda state: state.update(spans=[1.0]),
    "nothing in the model": emptied("model"),
    "nothing in the optimizer": emptied("optimizer"),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_checkpoint_with_other_contents_is_refused_like_a_damaged_one(name, store):
    table, path = store
    state = table.store.load(TRIAL)
    OTHER[name](state)
    table.store.save(TRIAL, state)
    with pytest.raises(OSError) as info:
        run_table(table, stop_after(1, AssertionError("it was trained")))
    assert str(info.value) == f"{path} is no checkpoint of {TRIAL}; delete it to begin this trial again"


def test_a_stranger_among_the_checkpoints_is_refused(store):
    table, path = store
    shutil.copy(path, path.with_name("copy.pt"))
    with pytest.raises(OSError, match=r"copy\.pt is no checkpoint of this folder; delete it"):
        run_table(table)


def test_a_flipped_bit_is_noticed(store):
    """Disks and copies do that; a checkpoint is taken with every number as it was saved, or not at all."""
    table, path = store
    good, rng = bytearray(path.read_bytes()), random.Random(0)
    expected = bits(table.store.load(TRIAL))
    taken = []
    for _ in range(50):
        at, bit = rng.randrange(len(good)), 1 << rng.randrange(8)
        good[at] ^= bit
        path.write_bytes(good)
        good[at] ^= bit
        try:
            state = table.store.load(TRIAL)
        except OSError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            if bits(state) != expected:
                taken.append(at)
    assert taken == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(number, store, monkeypatch):
    """It may be whole: nobody should be told to delete it."""
    table, path = store
    opened = io.open

    def refuse(file, *given, **named):
        if str(file) == str(path):
            raise OSError(number, os.strerror(number), str(path))
        return opened(file, *given, **named)

    with monkeypatch.context() as patched:
        for module in (io, builtins):
            patched.setattr(module, "open", refuse)
        with pytest.raises(OSError) as info:
            table.store.load(TRIAL)
    assert str(path) in str(info.value)
    assert os.strerror(number) in str(info.value)
    assert "delete" not in str(info.value)
    assert table.store.load(TRIAL) is not None


def test_a_torn_part_is_ignored(store, whole):
    table, path = store
    part = path.with_name(path.name + ".part")
    part.write_bytes(path.read_bytes()[:1000])
    (path.parent.parent / "settings.json.part").write_text("{")
    (path.parent / "adamw+uniform_seed_0.pt.part").write_bytes(b"")
    assert outcome(table, run_table(table)) == whole
    assert not part.exists()
