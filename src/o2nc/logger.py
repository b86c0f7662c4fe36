"""A log of certificates: what a run says of its averages, written down every so many steps.

Two files, since there are two kinds of rows. ``certificate.csv`` has one row per logged step and opens in anything;
``certificate.layers.csv`` has one row per step and parameter, because parameters can be many, and can come and go
(columns could not). Every row is in its file when the step returns. After a checkpoint is loaded the log goes on
behind it: rows of later steps belong to a run that did not go on, and are dropped.
"""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from o2nc import checks
from o2nc.certificate import Certificate
from o2nc.certified import Certified

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIELDS = ("step", "gradient", "spread", "certificate", "progress", "ess")
LAYER_FIELDS = ("step", "parameter", "gradient", "spread")


def certified(optimizer: Any) -> Certified:
    """Return the optimizer of o2nc that a framework may have wrapped, as accelerate and Lightning do.

    Raises:
        TypeError: it is none that certifies.
        ValueError: it keeps no averages.
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Certified):
        raise TypeError(
            "optimizer must be one that certifies, such as o2nc.ScaledSGDM(…, average=0.999), "
            f"got {type(optimizer).__name__}"
        )
    if optimizer.param_groups[0].get("average", 0.0) is None:
        raise ValueError("optimizer keeps no averages (average=None): pass average=0.999, say, when you construct it")
    return optimizer


def has_averages(optimizer: Certified) -> bool:
    """Say whether there is anything to certify: a step was made, and with `OriginalO2NC` a block is complete."""
    begun = any(optimizer._average_key in state for state in optimizer.state.values())
    return begun and int(optimizer.param_groups[0]["step"]) > 0


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

    It hangs on the optimizer's step and writes a row at every multiple of ``every``. A log that is there is continued
    if the optimizer was loaded from a checkpoint, and begun anew if the optimizer begins anew. With several processes
    each makes the logger, and the first one writes. With torch.distributed.checkpoint make it after loading, which
    takes a step to prepare itself. Steps that are replayed as a CUDA graph run no hooks: call `record` after them.

    Args:
        optimizer: `ScaledSGDM` with ``average``, `ExponentiatedO2NC` or `OriginalO2NC`, also wrapped by accelerate or
            Lightning. Parameters have names if it was made with ``model.named_parameters()``, numbers otherwise.
        path: of the CSV file; that of the parameters is beside it, ``NAME.layers.csv``.
        every: steps from row to row, >= 1.
        c: the price of spread, > 0.
        layers: whether to write every parameter's own gradient and spread as well.
        writer: anything with ``add_scalar(tag, value, step)``, such as TensorBoard's SummaryWriter.

    Raises:
        TypeError, ValueError: the optimizer has no certificates, or the file is something else.
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
        self.optimizer = certified(optimizer)
        self.path = Path(path).absolute()
        self.layers_path = beside(self.path)
        self.every, self.c, self.layers, self.writer = every, c, layers, writer
        self._files: list[_Rows] = []
        if not distributed.is_available() or not distributed.is_initialized() or distributed.get_rank() == 0:
            self._files.append(_Rows(self.path, FIELDS))
            if layers:
                self._files.append(_Rows(self.layers_path, LAYER_FIELDS))
        self._begin()
        self.optimizer._watchers[id(self)] = self._after_step
        self._hooks = [
            self.optimizer.register_load_state_dict_post_hook(lambda _: self._begin()),
        ]

    def _begin(self) -> None:
        """Look at the counter after the very next step: what is logged of that and later ones is of another run."""
        self._wait, self._first, self._logged, self._is_clean = 0, 0, 0, False

    def _after_step(self) -> None:
        self._wait -= 1
        if self._wait > 0 or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
            return
        step = int(self.optimizer.param_groups[0]["step"])  # waits for a GPU if it counts: not to be done every time
        self._first = self._first or step
        if step % self.every == 0:
            self._write(step)
        self._wait = self.every - step % self.every  # or more, where a GradScaler calls steps off

    def record(self) -> None:
        """Write a row now, unless this step has one already or nothing is averaged yet."""
        if not self._hooks:
            raise ValueError(f"the log {self.path} is closed")
        step = int(self.optimizer.param_groups[0]["step"])
        self._first = self._first or step
        self._write(step)

    def _clean(self) -> None:
        """Drop rows of another run, once; not before there is a row to write: a checkpoint may yet be loaded."""
        if self._first and not self._is_clean:
            self._is_clean = True
            for file in self._files:
                file.drop_from(self._first)

    def _write(self, step: int) -> None:
        if step <= self._logged or not has_averages(self.optimizer):
            return
        self._logged = step
        if not self._files and self.optimizer._shards is None:
            return  # the process that writes needs nothing from this one
        certificate, progress = self.optimizer.certificate(self.c), self.optimizer.progress
        if not self._files:
            return
        self._clean()
        parts = certificate.by_parameter.items() if self.layers else ()
        if self.layers:  # first, so that a step in the main file is whole
            self._files[1].add((step, name, part.gradient, part.spread) for name, part in parts)
        row = (certificate.gradient, certificate.spread, certificate.value, progress, certificate.ess)
        self._files[0].add([(step, *row)])
        if self.writer is not None:
            found = scalars(certificate, progress)
            for name, part in parts:
                found |= {f"gradient/{name}": part.gradient, f"spread/{name}": part.spread}
            for tag, value in found.items():
                self.writer.add_scalar(tag, value, step)
            if hasattr(self.writer, "flush"):
                self.writer.flush()

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
        if self._hooks:
            self._clean()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.optimizer._watchers.pop(id(self), None)

    def __enter__(self) -> "CertificateLogger":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Rows:
    """A CSV file whose rows begin with a step and are in the order of the steps; open only while it is written."""

    def __init__(self, path: Path, fields: tuple[str, ...]) -> None:
        self.path, header = path, _encode([fields])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab+") as file:
                file.seek(0)
                first = file.readline()
                if first != header and header.startswith(first):  # nothing, or a header that a kill tore
                    file.truncate(0)
                    file.write(header)
        except OSError as error:
            raise OSError(f"{path} cannot be written: {error.strerror}") from error
        if not header.startswith(first):
            raise ValueError(f"{path} is not a log of certificates, and is left alone: choose another path")

    def drop_from(self, step: int) -> None:
        """Remove the rows of this step and later ones, and one that was torn."""
        with self.path.open("rb+") as file:
            end = len(file.readline())
            for line in file:
                if not line.endswith(b"\n") or int(line.split(b",")[0]) >= step:
                    break
                end += len(line)
            file.truncate(end)

    def add(self, rows: Iterable[Iterable[Any]]) -> None:
        """Write rows; a process that is killed after this has not lost them."""
        with self.path.open("ab") as file:
            file.write(_encode(rows))


def _encode(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def beside(path: Path) -> Path:
    """Return where the parameters' rows are, given where the others are."""
    return path.with_name(f"{path.stem}.layers{path.suffix}")
