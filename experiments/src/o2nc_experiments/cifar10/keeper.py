"""Checkpoints are copied at once and written while the training goes on."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from o2nc_experiments.cifar10.entry import Entry

Save = Callable[[str, dict[str, Any]], object]


class Keeper:
    """Keeps trials' states; what could not be written stops the training, when the next state is to be kept.

    Args:
        save: writes a checkpoint of this name.
        common: what all checkpoints have.
        most: so many may wait to be written.
    """

    def __init__(self, save: Save, common: dict[str, Any], most: int) -> None:
        self.save, self.common, self.most = save, common, most
        self.thread = ThreadPoolExecutor(1)
        self.writing: list[Future[None]] = []

    def keep(self, entry: Entry) -> None:
        """Keep the state of a trial as it was at the end of its last epoch."""
        while len(self.writing) >= self.most:
            self.writing.pop(0).result()
        record = tree_map_only(torch.Tensor, torch.Tensor.cpu, entry.record()) | {"settings": self.common}
        self.writing.append(self.thread.submit(self._write, entry, record))

    def finish(self) -> None:
        """Wait until all is written."""
        while self.writing:
            self.writing.pop(0).result()

    def _write(self, entry: Entry, record: dict[str, Any]) -> None:
        self.save(entry.name, record)
        entry.kept = record["epoch"]


@contextmanager
def keeping(save: Save, common: dict[str, Any], most: int) -> Iterator[Keeper]:
    """Give a keeper that has finished at the end."""
    keeper = Keeper(save, common, most)
    with keeper.thread:
        yield keeper
        keeper.finish()
