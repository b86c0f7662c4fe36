"""No module of the library imports itself by way of others, not even where only a type checker looks."""

import ast
from pathlib import Path

import o2nc

ROOT = Path(o2nc.__file__).parent


def modules():
    """Return the files of the package by module name."""
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("o2nc", *path.relative_to(ROOT).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def statements(body):
    """Yield what runs on import: the module's statements, those under if, try and with, and class bodies."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for name in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, name, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def imports(name, path, known):
    """Return the modules that a file imports; of a package, the submodule that is named rather than the package."""
    found = set()
    for node in statements(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {part if part in known else node.module for part in inner}
    return (found & known.keys()) - {name}


def cycles(graph):
    """Return the sets of modules that import each other, directly or not."""
    reached = {name: set() for name in graph}
    for start in graph:
        stack = [start]
        while stack:
            for other in graph[stack.pop()] - reached[start]:
                reached[start].add(other)
                stack.append(other)
    return sorted({tuple(sorted(b for b in graph if a in reached[b] and b in reached[a])) for a in graph} - {()})


def test_no_module_imports_itself_by_way_of_others():
    known = modules()
    assert len(known) > 30
    assert cycles({name: imports(name, path, known) for name, path in known.items()}) == []
