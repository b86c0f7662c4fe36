"""The climber does what is claimed, and the command behaves: files, exit codes, silence, plain text in a pipe."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import o2nc
from o2nc import cli
from o2nc.experiments.demo import climber, digits

PNG = b"\x89PNG\r\n\x1a\n"
FORCING = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def shell(*arguments, prelude="", cwd=None):
    """Run the command line in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k not in FORCING}
    code = f"{prelude}\nfrom o2nc.cli import main\nmain()"
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


@pytest.fixture(scope="module")
def short_runs():
    return climber.run(seeds=[0, 1, 2], steps=400, dimensions=[1])


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


def test_table_fits_80_columns_and_has_a_row_per_run(short_runs):
    console = Console(width=80, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    with console.file:
        console.print(climber.table(short_runs))
    text = console.export_text()
    assert "…" not in text
    assert [line.split()[:3] for line in text.splitlines() if "scaled " in line] == [
        ["1", "unscaled", "any"],
        ["1", "scaled", "0"],
        ["1", "scaled", "1"],
        ["1", "scaled", "2"],
    ]
    assert "40.53" in text


def test_summary_speaks_of_what_there_is(short_runs):
    assert "from 0.53 to 40.53 (d = 1)" in climber.summary(short_runs)
    assert "With one random scalar" not in climber.summary(short_runs[:1])
    assert climber.summary(short_runs[1:]).startswith("With one random scalar")


def test_the_demo_through_a_pipe(tmp_path):
    result = shell("demo", "--steps", "60", "--epochs", "1", "--out", "new/folder", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert "F went from 0.53 to 6.53 (d = 1)" in " ".join(result.stdout.split())
    assert result.stdout.count("scaled SGDM") == 2  # the best, and the last
    folder = Path("new", "folder")
    assert result.stdout.splitlines()[-1] == f"Report: {folder / 'report.html'}"
    assert sorted(p.name for p in (tmp_path / folder).iterdir()) == ["climber.png", "demo.json", "report.html"]
    assert (tmp_path / folder / "climber.png").read_bytes().startswith(PNG)


def test_the_record_has_both_parts_and_circumstances(tmp_path, monkeypatch, capsys):
    code, _, _ = call(monkeypatch, capsys, "demo", "--steps", 40, "--epochs", 2, "--seed", 5, "--out", tmp_path)
    assert code == 0
    text = (tmp_path / "demo.json").read_text(encoding="utf-8")
    record = json.loads(text, parse_constant=pytest.fail)  # nan is not JSON
    about = record["circumstances"]
    assert about["command"] == "o2nc demo --seed 5 --steps 40 --epochs 2"
    assert about["seeds"] == [5, 6, 7]
    assert about["o2nc"] == o2nc.__version__
    assert {"python", "torch", "machine", "processors", "digits_lr", "digits_c", "climber_c"} <= about.keys()
    assert record["complete"] is True
    runs, columns = record["climber"]["runs"], record["digits"]["columns"]
    assert [(r["dimension"], r["seed"]) for r in runs] == [(d, s) for d in (1, 10) for s in (None, 5, 6, 7)]
    assert runs[0]["values"][-1] == pytest.approx(4.53)
    rows = [dict(zip(columns, row, strict=True)) for row in record["digits"]["rows"]]
    assert [(r["seed"], r["arm"], r["epoch"]) for r in rows] == [
        (seed, arm, epoch) for seed in (5, 6, 7) for arm in ("sgdm", "sgdm+exponential") for epoch in (1, 2)
    ]
    assert str(tmp_path) not in text
    assert platform.node() not in about.values()


def test_quiet_prints_nothing(tmp_path, monkeypatch, capsys):
    arguments = ("--steps", 5, "--epochs", 1, "--quiet", "--out", tmp_path)
    assert call(monkeypatch, capsys, "demo", *arguments) == (0, "", "")
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--steps", "0"], "--steps"),
        (["--steps", "many"], "--steps"),
        (["--epochs", "0"], "--epochs"),
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


def test_typer_runs_the_app_too(tmp_path):
    runner, app = CliRunner(), cli.build_app()
    result = runner.invoke(app, ["demo", "--steps", "5", "--epochs", "1", "--out", str(tmp_path)])
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


@pytest.mark.parametrize(("climbers", "networks"), [(0, 0), (3, 0), (8, 0), (8, 3)])
def test_ctrl_c_keeps_the_runs_that_finished(climbers, networks, tmp_path, monkeypatch, capsys):
    def stopped(function, after):
        calls = []

        def interrupted(*arguments):
            if len(calls) == after:
                raise KeyboardInterrupt
            calls.append(arguments)
            return function(*arguments)

        return interrupted

    monkeypatch.setattr(climber, "climb", stopped(climber.climb, climbers))
    monkeypatch.setattr(digits, "train", stopped(digits.train, networks))
    code, out, err = call(monkeypatch, capsys, "demo", "--steps", 5, "--epochs", 1, "--out", tmp_path)
    assert code == 130
    assert err.startswith("o2nc: interrupted")
    assert err.count("\n") == 1
    if not climbers:
        assert list(tmp_path.iterdir()) == []
        return
    assert f"after {climbers + networks} of 14 runs" in err
    record = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert record["complete"] is False
    assert len(record["climber"]["runs"]) == climbers
    assert len(record["digits"]["rows"]) == networks
    assert (tmp_path / "climber.png").exists()
    assert "Not complete" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "unscaled" in out
    assert ("scaled SGDM" in out) == (networks > 0)
    assert ("On the digits, over 1 seed, " in " ".join(out.split())) == (networks > 0)  # the seed that both arms have


@pytest.mark.parametrize("missing", ["typer", "rich", "matplotlib", "sklearn"])
def test_missing_extras_are_named_in_one_line(missing):
    result = shell("demo", prelude=f"import sys; sys.modules[{missing!r}] = None")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == "The command line needs extra packages: pip install 'o2nc[experiments]'\n"


def test_the_core_imports_none_of_the_extras():
    code = "import sys, o2nc, o2nc.cli, o2nc.problems; print(set(o2nc.cli.EXTRAS) & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "set()"
