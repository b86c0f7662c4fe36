"""A log of certificates: what a run says of its averages, written down every so many steps.

Two files, since there are two kinds of rows. ``certificate.csv`` has one row per logged step and opens in anything;
``certificate.layers.csv`` has one row per step and parameter, because parameters can be many, and can come and go
(columns could not). Every row is in its file when the step returns. After a checkpoint is loaded the log goes on
behind it: rows of later steps belong to a run that did not go on, and are dropped. The log of an earlier run is moved
aside, as ``certificate.old-1.csv`` and so on. A disk that is full costs rows, with a warning, and not the run. One
optimizer at a time has a log, over all processes (``certificate.csv.lock``).
"""

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

import torch

from o2nc import checks
from o2nc.certificates.certificate import Certificate
from o2nc.corrector import Corrector
from o2nc.logfile import FIELDS, LAYER_FIELDS, PRICE_FIELDS, Lock, LogFile, aside, beside
from o2nc.optimizers.base import CertifiedOptimizer, certified
from o2nc.optimizers.accessors import has_averages
from o2nc.persist.shards import is_first_process

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OPEN: WeakValueDictionary[Path, "CertificateLogger"] = WeakValueDictionary()


def scalars(certificate: Certificate, progress: float) -> dict[str, float]:
    """Return a run's numbers under the names that they have in TensorBoard and the like."""
    return {
        "certificate/value": certificate.value,
        "certificate/gradient": certificate.gradient,
        "certificate/spread": certificate.spread,
        "certificate/progress": progress,
        "certificate/ess": certificate.ess,
    }


class CertificateLogger:
    """Writes certificates down while an optimizer steps; the training loop does not change.

    It watches the optimizer's steps and writes a row at every multiple of ``every``. A log that is there is continued
    if the optimizer was loaded from a checkpoint, and moved aside if the optimizer begins anew. With several
    processes each makes the logger, and the first one writes. With torch.distributed.checkpoint make it after
    loading, which takes a step to prepare itself. Steps that are replayed as a CUDA graph tell nobody: call `record`
    after them. A second logger of the same optimizer and path takes over from the first, so a cell of a notebook can
    be run again; the logger does not keep its optimizer alive.

    Args:
        optimizer: `ScaledSGDM` with ``average``, `ExponentiatedO2NC` or `OriginalO2NC`, also wrapped by accelerate or
            Lightning. Parameters have names if it was made with ``model.named_parameters()``, numbers otherwise.
        path: of the CSV file; that of the parameters is beside it, ``NAME.layers.csv``.
        every: steps from row to row, >= 1.
        c: the price of spread, > 0.
        layers: whether to write every parameter's own gradient and spread as well.
        writer: anything with ``add_scalar(tag, value, step)``, such as TensorBoard's SummaryWriter.
        corrector: whether to measure what a law other than Exp(1) costs, G·L·‖Δ_{t+1} − Δ_t‖, at one step of every
            ``every``, which is drawn: two columns more, G and this number; times the steps between two rows it is an
            estimate of by how much the progress between them may be off. A number is G; with True it is the
            largest norm of a gradient that was met. Three steps of every ``every`` copy the parameters.

    Raises:
        TypeError, ValueError: the optimizer has no certificates, the file is something else, or the log of another
            optimizer, in this process or another.
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
        corrector: bool | float = False,
    ) -> None:
        checks.integer("every", every, 1)
        checks.positive("c", c)
        checks.flag("layers", layers)
        if writer is not None and not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"writer must have add_scalar(tag, value, step), got {writer!r}")
        if not isinstance(corrector, bool):
            checks.positive("corrector", corrector)
        optimizer = certified(optimizer)
        self._optimizer = ref(optimizer)
        self._corrector = Corrector(optimizer, every, None if corrector is True else corrector) if corrector else None
        self.path = Path(path).absolute()
        self.layers_path = beside(self.path)
        self.every, self.c, self.layers, self.writer = every, c, layers, writer
        self._file = LogFile(self.path, FIELDS + PRICE_FIELDS * (self._corrector is not None))
        self._layers_file = LogFile(self.layers_path, LAYER_FIELDS)
        self._is_first, self._warned = is_first_process(), set[str]()
        self._key = self.path.parent.resolve() / self.path.name  # however the folder is called
        self._lock = Lock(self._key)
        self._take_over()
        if self._is_first:
            self._open()
        _OPEN[self._key] = self
        self._begin()
        optimizer._watchers[id(self)] = self._after_step
        self._process = os.getpid()
        self._hook: Any = optimizer.register_load_state_dict_post_hook(lambda _: self._begin())

    @property
    def optimizer(self) -> CertifiedOptimizer | None:
        """The optimizer that is logged; None if it is gone."""
        return self._optimizer()

    def _take_over(self) -> None:
        """Close a logger of this optimizer, or of one that is gone: a cell of a notebook that is run again."""
        if self._key in _OPEN:
            gc.collect()
        other = _OPEN.get(self._key)
        if other is None:
            return
        if other.optimizer is self.optimizer:
            other.close()
        elif other.optimizer is None:
            other._let_go()
        else:
            raise ValueError(
                f"{self.path} is the log of another CertificateLogger, whose optimizer is in use: close() that, "
                "or choose another path (where a notebook's cell is run again, `log` is still the other: log.close())"
            )

    def _open(self) -> None:
        """Lock the log and make its files."""
        missing = None
        try:
            if not self._lock.acquire():
                raise ValueError(
                    f"{self.path} is the log of another process, which is still running: end that, or choose another "
                    "path (processes that train together make it after init_process_group)"
                )
        except OSError as error:
            missing = error
        try:
            for file in self._files:
                file.open()
        except BaseException:
            self._lock.release()
            raise
        if missing is not None:
            warnings.warn(f"{self.path} is not locked, other processes can write to it: {missing}", stacklevel=4)

    def _begin(self) -> None:
        """Look at the counter after the very next step: what is logged of that and later ones is of another run."""
        self._wait, self._first, self._logged, self._is_clean = 0, 0, 0, False
        if self._corrector is not None:
            self._corrector.forget()

    def _after_step(self) -> None:
        if os.getpid() != self._process:  # a fork: the lock is its parent's, and so is the file
            return
        self._wait -= 1
        if self._wait > 0 or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return
        step = self._count()  # waits for a GPU if that counts: not to be done every time
        measure, optimizer = self._corrector, self._living()
        if measure is not None and (self._is_first or optimizer._shards is not None):
            measure.look(optimizer, step)
        if step % self.every == 0:
            self._log(step)
        row = step - step % self.every + self.every
        # or more, where a GradScaler calls steps off
        self._wait = (row if measure is None else min(row, measure.next(optimizer, step))) - step

    def record(self) -> None:
        """Write a row now, unless this step has one already or nothing is averaged yet."""
        if self._hook is None:
            raise ValueError(f"the log {self.path} is closed")
        self._log(self._count())

    def _living(self) -> CertifiedOptimizer:
        optimizer = self.optimizer
        if optimizer is None:
            raise ValueError(f"the optimizer of the log {self.path} is gone")
        return optimizer

    def _count(self) -> int:
        """Return the step; the first one tells where this run begins."""
        step = int(self._living()._groups[0]["step"])
        self._first = self._first or step
        self._is_first = self._is_first and is_first_process()
        return step

    def _log(self, step: int) -> None:
        optimizer = self._living()
        if step <= self._logged or not has_averages(optimizer):
            return
        self._logged = step
        if self._is_first or optimizer._shards is not None:  # all that have shards are needed
            certificate, progress = optimizer.certificate(self.c), progress_of(optimizer)
            price = () if self._corrector is None else self._corrector.take()
            if self._is_first:
                self._write(step, certificate, progress, price)

    def _write(self, step: int, certificate: Certificate, progress: float, price: tuple[float, ...]) -> None:
        parts = certificate.by_parameter.items() if self.layers else ()
        row = (certificate.gradient, certificate.spread, certificate.value, progress, certificate.ess, self.c, *price)
        with self._training_going_on(f"the log {self.path}", OSError, ValueError):
            self._clean()
            if self.layers:  # first, so that a step in the main file is whole
                rows = [(step, str(name).replace("\n", " "), part.gradient, part.spread) for name, part in parts]
                self._layers_file.add(rows)
            self._file.add([(step, *row)])
        if self.writer is None:
            return
        with self._training_going_on(f"the writer of the log {self.path}", Exception):  # whatever it runs into
            found = scalars(certificate, progress)
            found |= {f"certificate/{name}": v for name, v in zip(PRICE_FIELDS, price, strict=False)}
            for name, part in parts:
                found |= {f"gradient/{name}": part.gradient, f"spread/{name}": part.spread}
            for tag, value in found.items():
                self.writer.add_scalar(tag, value, step)
            if hasattr(self.writer, "flush"):
                self.writer.flush()

    @property
    def _files(self) -> list[LogFile]:
        """The files of this log; an older one's parameters are part of it, even if no more are written."""
        return [self._file, self._layers_file] if self.layers or self.layers_path.exists() else [self._file]

    def _clean(self) -> None:
        """Take away rows of another run, once; not before there is a row to write: a checkpoint may yet be loaded."""
        if self._first and self._is_first and not self._is_clean:
            old = aside(self.path)
            for file, place in zip(self._files, (old, beside(old)), strict=False):
                file.keep_before(self._first, place)
            self._is_clean = True

    @contextmanager
    def _training_going_on(self, what: str, *errors: type[Exception]) -> Iterator[None]:
        """Warn, once, of what lacks rows: a full disk is no reason to lose a run."""
        try:
            yield
        except errors as error:
            if what not in self._warned:
                self._warned.add(what)
                warnings.warn(f"{what} lacks rows, and training goes on: {error}", stacklevel=2)

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Draw all that is in the files; see `o2nc.integrations.matplotlib.plot`, which needs no optimizer.

        Args:
            path: where to save the picture, if anywhere.

        Returns:
            A matplotlib figure.
        """
        from o2nc.integrations.matplotlib import plot

        return plot(self.path, path)

    def close(self) -> None:
        """Let go of the optimizer; a writer stays open."""
        if self._hook is not None:
            with self._training_going_on(f"the log {self.path}", OSError, ValueError):
                self._clean()
        self._let_go()

    def _let_go(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        if self._corrector is not None:
            self._corrector.forget()
        if self.optimizer is not None:
            self.optimizer._watchers.pop(id(self), None)
        if _OPEN.get(self._key) is self:
            del _OPEN[self._key]
        self._lock.release()

    def __enter__(self) -> "CertificateLogger":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:  # perhaps before a checkpoint was loaded: what is in the files may yet be continued
            self._let_go()
