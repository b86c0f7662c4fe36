"""The log of certificates: what is in it, what is refused, its picture, and several processes."""

import csv
import gc
import os
import subprocess
import sys

import pytest
import torch

import o2nc
from logged import make, read, steps, train
from o2nc.integrations.matplotlib import plot
from o2nc.logfile import FIELDS, LAYER_FIELDS
from o2nc.logger import CertificateLogger
from registry import OURS, identical, ours_of

pytestmark = pytest.mark.usefixtures("one_thread")


class Writer:
    """As much of a SummaryWriter as is asked for."""

    def __init__(self):
        self.found = []

    def add_scalar(self, tag, value, step):
        self.found.append((tag, value, step))


# --- what is in it


@pytest.mark.parametrize("name", OURS)
def test_rows_are_the_optimizers_own_answers(name, tmp_path):
    """To the last bit; the progress is nan of those that have none."""
    model, optimizer = make(name)
    expected, parts = [], []

    def ask():
        step = int(ours_of(optimizer)["step"])
        if step % 5 == 0:
            found = optimizer.certificate(c=2.0)
            progress = optimizer.progress if hasattr(optimizer, "progress") else "nan"
            said = [optimizer.diagnose().verdict, optimizer.diagnose().evidence["displacement"]]
            expected.append([step, *said, found.gradient, found.spread, found.value, progress, found.ess, 2.0])
            parts.extend([step, key, part.gradient, part.spread] for key, part in found.by_parameter.items())

    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=5, c=2.0) as log:
        train(model, optimizer, 23, ask)
    for path, rows, fields in ((log.path, expected, FIELDS), (log.layers_path, parts, LAYER_FIELDS)):
        with path.open() as file:
            assert list(csv.reader(file)) == [list(fields), *([str(v) for v in row] for row in rows)]
    assert [row[0] for row in expected] == [5, 10, 15, 20]
    assert {row[1] for row in parts} == set(dict(model.named_parameters()))


def test_the_run_is_the_same_with_a_log(tmp_path):
    runs = [make(), make()]
    CertificateLogger(runs[0][1], tmp_path / "certificate.csv", every=3)
    for model, optimizer in runs:
        train(model, optimizer, 10)
    identical(*(optimizer.state_dict() for _, optimizer in runs))


def test_a_writer_gets_the_same(tmp_path):
    model, optimizer = make()
    writer = Writer()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=4, writer=writer)
    train(model, optimizer, 4)
    (row,) = read(log.path)
    found = {tag: value for tag, value, step in writer.found if step == 4}
    assert len(found) == len(writer.found) == 6 + 2 * 4
    assert list(found)[:2] == ["run/verdict", "certificate/value"]  # no displacement yet
    assert (row["verdict"], found["run/verdict"]) == ("too early", 0.0)
    assert found["certificate/value"] == row["certificate"]
    assert [found[f"certificate/{key}"] for key in ("gradient", "spread", "progress", "ess")] == [
        row[key] for key in ("gradient", "spread", "progress", "ess")
    ]
    for part in read(log.layers_path):
        assert found[f"gradient/{part['parameter']}"] == part["gradient"]
        assert found[f"spread/{part['parameter']}"] == part["spread"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("the server is gone")])
@pytest.mark.parametrize("method", ["add_scalar", "flush"])
def test_a_writer_that_fails_costs_its_rows_and_not_the_run(method, error, tmp_path):
    """And it can be interrupted."""
    model, optimizer = make()
    writer = Writer()
    failing = iter([error] * 3 + [KeyboardInterrupt()])

    def fail(*_):
        raise next(failing)

    setattr(writer, method, fail)
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1, writer=writer)
    with pytest.warns(UserWarning, match=f"the writer of the log .*certificate.csv lacks rows.* {error.args[-1]}"):
        train(model, optimizer, 1)
    train(model, optimizer, 2)  # with no other warning
    assert steps(log.path) == [1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, 1)
    delattr(writer, method)
    train(model, optimizer, 1)
    assert writer.found[-1][2] == 5


@pytest.mark.filterwarnings("ignore:the checkpoint changes this AdamW:UserWarning")
def test_a_checkpoint_without_a_certificate_costs_rows_and_not_the_run(tmp_path):
    model, optimizer = make("AdamW")
    without = OURS["AdamW"](model.parameters(), certificate=False)
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1)
    train(model, optimizer, 1)
    own = optimizer.state_dict()
    without.step()
    without.step()
    optimizer.load_state_dict(without.state_dict())
    train(model, optimizer, 1)
    log.record()
    optimizer.load_state_dict(own)
    train(model, optimizer, 1)
    assert steps(log.path) == [1, 2]


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    model, optimizer = make()
    writer = SummaryWriter(tmp_path / "events")
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=4, writer=writer)
    train(model, optimizer, 8)
    events = EventAccumulator(str(tmp_path / "events")).Reload()  # the writer is still open
    assert [e.step for e in events.Scalars("certificate/value")] == [4, 8]
    assert [e.value for e in events.Scalars("spread/0.weight")] == pytest.approx(
        [row["spread"] for row in read(log.layers_path) if row["parameter"] == "0.weight"], rel=1e-6
    )
    writer.close()


def test_names_that_need_quoting_and_parameters_that_come_late(tmp_path):
    x, y = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = o2nc.ScaledSGDM([('a, "b"', x)], lr=0.1, average=0.9)
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1)
    x.grad, y.grad = torch.ones(3), torch.ones(3)
    optimizer.step()
    optimizer.add_param_group({"params": [("late", y)]})
    optimizer.step()
    assert [(row["step"], row["parameter"]) for row in read(log.layers_path)] == [
        (1, 'a, "b"'),
        (2, 'a, "b"'),
        (2, "late"),
    ]


def test_steps_that_a_grad_scaler_skips_are_not_counted(tmp_path):
    """Step n of the log is step n of the optimizer."""
    x = torch.nn.Parameter(torch.ones(3))
    optimizer = OURS["ScaledSGDM"]([x])
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for off in (True, False, True, True, False, True, False, False):
        optimizer.zero_grad()
        scaler.scale(x.sum() * (torch.inf if off else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert int(ours_of(optimizer)["step"]) == 4
    assert steps(log.path) == [2, 4]


def test_a_counter_in_a_tensor_is_read_rarely(tmp_path):
    """On a GPU the counter is a tensor of the device: to look at it is to wait."""

    class Counter(torch.Tensor):
        reads = 0

        def __int__(self):
            Counter.reads += 1
            return int(self.item())

    _, optimizer = make()
    settings = ours_of(optimizer)
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=50)
    for step in range(1, 201):
        settings["step"] = torch.tensor(step).as_subclass(Counter)
        log._after_step()
    assert Counter.reads <= 2 * (200 // 50) + 1


def test_record_writes_a_row_of_its_own_once(tmp_path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=4)
    log.record()  # nothing yet
    train(model, optimizer, 6)
    log.record()
    log.record()
    train(model, optimizer, 3)
    assert steps(log.path) == [4, 6, 8]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_steps_are_logged(fullgraph, tmp_path):
    """From within the one node that a step is, so that no break is needed."""
    torch._dynamo.reset()
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=2)
    model(torch.ones(1, 4)).sum().backward()
    step = torch.compile(optimizer.step, backend="aot_eager", fullgraph=fullgraph)
    for _ in range(4):
        step()
    assert steps(log.path) == [2, 4]
    assert read(log.path)[-1]["certificate"] == optimizer.certificate().value
    torch._dynamo.reset()


# --- what is refused


def test_refusals(tmp_path):
    model, optimizer = make()
    path = tmp_path / "certificate.csv"
    with pytest.raises(ValueError, match="every must be an integer >= 1, got 0"):
        CertificateLogger(optimizer, path, every=0)
    with pytest.raises(TypeError, match="every must be an integer"):
        CertificateLogger(optimizer, path, every=1.5)
    with pytest.raises(ValueError, match="c must be a finite number > 0"):
        CertificateLogger(optimizer, path, c=0.0)
    with pytest.raises(TypeError, match="layers must be True or False"):
        CertificateLogger(optimizer, path, layers="all")
    with pytest.raises(TypeError, match="writer must have add_scalar"):
        CertificateLogger(optimizer, path, writer=print)
    with pytest.raises(TypeError, match=r"one of o2nc's with averages.*got SGD"):
        CertificateLogger(torch.optim.SGD(model.parameters()), path)
    with pytest.raises(ValueError, match=r"keeps no certificate: pass certificate=True"):
        CertificateLogger(o2nc.AdamW(model.parameters(), average=0.9), path)
    for bare in (o2nc.random_scaling(torch.optim.AdamW(model.parameters())), o2nc.SGD(model.parameters())):
        with pytest.raises(ValueError, match=r"keeps no averages, it was made with average=None: pass average="):
            CertificateLogger(bare, path)
    assert not list(tmp_path.iterdir())
    assert not optimizer._watchers


def test_paths_that_cannot_be_written_and_files_of_others(tmp_path):
    _, optimizer = make()
    with pytest.raises(OSError, match=r"cannot be written: Is a directory"):
        CertificateLogger(optimizer, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be written"):
        CertificateLogger(optimizer, tmp_path / "file" / "certificate.csv")
    (tmp_path / "mine.csv").write_text("step,loss\n1,2\n")
    with pytest.raises(ValueError, match="is not a log of certificates, and is left alone"):
        CertificateLogger(optimizer, tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "step,loss\n1,2\n"
    assert {path.name for path in tmp_path.iterdir()} == {"file", "mine.csv"}
    assert not optimizer._watchers


# --- notebooks, where cells are run again and results are kept


def test_a_cell_that_makes_the_logger_is_run_again(tmp_path):
    """The same optimizer goes on in the same file; the result of every cell is kept, as IPython's Out does."""
    model, optimizer = make()
    kept = []
    for every in (2, 1, 1):
        kept.append(CertificateLogger(optimizer, tmp_path / "certificate.csv", every=every))
        train(model, optimizer, 2)
    assert steps(kept[-1].path) == [2, 3, 4, 5, 6]
    assert len(optimizer._watchers) == len(optimizer._optimizer_load_state_dict_post_hooks) == 1
    for log in kept[:-1]:
        with pytest.raises(ValueError, match="is closed"):
            log.record()
    assert kept[-1].optimizer is optimizer


def test_an_optimizer_is_not_kept_alive(tmp_path):
    pytest.importorskip("torch.distributed.optim", reason="torch is built without processes")  # looked for then
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1)
    train(model, optimizer, 2)
    del optimizer
    gc.collect()
    assert log.optimizer is None
    with pytest.raises(ValueError, match=r"the optimizer of the log .*certificate.csv was deleted"):
        log.record()
    log.close()
    assert steps(log.path) == [1, 2]


def test_folders_are_made_and_without_layers_there_is_one_file(tmp_path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, str(tmp_path / "runs" / "1" / "certificate.csv"), every=2, layers=False)
    train(model, optimizer, 4)
    assert [path.name for path in (tmp_path / "runs" / "1").iterdir()] == ["certificate.csv"]
    assert steps(log.path) == [2, 4]


# --- the picture


@pytest.mark.parametrize("layers", [True, False])
def test_the_picture(layers, tmp_path):
    model, optimizer = make()
    log = CertificateLogger(optimizer, tmp_path / "certificate.csv", every=1, layers=layers)
    train(model, optimizer, 12)
    figure = log.plot(tmp_path / "certificate.png")
    assert (tmp_path / "certificate.png").read_bytes().startswith(b"\x89PNG")
    assert len(figure.axes) == (4 if layers else 2)
    terms = figure.axes[0]
    assert (terms.get_xscale(), terms.get_yscale()) == ("log", "log")
    value, gradient, spread = (line.get_ydata() for line in terms.lines)
    assert value == pytest.approx([a + b for a, b in zip(gradient, spread, strict=True)])
    if layers:
        names = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
        assert set(names) == set(dict(model.named_parameters()))
    log.close()
    assert len(plot(log.path).axes) == len(figure.axes)  # a log is read without the run


def test_names_in_the_picture_are_what_they_are(tmp_path):
    """Issue: $…$ was read as a formula, which ended in an error, and names that begin with _ were left out."""
    names = ["a$b$", "$x_{$", "_orig_mod.weight", "_hidden"]
    params = [(name, torch.nn.Parameter(torch.ones(2))) for name in names]
    opt = o2nc.ScaledSGDM(params, lr=0.1, average=0.9)
    with CertificateLogger(opt, tmp_path / "certificate.csv", every=1) as log:
        for i, (_, p) in enumerate(params):
            p.grad = torch.full((2,), 1.0 + i)
        opt.step()
    figure = log.plot(tmp_path / "certificate.svg")
    assert [text.get_text() for text in figure.axes[2].get_legend().get_texts()] == names


@pytest.mark.parametrize("numbers", [(), (0.0,), (float("nan"), 1.0), (float("inf"), 0.0, 2.0), (1.0,) * 60])
def test_pictures_of_odd_logs(numbers, tmp_path):
    """No rows, zeros, nans and infinities are drawn without a warning."""
    (tmp_path / "certificate.csv").write_text(
        "\n".join(
            [",".join(FIELDS), *(f"{k},too early,{v},{v},{v},{v},{v},1.0,1.0" for k, v in enumerate(numbers, 1)), ""]
        )
    )
    rows = [f"{k},p{i},{v},{v}" for k, v in enumerate(numbers, 1) for i in range(8)]
    (tmp_path / "certificate.layers.csv").write_text("\n".join([",".join(LAYER_FIELDS), *rows, ""]))
    plot(tmp_path / "certificate.csv", tmp_path / "certificate.svg")


@pytest.mark.parametrize("rest", ["", "step,loss\n", "\0\0\n", ",".join(FIELDS)[:-1] + "\n1,2,3\n"])
def test_no_pictures_of_what_is_no_log(rest, tmp_path):
    (tmp_path / "certificate.csv").write_text(rest)
    with pytest.raises(ValueError, match=r"certificate.csv is not a log of certificates"):
        plot(tmp_path / "certificate.csv")


# --- several processes

FORK = """
import os, sys
from logged import make, train
from o2nc import CertificateLogger

model, optimizer = make()
log = CertificateLogger(optimizer, sys.argv[1], every=1)
train(model, optimizer, 2)
child = os.fork()
if child == 0:
    train(model, optimizer, 2)
    os._exit(0)
os.waitpid(child, 0)
train(model, optimizer, 1)
log.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_write_into_its_parents_log(tmp_path):
    """In a process of its own: not every thread of this one survives a fork."""
    path, tests = tmp_path / "c.csv", os.path.dirname(__file__)
    paths = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", FORK, path], check=True, timeout=60, env=environment)
    assert steps(path) == [1, 2, 3]
