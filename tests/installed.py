"""Install distributions into environments that have nothing else, and use them as a user would.

    python tests/installed.py dist/*

Each is installed with the core dependencies alone, at the versions of constraints.txt. Then, away from this tree,
every Python block of the README runs as written, and a type checker sees types.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from pages import PAGES, ROOT, blocks

# strict mypy complains of an ignored error that is none, so the last line holds only if the types are seen
TYPED = """
from typing import assert_type

import torch

import o2nc

weight = torch.zeros(3, requires_grad=True)
opt = o2nc.ScaledSGDM([weight], lr=0.1, average=0.9)
assert_type(opt, o2nc.ScaledSGDM)
assert_type(opt.certificate(c=1.0).value, float)
o2nc.ExponentiatedO2NC([weight], o2nc.learners.OGD(lr=0.1), beta="0.9")  # type: ignore[arg-type]
"""


def check(distribution, folder):
    """Install one file and use it, in a folder that is empty so far."""

    def run(*command):
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, encoding="utf-8", check=False)
        if done.returncode:
            sys.exit(f"{command} returned {done.returncode}:\n{done.stdout}")
        return done.stdout

    venv.create(folder / "empty", with_pip=True)
    python = folder / "empty" / "bin" / "python"
    run(python, "-m", "pip", "install", "-c", ROOT / "constraints.txt", distribution)
    run(python, "-m", "pip", "check")
    print("installed with", *run(python, "-m", "pip", "freeze", "--exclude", "o2nc").split())
    (folder / "readme.py").write_text("\n".join(blocks(PAGES["README.md"])), encoding="utf-8")
    run(python, "-W", "error", "readme.py")
    assert Path(run(python, "-c", "import o2nc; print(o2nc.__file__)").strip()).is_relative_to(folder)
    (folder / "typed.py").write_text(TYPED, encoding="utf-8")
    run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "typed.py")


if __name__ == "__main__":
    for distribution in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as name:
            print(f"{distribution.name}, {distribution.stat().st_size / 1e3:.0f} kB")
            check(distribution.resolve(), Path(name))
