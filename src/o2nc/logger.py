"""Certificates to CSV and TensorBoard while an optimizer trains.

There are two files. ``certificate.csv`` has one row per logged step; ``certificate.layers.csv`` has one row per step
and parameter, because parameters can be many and can be added later. `o2nc.logfile` reads them.
"""

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import proxy

from o2nc import checks
from o2nc.averages.reading import has_certificate, progress_of
from o2nc.certificates.certificate import Certificate
from o2nc.certificates.diagnosis import VERDICTS, Diagnosis
from o2nc.logfile import FIELDS, LAYER_FIELDS, append, layers_path, quote
from o2nc.optimizers.wrapped import averaged_optimizer
from o2nc.persist.compiling import is_capturing
from o2nc.persist.shards import is_first_process

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def scalars(diagnosis: Diagnosis, certificate: Certificate, progress: float) -> dict[str, float]:
    """Return a run's numbers under the names that they have in TensorBoard and other trackers.

    Trackers take numbers: ``run/verdict`` is the place, from 0, of the verdict in
    `o2nc.certificates.diagnosis.VERDICTS`. What is nan is left out: AdamW's progress, a displacement too early.
    """
    found = {
        "run/verdict": float(VERDICTS.index(diagnosis.verdict)),
        "run/displacement": diagnosis.evidence["displacement"],
        "certificate/value": certificate.value,
        "certificate/gradient": certificate.gradient,
        "certificate/spread": certificate.spread,
        "certificate/progress": progress,
        "certificate/ess": certificate.ess,
    }
    return {name: value for name, value in found.items() if not math.isnan(value)}


class CertificateLogger:
    """Logs diagnosis and certificate while an optimizer steps; the training loop does not change.

    A row is written at every multiple of ``every`` steps. Rows are appended to the file if there is one, and none is
    ever overwritten or removed: a resumed run continues its log, and `plot` leaves out the rows that it replaced.
    Give every run a path of its own. With several processes each makes the logger, and the first one writes. Steps
    that are replayed as a CUDA graph call no hooks: call `record` after them. A second logger of the same optimizer
    and path replaces the first. The logger does not keep its optimizer alive.

    Args:
        optimizer: one with averages and a certificate, also wrapped by accelerate or Lightning. Parameters have
            names if it was made with ``model.named_parameters()``, numbers otherwise.
        path: of the CSV file; that of the parameters is beside it, ``NAME.layers.csv``.
        every: steps from row to row, >= 1.
        c: the price of spread, > 0.
        writer: TensorBoard's SummaryWriter or anything else with ``add_scalar(tag, value, step)``; or an Accelerator,
            a wandb run or anything else with ``log(values, step=step)``.

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
        writer: Any = None,
    ) -> None:
        checks.integer("every", every, 1)
        checks.positive("c", c)
        if writer is not None and not (hasattr(writer, "add_scalar") or hasattr(writer, "log")):
            raise TypeError(f"writer must have add_scalar(tag, value, step) or log(values, step=…), got {writer!r}")
        optimizer = averaged_optimizer(optimizer, certificate=True)
        self.path = Path(path).absolute()
        self.layers_path = layers_path(self.path)
        self.every, self.c, self.writer = every, c, writer
        self._logged, self._has_warned = 0, False
        if is_first_process():
            append(self.path, FIELDS)
            append(self.layers_path, LAYER_FIELDS)
        self.optimizer = proxy(optimizer)
        self._watchers, self._key = optimizer._watchers, f"log of certificates: {self.path}"
        self._watchers[self._key] = self._after_step

    def _after_step(self) -> None:
        if not is_capturing() and self.optimizer._steps_done() % self.every == 0:
            self.record()

    def record(self) -> None:
        """Write a row now, unless this step has one already or nothing is averaged yet."""
        optimizer, step, is_first = self.optimizer, self.optimizer._steps_done(), is_first_process()
        if step == self._logged or not has_certificate(optimizer):
            return
        self._logged = step
        if is_first or optimizer._is_sharded:  # a sharded certificate needs all processes
            found = optimizer.diagnose(), optimizer.certificate(self.c), progress_of(optimizer)
            if is_first:
                self._write(step, *found)

    def _write(self, step: int, diagnosis: Diagnosis, certificate: Certificate, progress: float) -> None:
        said, parts = (diagnosis.verdict, diagnosis.evidence["displacement"]), certificate.by_parameter.items()
        numbers = (certificate.gradient, certificate.spread, certificate.value, progress, certificate.ess, self.c)
        found = scalars(diagnosis, certificate, progress)
        found |= {f"{field}/{name}": getattr(part, field) for name, part in parts for field in ("gradient", "spread")}
        try:
            append(self.path, FIELDS, [(step, *said, *numbers)])
            rows = [(step, quote(name), part.gradient, part.spread) for name, part in parts]
            append(self.layers_path, LAYER_FIELDS, rows)
            if hasattr(self.writer, "log"):
                self.writer.log(found, step=step)
            for tag, number in found.items() if hasattr(self.writer, "add_scalar") else ():
                self.writer.add_scalar(tag, number, step)
            if hasattr(self.writer, "flush"):
                self.writer.flush()
        except Exception as error:  # a full disk or a tracker that is gone must not end a run
            if not self._has_warned:
                warnings.warn(f"the log {self.path} lacks rows, and training goes on: {error}", stacklevel=2)
            self._has_warned = True

    def plot(self, path: str | Path | None = None) -> "Figure":
        """Plot the log by `o2nc.integrations.matplotlib.plot`, and save the picture if a path is given."""
        from o2nc.integrations.matplotlib import plot

        return plot(self.path, path)

    def close(self) -> None:
        """Stop logging; a writer stays open."""
        if self._watchers.get(self._key) == self._after_step:
            del self._watchers[self._key]

    def __enter__(self) -> "CertificateLogger":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
