"""Several processes at once, for the tests of what they do together."""

import os
import subprocess
import sys
import tempfile
import time

import pytest
import torch

# torch 2.6 has no `torch.cpu.Stream.record_event`, which its FSDP2 calls, and with one its backward pass fails
NO_FSDP2 = "" if hasattr(torch.cpu.Stream, "record_event") else f"FSDP2 of torch {torch.__version__} needs a GPU"
needs_fsdp2 = pytest.mark.skipif(bool(NO_FSDP2), reason=NO_FSDP2)


def torchrun(script, *arguments, processes=2, environment=os.environ, seconds=120):
    """Run a script in so many processes that know of each other, as torchrun does; return stdout and stderr.

    They meet in a store of this process, as under torchrun in one of the launcher's: that would import torch only
    for this. Fail with what they said if one of them fails.
    """
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port, "WORLD_SIZE": processes, "OMP_NUM_THREADS": 1}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RESTART_COUNT": 0, "LOCAL_WORLD_SIZE": processes}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out, tempfile.TemporaryFile("w+", encoding="utf-8") as err:
        running = [
            subprocess.Popen(
                [sys.executable, *map(str, (script, *arguments))],
                stdout=out,
                stderr=err,
                env={**environment, **{k: str(v) for k, v in (shared | {"RANK": i, "LOCAL_RANK": i}).items()}},
            )
            for i in range(processes)
        ]
        end = time.monotonic() + seconds
        while None in (codes := [process.poll() for process in running]) and not any(codes):
            if time.monotonic() > end:
                break
            time.sleep(0.02)
        for process in running:  # those that wait for one that is no more
            process.kill()
            process.wait()
        out.seek(0)
        err.seek(0)
        printed, complaints = out.read(), err.read()
    assert codes == [0] * processes, f"{codes} after at most {seconds} s: {complaints[-3000:]}"
    return printed, complaints
