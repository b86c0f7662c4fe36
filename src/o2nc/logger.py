"""Verdict and certificate to CSV and TensorBoard while an optimizer trains.

Rows are only ever appended to the file, which is closed after each of them. Where its steps go back, a run was
resumed from an earlier checkpoint or started again, and the later rows count.
"""

import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple
from weakref import proxy

from o2nc import checks
from o2nc.averages.reading import has_certificate
from o2nc.certificates.certificate import Certificate
from o2nc.certificates.diagnosis import VERDICTS, diagnose
from o2nc.optimizers.wrapped import averaged_optimizer
from o2nc.persist.compiling import is_capturing
from o2nc.persist.shards import is_first_process


class Row(NamedTuple):
    """What is logged of a run at some step; progress is nan for optimizers that have none."""

    step: int
    verdict: str
    displacement: float
    gradient: float
    spread: float
    certificate: float
    progress: float
    ess: float
    c: float

    def scalars(self) -> dict[str, float]:
        """Return the numbers under the names that they have in TensorBoard and other trackers, without those unknown.

        ``run/verdict`` is the place of the verdict, from 0, in `o2nc.certificates.diagnosis.VERDICTS`.
        """
        found = {
            "run/verdict": float(VERDICTS.index(self.verdict)),
            "run/displacement": self.displacement,
            "certificate/value": self.certificate,
            "certificate/gradient": self.gradient,
            "certificate/spread": self.spread,
            "certificate/progress": self.progress,
            "certificate/ess": self.ess,
        }
        return {name: value for name, value in found.items() if not math.isnan(value)}


def measure(optimizer: Any, c: float = 1.0) -> tuple[Row, Certificate]:
    """Return the row of a run as it is now, and its certificate at the price c of spread."""
    found = optimizer.certificate(c)
    said = diagnose(optimizer, certificate=found)
    progress = getattr(optimizer, "progress", math.nan)
    numbers = (found.gradient, found.spread, found.value, progress, found.ess, float(c))
    return Row(optimizer._steps_done(), said.verdict, said.evidence["displacement"], *numbers), found


HEADER = ",".join(Row._fields)


def append(path: Path, *rows: Row) -> None:
    """Append rows to a log, to a new one if there is none.

    Raises:
        OSError: the file cannot be written.
        ValueError: it exists and is not a log.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        if file.tell() == 0:
            file.write(HEADER + "\n")
        file.seek(0)
        if file.readline(len(HEADER) + 2).strip() != HEADER:
            raise ValueError(
                f"{path} is not a log of certificates, whose first line is {HEADER}: choose another path"
            )
        file.writelines(",".join(map(str, row)) + "\n" for row in rows)


class CertificateLogger:
    """Logs diagnosis and certificate while an optimizer steps; the training loop does not change.

    A row is written at every multiple of ``every`` steps. Rows are appended to the file if there is one, and none is
    ever overwritten or removed: a resumed run continues its log. Give every run a path of its own. With several
    processes each makes the logger, and the first one writes. Steps that are replayed as a CUDA graph call no hooks:
    call `record` after them. A second logger of the same optimizer and path replaces the first. The logger does not
    keep its optimizer alive.

    Args:
        optimizer: one with averages and a certificate, also wrapped by accelerate or Lightning.
        path: of the CSV file.
        every: steps from row to row, >= 1.
        c: the price of spread, > 0.
        writer: TensorBoard's SummaryWriter or anything else with ``add_scalar(tag, value, step)``; or an Accelerator,
            a wandb run or anything else with ``log(values, step=step)``. It gets the numbers of the row, and gradient
            and spread of every parameter, by name if the optimizer was made with ``model.named_parameters()``.

    Raises:
        TypeError, ValueError: the optimizer has no averages or no certificate, or the file is something else.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile, torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.ScaledSGDM(model.parameters(), lr=0.01, momentum=0.9, average=0.99)
        >>> folder = tempfile.TemporaryDirectory()
        >>> with CertificateLogger(opt, folder.name + "/certificate.csv", every=10) as log:
        ...     for _ in range(25):
        ...         opt.zero_grad()
        ...         model(torch.ones(4, 3)).abs().mean().backward()
        ...         opt.step()
        >>> [line.split(",")[0] for line in log.path.read_text().splitlines()]
        ['step', '10', '20']
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
        self.path, self.every, self.c, self.writer = Path(path).absolute(), every, c, writer
        self._logged, self._has_warned = 0, False
        if is_first_process():
            append(self.path)
        self.optimizer = proxy(optimizer)
        self._watchers, self._key = optimizer._watchers, f"log of certificates: {self.path}"
        self._watchers[self._key] = self._after_step

    def _after_step(self) -> None:
        if not is_capturing():
            if (step := self.optimizer._steps_done()) < self._logged:  # it has gone back to a checkpoint
                self._logged = 0
            if step % self.every == 0:
                self.record()

    def record(self) -> None:
        """Write a row now, unless this step has one already or nothing is averaged yet."""
        optimizer, step, is_first = self.optimizer, self.optimizer._steps_done(), is_first_process()
        if step == self._logged or not has_certificate(optimizer):
            return
        self._logged = step
        if is_first or optimizer._is_sharded:  # a sharded certificate needs all processes
            row, certificate = measure(optimizer, self.c)
            if is_first:
                self._write(row, certificate)

    def _write(self, row: Row, certificate: Certificate) -> None:
        try:
            append(self.path, row)
            found = row.scalars()
            for name, part in certificate.by_parameter.items():
                found |= {f"gradient/{name}": part.gradient, f"spread/{name}": part.spread}
            if hasattr(self.writer, "log"):
                self.writer.log(found, step=row.step)
            for tag, number in found.items() if hasattr(self.writer, "add_scalar") else ():
                self.writer.add_scalar(tag, number, row.step)
        except Exception as error:  # a full disk or a tracker that is gone must not end a run
            if not self._has_warned:
                warnings.warn(f"the log {self.path} lacks rows, and training goes on: {error}", stacklevel=2)
            self._has_warned = True

    def close(self) -> None:
        """Stop logging; a writer stays open."""
        if self._watchers.get(self._key) == self._after_step:
            del self._watchers[self._key]

    def __enter__(self) -> "CertificateLogger":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
