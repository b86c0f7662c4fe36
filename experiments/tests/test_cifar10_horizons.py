"""`o2nc cifar10 --horizons`: one run against a run per horizon, tuned on a seed of its own; stopped on the way."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cifar10_made import (
    CPU,
    ENVIRONMENT,
    SMALL,
    arguments,
    bits,
    call,
    data,
    images,
    make_table,
    outcome,
    recorded,
    run_table,
    stop_after,
    timeless,
    train_by_hand,
    undisturbed,
    write_files,
)
from o2nc import Gamma, Polynomial, Uniform
from o2nc_experiments import figures, page
from o2nc_experiments.cifar10 import horizons, view
from o2nc_experiments.cifar10.arms import parse
from o2nc_experiments.cifar10.batches import to_device
from o2nc_experiments.cifar10.checkpoints import Store
from o2nc_experiments.cifar10.horizons import Goal
from o2nc_experiments.cifar10.options import Options, Settings
from o2nc_experiments.cifar10.training import Trial
from o2nc_experiments.classification import Epoch, curves, from_columns, to_columns
from o2nc_experiments.processes import World
from problem import flat

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = "sgdm(lr=0.05):constant~uniform(0.75,1.25)+t^12"
ARMS = (ONE, "sgdm:cosine2", "sgdm:cosine1~gamma(16)")
RECORD = Path(__file__).parents[2] / "docs" / "results" / "cifar10.json"


# --- arms


@pytest.mark.parametrize(
    ("text", "law", "kind", "end", "window"),
    [
        ("sgdm", None, "cosine", None, None),
        ("sgdm:constant+t^12", None, "constant", None, "t^12"),
        ("sgdm:linear7", None, "linear", 7, None),
        ("sgdm(lr=1):cosine40~gamma(16)+0.99", Gamma(16), "cosine", 40, "0.99"),
        ("sgdm + uniform(0.75, 1.25) + t^2", Uniform(0.75, 1.25), "cosine", None, "t^2"),
        ("ogd:constant~uniform(high=4)", Uniform(0, 4), "constant", None, None),
    ],
)
def test_schedule_law_and_window_by_name(text, law, kind, end, window):
    arm = parse(text)
    assert (arm.law, arm.schedule.kind, arm.end, arm.window) == (law, kind, end, window)
    assert arm.name == text.replace(" ", "")
    assert parse(arm.variant().name).options == arm.options


def test_a_window_is_the_optimizers_and_gamma_from_two_on_needs_no_host():
    made = parse("sgdm:constant+t^12").make([torch.nn.Parameter(torch.zeros(1))], 0.9, 0, CPU)
    assert made.param_groups[0]["average"] == Polynomial(12)
    assert parse("sgdm~gamma(16)").on_device
    assert not parse("sgdm~gamma(1.5)").on_device


def test_variants_are_named_like_what_one_would_write():
    arm = parse("sgdm(momentum=0.8)~gamma(16)+t^4")
    assert arm.variant(lr=0.02, end=40).name == "sgdm(momentum=0.8,lr=0.02):cosine40~gamma(16)+t^4"
    assert parse("sgdm:constant9+t^12").variant(lr=0.5).name == "sgdm(lr=0.5):constant9+t^12"
    assert parse("sgdm(lr=0.5)").variant(lr=0.01).name == "sgdm"  # as it is called in records
    with pytest.raises(ValueError, match="coin-betting has no lr"):
        parse("coin-betting").variant(lr=1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sgdm:wsd20", "the schedule is one of cosine, constant, linear, got wsd"),
        ("sgdm:", "after the optimizer comes :SCHEDULE"),
        ("sgdm:cosine0", "ends after 1 to 1000000 epochs, got 0"),
        ("sgdm:cosine1.5", "after the optimizer comes"),
        ("sgdm+t^", "a window is t^POWER"),
        ("sgdm+1.5", "a window is t^POWER"),
        ("sgdm+t^-2", "t^-2"),
        ("sgdm+t^2+t^3", "a window is t^POWER"),
        ("sgdm~", "after the optimizer comes"),
        ("sgdm~t^2", "after the optimizer comes"),
        ("sgdm+t^2~gamma(16)", "a window is t^POWER"),
        ("adamw+t^12", "only sgdm takes a window"),
        ("ogd+0.9", "only sgdm takes a window"),
        ("sgdm~gamma(16,1,False,3)", "gamma takes shape, scale, weighted, each once"),
        ("sgdm~gamma(16,shape=2)", "each once"),
        ("sgdm~uniform(3)", "a finite number > low = 3"),
    ],
)
def test_refusals_name_the_arm(text, said):
    with pytest.raises(ValueError, match=f"^arm {re.escape(repr(text))}: ") as info:
        parse(text)
    assert said in str(info.value)


# --- trials


def test_a_constant_run_is_what_is_written_openly():
    """lr stays, and x̄_n = x̄_{n−1} + 13/(n + 12)·(x_n − x̄_{n−1}), in float64; x̄ is evaluated where it is asked for."""
    settings = Settings(epochs=21, batch=16, width=1)
    trial = Trial(parse("sgdm(lr=0.02):constant+t^12"), 0, settings, to_device(data(16, 4), CPU, dtype=torch.float64))
    trial.horizons = (5, 7)
    step, average, rows = trial.step, None, []

    def noted():
        nonlocal average
        x = flat(trial.model.parameters())
        n = len(rows) + 1
        average = x if average is None else average + 13 / (n + 12) * (x - average)
        step()

    trial.step = noted
    while not trial.finished:
        rows += train_by_hand(trial, 1)
    found = flat([trial.optimizer.state[p]["average"] for p in trial.model.parameters()])
    np.testing.assert_allclose(found, average, rtol=0, atol=1e-12)
    assert {row.lr for row in rows} == {0.02}
    assert [row.epoch for row in rows if row.average_accuracy is not None] == [2, 4, 5, 6, 7, *range(8, 21, 2), 21]


@pytest.mark.parametrize("law", ["", "~uniform(0.75,1.25)"])
def test_a_run_with_an_end_of_its_own_is_a_run_of_so_many_epochs(law):
    """To the bit, in a table whose others go on."""
    short, ended = Trial(parse(f"sgdm{law}"), 1, replace(SMALL, epochs=2), images()), None
    ended = Trial(parse(f"sgdm:cosine2{law}"), 1, replace(SMALL, epochs=9), images())
    rows = [timeless(train_by_hand(trial)) for trial in (short, ended)]
    assert rows[0] == [row._replace(arm=f"sgdm{law}") for row in rows[1]]
    assert bits(short.state()) == bits(ended.state())
    assert ended.finished


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return undisturbed(tmp_path_factory.mktemp("whole"), ARMS, horizons=(2,))


@pytest.mark.parametrize(("at", "at_once"), [(2, 3), (4, 2), (5, 1)])
def test_stopped_and_gone_on_with_nothing_changes(at, at_once, whole, tmp_path):
    table = make_table(tmp_path, ARMS, horizons=(2,), at_once=at_once)
    with pytest.raises(KeyboardInterrupt):
        run_table(table, stop_after(at))
    told = []
    entries = run_table(table, told.append)
    assert outcome(table, entries) == whole
    assert [len(entry.rows) for entry in entries] == [3, 2, 1]
    assert {(end.row.arm, end.epochs) for end in told} <= set(zip(ARMS, (3, 2, 1), strict=True))
    assert [end.epochs_left for end in told][-1] == 0
    assert table.results(entries, {})["complete"]


# --- what is planned


def row(arm, seed, epoch, last, average=None):
    return Epoch(arm, seed, epoch, 0.01, 0.5, 0.8, 0.6, last, None, None, None, None, average, 2.0)


ASKED = [parse(name) for name in ("sgdm:constant+t^12", "sgdm", "sgdm(lr=0.5)")]
GOAL = Goal(ASKED, [1, 2, 8], [0, 1], (0.01, 0.1), tune=9, tune_epochs=2)
TUNED = [
    *(row(f"sgdm{lr}:constant2+t^12", 9, e, 0.9 - a, a) for lr, a in (("", 0.5), ("(lr=0.1)", 0.6)) for e in (1, 2)),
    *(row(f"sgdm{lr}:cosine1", 9, 1, a, 1 - a) for lr, a in (("", 0.4), ("(lr=0.1)", 0.3))),
    *(row(f"sgdm{lr}:cosine2", 9, 2, a, 1 - a) for lr, a in (("", 0.4), ("(lr=0.1)", 0.5))),
    row("sgdm:cosine1", 0, 1, 0.0),  # of a reported seed: must not count
]


def test_learning_rates_are_tried_on_the_tuning_seed_and_chosen_by_what_counts():
    """x̄ for the constant one, the last iterate for the decay: one for each horizon, the longest for those beyond."""
    assert [arm.name for arm in GOAL.tuning()] == [
        "sgdm:constant2+t^12",
        "sgdm(lr=0.1):constant2+t^12",
        *("sgdm:cosine1", "sgdm(lr=0.1):cosine1", "sgdm:cosine2", "sgdm(lr=0.1):cosine2"),
    ]
    found = {asked: {h: arm.name for h, arm in own.items()} for asked, own in GOAL.plan(TUNED).items()}
    assert found == {
        "sgdm:constant+t^12": dict.fromkeys((1, 2, 8), "sgdm(lr=0.1):constant+t^12"),
        "sgdm": {1: "sgdm:cosine1", 2: "sgdm(lr=0.1):cosine2", 8: "sgdm(lr=0.1)"},
        "sgdm(lr=0.5)": {1: "sgdm(lr=0.5):cosine1", 2: "sgdm(lr=0.5):cosine2", 8: "sgdm(lr=0.5)"},
    }
    assert list(GOAL.plan(TUNED[2:])) == ["sgdm", "sgdm(lr=0.5)"]  # what is not tuned yet is not planned
    assert list(GOAL.plan([])) == ["sgdm(lr=0.5)"]


def test_without_a_grid_nothing_is_tuned_and_one_horizon_is_the_table_as_it_was():
    goal = Options(arm=("sgdm", "sgdm:linear3"), epochs=8, seeds=1).goal()
    assert goal.tuning() == []
    assert goal.is_plain
    assert not Options(horizons="8").goal().is_plain  # laws of s, say, compared seed by seed
    assert {name: {h: arm.name for h, arm in own.items()} for name, own in goal.plan([]).items()} == {
        "sgdm": {8: "sgdm"},
        "sgdm:linear3": {3: "sgdm:linear3"},
    }
    multiples = replace(goal, sweep=(0.5, 2), relative=True, tune=9, tune_epochs=8)
    assert [arm.name for arm in multiples.tuning()][:2] == ["sgdm(lr=0.005)", "sgdm(lr=0.02)"]


def made_record():
    """Two seeds, of which the second is worse by 0.1; x̄ of the one run is ahead by 0.02, then behind by 0.01."""
    rows = list(TUNED)
    for seed in (0, 1):
        down = 0.1 * seed
        ahead = {1: 0.02 + 0.01 * seed, 2: -0.01}
        for epoch, last in ((1, 0.6), (2, 0.7), (3, 0.1)):
            average = last + ahead[epoch] - down if epoch in ahead else None
            rows.append(row("sgdm(lr=0.1):constant+t^12", seed, epoch, 0.5, average))
        rows.append(row("sgdm:cosine1", seed, 1, 0.6 - down, 0.7 - down))
        rows += [row("sgdm(lr=0.1):cosine2", seed, epoch, last - down) for epoch, last in ((1, 0.9), (2, 0.7))]
    rows.remove(row("sgdm:cosine1", 0, 1, 0.0))
    return {"goal": json.loads(json.dumps(GOAL.to_record())), **to_columns(rows)}


def test_tables_have_means_and_paired_differences():
    grid, accuracies, paired = (table.markdown() for table in horizons.tables(made_record()))
    assert "| sgdm:constant+t^12 | 2 | 50.00 | 60.00 ✓ ! |" in grid
    assert "| sgdm | 1 | 40.00 ✓ ! | 30.00 |" in grid
    assert "| sgdm:constant+t^12, x̄ | 0.1 | 57.50 ± 6.36 | 64.00 ± 7.07 | – |" in accuracies
    assert "| sgdm, last | 0.01 to 0.1 | 55.00 ± 7.07 | 65.00 ± 7.07 | – |" in accuracies
    assert "| sgdm:constant+t^12, x̄ | +2.50 ± 0.71 | −1.00 ± 0.00 | – |" in paired
    assert "minus sgdm, last" in paired
    assert "| sgdm, x̄ | +10.00 ± 0.00 | – | – |" in paired
    assert not horizons.tables(to_columns([]))


def test_the_picture_has_a_line_and_dots():
    (axes,) = view.horizons_figure(made_record(), "title").axes
    average, last, decayed = (line for line, *_ in axes.containers)
    assert (average.get_linestyle(), list(average.get_xdata())) == ("-", [1, 2])
    assert list(last.get_xdata()) == [1, 2, 3]
    assert (decayed.get_linestyle(), list(decayed.get_xdata())) == ("None", [1, 2])
    assert list(decayed.get_ydata()) == pytest.approx([0.55, 0.65])
    assert view.horizons_figure(to_columns([]), "title") is None


# --- the command


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"), 40, 12)


@pytest.fixture
def ask(monkeypatch, capsys):
    """Return a function that runs the command in this process, without pictures, which take most of the time."""
    for draw in ("figure", "certificates"):
        monkeypatch.setattr(curves, draw, lambda *_: None)
    monkeypatch.setattr(figures, "save", lambda picture, folder, name: [folder / f"{name}.png"])
    monkeypatch.setattr(page, "write", lambda files, out: out)
    return lambda *given: call(monkeypatch, capsys, *given)


SWEPT = ("--arm", "sgdm:constant+t^12", "--arm", "sgdm", "--seeds", 1, "--horizons", "1,3")
SWEPT += ("--sweep", "lr=0.01,0.1", "--tune", 7, "--tune-epochs", 1)


def test_from_arguments_to_tables_stopped_on_the_way(ask, files, tmp_path, monkeypatch):
    code, out, err = ask(*arguments(files, tmp_path / "whole", *SWEPT))
    assert (code, err) == (0, "")
    assert "4 trials × 1 epoch on cpu" in out
    assert re.search(r"3 trials × 1 to 3 epochs on cpu .*; 4 other trials in the folder", out)
    assert "horizons.png" in out
    found = recorded(tmp_path / "whole")
    assert (found["complete"], found["goal"]["tune"], found["circumstances"]["seeds"]) == (True, 7, [0])
    for text in (out, (tmp_path / "whole" / "cifar10.md").read_text(encoding="utf-8")):
        assert all(part in text for part in ("minus sgdm", "sgdm:constant+t^12, x̄", "lr 0.1", "made anew"))
    sections = view.article(json.loads((tmp_path / "whole" / "cifar10.json").read_text(encoding="utf-8"))).sections
    assert sections[0].title == "One run against a run for every horizon"
    assert "1 × 1" in sections[1].tables[0].markdown()  # tuning runs are not among the results
    assert "2 × 1" not in sections[1].tables[0].markdown()
    step, stops = Trial.step, 0
    while True:
        at = stop_after(6)
        monkeypatch.setattr(Trial, "step", lambda self, at=at: (at(), step(self)))
        code, _, err = ask(*arguments(files, tmp_path / "stopped", *SWEPT, "--save-every", 1e9))
        if code == 0:
            break
        assert (code, err) == (130, "o2nc: interrupted; the same command goes on\n")
        stops += 1
    assert stops >= 2
    assert recorded(tmp_path / "stopped")["rows"] == found["rows"]


def test_complete_trials_go_on_from_the_record_alone(ask, files, tmp_path, monkeypatch):
    """As when only cifar10.json was carried to another machine; a trial that is not complete begins again."""
    given = arguments(files, tmp_path, *SWEPT)
    at, step = stop_after(11), Trial.step
    with monkeypatch.context() as patched:
        patched.setattr(Trial, "step", lambda self: (at(), step(self)))
        assert ask(*given)[0] == 130
    before = recorded(tmp_path)
    assert [trial["complete"] for trial in before["trials"]] == [False, False, False, True, True, True, True]
    assert before["trials"][0]["epochs"] == 1
    shutil.rmtree(tmp_path / "trials")
    (tmp_path / "settings.json").unlink()
    code, out, _ = ask(*given)
    assert code == 0
    assert re.match(r"3 trials × 1 to 3 epochs on cpu .*; 4 other trials in the folder\n", out)
    assert "goes on with" not in out
    found = recorded(tmp_path)
    assert found["complete"]
    assert ask(*arguments(files, tmp_path / "whole", *SWEPT))[0] == 0
    assert recorded(tmp_path / "whole")["rows"] == found["rows"]
    spans = {trial["arm"]: trial["spans"] for trial in found["trials"]}
    assert all(spans[trial["arm"]] == trial["spans"] for trial in before["trials"] if trial["complete"])

    shutil.rmtree(tmp_path / "trials")
    monkeypatch.setattr(Trial, "step", lambda self: pytest.fail("it trains again"))
    assert ask(*given)[0] == 0
    assert recorded(tmp_path) == found
    shutil.rmtree(tmp_path / "trials")
    code, out, err = ask(*given, "--width", 3)
    assert (code, err) == (1, f"o2nc: {tmp_path} has trials with width 2, not width 3; choose another --out\n")
    assert recorded(tmp_path) == found


def test_a_record_that_cannot_be_read_is_written_anew(tmp_path):
    for text in ("", "{", "[]", '{"trials": [{"complete": true}]}'):
        (tmp_path / "cifar10.json").write_text(text)
        assert Store(tmp_path).recorded() == []


def test_the_published_record_is_200_epochs_of_the_cosine(tmp_path):
    """With the same settings and data nobody has to train them again."""
    shutil.copy(RECORD, tmp_path / "cifar10.json")
    published = json.loads(RECORD.read_text(encoding="utf-8"))
    table = make_table(tmp_path, ["sgdm", "sgdm:cosine80"], (0, 1, 2), Settings(), published["settings"]["data"])
    with table.opened(World()) as logs:
        assert [len(log.rows) for log in logs] == [200] * 3 + [0] * 3 + [200] * 3
        found = table.results(logs, {})
    assert [trial["complete"] for trial in found["trials"]] == [True] * 3 + [False] * 3 + [True] * 3
    assert sorted(found["rows"]) == sorted(published["rows"])
    goal = Goal([parse("sgdm")], [80, 200], [0, 1, 2])
    lines = horizons.make_lines(goal, from_columns(found))
    assert [(line.name, list(line.values)) for line in lines] == [("sgdm, last", [200]), ("sgdm, x̄", [200])]
    again = replace(goal, arms=[parse("sgdm(lr=0.01)")])
    assert [arm.name for arm in again.plan([])["sgdm(lr=0.01)"].values()] == ["sgdm:cosine80", "sgdm"]


def test_without_typer_rich_and_matplotlib(files, tmp_path):
    """As on a machine that has torch and nothing else of ours."""
    missing = "sys.modules.update(dict.fromkeys(('typer', 'rich', 'matplotlib', 'jinja2', 'sklearn')))"
    unofficial = "from functools import partial; from o2nc_experiments.cifar10 import study; study.load = "
    unofficial += "partial(study.load, verify=False)"
    code = f"import runpy, sys; {missing}; {unofficial}; "
    code += "runpy.run_module('o2nc_experiments.cifar10', run_name='__main__')"
    arms = ("--arm", "sgdm:constant+t^12", "--arm", "sgdm", "--seeds", 1, "--horizons", "1,2")
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments(files, tmp_path, *arms)],
        env=ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 trials × 1 to 2 epochs" in done.stdout
    assert "| minus sgdm, last | 1 | 2 |" in done.stdout
    assert recorded(tmp_path)["complete"]
    assert {"cifar10.json", "cifar10.md"} < set(os.listdir(tmp_path))
