"""Records as a page: complete, safe to open, and readable on a laptop and on a phone."""

import json
import re
import shutil
import subprocess
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from o2nc_experiments import cli
from o2nc_experiments.page import ARTICLES, Picture, article, find, kind_of, page, svg, write
from o2nc_experiments.tables import Cell, Column, Table, tone

RESULTS = Path(__file__).parents[2] / "docs" / "results"
RECORDS = [
    *("demo.json", "verify.json", "rates.json", "cifar10.json"),
    *("bench_cpu.json", "bench_h200.json", "gpt_h200_small.json", "nonsmooth.json"),
]
DRAWN = ("demo.json", "rates.json", "cifar10.json", "bench_h200.json")  # by other tests, too; these take seconds
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
PHONE, LAPTOP = 390, 1280


def load(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


class Text_(HTMLParser):
    """What a reader of the page can read, and the tags and addresses in it."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.addresses, self.texts = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data):
        if self.tags[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in DRAWN else []) for name in RECORDS]
)
def test_a_page_has_everything_and_needs_nothing(name):
    record = load(name)
    story = article(record)
    html = page({RESULTS / name: record})
    found = Text_(html)
    pictures = sum(len(section.pictures) for section in story.sections)
    assert pictures >= 2
    strokes = sum(len(section.legend) for section in story.sections)
    assert found.tags.count("svg") == pictures + strokes
    assert found.tags.count("section") == len(story.sections)
    assert found.tags.count("table") == 1 + sum(len(section.tables) for section in story.sections)
    for words in (story.title, story.summary, record["circumstances"]["command"], record["circumstances"]["torch"]):
        assert " ".join(words.split()) in found.text
    assert "script" not in found.tags
    assert all(address.startswith(("#", "data:,")) for address in found.addresses)
    assert page({RESULTS / name: record}) == html  # the same to the byte


def test_numbers_of_the_table_are_those_of_the_record():
    html = Text_(page({RESULTS / "cifar10.json": load("cifar10.json")})).text
    for figure in ("94.68 ± 0.28", "94.40 ± 0.04", "94.6 ± 0.1", "9.91 ± 0.43"):
        assert figure in html


def test_pictures_take_the_colours_of_the_page():
    drawn = svg(Picture("a", "b", lambda axes: axes.plot([1, 2], [1, 2], color="#0072B2")))
    assert "var(--blue)" in drawn
    assert "currentColor" in drawn
    assert ">1.0</text>" in drawn
    assert not re.search("#000000|#ffffff|#0072b2", drawn)


def test_tables_of_the_terminal_become_tables_of_the_page():
    table = Table([Column("name\nof it", "left"), "value"], notes="first note\nsecond")
    table.add_heading("part")
    table.add("a", Cell("<b>[x]", "dim"), ruled=True)
    table.add("b", Cell("WRONG", "bold red"), style="bold red")
    assert [column[:2] for column in table.columns] == [("name\nof it", "left"), ("value", "right")]
    assert table.notes == ["first note", "second"]
    first, second, third = table.lines
    assert (first.heading, [cell.text for cell in first.cells]) == (True, ["part"])
    assert (second.ruled, second.cells[1].text, tone(second.cells[1].style)) == (True, "<b>[x]", "faint")
    assert (tone(third.style), tone(third.cells[1].style), third.ruled) == ("wrong", "wrong", False)
    html = table.__html__()
    assert '<td class="left strong" colspan="2">part</td>' in html
    assert '<tr class=" ruled"><td class="left ">a</td><td class="right faint">&lt;b&gt;[x]</td></tr>' in html
    assert '<tr class="wrong"><td class="left ">b</td><td class="right wrong">WRONG</td></tr>' in html


def test_what_a_record_says_is_never_markup():
    record = load("cifar10.json")
    record["circumstances"]["hardware"] = "<script>alert(1)</script>"
    record["rows"] = [["<img src=x onerror=y>", *row[1:]] for row in record["rows"] if row[0] == "sgdm"]
    found = Text_(page({Path("x") / "cifar10.json": record}))
    assert "script" not in found.tags
    assert "img" not in found.tags
    assert "<img src=x onerror=y>" in found.text


def test_incomplete_records_say_so():
    record = load("verify.json") | {"complete": False}
    assert "Not complete" in page({Path("verify.json"): record})
    assert "Not complete" not in page({Path("verify.json"): record | {"complete": True}})


def test_a_wrong_verdict_is_named():
    record = load("verify.json")
    record["rows"][3]["verdict"] = False
    assert f"Not as it should: {record['rows'][3]['key']}." in Text_(page({Path("verify.json"): record})).text


def test_records_of_one_kind_stand_beside_each_other(tmp_path):
    places = [RESULTS / "bench_cpu.json", RESULTS / "verify.json", RESULTS / "bench_h200.json"]
    html = write(places, tmp_path / "all.html").read_text(encoding="utf-8")
    groups = html.split('<div class="group">')[1:]
    assert [group.count("<article") for group in groups] == [2, 1]
    ids = re.findall(r'<article id="([^"]+)"', html)
    assert sorted(ids) == sorted(re.findall(r'<a href="#([^"]+)"', html))
    assert len(set(ids)) == 3


def test_a_folder_has_its_report_inside(tmp_path):
    for name in ("verify.json", "bench_cpu.json"):
        shutil.copy(RESULTS / name, tmp_path)
    (tmp_path / "settings.json").write_text('{"epochs": 1}')
    (tmp_path / "list.json").write_text("[1]")
    assert [path.name for path in find([tmp_path])] == ["bench_cpu.json", "verify.json"]
    assert write([tmp_path]) == tmp_path / "report.html"
    assert Text_((tmp_path / "report.html").read_text(encoding="utf-8")).tags.count("article") == 2


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("{", "is damaged"),
        ("\x00", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ("{}", "has no results"),
        ('{"circumstances": {"command": 3}}', "has no results"),
        ('{"circumstances": {"command": "o2nc plan --eps 1"}}', "has no results"),
        ('{"circumstances": {"command": "o2nc verify"}}', "that this version can show"),
        ('{"circumstances": {"command": "o2nc rates"}, "curves": [{}]}', "that this version can show"),
        ('{"circumstances": {"command": "o2nc bench"}, "steps": 3}', "that this version can show"),
        ('{"circumstances": {"command": "o2nc cifar10"}, "columns": [], "rows": [1]}', "that this version can show"),
        ('{"circumstances": {"command": "o2nc demo"}, "complete": true}', "that this version can show"),
    ],
)
def test_files_that_cannot_be_shown_are_named(tmp_path, contents, message):
    path = tmp_path / "some.json"
    path.write_text(contents)
    with pytest.raises(OSError, match=message) as caught:
        write([path], tmp_path / "out.html")
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out.html").exists()


def test_pictures_that_cannot_be_drawn_are_an_error_of_their_file(tmp_path):
    record = load("demo.json")
    record["climber"]["runs"][0]["values"] = [1.0]
    (tmp_path / "demo.json").write_text(json.dumps(record))
    with pytest.raises(OSError, match=r"demo\.json is no record of o2nc demo that this version can show"):
        write([tmp_path])


def test_other_files_of_a_folder_are_left_out(tmp_path, capsys):
    shutil.copy(RESULTS / "verify.json", tmp_path)
    (tmp_path / "notes.json").write_text("{bad")
    (tmp_path / "folder.json").mkdir()
    write([tmp_path])
    told = capsys.readouterr().err
    assert "left out" in told
    assert "notes.json is damaged" in told
    assert "folder.json is no file" in told


@pytest.mark.parametrize("name", ["verify.json", "../here/verify.json"])
def test_a_record_is_never_overwritten(tmp_path, name):
    folder = tmp_path / "here"
    folder.mkdir()
    shutil.copy(RESULTS / "verify.json", folder)
    with pytest.raises(OSError, match="one of the results to be shown"):
        write([folder], folder / name)
    assert (folder / "verify.json").read_bytes() == (RESULTS / "verify.json").read_bytes()


def test_folders_of_the_same_name_are_told_apart(tmp_path):
    places = [tmp_path / side / "run" for side in ("left", "right")]
    for place in places:
        place.mkdir(parents=True)
        shutil.copy(RESULTS / "verify.json", place)
    text = Text_(write(places, tmp_path / "both.html").read_text(encoding="utf-8")).text
    assert "left/run/verify.json" in text
    assert "right/run/verify.json" in text


def test_every_kind_of_record_has_an_article():
    assert set(ARTICLES) == {"demo", "verify", "rates", "nonsmooth", "cifar10", "bench", "gpt"}
    assert {kind_of(load(name)) for name in RECORDS} == set(ARTICLES)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # several folders make a page where one is

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["o2nc", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return exit_.value.code or 0, *capsys.readouterr()

    shutil.copy(RESULTS / "verify.json", tmp_path)
    command = [sys.executable, "-m", "o2nc_experiments", "report", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"Report: {tmp_path / 'report.html'}\n")
    assert run(tmp_path, tmp_path / "verify.json", "--quiet") == (0, "", "")
    (tmp_path / "empty").mkdir()
    code, out, err = run(tmp_path / "empty")
    assert (code, out) == (1, "")
    assert "empty has no results of o2nc" in err
    assert "missing cannot be read: No such file" in run(tmp_path / "missing")[2]


MEASURE = """<script>
onerror = message => document.title = "error: " + message;
onload = () => {
  const inner = document.querySelector("iframe").contentDocument, root = inner.documentElement;
  const sizes = [...inner.querySelectorAll("figure svg")].map(s => s.getBoundingClientRect());
  const paper = getComputedStyle(inner.body), fonts = [...inner.querySelectorAll("p, td, figcaption")];
  document.title = JSON.stringify({
    width: root.scrollWidth, pictures: sizes.length,
    narrowest: Math.min(...sizes.map(s => s.width)), lowest: Math.min(...sizes.map(s => s.height)),
    widest: Math.max(...sizes.map(s => s.right)),
    smallest: Math.min(...fonts.map(f => parseFloat(getComputedStyle(f).fontSize))),
    background: paper.backgroundColor, colour: paper.color,
  });
};
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, LAPTOP])
def test_in_a_browser(tmp_path, width, dark):
    """The page in a frame as wide as the screen, measured by a script around it."""
    html = page(find([RESULTS / "cifar10.json", RESULTS / "verify.json", RESULTS / "bench_cpu.json"]))
    frame = f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{escape(html)}"></iframe>'
    (tmp_path / "frame.html").write_text(f"<!doctype html><meta charset=utf-8>{MEASURE}{frame}", encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--enable-logging=stderr", "--virtual-time-budget=5000", "--window-size=1400,1000"]
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom"]
    command = [BROWSER, *options, (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = json.loads(re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)[1].replace("&quot;", '"'))
    assert found["width"] <= width  # only tables scroll, and those by themselves
    assert found["pictures"] == html.count("<figure")
    assert found["narrowest"] >= 250
    assert found["lowest"] >= 120
    assert found["widest"] <= width
    assert found["smallest"] >= 14
    light, ink = (sum(map(int, re.findall(r"\d+", found[name])[:3])) for name in ("background", "colour"))
    assert (light < 150 < 500 < ink) if dark else (ink < 150 < 600 < light)
