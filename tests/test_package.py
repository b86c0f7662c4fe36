"""The wheel and the sdist: what they hold, what they say of themselves, and that torch and numpy are all they need.

`make package` also installs them into empty environments (``installed.py``) and has twine check them.
"""

import email
import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import o2nc
import versions

ROOT = Path(__file__).parent.parent
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
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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


@pytest.fixture(scope="module")
def metadata(wheel):
    return email.message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    source = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    source = {path for path in source if "__pycache__" not in path and ".egg-info" not in path}
    about = {"METADATA", "WHEEL", "RECORD", "licenses/LICENSE"}
    names = set(wheel.namelist())
    assert names == source | {f"{NAME}.dist-info/{name}" for name in about}
    assert "o2nc/py.typed" in names
    assert {Path(name).suffix for name in source} <= {".py", ".typed"}


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


def test_metadata(metadata):
    assert metadata["Name"] == "o2nc"
    assert metadata["Version"] == o2nc.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True).decode() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata.get_all("Project-URL") == ["Paper, https://arxiv.org/abs/2405.09742"]
    for field in ("Summary", "Author", "Keywords"):
        assert metadata[field]
    assert "Typing :: Typed" in metadata.get_all("Classifier")


def test_the_core_depends_on_torch_and_numpy_alone(metadata):
    core = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(core) == ["numpy", f"torch>={versions.floor()}"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert sorted(metadata.get_all("Provides-Extra")) == sorted(extras)


def test_the_command_begins_without_torch():
    """So that Ctrl-C while torch is imported can be answered."""
    project = tomllib.loads((ROOT / "experiments" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["o2nc"].partition(":")
    names = set(run("-c", f"import sys; from {module} import {function}; print(*sys.modules)").split())
    assert module in names
    assert not {"o2nc", "torch", "numpy"} & names


def test_who_has_the_library_alone_is_told_what_to_install():
    code = "import runpy, sys; sys.modules['o2nc_experiments'] = None; runpy.run_module('o2nc', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 1
    assert done.stderr == "The command line is a package of its own: pip install o2nc-experiments\n"


def test_the_versions_of_torch_are_tested_and_told():
    """The floor is that of pyproject.toml; docs/versions.md has what was found on it and above, as recorded."""
    known = json.loads(versions.RECORD.read_text(encoding="utf-8"))
    assert {*versions.default()} - {versions.NEWEST} <= known.keys()
    assert max(known, key=versions.order) not in versions.default()  # the newest, whichever that was
    assert all(map(versions.passed, known.values()))
    assert min(known, key=versions.order) == f"{versions.floor()}.0"
    assert versions.table(known) in versions.PAGE.read_text(encoding="utf-8")
    for page in (versions.PAGE, ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert f"torch ≥ {versions.floor()}" in page.read_text(encoding="utf-8"), page


def test_importing_it_imports_little(wheel, tmp_path):
    """What takes time are modules: beyond torch's there are o2nc's own, and almost no others."""
    wheel.extractall(tmp_path)
    file, *names = run("-c", IMPORTED, tmp_path).split()
    assert Path(file).is_relative_to(tmp_path)
    others = [name for name in names if name.split(".")[0] != "o2nc"]
    assert {name.split(".")[0] for name in others} <= {*sys.stdlib_module_names, "torch", "numpy"}
    assert len(others) <= 20, others
    assert not [name for name in names if name.startswith(("o2nc_experiments", "o2nc.fused.kernels"))]
