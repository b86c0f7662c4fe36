"""Run the library's own tests on other versions of torch, each in an environment of its own.

    python tests/versions.py [VERSION...]

Without versions it takes the oldest that pyproject.toml allows, one between and the newest that pip finds; the one
that constraints.txt pins is the business of `make test`. An environment takes some GB in build/versions and is used
again. Each imports o2nc with warnings as errors and runs two parts: all tests but those of the experiments and the
kernels; and those of the kernels, interpreted where there is no GPU. What comes out is a row of docs/versions.md.
"""

import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "versions.md"
OLDEST = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))[1]
BETWEEN = "2.11.0"
NEWEST = "newest"  # that pip finds
# what the tests import beside torch and numpy; torch for CUDA has a Triton of its own choice
PACKAGES = ("pytest", "pytest-xdist", "hypothesis", "scipy", "mpmath", "matplotlib", "triton")
ELSEWHERE = ("test_docs.py", "test_package.py")  # of this tree, which they find with any torch
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "-n", "auto", "--maxprocesses", "4")
FACTS = "import o2nc, torch, triton; print(torch.__version__, triton.__version__)"


def order(version):
    """Return a key to sort versions by."""
    return tuple(int(part) for part in version.split("+")[0].split("."))


def rows():
    """Return the rows of the page's table by version: build, Triton, counts of two parts, minutes."""
    table = re.findall(r"(?m)^\| (\d[\d.]*\+.*) \|$", PAGE.read_text(encoding="utf-8"))
    return {line.split("+")[0]: line.split(" | ") for line in table}


def environment(version):
    """Return the Python of an environment with that torch, made if there is none."""
    folder = ROOT / "build" / "versions" / version
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    # older interpreters of Triton (3.6 still) take arrays of one element for numbers, which numpy refuses since 2.4
    is_old = version != NEWEST and order(version) < order(re.search(r"^torch==(.*)$", pins, re.MULTILINE)[1])
    if not folder.exists():
        print(f"installing into {folder.relative_to(ROOT)}, which takes some minutes", flush=True)
        venv.create(folder, with_pip=True)
    (folder / "constraints.txt").write_text(re.sub(r"(?m)^(torch|triton|numpy)==.*\n", "", pins))
    packages = ("torch" if version == NEWEST else f"torch=={version}", "numpy<2.4" if is_old else "numpy", *PACKAGES)
    pip = (folder / "bin" / "pip", "install", "--quiet", "--upgrade", "-c", folder / "constraints.txt")
    subprocess.run([*pip, *packages], check=True)
    return folder / "bin" / "python"


def measure(version):
    """Import the library, run its tests and return the row."""
    python = environment(version)
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    facts = subprocess.run([python, "-W", "error", "-c", FACTS], env=variables, stdout=subprocess.PIPE, check=True)
    row, begin = facts.stdout.decode().split(), time.monotonic()
    core = set((ROOT / "tests").rglob("test_*.py")) - {ROOT / "tests" / name for name in ELSEWHERE}
    kernels = set((ROOT / "tests" / "fused").glob("test_*.py"))
    for part in (core - kernels, kernels):
        command = (python, *PYTEST, *sorted(part))
        done = subprocess.run(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, flush=True)
        last = done.stdout.strip().rpartition("\n")[2]
        counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
        failed = counts.get("failed", 0) + counts.get("error", 0)
        failed = failed or int(done.returncode != 0)  # a run that died has failed at least once
        row.append(f"{counts.get('passed', 0)} / {failed} / {counts.get('skipped', 0)}")
    return [*row, f"{(time.monotonic() - begin) / 60:.0f}"]


def passed(row):
    """Return whether a version can be relied on: nothing failed, and the core was run."""
    return not row[2].startswith("0 ") and all(" / 0 / " in cell for cell in row[2:4])


def main(versions):
    """Test every version, write its row after each, and fail if one of them fails."""
    failed = []
    for version in versions or (f"{OLDEST}.0", BETWEEN, NEWEST):
        row = measure(version)
        known = rows() | {row[0].split("+")[0]: row}
        table = "".join(f"| {' | '.join(known[key])} |\n" for key in sorted(known, key=order))
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(re.sub(r"(?m)(^\| \d[\d.]*\+.*\n)+", table, page), encoding="utf-8")
        print(*row, sep=", ", flush=True)
        failed += [] if passed(row) else [row[0]]
    if failed:
        sys.exit(f"o2nc fails on torch {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
