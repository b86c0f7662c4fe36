"""Several processes at once, for the tests of what they do together."""

import os
import subprocess
import sys


def torchrun(script, *arguments, processes=2):
    """Run a script in so many processes that know of each other; fail with what they said if one of them fails."""
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", processes, script, *arguments]
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
