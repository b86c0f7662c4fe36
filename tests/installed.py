"""Install distributions into environments that have nothing else, and use them as a user would.

    python tests/installed.py dist/*

Each is installed with the core dependencies alone, at the versions of constraints.txt. Then, away from this tree,
every Python block of the README runs as written, and a type checker sees types.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
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


def main(distributions: list[str]) -> None:
    """Check each file in an environment of its own."""
    for distribution in map(Path, distributions):
        with tempfile.TemporaryDirectory() as folder:
            print(f"{distribution.name}, {distribution.stat().st_size / 1e3:.0f} kB")
            check(distribution.resolve(), Path(folder))


def check(distribution: Path, folder: Path) -> None:
    """Install one file and use it, in a folder that is empty so far."""

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*command], cwd=folder, capture_output=True, encoding="utf-8", check=False)
        if done.returncode:
            sys.exit(f"{command} returned {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    venv.create(folder / "empty", with_pip=True)
    python = folder / "empty" / "bin" / "python"
    run(python, "-m", "pip", "install", "-c", ROOT / "constraints.txt", distribution)
    run(python, "-m", "pip", "check")
    print("  installed with", *run(python, "-m", "pip", "freeze", "--exclude", "o2nc").stdout.split())

    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (folder / "readme.py").write_text("\n".join(blocks), encoding="utf-8")
    run(python, "-W", "error", "readme.py")
    print(f"  the README's {len(blocks)} blocks run")

    file = run(python, "-c", "import o2nc; print(o2nc.__file__)").stdout
    assert Path(file).is_relative_to(folder), file

    (folder / "typed.py").write_text(TYPED, encoding="utf-8")
    run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "typed.py")
    print("  mypy --strict sees the types")


if __name__ == "__main__":
    main(sys.argv[1:])
