"""How many small errors in src/o2nc the tests would notice.

    python tests/mutants.py before.json --tests OLD      # draws mutants, and has those tests meet each
    python tests/mutants.py after.json --against before.json      # the same mutants, and the tests that are here

A mutant has one operator, comparison or constant replaced, one condition negated or one statement dropped. First the
suite runs once, in a tree whose statements note which test reaches them. Then every mutant meets the tests that reach
it until one fails: the fastest case of every test function, then the second fastest of each, and so on; those that
would take longer than ``--seconds`` together are left out. Of the cases of a function at most ``--cases`` are taken.
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
from itertools import count
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
OTHERS = {
    **{"Add": "-", "Sub": "+", "Mult": "/", "Div": "*", "Pow": "*", "FloorDiv": "/", "Mod": "*", "BitOr": "&"},
    **{"Lt": "<= >=", "LtE": "< >", "Gt": ">= <=", "GtE": "> <", "Eq": "!=", "NotEq": "==", "And": "or", "Or": "and"},
    **{"Is": "is_not", "IsNot": "is", "In": "not_in", "NotIn": "in"},
}
# what a mutant's place calls in the first run, and what notes the seconds and the failures of tests in every run
NOTES = """import json, os, pytest, random
seen = set()
def note(*line):
    if line not in seen:
        seen.add(line)
        with open(os.environ["NOTES"], "a") as file:
            file.write(json.dumps(line) + "\\n")
def hit(mutant):
    note("hit", os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0], mutant)
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    began = sum(os.times()[:4])
    yield
    note("seconds", item.nodeid, sum(os.times()[:4]) - began)
def pytest_runtest_logreport(report):
    if report.failed:
        note("failed", report.nodeid)
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    functions, most = {}, int(os.environ["CASES"])
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chance = random.Random(0)
    items[:] = [item for cases in functions.values() for item in chance.sample(cases, min(most, len(cases)))]
"""


def mutants_of(path):
    """Return all mutants of a file: where in its bytes which text goes, and the line of the statement around."""
    source, found = path.read_bytes(), []
    starts = [0, *(i + 1 for i, byte in enumerate(source) if byte == 10)]

    def put(node, text, statement):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        where = {"file": str(path.relative_to(ROOT)), "line": node.lineno, "statement": statement.lineno}
        found.append(where | {"begin": begin, "end": end, "old": source[begin:end].decode(), "new": text})

    def visit(node, statement):
        statement = node if isinstance(node, ast.stmt) else statement
        match node:
            case ast.Raise():  # its message is no matter
                return put(node, "pass", statement)
            case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                return None
            case ast.Expr() | ast.AugAssign() | ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
                put(node, "pass", statement)
            case ast.BinOp(a, op, b) | ast.Compare(a, [op], [b]) if type(op).__name__ in OTHERS:
                for other in OTHERS[type(op).__name__].split():
                    put(node, f"(({ast.unparse(a)}) {other.replace('_', ' ')} ({ast.unparse(b)}))", statement)
            case ast.BoolOp(op, values):
                parts = (f"({ast.unparse(value)})" for value in values)
                put(node, f"({f' {OTHERS[type(op).__name__]} '.join(parts)})", statement)
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
        return None

    visit(ast.parse(source), None)
    return found


def draw(rooms, n, seed):
    """Return n mutants of these folders of src/o2nc, of every file in proportion to its lines."""
    files = sorted(path for room in rooms for path in (ROOT / "src/o2nc" / room).rglob("*.py"))
    chance, drawn = random.Random(seed), []
    lines, pools = [len(path.read_text().splitlines()) for path in files], {path: mutants_of(path) for path in files}
    while len(drawn) < n:
        if pool := pools[chance.choices(files, lines)[0]]:
            drawn.append(pool.pop(chance.randrange(len(pool))))
    return drawn


class Tree:
    """A copy of what the suite needs, with the tests of any folder."""

    def __init__(self, folder, tests, cases):
        self.folder = Path(folder)
        ignored = shutil.ignore_patterns(".*", "build", "dist", "tests", "__pycache__")
        shutil.copytree(ROOT, self.folder, ignore=ignored)
        shutil.copytree(tests, self.folder / "tests")
        (self.folder / "notes.py").write_text(NOTES)
        path = os.pathsep.join(str(self.folder / part) for part in (".", "src", "experiments/src"))
        self.environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NOTES": str(self.folder / "noted")}
        self.environment["CASES"] = str(cases)

    def notes(self, kind):
        file = self.folder / "noted"
        lines = map(json.loads, file.read_text().splitlines() if file.exists() else ())
        return [rest for first, *rest in lines if first == kind]

    def reach(self, mutants, suite, jobs):
        """Run the suite once; return the tests that reach each mutant, in the order to meet it, and their seconds."""
        by_file = defaultdict(lambda: defaultdict(list))
        for i, mutant in enumerate(mutants):
            by_file[mutant["file"]][mutant["statement"]].append(i)
        for name, statements in by_file.items():
            module = ast.parse((self.folder / name).read_text())
            bodies = [getattr(node, key, ()) for node in ast.walk(module) for key in ("body", "orelse", "finalbody")]
            for body in bodies:
                for k in reversed(range(len(body) if isinstance(body, list) else 0)):
                    body[k:k] = [ast.parse(f"_hit({i})").body[0] for i in statements.pop(body[k].lineno, ())]
            is_head = [
                isinstance(node, ast.Expr) or getattr(node, "module", "") == "__future__" for node in module.body
            ]
            module.body[is_head.index(False) : 0] = ast.parse("from notes import hit as _hit").body
            (self.folder / name).write_text(ast.unparse(module))
        run = [sys.executable, "-m", "pytest", "-p", "notes", "-p", "no:cacheprovider", "-m", "not slow"]
        parallel = [*run, "-n", str(jobs), "--dist", "worksteal", *suite]
        subprocess.run(parallel, cwd=self.folder, env=os.environ | self.environment, check=False)
        hits, failed = self.notes("hit"), sorted({test for (test,) in self.notes("failed")})
        seconds = dict(self.notes("seconds"))
        for name in by_file:
            shutil.copy(ROOT / name, self.folder / name)
        if failed:  # because of the notes? a test that fails anyway kills nothing
            (self.folder / "noted").unlink()
            subprocess.run([*run, *failed], cwd=self.folder, env=os.environ | self.environment, check=False)
            for (test,) in self.notes("failed"):
                seconds.pop(test, None)
        reached = [{test for test, k in hits if k == i} & seconds.keys() for i in range(len(mutants))]
        for i, mutant in enumerate(mutants):  # what runs at import alone: all that use the file
            if not reached[i]:
                reached[i].update(*(reached[k] for k, m in enumerate(mutants) if m["file"] == mutant["file"]))
        return [_in_turn(sorted(tests, key=seconds.get)) for tests in reached], seconds

    def meet(self, mutant, tests, expected):
        """Run tests on a mutant, in a process that has imported torch; return the one that failed, or None."""
        file, source = self.folder / mutant["file"], (ROOT / mutant["file"]).read_bytes()
        file.write_bytes(source[: mutant["begin"]] + mutant["new"].encode() + source[mutant["end"] :])
        (self.folder / "noted").unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            import pytest

            os.setsid()
            signal.alarm(600)
            resource.setrlimit(resource.RLIMIT_CPU, (int(20 + 4 * expected),) * 2)  # endless loops are noticed, too
            os.environ |= self.environment
            os.chdir(self.folder)
            sys.path[:0] = self.environment["PYTHONPATH"].split(os.pathsep)
            os.dup2(os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            os._exit(pytest.main(["-x", "-p", "notes", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        file.write_bytes(source)
        return None if status == 0 else [*(test for (test,) in self.notes("failed")), f"exit status {status}"][0]


def _in_turn(tests):
    """Return the first case of every test function, then the second of each, and so on."""
    turns = defaultdict(count)
    return sorted(tests, key=lambda test: next(turns[test.partition("[")[0]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--tests", type=Path, default=ROOT / "tests", help="a folder of tests (those that are here)")
    parser.add_argument("--against", type=Path, help="the result of an earlier run, whose mutants are taken")
    parser.add_argument("--rooms", nargs="+", default=["."], help="folders of src/o2nc to draw from (all)")
    parser.add_argument("--suite", nargs="+", default=["tests", "src"], help="the tests that meet them (all)")
    for name, value in {"number": 200, "seed": 0, "seconds": 40, "cases": 8, "jobs": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"({value})")
    options = parser.parse_args()
    earlier = json.loads(options.against.read_text()) if options.against else None
    mutants, trees = earlier or draw(options.rooms, options.number, options.seed), SimpleQueue()
    os.environ.setdefault("TRITON_INTERPRET", "1")
    __import__("triton"), __import__("scipy.stats"), __import__("torch.distributed")  # once, for all that are forked

    def judge(mutant, tests):
        last = (mutant.get("killer") or "").partition("::")[2]
        tests, left, chosen = sorted(tests, key=lambda t: t.partition("::")[2] != last), options.seconds, []
        for test in tests:
            left -= seconds[test]
            chosen += [test] * (left > 0)
        tree, killer = trees.get(), None
        for part in filter(None, (chosen[:8], chosen[8:])):
            killer = killer or tree.meet(mutant, part, sum(map(seconds.get, part)))
        trees.put(tree)
        print("killed" if killer else "SURVIVED", mutant["file"], mutant["line"], mutant["new"], killer, flush=True)
        return mutant | {"killer": killer, "tests": len(chosen)}

    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(f"{folder}/map", options.tests, options.cases)
        reached, seconds = tree.reach(mutants, options.suite, options.jobs)
        for k in range(options.jobs):
            trees.put(Tree(f"{folder}/{k}", options.tests, options.cases))
        with ThreadPoolExecutor(options.jobs) as pool:
            found = list(pool.map(judge, mutants, reached))
    options.result.write_text(json.dumps(found, indent=1))
    print(f"{sum(m['killer'] is not None for m in found)} of {len(found)} killed")
    for before, after in zip(earlier or (), found, strict=False):
        if before["killer"] and not after["killer"]:
            print("killed no more:", before["file"], before["line"], before["new"], "by", before["killer"])


if __name__ == "__main__":
    main()
