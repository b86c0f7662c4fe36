"""Many runs at once: every row of a tensor is an arm with a learning rate and a seed of its own.

The loop is the algorithm of `arms`, written once for all factors. What an arm lacks is a column of neutral numbers,
and no column at all where every arm lacks it. Rows of one seed see the same noise and begin at the same point,
whatever their arm and learning rate: differences are paired. A test holds the rows to o2nc's optimizers, run by run.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from o2nc.problems import Oracle, Subsampled
from o2nc.scaling import uniform
from o2nc_experiments.nonsmooth.arms import Arm, Restarts

LEAST = 1.5e-154  # √v is at least this: where all gradients were 0, so is the buffer
SHARE = 0.1  # the certificate is that of the last tenth of a run, every step weighing the same
NEAR = 0.1  # starts are normal around the problem's own, this far from it, in units of F*/G
QUERY, ANCHOR, START, NOISE = 11, 12, 13, 14  # streams of random numbers
_CHUNK = 500  # steps whose noise is drawn at a time


class Row(NamedTuple):
    """One run."""

    arm: Arm
    lr: float
    seed: int


class Outcome(NamedTuple):
    """What came of the rows, (rows, horizons) each; `first` is (rows,)."""

    value: Tensor  # F where the run was read off
    gradient: Tensor  # ‖mean of ∇F(y_t)‖ over the last tenth
    spread: Tensor  # mean of ‖y_t − ȳ‖² over it
    first: Tensor  # the first t with F(x_{t+1}) <= goal, inf if there was none


def run(
    oracle: Oracle,
    rows: Sequence[Row],
    horizons: Sequence[int],
    *,
    near: float = NEAR,
    primed: bool = False,
    goal: float | None = None,
) -> Outcome:
    """Run all rows for as many steps as the last horizon has, and look at them at every one.

    Args:
        oracle: of the gradients; F, and the certificate, are of its problem.
        rows: the runs; those with a horizon are decayed to end at the last.
        horizons: numbers of steps, rising.
        near: how far from the problem's start the runs begin, in units of F*/G.
        primed: whether momentum's buffer begins where the first gradient would keep it, as torch's with dampening
            does; Adam and its relatives have their own way to begin.
        goal: a value of F to watch for.

    Example:
        >>> from o2nc import problems
        >>> from o2nc_experiments.nonsmooth.arms import REFERENCE
        >>> well = problems.Additive(problems.DoubleWell(2), noise=0.1)
        >>> found = run(well, [Row(REFERENCE, lr, seed) for lr in (0.01, 0.02) for seed in (0, 1)], [200])
        >>> found.value.shape, bool((found.value < 1.5).all())
        (torch.Size([4, 1]), True)
    """
    problem, steps = oracle.problem, horizons[-1]
    c = _Columns(rows, steps)
    x = _starts(oracle, c.seeds, near)[c.seed]
    m, delta, average, v = torch.zeros_like(x), torch.zeros_like(x), x.clone(), torch.zeros_like(x)
    handed, saved = x.clone(), {}
    sample = _sampler(oracle, c.seeds, c.seed)
    window = _Window()
    looks: list[tuple[Tensor, Tensor, Tensor]] = []
    first = x.new_full((len(rows),), math.inf)
    for t in range(1, steps + 1):
        for mask in c.leaves.get(t, ()):
            saved[id(mask)] = x.clone(), m.clone()
        if c.averaged:
            average.lerp_(x, c.gamma(t))
        y = x if c.lag is None else torch.addcmul(x, delta, c.lag(t), value=-1)
        y = y if c.kappa is None else torch.lerp(y, average, c.kappa(t))
        g = sample(y)
        horizon = next(h for h in horizons if h >= t)
        if t > (1 - SHARE) * horizon:
            window.add_(y, problem.gradient(y))
        if primed and t == 1:
            m = torch.where(c.adaptive, m, g / (1 - c.beta))
        m.mul_(c.beta).add_(g)
        d = torch.where(c.nesterov, torch.addcmul(g, m, c.beta), m) if c.any_nesterov else m
        if c.any_adaptive:
            v.mul_(c.beta2).addcmul_(g * (1 - c.beta2), g)
            a, b, root = c.weights[0](t), c.weights[1](t), (v / c.weights[2](t)).sqrt_().clamp_(min=LEAST)
            d = torch.where(c.adaptive, (a * g).addcmul_(m, b).div_(root.add_(c.eps)), d)
        torch.mul(d, -c.rate(t), out=delta)
        x = x + delta if c.s is None else torch.addcmul(x, delta, c.s(t))
        for mask, goes_back in c.ends.get(t, ()):
            handed = torch.where(mask, x, handed)
            if goes_back:
                x, m = (torch.where(mask, old, new) for old, new in zip(saved[id(mask)], (x, m), strict=True))
        if goal is not None:
            first = torch.where((problem.value(x) <= goal) & first.isinf(), float(t), first)
        if t == horizon:
            end = torch.where(c.averages, average, torch.where(c.restarts, handed, x))
            looks.append((problem.value(end), *window.close_()))
    value, gradient, spread = (torch.stack(part, dim=1) for part in zip(*looks, strict=True))
    return Outcome(value, gradient, spread, first)


class _Columns:
    """The numbers of the rows, and those that change from step to step: one column for every step."""

    def __init__(self, rows: Sequence[Row], steps: int) -> None:
        arms = [row.arm.prepared(steps) for row in rows]
        self.seeds = list(dict.fromkeys(row.seed for row in rows))
        self.seed = torch.tensor([self.seeds.index(row.seed) for row in rows])
        self._pairs = list(dict.fromkeys((arm, row.seed) for arm, row in zip(arms, rows, strict=True)))
        places = {pair: i for i, pair in enumerate(self._pairs)}
        self._place = torch.tensor([places[arm, row.seed] for arm, row in zip(arms, rows, strict=True)])
        self._steps = steps

        self.beta = _column([arm.momentum for arm in arms])
        self.nesterov = _column([arm.nesterov for arm in arms]) > 0
        self.adaptive = _column([arm.adaptive is not None for arm in arms]) > 0
        self.beta2 = _column([arm.adaptive.beta2(arm.momentum) if arm.adaptive else 0.0 for arm in arms])
        self.eps = _column([arm.adaptive.eps if arm.adaptive else 0.0 for arm in arms])
        self.averages = _column([arm.window is not None for arm in arms]) > 0
        self.restarts = _column([isinstance(arm.schedule, Restarts) for arm in arms]) > 0
        self.any_nesterov, self.any_adaptive = bool(self.nesterov.any()), bool(self.adaptive.any())
        self.averaged = bool(self.averages.any())

        lr, factor = _column([row.lr for row in rows]), self._table(_factors)
        self.rate: Callable[[int], Tensor] = lambda t: lr * factor(t)
        self.gamma = self._table(_gammas)
        self.weights = [self._table(partial(_weights, i)) for i in range(3)] if self.any_adaptive else []
        self.s = self._table(_scalars) if any(arm.law for arm in arms) else None
        self.lag = self._table(_lags) if any(arm.query for arm in arms) else None
        self.kappa = self._table(_kappas) if any(arm.anchor for arm in arms) else None

        # the rows whose decay has ended after a step, and those that leave a trunk before one
        self.ends: dict[int, list[tuple[Tensor, bool]]] = {}
        self.leaves: dict[int, list[Tensor]] = {}
        for schedule in dict.fromkeys(arm.schedule for arm in arms):
            if isinstance(schedule, Restarts):
                mask = _column([arm.schedule == schedule for arm in arms]) > 0
                for last, left in schedule.ends(steps).items():
                    self.ends.setdefault(last, []).append((mask, left is not None))
                    if left is not None:
                        self.leaves.setdefault(left, []).append(mask)

    def _table(self, make: Callable[[Arm, int, int], Tensor]) -> Callable[[int], Tensor]:
        table = torch.stack([make(arm, seed, self._steps) for arm, seed in self._pairs], dim=1)
        return lambda t: table[t - 1][self._place].unsqueeze(1)


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


@lru_cache(maxsize=512)
def _factors(arm: Arm, seed: int, steps: int) -> Tensor:
    return torch.tensor([arm.schedule.factor(t, steps) for t in range(1, steps + 1)], dtype=torch.float64)


def _weights(which: int, arm: Arm, seed: int, steps: int) -> Tensor:
    return _adaptive(arm, steps)[:, which]


@lru_cache(maxsize=64)
def _adaptive(arm: Arm, steps: int) -> Tensor:
    found = arm.adaptive.weights(steps, arm.momentum) if arm.adaptive else [(1.0, 1.0, 1.0)] * steps
    return torch.tensor(found, dtype=torch.float64)


def _gammas(arm: Arm, seed: int, steps: int) -> Tensor:
    t = torch.arange(1, steps + 1, dtype=torch.float64)
    if arm.window is None:
        return torch.ones_like(t)
    if isinstance(arm.window, float):
        return (1 - arm.window) / (1 - arm.window**t)
    return (arm.window.power + 1) / (t + arm.window.power)


@lru_cache(maxsize=512)
def _scalars(arm: Arm, seed: int, steps: int) -> Tensor:
    drawn = [1.0 if arm.law is None else arm.law.sample(seed, t + 1) for t in range(1, steps + 1)]
    return torch.tensor(drawn, dtype=torch.float64)


@lru_cache(maxsize=256)
def _uniforms(seed: int, steps: int, stream: int) -> Tensor:
    return torch.tensor([uniform(seed, t, stream=stream) for t in range(1, steps + 1)], dtype=torch.float64)


def _lags(arm: Arm, seed: int, steps: int) -> Tensor:
    return _uniforms(seed, steps, QUERY) * arm.query


def _kappas(arm: Arm, seed: int, steps: int) -> Tensor:
    low, high = arm.anchor or (0.0, 0.0)
    return low + (high - low) * _uniforms(seed, steps, ANCHOR)


def _starts(oracle: Oracle, seeds: Sequence[int], near: float) -> Tensor:
    """Return a start for every seed."""
    problem, start = oracle.problem, oracle.problem.start()
    scale = near * problem.gap / problem.lipschitz / math.sqrt(problem.dimension)
    drawn = [torch.randn(start.shape, generator=_generator(seed, START), dtype=start.dtype) for seed in seeds]
    return start + scale * torch.stack(drawn)


def _generator(seed: int, stream: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 100 + stream)


def _sampler(oracle: Oracle, seeds: Sequence[int], seed: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the stochastic gradients of all rows, step by step: the same noise for all rows of a seed."""
    problem = oracle.problem
    if not oracle.noise:
        return lambda y: problem.gradient(y)
    drawn = _noise(oracle, seeds)
    if isinstance(oracle, Subsampled):
        return lambda y: oracle.problem.term_gradient(y, next(drawn)[seed])
    return lambda y: problem.gradient(y) + next(drawn)[seed]


def _noise(oracle: Oracle, seeds: Sequence[int]) -> Iterator[Tensor]:
    """Yield what is random in the gradients of every seed, step by step: the indices of a batch, or an error."""
    generators = [_generator(seed, NOISE) for seed in seeds]
    d = oracle.problem.dimension
    while True:
        if isinstance(oracle, Subsampled):
            shape = (_CHUNK, oracle.batch)
            parts = [torch.randint(oracle.problem.terms, shape, generator=g) for g in generators]
        else:
            scale = oracle.noise / math.sqrt(d)
            parts = [scale * torch.randn(_CHUNK, d, generator=g, dtype=torch.float64) for g in generators]
        yield from torch.stack(parts, dim=1)


class _Window:
    """Mean gradient, mean point and spread of the steps since it was closed last."""

    def __init__(self) -> None:
        self._count = 0

    def add_(self, y: Tensor, gradient: Tensor) -> None:
        """Take in a point and its gradient."""
        if self._count == 0:
            self._point, self._gradient, self._squares = torch.zeros_like(y), torch.zeros_like(y), y.new_zeros(len(y))
        self._count += 1
        off = y - self._point
        self._point.add_(off, alpha=1 / self._count)
        self._gradient.lerp_(gradient, 1 / self._count)
        self._squares += (1 - 1 / self._count) * off.square().sum(1)

    def close_(self) -> tuple[Tensor, Tensor]:
        """Return ‖mean gradient‖ and spread, and begin anew."""
        spread, self._count = self._squares / self._count, 0
        return self._gradient.norm(dim=1), spread
