"""The core imports none of the packages that it can be used with."""

import subprocess
import sys

PROGRAM = """
import sys
import o2nc, o2nc.integrations, o2nc.logger
others = {"accelerate", "lightning", "matplotlib", "pytorch_lightning", "tensorboard", "transformers"}
print(sorted(others & {name.split(".")[0] for name in sys.modules}))
"""


def test_nothing_else_is_imported():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
