"""Manners of the command line that all subcommands share."""

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import o2nc
from o2nc_experiments import cli
from o2nc_experiments.options import QUIET, read, taking, written
from o2nc_experiments.options import option as declare

COMMANDS = ["demo", "plan", "verify", "rates", "nonsmooth", "bench", "cifar10", "gpt", "report"]
LONG = [name for name in COMMANDS if name not in ("plan", "report")]


def run(*arguments, **environment):
    command = [sys.executable, "-m", "o2nc_experiments", *arguments]
    env = os.environ | {"COLUMNS": "100", "PYTHONIOENCODING": "utf-8"} | environment
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=env, timeout=120)


def call(monkeypatch, capsys, *arguments):
    """Run the command line in this process; return its exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["o2nc", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    return end.value.code or 0, said.out, said.err


@pytest.fixture(scope="module")
def pages():
    """What every command says of itself; one of them from a process of its own, as users see it."""
    app, runner = cli.build_app(), CliRunner(env={"COLUMNS": "100"})
    asked = {name: [*filter(None, [name]), "--help"] for name in ("", *COMMANDS)}
    found = {name: runner.invoke(app, words, prog_name="o2nc").stdout for name, words in asked.items()}
    assert run("plan", "--help").stdout == found["plan"]
    return found


def test_without_arguments_it_says_what_there_is():
    done = run()
    assert done.returncode == 0
    assert re.findall(r"^│ (\w+) ", done.stdout, re.MULTILINE) == COMMANDS


def test_the_version():
    assert run("--version").stdout == f"o2nc {o2nc.__version__}\n"


def test_what_a_command_is_asked_about_is_answered_without_torch():
    asked = [[], ["--help"], ["--version"], ["nothing"], *([name, "--help"] for name in COMMANDS)]
    code = f"""
import sys
from o2nc_experiments.__main__ import main

for words in {asked!r}:
    sys.argv = ["o2nc", *words]
    try:
        main()
    except SystemExit as end:
        print("said", end.code, sorted({{"torch", "numpy", "matplotlib"}} & set(sys.modules)))
"""
    env = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=env, timeout=120)
    said = [line for line in done.stdout.splitlines() if line.startswith("said ")]
    assert said == [f"said {2 if words == ['nothing'] else 0} []" for words in asked]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_parses(name, pages):
    text = pages[name]
    (example,) = re.findall(rf"Examples?:\s+(o2nc {name}\b.*)", text)
    for option in re.findall(r"--[\w-]+", example):
        assert len(re.findall(rf"{option}\b", text)) >= 2, option  # in the example and in the list


@pytest.mark.parametrize("name", LONG)
def test_experiments_share_their_options(name, pages):
    options = set(re.findall(r"--[\w-]+", pages[name]))
    assert {"--out", "--seed", "--quiet"} <= options
    if name in ("bench", "cifar10", "gpt"):
        assert "--device" in options


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_flags_have_no_type_in_the_help(name, pages):
    assert "bool" not in pages[name].lower()
    assert re.search(r"--help +Show this message and exit", pages[name])
    if name in LONG:
        assert re.search(rf"--quiet +{QUIET}", pages[name])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("nothing", "No such command 'nothing' (see o2nc --help)"),
        ("--nothing", "No such option: --nothing (see o2nc --help)"),
        ("demo --nothing", "No such option: --nothing (see o2nc demo --help)"),
        ("verify --seed x", "Invalid value for '--seed': "),
        ("report", "Missing DIR (see o2nc report --help)"),
        (
            "plan",
            "Missing --gap, --lipschitz, --steps or --eps, --c or --smoothness or --second-order "
            "(see o2nc plan --help)",
        ),
        ("plan --eps 0.1 --lipschitz 1 --c 1", "Missing --gap (see o2nc plan --help)"),
        ("plan --gap 1 --lipschitz 1 --smoothness 2", "Missing --steps or --eps (see o2nc plan --help)"),
        ("plan --gap 1 --lipschitz x", "Invalid value for '--lipschitz': "),
        ("plan --gap 1 --lipschitz 1 --c 1 --steps 9 --eps 1", "Invalid value: give one of --steps and --eps"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments, said, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"o2nc: {said}")
    assert err.count("\n") == 1
    assert said.endswith(": ") or err == f"o2nc: {said}\n"


def test_a_refusal_in_a_process_of_its_own():
    done = run("nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "o2nc: No such command 'nothing' (see o2nc --help)\n"


def test_output_that_goes_to_a_file_is_plain(tmp_path, monkeypatch, capfd):
    done = run("verify", "erratum-c", "--workers", "1", "--out", str(tmp_path), TERM="xterm-256color")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert done.stderr == ""
    assert {path.name for path in tmp_path.iterdir()} == {"verify.json", "verify.md", "report.html"}
    assert call(monkeypatch, capfd, "verify", "erratum-c", "--workers", "1", "--quiet") == (0, "", "")


@dataclass(frozen=True)
class Asked:
    arm: tuple[str, ...] = declare((), "May be repeated.")
    seeds: int = declare(3, "How many.", min=1)
    rate: float | None = declare(None, "100 % of it.")
    data: str | None = declare(None, "Where.", "--data", "--from")
    each: bool = declare(False, "A flag.")
    costs: bool = declare(True, "Can be denied.")


@pytest.mark.parametrize(
    ("given", "asked", "line"),
    [
        ("", Asked(), ""),
        ("--arm 'a (b)' --arm c --seeds 4", Asked(arm=("a (b)", "c"), seeds=4), "--arm 'a (b)' --arm c --seeds 4"),
        ("--no-costs --rate 0.1234567", Asked(rate=0.1234567, costs=False), "--rate 0.1234567 --no-costs"),
        ("--from 'x y' --each", Asked(data="x y", each=True), "--data 'x y' --each"),
    ],
)
def test_options_are_the_same_by_typer_by_argparse_and_as_they_are_written_down(given, asked, line, monkeypatch):
    seen, words = [], shlex.split(given)
    app = typer.Typer()
    app.command()(taking(Asked)(seen.append))
    assert CliRunner().invoke(app, words).exit_code == 0
    monkeypatch.setattr(sys, "argv", ["program", *words])
    assert [*seen, read(Asked, "program", "What it does.")] == [asked, asked]
    assert written("program", asked) == f"program {line}".strip()
    assert CliRunner().invoke(app, ["--seeds", "0"]).exit_code == 2


@pytest.mark.some(1)
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
@pytest.mark.parametrize("slow", ["torch", "typer", "matplotlib"])
def test_ctrl_c_while_a_package_is_imported(slow, tmp_path):
    """The first seconds of a command are imports: of typer, then of torch and what the command needs."""
    (tmp_path / slow).mkdir()
    (tmp_path / slow / "__init__.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [Path(sysconfig.get_path("scripts")) / "o2nc", "demo", "--out", tmp_path / "out"],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background has it ignored
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=50)
    assert (process.returncode, out, err) == (130, "", "o2nc: interrupted\n")
    assert not (tmp_path / "out").exists()
