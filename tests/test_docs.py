"""README and docs/: every command is understood, every link leads somewhere, every number of the README is held.

test_recipes.py runs the Python of the pages; `make docs` builds the site, and fails where a page is in no table of
contents or a name of the reference is not there.
"""

import doctest
import importlib
import json
import os
import re
import shlex

import pytest

import o2nc
from pages import DOCS, PAGES, ROOT, anchor, blocks

# the lines of the README's table of costs, in its order: their names in the record, and in the list of prices
COSTS = {
    "torch AdamW, fused": "o2nc.AdamW(params)",
    "o2nc.AdamW": "o2nc.AdamW(params)",
    "o2nc.AdamW, x̄ every 8": "o2nc.AdamW(params, average=window)",
    "o2nc.AdamW, x̄": "o2nc.AdamW(params, average=window)",
    "o2nc.AdamW, x̄ and certificate": "o2nc.AdamW(params, average=window, certificate=True)",
    "torch AdamW + swa_utils' EMA": "o2nc.AdamW(params, average=window)",  # a second model: 4 bytes as well
}


def record(name):
    return json.loads((DOCS / "results" / name).read_text(encoding="utf-8"))


def larger_runs(page):
    """Return the README's numbers from the page's tables: size, worst gap and from which step on, range of gains."""
    row = {name: cells.split(" | ") for name, cells in re.findall(r"^\| (.*?) \| (.*) \|$", page, re.MULTILINE)}
    gaps = [float(cell.split()[0].replace("−", "-")) for cell in row["**one run less the best decayed**"]]
    steps = row["steps"]
    late = steps.index("1,000")
    gains = [float(cell.split()[0]) for name, cells in row.items() if "tuned for each" in name for cell in cells]
    size = re.search(r"A GPT of ([\d.]+) M parameters", page)[1]
    return size, f"{max(gaps[late:])}", steps[late], f"{min(gains):.1f}", f"{max(gains):.1f}"


def largest_run():
    """Return the README's numbers of the largest GPT: at each length, how far x̄ is from the best decay."""
    runs = record("gpt2.json")["runs"].values()
    constant = [run for run in runs if run["arm"] == "constant" and run["seed"] == 0]
    found = ["98"]  # millions of parameters, 97.5
    for h in ("500", "1000"):
        best = (min(run[kind][h] for run in constant) for kind in ("losses", "wsd"))
        found += [f"{int(h):,}", f"{abs(next(best) - next(best)):.3f}"]
    return found


def test_every_number_of_the_readme_is_held():
    """Those in code run with it; of the others each has its record, and none is left."""
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", PAGES["README.md"], flags=re.DOTALL)
    text = re.sub(r"o2nc|GPT-2|H200|CIFAR-10|FSDP\d|float32|Exp\(1\)|ICML 2024", "", text)  # names
    timed, prices = record("bench_h200.json")["costs"], PAGES["docs/performance.md"]
    steps = {row["name"]: f"{row['milliseconds']:.1f}" for row in timed if row["model"] == "gpt2-xl"}
    size = int(re.search(r"GPT-2 XL, ([\d,]+) numbers", prices)[1].replace(",", ""))
    demo = record("demo.json")
    held = [
        f"{max(map(int, demo['average']))}",  # steps of the GPT
        f"{50 * (len(demo['climber']['momentum alone']) - 1):,}",  # steps on the slope, one in fifty kept
        f"{size / 1e9:.2f}",
        f"{o2nc.find_lr.__kwdefaults__['probe']}",
        *larger_runs(PAGES["docs/no-schedule.md"]),
        *largest_run(),
    ]
    for name, price in COSTS.items():
        held += [re.search(rf"^\| `{re.escape(price)}` \| (\d+) ", prices, re.MULTILINE)[1], steps[name]]
    numbers = re.findall(r"\d[\d.,]*\d|\d", text)
    numbers.remove("0.1")  # the next test's
    assert sorted(numbers) == sorted(held)
    assert "one H200" in PAGES["README.md"]
    assert record("bench_h200.json")["circumstances"]["hardware"] == "NVIDIA H200"


def test_the_size_of_the_gpt_in_the_readme():
    demo = pytest.importorskip("o2nc_experiments.demo")
    from o2nc_experiments.gpt_model import GPT

    size = demo.SIZE
    model = GPT(size.layers, size.width, size.heads, size.context, 256)  # bytes
    assert f"a GPT of {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters" in PAGES["README.md"]


def spoken(text):
    """Return the commands of a page: lines of its shell blocks, and o2nc's in the text."""
    lines = [line for block in blocks(text, "sh") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in (*lines, *re.findall(r"`(o2nc [^`…]+)`", text))]


COMMANDS = sorted({(page, shlex.join(words)) for page, text in PAGES.items() for words in spoken(text) if words})


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_command_is_understood(page, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(command)
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets)
    elif program == "pip":
        assert arguments[0] == "install"
        assert set(arguments[1::2]) == {"-e"}
        assert all((ROOT / folder / "pyproject.toml").exists() for folder in arguments[2::2])
    elif program == "torchrun":
        assert f"# {arguments[-1]}\n" in PAGES[page]  # a script that the page has
    else:
        assert program == "o2nc"  # the command line reads the arguments; nothing is run
        cli = pytest.importorskip("o2nc_experiments.cli")
        count = 2 if arguments[0] == "paper" else 1
        name, options = " ".join(arguments[:count]), arguments[count:]
        assert name in (*cli.COMMANDS, "paper", "")
        if options:  # without any, the text speaks of the command as such
            cli.find_parser(name).parse_args(options)


def anchors(text):
    """Return the anchors of a page's headings."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    here = ROOT / page
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, place = target.partition("#")
        aim = (here.parent / path).resolve() if path else here
        assert aim.exists(), target
        assert not place or place in anchors(aim.read_text(encoding="utf-8")), target
    for name in re.findall(r"`((?:src|tests|benchmarks|docs)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name


def test_pictures_are_used():
    text = "".join(PAGES.values())
    assert [path.name for path in (DOCS / "images").glob("*.png") if f"images/{path.name}" not in text] == []


MODULES = ("o2nc", "o2nc.learners", "o2nc.problems", "o2nc.theory")
NAMES = [(module, name) for module in MODULES for name in importlib.import_module(module).__all__]
PUBLIC = [(module, name) for module, name in NAMES if f"{module}.{name}" not in MODULES]


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_public_name_is_documented_with_an_example(module, name):
    thing = getattr(importlib.import_module(module), name)
    assert doctest.DocTestParser().get_examples(thing.__doc__)
    reference = "".join(text for page, text in PAGES.items() if page.startswith(f"docs{os.sep}api"))
    assert re.search(rf":: (o2nc\.)?{name}(\(\))?$|:members:.*\b{name}\b", reference, re.MULTILINE)


def test_files_that_the_notation_names_are_there():
    pattern = r"`((?:\w+/)*\w+\.py)`|^  (\w+(?:\.py|/))"
    names = ["".join(found) for found in re.findall(pattern, PAGES["docs/notation.md"], re.MULTILINE)]
    places = (ROOT, ROOT / "src/o2nc", ROOT / "experiments/src/o2nc_experiments")
    assert [name for name in names if not any((place / name).exists() for place in places)] == []
