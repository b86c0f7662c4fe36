"""`o2nc cifar10`: one line for what cannot be done; files, tables and advice for what can."""

import json
import os
import shlex
import signal
import sys
import time
from dataclasses import fields
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cifar10_made import arguments, call, finish, recorded, start, write_files
from o2nc_experiments import cli, figures
from o2nc_experiments.cifar10 import arms, command, study
from o2nc_experiments.cifar10.names import TABLE
from o2nc_experiments.cifar10.options import Options, Settings
from o2nc_experiments.cifar10.training import Trial
from o2nc_experiments.classification import curves, from_columns
from o2nc_experiments.laws import LAWS

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = ("--arm", "sgdm+exponential", "--seeds", 1, "--epochs", 2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"), 50, 12)


@pytest.fixture
def undrawn(monkeypatch):
    """Without the pictures, which take most of the time."""
    monkeypatch.setattr(figures, "save", lambda picture, folder, name: [folder / f"{name}.png"])


@pytest.fixture
def ask(monkeypatch, capsys):
    """Return a function that runs the command in this process."""
    return lambda *given: call(monkeypatch, capsys, *given)


# --- what it does


def test_help_names_every_option_and_gives_examples(ask, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = ask("--help")
    assert (code, err) == (0, "")
    for option in ("data", "download", "out", "arm", "seed", "seeds", "epochs", "batch", "average", "width", "limit"):
        assert f"--{option} " in out
    for option in ("horizons", "sweep", "tune", "tune-epochs", "device", "at-once", "save-every", "c", "quiet"):
        assert f"--{option} " in out
    assert "o2nc cifar10 --data DIR --seeds 3 --epochs 200" in out
    assert "goes on where it was" in out
    (said,) = (field.metadata["help"] for field in fields(Options) if field.name == "arm")
    assert f"NAME: {', '.join(arms.DEFAULTS)}. " in said
    assert f"LAW: {', '.join(LAWS)}, or none. " in said
    for name in (*arms.DEFAULTS, *LAWS):
        assert name in out


def test_a_run_prints_a_line_per_trial_the_table_and_its_files(ask, files, tmp_path):
    """To a pipe, as here."""
    given = arguments(files, tmp_path / "a" / "b", "--seeds", 2, "--epochs", 3)
    code, out, err = ask(*given)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("4 trials × 3 epochs on cpu (")
    told = [line for line in lines if " seed " in line]
    trials = [f"{arm} seed {seed}" for arm in ("sgdm", "sgdm+exponential") for seed in (0, 1)]
    assert [line.split("  ")[0] for line in told if "epoch 3/3" in line] == trials
    assert [line.split("  ")[0] for line in told if "epoch 1/3" in line] == trials
    assert len(told) == 8  # a short one's first and last
    assert told[-1].endswith("0:00 left")
    assert "train loss" in out
    assert "2 × 3" in out
    assert "\x1b" not in out
    names = ["cifar10.json", "cifar10.md", "cifar10.png", "cifar10.svg", "certificates.png", "certificates.svg"]
    names.append("report.html")
    folder = tmp_path / "a" / "b"
    assert lines[-1] == "Files: " + "  ".join(str(folder / name) for name in names)
    assert {path.name for path in folder.iterdir()} == {*names, "settings.json", "trials", "lock"}
    assert len(list((folder / "trials").iterdir())) == 4
    assert (folder / "cifar10.png").read_bytes().startswith(b"\x89PNG")

    found = json.loads((folder / "cifar10.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert found["complete"] is True
    assert [(row.arm, row.seed, row.epoch) for row in from_columns(found)] == [
        (arm, seed, epoch) for arm in ("sgdm", "sgdm+exponential") for seed in (0, 1) for epoch in (1, 2, 3)
    ]
    about = found["circumstances"]
    assert (
        about["command"]
        == "o2nc cifar10 --data DIR --seeds 2 --epochs 3 --batch 32 --average 0.9 --width 2 --device cpu"
    )
    assert (about["seeds"], about["processes"], about["at_once"]) == ([0, 1], 1, 1)
    assert {"o2nc", "torch", "python", "hardware", "threads"} <= about.keys()
    assert found["settings"]["limit"] is None
    assert str(tmp_path) not in json.dumps(found)
    assert about["command"] in (folder / "cifar10.md").read_text(encoding="utf-8")


def test_again_it_trains_nothing_and_shows_the_same(ask, files, tmp_path, undrawn, monkeypatch):
    first = ask(*arguments(files, tmp_path, *SHORT))
    monkeypatch.setattr(Trial, "step", lambda self: pytest.fail("it trains again"))
    code, out, err = ask(*arguments(files, tmp_path, *SHORT))
    assert (code, err) == (0, "")
    opening, _, rest = out.partition("\n")
    assert opening.endswith("; 1 of 1 finished")
    assert first[1].endswith(" left\n" + rest)


def test_quiet_prints_nothing(ask, files, tmp_path, undrawn):
    assert ask(*arguments(files, tmp_path, *SHORT, "--quiet")) == (0, "", "")
    assert recorded(tmp_path)["complete"]
    code, out, err = ask(*arguments(files, tmp_path, *SHORT, "--quiet", "--width", 3))
    assert (code, out) == (1, "")
    assert "width 2, not width 3" in err


def test_a_terminal_has_bars(ask, files, tmp_path, undrawn, monkeypatch):
    screen = StringIO()
    shown = Console(file=screen, force_terminal=True, width=120, highlight=False, color_system=None)
    monkeypatch.setattr(command, "make_console", lambda quiet: shown)
    assert ask(*arguments(files, tmp_path, "--arm", "sgdm(lr=1e20)", "--seeds", 1, "--epochs", 2))[::2] == (0, "")
    assert "the table" in screen.getvalue()
    assert "images/s" in screen.getvalue()
    assert "sgdm(lr=1e20) seed 0" in screen.getvalue()
    assert "2/2" in screen.getvalue()


def test_the_bar_of_the_table_begins_with_what_is_finished(ask, files, tmp_path, undrawn, monkeypatch):
    assert ask(*arguments(files, tmp_path, *SHORT))[0] == 0
    screen = StringIO()
    shown = Console(file=screen, force_terminal=True, width=120, highlight=False, color_system=None)
    monkeypatch.setattr(command, "make_console", lambda quiet: shown)
    monkeypatch.setattr(Trial, "step", lambda self: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        ask(*arguments(files, tmp_path, "--arm", "sgdm", *SHORT))
    assert "2/4" in screen.getvalue()
    assert "0/4" not in screen.getvalue()


def test_a_dumb_terminal_has_lines(ask, files, tmp_path, undrawn, monkeypatch):
    screen = StringIO()
    monkeypatch.setenv("TERM", "dumb")
    shown = Console(file=screen, force_terminal=True, width=120, highlight=False, color_system=None)
    monkeypatch.setattr(command, "make_console", lambda quiet: shown)
    assert ask(*arguments(files, tmp_path, *SHORT))[::2] == (0, "")
    assert "sgdm+exponential seed 0  epoch 2/2" in screen.getvalue()
    assert "the table" not in screen.getvalue()


def test_other_arms_and_seeds_are_added_to_the_files(ask, files, tmp_path, undrawn):
    assert ask(*arguments(files, tmp_path, *SHORT))[0] == 0
    code, out, _ = ask(*arguments(files, tmp_path, "--arm", "adamw", "--seed", 5, *SHORT[2:]))
    assert code == 0
    assert out.startswith("1 trial × 2 epochs on cpu (")
    assert out.partition("\n")[0].endswith("; 1 other trial in the folder")
    found = recorded(tmp_path)
    assert [(trial["arm"], trial["seed"]) for trial in found["trials"]] == [("adamw", 5), ("sgdm+exponential", 0)]
    assert len(found["rows"]) == 4
    assert "| sgdm+exponential |" in (tmp_path / "cifar10.md").read_text(encoding="utf-8")
    assert "not all trained alike" not in out


def test_trials_that_were_not_trained_alike_are_told(ask, files, tmp_path, undrawn):
    assert ask(*arguments(files, tmp_path, *SHORT))[0] == 0
    torch.set_num_threads(2)
    _, out, _ = ask(*arguments(files, tmp_path, "--arm", "adamw", *SHORT))
    assert "not all trained alike: threads 2 and 1\n" in out
    text = (tmp_path / "cifar10.md").read_text(encoding="utf-8")
    assert "**Not all trained alike:** threads 2 and 1" in text
    threads = [[place["threads"] for place in trial["places"]] for trial in recorded(tmp_path)["trials"]]
    assert threads == [[2], [1]]


def test_pictures_of_former_trials_do_not_stay(ask, files, tmp_path, undrawn):
    for name in ("certificates.png", "certificates.svg"):
        (tmp_path / name).write_text("of a trial that was deleted")
    assert ask(*arguments(files, tmp_path, "--arm", "adamw", *SHORT[2:]))[0] == 0
    assert not list(tmp_path.glob("certificates.*"))


def test_days_on_a_cpu_are_announced(ask, files, tmp_path, monkeypatch):
    monkeypatch.setattr(Trial, "step", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    _, out, _ = ask(*arguments(files, tmp_path, "--width", 64, "--epochs", 100_000))
    assert "on a CPU this takes days" in out
    _, out, _ = ask(*arguments(files, tmp_path / "small", "--width", 8, "--epochs", 100))
    assert "takes days" not in out


def test_a_warning_is_a_line(ask, files, tmp_path, undrawn):
    code, out, err = ask(*arguments(files, tmp_path, "--arm", "sgdm+gamma(shape=2,weighted=True)", *SHORT[2:]))
    assert (code, err) == (0, "")
    assert out.startswith("warning: Gamma(shape=2, weighted=True): E[w(s)²] is infinite for shape >= 2")


def test_without_a_standard_output(ask, files, tmp_path, undrawn, monkeypatch):
    """As with >&-; pytest's own capture is not disturbed."""
    monkeypatch.setattr(sys, "stdout", None)
    assert ask(*arguments(files, tmp_path, *SHORT)) == (0, "", "")


def test_a_diverged_arm_has_one_sign_everywhere(ask, files, tmp_path, undrawn):
    code, out, _ = ask(*arguments(files, tmp_path, "--arm", "sgdm(lr=1e20)", *SHORT[2:]))
    assert code == 0
    text = (tmp_path / "cifar10.md").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("| sgdm(lr=1e20) |"))
    shown = " ".join(line for line in out.splitlines() if line.startswith(" sgdm(lr=1e20)"))
    assert shown.split()[1:5] == [cell.strip() for cell in line.split("|")[2:6]]


def test_the_setting_is_in_titles_and_notes(ask, files, tmp_path, undrawn, monkeypatch):
    titles, figure = [], curves.figure
    monkeypatch.setattr(curves, "figure", lambda rows, title: titles.append(title) or figure(rows, title))
    _, out, _ = ask(*arguments(files, tmp_path, *SHORT, "--limit", 40))
    assert titles == ["CIFAR-10, ResNet-18, batch 32, width 2, limit 40"]
    assert "not in this setting (epochs 2, batch 32, width 2, limit 40)" in " ".join(out.split())


def test_limit(ask, files, tmp_path, undrawn, monkeypatch):
    sizes, to_device = [], study.to_device
    monkeypatch.setattr(
        study,
        "to_device",
        lambda data, *rest: sizes.extend((len(data.train_images), len(data.test_images))) or to_device(data, *rest),
    )
    assert ask(*arguments(files, tmp_path, *SHORT, "--limit", 40))[0] == 0
    assert sizes == [40, 8]
    assert recorded(tmp_path)["settings"]["limit"] == 40


def test_data_that_was_fetched(ask, files, tmp_path, undrawn, monkeypatch):
    asked = []

    def download(folder, tell):
        asked.append(folder)
        tell(1, 2)
        if not folder.exists():
            folder.mkdir(parents=True)
            for path in files.iterdir():
                (folder / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(study, "download", download)
    given = arguments(files, tmp_path / "run", *SHORT)[2:]
    for more in (["--download"], ["--download"], []):  # the second and the third find it
        assert ask(*given, *more)[::2] == (0, "")
    assert ask(*given, "--download", "--data", files)[0] == 0
    assert ask(*given, "--download", "--data", tmp_path / "own")[0] == 0
    assert asked == [tmp_path / "run" / "data", tmp_path / "own"]


def test_the_same_arm_twice_is_one_column(ask, files, tmp_path, undrawn):
    given = arguments(files, tmp_path, "--arm", "adamw", "--arm", "adamw", "--seeds", 1, "--epochs", 1)
    assert ask(*given)[0] == 0
    assert [(trial["arm"], trial["seed"]) for trial in recorded(tmp_path)["trials"]] == [("adamw", 0)]


def test_two_spellings_of_an_arm_are_two_columns_or_one_or_refused(ask, files, tmp_path, undrawn):
    """But a run does not end with an error after its first trial."""
    spellings = ("--arm", "sgdm(lr=0.1, momentum=0)", "--arm", "sgdm(lr=0.1 ,momentum=0)")
    given = arguments(files, tmp_path, *spellings, "--seeds", 1, "--epochs", 1)
    codes = [ask(*given)[0] for _ in range(2)]
    assert codes in ([0, 0], [2, 2])


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["--arm", "sgdm", "--arm", "sgdm+exponential"],
        ["--arm", "sgdm+exponential"],
        ["--arm", "sgdm(lr=0.1, nesterov=True)+weibull(shape=1.25)", "--arm", "adamw", "--seed", "7", "--seeds", "2"],
        ["--c", "2.5", "--device", "cpu"],
        ["--horizons", "2,5", "--sweep", "lr=0.01,0.02", "--tune", "9", "--tune-epochs", "2"],
        ["--batch", "64", "--average", "0.99", "--width", "8", "--limit", "1000", "--epochs", "5", "--seed", "1"],
    ],
)
def test_the_command_that_is_written_down_is_the_one_that_was_given(given, ask, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(command, "show", seen.append)
    ask("--data", tmp_path, "--out", tmp_path, *given)
    parts = shlex.split(seen[0].command)
    assert parts[:4] == ["o2nc", "cifar10", "--data", "DIR"]
    ask("--data", tmp_path, "--out", tmp_path, *parts[4:])
    for name in ("arms", "trials", "settings", "horizons", "sweep", "tune", "tune_epochs", "c", "device"):
        assert getattr(seen[0], name) == getattr(seen[1], name)


def test_defaults_are_table_1(ask, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(command, "show", seen.append)
    monkeypatch.chdir(tmp_path)
    ask("--data", tmp_path)
    asked = seen[0]
    assert (asked.arms, asked.trials, asked.settings) == (TABLE, range(3), Settings())
    assert (asked.out, asked.quiet, asked.download, asked.c) == (Path("o2nc-cifar10"), False, False, 1.0)


# --- interruptions


def test_ctrl_c_keeps_what_there_is_and_says_how_to_go_on(ask, files, tmp_path, undrawn, monkeypatch):
    step, made = Trial.step, []

    def interrupted(self):
        made.append(self)
        if len(made) == 4:  # in the second epoch: the first has two steps
            raise KeyboardInterrupt
        step(self)

    given = arguments(files, tmp_path / "run", *SHORT[:-1], 4, "--save-every", 1e9)
    with monkeypatch.context() as patched:
        patched.setattr(Trial, "step", interrupted)
        code, out, err = ask(*given)
    assert (code, err) == (130, "o2nc: interrupted; the same command goes on\n")
    assert "epoch 1/4" in out
    assert out.endswith("\ninterrupted, writing results …\n")
    found = recorded(tmp_path / "run")
    assert (found["complete"], len(found["rows"])) == (False, 1)
    assert "Not complete" in (tmp_path / "run" / "cifar10.md").read_text(encoding="utf-8")
    code, out, _ = ask(*given)
    assert code == 0
    assert out.partition("\n")[0].endswith("; it goes on with sgdm+exponential seed 0 from epoch 2")
    assert ask(*arguments(files, tmp_path / "whole", *SHORT[:-1], 4))[0] == 0
    assert recorded(tmp_path / "run")["rows"] == recorded(tmp_path / "whole")["rows"]


def test_ctrl_c_before_the_first_epoch_is_over(ask, files, tmp_path, monkeypatch):
    monkeypatch.setattr(Trial, "step", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    code, out, err = ask(*arguments(files, tmp_path, *SHORT))
    assert (code, err) == (130, "o2nc: interrupted; the same command goes on\n")
    assert out.splitlines()[1:] == ["interrupted, writing results …"]
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "settings.json", "trials"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has other signals")
@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_signals_for_real(files, tmp_path, number, code, said):
    given = arguments(files, tmp_path, *SHORT[:-1], 100_000, "--save-every", 0)
    process = start(*given)
    while not list(tmp_path.glob("trials/*.pt")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(number)
    found = finish(process)
    assert found[0] == code
    assert found[2] == f"o2nc: {said}; the same command goes on\n"
    assert recorded(tmp_path)["complete"] is False
    assert len(recorded(tmp_path)["rows"]) >= 1


# --- what it refuses

NEITHER = "--data DIR, or have them fetched (170 MB) with --download"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--arm", "sgd"], "arm 'sgd': the optimizer is one of sgdm, adamw"),
        (["--arm", "sgdm", "--arm", "sgdm(lr=nan)"], "arm 'sgdm(lr=nan)'"),
        (["--arm", ""], "arm ''"),
        (["--arm", "sgdm(lr=1)+[bold]x[/bold]"], "[bold]x[/bold]"),
        (["--batch", "51"], "--batch 51 is more than 50 images"),
        (["--batch", "32", "--limit", "31"], "--batch 32 is more than 31 images"),
        (["--batch", "1"], "--batch"),
        (["--average", "1"], "--average must be a number in (0, 1), got 1.0"),
        (["--average", "0"], "--average must be"),
        (["--average", "-0.5"], "--average must be"),
        (["--average", "nan"], "--average must be"),
        (["--average", "inf"], "--average must be"),
        (["--average", "x"], "--average"),
        (["--c", "0"], "--c must be"),
        (["--c", "nan"], "--c"),
        (["--c", "1e300"], "--c"),
        (["--out", ""], "must name a folder"),
        (["--out", " "], "must name a folder"),
        (["--limit", "50001"], "--limit"),
        (["--seeds", "1000000000"], "--seeds"),
        (["--width", "1000000"], "--width"),
        (["--limit", "0"], "--limit"),
        (["--limit", "1.5"], "--limit"),
        (["--epochs", "0"], "--epochs"),
        (["--seeds", "0"], "--seeds"),
        (["--seed", "-1"], "--seed"),
        (["--seed", str(2**70)], "--seed"),
        (["--width", "0"], "--width"),
        (["--at-once", "0"], "--at-once"),
        (["--save-every", "-1"], "--save-every"),
        (["--device", "tpu"], "--device must be cpu, cuda or cuda:N"),
        (["--horizons", "0,2"], "--horizons takes whole numbers >= 1"),
        (["--horizons", "1,x"], "--horizons takes whole numbers"),
        (["--horizons", "1,3"], "--epochs 2 must be the last of --horizons 1,3, or be left out"),
        (["--sweep", "lr=0.1,0.2"], "--sweep lr=… needs a seed to choose on"),
        (["--tune", "5"], "needs a grid to choose from"),
        (["--tune", "0", "--sweep", "lr=0.1"], "--tune 0 must not be one of the seeds 0"),
        (["--tune", "5", "--sweep", "momentum=0.1"], "--sweep takes lr="),
        (["--tune", "5", "--sweep", "lr=0.1", "--tune-epochs", "3"], "from 1 to 2, got 3"),
        (["--tune", "5", "--sweep", "lr=0.1", "--arm", "coin-betting"], "coin-betting has no lr"),
        (["--tune-epochs", "1"], "--tune-epochs goes with --tune"),
        (["--nonsense"], "--nonsense"),
        (["extra"], "extra"),
    ],
    ids=str,
)
def test_refusals_get_one_line_and_code_2(given, said, ask, files, tmp_path):
    code, out, err = ask(*arguments(files, tmp_path / "run", *SHORT[2:], *given))
    assert (code, out) == (2, "")
    assert err.startswith("o2nc: ")
    assert err.count("\n") == 1
    assert said in err
    assert not (tmp_path / "run" / "settings.json").exists()


def test_a_refusal_leaves_no_folder_behind(ask, files, tmp_path):
    for more in (["--arm", "sgd"], ["--average", "1"], ["--batch", "51"], ["--data", tmp_path / "none"]):
        assert ask(*arguments(files, tmp_path / "run", *more))[0] in (1, 2)
        assert not (tmp_path / "run").exists(), more


def test_a_device_that_is_not_there(ask, files, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = ask(*arguments(files, tmp_path, "--device", "cuda"))
    assert (code, out) == (2, "")
    assert "no CUDA device" in err


def test_without_data(ask, tmp_path):
    code, out, err = ask("--out", tmp_path)
    assert (code, out) == (2, "")
    assert "CIFAR-10 is needed: name the folder of its official files" in err
    assert NEITHER in err
    code, out, err = ask("--out", tmp_path, "--data", tmp_path / "nowhere")
    assert (code, out) == (1, "")
    assert err.startswith(f"o2nc: there is no CIFAR-10 in {tmp_path / 'nowhere'}")
    assert err.count("\n") == 1


def test_files_that_are_not_official_are_refused(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["o2nc", "cifar10", *arguments(files, tmp_path)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    said = capsys.readouterr().err
    assert exit_.value.code == 1
    assert said == f"o2nc: {files / 'data_batch_1.bin'} has 30730 bytes, the official file 30730000\n"


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below"])
def test_a_folder_that_cannot_be_made(place, ask, files, tmp_path):
    (tmp_path / "file").write_text("x")
    code, out, err = ask(*arguments(files, tmp_path / place, *SHORT))
    assert (code, out) == (2 if place == "file" else 1, "")
    assert "file" in err
    assert err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "x"


def test_a_folder_that_cannot_be_written(ask, files, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "fsync", refuse)
    code, out, err = ask(*arguments(files, tmp_path, *SHORT))
    assert (code, out) == (1, "")
    assert err == f"o2nc: {tmp_path / 'settings.json'} cannot be written: Permission denied\n"


def test_a_batch_that_a_team_cannot_share(ask, files, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    code, out, err = ask(*arguments(files, tmp_path))
    assert (code, out) == (2, "")
    assert err == "o2nc: Invalid value: --batch 32 cannot be shared by 3 processes\n"


@pytest.mark.parametrize(
    "values", [{"WORLD_SIZE": "x"}, {"WORLD_SIZE": "0"}, {"RANK": "-1"}, {"RANK": "1"}, {"RANK": ""}], ids=str
)
def test_an_environment_that_torchrun_never_makes(values, ask, files, tmp_path, monkeypatch):
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    code, out, err = ask(*arguments(files, tmp_path))
    assert (code, out) == (1, "")
    assert err.startswith("o2nc: the environment has RANK=")
    assert err.count("\n") == 1


def test_a_team_that_nobody_has_started(ask, files, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    code, out, err = ask(*arguments(files, tmp_path))
    assert (code, out) == (1, "")
    assert err.startswith("o2nc: the 2 processes of WORLD_SIZE cannot meet: ")
    assert err.count("\n") == 1


def test_a_damaged_checkpoint_is_one_line(ask, files, tmp_path, undrawn):
    assert ask(*arguments(files, tmp_path, *SHORT))[0] == 0
    (path,) = (tmp_path / "trials").iterdir()
    os.truncate(path, 1000)
    code, out, err = ask(*arguments(files, tmp_path, *SHORT))
    assert (code, out) == (1, "")
    assert err.startswith(f"o2nc: {path} is damaged")
    assert err.endswith("delete it to begin this trial again\n")
    assert err.count("\n") == 1
