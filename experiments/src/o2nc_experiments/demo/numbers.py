"""Numbers as they are written in sentences and tables."""

from collections.abc import Sequence


def signed(value: float, decimals: int = 2) -> str:
    """Return a change, with its sign.

    Example:
        >>> signed(0.25), signed(-749.9, 1), signed(-0.001)
        ('+0.25', '−749.9', '+0.00')
    """
    return f"{round(value, decimals) + 0.0:+.{decimals}f}".replace("-", "−")  # −0.0 + 0.0 is 0.0


def span(values: Sequence[float]) -> str:
    """Return the least and the largest value in words, once if they look alike.

    Example:
        >>> span([0.28, 1.3, 0.7]), span([83.02, 83.04])
        ('0.28 to 1.3', '83.0')
    """
    low, high = (f"{v:.1f}" if v >= 10 else f"{v:.2g}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"
