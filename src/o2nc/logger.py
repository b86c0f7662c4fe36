"""Certificates to CSV and TensorBoard while an optimizer trains.

There are two files. ``certificate.csv`` has one row per logged step; ``certificate.layers.csv`` has one row per step
and parameter, because parameters can be many and can be added later. `o2nc.logfile` says how rows get there and how a
resumed run goes on.
"""

import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from o2nc import checks
from o2nc.averages.reading import has_certificate, progress_of
from o2nc.certificates.certificate import Certificate
from o2nc.certificates.diagnosis import VERDICTS, Diagnosis
from o2nc.logfile import FIELDS, LAYER_FIELDS, LogFile, layers_path, move_aside, plain_name
from o2nc.optimizers.base import Averaged
from o2nc.optimizers.wrapped import averaged_optimizer
from o2nc.persist.shards import is_first_process

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def scalars(diagnosis: Diagnosis, certificate: Certificate, progress: float) -> dict[str, float]:
    """Return a run's numbers under the names that they have in TensorBoard and other trackers.

    Trackers take numbers: ``run/verdict`` is the place, from 0, of the verdict in
    `o2nc.certificates.diagnosis.VERDICTS`. The displacement is left out while it is not known.
    """
    j = diagnosis.evidence["displacement"]
    return {
        "run/verdict": float(VERDICTS.index(diagnosis.verdict)),
        **({} if math.isnan(j) else {"run/displacement": j}),
        "certificate/value": certificate.value,
        "certificate/gradient": certificate.gradient,
        "certificate/spread": certificate.spread,
        "certificate/progress": progress,
        "certificate/ess": certificate.ess,
    }


class CertificateLogger:
    """Logs certificates while an optimizer steps; the training loop does not change.

    A row is written at every multiple of ``every`` steps. Give every run a path of its own. If there is a log at the
    path already, a run that was resumed from a checkpoint appends to it, and a run that starts from scratch first
    renames it (``certificate.old-1.csv``): no row is ever overwritten or removed. With several processes each makes
    the logger, and the first one writes. With torch.distributed.checkpoint make it after loading. Steps that are
    replayed as a CUDA graph call no hooks: call `record` after them. A second logger of the same optimizer and path
    replaces the first. The logger does not keep its optimizer alive.

    Args:
        optimizer: one with averages and a certificate, also wrapped by accelerate or Lightning. Parameters have
            names if it was made with ``model.named_parameters()``, numbers otherwise.
        path: of the CSV file; that of the parameters is beside it, ``NAME.layers.csv``.
        every: steps from row to row, >= 1.
        c: the price of spread, > 0.
        layers: whether to log every parameter's own gradient and spread as well.
        writer: anything with ``add_scalar(tag, value, step)``, such as TensorBoard's SummaryWriter.

    Raises:
        TypeError, ValueError: the optimizer has no averages or no certificate, or the file is something else.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile, torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.ScaledSGDM(model.named_parameters(), lr=0.01, momentum=0.9, average=0.99)
        >>> folder = tempfile.TemporaryDirectory()
        >>> with CertificateLogger(opt, folder.name + "/certificate.csv", every=10) as log:
        ...     for _ in range(25):
        ...         opt.zero_grad()
        ...         model(torch.ones(4, 3)).abs().mean().backward()
        ...         opt.step()
        >>> [line.split(",")[0] for line in log.path.read_text().splitlines()]
        ['step', '10', '20']
        >>> log.layers_path.name
        'certificate.layers.csv'
        >>> folder.cleanup()
    """

    def __init__(
        self,
        optimizer: Any,
        path: str | Path = "certificate.csv",
        *,
        every: int = 100,
        c: float = 1.0,
        layers: bool = True,
        writer: Any = None,
    ) -> None:
        checks.integer("every", every, 1)
        checks.positive("c", c)
        checks.flag("layers", layers)
        if writer is not None and not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"writer must have add_scalar(tag, value, step), got {writer!r}")
        optimizer = averaged_optimizer(optimizer, certificate=True)
        self._optimizer = ref(optimizer)
        self.path = Path(path).absolute()
        self.layers_path = layers_path(self.path)
        self.every, self.c, self.layers, self.writer = every, c, layers, writer
        self._file, self._layers_file = LogFile(self.path, FIELDS), LogFile(self.layers_path, LAYER_FIELDS)
        self._is_first, self._warned = is_first_process(), set[str]()
        if self._is_first:
            for file in (self._file, self._layers_file) if layers else (self._file,):
                file.check()
        self._process = os.getpid()
        self._begin()
        self._key = f"log of certificates: {self.path}"
        if self._key in optimizer._watchers:
            optimizer._watchers[self._key].__self__.close()
        optimizer._watchers[self._key] = self._after_step
        self._hook: Any = optimizer.register_load_state_dict_post_hook(lambda _: self._begin())

    @property
    def optimizer(self) -> Averaged | None:
        """The optimizer that is logged; None if it was deleted."""
        return self._optimizer()

    def _begin(self) -> None:
        """Look at the step counter after the next step: a checkpoint may have changed it."""
        self._wait, self._logged = 0, 0
        self._starts: bool | None = None  # whether this run starts from scratch; None before its first step

    def _after_step(self) -> None:
        if os.getpid() != self._process:  # a fork: the file is its parent's
            return
        self._wait -= 1
        if self._wait > 0 or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return
        step = self._count()  # synchronizes if the counter is on a GPU, so not at every step
        if step % self.every == 0:
            self._log(step)
        self._wait = self.every - step % self.every  # steps that a GradScaler skips are not counted: look again

    def record(self) -> None:
        """Write a row now, unless this step has one already or nothing is averaged yet."""
        if self._hook is None:
            raise ValueError(f"the log {self.path} is closed")
        self._log(self._count())

    def _living(self) -> Averaged:
        optimizer = self.optimizer
        if optimizer is None:
            raise ValueError(f"the optimizer of the log {self.path} was deleted")
        return optimizer

    def _count(self) -> int:
        """Return the step; the first one says whether this run starts from scratch."""
        step = int(self._living().param_groups[0]["o2nc"]["step"])
        if self._starts is None:
            self._starts = step <= 1
        self._is_first = self._is_first and is_first_process()
        return step

    def _log(self, step: int) -> None:
        optimizer = self._living()
        if step <= self._logged or not has_certificate(optimizer):
            return
        self._logged = step
        if self._is_first or optimizer._is_sharded:  # a sharded certificate needs all processes
            found = optimizer.diagnose(), optimizer.certificate(self.c), progress_of(optimizer)
            if self._is_first:
                self._write(step, *found)

    def _write(self, step: int, diagnosis: Diagnosis, certificate: Certificate, progress: float) -> None:
        parts = certificate.by_parameter.items() if self.layers else ()
        said = (diagnosis.verdict, diagnosis.evidence["displacement"])
        row = (*said, certificate.gradient, certificate.spread, certificate.value, progress, certificate.ess, self.c)
        with self._continuing(f"the log {self.path}", OSError):
            if self._starts:
                move_aside(self.path)
            self._starts = False
            if self.layers:
                self._layers_file.append((step, plain_name(name), part.gradient, part.spread) for name, part in parts)
            self._file.append([(step, *row)])
        if self.writer is None:
            return
        with self._continuing(f"the writer of the log {self.path}", Exception):  # whatever a tracker raises
            found = scalars(diagnosis, certificate, progress)
            for name, part in parts:
                found |= {f"gradient/{name}": part.gradient, f"spread/{name}": part.spread}
            for tag, value in found.items():
                self.writer.add_scalar(tag, value, step)
            if hasattr(self.writer, "flush"):
                self.writer.flush()

    @contextmanager
    def _continuing(self, what: str, *errors: type[Exception]) -> Iterator[None]:
        """Warn once that rows are missing: a full disk must not end a run."""
        try:
            yield
        except errors as error:
            if what not in self._warned:
                self._warned.add(what)
                warnings.warn(f"{what} lacks rows, and training goes on: {error}", stacklevel=2)

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Plot the log; see `o2nc.integrations.matplotlib.plot`, which needs no optimizer.

        Args:
            path: where to save the picture, if anywhere.

        Returns:
            A matplotlib figure.
        """
        from o2nc.integrations.matplotlib import plot

        return plot(self.path, path)

    def close(self) -> None:
        """Stop logging; a writer stays open."""
        if self._hook is None:
            return
        self._hook.remove()
        self._hook = None
        if self.optimizer is not None:
            self.optimizer._watchers.pop(self._key, None)

    def __enter__(self) -> "CertificateLogger":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
