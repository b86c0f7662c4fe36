"""Jobs side by side, one thread each: small tensors gain nothing from more, and two jobs then do not fight."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

Progress = Callable[[int], object]
T = TypeVar("T")

_made: Any = None  # in a worker: the number of steps that all have made


def ignore(steps: int) -> None:
    """Take no note of progress."""


def run(jobs: Sequence[Callable[[Progress], T]], *, workers: int = 2, progress: Progress = ignore) -> Iterator[T]:
    """Run the jobs in so many processes, or here if that is 1, and yield what they return, as they end.

    Jobs are picklable functions of a callback, which they call with the number of steps made since the last call;
    ``progress`` is called with the number that all have made since.
    """
    if workers == 1:
        for job in jobs:
            yield job(progress)
        return
    context = get_context("spawn")  # torch's threads do not survive a fork
    counter = context.Value("q", 0)
    reported = 0
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(counter,))
    try:
        with _deaf():
            waiting: set[Future[T]] = {pool.submit(_work, job) for job in jobs}
        while waiting:
            done, waiting = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            now = counter.value
            progress(now - reported)
            reported = now
            for future in done:
                yield future.result()
        pool.shutdown()
    except BaseException:
        for process in (pool._processes or {}).values():
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


@contextmanager
def _deaf() -> Iterator[None]:
    """Have processes that are begun in here ignore Ctrl-C, from their first moment on: this one will tell them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    listening = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, listening)


def _begin(counter: Any) -> None:
    global _made
    _made = counter
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent is no more: a killed parent cannot tell."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _work(job: Callable[[Progress], T]) -> T:
    return job(_count)


def _count(steps: int) -> None:
    with _made.get_lock():
        _made.value += steps
