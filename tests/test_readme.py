"""Every Python block of the README runs as written, in order, in one namespace."""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent


def test_readme(capsys):
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    namespace = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)
    value, loss, exponential, optimal, plan, steps = capsys.readouterr().out.splitlines()
    assert 0 < float(value) < 1
    assert 0 < float(loss) < 1
    values = [float(line.split(" = ")[2].split()[0]) for line in (exponential, optimal)]
    assert 0 < values[1] < values[0]
    assert float(plan.split()[0]) < 0.2
    assert int(steps) == 453_385
    opt, model, data = namespace["opt"], namespace["model"], namespace["data"]
    model(data).abs().mean().backward()
    opt.step()  # the learner that the README writes


def test_files_that_the_readme_names_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert "docs/images/climber.png" in links
    for path in [*links, "src/o2nc/learners/ogd.py", "src/o2nc/learners/__init__.py"]:
        assert (ROOT / path).exists(), path
