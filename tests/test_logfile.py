"""The files of a log: how they go on after a stop, and what a kill, a full disk or a stranger leaves of them."""

import copy
import errno
import gc
import os
import shutil
import signal
import subprocess
import sys

import pytest

from logged import make, read, steps, train
from o2nc import logfile
from o2nc.integrations.matplotlib import plot
from o2nc.logger import CertificateLogger

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_resumed_run_writes_what_an_unbroken_one_does(tmp_path):
    """Killed after 13 steps, resumed from the checkpoint of step 7: rows 9 and 12 are made anew, not twice."""
    model, optimizer = make()
    whole = CertificateLogger(optimizer, tmp_path / "whole.csv", every=3)
    train(model, optimizer, 20)
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "broken.csv", every=3)
    train(model, optimizer, 7)
    saved = copy.deepcopy([object_.state_dict() for object_ in (model, optimizer)])
    train(model, optimizer, 6)
    log.close()
    for early in (True, False):  # the log may be opened before the checkpoint is loaded, or after
        model, optimizer = make()
        if early:
            log = CertificateLogger(optimizer, tmp_path / "broken.csv", every=3)
        for object_, state in zip((model, optimizer), copy.deepcopy(saved), strict=True):
            object_.load_state_dict(state)
        if not early:
            log = CertificateLogger(optimizer, tmp_path / "broken.csv", every=3)
        assert steps(log.path)[-1] > 7
        train(model, optimizer, 13)
        log.close()
        for name in ("path", "layers_path"):
            assert getattr(log, name).read_text() == getattr(whole, name).read_text()


def test_rows_behind_a_checkpoint_go_even_if_none_takes_their_place(tmp_path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2)
    train(model, optimizer, 4)
    saved = optimizer.state_dict()
    train(model, optimizer, 6)
    log.close()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=50):
        optimizer.load_state_dict(saved)
        train(model, optimizer, 1)
    assert steps(log.path) == [2, 4]


def test_a_step_before_a_checkpoint_is_loaded_drops_nothing(tmp_path):
    """As torch.distributed.checkpoint takes one, to have state to load into."""
    model, optimizer = make()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2) as log:
        train(model, optimizer, 5)
    saved = optimizer.state_dict()
    model, optimizer = make()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2):
        train(model, optimizer, 1)
        optimizer.load_state_dict(saved)
        assert steps(log.path) == [2, 4]
        train(model, optimizer, 1)
    assert steps(log.path) == [2, 4, 6]


def test_a_checkpoint_loaded_in_the_middle_rewinds_the_log(tmp_path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2)
    train(model, optimizer, 3)
    saved = optimizer.state_dict()
    train(model, optimizer, 5)
    optimizer.load_state_dict(saved)
    train(model, optimizer, 2)
    assert steps(log.path) == [2, 4]


@pytest.mark.parametrize("layers", [True, False])
def test_a_run_that_begins_anew_moves_the_log_aside(layers, tmp_path):
    """Both files under the same number, so that a picture is of one run."""
    for steps_made, has_layers in ((10, True), (4, layers), (2, True)):
        model, optimizer = make()
        with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2, layers=has_layers) as log:
            train(model, optimizer, steps_made)
    assert steps(log.path) == [2]
    assert steps(tmp_path / "certificate.old-1.csv") == [2, 4, 6, 8, 10]
    assert steps(tmp_path / "certificate.old-2.csv") == [2, 4]
    assert [len(plot(tmp_path / f"certificate.old-{k}.csv").axes) for k in (1, 2)] == [4, 4 if layers else 2]
    assert set(steps(log.layers_path)) == {2}


def test_an_exception_takes_nothing_away(tmp_path):
    """A checkpoint that cannot be read, say, after the step that torch.distributed.checkpoint takes first."""
    model, optimizer = make()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2) as log:
        train(model, optimizer, 6)
    model, optimizer = make()

    def resume():
        with CertificateLogger(optimizer, log.path, every=2):
            train(model, optimizer, 1)
            raise FileNotFoundError("checkpoint")

    with pytest.raises(FileNotFoundError):
        resume()
    assert steps(log.path) == [2, 4, 6]
    assert not optimizer._watchers
    CertificateLogger(optimizer, log.path).close()


def test_damaged_lines_are_left_alone(tmp_path):
    model, optimizer = make()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1, layers=False) as log:
        train(model, optimizer, 3)
    header, *rows = log.path.read_bytes().splitlines(keepends=True)
    log.path.write_bytes(header + b"\0\0\0\n" + b"".join(rows) + b"\0\0")
    with CertificateLogger(optimizer, log.path, every=1, layers=False):
        train(model, optimizer, 1)
    assert log.path.read_bytes().startswith(header + b"\0\0\0\n" + b"".join(rows) + b"4,")
    model, optimizer = make()
    with CertificateLogger(optimizer, log.path, every=1, layers=False):
        train(model, optimizer, 1)
    assert steps(log.path) == [1]
    assert b"".join(rows) in (tmp_path / "certificate.old-1.csv").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
def test_a_full_disk_costs_rows_and_not_the_run(tmp_path):
    import resource

    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1, layers=False)
    train(model, optimizer, 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 30, limits[1]))
    try:
        with pytest.warns(UserWarning, match=r"certificate.csv lacks rows, and training goes on: .*too large"):
            train(model, optimizer, 1)
        train(model, optimizer, 1)  # with no other warning
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert steps(log.path) == [1, 2]
    train(model, optimizer, 1)
    assert steps(log.path) == [1, 2, 5]


def test_a_file_that_somebody_deletes_is_made_again(tmp_path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "run" / "certificate.csv", every=1)
    train(model, optimizer, 2)
    shutil.rmtree(tmp_path / "run")
    train(model, optimizer, 2)
    assert steps(log.path) == [3, 4]
    log.plot()


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.5, 0.999])
def test_torn_files_are_repaired(keep, tmp_path):
    """A machine that dies may leave half a row."""
    model, optimizer = make()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2) as log:
        train(model, optimizer, 8)
    for path in (log.path, log.layers_path):
        text = path.read_text()
        path.write_text(text[: int(keep * len(text))])
    with CertificateLogger(optimizer, log.path, every=2):
        train(model, optimizer, 2)
    assert steps(log.path)[-1] == 10
    assert all(None not in row.values() for path in (log.path, log.layers_path) for row in read(path))


KILLED = """
import os, signal, sys, torch, o2nc
from o2nc.logger import CertificateLogger
torch.set_num_threads(1)
x = torch.nn.Parameter(torch.ones(3))
optimizer = o2nc.ScaledSGDM([("x", x)], lr=0.01, average=0.9)
CertificateLogger(optimizer, sys.argv[1], every=5)
for step in range(1, 100):
    x.grad = torch.ones(3)
    optimizer.step()
    if step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_kill_loses_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "certificate.csv"], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert steps(tmp_path / "certificate.csv") == [5, 10, 15, 20]
    assert steps(tmp_path / "certificate.layers.csv") == [5, 10, 15, 20]


def test_closing_takes_the_hooks_away(tmp_path):
    model, optimizer = make()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2) as log:
        train(model, optimizer, 2)
        assert len(optimizer._watchers) == 1
    assert not optimizer._watchers
    assert not optimizer._optimizer_load_state_dict_post_hooks
    train(model, optimizer, 2)
    assert steps(log.path) == [2]
    log.close()
    with pytest.raises(ValueError, match="is closed"):
        log.record()


# --- other processes

needs_locks = pytest.mark.skipif(logfile.fcntl is None, reason="needs locks")

# makes a log, says so, waits to be told that it may end
HOLDER = """
import os, sys, time, torch, o2nc
from o2nc.logger import CertificateLogger
from torch.utils.data import DataLoader
torch.set_num_threads(1)
path, kind = sys.argv[1:]
x = torch.nn.Parameter(torch.ones(3))
optimizer = o2nc.ScaledSGDM([("x", x)], lr=0.01, average=0.9)
log = CertificateLogger(optimizer, path, every=1)
if kind == "workers":
    loader = DataLoader(torch.ones(8, 3), num_workers=1, multiprocessing_context="fork", persistent_workers=True)
    assert len(list(loader)) == 8  # and the worker lives on
if kind == "children" and os.fork() == 0:
    log.close()
    sys.exit()
if kind == "children" and os.fork() == 0:
    del log, optimizer
    sys.exit()
if kind == "children":
    assert [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)] == [0, 0]
x.grad = torch.ones(3)
optimizer.step()
print("ready", flush=True)
sys.stdin.read()
"""


def hold(path, kind):
    """Return a process that has a log."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLDER, path, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.some(1)
@needs_locks
@pytest.mark.parametrize("kind", ["alone", "workers", "children"])
def test_two_processes_do_not_share_a_file(kind, tmp_path):
    """Nor when the first has forked others, which end, or close what they got from it."""
    path = tmp_path / "certificate.csv"
    model, optimizer = make()
    with hold(path, kind) as process:
        with pytest.raises(ValueError, match=r"certificate.csv is the log of another process, .* end that"):
            CertificateLogger(optimizer, path, every=1)
        assert not optimizer._watchers
        process.communicate()
    assert process.returncode == 0
    assert steps(path) == [1]
    assert not (tmp_path / "certificate.csv.lock").exists()
    with CertificateLogger(optimizer, path, every=1):
        train(model, optimizer, 2)
    assert steps(path) == [1, 2]
    assert steps(tmp_path / "certificate.old-1.csv") == [1]


@pytest.mark.some(1)
@needs_locks
@pytest.mark.parametrize("kind", ["alone", "workers"])
def test_the_lock_of_a_killed_process_is_no_obstacle(kind, tmp_path):
    """Not even while a worker of it is alive, which takes some seconds to find out."""
    path = tmp_path / "certificate.csv"
    with hold(path, kind) as process:
        process.kill()
        process.wait()
        assert (tmp_path / "certificate.csv.lock").exists()
        model, optimizer = make()
        with CertificateLogger(optimizer, path, every=1):
            train(model, optimizer, 2)
    assert steps(path) == [1, 2]
    assert not (tmp_path / "certificate.csv.lock").exists()


def is_free(path):
    lock = logfile.Lock(path)
    is_mine = lock.acquire()
    lock.release()
    return is_mine


@needs_locks
@pytest.mark.parametrize("how", ["close", "collected", "error"])
def test_the_lock_ends_with_the_logger(how, tmp_path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1)
    train(model, optimizer, 1)
    assert not is_free(log.path)
    path = log.path
    if how == "close":
        log.close()
    elif how == "collected":
        del log, optimizer
        gc.collect()
    else:
        with pytest.raises(FileNotFoundError), log:
            raise FileNotFoundError("checkpoint")
    assert {file.name for file in tmp_path.iterdir()} == {"certificate.csv", "certificate.layers.csv"}
    assert is_free(path)


@needs_locks
def test_a_lock_that_is_removed_while_it_is_taken_is_taken_again(monkeypatch, tmp_path):
    """By a process that ends: between opening the file and locking it, which would lock a file without a name."""
    lock, flock, calls = logfile.Lock(tmp_path / "certificate.csv"), logfile.fcntl.flock, []

    def remove_first(*given):
        if not calls:
            lock.path.unlink()
        calls.append(given)
        flock(*given)

    monkeypatch.setattr(logfile.fcntl, "flock", remove_first)
    assert lock.acquire()
    assert len(calls) == 2
    assert not logfile.Lock(tmp_path / "certificate.csv").acquire()
    lock.release()
    assert not list(tmp_path.iterdir())


@needs_locks
def test_a_lock_removes_its_own_file_only(tmp_path):
    """Somebody may delete the folder, and another process begin in it."""
    first, second = (logfile.Lock(tmp_path / "certificate.csv") for _ in range(2))
    assert first.acquire()
    first.path.unlink()
    assert second.acquire()
    first.release()
    assert not is_free(tmp_path / "certificate.csv")
    second.release()
    assert is_free(tmp_path / "certificate.csv")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_it_does_without(number, monkeypatch, tmp_path):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    model, optimizer = make()
    if logfile.fcntl is not None:
        monkeypatch.setattr(logfile.fcntl, "flock", fail)
    with pytest.warns(UserWarning, match=r"certificate.csv is not locked, other processes can write to it: "):
        log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1, layers=False)
    train(model, optimizer, 2)
    assert steps(log.path) == [1, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["certificate.csv"]


def test_the_first_process_has_the_lock(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    model, optimizer = make()
    CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1)
    train(model, optimizer, 2)
    assert not list(tmp_path.iterdir())
