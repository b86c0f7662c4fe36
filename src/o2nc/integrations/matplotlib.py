"""A log of certificates as a picture."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from o2nc.logfile import FIELDS, LAYER_FIELDS, layers_path, read

NAMED = 5  # parameters with a colour and a name
MARKED = 40  # fewer points than these are marked

Columns = dict[str, list[Any]]


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
    layers = read(layers_path(log), LAYER_FIELDS) if layers_path(log).exists() else {"step": []}
    rows = 2 if layers["step"] else 1
    figure = Figure(figsize=(10, 3.75 * rows), layout="constrained")
    axes: list[Axes] = figure.subplots(rows, 2, sharex=True, squeeze=False).ravel().tolist()
    style: dict[str, Any] = {"marker": "." if len(run["step"]) < MARKED else ""}
    _draw_terms(axes[0], run, style)
    axes[1].axhline(0, color="0.7", linewidth=1)
    axes[1].plot(run["step"], run["progress"], "C2", label="progress", **style)
    axes[1].set(title="progress: estimate of F(x) − F(x₀)")
    colours: dict[str, str] = {}
    for field, symbol, ax in zip(("gradient", "spread"), ("‖ḡ‖", "V"), axes[2:], strict=False):
        _draw_layers(ax, layers, field, colours, style)
        ax.set(title=f"{field} {symbol} by parameter")
    for ax in (axes[0], *axes[2:]):
        shown = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in ax.lines])
        if np.any((shown > 0) & np.isfinite(shown)):  # matplotlib complains of empty logarithmic axes
            ax.set_yscale("log")
    if run["step"]:
        axes[0].set_xscale("log")
    for ax in axes:
        ax.grid(alpha=0.3)
    for ax in axes[-2:]:
        ax.set_xlabel("step")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _draw_terms(ax: Axes, run: Columns, style: dict[str, Any]) -> None:
    priced = [value - gradient for value, gradient in zip(run["certificate"], run["gradient"], strict=True)]
    ax.plot(run["step"], run["certificate"], "k", linewidth=2, label="certificate ‖ḡ‖ + c·V", **style)
    ax.plot(run["step"], run["gradient"], "C0", label="gradient ‖ḡ‖", **style)
    ax.plot(run["step"], priced, "C1", label="spread c·V", **style)
    ax.set(title="how far from stationary x̄ is, at most")
    ax.legend()


def _draw_layers(ax: Axes, layers: Columns, field: str, colours: dict[str, str], style: dict[str, Any]) -> None:
    """Draw a line for every parameter: those that end highest in colours of their own, the others grey."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for step, name, value in zip(layers["step"], layers["parameter"], layers[field], strict=True):
        steps, values = lines.setdefault(name, ([], []))
        steps.append(step)
        values.append(value)
    largest = sorted(lines, key=lambda name: lines[name][1][-1], reverse=True)[:NAMED]
    drawn = {}
    for name, line in lines.items():
        if name in largest:
            colour = colours.setdefault(name, f"C{len(colours)}")
            drawn[name] = ax.plot(*line, color=colour, **style)[0]
        else:
            ax.plot(*line, color="0.8", linewidth=0.8, zorder=1)
    title = f"the largest {NAMED} of {len(lines)}" if len(lines) > NAMED else None
    legend = ax.legend([*drawn.values()], map(str, range(len(drawn))), fontsize="small", title=title)
    for text, name in zip(legend.get_texts(), drawn, strict=True):
        text.set(text=name, parse_math=False)  # names are free to have a $, or to begin with _ as torch.compile's do
