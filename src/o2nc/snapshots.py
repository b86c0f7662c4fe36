"""The window, chosen after the run: x̄ of any power from snapshots of x̄ with other powers.

A snapshot of `o2nc.Polynomial` is a weighted sum of iterates, and its weights are known:

    p_{n,t} ∝ Γ(j + r)/Γ(j), t ≤ n,   with r the power and n the step, if x_t is the j-th iterate that counts.

A combination Σ a_k x̄_k with Σ a_k = 1 is then a sum of iterates with the weights Σ a_k p_k. Least squares finds the
one whose weights come nearest to those of the window that is wanted (Karras et al. 2024, for diffusion models).

Two powers a factor 4 apart with 8 snapshots each, evenly spaced over the run, come within 2 % of the weights of every
power between, with 32 each within 0.2 %. The error of x̄ is smaller, as much as its iterates are near to each other.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from o2nc import checks
from o2nc.averages.windows import Polynomial

_STRETCH = 1 << 16  # steps whose weights are in memory at a time


class Snapshot(NamedTuple):
    """x̄ as it was at some step.

    Attributes:
        window: the window that it is of.
        step: how many steps the run had made.
        values: x̄: tensors in a list, or in a dictionary such as ``model.state_dict()`` inside ``opt.averaged()``.

    Example:
        >>> import torch, o2nc
        >>> snapshot = o2nc.Snapshot(o2nc.Polynomial(12), 1000, [torch.zeros(3)])
        >>> snapshot.step
        1000
    """

    window: Polynomial
    step: int
    values: Any


class Posthoc(NamedTuple):
    """An average made of others.

    Attributes:
        values: x̄, as the values of the snapshots are; what is not floating point is that of the last snapshot.
        weights: a_k, by which the snapshots were multiplied; some are negative as a rule.
        error: how far its weights of the iterates are from those that were wanted, in the Euclidean norm, relative.
        lowest: the least weight of an iterate, relative to the largest. Where it is negative the result is no
            average, and no certificate covers it.

    Example:
        >>> import torch, o2nc
        >>> window = o2nc.Polynomial(4)
        >>> found = o2nc.posthoc([(window, n, [torch.full((1,), float(n))]) for n in (25, 50, 75, 100)], power=4)
        >>> round(found.weights[-1], 6), round(found.values[0].item(), 3), found.lowest > 0
        (1.0, 100.0, True)
    """

    values: Any
    weights: list[float]
    error: float
    lowest: float


def posthoc(snapshots: Iterable[Snapshot | tuple[Any, int, Any]], power: float | Polynomial) -> Posthoc:
    """Return x̄ with another power at the step of the last snapshot, for which no run was made.

    Args:
        snapshots: of one run, of one window or several, in any order.
        power: that of the window that is wanted, or the window itself.

    Example:
        >>> import torch, o2nc
        >>> x = torch.nn.Parameter(torch.tensor([3.0]))
        >>> opt = o2nc.ScaledSGDM([x], lr=0.1, scaling=None, average=o2nc.Polynomial(3))
        >>> snapshots = []
        >>> for n in range(1, 65):
        ...     x.grad = x.detach().sign()
        ...     opt.step()
        ...     if n % 8 == 0:
        ...         with opt.averaged():
        ...             snapshots.append(o2nc.Snapshot(o2nc.Polynomial(3), n, [x.detach().clone()]))
        >>> wider = o2nc.posthoc(snapshots, power=2)
        >>> wider.error < 0.1
        True
    """
    known = [_checked(k, Snapshot(*snapshot)) for k, snapshot in enumerate(snapshots)]
    if not known:
        raise ValueError("snapshots must have at least one, got none")
    known.sort(key=lambda snapshot: snapshot.step)
    window = power if isinstance(power, Polynomial) else replace(known[-1].window, power=power)
    steps = known[-1].step
    if steps <= window.start:
        raise ValueError(f"the window begins after {window.start} steps, and the last snapshot is of step {steps}")
    places = [(s.window, s.step) for s in known]
    distinct = [*dict.fromkeys(places)]
    found, error, lowest = _fit(distinct, window)
    unused = dict(zip(distinct, found, strict=True))
    weights = [unused.pop(place, 0.0) for place in places]  # one that is there twice counts once
    return Posthoc(_combine(weights, [s.values for s in known]), weights, error, lowest)


def _checked(k: int, snapshot: Snapshot) -> Snapshot:
    if not isinstance(snapshot.window, Polynomial):
        raise TypeError(f"snapshots[{k}] must be of an o2nc.Polynomial, got {snapshot.window!r}")
    checks.integer(f"the step of snapshots[{k}]", snapshot.step, snapshot.window.start + 1)
    return snapshot


def _fit(known: Sequence[tuple[Polynomial, int]], wanted: Polynomial) -> tuple[list[float], float, float]:
    """Return the a_k that sum to 1, the relative error of the weights, and their minimum over their maximum.

    With a_K = 1 − Σ a_k it is a least-squares problem, with a row for every step and a column for every snapshot but
    the last. Its rows are taken in by stretches, each folded into a triangle (QR): nothing of the size of the run is
    kept, and the squares of small weights are never formed.
    """
    steps = known[-1][1]
    columns = [*known, (wanted, steps)]
    triangle = torch.zeros(0, len(columns), dtype=torch.float64, device="cpu")
    for low in range(0, steps, _STRETCH):
        rows = _weights(columns, low, min(low + _STRETCH, steps))
        triangle = torch.linalg.qr(torch.cat([triangle, rows]), mode="r").R
    last = triangle[:, -2:-1]
    solved = torch.linalg.lstsq(triangle[:, :-2] - last, triangle[:, -1:] - last, driver="gelsd").solution[:, 0]
    a = torch.cat([solved, 1 - solved.sum(0, keepdim=True)])
    asked = triangle[:, -1]
    error = torch.linalg.vector_norm(triangle[:, :-1] @ a - asked) / torch.linalg.vector_norm(asked)
    least, most = math.inf, -math.inf
    for low in range(0, steps, _STRETCH):
        made = _weights(known, low, min(low + _STRETCH, steps)) @ a
        least, most = min(least, float(made.min())), max(most, float(made.max()))
    return a.tolist(), float(error), least / most


def _weights(columns: Sequence[tuple[Polynomial, int]], low: int, high: int) -> Tensor:
    """Return p_{n,t} for t in low + 1 … high, a column for each window and step n."""
    t = torch.arange(low + 1, high + 1, dtype=torch.float64, device="cpu")
    found = []
    for window, n in columns:
        r, every, late = window.power, getattr(window, "every", 1), t - window.start - 1
        inside = (late >= 0) & (t <= n) & (late % every == 0)
        k = late.div(every, rounding_mode="floor").clamp(min=0) + 1
        # Σ_{k≤m} Γ(k + r)/Γ(k) = Γ(m + r + 1)/(Γ(m)(r + 1))
        m = torch.tensor(float((n - window.start - 1) // every + 1), dtype=torch.float64, device="cpu")
        total = torch.lgamma(m + r + 1) - torch.lgamma(m) - math.log(r + 1)
        found.append(torch.where(inside, torch.exp(torch.lgamma(k + r) - torch.lgamma(k) - total), 0.0))
    return torch.stack(found, 1)


@torch.no_grad()
def _combine(weights: Sequence[float], values: Sequence[Any]) -> Any:
    """Return Σ a_k·values_k in at least float64 on the way, in the dtype of the last."""
    last = values[-1]
    if isinstance(last, dict):
        if any(value.keys() != last.keys() for value in values):
            raise ValueError("snapshots must have the same keys")
        return {key: _combine(weights, [value[key] for value in values]) for key in last}
    if isinstance(last, (list, tuple)):
        if any(len(value) != len(last) for value in values):
            raise ValueError("snapshots must have the same number of tensors")
        return [_combine(weights, [value[k] for value in values]) for k in range(len(last))]
    if not isinstance(last, Tensor) or not (last.is_floating_point() or last.is_complex()):
        return last
    if any(value.shape != last.shape for value in values):
        raise ValueError(f"snapshots must have the same shapes, got {sorted({tuple(v.shape) for v in values})}")
    total = torch.zeros_like(last, dtype=torch.promote_types(last.dtype, torch.float64))
    for weight, value in zip(weights, values, strict=True):
        total.add_(value.to(total), alpha=weight)
    return total.to(last.dtype)
