"""What ``o2nc gpt`` does otherwise on a GPU; needs torch alone."""

from dataclasses import replace

import pytest
import torch

from o2nc_experiments.gpt import data
from o2nc_experiments.gpt.arms import parse
from o2nc_experiments.gpt.options import SMALL
from o2nc_experiments.gpt.training import Trainer, Training

TINY = replace(SMALL, layers=1, width=8, heads=2, context=8, batch=16, warmup=2, evaluated=64)
ARM = parse("adamw(lr=0.02):constant~uniform(0.75,1.25)+t^4+0.9")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_goes_on_from_a_file(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} times {n} is {n * n}. " for n in range(200)))
    trainer = Trainer(data.load(text), TINY, torch.device("cuda"))
    training = Training(trainer, ARM, 0.02, 0, ARM.windows, 4)
    training.advance(1.0)
    torch.save(training.state(), tmp_path / "state.pt")
    training.advance(1.0)
    expected = training.report()
    other = Training(trainer, ARM, 0.02, 0, ARM.windows, 4)
    other.restore(torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=False))
    other.advance(1.0)
    assert other.report().loss == pytest.approx(expected.loss, rel=1e-3)
