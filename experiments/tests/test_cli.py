"""The command ``o2nc``: what it offers, how it refuses, how it ends. Scripts are replaced by a recorder."""

import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from o2nc_experiments import __version__, cli

EVERYBODY = ["demo", "gpt", "cifar10", "bench"]
PAPER = ["verify", "rates", "nonsmooth", "plan"]
COMMANDS = [*EVERYBODY, *(f"paper {name}" for name in PAPER)]


def call(monkeypatch, capsys, *words):
    """Run the command line in this process; return its exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["o2nc", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    return end.value.code or 0, said.out, said.err


def process(*words, **more):
    env = os.environ | {"PYTHONIOENCODING": "utf-8", "COLUMNS": "100"}
    command = [sys.executable, "-m", "o2nc_experiments", *words]
    return subprocess.run(
        command, env=env, text=True, encoding="utf-8", timeout=120, **{"capture_output": True} | more
    )


@pytest.fixture
def called(monkeypatch):
    """What the scripts were called with."""
    found = []

    def main(*args, **options):
        found.append((*args, options))
        return True

    monkeypatch.setattr(cli, "import_module", lambda name: types.SimpleNamespace(main=main))
    return found


def test_it_offers_the_product_first_and_the_paper_last(monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys)
    assert (code, err) == (0, "")
    assert re.findall(r"^│ (\w+) ", out, re.MULTILINE) == [*EVERYBODY, "paper"]
    assert "Weights that need no schedule, for the optimizer that you have." in out
    code, out, _ = call(monkeypatch, capsys, "paper")
    assert (code, re.findall(r"^│ (\w+) ", out, re.MULTILINE)) == (0, PAPER)


def test_the_help_names_every_arm():
    from o2nc_experiments import gpt

    assert list(cli.ARMS) == list(gpt.ARMS)


def test_questions_are_answered_without_torch():
    asked = [[], ["--help"], ["--version"], ["nothing"], *([*name.split(), "--help"] for name in COMMANDS)]
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
    assert f"o2nc {__version__}\n" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_the_help_is_accepted(name, called, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = call(monkeypatch, capsys, *name.split(), "--help")
    (example,) = re.findall(rf"Example: +o2nc ({name}\b.*)", out)
    assert call(monkeypatch, capsys, *example.split()) == (0, "", "")
    assert len(called) == 1


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "paper plan"])
def test_options_reach_the_script(name, called, monkeypatch, capsys, tmp_path):
    assert call(monkeypatch, capsys, *name.split(), "--out", str(tmp_path / "new"), "--quiet")[0] == 0
    ((out, options),) = called
    assert (out, options["quiet"]) == (tmp_path / "new", True)
    assert not out.exists()  # the script makes it, when its options are checked


@pytest.mark.parametrize("name", COMMANDS)
def test_scripts_take_what_the_command_passes(name, called, monkeypatch, capsys):
    """Options, their defaults and the signature of the script's `main` agree."""
    import importlib
    import inspect

    required = ["--gap", "1", "--lipschitz", "1"] if name == "paper plan" else []
    assert call(monkeypatch, capsys, *name.split(), *required)[0] == 0
    (*args, options) = called[0]
    script = importlib.import_module(f"o2nc_experiments.{name.split()[-1]}")
    bound = inspect.signature(script.main).bind(*args, **options)
    for parameter in inspect.signature(script.main).parameters.values():
        given = bound.arguments.get(parameter.name, parameter.default)
        if parameter.default is not inspect.Parameter.empty and parameter.name not in ("gap", "lipschitz", "workers"):
            assert str(given) == str(parameter.default), parameter.name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "No such command 'nothing' (see o2nc --help)"),
        (["--nothing"], "No such option: --nothing (see o2nc --help)"),
        (["gpt", "--nothing"], "No such option: --nothing (see o2nc gpt --help)"),
        (["gpt", "--out", ""], "--out must name a folder, got ''"),
        (["demo", "--out", ""], "--out must name a folder, got ''"),
        (["demo", "--out", __file__], f"--out must name a folder, got '{__file__}'"),
        (["demo", "--seed", "x"], "Invalid value for '--seed'"),
        (["demo", "--seed", "-1"], "Invalid value for '--seed'"),
        (["paper", "plan"], "Missing option '--gap'"),
        (["gpt", "--arms", "constant,x"], "--arms has 'x'; known: constant, wsd"),
        (["gpt", "--size", "huge"], "--size has 'huge'; known: tiny"),
        (["gpt", "--horizons", "10"], "--horizons must be longer than the warm-up of 20 steps, got 10"),
        (["gpt", "--seeds", "1,a"], "--seeds must be numbers"),
        (["gpt", "--tune-seed", "1"], "--tune-seed 1 must not be one of --seeds 0,1"),
        (["gpt", "--device", "tpu"], "--device must be cpu, cuda or cuda:N, got 'tpu'"),
        (["gpt", "--data", "/no/such/file"], "--data /no/such/file does not exist"),
        (["bench", "--models", "alexnet"], "--models has 'alexnet'; known: resnet18"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(words, said, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(monkeypatch, capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"o2nc: {said}")
    assert err.count("\n") == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (OSError(13, "Permission denied", "a/b.json"), 1, "o2nc: a/b.json: Permission denied\n"),
        (KeyboardInterrupt(), 130, "o2nc: interrupted; the same command goes on\n"),
        (SystemExit(1), 1, ""),
    ],
)
def test_ends(raised, code, said, monkeypatch, capsys):
    def main(*args, **options):
        raise raised

    monkeypatch.setattr(cli, "import_module", lambda name: types.SimpleNamespace(main=main))
    assert call(monkeypatch, capsys, "gpt") == (code, "", said)


def test_a_failed_row_of_the_benchmark_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(cli, "import_module", lambda name: types.SimpleNamespace(main=lambda *_, **__: False))
    assert call(monkeypatch, capsys, "bench") == (1, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--version"], ["gpt", "--help"], ["gpt", "--horizons", "25", "--grid", "1"]])
def test_a_full_disk_behind_standard_output(words, tmp_path):
    words = words if "--help" in words or "--version" in words else [*words, "--out", str(tmp_path)]
    with open("/dev/full", "w") as full:
        done = process(*words, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, "o2nc: standard output: No space left on device\n")


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_while_torch_is_imported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    started = subprocess.Popen(
        [sys.executable, "-m", "o2nc_experiments", "demo", "--out", tmp_path / "out"],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert started.stdout.readline() == "importing\n"
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=50)
    assert (started.returncode, out) == (130, "")
    assert err == "o2nc: interrupted; the same command goes on\n"
    assert not (tmp_path / "out").exists()
