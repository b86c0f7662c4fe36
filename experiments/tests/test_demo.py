"""The climber does what is claimed, and the command behaves: files, exit codes, silence, plain text in a pipe."""

import json
import os
import platform
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import o2nc
from o2nc_experiments import cli
from o2nc_experiments.demo import climber, command, digits

SHORT = ("--steps", 100, "--epochs", 2, "--seed", 5)  # as short as may be
PNG = b"\x89PNG\r\n\x1a\n"
FORCING = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def shell(*arguments, prelude="", cwd=None):
    """Run the command line in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k not in FORCING}
    code = f"{prelude}\nfrom o2nc_experiments.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**environment, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


def call(monkeypatch, capsys, *arguments):
    """Run the command line in this process; return its exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["o2nc", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def climbed(seeds, steps, dimension):
    """Runs without scaling, and with it for every seed."""
    return [climber.climb(*trial, steps) for trial in climber.trials(seeds) if trial[0] == dimension]


@pytest.fixture(scope="module")
def short_runs():
    return climbed([0, 1, 2], 400, dimension=1)


def test_without_scaling_f_rises_by_a_tenth_per_step(short_runs):
    plain, *_ = short_runs
    assert plain.method == climber.UNSCALED
    assert plain.seed is None
    assert plain.values == pytest.approx([0.53 + 0.1 * t for t in plain.steps], abs=1e-8)
    assert plain.gradients == pytest.approx([0.15] * len(plain.steps), abs=1e-9)
    assert plain.progress == pytest.approx(-0.15 * 399, abs=1e-6)  # it counts the climb as descent
    assert plain.path == pytest.approx([-4.6 - t for t in range(climber.PATH + 1)])  # one tooth per step


def test_with_scaling_f_stays_near_the_minimum(short_runs):
    plain, *scaled = short_runs
    assert [r.seed for r in scaled] == [0, 1, 2]
    for r in scaled:
        assert r.values[-1] < 5
        assert r.certificates[-1] < plain.certificates[-1] / 5
    assert len({tuple(r.values) for r in scaled}) == 3


def test_every_seed_gives_the_same_run_without_scaling():
    assert climber.climb(1, climber.UNSCALED, 0, 50) == climber.climb(1, climber.UNSCALED, 0, 50)
    assert climber.climb(1, climber.UNSCALED, 5, 50).values == climber.climb(1, climber.UNSCALED, None, 50).values


def test_ten_dimensions():
    """Every coordinate is trapped without scaling; with it they part, since each started at a phase of its own."""
    plain, scaled = climber.climb(10, climber.UNSCALED, None, 400), climber.climb(10, climber.SCALED, 0, 400)
    rise = (plain.values[-1] - plain.values[len(plain.values) // 2]) / (400 - plain.steps[len(plain.values) // 2])
    assert rise == pytest.approx(0.1 * 10**0.5, rel=1e-3)
    assert scaled.values[-1] < 10
    one = climber.climb(1, climber.SCALED, 0, 400)
    assert abs(scaled.values[-1] / one.values[-1] / 10**0.5 - 1) > 0.01


@pytest.mark.parametrize("steps", [1, 7, 200, 333])
def test_recorded_steps_run_from_start_to_end(steps):
    made = []
    r = climber.climb(1, climber.SCALED, 0, steps, made.append)
    assert r.steps[0] == 0
    assert r.steps[-1] == steps == sum(made)
    assert r.steps == sorted(set(r.steps))
    assert len(r.steps) == len(r.values) == len(r.gradients) == len(r.spreads) == len(r.certificates)


def test_with_the_fewest_steps_that_are_allowed_scaled_runs_already_stay_low():
    """The captions say so, whatever the seed."""
    for seed in range(10):
        plain, scaled = climbed([seed], 100, dimension=1)
        assert scaled.values[-1] < plain.values[-1] / 2
        assert scaled.certificates[-1] < plain.certificates[-1] / 1.5


def test_table_fits_80_columns_and_has_a_row_per_run(short_runs):
    console = Console(width=80, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    with console.file:
        console.print(climber.table(short_runs))
    text = console.export_text()
    assert "…" not in text
    assert [line.split()[:2] for line in text.splitlines() if "scaled " in line] == [
        ["unscaled", "any"],
        ["scaled", "0"],
        ["scaled", "1"],
        ["scaled", "2"],
    ]
    assert "40.53" in text


def test_summary_speaks_of_what_there_is(short_runs):
    assert "from 0.53 to 40.53, while" in climber.summary(short_runs)
    assert "estimate of the change is −59." in climber.summary(short_runs)
    assert "to 40.53 (d = 1) and from " in climber.summary(
        [*short_runs, climber.climb(10, climber.UNSCALED, None, 9)]
    )
    assert "With one random scalar" not in climber.summary(short_runs[:1])
    assert climber.summary(short_runs[1:]).startswith("With one random scalar")


def test_the_demo_through_a_pipe(tmp_path):
    result = shell("demo", "--steps", "100", "--epochs", "2", "--out", "new/folder", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert "F went from 0.53 to 10.53 (d = 1)" in " ".join(result.stdout.split())
    assert result.stdout.count("scaled SGDM") == 2  # the best, and the last
    folder = Path("new", "folder")
    assert result.stdout.splitlines()[-1] == f"Report: {folder / 'report.html'}"
    assert sorted(p.name for p in (tmp_path / folder).iterdir()) == ["climber.png", "demo.json", "report.html"]
    assert (tmp_path / folder / "climber.png").read_bytes().startswith(PNG)


def test_the_record_has_both_parts_and_circumstances(made_once, tmp_path, monkeypatch, capsys):
    code, _, _ = call(monkeypatch, capsys, "demo", *SHORT, "--out", tmp_path)
    assert code == 0
    text = (tmp_path / "demo.json").read_text(encoding="utf-8")
    record = json.loads(text, parse_constant=pytest.fail)  # nan is not JSON
    about = record["circumstances"]
    assert about["command"] == "o2nc demo --seed 5 --steps 100 --epochs 2"
    assert about["seeds"] == [5, 6, 7]
    assert about["o2nc"] == o2nc.__version__
    assert {"python", "torch", "machine", "processors", "digits_lr", "digits_c", "climber_c"} <= about.keys()
    assert record["complete"] is True
    runs, columns = record["climber"]["runs"], record["digits"]["columns"]
    assert [(r["dimension"], r["seed"]) for r in runs] == [(d, s) for d in (1, 10) for s in (None, 5, 6, 7)]
    assert runs[0]["values"][-1] == pytest.approx(10.53)
    rows = [dict(zip(columns, row, strict=True)) for row in record["digits"]["rows"]]
    assert [(r["seed"], r["arm"], r["epoch"]) for r in rows] == [
        (seed, arm, epoch) for seed in (5, 6, 7) for arm in ("sgdm", "sgdm+exponential") for epoch in (1, 2)
    ]
    assert str(tmp_path) not in text
    assert platform.node() not in about.values()


def test_quiet_prints_nothing(made_once, tmp_path, monkeypatch, capsys):
    arguments = (*SHORT, "--quiet", "--out", tmp_path)
    assert call(monkeypatch, capsys, "demo", *arguments) == (0, "", "")
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--steps", "99"], "--steps"),
        (["--steps", "many"], "--steps"),
        (["--epochs", "1"], "--epochs"),
        (["--seed", "-1"], "--seed"),
        (["--out", "a-file"], "--out"),
        (["--out", "a-file/below"], "--out"),
        (["--colour"], "--colour"),
    ],
)
def test_invalid_values_get_one_line_and_code_2(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("")
    code, out, err = call(monkeypatch, capsys, "demo", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("o2nc: ")
    assert err.count("\n") == 1
    assert named in err
    assert [p.name for p in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.slow
def test_typer_runs_the_app_too(tmp_path):
    runner, app = CliRunner(), cli.build_app()
    result = runner.invoke(app, ["demo", *map(str, SHORT), "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert (tmp_path / "demo.json").exists()
    assert runner.invoke(app, ["demo", "--steps", "0"]).exit_code == 2
    assert runner.invoke(app, ["--version"]).output == f"o2nc {o2nc.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["demo", "--help"]])
def test_help_has_an_example(arguments, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, *arguments)
    assert code == 0
    assert "Usage: o2nc" in out
    assert "Example:" in out


MADE = {}


@pytest.fixture
def made_once(monkeypatch):
    """Make every run and trial once for all tests that are about what becomes of them."""

    def remember(function):
        def remembered(*arguments):
            key = (function, *(a for a in arguments if isinstance(a, str | int | None)))
            if key not in MADE:
                MADE[key] = function(*arguments)
            return MADE[key]

        return remembered

    monkeypatch.setattr(climber, "climb", remember(climber.climb))
    monkeypatch.setattr(digits, "train", remember(digits.train))


@pytest.fixture
def stop_after(monkeypatch, made_once):
    """Have the demo stopped after so many climbers and networks."""

    def stopped(function, after, stop):
        calls = []

        def interrupted(*arguments):
            if len(calls) == after:
                raise stop()
            calls.append(arguments)
            return function(*arguments)

        return interrupted

    def arrange(climbers, networks, stop=KeyboardInterrupt):
        monkeypatch.setattr(climber, "climb", stopped(climber.climb, climbers, stop))
        monkeypatch.setattr(digits, "train", stopped(digits.train, networks, stop))

    return arrange


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("stop", "code", "said"), [(KeyboardInterrupt, 130, "interrupted"), (partial(SystemExit, 143), 143, "terminated")]
)
@pytest.mark.parametrize(("climbers", "networks"), [(3, 0), (8, 0), (8, 3)])
def test_stopping_keeps_the_runs_that_finished(
    climbers, networks, stop, code, said, stop_after, tmp_path, monkeypatch, capsys
):
    stop_after(climbers, networks, stop)
    found, out, err = call(monkeypatch, capsys, "demo", *SHORT, "--out", tmp_path)
    assert (found, err) == (code, f"o2nc: {said} after {climbers + networks} of 14 runs, which are kept\n")
    record = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert record["complete"] is False
    assert len(record["climber"]["runs"]) == climbers
    assert len(record["digits"]["rows"]) == 2 * networks
    assert (tmp_path / "climber.png").exists()
    assert "Not complete" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "unscaled" in out
    assert ("scaled SGDM" in out) == (networks > 0)
    assert ("(1 seed; one image" in " ".join(out.split())) == (networks > 0)  # the seed that both arms have


def test_a_demo_stopped_at_once_leaves_no_folder(stop_after, tmp_path, monkeypatch, capsys):
    stop_after(0, 0)
    (tmp_path / "old").mkdir()
    for out in ("old", "new/folder"):
        code, _, err = call(monkeypatch, capsys, "demo", "--out", tmp_path / out)
        assert (code, err) == (130, "o2nc: interrupted\n")
    assert [path.name for path in tmp_path.rglob("*")] == ["old"]


def test_a_stopped_demo_does_not_replace_a_complete_one(stop_after, tmp_path, monkeypatch, capsys):
    stop_after(3, 0)
    (tmp_path / "demo.json").write_text('{"complete": true}')
    _, out, err = call(monkeypatch, capsys, "demo", *SHORT, "--out", tmp_path)
    assert err == f"o2nc: interrupted after 3 of 14 runs; the complete results in {tmp_path} are kept\n"
    assert "unscaled" in out
    assert "Report" not in out
    assert [path.name for path in tmp_path.iterdir()] == ["demo.json"]
    assert (tmp_path / "demo.json").read_text() == '{"complete": true}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"complete": false}', '{"complete": "no"}'])
def test_what_is_no_complete_demo_is_replaced(text, tmp_path):
    assert not command.complete(tmp_path)
    (tmp_path / "demo.json").write_text(text)
    assert not command.complete(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="has other signals")
def test_signals_wait_until_all_is_written(made_once, tmp_path, monkeypatch, capsys):
    plot = climber.plot

    def disturbed(*arguments):
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        return plot(*arguments)

    monkeypatch.setattr(climber, "plot", disturbed)
    before = signal.getsignal(signal.SIGINT)
    code, _, err = call(monkeypatch, capsys, "demo", *SHORT, "--out", tmp_path)
    assert (code, err) == (0, "")
    assert len(list(tmp_path.iterdir())) == 3
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["demo.json", "climber.png"])
def test_what_cannot_be_written_is_named_after_the_tables(name, made_once, tmp_path, monkeypatch, capsys):
    (tmp_path / name).mkdir()  # as good as a full disk
    code, out, err = call(monkeypatch, capsys, "demo", *SHORT, "--out", tmp_path)
    assert code == 1
    assert err.startswith(f"o2nc: {tmp_path / name} cannot be written: ")
    assert err.count("\n") == 1
    assert "unscaled" in out
    assert "On the digits" in out
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.some(2)
@pytest.mark.parametrize("missing", ["typer", "rich", "matplotlib", "sklearn"])
def test_missing_extras_are_named_in_one_line(missing):
    result = shell("demo", prelude=f"import sys; sys.modules[{missing!r}] = None")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == "The command line needs other packages: pip install o2nc-experiments\n"


def test_the_core_imports_none_of_the_extras():
    code = "import sys, o2nc, o2nc_experiments.cli as cli, o2nc.problems; print(set(cli.EXTRAS) & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "set()"
