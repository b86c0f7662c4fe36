"""docs/architecture.md is true: the walk of a step is as short as it says, and an optimizer as flat."""

import re

import pytest
import torch

import o2nc
from pages import PAGES
from walk import summary, walks

PAGE = PAGES["docs/architecture.md"]


def test_a_step_visits_no_more_files_than_the_page_says():
    found = walks()
    files, changes = map(int, re.search(r"visits (\d+) files and changes (\d+) times", PAGE).groups())
    step = summary(found["ScaledSGDM.step()"])
    assert step["files"] <= files <= 5
    assert step["changes"] <= changes <= 10
    assert summary(found["ExponentiatedO2NC(OGD).step()"])["files"] <= 8
    table = PAGE[PAGE.index("## One step") : PAGE.index("## The two backends")]
    assert {file for file, _ in found["ScaledSGDM.step()"]} <= {*re.findall(r"`([\w/]+\.py)`", table)}


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: o2nc.ScaledSGDM(ps, lr=0.1),
        lambda ps: o2nc.ExponentiatedO2NC(ps, o2nc.learners.OGD(0.1)),
        lambda ps: o2nc.OriginalO2NC(ps, o2nc.learners.OGD(0.1), period=2),
        lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps)),
    ],
)
def test_an_optimizer_has_few_classes_of_ours(make):
    opt = make([torch.nn.Parameter(torch.ones(2))])
    ours = [cls for cls in type(opt).__mro__ if cls.__module__.startswith("o2nc")]
    assert len(ours) <= 3


def test_the_page_names_what_is_there():
    import o2nc.backends.eager
    import o2nc.step

    import o2nc.averages
    import o2nc.scaling

    for module, name in re.findall(r"`(scaling|averages|vector)\.(?!py)(\w+)`", PAGE):
        assert hasattr(getattr(o2nc, module), name), f"{module}.{name}"
