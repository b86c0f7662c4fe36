"""The window, chosen after the run: x̄ of any power from snapshots of x̄ with other powers.

A snapshot of `o2nc.Polynomial` is a weighted sum of iterates, and its weights are known:

    p_{n,t} ∝ Γ(j + r)/Γ(j), t ≤ n,   with r the power and n the step, if x_t is the j-th iterate that counts.

A combination Σ a_k x̄_k with Σ a_k = 1 is then a sum of iterates with the weights Σ a_k p_k. Least squares finds the
one whose weights come nearest to those of the window that is wanted (Karras et al. 2024, for diffusion models).
docs/recipes.md says how many snapshots it takes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from o2nc import checks
from o2nc.averages.windows import Polynomial


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
        values: x̄, a list or a dictionary as in the snapshots; what is not floating point is that of the last one.
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

    It needs some 40 bytes for every step and snapshot: 1 GB for a million steps and 24 snapshots.

    Args:
        snapshots: of one run, of one window or several, in any order.
        power: that of the window that is wanted, or the window itself.

    Example:
        >>> import torch, o2nc
        >>> window = o2nc.Polynomial(3)
        >>> snapshots = [o2nc.Snapshot(window, n, [torch.tensor([1.0 / n])]) for n in range(8, 65, 8)]
        >>> wider = o2nc.posthoc(snapshots, power=2)
        >>> wider.error < 0.1
        True
    """
    known = sorted((Snapshot(*snapshot) for snapshot in snapshots), key=lambda snapshot: snapshot.step)
    if not known:
        raise ValueError("snapshots must have at least one, got none")
    for window, step, _ in known:
        if not isinstance(window, Polynomial):
            raise TypeError(f"the window of a snapshot must be an o2nc.Polynomial, got {window!r}")
        checks.integer("the step of a snapshot", step, window.start + 1)
    steps = known[-1].step
    wanted = power if isinstance(power, Polynomial) else replace(known[-1].window, power=power)
    if steps <= wanted.start:
        raise ValueError(f"the window begins after {wanted.start} steps, and the last snapshot is of step {steps}")
    # with a_K = 1 − Σ a_k it is least squares: a row for every step, a column for every snapshot but the last
    columns = torch.stack([_weights(window, step, steps) for window, step, _ in known], 1)
    last, asked = columns[:, -1:], _weights(wanted, steps, steps)[:, None]
    a = torch.linalg.lstsq(columns[:, :-1] - last, asked - last, driver="gelsd").solution
    a = torch.cat([a, 1 - a.sum(0, keepdim=True)])
    made, weights = columns @ a, a[:, 0].tolist()
    error = torch.linalg.vector_norm(made - asked) / torch.linalg.vector_norm(asked)
    values = _combine(weights, [snapshot.values for snapshot in known])
    return Posthoc(values, weights, float(error), float(made.min() / made.max()))


def _weights(window: Polynomial, n: int, steps: int) -> Tensor:
    """Return p_{n,t} for t = 1 … steps."""
    r, late = window.power, torch.arange(steps, dtype=torch.float64, device="cpu") - window.start
    counts = (late >= 0) & (late < n - window.start) & (late % window.every == 0)
    j = late.div(window.every, rounding_mode="floor").clamp(min=0) + 1
    # Σ_{j≤m} Γ(j + r)/Γ(j) = Γ(m + r + 1)/(Γ(m)(r + 1))
    m = (n - window.start - 1) // window.every + 1
    total = math.lgamma(m + r + 1) - math.lgamma(m) - math.log(r + 1)
    return torch.where(counts, torch.exp(torch.lgamma(j + r) - torch.lgamma(j) - total), 0.0)


@torch.no_grad()
def _combine(weights: Sequence[float], values: Sequence[Any]) -> Any:
    """Return Σ a_k·values_k in at least float64 on the way, in the dtype of the last."""
    last = values[-1]
    if isinstance(last, list | tuple | dict):
        named = [value if isinstance(value, dict) else dict(enumerate(value)) for value in values]
        if any(value.keys() != named[-1].keys() for value in named):
            raise ValueError("snapshots must have the same keys, or equally many tensors")
        found = {key: _combine(weights, [value[key] for value in named]) for key in named[-1]}
        return found if isinstance(last, dict) else list(found.values())
    if not isinstance(last, Tensor) or not (last.is_floating_point() or last.is_complex()):
        return last
    if any(value.shape != last.shape for value in values):
        raise ValueError(f"snapshots must have the same shapes, got {sorted({tuple(v.shape) for v in values})}")
    total = torch.zeros_like(last, dtype=torch.promote_types(last.dtype, torch.float64))
    for weight, value in zip(weights, values, strict=True):
        total.add_(value.to(total), alpha=weight)
    return total.to(last.dtype)
