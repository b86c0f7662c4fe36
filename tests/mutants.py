"""How many small errors in src/o2nc the tests notice.

    pip install coverage; python tests/mutants.py found.json --count 200 --seed 29 --suite DIR --like OTHER

A mutant has one operator, comparison or constant replaced, one condition negated or one statement dropped. They are
drawn from all of DIR's src/o2nc that OTHER's has, too, and meet DIR's tests. First its suite runs once, and
coverage.py notes which test reaches which line; tests that fail are listed and left out. Then every mutant meets the
tests that reach it, until one fails: the fastest case of every function, the second fastest of each, and so on, for
at most ``--seconds`` together. Other options go to pytest. Tests that interrupt themselves are left out: an interrupt
while coverage.py holds its lock would stop them for ever.
"""

import argparse
import ast
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from itertools import count
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OTHERS = {
    **{"Add": "-", "Sub": "+", "Mult": "/", "Div": "*", "Pow": "*", "FloorDiv": "/", "Mod": "*", "BitOr": "&"},
    **{"Lt": "<= >=", "LtE": "< >", "Gt": ">= <=", "GtE": "> <", "Eq": "!=", "NotEq": "==", "And": "or", "Or": "and"},
    **{"Is": "is_not", "IsNot": "is", "In": "not_in", "NotIn": "in"},
}


def mutants_of(root):
    """Return all mutants of a checkout's src by what another one may have as well: function, line, change, times."""
    found, times = {}, defaultdict(count)
    for path in sorted((root / "src" / "o2nc").rglob("*.py")):
        for *key, mutant in mutants_in(path.read_bytes()):
            found[*key, next(times[*key])] = mutant | {"file": str(path.relative_to(root))}
    return found


def mutants_in(source):
    """Return all mutants of a file: what replaces which of its bytes, and where that is."""
    starts, found = [0, *(i + 1 for i, byte in enumerate(source) if byte == 10)], []

    def put(node, text, statement, name):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        line, old = source[starts[node.lineno - 1] : starts[node.lineno]].decode(), source[begin:end].decode()
        where = {"line": node.lineno, "statement": statement.lineno, "begin": begin, "end": end}
        found.append((name, line.strip(), old, text, where | {"old": old, "new": text}))

    def visit(node, statement, name):
        name = getattr(node, "name", None) or name
        statement = node if isinstance(node, ast.stmt) else statement
        match node:
            case ast.Raise():  # its message is no matter
                return put(node, "pass", statement, name)
            case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                return None
            case ast.Expr() | ast.AugAssign() | ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
                put(node, "pass", statement, name)
            case ast.BinOp(a, op, b) | ast.Compare(a, [op], [b]) if type(op).__name__ in OTHERS:
                for other in OTHERS[type(op).__name__].split():
                    put(node, f"(({ast.unparse(a)}) {other.replace('_', ' ')} ({ast.unparse(b)}))", statement, name)
            case ast.BoolOp(op, values):
                parts = (f"({ast.unparse(value)})" for value in values)
                put(node, f"({f' {OTHERS[type(op).__name__]} '.join(parts)})", statement, name)
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                put(node, f"({ast.unparse(operand)})", statement, name)
            case ast.Constant(bool() as value):
                put(node, str(not value), statement, name)
            case ast.Constant(int() | float() as value):
                put(node, repr(value + 1 if isinstance(value, int) else value * 1.5 + 0.1), statement, name)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                put(test, f"(not ({ast.unparse(test)}))", statement, name)
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
                put(node, "return None", statement, name)
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in ("annotation", "returns", "decorator_list"):
                    visit(child, statement, name)
        return None

    visit(ast.parse(source), None, "")
    return found


class Notes:
    """A plugin of pytest: the seconds of every test, which of them fail, and which lines each has reached."""

    def __init__(self, coverage=None):
        self.coverage, self.found = coverage, {"seconds": {}, "failed": [], "reached": {}}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        if self.coverage:
            self.coverage.start()
            self.coverage.switch_context(item.nodeid)
        began = sum(os.times()[:4])
        yield
        self.found["seconds"][item.nodeid] = sum(os.times()[:4]) - began
        if self.coverage:
            self.coverage.stop()

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.found["failed"].append(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


def run(arguments, limit, watch=False):
    """Run pytest in a process that has imported torch; return what it notes, or how it ended."""
    answer = Path("noted.json")
    answer.unlink(missing_ok=True)
    if not (child := os.fork()):
        os.setsid()
        sys.dont_write_bytecode = not watch  # what Python keeps of a mutant may look as new as the next one
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))  # endless loops are noticed, too
        signal.alarm(5 * limit)
        os.dup2(os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        coverage = __import__("coverage").Coverage(include=["src/*"], data_file=None) if watch else None
        notes = Notes(coverage)
        code = pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", *arguments], [notes])
        if code and not notes.found["failed"]:  # a mutant that cannot be imported
            notes.found["failed"].append(f"pytest ended with {code}")
        if watch:
            data = coverage.get_data()
            reached = {name: data.contexts_by_lineno(name) for name in data.measured_files()}
            notes.found["reached"] = {os.path.relpath(name): lines for name, lines in reached.items()}
        answer.write_text(json.dumps(notes.found))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(answer.read_text()) if status == 0 else {"failed": [f"exit status {status}"]}


def meet(mutant, tests, seconds):
    """Return the test that fails on a mutant, or None."""
    file = Path(mutant["file"])
    source = file.read_bytes()
    for part in filter(None, (tests[:8], tests[8:])):
        file.write_bytes(source[: mutant["begin"]] + mutant["new"].encode() + source[mutant["end"] :])
        failed = run(["-x", *part], int(20 + 4 * sum(map(seconds.get, part))))["failed"]
        file.write_bytes(source)
        if failed:
            return failed[0]
    return None


def in_turn(tests, seconds, most):
    """Return the fastest case of every test function, then the second fastest, and so on, for so many seconds."""
    turns, spent = defaultdict(count), 0.0
    ordered = sorted(tests, key=lambda test: (seconds[test], test))
    ordered.sort(key=lambda test: next(turns[test.partition("[")[0]]))
    return [test for test in ordered if (spent := spent + seconds[test]) <= most]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("result", type=Path)
    for name in ("suite", "like"):
        parser.add_argument(f"--{name}", type=Path, default=ROOT, help="a checkout (this one)")
    for name, value in {"count": 200, "seed": 29, "seconds": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"({value})")
    options, more = parser.parse_known_args()
    result, pool = options.result.resolve(), mutants_of(options.suite)
    both = pool.keys() & mutants_of(options.like).keys()
    print(f"{len(pool)} mutants, of which {len(both)} are in both", flush=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": os.environ.get("TRITON_INTERPRET", "1")}
    __import__("triton"), __import__("scipy.stats"), __import__("torch.distributed")  # once, for all that are forked
    with tempfile.TemporaryDirectory() as folder:
        path = [f"{folder}/tree{part}" for part in ("", "/src", "/experiments/src")]
        ignored = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__")
        shutil.copytree(options.suite, path[0], ignore=ignored)
        os.chdir(path[0])
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        sys.path[:1] = path
        more += ["--ignore=tests/optimizers/test_interrupts.py"]
        found = run(["--continue-on-collection-errors", "tests", "src", *more], limit=7200, watch=True)
        print("failed without a mutant, and left out:", *found["failed"], sep="\n", flush=True)
        tests = found["seconds"].keys() - set(found["failed"])
        drawn = sorted(both, key=lambda key: random.Random(f"{options.seed} {key}").random())
        mutants = [pool[key] for key in drawn[: options.count]]
        for mutant in mutants:
            lines = found["reached"].get(mutant["file"], {})
            reached = tests & {*lines.get(str(mutant["statement"]), ()), *lines.get(str(mutant["line"]), ())}
            reached = reached or tests & set().union(*lines.values())  # what runs at import alone
            chosen = in_turn(reached, found["seconds"], options.seconds)
            mutant |= {"killer": meet(mutant, chosen, found["seconds"]), "tests": len(chosen)}
            print(*(mutant[key] for key in ("killer", "file", "line", "old", "new")), sep=" | ", flush=True)
            result.write_text(json.dumps(mutants, indent=1))
    print(f"{sum(mutant['killer'] is not None for mutant in mutants)} of {len(mutants)} killed")


if __name__ == "__main__":
    main()
