"""Several processes at once, for the tests of what they do together."""

import os
import subprocess
import sys

import pytest
import torch

# torch 2.6 has no `torch.cpu.Stream.record_event`, which its FSDP2 calls, and with one its backward pass fails
NO_FSDP2 = "" if hasattr(torch.cpu.Stream, "record_event") else f"FSDP2 of torch {torch.__version__} needs a GPU"
needs_fsdp2 = pytest.mark.skipif(bool(NO_FSDP2), reason=NO_FSDP2)


def torchrun(script, *arguments, processes=2):
    """Run a script in so many processes that know of each other, and return what they print.

    Fail with what they said if one of them fails.
    """
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", processes, script, *arguments]
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
