"""A schedule without a horizon: lower the learning rate when, and only when, the run is stationary at it.

The run is looked at in windows. At the end of each its displacement J (`o2nc.certificates.displacement`) is compared
with that of a random walk, 1, and with J of the past, which is the last nine tenths of the run, and of its halves:

    J and J of the past's later half < SURE     the run hops in one place: halve it; twice, if both are < SURE/2
    J or J of the past's later half >= 2 HIGH   it travels far: take back half of the halvings
    J < HIGH, and the run is confined           halve it
    J >= HIGH                                   it travels: double it, up to where it began

The first line that applies decides. Confined: J of the past is less than 1.2 − 0.4 J times the mean of J of its
halves, as it is not of a network that still learns. docs/run.md has the reasons, docs/run-appendix.md the tables.
"""

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from o2nc.certificates.displacement import displacements, measure, moment, momenta_of, sample
from o2nc.vector import is_sharded, total, values

SURE, HIGH = 0.2, 1.0
SHORTEST, SHARE = 40, 0.1  # steps of a window: so many at least, and so large a share of all before it
POINTS, PAST = 32, 0.9  # snapshots in a window, about, and in each half of the past, which is such a share of the run

Snapshot: TypeAlias = tuple[int, Tensor]  # the step, from the start of the window or of the run, and coordinates of x


class Ladder(LRScheduler):
    """Halves the learning rate when the run is stationary at it, and brings it back when the run travels again.

    Call ``step()`` once after every ``optimizer.step()``, and evaluate at x̄ (``opt.averaged()``). No learning rate
    rises above its start: its value when this is made or when its group is added, or a larger one that another
    scheduler sets. A warm-up can come before it in ``torch.optim.lr_scheduler.SequentialLR``. One by ``LinearLR`` can
    be chained to it as well; one by ``LambdaLR`` cannot, since it sets lr at every step. At the end of a window it
    waits for the device. Where parameters are sharded all processes decide together. A resumed run goes on bitwise,
    but begins a new window if they are.

    Args:
        optimizer: any torch optimizer, such as ``o2nc.SGD(…, average=o2nc.Polynomial(12))``.
        last_epoch: as in torch: -1, or the step to resume from, if the groups have ``initial_lr``.

    Example:
        >>> import torch, o2nc
        >>> x = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        >>> opt = o2nc.SGD([x], lr=0.1, momentum=0.9, average=o2nc.Polynomial(12))
        >>> ladder = o2nc.Ladder(opt)
        >>> for _ in range(1000):
        ...     opt.zero_grad()
        ...     x.abs().sum().backward()
        ...     opt.step()
        ...     ladder.step()
        >>> with opt.averaged():
        ...     bool(x.abs().sum() < 1e-3), ladder.get_last_lr()[0] < 1e-3
        (True, True)
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.rung = 0  # how often the learning rate is halved now
        self.displacement = math.nan  # J of the last window
        self._starts: list[float] = []  # of every group, the highest learning rate that was not set here
        self._snapshots: list[Snapshot] = []  # of the window
        self._past: list[Snapshot] = []  # of the last PAST of the run, at about equal distances
        self._begun, self._length = last_epoch + 1, SHORTEST  # the step at which the window began, and its length
        super().__init__(optimizer, last_epoch)
        if last_epoch != -1:
            self._starts = [float(lr) for lr in self.base_lrs]

    def get_lr(self) -> list[Any]:
        """Return the learning rates to go on with."""
        factor = self._follow() if self.last_epoch > 0 else 1.0
        lrs = [group["lr"] for group in self.optimizer.param_groups]
        if self.last_epoch > 0 and factor == 1:
            return lrs
        known = self._starts + [0.0] * (len(lrs) - len(self._starts))
        self._starts = [max(start, float(lr)) for start, lr in zip(known, lrs, strict=True)]
        return [min(lr * factor, start) for start, lr in zip(self._starts, lrs, strict=True)]

    def _get_closed_form_lr(self) -> list[Any]:
        """Return torch's initial learning rates, for which SequentialLR asks when the warm-up is over."""
        if self.last_epoch > 0:  # step(epoch), which torch has deprecated
            return self.get_lr()
        self._starts = [float(lr) for lr in self.base_lrs]
        return list(self.base_lrs)

    @torch.no_grad()
    def _follow(self) -> float:
        """Take a snapshot if it is due; return what to multiply the learning rate by, 1 within a window."""
        now, stride = self.last_epoch - self._begun, max(1, self._length // POINTS)
        is_due, is_over = now == moment(now // stride, stride), now >= self._length
        if is_due or is_over:
            x = sample(values(self._params()))
            if any(len(x) != len(former) for _, former in self._past + self._snapshots):  # parameters were added
                self._begun, self._past, self._snapshots = self.last_epoch, [], [(0, x)]
                return 1.0
            if is_due:
                self._snapshots = [*self._snapshots, (now, x)]  # a new list: state_dict() has handed out the old one
        return self._judge() if is_over else 1.0

    def _judge(self) -> float:
        """End the window: move by a rung where that is due, and return what to multiply the learning rate by."""
        former, self.displacement = self.rung, self._measure(self._snapshots)
        self._past = self._thin(self._past + [(self._begun + step, x) for step, x in self._snapshots])
        j, (whole, early, late) = self.displacement, self._look_back()
        if max(j, late) < SURE:
            self.rung += 1 + (max(j, late) < SURE / 2)
        elif max(j, late) >= 2 * HIGH:
            self.rung //= 2
        elif j < HIGH and whole < (1.2 - 0.4 * j) * (early + late) / 2:
            self.rung += 1
        elif j >= HIGH:
            self.rung = max(0, self.rung - 1)
        self._snapshots, self._begun = [], self.last_epoch
        self._length = max(SHORTEST, int(SHARE * self.last_epoch))
        return 2.0 ** (former - self.rung)

    def _thin(self, snapshots: list[Snapshot]) -> list[Snapshot]:
        """Return at most 2·POINTS of the snapshots, at about equal distances over the last PAST of the run."""
        wanted = np.linspace((1 - PAST) * self.last_epoch, self.last_epoch, 2 * POINTS)
        apart = np.abs(np.array([step for step, _ in snapshots])[:, None] - wanted)
        return [snapshots[i] for i in np.unique(apart.argmin(0))]

    def _look_back(self) -> tuple[float, float, float]:
        """Return J of the past and of its two halves; (∞, 0, 0) if it is too short to say."""
        past, middle = self._past, len(self._past) // 2
        if self.last_epoch < 4 * SHORTEST or past[0][0] > self.last_epoch / 2:
            return math.inf, 0.0, 0.0
        return self._measure(past[::2]), self._measure(past[:middle]), self._measure(past[middle:])

    def _measure(self, snapshots: list[Snapshot]) -> float:
        """Return J."""
        params = self._params()
        measured = total(measure([x for _, x in snapshots], values(params)), params)
        return displacements([step for step, _ in snapshots], measured, momenta_of(self.optimizer))[0]

    def _params(self) -> list[Any]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does; of sharded parameters it has no snapshots, and a new window begins."""
        state = super().state_dict()
        if any(map(is_sharded, self._params())):
            state |= {"_snapshots": [], "_past": [], "_begun": self.last_epoch}
        return state
