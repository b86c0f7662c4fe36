"""How far a run has moved, against a random walk with the same increments: the number behind `diagnose`.

N snapshots of the parameters have the spread V = (1/N) Σ‖y_i − ȳ‖² and increments
q_i = ‖y_{i+1} − y_i‖². If the increments were independent, V would have the mean Σ q_i (i/N)(1 − i/N); so

    J = V / (κ Σ_i q_i (i/N)(1 − i/N))

is 1 for a random walk, whatever its learning rates were, up to 13 on a straight line (N = 32, at uneven distances)
and 3/N or less where the run hops in one place. κ >= 1 accounts for momentum b, which correlates increments that are
less than about 1/(1 − b) steps long. J has no unit, and no scale is chosen: increments are a share of the run long.

All sums over coordinates are estimated from a fixed sample of them, which is all of them for small tensors.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from o2nc.persist.plain import KEY
from o2nc.vector import gradients, is_dense, laid_like, values

COORDINATES, LEAST = 4096, 8  # sampled of all tensors together, and at least of each
MOST, USED = 128, 32  # snapshots that are kept at most, and the last ones that J is of
FIRST_STRIDE = 4  # steps from snapshot to snapshot at first, about
Snapshot: TypeAlias = tuple[int, Tensor, Tensor | None]  # steps before it, and coordinates of x and g there
GOLDEN = 0.6180339887498949  # its multiples lie evenly in [0, 1) after the point, in no period


def strides(xs: Sequence[Tensor]) -> list[int]:
    """Return for every tensor the odd number k of which one in k coordinates is sampled."""
    most = max(LEAST, COORDINATES // max(1, len(xs)))
    return [-(-x.numel() // most) | 1 for x in xs]


@torch.no_grad()
def sample(xs: Sequence[Tensor]) -> Tensor:
    """Return the sampled coordinates of some tensors as one vector, on the first one's device."""
    home = xs[0].device
    parts = [every(stride, x) for x, stride in zip(xs, strides(xs), strict=True)]
    return torch.cat([part if part.device == home else part.to(home) for part in parts])


def every(stride: int, x: Tensor) -> Tensor:
    """Return one in ``stride`` coordinates of a tensor, in the order of memory; a view, if it is dense."""
    if is_dense(x):  # one call: on a small model a GPU would wait for the host
        return x.as_strided((-(-x.numel() // stride),), (stride,))
    return x.permute(sorted(range(x.dim()), key=x.stride, reverse=True)).reshape(-1)[::stride]


def sums(sampled: Tensor, xs: Sequence[Tensor]) -> Tensor:
    """Estimate the sums over all coordinates of every tensor: (rows, sampled coordinates) → (rows, tensors)."""
    sizes = [-(-x.numel() // stride) for x, stride in zip(xs, strides(xs), strict=True)]
    parts = zip(sampled.double().split(sizes, dim=1), xs, strict=True)
    return torch.stack([part.sum(1) * (x.numel() / max(1, part.shape[1])) for part, x in parts], 1)


def moment(turn: int, stride: int) -> int:
    """Return at which of the steps turn·stride, …, (turn + 1)·stride − 1 a snapshot is taken.

    The moments are irregular: at regular ones a run that goes round in a period would seem to stand still.
    """
    return turn * stride + int(stride * (turn * GOLDEN % 1))


def measure(points: Sequence[Tensor], xs: Sequence[Tensor]) -> Tensor:
    """Return ‖ȳ‖², V and then q_1, q_2, … of samples of the tensors ``xs``, one column per tensor."""
    y = torch.stack([point.to(xs[0].device) for point in points]).double()
    mean = y.mean(0, keepdim=True)
    spread = (y - mean).square().mean(0, keepdim=True)
    return sums(torch.cat([mean.square(), spread, y.diff(dim=0).square()]), xs)


def measure_gradients(taken: Sequence[Snapshot], xs: Sequence[Tensor]) -> Tensor:
    """Return the mean ‖g‖², ⟨g, x⟩ and ‖x‖² over some snapshots, one column per tensor; 0 without gradients."""
    home = xs[0].device
    pairs = [(g.to(home).double(), x.to(home).double()) for _, x, g in taken if g is not None]
    if not pairs:
        return torch.zeros(3, len(xs), dtype=torch.float64, device=home)
    g, x = (torch.stack(part) for part in zip(*pairs, strict=True))
    return sums(torch.stack([g.square().mean(0), (g * x).mean(0), x.square().mean(0)]), xs)


def displacements(times: Sequence[int], measured: Tensor, momenta: Sequence[float]) -> list[float]:
    """Return J of all tensors together, then of each, from the steps of the snapshots, `measure`, and b of each."""
    spread, increments = measured[1].tolist(), measured[2:].cpu().numpy()
    weights = {b: walk(times, b) for b in {*momenta}}
    expected = [float(weights[b] @ increments[:, i]) for i, b in enumerate(momenta)]
    pairs = [(math.fsum(spread), math.fsum(expected)), *zip(spread, expected, strict=True)]
    return [v / e if e > 0 else math.nan for v, e in pairs]  # nan where nothing moves


def walk(times: Sequence[int], momentum: float) -> np.ndarray:
    """Return κ(i/N)(1 − i/N), i = 1, …, N − 1: what every increment of a random walk adds to E V.

    With momentum b the squared distance of points τ steps apart is proportional to c(τ) = τ − 2b(1 − b^τ)/(1 − b²),
    and V is half of the mean squared distance of two points. ``times`` are the steps of the N points.
    """
    t, b = np.asarray(times, dtype=float), momentum
    apart = np.abs(t[:, None] - t)
    squares = apart - 2 * b * (1 - b**apart) / (1 - b**2)
    shares = np.arange(1, len(t)) / len(t)
    weights = shares * (1 - shares)
    return weights * (squares.mean() / 2 / (weights @ squares.diagonal(1)))


def momenta_of(optimizer: Any) -> list[float]:
    """Return b of every parameter as far as its group says it, else 0."""
    settings, found = optimizer.param_groups[0].get(KEY, {}), []
    for group in optimizer.param_groups:
        b = float(group.get("momentum", (group.get("betas") or (settings.get("beta"),))[0]) or 0.0)
        found += [b if 0 <= b < 1 else 0.0] * len(group["params"])
    return found


class Trail:
    """Snapshots all over a run, at most MOST: then every other is dropped, and there is one in twice as many steps.

    With a certificate a snapshot has the gradient, too. Nothing here waits for a device. A trail is not saved: a new
    one begins after a checkpoint was loaded, and when parameters are added or exchanged.
    """

    def __init__(self) -> None:
        self.taken: list[Snapshot] = []
        self.stride, self.steps, self.due = FIRST_STRIDE, 0, moment(1, FIRST_STRIDE)

    def take(self, optimizer: Any) -> None:
        """Take a snapshot of x_t and g_t, before the rule moves the one or writes into the other."""
        xs, g = values(optimizer._known_params), None
        if optimizer.param_groups[0][KEY]["certificate"]:
            found = zip(xs, gradients(optimizer._known_params), strict=True)
            # a gradient is sampled in the order in which x lies in memory
            g = sample(
                [x.new_zeros(1).expand(x.numel()) if g is None else laid_like(x, g, g.dtype) for x, g in found]
            )
        self.taken.append((self.steps, sample(xs), g))
        if len(self.taken) == MOST:
            del self.taken[::2]
            self.stride *= 2
        now, later = (moment(self.steps // self.stride + k, self.stride) for k in (0, 1))
        self.due = now if now > self.steps else later

    def latest(self) -> list[Snapshot]:
        """Return the last USED snapshots, or none if there are fewer."""
        return self.taken[-USED:] if len(self.taken) >= USED else []
