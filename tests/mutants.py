"""How many small errors in src/o2nc the tests would notice.

    python tests/mutants.py before.json --tests OLD      # draws mutants, and runs those tests on each
    python tests/mutants.py after.json --against before.json      # the same mutants, and the tests that are here

A mutant has one operator, comparison or constant replaced, one condition negated or one statement dropped. First the
whole suite runs once, in a tree whose statements say which test reaches them. Then every mutant meets the tests that
reach it, the fastest first, until one fails; those that together would take longer than ``--seconds`` are left out.
"""

import argparse
import ast
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
PATHS = (
    "src",
    "tests",
    "docs",
    "experiments",
    "conftest.py",
    "pyproject.toml",
    "README.md",
    "Makefile",
    "CHANGELOG.md",
)
OTHERS = {
    **{"Add": "-", "Sub": "+", "Mult": "/", "Div": "*", "Pow": "*", "FloorDiv": "/", "Mod": "*", "BitOr": "&"},
    **{"Lt": "<= >=", "LtE": "< >", "Gt": ">= <=", "GtE": "> <", "Eq": "!=", "NotEq": "==", "And": "or", "Or": "and"},
    **{"Is": "is_not", "IsNot": "is", "In": "not_in", "NotIn": "in"},
}
REACH = """import os
seen = set()
def hit(mutant):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (mutant, test) not in seen:
        seen.add((mutant, test))
        with open(os.environ["REACHED"], "a") as file:
            file.write(f"{mutant} {test}\\n")
"""
CHILD = """import json, os, sys, pytest
class Plugin:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        began = sum(os.times()[:4])
        yield
        note({"test": item.nodeid, "seconds": sum(os.times()[:4]) - began})
    def pytest_runtest_logreport(self, report):
        if report.failed:
            note({"failed": report.nodeid})
def note(line):
    with open(os.environ["NOTED"], "a") as file:
        file.write(json.dumps(line) + "\\n")
def pytest_configure(config):
    config.pluginmanager.register(Plugin())
"""


def mutants_of(path):
    """Return all mutants of a file: where in its bytes which text goes, and the line of the statement around."""
    source, found = path.read_bytes(), []
    starts = [0, *(i + 1 for i, byte in enumerate(source) if byte == 10)]

    def put(node, text, statement):
        begin, end = (
            starts[a - 1] + b for a, b in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        )
        where = {"file": str(path.relative_to(ROOT)), "line": node.lineno, "statement": statement.lineno}
        found.append(where | {"begin": begin, "end": end, "old": source[begin:end].decode(), "new": text})

    def visit(node, statement):
        statement = node if isinstance(node, ast.stmt) else statement
        match node:
            case ast.Raise():
                put(node, "pass", statement)
                return  # its message is no matter
            case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                return
            case ast.Expr() | ast.AugAssign() | ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
                put(node, "pass", statement)
            case ast.BinOp(a, op, b) if type(op).__name__ in OTHERS:
                put(node, f"(({ast.unparse(a)}) {OTHERS[type(op).__name__]} ({ast.unparse(b)}))", statement)
            case ast.BoolOp(op, values):
                put(
                    node,
                    "(" + f" {OTHERS[type(op).__name__]} ".join(f"({ast.unparse(v)})" for v in values) + ")",
                    statement,
                )
            case ast.Compare(a, [op], [b]):
                for other in OTHERS[type(op).__name__].split():
                    put(node, f"(({ast.unparse(a)}) {other.replace('_', ' ')} ({ast.unparse(b)}))", statement)
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                put(node, f"({ast.unparse(operand)})", statement)
            case ast.Constant(bool() as value):
                put(node, str(not value), statement)
            case ast.Constant(int() | float() as value):
                put(node, repr(value + 1 if isinstance(value, int) else value * 1.5 + 0.1), statement)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                put(test, f"(not ({ast.unparse(test)}))", statement)
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
                put(node, "return None", statement)
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in ("annotation", "returns", "decorator_list"):
                    visit(child, statement)

    visit(ast.parse(source), None)
    return found


def draw(n, seed):
    """Return n mutants, of every file in proportion to its lines."""
    files = sorted((ROOT / "src/o2nc").rglob("*.py"))
    lines, chance = [len(path.read_text().splitlines()) for path in files], random.Random(seed)
    pools, drawn = {path: mutants_of(path) for path in files}, []
    while len(drawn) < n:
        if pool := pools[chance.choices(files, lines)[0]]:
            drawn.append(pool.pop(chance.randrange(len(pool))))
    return drawn


def copy(tree, tests):
    """Copy what the suite needs, with the tests of another folder."""
    for name in PATHS:
        source = Path(tests) if name == "tests" else ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tree / name)
    (tree / "noting.py").write_text(CHILD)
    return tree


def environment(tree, **more):
    """Return the variables with which o2nc is this tree's."""
    path = os.pathsep.join(str(tree / part) for part in (".", "src", "experiments/src"))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NOTED": str(tree / "noted"), **more}


def noted(tree):
    """Return what the plugin wrote, and forget it."""
    file = tree / "noted"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


def reach(mutants, tree):
    """Run the suite once; return per mutant the tests that reach it, the fastest first, and their seconds."""
    by_file = defaultdict(lambda: defaultdict(list))
    for i, mutant in enumerate(mutants):
        by_file[mutant["file"]][mutant["statement"]].append(i)
    for name, statements in by_file.items():
        module = ast.parse((tree / name).read_text())
        for node in list(ast.walk(module)):
            for field in ("body", "orelse", "finalbody"):
                body = getattr(node, field, [])
                for k in reversed(range(len(body) if isinstance(body, list) else 0)):
                    body[k:k] = [ast.parse(f"_hit({i})").body[0] for i in statements.pop(body[k].lineno, ())]
        first = next(k for k, node in enumerate(module.body) if not isinstance(node, ast.Expr))
        first += isinstance(module.body[first], ast.ImportFrom) and module.body[first].module == "__future__"
        module.body[first:first] = ast.parse("from o2nc_reach import hit as _hit").body
        (tree / name).write_text(ast.unparse(module))
    (tree / "src/o2nc_reach.py").write_text(REACH)
    run = [sys.executable, "-m", "pytest", "-p", "noting", "-p", "no:cacheprovider", "-m", "not slow", "tests", "src"]
    more = {"REACHED": str(tree / "reached")}
    subprocess.run([*run, "-n", "2", "--dist", "worksteal"], cwd=tree, env=environment(tree, **more), check=False)
    for name in by_file:
        shutil.copy(ROOT / name, tree / name)
    lines = noted(tree)
    seconds = {line["test"]: line["seconds"] for line in lines if "test" in line}
    if again := sorted({line["failed"] for line in lines if "failed" in line}):  # is it because of the notes?
        subprocess.run([*run[:-2], *again], cwd=tree, env=environment(tree), check=False)
        for line in noted(tree):
            seconds.pop(line.get("failed"), None)  # a test that fails anyway kills nothing
    reached = defaultdict(set)
    for line in (tree / "reached").read_text().splitlines():
        mutant, _, test = line.partition(" ")
        reached[int(mutant)] |= {test} & seconds.keys()
    for i, mutant in enumerate(mutants):  # what runs at import alone: all that use the file
        if not reached[i]:
            reached[i] = set().union(*(reached[k] for k in list(reached) if mutants[k]["file"] == mutant["file"]))
    return [sorted(reached[i], key=seconds.get) for i in range(len(mutants))], seconds


def meet(mutant, tests, expected, tree):
    """Run tests on a mutant, in a process that has imported torch already; return the one that failed, or None."""
    source = (ROOT / mutant["file"]).read_bytes()
    (tree / mutant["file"]).write_bytes(source[: mutant["begin"]] + mutant["new"].encode() + source[mutant["end"] :])
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(600)
        resource.setrlimit(resource.RLIMIT_CPU, (int(20 + 4 * expected),) * 2)  # an endless loop is noticed, too
        os.environ |= environment(tree)
        os.chdir(tree)
        sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
        os.dup2(os.open(tree / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        import pytest

        os._exit(pytest.main(["-x", "-p", "noting", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shutil.copy(ROOT / mutant["file"], tree / mutant["file"])
    failed = [line["failed"] for line in noted(tree) if "failed" in line]
    return None if status == 0 else failed[0] if failed else f"exit status {status}"


def main():
    """Draw mutants, or take those of an earlier run; say who survives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="a folder of tests (those that are here)")
    parser.add_argument("--against", type=Path, help="the result of an earlier run, whose mutants are taken")
    for name, value in {"number": 200, "seed": 0, "seconds": 40, "jobs": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"({value})")
    options = parser.parse_args()
    if options.against:
        mutants = json.loads(options.against.read_text())
    else:
        mutants = draw(options.number, options.seed)
    os.environ.setdefault("TRITON_INTERPRET", "1")
    import mpmath  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        tests, seconds = reach(mutants, copy(Path(folder) / "map", options.tests))
        trees = SimpleQueue()
        for k in range(options.jobs):
            trees.put(copy(Path(folder) / str(k), options.tests))

        def judge(case):
            mutant, candidates = case
            chosen, left = [], options.seconds
            for test in candidates:
                if (left := left - seconds[test]) > 0:
                    chosen.append(test)
            tree, killer = trees.get(), None
            for part in (chosen[:8], chosen[8:]):
                if part and not killer:
                    killer = meet(mutant, part, sum(map(seconds.get, part)), tree)
            trees.put(tree)
            print(
                "killed" if killer else "SURVIVED", mutant["file"], mutant["line"], mutant["new"], killer, flush=True
            )
            return mutant | {"killer": killer, "tests": len(chosen)}

        with ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(judge, zip(mutants, tests, strict=True)))
    options.result.write_text(json.dumps(found, indent=1))
    print(f"{sum(m['killer'] is not None for m in found)} of {len(found)} killed")
    if options.against:
        for before, after in zip(mutants, found, strict=True):
            if before["killer"] and not after["killer"]:
                print("killed no more:", before["file"], before["line"], before["new"], "by", before["killer"])


if __name__ == "__main__":
    main()
