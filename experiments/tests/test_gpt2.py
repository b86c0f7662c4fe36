"""The benchmark of lr="auto" at the size of GPT-2: branches, finished runs; and Prodigy."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from o2nc_experiments import gpt, text
from o2nc_experiments.prodigy import Prodigy

pytestmark = pytest.mark.usefixtures("one_thread")
SIZE = gpt.Size(layers=1, width=8, heads=2, context=8, rows=4, warmup=3, evaluated=128, lr=1e-2)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def gpt2():
    path = Path(__file__).parents[1] / "benchmarks" / "gpt2.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_gpt2", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.SIZES["test"] = SIZE
    return module


@pytest.fixture
def lab(tmp_path):
    tokens = (np.random.default_rng(0).integers(0, 8, 4000) * np.arange(4000) % 11).astype(np.uint8)
    corpus = text.Corpus(tokens[:3500], tokens[3500:], 16, "numbers")
    return gpt.Lab(tmp_path, corpus, SIZE, CPU, "", save_every=1e9)


def weights(lab):
    return torch.cat([p.detach().flatten() for p in lab.model.parameters()])


def test_a_branch_is_a_wsd_run_and_leaves_its_trunk_as_it_is(gpt2, lab, monkeypatch):
    job, trainer = gpt2.Job("constant", 1e-2, 0, 200), gpt2.Trainer(lab, (100, 200))
    found, end = trainer.run(job), weights(lab)
    for h in (100, 200):
        whole = lab.run("wsd", 1e-2, 0, h, [h], lambda *_: None)["losses"][str(h)]
        assert found["wsd"][str(h)] == whole["last"]
    monkeypatch.setattr(gpt2.Trainer, "decay", lambda *_: 0.0)
    alone = gpt2.Trainer(lab, (100, 200)).run(job)
    assert torch.equal(weights(lab), end)
    assert found["course"] == alone["course"]
    assert found["losses"] == alone["losses"]
    assert trainer.steps_of(job) == 200 + 20 + 40


def test_finished_runs_are_not_repeated(gpt2, tmp_path, monkeypatch, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("the quick brown fox jumps over the lazy dog; " * 100)
    options = {"out": tmp_path / "out", "data": tmp_path / "data", "size": "test", "device": "cpu"}
    options |= {"rows": 2, "steps": "100,200"}
    gpt2.main(**options, minutes=1e-6)
    assert capsys.readouterr().out.count("no time left") > 5
    gpt2.main(**options)
    first = json.loads((tmp_path / "out" / "gpt.json").read_text())["runs"]
    assert {run["arm"] for run in first.values()} == {*gpt2.ARMS}
    assert {h for run in first.values() for h in run["losses"]} == {"50", "100", "150", "200"}
    monkeypatch.setattr(gpt2.Trainer, "run", None)
    gpt2.main(**options)
    said = capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "gpt.json").read_text())["runs"] == first
    assert all(f"{arm.label}; 200" in said for arm in gpt2.ARMS.values())
    assert (tmp_path / "out" / "gpt2.png").exists()


def test_prodigy_is_the_published_algorithm():
    """In float64, on two tensors: d and x after steps with a schedule are those of the equations."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, dtype=torch.float64, generator=generator)
    params = [torch.nn.Parameter(part.clone()) for part in x.split((5, 3))]
    opt = Prodigy(params, betas=(0.9, 0.95), weight_decay=0.1, d=1e-3)
    start, m, v, s, r, d = x.clone(), 0.0, 0.0, 0.0, 0.0, 1e-3
    for t in range(60):
        g = x - 3 + torch.randn(8, dtype=torch.float64, generator=generator)
        opt.param_groups[0]["lr"] = lr = 1 - t / 100
        for p, own in zip(params, g.split((5, 3)), strict=True):
            p.grad = own.clone()
        opt.step()
        m, v = 0.9 * m + 0.1 * d * g, 0.95 * v + 0.05 * (d * g) ** 2
        r = 0.95**0.5 * r + lr * d**2 * float(g @ (start - x))
        s = 0.95**0.5 * s + lr * d**2 * g
        x = x - lr * d * (m / (v.sqrt() + d * 1e-8) + 0.1 * x)
        d = max(d, r / float(s.abs().sum()))
        assert opt.param_groups[0]["d"] == pytest.approx(d, rel=1e-9)
        assert torch.allclose(torch.cat([p.detach() for p in params]), x, rtol=1e-9)
    assert d > 0.01
