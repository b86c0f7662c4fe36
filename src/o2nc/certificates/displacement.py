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
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from o2nc.persist.plain import KEY
from o2nc.vector import gradients, is_dense, values

COORDINATES, LEAST = 4096, 8  # sampled of all tensors together, and at least of each
MOST, USED = 128, 32  # snapshots that are kept at most, and the last ones that J is of
FIRST_STRIDE = 4  # steps from snapshot to snapshot at first, about
GOLDEN = 0.6180339887498949  # its multiples lie evenly in [0, 1) after the point, in no period


def strides(xs: Sequence[Tensor]) -> list[int]:
    """Return of every tensor which share of its coordinates is sampled: one in so many, an odd number."""
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


def by_tensor(values: Tensor, xs: Sequence[Tensor]) -> Tensor:
    """Return what sums over all coordinates are, of values (rows, sampled coordinates): (rows, tensors), float64."""
    sizes = [-(-x.numel() // stride) for x, stride in zip(xs, strides(xs), strict=True)]
    parts = values.double().split(sizes, dim=1)
    return torch.stack(
        [part.sum(1) * (x.numel() / max(1, n)) for part, x, n in zip(parts, xs, sizes, strict=True)], 1
    )


def moment(turn: int, stride: int) -> int:
    """Return at which of the steps turn·stride, …, (turn + 1)·stride − 1 a snapshot is taken."""
    return turn * stride + int(stride * (turn * GOLDEN % 1))


class Snapshots:
    """Samples of the parameters at some steps of a run; none of this waits for a device."""

    def __init__(self, taken: Sequence[tuple[int, Tensor]] = ()) -> None:
        self.taken = list(taken)  # the step, and the coordinates after it

    def follow(self, step: int, stride: int, tensors: Callable[[], Sequence[Tensor]]) -> None:
        """Take a snapshot if it is time: one in every ``stride`` steps, at irregular moments.

        At regular ones a run that goes round in a period of so many steps would seem to stand still.
        """
        if step == moment(step // stride, stride):
            self.taken.append((step, sample(tensors())))

    def measure(self, xs: Sequence[Tensor]) -> Tensor:
        """Return ‖ȳ‖², V and then q_1, q_2, …, one column per tensor, summed over all its coordinates."""
        points = torch.stack([x.to(xs[0].device) for _, x in self.taken]).double()
        mean = points.mean(0, keepdim=True)
        spread = (points - mean).square().mean(0, keepdim=True)
        return by_tensor(torch.cat([mean.square(), spread, points.diff(dim=0).square()]), xs)

    def compare(self, measured: Tensor, momenta: Sequence[float]) -> list[float]:
        """Return J of all tensors together, then of each, from V and q as `measure` has them and each one's b."""
        spread, increments = measured[0].tolist(), measured[1:].cpu().numpy()
        weights = {b: walk([step for step, _ in self.taken], b) for b in {*momenta}}
        expected = [float(weights[b] @ increments[:, i]) for i, b in enumerate(momenta)]
        return [_ratio(math.fsum(spread), math.fsum(expected)), *map(_ratio, spread, expected)]


def _ratio(spread: float, expected: float) -> float:
    return spread / expected if expected > 0 else math.nan  # nothing moves


class Trail:
    """Snapshots all over a run, at most MOST: then every other is dropped, and there is one in twice as many steps.

    The optimizer counts its ``steps``, and calls `follow` when one is ``due``. All of it is on the host's side of a
    step, and is not saved: it begins again after a checkpoint was loaded, and when parameters are added or exchanged.
    Of an optimizer with a certificate the same coordinates of the last USED gradients are kept, too.
    """

    def __init__(self) -> None:
        self._params: Any = None
        self._begin()

    def _begin(self) -> None:
        self._taken, self.stride, self.steps = Snapshots(), FIRST_STRIDE, 0
        self._gradients: deque[Tensor] = deque(maxlen=USED)
        self._find_due()

    def _find_due(self) -> None:
        now, next_one = (moment(self.steps // self.stride + k, self.stride) for k in (0, 1))
        self.due = now if now > self.steps else next_one

    def follow(self, optimizer: Any) -> None:
        """Take a snapshot, now that ``steps`` is ``due``."""
        former, self._params = self._params, optimizer._known_params
        if former is not None and former is not self._params:
            self._begin()
            return
        xs = values(self._params)
        self._taken.taken.append((self.steps, sample(xs)))
        if optimizer.param_groups[0][KEY]["certificate"]:
            found = zip(xs, gradients(self._params), strict=True)
            self._gradients.append(sample([x.new_zeros(1).expand(x.numel()) if g is None else g for x, g in found]))
        if len(self._taken.taken) == MOST:
            del self._taken.taken[::2]
            self.stride *= 2
        self._find_due()

    def latest(self, optimizer: Any) -> Snapshots | None:
        """Return the last USED snapshots, or None if there are not so many."""
        if optimizer._known_params is not self._params or len(self._taken.taken) < USED:
            return None
        return Snapshots(self._taken.taken[-USED:])

    def gradient_squares(self, xs: Sequence[Tensor]) -> Tensor:
        """Return the mean ‖g‖² of every tensor over the gradients that were kept; 0 if there are none."""
        kept = [g.to(xs[0].device).double().square() for g in self._gradients]
        if not kept:
            return xs[0].new_zeros(len(xs))
        return by_tensor(torch.stack(kept).mean(0, keepdim=True), xs)[0]


def walk(times: Sequence[int], momentum: float) -> np.ndarray:
    """Return κ(i/N)(1 − i/N), i = 1, …, N − 1: what every increment of a random walk adds to E V.

    With momentum b the squared distance of points τ steps apart is proportional to c(τ) = τ − 2b(1 − b^τ)/(1 − b²),
    and V is half of the mean squared distance of two points.

    Args:
        times: the steps of the N points.
        momentum: b in [0, 1).
    """
    t, b = np.asarray(times, dtype=float), momentum
    apart = np.abs(t[:, None] - t)
    squares = apart - 2 * b * (1 - b**apart) / (1 - b**2)
    shares = np.arange(1, len(t)) / len(t)
    weights = shares * (1 - shares)
    return weights * (squares.mean() / 2 / (weights @ squares.diagonal(1)))


def momentum_of(group: dict[str, Any], settings: dict[str, Any]) -> float:
    """Return b as far as a parameter group says it; 0 if it does not."""
    b = float(group.get("momentum", group.get("betas", (settings.get("beta") or 0.0,))[0]))
    return b if 0 <= b < 1 else 0.0
