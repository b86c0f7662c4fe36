"""A table trains what is missing, trial by trial, and its results are rows, seconds and news."""

import json
import math
import random
import threading
import time
from dataclasses import replace

import pytest
import torch

from cifar10_made import (
    ARMS,
    SMALL,
    bits,
    images,
    make_table,
    outcome,
    run_table,
    stop_after,
    timeless,
    train_by_hand,
    undisturbed,
)
from o2nc_experiments.cifar10 import experiment as table_module
from o2nc_experiments.cifar10.arms import parse
from o2nc_experiments.cifar10.checkpoints import Store, differences
from o2nc_experiments.cifar10.experiment import union
from o2nc_experiments.cifar10.training import Trial
from o2nc_experiments.classification import Epoch, from_columns, to_columns
from o2nc_experiments.processes import World

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("whole"))


# --- what is trained and kept


def test_a_table_is_its_trials(whole):
    rows, states = whole
    for arm in ARMS:
        trial = Trial(parse(arm), 0, SMALL, images())
        assert timeless(train_by_hand(trial)) == rows[f"{arm} seed 0"]
        assert bits(trial.state()) == states[f"{arm} seed 0"]


@pytest.mark.parametrize("at_once", [2, 9])
def test_trials_at_once_do_not_touch_each_other(at_once, whole, tmp_path):
    table = make_table(tmp_path, at_once=at_once)
    with pytest.raises(KeyboardInterrupt):
        run_table(table, stop_after(5))
    assert outcome(table, run_table(table)) == whole


def test_a_finished_trial_is_not_repeated(whole, tmp_path, monkeypatch):
    table = make_table(tmp_path)
    run_table(table)
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))}
    monkeypatch.setattr(table_module, "Trial", stop_after(1, AssertionError("a trial was begun")))
    entries = run_table(table, stop_after(1, AssertionError("an epoch was trained")))
    assert outcome(table, entries) == whole
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*.*"))} == before


def test_only_what_is_new_is_trained(whole, tmp_path, monkeypatch):
    begun = []

    def note(arm, seed, *rest):
        begun.append((arm.name, seed))
        return Trial(arm, seed, *rest)

    monkeypatch.setattr(table_module, "Trial", note)
    run_table(make_table(tmp_path, ARMS[:1]))
    entries = run_table(make_table(tmp_path, ARMS[:1], (0, 1)))
    assert [(entry.seed, len(entry.rows)) for entry in entries] == [(0, 3), (1, 3)]
    run_table(make_table(tmp_path, ARMS[:2], (1, 0)))
    assert begun == [(ARMS[0], 0), (ARMS[0], 1), (ARMS[1], 1), (ARMS[1], 0)]
    table = make_table(tmp_path)
    entries = run_table(table)
    assert begun[4:] == [(ARMS[2], 0)]
    assert [(entry.name, entry.requested) for entry in entries[3:]] == [
        (f"{arm} seed 1", False) for arm in ARMS[1::-1]
    ]
    assert outcome(table, entries[:3]) == whole


def test_results_have_all_trials_of_the_folder_those_asked_for_first(tmp_path):
    first = run_table(make_table(tmp_path, ["sgdm(lr=0.1)"], (0, 3)))
    table = make_table(tmp_path, ["adamw"])
    entries = run_table(table)
    found = table.results(entries, {})
    names = [("adamw", 0), ("sgdm(lr=0.1)", 0), ("sgdm(lr=0.1)", 3)]
    assert [(trial["arm"], trial["seed"]) for trial in found["trials"]] == names
    assert found["complete"] is True
    assert from_columns(found)[3:] == [row for entry in first for row in entry.rows]
    with pytest.raises(KeyboardInterrupt):
        run_table(make_table(tmp_path, ["ogd"]), stop_after(1))
    entries = run_table(table)
    found = table.results(entries, {})
    assert [trial["epochs"] for trial in found["trials"]] == [3, 1, 3, 3]  # one that is not over is shown as well
    assert found["complete"] is False


def test_places_are_noted_with_every_trial(tmp_path):
    one = {"hardware": "Abacus", "threads": 1, "torch": torch.__version__, "seeds": [0]}
    two = one | {"threads": 2}
    for count, place in ((2, one), (1, one | {"seeds": [5]}), (1, two)):  # the other way round nothing is to be noted
        table = make_table(tmp_path, ARMS[:2], settings=replace(SMALL, epochs=4), place=place)
        with pytest.raises(KeyboardInterrupt):
            run_table(table, stop_after(count))
    entries = run_table(table)
    found = table.results(entries, {})["trials"]
    noted = {"hardware": "Abacus", "torch": torch.__version__}
    assert [trial["places"] for trial in found] == [
        [{"from_epoch": 1, "threads": 1, **noted}, {"from_epoch": 4, "threads": 2, **noted}],
        [{"from_epoch": 1, "threads": 2, **noted}],
    ]
    assert differences(found) == "threads 1 and 2"
    assert differences(found[1:]) == differences([{"arm": "of an older record"}]) == ""


def test_seconds_grow_with_every_epoch(tmp_path):
    table, seen = make_table(tmp_path, ARMS[:1], save_every=math.inf), []
    with table.opened(World()) as entries:
        table.train(entries, images(), World(), lambda news: seen.append(table.results(entries, {})["seconds"]))
    assert 0 < seen[0] < seen[1] < seen[2]


def test_what_is_kept_is_a_copy(tmp_path, monkeypatch):
    """It is written while the training goes on: here only after the next epoch has begun."""
    begun, written = threading.Event(), []
    save, begin = Store.save, Trial.begin_epoch

    def late(self, name, state):
        if state["epoch"] < SMALL.epochs:
            assert begun.wait(30)
            begun.clear()
            time.sleep(0.05)
        written.append(bits({key: state[key] for key in ("epoch", "model", "optimizer")}))
        save(self, name, state)

    def note(self):
        if self.epoch:
            begun.set()
        return begin(self)

    monkeypatch.setattr(Store, "save", late)
    monkeypatch.setattr(Trial, "begin_epoch", note)
    run_table(make_table(tmp_path, ARMS[:1]))
    monkeypatch.undo()
    trial = Trial(parse(ARMS[0]), 0, SMALL, images())
    for state in written:
        train_by_hand(trial, 1)
        assert state == bits(trial.state())
    assert len(written) == 3


# --- rows


def rows_with(*values):
    row = Epoch("sgdm", 0, 1, 0.01, 0.5, 0.8, 0.6, 0.7, 1.5, 0.25, -0.125, 0.5, 0.75, 2.0)
    return [row._replace(epoch=e, train_loss=v, test_loss=v, gradient=v) for e, v in enumerate(values, 1)]


def test_rows_survive_json():
    rows = rows_with(0.1, 1e-300, 5e-324, 1.7976931348623157e308, 1 / 3, None)
    assert from_columns(to_columns(rows)) == rows
    assert from_columns(json.loads(json.dumps(to_columns(rows), allow_nan=False))) == rows
    assert from_columns(to_columns([])) == []


def test_what_is_no_number_is_none_in_json():
    found = from_columns(
        json.loads(json.dumps(to_columns(rows_with(math.nan, math.inf, -math.inf)), allow_nan=False))
    )
    assert [row.train_loss for row in found] == [None] * 3
    assert found == rows_with(None, None, None)
    assert from_columns(to_columns(found)) == found


def test_columns_are_found_by_name():
    record = to_columns(rows_with(0.5))
    order = list(range(len(Epoch._fields)))[::-1]
    turned = {"columns": [record["columns"][i] for i in order], "rows": [[record["rows"][0][i] for i in order]]}
    assert from_columns(turned) == rows_with(0.5)
    with pytest.raises(ValueError):
        from_columns({"columns": record["columns"], "rows": [record["rows"][0][:-1]]})


# --- results and news


def test_results_of_a_diverged_run_are_strict_json(tmp_path):
    table = make_table(tmp_path, ["sgdm(lr=1e20)", "adamw"], (0, 1))
    begin = time.time()
    entries = run_table(table)
    wall = time.time() - begin
    found = json.loads(json.dumps(table.results(entries, {"command": "x"}), allow_nan=False))
    assert found["circumstances"] == {"command": "x"}
    assert found["settings"] == {"epochs": 3, "batch": 32, "average": 0.9, "width": 2, "limit": None, "data": "made"}
    assert found["complete"] is True
    assert 0 < found["seconds"] <= wall
    assert [(t["arm"], t["seed"], t["epochs"], t["complete"]) for t in found["trials"]] == [
        (arm, seed, 3, True) for arm in ("sgdm(lr=1e20)", "adamw") for seed in (0, 1)
    ]
    rows = from_columns(found)
    assert [(row.arm, row.seed, row.epoch) for row in rows] == [
        (arm, seed, epoch) for arm in ("sgdm(lr=1e20)", "adamw") for seed in (0, 1) for epoch in (1, 2, 3)
    ]
    assert rows[2].train_loss is None
    assert rows[-1].train_loss > 0
    again = run_table(table)  # a checkpoint has nan itself
    assert table.results(again, {"command": "x"}) == table.results(entries, {"command": "x"})


def test_results_of_an_unfinished_run(tmp_path):
    table = make_table(tmp_path)
    with pytest.raises(KeyboardInterrupt), table.opened(World()) as entries:
        table.train(entries, images(), World(), stop_after(5))
    found = table.results(entries, {})
    assert found["complete"] is False
    assert [(t["epochs"], t["complete"]) for t in found["trials"]] == [(3, True), (2, False), (0, False)]
    assert table.results([], {})["complete"] is False


def test_seconds_add_up_over_processes(tmp_path):
    table = make_table(tmp_path, ARMS[:1])
    begin = time.time()
    with pytest.raises(KeyboardInterrupt):
        run_table(table, stop_after(2))
    first = time.time() - begin
    time.sleep(0.5)
    begin = time.time()
    entries = run_table(table)
    second = time.time() - begin
    (one, two) = entries[0].spans
    assert one[0] < one[1] < two[0] < two[1]
    assert table.results(entries, {})["seconds"] == pytest.approx(one[1] - one[0] + two[1] - two[0])
    assert one[1] - one[0] <= first
    assert two[1] - two[0] <= second


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0),
        ([(1, 1)], 0),
        ([(0, 2), (1, 3), (5, 6)], 4),
        ([(5, 6), (1, 3), (0, 2)], 4),
        ([(0, 10), (1, 2), (3, 4)], 10),
        ([[0.0, 1.0], [1.0, 2.0]], 2),
        ([(0, 1), (0, 3), (0, 2)], 3),
    ],
)
def test_union(spans, length):
    assert union(spans) == length


def test_union_counts_every_moment_once():
    rng = random.Random(0)
    for _ in range(50):
        begins = [rng.randrange(30) for _ in range(6)]
        spans = [(b, b + rng.randrange(12)) for b in begins]
        assert union(spans) == len({moment for b, e in spans for moment in range(b, e)})


def test_news_tell_the_whole_table(tmp_path):
    told = []
    run_table(make_table(tmp_path, ARMS[:2], (0, 1)), told.append)
    assert [news.epochs_left for news in told] == list(range(11, -1, -1))
    assert all(news.rate > 0 for news in told)
    assert [news.left > 0 for news in told] == [True] * 11 + [False]
    assert [(news.row.arm, news.row.seed, news.row.epoch) for news in told] == [
        (arm, seed, epoch) for arm in ARMS[:2] for seed in (0, 1) for epoch in (1, 2, 3)
    ]
