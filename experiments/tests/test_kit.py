"""Records are written completely or not at all, tables never cut a number, pages run nothing, errors are one line."""

import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch

from o2nc_experiments import kit

TABLE = kit.Table(
    ["arm", "loss", "what it is"],
    [["one | run", "1.234 ± 0.001", "a long description " * 12], ["<b>two</b>", kit.NONE, "[red]x[/red]"]],
    "Losses",
    "n = 3",
)


@pytest.mark.parametrize("existing", [None, "old"])
def test_a_file_is_written_completely(tmp_path, existing):
    path = tmp_path / "a.json"
    if existing:
        path.write_text(existing)
    kit.write_json(path, {"x": [1.0, math.nan, math.inf], "y": ("ḡ", None)})
    assert kit.read_json(path) == {"x": [1.0, None, None], "y": ["ḡ", None]}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    kit.write_text(path, "old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left") as error:
        kit.write_text(path, "new")
    assert error.value.filename == str(path)
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["a.txt"])


def test_planted_links_are_not_followed(tmp_path, monkeypatch):
    victim, path = tmp_path / "victim", tmp_path / "a.txt"
    victim.write_text("precious")
    path.symlink_to(victim)
    kit.write_text(path, "new")  # replaces the link itself
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("precious", "new", False)
    monkeypatch.setattr(kit.secrets, "token_hex", lambda _: "known")
    (tmp_path / ".a.txt.known.part").symlink_to(victim)
    with pytest.raises(OSError, match="exists"):
        kit.write_text(path, "newer")
    assert (victim.read_text(), path.read_text()) == ("precious", "new")


@pytest.mark.parametrize("contents", ["{", "[1]", "\x00"])
def test_damaged_records_are_named(tmp_path, contents):
    (tmp_path / "a.json").write_text(contents)
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "a.json"))):
        kit.read_json(tmp_path / "a.json")
    assert kit.read_json(tmp_path / "missing.json") is None


def test_a_store_keeps_runs_and_refuses_other_settings(tmp_path):
    path = tmp_path / "s.json"
    store = kit.Store(path, {"width": 64, "lr": 0.1}, {"command": "x"})
    store.add("a", {"loss": 1.0})
    store.write(tables=[])
    assert kit.Store(path, {"width": 64, "lr": 0.1}, {}).runs == {"a": {"loss": 1.0}}
    assert json.loads(path.read_text())["circumstances"] == {"command": "x"}
    with pytest.raises(kit.UsageError, match="runs with width 64, not width 128; choose another --out"):
        kit.Store(path, {"width": 128, "lr": 0.1}, {})


def test_checkpoints(tmp_path):
    path, cpu = tmp_path / "run.pt", torch.device("cpu")
    assert kit.load_checkpoint(path, cpu) is None
    (tmp_path / ".run.pt.0123.part").write_text("of a process that was killed")
    kit.save_checkpoint(path, {"step": 3, "model": {"w": torch.ones(2)}})
    assert kit.load_checkpoint(path, cpu)["model"]["w"].tolist() == [1.0, 1.0]
    assert os.listdir(tmp_path) == ["run.pt"]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(OSError, match=r"run\.pt is damaged"):
        kit.load_checkpoint(path, cpu)


def test_circumstances_say_what_ran():
    about = kit.circumstances("o2nc x", seeds=[0, 1])
    assert {"command", "seeds", "hardware", "torch", "o2nc", "python", "threads", "date"} <= about.keys()
    assert not re.search(r"/(home|tmp|root|work)\b", json.dumps(about))  # no paths of this machine


def test_markdown():
    lines = TABLE.markdown().splitlines()
    assert lines[:4] == ["**Losses**", "", "| arm | loss | what it is |", "|---|--:|---|"]
    assert lines[4].startswith(r"| one \| run | 1.234 ± 0.001 | a long")
    assert lines[-1] == "n = 3"


@pytest.mark.parametrize("columns", [20, 60, 200])
def test_a_narrow_terminal_cuts_no_number(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    kit.Terminal().table(TABLE)
    said = capsys.readouterr().out
    assert "1.234 ± 0.001" in said
    assert "[red]x[/red]" in said
    assert "…" not in said


def test_quiet_says_nothing(capsys):
    terminal = kit.Terminal(quiet=True)
    terminal.say("x")
    terminal.table(TABLE)
    with terminal.progress(2, "y") as advance:
        advance(1, "z")
    assert capsys.readouterr() == ("", "")


class Page(HTMLParser):
    """Tags, addresses and text of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.addresses, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data


def make_page(path):
    figure = kit.new_figure()
    axes = figure.subplots()
    kit.draw_means(axes, {50: [1.0, 2.0], 100: [1.5], 200: [math.nan]}, {"color": "blue", "label": "x"})
    kit.horizon_axis(axes, [50, 100, 200])
    kit.style_panel(axes, "Title", "steps", "loss")
    section = kit.Section("Part", "words\n<script>alert(1)</script>", [(figure, 'a "caption"')], [TABLE], "x = 1")
    kit.write_page(path, "A page", "A lead.", [section], kit.circumstances("o2nc x"))
    return path.read_text(encoding="utf-8")


def test_a_page_needs_nothing_and_runs_nothing(tmp_path):
    html = make_page(tmp_path / "report.html")
    page = Page(html)
    assert "script" not in page.tags
    assert all(address.startswith("data:") for address in page.addresses)
    assert (page.tags.count("img"), page.tags.count("section"), page.tags.count("table")) == (1, 1, 2)
    for words in ("<script>alert(1)</script>", "<b>two</b>", "1.234 ± 0.001", "A lead.", "x = 1", torch.__version__):
        assert words in page.text
    assert make_page(tmp_path / "again.html") == html  # the same picture, byte for byte


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (kit.UsageError("--x must be 1"), 2, "o2nc: --x must be 1\n"),
        (OSError(28, "No space left on device", "a.json"), 1, "o2nc: a.json: No space left on device\n"),
        (OSError(28, "No space left on device"), 1, "o2nc: standard output: No space left on device\n"),
        (OSError("a.json is damaged\n(x)"), 1, "o2nc: a.json is damaged (x)\n"),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
        (KeyboardInterrupt(), 130, "o2nc: interrupted; go on\n"),
    ],
)
def test_a_command_ends_in_one_line(raised, code, said, capsys):
    with pytest.raises(SystemExit) as end, kit.ending("o2nc", "; go on"):
        raise raised
    assert (end.value.code, capsys.readouterr().err) == (code, said)


def test_lists_of_numbers():
    assert kit.numbers("--x", "0,1,1") == [0, 1]
    for text in ("", "-1", "inf", "1,a"):
        with pytest.raises(kit.UsageError, match="--x must be numbers"):
            kit.numbers("--x", text, float)


SCRIPT = '''"""What it does."""
from pathlib import Path
from o2nc_experiments import kit

def main(out: Path = Path("x"), seeds: str = "0", rate: float | None = None, quick: bool = False) -> None:
    """Print.

    Args:
        rate: how fast.
    """
    print(out, seeds, rate, quick)

if __name__ == "__main__":
    kit.run_script(main)
'''


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 0, "x 0 None False\n"),
        (["--out", "a b", "--rate", "0.1", "--quick", "--seeds", "1,2"], 0, "a b 1,2 0.1 True\n"),
        (["--out", ""], 2, ""),
        (["--rate", "x"], 2, ""),
        (["--help"], 0, "how fast"),
    ],
)
def test_a_script_reads_its_arguments_from_main(tmp_path, words, code, said):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run([sys.executable, path, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    assert said in done.stdout if words == ["--help"] else said == done.stdout
    assert done.stderr.count("\n") == (code != 0)


def test_written_commands_leave_defaults_out():
    def main(arms="a", seeds="0", quick=False, device=None):
        pass

    found = kit.written_command("o2nc x", main, arms="b c", seeds="0", quick=True, device=None)
    assert found == "o2nc x --arms 'b c' --quick"


def test_the_kit_is_imported_without_torch():
    code = (
        "import sys; import o2nc_experiments.kit; print({'torch', 'numpy', 'matplotlib', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n"
