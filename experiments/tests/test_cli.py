"""The command ``o2nc``: what it offers, how it refuses, how it ends. Scripts are replaced by a recorder."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from o2nc_experiments import __version__, cli


def call(monkeypatch, capsys, *words):
    """Run the command line in this process; return its exit code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["o2nc", *words])
    code = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code or 0
    said = capsys.readouterr()
    return code, said.out, said.err


def process(*words, **more):
    env = os.environ | {"PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "o2nc_experiments", *words]
    return subprocess.run(
        command, env=env, text=True, encoding="utf-8", timeout=120, **{"capture_output": True} | more
    )


def test_it_offers_the_product_first_and_the_paper_last(monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys)
    assert (code, err) == (0, "")
    names = ["demo", "gpt", "cifar10", "bench", "paper verify", "paper rates", "paper nonsmooth", "paper plan"]
    assert re.findall(r"^  o2nc (.*?)  ", out, re.MULTILINE) == names == list(cli.COMMANDS)
    assert "Drop the learning-rate schedule, keep your PyTorch optimizer." in out


def test_questions_are_answered_without_torch():
    asked = [[], ["--help"], ["--version"], ["nothing"], ["paper"]]
    code = f"""
import sys
from o2nc_experiments.__main__ import main

for words in {asked!r}:
    sys.argv = ["o2nc", *words]
    try:
        main()
    except SystemExit as end:
        print("ended", end.code)
    print("said", sorted({{"torch", "numpy", "matplotlib"}} & set(sys.modules)))
"""
    env = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=env, timeout=120)
    assert [line for line in done.stdout.splitlines() if line.startswith("said ")] == ["said []"] * len(asked)
    assert done.stdout.count("ended 2") == 1
    assert f"o2nc {__version__}\n" in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_explains_every_option_and_its_examples_are_accepted(name, monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, *name.split(), "--help")
    options = re.findall(r"^  (--[\w-]+)[^\n]*?(?:  |\n {6,})(\S.*)$", out, re.MULTILINE)
    parser = cli.find_parser(name)
    assert code == 0
    assert len(options) == len(parser._actions) - 1  # all but -h
    assert not [words for words in options if words[1].startswith("(default")]
    examples = re.findall(rf"^ *o2nc {name}\b(.*?)(?:#.*)?$", out, re.MULTILINE)
    assert examples
    for example in examples:
        parser.parse_args(example.replace("'", "").split())


@pytest.mark.parametrize("name", [name for name in cli.COMMANDS if name != "paper plan"])
def test_options_reach_the_script(name, monkeypatch, capsys, tmp_path):
    found = []
    parser = cli.find_parser(name)
    parser.main = lambda **options: found.append(options)
    monkeypatch.setattr(cli, "find_parser", lambda _: parser)
    assert call(monkeypatch, capsys, *name.split(), "--out", str(tmp_path / "new"), "--quiet") == (0, "", "")
    ((options),) = found
    assert (options["out"], options["quiet"]) == (tmp_path / "new", True)
    assert not options["out"].exists()  # the script makes it, when its options are checked


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "there is no command 'nothing' (see o2nc --help)"),
        (["--nothing"], "there is no command '--nothing' (see o2nc --help)"),
        (["gpt", "--nothing"], "unrecognized arguments: --nothing (see o2nc gpt --help)"),
        (["gpt", "--out", ""], "--out must name a folder, got ''"),
        (["demo", "--out", ""], "--out must name a folder, got ''"),
        (["demo", "--out", __file__], f"--out must name a folder, got '{__file__}'"),
        (["demo", "--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["demo", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["paper", "rates", "--largest", "3"], "--largest must be at least 12, got 3"),
        (["paper", "plan"], "the following arguments are required: --gap, --lipschitz"),
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
