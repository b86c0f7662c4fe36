"""The wheel and the sdist: what they hold, what they say of themselves, and that torch and numpy are all they need.

`make package` also installs them into empty environments (``installed.py``) and has twine check them.
"""

import email
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import o2nc
import versions
from pages import PAGES, ROOT

NAME = f"o2nc-{o2nc.__version__}"
IMPORTED = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
before = set(sys.modules)
import o2nc, o2nc.integrations
print(o2nc.__file__, *set(sys.modules) - before)
"""


def run(*command):
    command = [sys.executable, *map(str, command)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def project(folder="."):
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Build as ``python -m build`` does, the wheel out of the sdist, with the hatchling that is installed."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    with zipfile.ZipFile(dist / f"{NAME}-py3-none-any.whl") as archive:
        yield archive


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    source = {path for path in source if "__pycache__" not in path and ".egg-info" not in path}
    about = {"METADATA", "WHEEL", "RECORD", "licenses/LICENSE"}
    assert set(wheel.namelist()) == source | {f"{NAME}.dist-info/{name}" for name in about}
    assert {Path(name).suffix for name in source} == {".py", ".typed"}


def test_the_sdist_can_be_tested_and_built_again(dist):
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    assert {name.split("/")[0] for name in names} == {
        *("src", "tests", "docs", "experiments"),
        *("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "conftest.py", "constraints.txt", "pyproject.toml"),
        *("PKG-INFO", ".gitignore"),
    }
    assert "tests/test_package.py" in names
    assert not [name for name in names if "__pycache__" in name]


def test_metadata(wheel):
    metadata = email.message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
    fields = ("Name", "Version", "License-Expression", "Requires-Python", "Description-Content-Type", "Project-URL")
    assert [metadata[field] for field in fields] == [
        *("o2nc", o2nc.__version__, "MIT", ">=3.11", "text/markdown"),
        "Paper, https://arxiv.org/abs/2405.09742",
    ]
    assert metadata.get_payload(decode=True).decode() == PAGES["README.md"]
    assert all(metadata[field] for field in ("Summary", "Author", "Keywords"))
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    core = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(core) == ["numpy", f"torch>={versions.OLDEST}"]
    assert sorted(metadata.get_all("Provides-Extra")) == sorted(project()["optional-dependencies"])


def test_the_command_begins_without_torch():
    """So that Ctrl-C while torch is imported can be answered."""
    module, _, function = project("experiments")["scripts"]["o2nc"].partition(":")
    names = set(run("-c", f"import sys; from {module} import {function}; print(*sys.modules)").split())
    assert module in names
    assert not {"o2nc", "torch", "numpy"} & names


def test_the_versions_of_torch_are_tested_and_told():
    """The oldest is that of pyproject.toml; docs/versions.md has what was found on it and above."""
    rows = versions.rows()
    oldest, *_, newest = sorted(rows, key=versions.order)
    assert (oldest, versions.BETWEEN in rows) == (f"{versions.OLDEST}.0", True)
    assert newest != versions.BETWEEN
    assert all(map(versions.passed, rows.values()))
    for page in ("docs/versions.md", "README.md", "docs/index.md"):
        assert f"torch ≥ {versions.OLDEST}" in PAGES[page], page


def test_importing_it_imports_little(wheel, tmp_path):
    """What takes time are modules: beyond torch's there are o2nc's own, and almost no others."""
    wheel.extractall(tmp_path)
    file, *names = run("-c", IMPORTED, tmp_path).split()
    assert Path(file).is_relative_to(tmp_path)
    others = [name for name in names if name.split(".")[0] != "o2nc"]
    assert {name.split(".")[0] for name in others} <= {*sys.stdlib_module_names, "torch", "numpy"}
    assert len(others) <= 20, others
    assert not [name for name in names if name.startswith(("o2nc_experiments", "o2nc.fused.kernels"))]
