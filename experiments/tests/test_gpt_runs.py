"""Runs of ``o2nc gpt``: branches and stops change no bit; the command from arguments to page."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from o2nc_experiments import cli, page
from o2nc_experiments.gpt import command, data, experiment
from o2nc_experiments.gpt.arms import parse
from o2nc_experiments.gpt.experiment import Execution, Stop, carry_out
from o2nc_experiments.gpt.options import SMALL
from o2nc_experiments.gpt.planning import Goal, Results, wanted
from o2nc_experiments.gpt.store import NAME, UNFINISHED, Store
from o2nc_experiments.gpt.training import Trainer, Training

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = replace(SMALL, layers=1, width=8, heads=2, context=8, batch=16, warmup=2, evaluated=64)
HORIZONS = (10, 20)
ARMS = ("adamw(lr=0.02):constant~uniform(0.75,1.25)+t^4+0.9", "adamw(lr=0.02):wsd20~uniform(0.75,1.25)+t^4")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    place = tmp_path_factory.mktemp("data") / "text.txt"
    place.write_text("".join(f"{n} times {n} is {n * n}. " for n in range(200)))
    return place


@pytest.fixture(scope="module")
def trainer(text):
    return Trainer(data.load(text), TINY, torch.device("cpu"))


def goal(*names, horizons=HORIZONS, seeds=(0,)):
    return Goal([parse(name) for name in names or ARMS], horizons, seeds)


def silent(*_):
    pass


def all_runs(goal, trainer, folder, *, watch=silent, save_every=math.inf):
    """Carry a goal out in a folder, go on with what is there, and return what was found, without times."""
    store = Store(folder, {})
    with store.locked():
        found = store.load()

        def finished(rows):
            store.save(found, {"command": "o2nc gpt"}, goal, complete=not wanted(goal, found.rows))

        carry_out(goal, found, trainer, store, watch=watch, on_run=finished, save_every=save_every)
    return timeless(found)


def timeless(found):
    return found.rows, found.course


def steps(folder):
    """How many steps each run took, those included that an interrupted branch took again."""
    return [speed.steps for speed in Store(folder, {}).load().speeds]


def test_a_branch_is_the_run_that_was_decayed_from_the_start(trainer, tmp_path):
    """To the bit, whatever the trunk did meanwhile: losses and averages at both horizons."""
    rows, _ = all_runs(goal(), trainer, tmp_path)
    assert steps(tmp_path) == [20 + 2 + 4]
    shared = Results(rows)
    for name in ARMS:
        arm = parse(name)
        for horizon in HORIZONS:
            training = Training(trainer, arm, arm.lr, 0, arm.windows, horizon)
            for step in range(horizon):
                training.advance(arm.schedule.factor(step, horizon, TINY.warmup))
            alone = {weights: training.evaluate(weights) for weights in arm.weights}
            assert shared.losses[name, arm.lr, 0, horizon] == alone
    assert len(rows) == 2 * 3 + 2 * 2
    decayed, constant = (shared.losses[name, 0.02, 0, 20]["last"] for name in reversed(ARMS))
    assert decayed != constant


def test_the_course_has_certificates(trainer, tmp_path):
    rows, course = all_runs(goal(), trainer, tmp_path)
    assert [point.step for point in course] == list(range(1, 21))
    assert all(point.gradient > 0 and point.spread >= 0 for point in course)
    assert course[-1].train_loss < course[0].train_loss
    assert all(row.gradient > 0 for row in rows)
    (at_end,) = {row.spread for row in rows if row.arm == ARMS[0] and row.horizon == 20}
    assert at_end == course[-1].spread


class Killed(BaseException):
    """Stands for SIGKILL: nothing may be done about it."""


@pytest.fixture(scope="module")
def whole(trainer, tmp_path_factory):
    return all_runs(goal(), trainer, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("at", [1, 5, 9, 10, 15, 17, 20, 26])
def test_stopped_at_any_step_and_continued_nothing_changes(at, trainer, whole, tmp_path, monkeypatch):
    """Step 9 and 10 are on the first branch, 23 to 26 on the second."""
    made, check = [0], Stop.check

    def counted(self):
        made[0] += 1
        if made[0] == at:
            raise KeyboardInterrupt
        check(self)

    with monkeypatch.context() as patched:
        patched.setattr(Stop, "check", counted)
        with pytest.raises(KeyboardInterrupt):
            all_runs(goal(), trainer, tmp_path)
        assert (tmp_path / UNFINISHED).exists()
    trainer.model.begin_(5)  # as if another process went on
    assert all_runs(goal(), trainer, tmp_path) == whole
    assert not (tmp_path / UNFINISHED).exists()


def test_killed_it_goes_on_from_its_last_checkpoint(trainer, whole, tmp_path, monkeypatch):
    made, advance = [0], Training.advance

    def dying(self, factor):
        made[0] += 1
        if made[0] % 9 == 0:
            raise Killed
        advance(self, factor)

    monkeypatch.setattr(Training, "advance", dying)
    deaths = 0
    while True:
        try:
            found = all_runs(goal(), trainer, tmp_path, save_every=0.0)
            break
        except Killed:
            deaths += 1
            assert deaths < 10
    assert deaths >= 2
    assert found == whole


def test_a_damaged_checkpoint_is_only_more_to_do_again(trainer, whole, tmp_path):
    (tmp_path / UNFINISHED).write_bytes(b"no checkpoint")
    assert all_runs(goal(), trainer, tmp_path) == whole


def test_what_is_finished_is_not_run_again(trainer, whole, tmp_path, monkeypatch):
    all_runs(goal(), trainer, tmp_path)
    more = goal(*ARMS, "adamw(lr=0.02):linear")
    rows, _ = all_runs(more, trainer, tmp_path)
    assert steps(tmp_path) == [26, 10, 20]
    assert rows[: len(whole[0])] == whole[0]
    monkeypatch.setattr(Training, "advance", lambda *_: pytest.fail("it trains again"))
    assert all_runs(more, trainer, tmp_path)[0] == rows


def test_a_run_that_diverges_ends_and_says_so(trainer, tmp_path):
    hopeless = goal("sgdm(lr=1e30):constant+t^4", "sgdm(lr=1e30):linear")
    rows, _ = all_runs(hopeless, trainer, tmp_path)
    assert all(row.loss is None for row in rows)
    assert len(rows) == 2 * 2 + 2
    assert sum(steps(tmp_path)) < 50
    json.loads((tmp_path / NAME).read_text(), parse_constant=pytest.fail)


def test_seeds_are_runs_of_their_own(trainer, tmp_path):
    rows, _ = all_runs(goal(ARMS[0], seeds=(0, 1)), trainer, tmp_path)
    by_seed = [[row.loss for row in rows if row.seed == seed] for seed in (0, 1)]
    assert len(by_seed[0]) == len(by_seed[1]) == 6
    assert set(by_seed[0]).isdisjoint(by_seed[1])


def test_signals_wait_for_the_step_to_end(trainer):
    stop = Stop(trainer)
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(SystemExit) as raised:
            stop.check()
    assert raised.value.code == experiment.TERMINATED


# --- the command

KNOBS = "--layers 1 --width 8 --heads 2 --context 8 --batch 16 --warmup 2 --evaluated 64 --horizons 10,20 --seeds 0,1"
CHOSEN = ["--arm", "adamw:constant+t^4", "--arm", "adamw:wsd20", "--arm", "adamw:linear", "--sweep", "lr=0.01,0.02"]


@pytest.fixture
def ask(capsys, monkeypatch):
    """Run ``o2nc gpt`` in this process: code, standard output, standard error."""

    def ask(*arguments):
        monkeypatch.setattr(sys, "argv", ["o2nc", "gpt", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    before = signal.getsignal(signal.SIGTERM)
    yield ask
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def made(text, tmp_path_factory):
    """A folder with the results of a small comparison."""
    out = tmp_path_factory.mktemp("made") / "out"
    command = [sys.executable, "-m", "o2nc_experiments.gpt", "--data", text, "--out", out, *KNOBS.split(), *CHOSEN]
    done = subprocess.run([*command, "--tune", "7"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return out, done.stdout


def test_where_only_torch_is_installed_it_prints_markdown(made):
    out, printed = made
    assert {path.name for path in out.iterdir()} == {NAME, "lock"}
    assert "6 runs of 112 steps in all on cpu" in printed
    for line in ("| adamw:constant, x̄ by t^4 | 0.0", "| adamw:wsd20 | 0.0", "| forward and backward |"):
        assert line in printed
    assert "one run, minus the best decayed run in nats: " in printed
    assert "No learning rate was tuned" not in printed


def test_the_record_and_the_page(made, tmp_path):
    out, _ = made
    found = json.loads((out / NAME).read_text())
    assert found["complete"]
    about = found["circumstances"]
    assert about["command"].startswith("o2nc gpt --data DATA --arm 'adamw:constant+t^4' --arm adamw:wsd20")
    assert str(out) not in json.dumps(found)
    assert found["settings"]["data"] == "text.txt"
    assert {row[2] for row in found["rows"]} == {0, 1, 7}
    html = page.write([out], tmp_path / "page.html").read_text(encoding="utf-8")
    for words in (
        "A language model without a schedule",
        "Learning rates",
        "seed 7, which is not reported",
        "tokens/s",
    ):
        assert words in html
    assert html.count("<svg") >= 5


def test_the_command_goes_on_and_shows_it_all(made, ask, text, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / NAME).write_bytes((made[0] / NAME).read_bytes())
    code, printed, err = ask("--data", text, "--out", out, *KNOBS.split(), *CHOSEN, "--tune", 7)
    assert (code, err) == (0, "")
    assert printed.startswith("0 runs of 0 steps in all on cpu")
    assert "difference to the best decayed run" in printed
    assert {path.name for path in out.iterdir()} == {NAME, "gpt.png", "gpt.svg", "report.html", "lock"}
    code, _, err = ask("--data", text, "--out", out, *KNOBS.split(), "--width", 16)
    assert code == 1
    assert "has runs with width 8" in err
    assert "choose another --out" in err


@pytest.fixture
def undrawn(monkeypatch):
    """Leave the pictures out, which take the most time."""
    monkeypatch.setattr(command.figures, "save", lambda *_: [])
    monkeypatch.setattr(page, "svg", lambda picture: "")


def test_from_nothing_to_the_files(ask, text, tmp_path, undrawn):
    code, printed, err = ask("--data", text, "--out", tmp_path, *KNOBS.split(), "--no-costs")
    assert (code, err) == (0, "")
    assert "seed 1, lr 0.004: adamw(lr=4e-3):linear to 20: last " in printed
    assert (tmp_path / "report.html").exists()


def test_interrupted_it_says_how_to_go_on(ask, text, tmp_path, monkeypatch, undrawn):
    finish = Execution.finish

    def interrupting(self):
        if self.run.legs[0].seed == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return finish(self)

    arguments = ["--data", text, "--out", tmp_path, *KNOBS.split(), "--arm", "adamw:constant+t^4", "--no-costs"]
    with monkeypatch.context() as patched:
        patched.setattr(Execution, "finish", interrupting)
        code, _, err = ask(*arguments)
    assert (code, err) == (130, "o2nc: interrupted; the same command goes on\n")
    assert not json.loads((tmp_path / NAME).read_text())["complete"]
    assert {UNFINISHED, "report.html"} <= {path.name for path in tmp_path.iterdir()}
    code, printed, _ = ask(*arguments)
    assert code == 0
    assert printed.startswith("1 run of 20 steps in all")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--arm", "adam:linear"], 2, "the optimizer is one of"),
        (["--arm", "adamw(beta1=2):linear"], 2, "arm 'adamw(beta1=2):linear': "),
        (["--horizons", "1"], 2, "longer than the warm-up"),
        (["--data", "nowhere"], 1, "is not there"),
        (["--context", "4096", "--batch", "4096", "--evaluated", "4096"], 1, "--context 4096 needs 4,097"),
    ],
)
def test_refusals_are_one_line(arguments, code, said, ask, text, tmp_path):
    found = ask("--data", text, "--out", tmp_path / "out", *arguments)
    assert found[:2] == (code, "")
    assert said in found[2]
    assert found[2].count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_batch_that_processes_cannot_share_is_refused(ask, text, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    code, _, err = ask("--data", text)
    assert code == 2
    assert "--batch 1024 is 16 rows, which 3 processes cannot share" in err


@pytest.mark.slow
def test_two_processes_find_what_one_finds(made, text, tmp_path):
    """Up to the order of sums: they share batches and the evaluation, and both know when to stop."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "o2nc_experiments.gpt", "--data", text, "--out", tmp_path, *KNOBS.split(), *CHOSEN]
    done = subprocess.run([*command, "--tune", "7"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("6 runs of 112 steps in all") == 1
    one, two = (Store(folder, {}).load().rows for folder in (made[0], tmp_path))
    assert [row[:5] for row in one] == [row[:5] for row in two]
    assert [row.loss for row in two] == pytest.approx([row.loss for row in one], rel=1e-4)


def test_the_standard_library_is_text():
    corpus = data.load(None)
    assert len(corpus.train) > 1e6
    assert len(corpus.held_out) > 1e4
    assert corpus.vocabulary == data.BYTES
