"""`o2nc bench`: real sets of parameters, clocks that give medians, a command that keeps what it has."""

import json
import math
import subprocess
import sys
from functools import partial

import pytest
import torch

from o2nc_experiments import bench, cli, record
from o2nc_experiments.bench import contenders, measure, timing, view
from o2nc_experiments.classification.resnet import ResNet18

NAMES = [c.name for c in bench.line_up("cpu")]


@pytest.fixture(autouse=True)
def tiny(monkeypatch, one_thread):
    """Two small sets, a short copy, a narrow network."""
    shapes = {"tiny": lambda: [(4, 3), (5,)], "wee": lambda: [(2,)] * 3, "huge": lambda: [(10**9, 10**6)]}
    for name, value in shapes.items():
        monkeypatch.setitem(contenders.MODELS, name, value)
    monkeypatch.setattr(bench, "SMALL", ("tiny", "wee"))
    monkeypatch.setitem(timing.COPIED, "cpu", 2**16)
    for knob, value in ((measure.WIDTH, 2), (measure.BATCH, 2), (measure.BURST, 1)):
        monkeypatch.setitem(knob, "cpu", value)


@pytest.fixture
def broken(monkeypatch):
    """One contender that cannot be made, and one that fails at its third step."""

    def cannot(params):
        raise TypeError("no such thing")

    class Exhausted(torch.optim.SGD):
        def step(self, closure=None):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 3:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.\nMore | of it")

    three = [
        bench.line_up("cpu")[0],
        contenders.Contender("cannot", 20, 4, cannot),
        contenders.Contender("exhausted", 20, 4, partial(Exhausted, lr=0.1)),
    ]
    for module in (measure, bench):
        monkeypatch.setattr(module, "line_up", lambda kind: three)


def call(monkeypatch, capsys, *arguments):
    """Run the command line in this process; return its exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["o2nc", "bench", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


@pytest.mark.parametrize(
    ("model", "tensors", "numbers"),
    [
        ("resnet18", 62, 11_173_962),
        ("gpt2", 148, 124_439_808),
        ("gpt2-xl", 580, 1_557_611_200),
        ("many", 1000, 100_000),
    ],
)
def test_the_sets_of_parameters_are_those_of_the_models(model, tensors, numbers):
    shapes = bench.MODELS[model]()
    assert len(shapes) == tensors
    assert sum(map(math.prod, shapes)) == measure.count(model) == numbers


def test_resnet18():
    model = ResNet18()
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    assert len(list(model.parameters())) == 62
    narrow = ResNet18(classes=7, width=4)
    assert narrow.head.in_features == 32
    logits = narrow(torch.randn(2, 3, 32, 32))
    assert logits.shape == (2, 7)
    logits.sum().backward()
    assert all(p.grad is not None for p in narrow.parameters())


def test_traffic_and_order():
    traffic = {c.name: c.traffic for c in bench.line_up("cuda")}
    assert traffic == {
        "SGD fused": 20,
        "ScaledSGDM fused": 20,
        "ScaledSGDM fused, average=momentum": 28,
        "ScaledSGDM fused, average=0.999": 36,
        "SGD foreach": 20,
        "ScaledSGDM foreach": 20,
        "ScaledSGDM foreach, average=momentum": 28,
        "ScaledSGDM foreach, average=0.999": 36,
        "AdamW fused": 28,
        "o2nc.AdamW fused": 28,
        "o2nc.AdamW fused, x̄": 36,
        "o2nc.AdamW fused, x̄ and certificate": 44,
        "extend(AdamW fused), x̄ and certificate": 52,
        "AdamW fused and swa_utils' EMA": 40,
        "Adam fused": 28,
        "ScaleFree fused, average=False": 28,
        "ScaleFree fused, average=True": 44,
        "SGD fused again": 20,
    }
    for kind in ("cpu", "cuda"):
        names = [c.name for c in bench.line_up(kind)]
        assert names[0] == "SGD fused"  # a ratio needs the base, and the peer, first
        assert all(names.index(c.peer) <= names.index(c.name) for c in bench.line_up(kind))
        assert set(measure.TRAINED) <= set(names)


def test_a_contender_holds_no_more_than_its_estimate():
    params = measure.parameters("tiny", torch.device("cpu"), 0)
    numbers = sum(p.numel() for p in params)
    for c in bench.line_up("cpu"):
        optimizer = c.make(params)
        for _ in range(2):
            optimizer.step()
        if isinstance(optimizer, contenders.WithEma):
            optimizer = optimizer.optimizer
        kept = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
        assert sum(4 * v.numel() for v in kept if v.dim() > 0) <= c.held * numbers, c.name
    assert all(p.isfinite().all() for p in params)


def test_take_turns_gives_the_time_of_every_round(monkeypatch):
    clock = [0.0]
    order = []

    def takes(name, seconds):
        def step():
            order.append(name)
            clock[0] += next(seconds)

        return step

    monkeypatch.setattr(timing, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(timing, "WARM_UP", 1)
    made = []
    found = timing.take_turns(
        {"a": takes("a", iter([9.0, 1.0, 2.0, 4.0])), "b": takes("b", iter([9.0, 3.0, 2.0, 8.0]))}, 3, made.append
    )
    assert found["a"].times == [1.0, 2.0, 4.0]  # the first, 9, warms up
    assert found["b"].times == [3.0, 2.0, 8.0]
    assert [sorted(order[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4
    assert made == [1, 1, 1]
    assert measure.ratio_of(found["b"], found["a"], paired=True) == 2.0  # of 3, 1, 2
    assert measure.ratio_of(found["b"], found["a"], paired=False) == 1.5  # 3 over 2
    assert measure.ratio_of(found["b"], timing.Timing(error="none"), paired=True) is None
    assert measure.ratio_of(found["b"], None, paired=False) is None


def test_a_row_has_median_rate_and_ratios():
    c = contenders.Contender("ours", 30, 4, lambda ps: None, "Adam fused")
    params = [torch.zeros(10), torch.zeros(2, 5)]
    times = {"ours": [2.0, 3.0, 4.0], "SGD fused": [1.0, 1.0, 2.0], "Adam fused": [4.0, 6.0, 8.0]}
    row = measure.step_time("m", params, c, {k: timing.Timing(v) for k, v in times.items()}, copy=400.0, paired=True)
    assert (row.tensors, row.numbers, row.step, row.quartiles) == (2, 20, 3.0, (2.5, 3.5))
    assert (row.rate, row.share, row.ratio, row.peer_ratio) == (200.0, 0.5, 2.0, 0.5)
    (table,) = view.tables([row], [])
    head = [column.name for column in table.columns]
    cells = [cell.text for line in table.lines for cell in line.cells]
    assert table.title == "m: 2 tensors, 20 numbers; a copy moves 0 GB/s"
    assert dict(zip(head, cells, strict=True)) == {
        "contender": "ours",
        "B": "30",
        "step ms": "3000.000",
        "GB/s": "0.00",
        "of copy": "50%",
        "× SGD fused": "2.00",
        "× peer": "0.50",
    }


def test_contenders_that_do_not_fit_together_come_one_by_one(monkeypatch):
    monkeypatch.setattr(measure, "available", lambda device: 0)
    groups = []
    take_turns = timing.take_turns
    monkeypatch.setattr(
        measure, "take_turns", lambda group, *rest: groups.append(list(group)) or take_turns(group, *rest)
    )
    rows = list(bench.measure_steps("tiny", torch.device("cpu"), 1, 0))
    assert groups == [[name, "copy"] for name in NAMES]
    assert all(r.ratio and r.peer_ratio for r in rows)


def test_the_command_prints_and_writes(tmp_path, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, "--rounds", 3, "--device", "cpu", "--training", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "tiny: 2 tensors, 17 numbers" in out
    assert "wee: 3 tensors, 6 numbers" in out
    assert "Training step" in out
    assert "…" not in out

    text = (tmp_path / "bench.json").read_text(encoding="utf-8")
    found = json.loads(text)
    about = found["circumstances"]
    assert about["command"] == "o2nc bench --model tiny --model wee --rounds 3 --device cpu --seed 0 --training"
    assert {"hardware", "threads", "torch", "rounds", "seed"} <= about.keys()
    assert found["complete"] is True
    assert [(r["model"], r["contender"]) for r in found["steps"]] == [(m, n) for m in ("tiny", "wee") for n in NAMES]
    for r in found["steps"]:
        assert r["rate"] == pytest.approx(r["traffic"] * r["numbers"] / r["step"])
        assert r["share"] == pytest.approx(r["rate"] / r["copy"])
        assert r["quartiles"][0] <= r["step"] <= r["quartiles"][1]
        assert r["ratio"] > 0
        assert r["error"] is r["host"] is r["graph"] is None
    assert found["steps"][0]["ratio"] == 1
    assert [(r["contender"], r["mode"]) for r in found["training"]] == [(n, "eager") for n in measure.TRAINED]
    assert all(r["step"] > 0 and r["ratio"] > 0 for r in found["training"])
    assert str(tmp_path) not in text

    lines = (tmp_path / "bench.md").read_text(encoding="utf-8").splitlines()
    assert "median of 3 rounds" in lines[0]
    assert lines[2].startswith("**tiny: 2 tensors, 17 numbers; a copy moves ")
    assert lines[4] == "| contender | B | step ms | GB/s | of copy | × SGD fused | × peer |"
    for name in NAMES:
        assert sum(line.startswith(f"| {name} |") for line in lines) == 2 + (name in measure.TRAINED)
    assert all(line.count("|") == 8 for line in lines[4:18])


def test_quiet_prints_nothing(monkeypatch, capsys):
    assert call(monkeypatch, capsys, "--rounds", 1, "--model", "wee", "--device", "cpu", "--quiet") == (0, "", "")


def test_a_contender_that_fails_gets_a_row_with_the_reason(broken, tmp_path, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, "--model", "wee", "--device", "cpu", "--rounds", 2, "--out", tmp_path)
    assert code == 1
    assert "exhausted: failed, CUDA out of memory" in " ".join(out.split())
    assert err.splitlines() == [
        "o2nc: failed: cannot on wee: TypeError: no such thing",
        "o2nc: failed: exhausted on wee: CUDA out of memory",
    ]
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert [r["error"] for r in found["steps"]] == [None, "TypeError: no such thing", "CUDA out of memory"]
    assert [r["step"] is None for r in found["steps"]] == [False, True, True]
    table = (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert "| cannot: failed, TypeError: no such thing | 20 | – | – | – | – | – |" in table


@pytest.mark.parametrize("finished", [0, 1])
def test_ctrl_c_keeps_what_was_finished(finished, tmp_path, monkeypatch, capsys):
    measure_steps, calls = bench.measure_steps, []

    def interrupted(*arguments):
        if len(calls) == finished:
            raise KeyboardInterrupt
        calls.append(arguments)
        return measure_steps(*arguments)

    monkeypatch.setattr(bench, "measure_steps", interrupted)
    code, out, err = call(monkeypatch, capsys, "--rounds", 1, "--device", "cpu", "--out", tmp_path)
    assert (code, err) == (130, "o2nc: interrupted\n")
    assert f"{finished * len(NAMES)} of {2 * len(NAMES)} rows made" in out
    if finished:
        found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
        assert found["complete"] is False
        assert [r["contender"] for r in found["steps"]] == NAMES
        assert "**tiny" in (tmp_path / "bench.md").read_text(encoding="utf-8")
    else:
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "vgg"], "--model must be one of resnet18, gpt2, gpt2-xl, many"),
        (["--device", "tpu"], "--device must be cpu, cuda or cuda:N, got 'tpu'"),
        (["--device", "cuda:x"], "--device must be"),
        (["--device", "cuda"], "sees no CUDA device here; try --device cpu"),
        (["--device", "cpu", "--model", "huge"], "huge needs 28000000.0 GB of memory, 1.0 GB are free on cpu"),
        (["--rounds", "0"], "--rounds"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_refusals_get_one_line_and_code_2(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench, "available", lambda device: 10**9)
    code, out, err = call(monkeypatch, capsys, *arguments, "--out", tmp_path / "new")
    assert (code, out) == (2, "")
    assert err.startswith("o2nc: ")
    assert err.count("\n") == 1
    assert said in err
    assert not (tmp_path / "new").exists()


def test_what_does_not_fit_is_left_out_unless_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(bench, "SMALL", ("wee", "huge"))
    monkeypatch.setattr(bench, "available", lambda device: 10**9)
    assert bench.plan(rounds=1, device="cpu").models == ["wee"]
    code, out, _ = call(monkeypatch, capsys, "--rounds", 1, "--device", "cpu")
    assert code == 0
    assert out.startswith("left out: huge needs 28000000.0 GB of memory, 1.0 GB are free on cpu\n")
    monkeypatch.setattr(bench, "available", lambda device: 0)
    with pytest.raises(ValueError, match="wee needs"):
        bench.plan(rounds=1, device="cpu")
    monkeypatch.setattr(bench, "available", lambda device: None)  # nothing is known, so nothing is refused
    assert bench.plan(rounds=1, device="cpu").models == ["wee", "huge"]


def test_a_cuda_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert record.find_device("cuda") == torch.device("cuda", 0)
    assert record.find_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="there are 2 CUDA devices"):
        record.find_device("cuda:2")


def test_memory_and_name_of_a_cpu():
    free = record.available(torch.device("cpu"))
    assert free is None or free > 2**20
    assert record._search("x", "/no/such/file") is None
    assert record.describe(torch.device("cpu"))["hardware"]


def test_it_runs_without_the_extras(tmp_path):
    """As ``python -m o2nc_experiments.bench``, on a machine that has torch alone."""
    prelude = "import runpy, sys; sys.modules.update(dict.fromkeys(['typer', 'rich', 'matplotlib', 'scipy']))"
    prelude += "; from o2nc_experiments.bench import timing; timing.COPIED['cpu'] = 2**16"
    code = f"{prelude}; sys.argv[0] = 'bench'; runpy.run_module('o2nc_experiments.bench', run_name='__main__')"
    arguments = ["--model", "many", "--rounds", "1", "--device", "cpu", "--out", str(tmp_path)]
    result = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", code, *arguments],
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "**many: 1,000 tensors, 100,000 numbers; a copy" in result.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bench.json", "bench.md"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(monkeypatch):
    monkeypatch.setitem(timing.COPIED, "cuda", 2**20)
    for knob, value in ((measure.WIDTH, 4), (measure.BATCH, 4), (measure.BURST, 2)):
        monkeypatch.setitem(knob, "cuda", value)
    found = bench.plan(["tiny"], rounds=3, device="cuda", training=True)
    bench.run(found)
    assert found.failed == []
    assert all(r.step and r.host and r.ratio for r in found.rows)
    assert all(r.graph for r in found.rows if r.contender in ("SGD fused", "Adam fused"))
    assert {r.mode for r in found.trained} == {"eager", "graph"}
    assert "graph ms" in view.markdown(found.rows, found.trained, found.circumstances)
