"""A table ends with the same numbers however often it was stopped: by an exception, a full disk or SIGKILL."""

import builtins
import errno
import io
import json
import math
import os
import pickle
import random
import re
import shutil
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from cifar10_made import (
    SMALL,
    arguments,
    bits,
    call,
    finish,
    images,
    recorded,
    start,
    timeless,
    train_by_hand,
    write_files,
)
from o2nc.experiments import record
from o2nc.experiments.cifar10 import store as store_module
from o2nc.experiments.cifar10 import table as table_module
from o2nc.experiments.cifar10.arms import parse
from o2nc.experiments.cifar10.data import load
from o2nc.experiments.cifar10.feed import to_device
from o2nc.experiments.cifar10.rows import Row, tidy, untidy
from o2nc.experiments.cifar10.store import Store
from o2nc.experiments.cifar10.table import Table, union
from o2nc.experiments.cifar10.team import Team
from o2nc.experiments.cifar10.trial import Trial

pytestmark = pytest.mark.usefixtures("one_thread")

ARMS = ("sgdm+exponential", "scale-free+exponential", "adamw+uniform")
SHORT = replace(SMALL, epochs=2)
TRIAL = "sgdm+exponential seed 0"


def make(folder, arms=ARMS, seeds=(0,), settings=SMALL, digest="made", **more):
    return Table([parse(arm) for arm in arms], seeds, settings, Store(folder), digest, **{"save_every": 0, **more})


def run(table, tell=lambda news: None, own=None):
    """Train a table in this process; return what is known of its trials."""
    entries = []
    table.train(images() if own is None else own, Team(), entries, tell)
    return entries


def outcome(table, entries):
    """Everything that must not depend on interruptions: rows but for the time, and the last states."""
    states = {entry.name: table.store.load(entry.name) for entry in entries}
    kept = {name: {key: state[key] for key in ("epoch", "model", "optimizer")} for name, state in states.items()}
    return {entry.name: timeless(entry.rows) for entry in entries}, bits(kept)


@contextmanager
def one_thread():
    """The fixture of this name, for fixtures that live longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcome of a table that nothing has interrupted."""
    table = make(tmp_path_factory.mktemp("whole") / "run")
    with one_thread():
        return outcome(table, run(table))


def stop_after(count, error=KeyboardInterrupt):
    """A function that raises at its call of this number."""
    calls = []

    def function(*_):
        calls.append(1)
        if len(calls) == count:
            raise error

    return function


# --- the state


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


def test_what_is_kept_is_a_copy(tmp_path, monkeypatch):
    """It is written while the training goes on: here only after the next epoch has begun."""
    begun, written = threading.Event(), []
    save, begin = Store.save, Trial.begin_epoch

    def late(self, name, state):
        if state["epoch"] < SMALL.epochs:
            assert begun.wait(30)
            begun.clear()
            time.sleep(0.05)
        written.append(bits({key: state[key] for key in ("epoch", "model", "optimizer")}))
        save(self, name, state)

    def note(self):
        if self.epoch:
            begun.set()
        return begin(self)

    monkeypatch.setattr(Store, "save", late)
    monkeypatch.setattr(Trial, "begin_epoch", note)
    run(make(tmp_path, ARMS[:1]))
    monkeypatch.undo()
    trial = Trial(parse(ARMS[0]), 0, SMALL, images())
    for state in written:
        train_by_hand(trial, 1)
        assert state == bits(trial.state())
    assert len(written) == 3


# --- interruptions


def test_a_table_is_its_trials(whole):
    rows, states = whole
    for arm in ARMS:
        trial = Trial(parse(arm), 0, SMALL, images())
        assert timeless(train_by_hand(trial)) == rows[f"{arm} seed 0"]
        assert bits(trial.state()) == states[f"{arm} seed 0"]


@pytest.mark.parametrize("at", [1, 4, 9])
def test_interrupted_at_the_end_of_an_epoch(at, whole, tmp_path):
    table = make(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(table, stop_after(at))
    told = []
    entries = run(table, told.append)
    assert outcome(table, entries) == whole
    assert len(told) == 10 - at  # the epoch that was interrupted is made again
    assert [news.epochs_left for news in told] == list(range(len(told) - 1, -1, -1))


def test_interrupted_again_and_again_within_epochs(whole, tmp_path, monkeypatch):
    table, step, made, stops = make(tmp_path), Trial.step, [0], 0

    def counted(self):
        made[0] += 1
        if made[0] % 3 == 0:  # an epoch has one or two
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(Trial, "step", counted)
    while True:
        try:
            entries = run(table)
            break
        except KeyboardInterrupt:
            stops += 1
            assert stops < 20
    assert stops >= 5
    assert outcome(table, entries) == whole


def test_rarely_saved_is_only_more_to_do_again(whole, tmp_path, monkeypatch):
    table, saved = make(tmp_path, save_every=math.inf), []
    save = Store.save
    monkeypatch.setattr(Store, "save", lambda *given: (saved.append(given[1]), save(*given)))
    with pytest.raises(KeyboardInterrupt):
        run(table, stop_after(5))
    assert saved == [TRIAL]  # when a trial is over
    told = []
    assert outcome(table, run(table, told.append)) == whole
    assert len(told) == 6
    assert saved == [f"{arm} seed 0" for arm in ARMS]


@pytest.mark.parametrize("at_once", [2, 9])
def test_trials_at_once_do_not_touch_each_other(at_once, whole, tmp_path):
    table = make(tmp_path, at_once=at_once)
    with pytest.raises(KeyboardInterrupt):
        run(table, stop_after(5))
    assert outcome(table, run(table)) == whole


def test_a_finished_trial_is_not_repeated(whole, tmp_path, monkeypatch):
    table = make(tmp_path)
    run(table)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))}
    monkeypatch.setattr(table_module, "Trial", stop_after(1, AssertionError("a trial was begun")))
    entries = run(table, stop_after(1, AssertionError("an epoch was trained")))
    assert outcome(table, entries) == whole
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))} == before


def test_only_what_is_new_is_trained(whole, tmp_path, monkeypatch):
    begun = []

    def note(arm, seed, *rest):
        begun.append((arm.name, seed))
        return Trial(arm, seed, *rest)

    monkeypatch.setattr(table_module, "Trial", note)
    run(make(tmp_path, ARMS[:1]))
    entries = run(make(tmp_path, ARMS[:1], (0, 1)))
    assert [(entry.seed, len(entry.rows)) for entry in entries] == [(0, 3), (1, 3)]
    run(make(tmp_path, ARMS[:2], (1, 0)))
    assert begun == [(ARMS[0], 0), (ARMS[0], 1), (ARMS[1], 1), (ARMS[1], 0)]
    table = make(tmp_path)
    entries = run(table)
    assert begun[4:] == [(ARMS[2], 0)]
    assert outcome(table, entries) == whole


# --- another run's folder


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
    make(tmp_path).store.settle({**asdict(SMALL), "data": "made"})
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))}
    own = {key: value for key, value in changes.items() if key == "digest"}
    other = replace(SMALL, **{key: value for key, value in changes.items() if key != "digest"})
    with pytest.raises(OSError) as info:
        run(make(tmp_path, ARMS[1:], settings=other, **own), stop_after(1, AssertionError("it was trained")))
    assert str(info.value) == f"{tmp_path} has trials with {there}, not {here}; choose another --out"
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))} == before


@pytest.mark.parametrize("contents", ["", "{", "[]", "null", '"x"', "\x00\x01", '{"epochs"'])
def test_damaged_settings_are_refused(contents, tmp_path):
    (tmp_path / "settings.json").write_text(contents)
    with pytest.raises(OSError) as info:
        run(make(tmp_path))
    assert str(info.value) == f"{tmp_path / 'settings.json'} is damaged; choose another --out"


# --- damaged checkpoints


@pytest.fixture
def store(tmp_path):
    """A folder with a trial that was stopped after an epoch, and the path of its checkpoint."""
    table = make(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run(table, stop_after(2))
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
        run(table, stop_after(1, AssertionError("it was trained")))
    path.unlink()
    assert outcome(table, run(table)) == whole


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
    assert outcome(table, run(table)) == whole
    assert not part.exists()


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


# --- a full disk, a dying process

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Killed(BaseException):
    """Stands for SIGKILL: nothing may be done about it."""


def failing(function, count, error):
    """The function, failing at its call of this number."""
    check = stop_after(count, error)

    def wrapper(*given, **named):
        check()
        return function(*given, **named)

    return wrapper


PLACES = {"fsync": (os, "fsync"), "open": (Path, "open"), "replace": (Path, "replace")}


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """The outcome of a shorter table, of four epochs: its files are settings.json, then a checkpoint for each."""
    table = make(tmp_path_factory.mktemp("short") / "run", ARMS[::2], settings=SHORT)
    with one_thread():
        return outcome(table, run(table))


@pytest.mark.parametrize(
    ("place", "at"),
    [("fsync", 1), ("fsync", 2), ("fsync", 3), ("fsync", 5), ("open", 3), ("replace", 1), ("replace", 4)],
)
def test_a_full_disk_stops_the_run_and_costs_nothing(place, at, short, tmp_path, monkeypatch):
    table, (owner, name) = make(tmp_path, ARMS[::2], settings=SHORT), PLACES[place]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing(getattr(owner, name), at, FULL))
        with pytest.raises(OSError) as info:
            run(table)
    path = tmp_path / "settings.json" if at == 1 else tmp_path / "trials" / f"{ARMS[(at - 2) // 2 * 2]}_seed_0.pt"
    assert str(info.value) == f"{path} cannot be written: No space left on device"
    assert not list(tmp_path.rglob("*.part"))
    told = []
    assert outcome(table, run(table, told.append)) == short
    assert len(told) == min(4, 6 - at)  # nothing but what was not kept is made again


@pytest.mark.parametrize(("place", "at"), [("fsync", 1), ("fsync", 3), ("replace", 2), ("replace", 5), ("open", 4)])
def test_a_death_while_writing(place, at, short, tmp_path, monkeypatch):
    table, (owner, name) = make(tmp_path, ARMS[::2], settings=SHORT), PLACES[place]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing(getattr(owner, name), at, Killed))
        with pytest.raises(Killed):
            run(table)
    if place != "open":
        assert len(list(tmp_path.rglob("*.part"))) == 1
    assert outcome(table, run(table)) == short
    assert not list(tmp_path.rglob("*.part"))


# --- processes


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"), 160, 32)


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_disk_that_is_really_full(files, tmp_path):
    """As far as a process can tell: none of its files may have more than 2,000 bytes."""
    import resource

    made = load(files, verify=False)
    settings, own = replace(SMALL, epochs=2), to_device(made, torch.device("cpu"))
    table, other = (make(tmp_path / k, ARMS[:1], settings=settings, digest=made.digest) for k in ("a", "b"))
    expected = outcome(other, run(other, own=own))
    with pytest.raises(KeyboardInterrupt):
        run(table, stop_after(2), own)
    path = tmp_path / "a" / "trials" / "sgdm+exponential_seed_0.pt"
    before = path.read_bytes()
    given = arguments(files, tmp_path / "a", "--arm", ARMS[0], "--seeds", 1, "--epochs", 2, "--save-every", 0)
    process = start(*given, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)))
    code, out, err = finish(process)
    assert code == 1
    assert re.fullmatch(rf"o2nc: {re.escape(str(tmp_path / 'a'))}/\S+ cannot be written: File too large\n", err)
    assert "epoch 2/2" in out
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert outcome(table, run(table, own=own)) == expected


def wait_for(condition, process, seconds=60):
    """Wait until something is so, as long as the process lives."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_second_process_is_refused_until_the_first_is_dead(files, tmp_path, monkeypatch, capsys):
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


def test_the_lock_is_let_go_after_an_error(tmp_path):
    store = Store(tmp_path / "deep" / "folder")
    with pytest.raises(ZeroDivisionError), store.locked():
        raise ZeroDivisionError
    with store.locked(), pytest.raises(OSError, match="another process"), Store(store.folder).locked():
        pass
    with store.locked():
        pass


KILLED = ("--arm", "sgdm+exponential", "--arm", "scale-free+exponential", "--seeds", 1, "--save-every", 0)


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_killed_three_times_it_ends_with_the_same_numbers(files, tmp_path):
    """Each time at a random moment of the epoch after a checkpoint."""
    made, rng = load(files, verify=False), random.Random(0)
    settings = replace(SMALL, epochs=5)
    undisturbed = make(tmp_path / "whole", ARMS[:2], settings=settings, digest=made.digest)
    expected = outcome(undisturbed, run(undisturbed, own=to_device(made, torch.device("cpu"))))
    out = tmp_path / "killed"
    kept = []
    for _ in range(3):
        process = start(*arguments(files, out, *KILLED, "--epochs", 5))
        kept.append(stamps(out))
        wait_for(lambda: stamps(out) != kept[-1], process)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert len(set(kept)) == 3  # every time it went on
    code, _, err = finish(start(*arguments(files, out, *KILLED, "--epochs", 5)))
    assert (code, err) == (0, "")
    found = json.loads((out / "cifar10.json").read_text(encoding="utf-8"))
    assert timeless(untidy(found)) == [row for rows in expected[0].values() for row in rows]
    assert (found["complete"], len(found["rows"])) == (True, 10)
    assert 0 < found["seconds"] < 100
    states = {name: Store(out).load(name) for name in expected[1]}
    for name, state in expected[1].items():
        assert bits({key: states[name][key] for key in state}) == state


def stamps(out):
    """When which checkpoint was written."""
    return tuple(sorted((path.name, path.stat().st_mtime_ns) for path in out.glob("trials/*.pt")))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_killed_at_any_moment_it_ends_with_the_same_numbers(files, tmp_path, capsys):
    """Twenty runs, each killed once between its start and its end, then started again by the same command."""
    rng, runs, good, cut = random.Random(1), 20, 0, 0
    begin = time.monotonic()
    assert finish(start(*arguments(files, tmp_path / "whole", *KILLED, "--epochs", 12)))[0] == 0
    duration = time.monotonic() - begin
    expected = recorded(tmp_path / "whole")
    for i in range(runs):
        out = tmp_path / str(i)
        process = start(*arguments(files, out, *KILLED, "--epochs", 12))
        time.sleep(rng.uniform(0, duration))
        process.kill()
        process.communicate()
        cut += len(stamps(out)) > 0 and not (out / "certificates.svg").exists()
        code, _, err = finish(start(*arguments(files, out, *KILLED, "--epochs", 12)))
        found = recorded(out)
        good += (code, err, found["rows"], found["complete"]) == (0, "", expected["rows"], True)
        shutil.rmtree(out)
    with capsys.disabled():
        print(
            f"\n{good} of {runs} killed runs end with the numbers of one that was not; {cut} were killed in training"
        )
    assert good == runs
    assert cut >= 5


# --- records


def rows_with(*values):
    row = Row("sgdm", 0, 1, 0.01, 0.5, 0.8, 0.6, 0.7, 1.5, 0.25, -0.125, 0.5, 0.75, 2.0)
    return [row._replace(epoch=e, train_loss=v, test_loss=v, gradient=v) for e, v in enumerate(values, 1)]


def test_rows_survive_json():
    rows = rows_with(0.1, 1e-300, 5e-324, 1.7976931348623157e308, 1 / 3, None)
    assert untidy(tidy(rows)) == rows
    assert untidy(json.loads(json.dumps(tidy(rows), allow_nan=False))) == rows
    assert untidy(tidy([])) == []


def test_what_is_no_number_is_none_in_json():
    found = untidy(json.loads(json.dumps(tidy(rows_with(math.nan, math.inf, -math.inf)), allow_nan=False)))
    assert [row.train_loss for row in found] == [None] * 3
    assert found == rows_with(None, None, None)
    assert untidy(tidy(found)) == found


def test_columns_are_found_by_name():
    record = tidy(rows_with(0.5))
    order = list(range(len(Row._fields)))[::-1]
    turned = {"columns": [record["columns"][i] for i in order], "rows": [[record["rows"][0][i] for i in order]]}
    assert untidy(turned) == rows_with(0.5)
    with pytest.raises(ValueError):
        untidy({"columns": record["columns"], "rows": [record["rows"][0][:-1]]})


def test_results_of_a_diverged_run_are_strict_json(tmp_path):
    table = make(tmp_path, ["sgdm(lr=1e20)", "adamw"], (0, 1))
    begin = time.time()
    entries = run(table)
    wall = time.time() - begin
    found = json.loads(json.dumps(table.results(entries, {"command": "x"}), allow_nan=False))
    assert found["circumstances"] == {"command": "x"}
    assert found["settings"] == {"epochs": 3, "batch": 32, "average": 0.9, "width": 2, "limit": None, "data": "made"}
    assert found["complete"] is True
    assert 0 < found["seconds"] <= wall
    assert [(t["arm"], t["seed"], t["epochs"], t["complete"]) for t in found["trials"]] == [
        (arm, seed, 3, True) for arm in ("sgdm(lr=1e20)", "adamw") for seed in (0, 1)
    ]
    rows = untidy(found)
    assert [(row.arm, row.seed, row.epoch) for row in rows] == [
        (arm, seed, epoch) for arm in ("sgdm(lr=1e20)", "adamw") for seed in (0, 1) for epoch in (1, 2, 3)
    ]
    assert rows[2].train_loss is None
    assert rows[-1].train_loss > 0
    again = run(table)  # a checkpoint has nan itself
    assert table.results(again, {"command": "x"}) == table.results(entries, {"command": "x"})


def test_results_of_an_unfinished_run(tmp_path):
    table, entries = make(tmp_path), []
    with pytest.raises(KeyboardInterrupt):
        table.train(images(), Team(), entries, stop_after(5))
    found = table.results(entries, {})
    assert found["complete"] is False
    assert [(t["epochs"], t["complete"]) for t in found["trials"]] == [(3, True), (2, False), (0, False)]
    assert table.results([], {})["complete"] is False


def test_seconds_add_up_over_processes(tmp_path):
    table = make(tmp_path, ARMS[:1])
    begin = time.time()
    with pytest.raises(KeyboardInterrupt):
        run(table, stop_after(3))
    first = time.time() - begin
    time.sleep(0.5)
    begin = time.time()
    entries = run(table)
    second = time.time() - begin
    (one, two) = entries[0].spans
    assert one[0] < one[1] < two[0] < two[1]
    assert table.results(entries, {})["seconds"] == pytest.approx(one[1] - one[0] + two[1] - two[0])
    assert one[1] - one[0] <= first
    assert two[1] - two[0] <= second


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0),
        ([(1, 1)], 0),
        ([(0, 2), (1, 3), (5, 6)], 4),
        ([(5, 6), (1, 3), (0, 2)], 4),
        ([(0, 10), (1, 2), (3, 4)], 10),
        ([[0.0, 1.0], [1.0, 2.0]], 2),
        ([(0, 1), (0, 3), (0, 2)], 3),
    ],
)
def test_union(spans, length):
    assert union(spans) == length


def test_union_counts_every_moment_once():
    rng = random.Random(0)
    for _ in range(50):
        begins = [rng.randrange(30) for _ in range(6)]
        spans = [(b, b + rng.randrange(12)) for b in begins]
        assert union(spans) == len({moment for b, e in spans for moment in range(b, e)})


def test_news_tell_the_whole_table(tmp_path):
    told = []
    run(make(tmp_path, ARMS[:2], (0, 1)), told.append)
    assert [news.epochs_left for news in told] == list(range(11, -1, -1))
    assert all(news.rate > 0 for news in told)
    assert [news.left > 0 for news in told] == [True] * 11 + [False]
    assert [(news.row.arm, news.row.seed, news.row.epoch) for news in told] == [
        (arm, seed, epoch) for arm in ARMS[:2] for seed in (0, 1) for epoch in (1, 2, 3)
    ]


def test_files_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "x"
    record.write_text(path, "old")
    monkeypatch.setattr(os, "fsync", failing(os.fsync, 1, FULL))
    with pytest.raises(OSError, match="x cannot be written: No space left on device"):
        record.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]
    record.write_text(path, "new")
    assert path.read_text() == "new"
