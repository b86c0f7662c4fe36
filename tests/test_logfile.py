"""The files of a log: how they continue after a stop, and what a kill, a full disk or another run leaves of them."""

import copy
import shutil
import signal
import subprocess
import sys

import pytest
import torch

import o2nc
from logged import make, read, steps, train
from o2nc import logfile
from o2nc.integrations.matplotlib import plot
from o2nc.logger import CertificateLogger

pytestmark = pytest.mark.usefixtures("one_thread")


def columns(log):
    return logfile.read(log.path, logfile.FIELDS), logfile.read(log.layers_path, logfile.LAYER_FIELDS)


def test_a_resumed_run_reads_as_an_unbroken_one(tmp_path):
    """Killed after 13 steps, resumed from the checkpoint of step 7: rows 9 and 12 are there twice and read once."""
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
        before = [path.read_bytes() for path in (log.path, log.layers_path)]
        train(model, optimizer, 13)
        log.close()
        assert repr(columns(log)) == repr(columns(whole))  # nan is equal to nan
        for old, path in zip(before, (log.path, log.layers_path), strict=True):
            assert path.read_bytes().startswith(old)


def test_a_step_before_a_checkpoint_is_loaded_moves_nothing(tmp_path):
    """As torch.distributed.checkpoint takes one, to have state to load into."""
    model, optimizer = make()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2) as log:
        train(model, optimizer, 5)
    saved = copy.deepcopy(optimizer.state_dict())
    model, optimizer = make()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2):
        train(model, optimizer, 1)
        optimizer.load_state_dict(saved)
        train(model, optimizer, 1)
    assert steps(log.path) == [2, 4, 6]
    assert {path.name for path in tmp_path.iterdir()} == {"certificate.csv", "certificate.layers.csv"}


def test_a_checkpoint_loaded_in_the_middle_replaces_later_rows(tmp_path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2)
    train(model, optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, 5)
    optimizer.load_state_dict(saved)
    train(model, optimizer, 2)
    assert steps(log.path) == [2, 4, 6, 8, 4]
    assert columns(log)[0]["step"] == [2, 4]
    assert columns(log)[1]["step"] == [2] * 4 + [4] * 4


@pytest.mark.parametrize("layers", [True, False])
def test_a_run_from_scratch_moves_the_log_aside(layers, tmp_path):
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


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
def test_a_full_disk_costs_rows_and_not_the_run(tmp_path):
    import resource

    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1, layers=False)
    train(model, optimizer, 2)
    before = log.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 30, limits[1]))
    try:
        with pytest.warns(UserWarning, match=r"certificate.csv lacks rows, and training goes on: .*too large"):
            train(model, optimizer, 1)
        train(model, optimizer, 1)  # with no other warning
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    train(model, optimizer, 1)
    assert logfile.read(log.path, logfile.FIELDS)["step"] == [1, 2, 5]
    assert log.path.read_bytes().startswith(before)


def test_a_file_that_was_deleted_is_created_again(tmp_path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "run" / "certificate.csv", every=1)
    train(model, optimizer, 2)
    shutil.rmtree(tmp_path / "run")
    train(model, optimizer, 2)
    assert steps(log.path) == [3, 4]
    log.plot()


@pytest.mark.parametrize("cut", [0, 7, 60, 130, -1, -3])
def test_rows_that_were_cut_off_are_skipped(cut, tmp_path):
    """A machine that dies may leave a part of a row or of the header; a number that was cut off is not read."""
    model, optimizer = make()
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2) as log:
        train(model, optimizer, 8)
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:cut])
    kept = whole[: cut if cut >= 0 else len(whole) + cut].count(b"\n") - 1
    with CertificateLogger(optimizer, log.path, every=2):
        train(model, optimizer, 2)
    assert log.path.read_bytes().startswith(whole[:cut])
    assert logfile.read(log.path, logfile.FIELDS)["step"] == [*[2, 4, 6, 8][: max(kept, 0)], 10]


def test_a_file_without_newlines_is_not_read_whole(tmp_path):
    """Issue: a path such as a disk image was read to its end to find the header."""
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a tebibyte, of which nothing is stored
    with pytest.raises(ValueError, match="is not a log of certificates, and is left alone"):
        CertificateLogger(make()[1], path)
    with pytest.raises(ValueError, match="is not a log of certificates"):
        logfile.read(path, logfile.FIELDS)
    assert path.stat().st_size == 1 << 40


NAMES = ["=1+1", "+x", "-y", "@SUM(A1)", "'quoted", "\tz", "plain", 'a, "b"', "-", "'=both"]


def test_parameter_names_are_no_formulas(tmp_path):
    """Issue: a name that begins with = + - @ is a formula to a spreadsheet; `read` returns the name as it was."""
    params = [(name, torch.nn.Parameter(torch.ones(2))) for name in NAMES]
    opt = o2nc.ScaledSGDM(params, lr=0.1, average=0.9)
    log = CertificateLogger(opt, tmp_path / "certificate.csv", every=1)
    for _, p in params:
        p.grad = torch.ones(2)
    opt.step()
    raw = [row["parameter"] for row in read(log.layers_path)]
    assert not [name for name in raw if name.startswith(("=", "+", "-", "@", "\t"))]
    assert raw[6:8] == NAMES[6:8]
    assert logfile.read(log.layers_path, logfile.LAYER_FIELDS)["parameter"] == NAMES


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


def test_only_the_first_process_writes(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    model, optimizer = make()
    CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1)
    train(model, optimizer, 2)
    assert not list(tmp_path.iterdir())
