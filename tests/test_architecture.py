"""docs/architecture.md is true: the walks are as short as it says, optimizers as flat, imports go one way."""

import ast
import importlib
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import o2nc
from pages import PAGES
from problem import parameters
from registry import OURS, PAPER
from walk import WALKED, summary, walks

PAGE = PAGES["docs/architecture.md"]
SOURCE = Path(o2nc.__file__).parent
# at most so many files, and changes from one to another
LIMITS = {"step": (6, 12), "certificate": (5, 10), "load_state_dict": (6, 12), "state_dict": (4, 8)}


@pytest.mark.parametrize("name", WALKED)
def test_walks_are_short(name):
    limits = LIMITS | ({"step": (8, 18)} if name == "OGD" else {})
    for what, calls in walks(name).items():
        found = summary(calls)
        assert (found["files"] <= limits[what][0], found["changes"] <= limits[what][1]) == (True, True), (what, found)


def test_the_step_is_the_one_on_the_page():
    calls = walks("AdamW")["step"]
    files, changes = map(int, re.search(r"visits (\d+) files and changes (\d+) times", PAGE).groups())
    found = summary(calls)
    assert (found["files"], found["changes"]) == (files, changes)
    table = PAGE[PAGE.index("## One step") : PAGE.index("## What survives")]
    rows = re.findall(r"^\| `(.*?)` \| `([\w/]+\.py)` \|", table, re.MULTILINE)
    steps = [(file, name.split(".")[-1]) for file, name in calls]
    told = [(file, name) for names, file in rows for name in names.split("`, `")]
    assert {file for file, _ in told} == {file for file, _ in steps}
    assert [call for call in dict.fromkeys(steps) if call in told] == told  # in this order


@pytest.mark.parametrize("name", OURS)
def test_an_optimizer_has_few_classes_of_ours(name):
    ours = [cls for cls in type(OURS[name](parameters())).__mro__ if cls.__module__.startswith("o2nc")]
    assert hasattr(ours[0], "output") == hasattr(ours[0], "progress") == (name in PAPER)
    assert len(ours) <= (5 if name in PAPER else 3)


def test_the_page_names_what_is_there():
    names = re.findall(r"`(scaling|averages\.\w+|vector|\w*engine|\w*kernels|persist\.\w+)\.(?!py)(\w+)`", PAGE)
    assert names
    for module, name in names:
        path = {"engine": "fused.engine", "kernels": "fused.kernels"}.get(module, module)
        assert hasattr(importlib.import_module(f"o2nc.{path}"), name), f"{module}.{name}"
    for file in re.findall(r"`((?:optimizers|averages|persist|fused|certificates|learners)/[\w/]+\.py)`", PAGE):
        assert importlib.util.find_spec("o2nc." + file[:-3].replace("/", ".")), file


class OnImport(ast.NodeTransformer):
    """Leaves what runs when a module is imported, also where only a type checker looks."""

    def visit_FunctionDef(self, node):
        return None


def imports(path, known):
    """Return the modules that a file imports; of a package, the submodule that is named rather than the package."""
    found = set()
    for node in ast.walk(OnImport().visit(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in inner}
    return found & known


def test_no_module_imports_itself_by_way_of_others():
    paths = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    assert len(modules) > 30
    graph = {name: imports(path, modules.keys()) - {name} for name, path in modules.items()}
    TopologicalSorter(graph).prepare()  # names the circle if there is one
