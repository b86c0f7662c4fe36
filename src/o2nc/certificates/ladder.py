"""A schedule without a horizon: lower the learning rate when, and only when, the run is stationary at it.

The run is looked at in windows, of 40 steps at first and later of a share of the run. At the end of each its
displacement J (`o2nc.certificates.displacement`) is compared with that of a random walk, 1:

    J < SURE                      the run hops in one place at this learning rate: halve it
    J < LOW, and it is confined   the same
    J >= HIGH                     it travels: double it, up to where it began

Confined: J of the last three quarters of the run is smaller than the mean of J of their two halves. A network that
still learns has J of 0.3 to 0.8 in a window, and more the longer one looks: it is not confined, and is left alone. On
sharp non-smooth functions the learning rate falls geometrically, and F with it. docs/run.md has the measurements.
"""

import math
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from o2nc.certificates.displacement import Snapshots, momentum_of
from o2nc.persist.plain import KEY
from o2nc.vector import is_sharded, total, values

SURE, LOW, HIGH = 0.2, 0.7, 1.0
YOUNG, YOUNG_LOW = 480, 0.55  # before so many steps LOW is this: networks may seem confined at first, at J > 0.6
SHORTEST, SHARE = 40, 0.1  # steps of a window: so many at least, and so large a share of all before it
POINTS = 32  # snapshots in a window, about, and in each half of the past
PAST = 0.75  # of the run, its last part


class Ladder(LRScheduler):
    """Halves the learning rate when the run is stationary at it, and brings it back when the run travels again.

    Call ``step()`` once after every ``optimizer.step()``. It never raises a learning rate above its start, which is
    the one that the group has when this is made, or when the group is added. Other schedulers may change the learning
    rate as well, since it multiplies what it finds: for a warm-up chain them, or give both to
    ``torch.optim.lr_scheduler.SequentialLR``; if one of them raises a learning rate above its start, the start is
    where it raised it to. Evaluate at x̄ (``opt.averaged()``). At the end of a window it waits for the device. Where
    parameters are sharded all processes decide together; a checkpoint then begins a new window, and otherwise goes on
    bitwise.

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
        self._snapshots: list[tuple[int, torch.Tensor]] = []
        self._past: list[tuple[int, torch.Tensor]] = []
        self._begun, self._length = 0, SHORTEST  # of the window
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the learning rates to go on with."""
        change = self._change() if self.last_epoch > 0 else 1.0
        lrs = [group["lr"] for group in self.optimizer.param_groups]
        if self.last_epoch > 0 and change == 1:
            return lrs
        former = self._starts + [0.0] * (len(lrs) - len(self._starts))
        self._starts = [max(start, float(lr)) for start, lr in zip(former, lrs, strict=True)]
        return [min(lr * change, start) for start, lr in zip(self._starts, lrs, strict=True)]

    def _get_closed_form_lr(self) -> list[Any]:
        """Return torch's initial learning rates, for which SequentialLR asks when the warm-up is over."""
        if self.last_epoch > 0:  # step(epoch), which torch has deprecated
            return self.get_lr()
        self._starts = [float(lr) for lr in self.base_lrs]
        return list(self.base_lrs)

    @torch.no_grad()
    def _change(self) -> float:
        """Take a snapshot if it is time; at the end of a window return what to multiply the learning rate by."""
        now = self.last_epoch - self._begun
        snapshots = Snapshots(self._snapshots)
        snapshots.follow(now, max(1, self._length // POINTS), self._tensors)
        if len({x.numel() for _, x in [*self._past, *snapshots.taken]}) > 1:  # parameters were added: begin again
            snapshots.taken, self._past = [(0, snapshots.taken[-1][1])], []
            self._begun, now = self.last_epoch, 0
        self._snapshots = snapshots.taken
        if now < self._length:
            return 1.0
        former, self.displacement = self.rung, self._measure(snapshots.taken)
        self._past = self._thinned([*self._past, *((self._begun + step, x) for step, x in snapshots.taken)])
        low = YOUNG_LOW if self.last_epoch < YOUNG else LOW
        if self.displacement < SURE or (self.displacement < low and self._is_confined()):
            self.rung += 1
        elif self.displacement >= HIGH:
            self.rung = max(0, self.rung - 1)
        self._snapshots, self._begun = [], self.last_epoch
        self._length = max(SHORTEST, int(SHARE * self.last_epoch))
        return 2.0 ** (former - self.rung)

    def _thinned(self, taken: list[tuple[int, torch.Tensor]]) -> list[tuple[int, torch.Tensor]]:
        """Return at most 2·POINTS of the snapshots, at about equal distances over the past."""
        wanted = np.linspace((1 - PAST) * self.last_epoch, self.last_epoch, 2 * POINTS)
        apart = np.abs(np.array([step for step, _ in taken])[:, None] - wanted)
        return [taken[i] for i in np.unique(apart.argmin(0))]

    def _is_confined(self) -> bool:
        """Return whether J of the past is less than J of its halves; False if the past is too short to say."""
        past, middle = self._past, len(self._past) // 2
        if self.last_epoch < 4 * SHORTEST or past[0][0] > self.last_epoch / 2:
            return False
        return self._measure(past[::2]) < (self._measure(past[:middle]) + self._measure(past[middle:])) / 2

    def _params(self) -> list[Any]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _tensors(self) -> list[torch.Tensor]:
        return values(self._params())

    def _measure(self, taken: list[tuple[int, torch.Tensor]]) -> float:
        """Return J of some snapshots."""
        snapshots = Snapshots(taken)
        params, groups = self._params(), self.optimizer.param_groups
        measured, settings = snapshots.measure(self._tensors()), groups[0].get(KEY, {})
        momenta = [momentum_of(group, settings) for group in groups for _ in group["params"]]
        return snapshots.compare(total(measured[1:], params), momenta)[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does; without the snapshots if they are of shards."""
        state = super().state_dict() | {"_snapshots": list(self._snapshots)}
        if any(map(is_sharded, self._params())):
            state |= {"_snapshots": [], "_past": [], "_begun": self.last_epoch}
        return state
