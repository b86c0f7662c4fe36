"""A table ends with the same numbers however often it was stopped: by an exception, a full disk or SIGKILL."""

import errno
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cifar10_made import (
    ARMS,
    CPU,
    SMALL,
    arguments,
    bits,
    finish,
    make_table,
    outcome,
    recorded,
    run_table,
    start,
    stop_after,
    timeless,
    undisturbed,
    wait_for,
    write_files,
)
from o2nc_experiments import record
from o2nc_experiments.cifar10.batches import to_device
from o2nc_experiments.cifar10.checkpoints import Store
from o2nc_experiments.cifar10.data import load
from o2nc_experiments.cifar10.training import Trial
from o2nc_experiments.classification import from_columns

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = replace(SMALL, epochs=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("whole"))


# --- interruptions


@pytest.mark.parametrize("at", [1, 4, 9])
def test_interrupted_at_the_end_of_an_epoch(at, whole, tmp_path):
    table = make_table(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_table(table, stop_after(at))
    told = []
    entries = run_table(table, told.append)
    assert outcome(table, entries) == whole
    assert len(told) == 9 - at  # what was told is kept, a trial's last epoch as well
    assert [news.epochs_left for news in told] == list(range(len(told) - 1, -1, -1))


def test_interrupted_again_and_again_within_epochs(whole, tmp_path, monkeypatch):
    table, step, made, stops = make_table(tmp_path), Trial.step, [0], 0

    def counted(self):
        made[0] += 1
        if made[0] % 3 == 0:  # an epoch has one or two, so none is made twice
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(Trial, "step", counted)
    while True:
        try:
            entries = run_table(table)
            break
        except KeyboardInterrupt:
            stops += 1
            assert stops < 20
    assert stops >= 5
    assert outcome(table, entries) == whole


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit(143)])
def test_interrupted_before_a_checkpoint_was_due_nothing_is_lost(stop, whole, tmp_path, monkeypatch):
    """In the middle of an epoch: what is kept is the end of the one before, to the bit."""
    table, step, at = make_table(tmp_path, save_every=math.inf), Trial.step, stop_after(5, stop)
    with monkeypatch.context() as patched:
        patched.setattr(Trial, "step", lambda self: (at(), step(self)))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            run_table(table)
    told = []
    assert outcome(table, run_table(table, told.append)) == whole
    assert 9 - len(told) == 2  # epochs of two, one and two steps; the fifth was not made
    assert told[0].epochs_left == len(told) - 1


def test_rarely_saved_is_only_more_to_do_again(whole, tmp_path, monkeypatch):
    """After an error, which keeps nothing."""
    table, saved = make_table(tmp_path, save_every=math.inf), []
    save = Store.save
    monkeypatch.setattr(Store, "save", lambda *given: (saved.append(given[1]), save(*given)))
    with pytest.raises(ZeroDivisionError):
        run_table(table, stop_after(5, ZeroDivisionError))
    assert saved == [f"{ARMS[0]} seed 0"]  # when a trial is over
    told = []
    assert outcome(table, run_table(table, told.append)) == whole
    assert len(told) == 6
    assert saved == [f"{arm} seed 0" for arm in ARMS]


# --- a full disk, a dying process

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
PLACES = {"fsync": (os, "fsync"), "open": (Path, "open"), "replace": (Path, "replace")}


class Killed(BaseException):
    """Stands for SIGKILL: nothing may be done about it."""


def failing(function, count, error):
    """The function, failing at its call of this number."""
    check = stop_after(count, error)

    def wrapper(*given, **named):
        check()
        return function(*given, **named)

    return wrapper


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


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """The outcome of a shorter table, of four epochs: its files are settings.json, then a checkpoint for each."""
    return undisturbed(tmp_path_factory.mktemp("short"), ARMS[::2], settings=SHORT)


@pytest.mark.parametrize(
    ("place", "at"),
    [("fsync", 1), ("fsync", 2), ("fsync", 3), ("fsync", 5), ("open", 3), ("replace", 1), ("replace", 4)],
)
def test_a_full_disk_stops_the_run_and_costs_nothing(place, at, short, tmp_path, monkeypatch):
    table, (owner, name) = make_table(tmp_path, ARMS[::2], settings=SHORT), PLACES[place]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing(getattr(owner, name), at, FULL))
        with pytest.raises(OSError) as info:
            run_table(table)
    path = tmp_path / "settings.json" if at == 1 else tmp_path / "trials" / f"{ARMS[(at - 2) // 2 * 2]}_seed_0.pt"
    assert str(info.value) == f"{path} cannot be written: No space left on device"
    assert not list(tmp_path.rglob("*.part"))
    told = []
    assert outcome(table, run_table(table, told.append)) == short
    assert len(told) == min(4, 6 - at)  # nothing but what was not kept is made again


@pytest.mark.parametrize(("place", "at"), [("fsync", 1), ("fsync", 3), ("replace", 2), ("replace", 5), ("open", 4)])
def test_a_death_while_writing(place, at, short, tmp_path, monkeypatch):
    table, (owner, name) = make_table(tmp_path, ARMS[::2], settings=SHORT), PLACES[place]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing(getattr(owner, name), at, Killed))
        with pytest.raises(Killed):
            run_table(table)
    if place != "open":
        assert len(list(tmp_path.rglob("*.part"))) == 1
    assert outcome(table, run_table(table)) == short
    assert not list(tmp_path.rglob("*.part"))


# --- processes

KILLED = ("--arm", "sgdm+exponential", "--arm", "scale-free+exponential", "--seeds", 1, "--save-every", 0)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"), 160, 32)


def stamps(out):
    """When which checkpoint was written."""
    return tuple(sorted((path.name, path.stat().st_mtime_ns) for path in out.glob("trials/*.pt")))


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_disk_that_is_really_full(files, tmp_path):
    """As far as a process can tell: none of its files may have more than 2,000 bytes."""
    import resource

    made = load(files, verify=False)
    own, out = to_device(made, CPU), tmp_path / "a"
    expected = undisturbed(tmp_path / "b", ARMS[:1], settings=SHORT, own=own)
    table = make_table(out, ARMS[:1], settings=SHORT, digest=made.digest)
    with pytest.raises(KeyboardInterrupt):
        run_table(table, stop_after(1), own)
    path = out / "trials" / "sgdm+exponential_seed_0.pt"
    before = path.read_bytes()
    given = arguments(files, out, "--arm", ARMS[0], "--seeds", 1, "--epochs", 2, "--save-every", 0)
    process = start(*given, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)))
    code, said, err = finish(process)
    assert code == 1
    assert re.fullmatch(rf"o2nc: {re.escape(str(out))}/\S+ cannot be written: File too large\n", err)
    assert "epoch 2/2" in said
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    found = recorded(out)
    assert (found["complete"], [trial["epochs"] for trial in found["trials"]], len(found["rows"])) == (False, [1], 1)
    assert outcome(table, run_table(table, own=own)) == expected


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
def test_killed_three_times_it_ends_with_the_same_numbers(files, tmp_path):
    """Each time at a random moment of the epoch after a checkpoint."""
    made, rng = load(files, verify=False), random.Random(0)
    own, settings = to_device(made, CPU), replace(SMALL, epochs=5)
    expected = undisturbed(tmp_path / "whole", ARMS[:2], settings=settings, own=own)
    out = tmp_path / "killed"
    kept = []
    for _ in range(3):
        kept.append(stamps(out))
        process = start(*arguments(files, out, *KILLED, "--epochs", 5))
        try:
            wait_for(lambda: stamps(out) != kept[-1], process)
            time.sleep(rng.uniform(0, 0.2))
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert len(set(kept)) == 3  # every time it went on
    code, _, err = finish(start(*arguments(files, out, *KILLED, "--epochs", 5)))
    assert (code, err) == (0, "")
    found = json.loads((out / "cifar10.json").read_text(encoding="utf-8"))
    assert timeless(from_columns(found)) == [row for rows in expected[0].values() for row in rows]
    assert (found["complete"], len(found["rows"])) == (True, 10)
    assert 0 < found["seconds"] < 100
    states = {name: Store(out).load(name) for name in expected[1]}
    for name, state in expected[1].items():
        assert bits({key: states[name][key] for key in state}) == state


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
