"""The log of certificates: what is in it, that no row is ever lost, what is refused."""

import copy
import gc
import math
import sys
from unittest.mock import Mock

import pytest
import torch

import o2nc
from logged import make, read, steps, train
from o2nc.logger import HEADER, CertificateLogger, Row
from registry import OURS, identical, ours_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "certificate.csv"


@pytest.mark.parametrize("name", OURS)
def test_rows_are_the_optimizers_own_answers(name, path):
    """Bitwise, and the run is the same with a log; the progress is nan of those that have none."""
    (model, optimizer), (twin, alone) = make(name), make(name)
    expected = []

    def ask():
        step = int(ours_of(optimizer)["step"])
        if step % 5 == 0:
            found, said = optimizer.certificate(c=2.0), optimizer.diagnose()
            progress = getattr(optimizer, "progress", math.nan)
            numbers = (found.gradient, found.spread, found.value, progress, found.ess, 2.0)
            expected.append(Row(step, said.verdict, said.evidence["displacement"], *numbers))
            assert steps(path)[-1] == step  # a kill loses nothing

    with CertificateLogger(optimizer, path, every=5, c=2.0):
        train(model, optimizer, 23, ask)
    assert [row.step for row in expected] == [5, 10, 15, 20]
    assert repr(read(path)) == repr(expected)  # nan is equal to nan
    train(twin, alone, 23)
    identical(optimizer.state_dict(), alone.state_dict())


def test_a_row_computes_the_certificate_once(path, monkeypatch):
    model, optimizer = make("AdamW")
    calls, certificate = [], optimizer.certificate
    monkeypatch.setattr(optimizer, "certificate", lambda c: calls.append(c) or certificate(c))
    CertificateLogger(optimizer, path, every=2, c=3.0)
    train(model, optimizer, 4)
    assert calls == [3.0, 3.0]


class Scalars:
    """As much of a SummaryWriter as is asked for."""

    def __init__(self):
        self.found = {}

    def add_scalar(self, tag, value, step):
        self.found.setdefault(step, {})[tag] = value


class Values(Scalars):
    """As much of an Accelerator or of a wandb run."""

    add_scalar = property()

    def log(self, values, step):
        self.found[step] = values


@pytest.mark.parametrize("kind", [Scalars, Values])
def test_a_writer_gets_the_same_and_every_parameters_share(kind, path):
    (model, optimizer), writer = make(), kind()
    CertificateLogger(optimizer, path, every=4, writer=writer)
    train(model, optimizer, 4)
    (row,), found = read(path), writer.found.pop(4)
    assert not writer.found
    assert (row.verdict, found.pop("run/verdict")) == ("too early", 0.0)  # and no displacement yet
    expected = {"certificate/value": row.certificate}
    expected |= {f"certificate/{key}": getattr(row, key) for key in ("gradient", "spread", "progress", "ess")}
    for name, part in optimizer.certificate().by_parameter.items():
        expected |= {f"gradient/{name}": part.gradient, f"spread/{name}": part.spread}
    assert found == expected
    assert "spread/0.weight" in found


def test_a_writer_that_fails_costs_its_rows_and_not_the_run(path):
    """And it can be interrupted."""
    (model, optimizer), writer = make(), Scalars()
    writer.add_scalar = Mock(side_effect=[RuntimeError("the server is gone"), OSError(), KeyboardInterrupt()])
    log = CertificateLogger(optimizer, path, every=1, writer=writer)
    with pytest.warns(UserWarning, match=r"the log .*certificate.csv lacks rows.* the server is gone"):
        train(model, optimizer, 1)
    train(model, optimizer, 1)  # with no other warning
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, 1)
    del writer.add_scalar
    train(model, optimizer, 1)
    assert steps(log.path) == [1, 2, 3, 4]
    assert 4 in writer.found


@pytest.mark.filterwarnings("ignore:the checkpoint changes this AdamW:UserWarning")
def test_a_checkpoint_without_a_certificate_costs_rows_and_not_the_run(path):
    model, optimizer = make("AdamW")
    without = OURS["AdamW"](model.parameters(), certificate=False)
    CertificateLogger(optimizer, path, every=1)
    train(model, optimizer, 1)
    without.step()
    optimizer.load_state_dict(without.state_dict())
    train(model, optimizer, 1)
    assert steps(path) == [1]


def test_record_writes_a_row_of_its_own_once(path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, path, every=4)
    log.record()  # nothing yet
    train(model, optimizer, 6)
    log.record()
    log.record()
    earlier = copy.deepcopy(optimizer.state_dict())
    for again in (1, 2):  # from a checkpoint
        optimizer.load_state_dict(earlier)
        train(model, optimizer, 3)
        assert steps(log.path) == [4, 6, *[8] * again]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_steps_are_logged(fullgraph, path):
    """From within the one node that a step is, so that no break is needed."""
    torch._dynamo.reset()
    model, optimizer = make()
    CertificateLogger(optimizer, path, every=2)
    model(torch.ones(1, 4)).sum().backward()
    step = torch.compile(optimizer.step, backend="aot_eager", fullgraph=fullgraph)
    for _ in range(4):
        step()
    assert steps(path) == [2, 4]
    assert read(path)[-1].certificate == optimizer.certificate().value
    torch._dynamo.reset()


@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_resumed_run_reads_as_an_unbroken_one(opened, path, tmp_path):
    """Stopped after 13 steps, resumed at step 7 by a log that is opened before the checkpoint is loaded, or after."""
    model, optimizer = make()
    whole = CertificateLogger(optimizer, tmp_path / "whole.csv", every=3)
    train(model, optimizer, 20)
    model, optimizer = make()
    with CertificateLogger(optimizer, path, every=3):
        train(model, optimizer, 7)
        saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        train(model, optimizer, 6)
    before = path.read_bytes()
    model, optimizer = make()
    if opened == "before":
        CertificateLogger(optimizer, path, every=3)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    if opened == "after":
        CertificateLogger(optimizer, path, every=3)
    train(model, optimizer, 13)
    assert steps(path) == [3, 6, 9, 12, 9, 12, 15, 18]
    later = {row.step: row for row in read(path)}
    assert repr(list(later.values())) == repr(read(whole.path))  # nan is equal to nan
    assert path.read_bytes().startswith(before)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
def test_a_full_disk_costs_rows_and_not_the_run(path):
    import resource

    model, optimizer = make()
    CertificateLogger(optimizer, path, every=1)
    train(model, optimizer, 2)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 30, limits[1]))
    try:
        with pytest.warns(UserWarning, match=r"certificate.csv lacks rows, and training goes on: .*too large"):
            train(model, optimizer, 1)
        train(model, optimizer, 1)  # with no other warning
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    train(model, optimizer, 2)
    assert path.read_bytes().startswith(before)
    assert path.read_text().splitlines()[-1].startswith("6,")


def test_refusals(path, tmp_path):
    model, optimizer = make()
    bare = o2nc.random_scaling(torch.optim.AdamW(model.parameters())), o2nc.SGD(model.parameters())
    for given, options, error, words in (
        (optimizer, {"every": 0}, ValueError, "every must be an integer >= 1, got 0"),
        (optimizer, {"c": 0.0}, ValueError, "c must be a finite number > 0"),
        (optimizer, {"writer": print}, TypeError, "writer must have add_scalar"),
        (torch.optim.SGD(model.parameters()), {}, TypeError, r"one of o2nc's with averages.*got SGD"),
        (o2nc.AdamW(model.parameters(), average=0.9), {}, ValueError, "keeps no certificate: pass certificate=True"),
        *((opt, {}, ValueError, "keeps no averages, it was made with average=None: pass average=") for opt in bare),
    ):
        with pytest.raises(error, match=words):
            CertificateLogger(given, path, **options)
    assert not list(tmp_path.iterdir())
    with pytest.raises(IsADirectoryError):
        CertificateLogger(optimizer, tmp_path)
    assert not optimizer._watchers


@pytest.mark.parametrize("text", ["step,loss\n1,2\n", "\0" * 10_000, HEADER[:-1] + "\n1,2,3\n"])
def test_files_of_others_are_left_alone(text, path):
    path.write_text(text)
    with pytest.raises(ValueError, match=r"certificate.csv is not a log"):
        CertificateLogger(make()[1], path)
    assert path.read_text() == text


def test_a_cell_that_makes_the_logger_is_run_again(path):
    """The same optimizer goes on in the same file; the result of every cell is kept, as IPython's Out does."""
    model, optimizer = make()
    kept = []
    for every in (2, 1, 1):
        kept.append(CertificateLogger(optimizer, path, every=every))
        train(model, optimizer, 2)
    assert steps(path) == [2, 3, 4, 5, 6]
    kept[0].close()  # which was replaced: the last one goes on
    train(model, optimizer, 1)
    kept[-1].close()
    train(model, optimizer, 1)
    assert steps(path) == [2, 3, 4, 5, 6, 7]
    assert not optimizer._watchers


def test_an_optimizer_is_not_kept_alive(path):
    pytest.importorskip("torch.distributed.optim", reason="torch is built without processes")  # looked for then
    model, optimizer = make()
    log = CertificateLogger(optimizer, path, every=1)
    train(model, optimizer, 2)
    del optimizer
    gc.collect()
    with pytest.raises(ReferenceError):
        log.record()
    log.close()


def test_only_the_first_process_writes(monkeypatch, path, tmp_path):
    monkeypatch.setenv("RANK", "1")
    model, optimizer = make()
    CertificateLogger(optimizer, path, every=1)
    train(model, optimizer, 2)
    assert not list(tmp_path.iterdir())
