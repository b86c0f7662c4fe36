"""Run the library's own tests on other versions of torch, each in an environment of its own.

    python tests/versions.py [VERSION...]

Without versions it takes the oldest that pyproject.toml allows, one between and the newest that pip finds; the one
that constraints.txt pins is the business of `make test`. An environment takes some GB in build/versions and is used
again. Each imports o2nc with warnings as errors and runs two parts: all tests but those of the experiments, the
command line and the pages; and those of the kernels, interpreted where there is no GPU. What comes out goes to
docs/results/versions.json and into the table of docs/versions.md. A PYTEST_ADDOPTS such as "-n 2" adds to how the
tests run.
"""

import json
import os
import re
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
ENVIRONMENTS = ROOT / "build" / "versions"
RECORD = ROOT / "docs" / "results" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"

NEWEST = "newest"  # that pip finds
BETWEEN = "2.11.0"
# what the tests import beside torch and numpy; torch for CUDA has a Triton of its own choice
PACKAGES = ("pytest", "pytest-xdist", "hypothesis", "scipy", "mpmath", "matplotlib", "triton")
PARTS = ("core", "kernels")
PYTEST = ("-m", "pytest", "-m", "not slow", "-n", "auto", "--maxprocesses", "4", "--dist", "worksteal")

WHAT = """
import json, sys
import o2nc
import numpy, torch, triton
versions = {"build": torch.__version__, "python": sys.version.split()[0]}
versions |= {module.__name__: module.__version__ for module in (numpy, triton)}
print(json.dumps(versions | {"gpu": torch.cuda.is_available() and torch.cuda.get_device_name()}))
"""


def lines(name):
    return (ROOT / name).read_text(encoding="utf-8").splitlines()


def floor():
    """Return the oldest torch that the library says it needs."""
    project = tomllib.loads("\n".join(lines("pyproject.toml")))["project"]
    (bound,) = (found[1] for line in project["dependencies"] if (found := re.fullmatch(r"torch>=([\d.]+)", line)))
    return bound


def pinned():
    """Return the torch that the other tests run with."""
    (version,) = (line.removeprefix("torch==") for line in lines("constraints.txt") if line.startswith("torch=="))
    return version


def default():
    """Return the versions that are tested when none are named."""
    return [f"{floor()}.0", BETWEEN, NEWEST]


def order(version):
    """Return a key to sort versions by."""
    return tuple(int(part) for part in version.split("."))


def tests(part):
    """Return the files of a part; the others need packages that come and go with the experiments."""
    kernels = sorted((TESTS / "fused").glob("test_*.py"))
    if part == "kernels":
        return kernels
    outside = re.compile(r"o2nc_experiments|^import versions$", re.MULTILINE)
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if path not in kernels]
    return [path for path in files if not outside.search(path.read_text(encoding="utf-8"))]


def main(versions):
    """Test every version, note what comes out after each, and fail if one of them fails."""
    failed = []
    for wanted in versions or default():
        print(f"torch {wanted}", flush=True)
        found = measure(wanted)
        version = found["build"].split("+")[0]
        note(version, found)
        failed += [] if passed(found) else [version]
        print(f"torch {version}: {json.dumps(found)}", flush=True)
    if failed:
        sys.exit(f"o2nc fails on torch {', '.join(failed)}")


def environment(version):
    """Return the Python of an environment with that torch, made if there is none."""
    folder = ENVIRONMENTS / version
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"  installing into {folder.relative_to(ROOT)}, which takes some minutes", flush=True)
        venv.create(folder, with_pip=True)
    # older interpreters of Triton (3.6 still) take arrays of one element for numbers, which numpy refuses since 2.4
    is_old = version != NEWEST and order(version) < order(pinned())
    torch, numpy = "torch" if version == NEWEST else f"torch=={version}", "numpy<2.4" if is_old else "numpy"
    own = ("torch==", "triton==", "numpy==") if is_old else ("torch==", "triton==")
    others = folder / "constraints.txt"
    others.write_text("\n".join(line for line in lines("constraints.txt") if not line.startswith(own)))
    pip = (python, "-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check", "-c", others)
    subprocess.run([*pip, torch, numpy, *PACKAGES], check=True)
    return python


def measure(version):
    """Import the library and run its tests; return the counts."""
    python = environment(version)
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-W", "error", "-c", WHAT], env=variables, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        code = "from importlib.metadata import version; print(version('torch'))"
        return {"import": False, "build": subprocess.check_output([python, "-c", code], text=True).strip()}
    found = json.loads(done.stdout) | {"import": True, "cores": os.cpu_count()}
    begin = time.monotonic()
    for part in PARTS:
        report = python.parent.parent / f"{part}.xml"
        report.unlink(missing_ok=True)
        command = (python, *PYTEST, "-p", "no:cacheprovider", f"--junitxml={report}", *tests(part))
        code = subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode
        found[part] = count(report, code)
    return found | {"seconds": round(time.monotonic() - begin)}


def count(report, code):
    """Return how many tests passed, failed and were skipped; a run that died has failed at least once."""
    if not report.exists():
        return {"passed": 0, "failed": 1, "skipped": 0}
    (suite,) = ElementTree.parse(report).getroot()
    number = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    failed, skipped = number["failures"] + number["errors"], number["skipped"]
    return {"passed": number["tests"] - failed - skipped, "failed": max(failed, int(code != 0)), "skipped": skipped}


def passed(found):
    """Return whether a version can be relied on: nothing failed, and the core was run."""
    return bool(found["import"] and found["core"]["passed"] and not any(found[part]["failed"] for part in PARTS))


def note(version, found):
    """Keep what was found, with what is known of other versions, and write the page's table again."""
    known = json.loads(RECORD.read_text(encoding="utf-8")) | {version: found}
    known = {key: known[key] for key in sorted(known, key=order)}
    RECORD.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    page = re.sub(
        r"(?m)^\| torch \| Triton \|(.*\n)(^\|.*\n)+", lambda _: table(known), PAGE.read_text(encoding="utf-8")
    )
    PAGE.write_text(page, encoding="utf-8")


def table(known):
    """Return what is known, as the page shows it."""
    rows = ["| torch | Triton | import | core tests | kernels | minutes |", "|---|---|---|--:|--:|--:|"]
    for version, found in known.items():
        cells = [version, "", "no", "", "", ""]
        if found["import"]:
            counts = [" / ".join(str(found[part][k]) for k in ("passed", "failed", "skipped")) for part in PARTS]
            cells = [found["build"], found["triton"], "yes", *counts, f"{found['seconds'] / 60:.0f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
