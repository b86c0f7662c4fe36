"""accelerate: certificates to its trackers. All else needs nothing: ``.optimizer`` of a prepared one is o2nc's."""

from typing import Any


class Writer:
    """Writes what an `o2nc.CertificateLogger` finds to an Accelerator's trackers, whichever they are.

    All processes may make one; accelerate sees to it that the first writes.

    Args:
        accelerator: an `accelerate.Accelerator` whose ``init_trackers`` was called.

    Example::

        accelerator = Accelerator(log_with="tensorboard", project_dir="runs")
        accelerator.init_trackers("run")
        log = o2nc.CertificateLogger(opt, writer=Writer(accelerator))
    """

    def __init__(self, accelerator: Any) -> None:
        self.accelerator = accelerator

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Log one number."""
        self.accelerator.log({tag: value}, step=step)
