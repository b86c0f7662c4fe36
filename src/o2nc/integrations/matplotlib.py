"""A log of certificates as a picture."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from o2nc.logfile import FIELDS, LAYER_FIELDS, layers_path, read

NAMED = 5  # parameters with a colour and a name
Lines = dict[str, tuple[list[float], list[float]]]  # steps and values


def plot(log: str | Path, path: str | Path | None = None) -> Figure:
    """Draw a log of certificates: the certificate and its two terms, the progress, and every parameter's share.

    Args:
        log: the CSV file of an `o2nc.CertificateLogger`; that of the parameters is drawn too if it is there.
        path: where to save the picture, if anywhere; the suffix says in which format.

    Returns:
        The figure.

    Raises:
        ValueError: the file is no such log, or was damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = Path(folder, "certificate.csv")
        ...     head = "step,verdict,displacement,gradient,spread,certificate,progress,ess,c"
        ...     _ = log.write_text(head + "\\n100,travelling,0.9,0.5,0.1,0.6,-0.1,99,1\\n")
        ...     figure = plot(log)
        >>> [ax.get_title() for ax in figure.axes]
        ['how far from stationary x̄ is, at most', 'progress: estimate of F(x) − F(x₀)']
    """
    log = Path(log)
    run = read(log, FIELDS)
    layers = read(layers_path(log), LAYER_FIELDS) if layers_path(log).exists() else {key: [] for key in LAYER_FIELDS}
    rows = 2 if layers["step"] else 1
    figure = Figure(figsize=(10, 3.75 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, sharex=True, squeeze=False).ravel()
    spread = [c * spread for c, spread in zip(run["c"], run["spread"], strict=True)]
    terms = {"certificate ‖ḡ‖ + c·V": run["certificate"], "gradient ‖ḡ‖": run["gradient"], "spread c·V": spread}
    _draw(axes[0], "how far from stationary x̄ is, at most", {name: (run["step"], y) for name, y in terms.items()})
    _draw(axes[1], "progress: estimate of F(x) − F(x₀)", {"progress": (run["step"], run["progress"])})
    last = dict(zip(layers["parameter"], layers["gradient"], strict=True))
    for ax, field in zip(axes[2:], ("gradient", "spread"), strict=False):
        lines: Lines = {name: ([], []) for name in sorted(last, key=last.__getitem__, reverse=True)}
        for step, name, value in zip(layers["step"], layers["parameter"], layers[field], strict=True):
            lines[name][0].append(step)
            lines[name][1].append(value)
        _draw(ax, f"{field} by parameter", lines)
    figure.supxlabel("step", fontsize="medium")
    if run["step"]:
        axes[0].set_xscale("log")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _draw(ax: Axes, title: str, lines: Lines) -> None:
    """Draw named lines, the first of them in colours of their own, the others grey; on a log scale if none is < 0."""
    drawn = [ax.plot(*line, f"C{k}", marker=".", zorder=3)[0] for k, line in enumerate([*lines.values()][:NAMED])]
    for line in [*lines.values()][NAMED:]:
        ax.plot(*line, color="0.8", linewidth=0.8)
    shown = np.concatenate([y for _, y in lines.values()])
    if np.any((shown > 0) & np.isfinite(shown)) and not np.any(shown < 0):  # matplotlib warns of empty log axes
        ax.set_yscale("log")
    ax.set_title(title)
    ax.grid(alpha=0.3)
    legend = ax.legend(drawn, map(str, range(NAMED)), fontsize="small")
    for text, name in zip(legend.get_texts(), lines, strict=False):
        text.set(text=name, parse_math=False)  # names are free to have a $, or to begin with _ as torch.compile's do
