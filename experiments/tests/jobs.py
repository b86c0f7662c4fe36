"""Jobs for the processes of a pool, in a module that imports nothing: every process imports it."""

import os
import time
from pathlib import Path


def add(a, b, progress):
    progress(a)
    return a + b


def fail(progress):
    raise RuntimeError("as asked")


def sleep(folder, progress):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(60)
