"""The digits: a split that never moves, arms that differ in s alone, the figures of the rows, and the story."""

import json
import math
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console
from sklearn.datasets import load_digits

import o2nc
from o2nc_experiments.classification import Epoch, to_columns
from o2nc_experiments.console import one_thread
from o2nc_experiments.demo import climber, command, digits
from o2nc_experiments.page import page

pytestmark = pytest.mark.usefixtures("one_thread")
RANDOM = "sgdm+exponential"


@pytest.fixture(scope="module")
def data():
    return digits.load()


def as_they_are(row):
    """All of a row but the time it took."""
    return row._replace(seconds=0.0)


def made(arm, seed, accuracies, averages=None):
    """Rows with these test accuracies, and certificates 1, 1/2, 1/3, …"""
    return [
        Epoch(
            arm, seed, i, 0.01, 1 / i, 0.9, 2 / i, a, 0.9 / i, 1 / i, -1.0, 0.5, (averages or accuracies)[i - 1], 0.1
        )
        for i, a in enumerate(accuracies, 1)
    ]


# --- data and training


def test_the_split_is_fixed_disjoint_and_has_a_quarter_of_every_digit(data):
    torch.manual_seed(1)
    again = digits.load()
    for name in ("train", "train_labels", "test", "test_labels"):
        assert torch.equal(getattr(data, name), getattr(again, name))
    assert (len(data.train), len(data.test)) == (1352, 445)
    for digit in range(10):
        train, test = (int((labels == digit).sum()) for labels in (data.train_labels, data.test_labels))
        assert test == (train + test) // 4
    whole = torch.tensor(load_digits().images, dtype=torch.float32)
    assert len(torch.unique(whole.flatten(1), dim=0)) == len(whole)  # so that equal images would be the same image
    both = torch.cat([data.train, data.test])
    assert len(torch.unique(both.flatten(1), dim=0)) == len(whole)


def test_images_are_normalised_by_the_training_images_alone(data):
    deviation, mean = torch.std_mean(data.train)
    assert (mean.item(), deviation.item()) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    assert abs(data.test.mean().item()) > 1e-3
    assert data.train.amin() == data.test.amin()  # white is white in both


def test_the_network_has_kinks_and_no_state_but_its_weights():
    kinds = {type(layer) for layer in digits.network()}
    assert {torch.nn.ReLU, torch.nn.MaxPool2d} <= kinds
    assert list(digits.network().buffers()) == []


def test_both_arms_of_a_seed_begin_alike_and_see_the_same_batches(data, monkeypatch):
    seen = {}

    def watched(model, images, labels):
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        now.append((weights, labels))
        return judge(model, images, labels)

    judge = digits.judge
    monkeypatch.setattr(digits, "judge", watched)
    for arm, seed in [("sgdm", 0), (RANDOM, 0), ("sgdm", 1)]:
        now = seen[arm, seed] = []
        digits.train(arm, seed, 1, data)
    one, other, elsewhere = seen.values()
    assert len(one) == 1352 // 32 + 2  # and two evaluations
    assert torch.equal(one[0][0], other[0][0])
    assert all(torch.equal(a[1], b[1]) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[1][0], other[1][0])  # the first step is scaled already
    assert not torch.equal(one[0][0], elsewhere[0][0])
    assert not torch.equal(one[0][1], elsewhere[0][1])


def test_without_scaling_it_is_torchs_sgd(data):
    torch.manual_seed(3)
    model = digits.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    order, losses = torch.Generator().manual_seed(3), []
    for epoch in range(2):
        optimizer.param_groups[0]["lr"] = 0.005 * (1 + math.cos(math.pi * epoch / 2))
        for batch in torch.randperm(1352, generator=order)[:1344].split(32):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(data.train[batch]), data.train_labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    row = digits.train("sgdm", 3, 2, data)[-1]
    assert row.train_loss == pytest.approx(sum(losses[42:]) / 42, rel=1e-12)
    right = (model(data.test).argmax(1) == data.test_labels).float().mean().item()
    assert row.test_accuracy == pytest.approx(right, rel=1e-6)


def test_one_seed_gives_one_record_to_the_bit(data):
    first = [as_they_are(row) for row in digits.train(RANDOM, 4, 2, data)]
    torch.rand(7)  # the global generator plays no part, and is left alone
    before = torch.get_rng_state()
    assert [as_they_are(row) for row in digits.train(RANDOM, 4, 2, data)] == first
    assert torch.equal(torch.get_rng_state(), before)
    assert [as_they_are(row) for row in digits.train(RANDOM, 5, 2, data)] != first


@pytest.mark.parametrize("arm", digits.ARMS)
def test_it_learns_to_read(arm, data):
    told = []
    rows = digits.train(arm, 0, 6, data, told.append)
    assert told == rows
    assert [row.epoch for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1].test_accuracy > 0.85
    assert rows[-1].average_accuracy > 0.8
    assert rows[-1].train_loss < rows[0].train_loss / 4
    assert rows[-1].gradient < rows[0].gradient / 2
    assert [row.lr for row in rows] == sorted((row.lr for row in rows), reverse=True)


def test_averages_are_those_of_the_optimizer(data, monkeypatch):
    made = []

    class Watched(o2nc.ScaledSGDM):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            made.append(self)

    monkeypatch.setattr(o2nc, "ScaledSGDM", Watched)
    row = digits.train(RANDOM, 0, 1, data)[-1]
    certificate = made[0].certificate()
    assert (row.gradient, row.spread, row.progress) == (certificate.gradient, certificate.spread, made[0].progress)
    assert row.average_accuracy != row.test_accuracy


def test_threads_are_given_back():
    def stopped():
        with one_thread():
            assert torch.get_num_threads() == 1
            raise KeyboardInterrupt

    torch.set_num_threads(2)
    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert torch.get_num_threads() == 2


# --- table, sentences, story


def test_the_table_has_the_best_of_each_trial_and_no_rows_of_the_paper():
    rows = made("sgdm", 0, [0.8, 0.94, 0.9]) + made("sgdm", 1, [0.96, 0.9, 0.9]) + made(RANDOM, 0, [0.5, 0.6, 0.7])
    console = Console(width=80)
    with console.capture() as shown:
        console.print(digits.table(rows))
    lines = [" ".join(line.split()) for line in shown.get().splitlines()]
    best, last = (line for line in lines if line.startswith("SGDM "))
    assert best.endswith("95.00 ± 1.41")  # of 94 and 96
    assert last.startswith("SGDM 90.00 ± 0.00 90.00 ± 0.00 0.333 ± 0.000")
    assert not [line for line in lines if line.startswith("paper")]
    assert "BatchNorm" not in shown.get()


def test_the_summary_compares_seeds_that_both_arms_have():
    rows = made("sgdm", 0, [0.8, 0.9]) + made(RANDOM, 0, [0.7, 0.8], [0.6, 0.85]) + made("sgdm", 1, [0.1, 0.1])
    assert digits.summary(made("sgdm", 0, [0.8]), 445) == ""
    compared, certified = digits.summary(rows, 445).splitlines()
    assert "the best test accuracy is 90.00 % without and 80.00 % with scaling." in compared
    assert "by −10.00 points at its best and by −10.00 at the end (1 seed; one image is 0.22)." in compared
    assert "went from 1 after the first epoch to 0.5 after the last" in certified
    assert "x̄ then read 85.00 % of the test images and the last weights 80.00 %" in certified


def test_differences_are_taken_seed_by_seed():
    """Seeds differ by far more than the arms do: the deviation is that of the differences +1, 0 and +2 points."""
    rows = [row for seed, a in enumerate((0.7, 0.8, 0.9)) for row in made("sgdm", seed, [a, a - 0.1])]
    rows += [row for seed, a in enumerate((0.71, 0.8, 0.92)) for row in made(RANDOM, seed, [a - 0.1, a])]
    assert digits.difference(rows) == "+1.00 ± 1.00 points at its best and by +11.00 ± 1.00 at the end"
    assert f"{digits.difference(rows)} (3 seeds; one image is 0.22)." in digits.summary(rows, 445)
    assert digits.difference(made("sgdm", 0, [0.9]) + made(RANDOM, 0, [0.88])).startswith("−2.00 points")


def climbed(seeds, steps):
    return [climber.climb(*trial, steps) for trial in climber.trials(seeds)]


def record(rows, runs, complete=True):
    about = command.circumstances(range(3), 5, 2, digits.load())
    whole = {"circumstances": about, "complete": complete, "seconds": 1.0, "digits": to_columns(rows)}
    whole["climber"] = {"runs": [vars(run) | {"certificates": run.certificates} for run in runs]}
    return json.loads(json.dumps(whole))


class Words(HTMLParser):
    """What a reader of the page can read."""

    def __init__(self, html):
        super().__init__()
        self.words = []
        self.feed(html)

    def handle_data(self, data):
        self.words += data.split()

    def __str__(self):
        return " ".join(self.words)


def test_the_story_is_told_from_the_record_alone(tmp_path, monkeypatch):
    rows = made("sgdm", 0, [0.8, 0.9]) + made(RANDOM, 0, [0.7, 0.93], [0.6, 0.94])
    found = record(rows, climbed([0], steps=20))
    monkeypatch.setattr(digits, "load", lambda: pytest.fail("the data are not needed"))
    told = command.article(found)
    assert [len(section.tables) for section in told.sections] == [1, 0, 1, 0, 0]
    assert [section.title for section in told.sections] == [
        "Momentum can walk uphill",
        "The same in 10 dimensions",
        "A network with kinks, on real handwriting",
        "The certificate that comes with the weights",
        "Change one line",
    ]
    text = str(Words(page({tmp_path / "demo.json": found})))
    for words in (
        "F goes from 0.53 to 2.53 without it, and ends at ",  # the findings come first
        "it changes test accuracy by +3.00 points at its best and by +3.00 at the end; one image is 0.22",
        "the averaged weights are: from 1 after the first epoch to 0.5 after the last",
        "F went from 0.53 to 2.53, while the optimizer's own estimate of the change is −2.",
        "the first 20 steps on it",
        "where the weights lie up to 1 from their average, and 1e-05 on the slope",
        "import o2nc # opt = torch.optim.SGD(",
        "90.00 % without and 93.00 % with scaling",
        "The averaged weights x̄ then read 94.00 % of the test images",
        "opt = o2nc.ScaledSGDM(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.0005, average=0.99)",
    ):
        assert words in text


@pytest.mark.some(2)
@pytest.mark.parametrize(("runs", "trials"), [(1, 0), (2, 0), (5, 0), (8, 1), (8, 2)])
def test_what_is_there_is_told_of_an_interrupted_demo(runs, trials, tmp_path):
    rows = [row for arm in list(digits.ARMS)[:trials] for row in made(arm, 0, [0.9])]
    found = record(rows, climbed([0, 1, 2], steps=5)[:runs], complete=False)
    assert ("A network with kinks" in (html := page({tmp_path / "demo.json": found}))) == (trials > 0)
    assert "Not complete" in html


def test_scaled_is_blue_and_unscaled_red_in_all_pictures():
    rows = made("sgdm", 0, [0.8]) + made(RANDOM, 0, [0.7])
    sections = command.article(record(rows, climbed([0], steps=5))).sections
    colours = {line.get_label(): line.get_color() for section in sections for line in section.legend}
    assert colours["with scaling, seed 0"] == colours["scaled SGDM"]
    assert colours["without scaling, any seed"] == colours["SGDM"]
    assert colours["SGDM"] != colours["scaled SGDM"]
