"""``o2nc bench``: every optimizer runs, ratios and bytes are what they are called; and the benchmarks start."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from o2nc_experiments import bench, kit

pytestmark = pytest.mark.usefixtures("one_thread")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(bench.MODELS, "tiny", lambda: [(7, 3), (5,)])


def test_every_optimizer_runs(tiny, tmp_path, capsys):
    bench.main(tmp_path, models="tiny", rounds=2, device="cpu")
    costs = json.loads((tmp_path / "bench.json").read_text())["costs"]
    assert [cost["name"] for cost in costs] == [name for own in bench.line_up(False).values() for name in own]
    assert all(cost["milliseconds"] > 0 and cost["ratio"] > 0 and not cost["error"] for cost in costs)
    said = capsys.readouterr().out
    for words in ("tiny: 2 tensors, 26 parameters", "torch AdamW, fused", "o2nc.AdamW, x̄ every 8", "o2nc.SGD"):
        assert words in said
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md"}


@pytest.mark.parametrize(
    ("name", "bytes_"),
    [
        ("torch SGD, fused", 4),
        ("torch AdamW, fused", 8),
        ("o2nc.SGD", 4),
        ("o2nc.AdamW", 8),
        ("o2nc.AdamW, x̄ and certificate", 16),
        ("torch AdamW + swa_utils' EMA", 12),
    ],
)
def test_bytes_of_the_state(name, bytes_):
    """Momentum is one float32 of 4 bytes, Adam's moments two; steps and counts vanish in a large tensor."""
    members = {key: make for own in bench.line_up(False).values() for key, make in own.items()}
    params = [torch.nn.Parameter(torch.zeros(10_000))]
    params[0].grad = torch.ones(10_000)
    found = bench.measure(members[name], members["torch SGD, fused"], params, rounds=1)
    assert found["state"] == pytest.approx(bytes_, abs=0.01)
    assert found["checkpoint"] == pytest.approx(bytes_, abs=0.01)


def test_bytes_of_a_checkpoint(tmp_path):
    """A view is saved with all of its storage, and what shares a storage once; pickles add some kilobytes."""
    whole = torch.zeros(100_000)
    state = {"state": {0: {"view": whole[:10], "other": [whole[5:], torch.zeros(50_000, dtype=torch.bfloat16)]}}}
    torch.save(state, tmp_path / "saved")
    assert bench.bytes_of_checkpoint(state) == 500_000
    assert (tmp_path / "saved").stat().st_size == pytest.approx(500_000, abs=5_000)


def test_a_row_that_fails_does_not_cost_the_others(tiny, tmp_path, monkeypatch):
    def broken(params):
        raise RuntimeError("no such kernel\nmore")

    line_up = bench.line_up(False)
    line_up["AdamW"]["o2nc.AdamW"] = broken
    monkeypatch.setattr(bench, "line_up", lambda cuda: line_up)
    with pytest.raises(SystemExit) as end:
        bench.main(tmp_path, models="tiny", rounds=1, device="cpu", quiet=True)
    assert end.value.code == 1
    costs = {cost["name"]: cost for cost in json.loads((tmp_path / "bench.json").read_text())["costs"]}
    assert costs["o2nc.AdamW"]["error"] == "failed, no such kernel"
    assert sum(bool(cost["error"]) for cost in costs.values()) == 1


@pytest.mark.parametrize(
    ("name", "count"), [("resnet18", 11_173_962), ("gpt2", 124_439_808), ("gpt2-xl", 1_557_611_200)]
)
def test_shapes_are_those_of_the_models(name, count):
    assert sum(torch.Size(shape).numel() for shape in bench.MODELS[name]()) == count


def load_benchmark(path, monkeypatch):
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_steering_traces_a_run_once_and_draws_it(tmp_path, monkeypatch, capsys):
    steering = load_benchmark(BENCHMARKS / "steering.py", monkeypatch)
    monkeypatch.setattr(steering, "LOOKS", 4)
    steering.main(tmp_path, tasks="max-affine", steps=400, device="cpu")
    runs = json.loads((tmp_path / "steering.json").read_text())["runs"]
    constant, ladder = (next(run for run in runs.values() if run["arm"] == arm) for arm in ("constant", "ladder"))
    assert {row["verdict"] for row in constant["trace"]} == {"too early", "stationary"}
    assert ladder["rung"] > 3
    assert (tmp_path / "steering.png").stat().st_size > 10_000
    capsys.readouterr()
    steering.main(tmp_path, tasks="max-affine", steps=400, device="cpu")
    assert capsys.readouterr().out == ""
    with pytest.raises(kit.UsageError, match="--tasks has 'x'"):
        steering.main(tmp_path, tasks="x")


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_says_how_it_is_called(path, monkeypatch, capsys):
    module = load_benchmark(path, monkeypatch)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as end:
        kit.run_script(module.main)
    assert end.value.code == 0
    assert f"python experiments/benchmarks/{path.name}" in capsys.readouterr().out
