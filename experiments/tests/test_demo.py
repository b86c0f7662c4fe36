"""The demo shows the product: one run at x̄ beside decayed runs, and the trap; a tiny one, and a real one if slow."""

import json
import re
import time

import pytest

from o2nc_experiments import demo, gpt, kit

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A demo of a few steps, made once."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        small = gpt.Size(layers=1, width=8, heads=2, context=16, rows=4, warmup=5, evaluated=256, lr=4e-3)
        patch.setattr(demo, "SIZE", small)
        patch.setattr(demo, "CLIMBER_STEPS", 400)
        found = demo.main(out, horizons="20,40", quiet=True)
        begun = time.monotonic()
        again = demo.main(out, horizons="20,40", quiet=True)
    return out, found, again, time.monotonic() - begun


def test_it_compares_one_run_with_a_run_for_every_length(made):
    _, found, again, _ = made
    assert {20, 40} < set(found.average) == set(found.last)
    assert {name: list(own) for name, own in found.decayed.items()} == {"wsd": [20, 40], "linear": [20, 40]}
    assert (again.average, again.decayed) == (found.average, found.decayed)


def test_momentum_climbs_and_scaling_frees_it(made):
    ends = {name: heights[-1] for name, heights in made[1].climber.items()}
    assert ends["momentum alone"] == pytest.approx(0.53 + 0.1 * 400, abs=0.01)  # 0.1 uphill in every step
    assert all(end < 8 for name, end in ends.items() if name != "momentum alone")


def test_it_writes_a_page_a_picture_and_a_record(made):
    out, found, *_ = made
    assert {path.name for path in out.iterdir()} == {"demo.json", "demo.png", "gpt.json", "report.html"}
    record = json.loads((out / "demo.json").read_text())
    assert record["circumstances"]["command"] == "o2nc demo --seed 0 --horizons 20,40"
    assert record["average"]["40"] == found.average[40]
    html = (out / "report.html").read_text()
    for words in (
        "Weights that need no schedule",
        "average=o2nc.Polynomial(12)",
        f"{found.average[40]:.3f}",
        "Gamma(16)",
    ):
        assert words in html


def test_legends_are_words(made):
    figure = demo.figure(made[1], [20, 40])
    labels = [text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()]
    assert len(labels) == 7
    assert not any(re.search(r"[~^_+:]\S", label) for label in labels)
    assert all(axes.get_ylabel() and axes.get_xlabel() for axes in figure.axes)
    assert kit.draw(figure, "png")[:4] == b"\x89PNG"


@pytest.mark.slow
def test_the_average_is_as_good_as_the_decays(tmp_path):
    """The claim of the page, at full size: x̄ of one run within 0.03 nats of the better decay, at every length."""
    begun = time.monotonic()
    found = demo.main(tmp_path, quiet=True)
    for h in demo.HORIZONS:
        assert found.average[h] < min(own[h] for own in found.decayed.values()) + 0.03
    assert found.average[800] < found.last[800] - 0.03
    assert time.monotonic() - begun < 300  # two minutes where nothing else runs
