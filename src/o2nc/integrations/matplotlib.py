"""A log of certificates as a picture."""

from pathlib import Path

from matplotlib.figure import Figure

from o2nc.certificates.diagnosis import STATIONARY, STRAIGHT
from o2nc.logger import read


def plot(log: str | Path, path: str | Path | None = None) -> Figure:
    """Draw a log of certificates: the displacement, between its verdicts, and the certificate with its two terms.

    Args:
        log: the CSV file of an `o2nc.CertificateLogger`.
        path: where to save the picture, if anywhere; the suffix says in which format.

    Returns:
        The figure.

    Raises:
        ValueError: the file is no such log, or was damaged.

    Example:
        >>> import tempfile
        >>> from o2nc.logger import Row, append
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = Path(folder, "certificate.csv")
        ...     append(log, Row(100, "travelling", 0.9, 0.5, 0.1, 0.6, -0.1, 99.0, 1.0))
        ...     figure = plot(log)
        >>> [ax.get_title() for ax in figure.axes]
        ['displacement, 1 for a random walk', 'how far from stationary x̄ is, at most']
    """
    rows = read(Path(log))
    steps = [row.step for row in rows]
    figure = Figure(figsize=(10, 3.75), layout="constrained")
    moves, terms = figure.subplots(1, 2, sharex=True)
    moves.plot(steps, [row.displacement for row in rows], "C0.-")
    for level, verdict in ((STATIONARY, "stationary below"), (STRAIGHT, "straight above")):
        moves.axhline(level, color="0.6", linestyle=":", label=verdict)
    moves.set_title("displacement, 1 for a random walk")
    terms.plot(steps, [row.certificate for row in rows], "C0.-", label="certificate ‖ḡ‖ + c·V")
    terms.plot(steps, [row.gradient for row in rows], "C1.-", label="gradient ‖ḡ‖")
    terms.plot(steps, [row.c * row.spread for row in rows], "C2.-", label="spread c·V")
    terms.set_title("how far from stationary x̄ is, at most")
    for ax, numbers in ((moves, [row.displacement for row in rows]), (terms, [row.certificate for row in rows])):
        if any(0 < number < float("inf") for number in numbers):  # matplotlib warns of empty log axes
            ax.set(xscale="log", yscale="log")
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small")
    figure.supxlabel("step", fontsize="medium")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
