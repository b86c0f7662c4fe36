"""Many runs at once: every row of a tensor is a run of its own, with its own plan, seed and scalars.

A step of the optimizers costs some 100 µs whatever the dimension, so a study of small problems over plans, seeds and
numbers of steps would take hours. Here the same step is made for all rows together, out of the optimizers' own parts:
the learner's coefficients (`o2nc.learners.ogd`), the scalars (`o2nc.scaling`), the averages (`o2nc.averages`), the
projection (`o2nc.vector`). A test holds the rows to `ExponentiatedO2NC` and `OriginalO2NC`, run by run.

What is measured is what the theorems bound: the mean over n = 1, …, N (over the blocks for Algorithm 1) of
‖Σ p_{n,t} ∇F(x_t)‖ + cV_n, with full gradients, while the learner sees stochastic ones.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from o2nc.averages import Coupling, Iterate, move_, widen_
from o2nc.learners.ogd import coefficients
from o2nc.problems import Oracle
from o2nc.scaling import Exponential, Law, Uniform
from o2nc.theory import Plan
from o2nc.vector import shrinkage

Progress = Callable[[int], object]

_CHUNK = 1024  # scalars s are drawn for so many steps at a time
_LOOK = 8  # ‖∇F(x̄_n)‖ is looked at in every so many steps


class Trial(NamedTuple):
    """A run of Algorithm 2 with `OGD`.

    Attributes:
        steps: N.
        lr: η.
        decay: μ.
        beta: β.
        c: the price of spread.
        seed: of the scalars.
        scaling: Exp(1), or None for s = 1.
    """

    steps: int
    lr: float
    decay: float
    beta: float
    c: float
    seed: int
    scaling: Exponential | None = Exponential()

    @classmethod
    def of(cls, plan: Plan, seed: int, scaling: Exponential | None = Exponential()) -> "Trial":
        """Return the run that a plan asks for."""
        return cls(plan.steps, plan.lr, plan.decay, plan.beta, plan.c, seed, scaling)


class BlockTrial(NamedTuple):
    """A run of Algorithm 1 with `BallOGD`, restarted in every block.

    Attributes:
        steps: N, a multiple of the period.
        period: T.
        radius: D.
        lr: η.
        c: the price of spread.
        seed: of the scalars.
    """

    steps: int
    period: int
    radius: float
    lr: float
    c: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """Means over a run.

    Attributes:
        gradient: of ‖Σ p ∇F(x_t)‖.
        spread: of V.
        certificate: of ‖Σ p ∇F(x_t)‖ + cV, the quantity that the theorems bound.
        at_average: of ‖∇F(x̄_n)‖ over every 8th n (not kept by Algorithm 1: nan).
        value: F at the last iterate.
        first: the first n at which x̄_n was good enough, inf if none was or nothing was asked.
    """

    gradient: float
    spread: float
    certificate: float
    at_average: float
    value: float
    first: float = math.inf


def exponentiated(
    oracle: Oracle,
    trials: Sequence[Trial],
    *,
    good: Callable[[Tensor], Tensor] | None = None,
    noise_seed: int = 0,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run Algorithm 2 with `OGD` for every trial.

    Args:
        oracle: the stochastic gradients, and the problem.
        trials: one per row, with any numbers of steps.
        good: says of points x̄_n, row by row, whether they are good enough; for ``Outcome.first``.
        noise_seed: of the oracle.
        progress: called now and then with the number of steps made since.

    Example:
        >>> from o2nc import problems, theory
        >>> well = problems.DoubleWell(dimension=2)
        >>> p = theory.plan(steps=100, c=1.0, gap=well.gap, lipschitz=well.lipschitz)
        >>> scaled, plain = exponentiated(problems.Additive(well, noise=0.0), [Trial.of(p, 0), Trial.of(p, 0, None)])
        >>> scaled.certificate < p.bound
        True
    """
    beta, c = _column([t.beta for t in trials]), _column([t.c for t in trials])
    lr, decay = _column([t.lr for t in trials]), _column([t.decay for t in trials])
    keep, gain = coefficients(lr, decay, beta, 1 / beta - 1)
    x = _starts(oracle, len(trials))
    run = {
        "x": x,
        "delta": torch.zeros_like(x),
        "average": x.clone(),
        "gradient": torch.zeros_like(x),
        "spread": torch.zeros_like(c),
        "weight": torch.zeros_like(c),
        "beta": beta,
        "keep": keep,
        "gain": gain,
        "sums": x.new_zeros(len(trials), 2),
        "looks": torch.zeros_like(c),
        "first": torch.full_like(c, math.inf),
    }
    scalars = _Scalars([(t.scaling, t.seed) for t in trials])
    generator = torch.Generator().manual_seed(noise_seed)
    order = _Order([t.steps for t in trials], run)
    for t, r in order.steps(progress):
        full = oracle.gradient(r["x"])
        r["weight"].mul_(r["beta"]).add_(1.0)
        gamma = 1 / r["weight"]
        square, _ = move_(Iterate(r["x"], full, None, r["average"], r["gradient"]), gamma, Coupling(), _by_row)
        widen_(r["spread"], square, gamma)
        r["sums"][:, 0:1] += _norm(r["gradient"])
        r["sums"][:, 1:2] += r["spread"]
        if t % _LOOK == 0:
            r["looks"] += _norm(oracle.gradient(r["average"]))
        if good is not None:
            r["first"].masked_fill_(good(r["average"]).unsqueeze(1) & r["first"].isinf(), t)
        g = oracle.sample(r["x"], generator) if oracle.noise else full
        r["delta"].mul_(r["keep"]).addcmul_(g, r["gain"])
        r["x"].addcmul_(r["delta"], scalars.at(t + 1, order.live))
    final = order.finished()
    steps = _column([t.steps for t in trials])
    means = final["sums"] / steps
    certificates = means[:, 0:1] + c * means[:, 1:2]
    looks = final["looks"] / (steps // _LOOK)
    values = oracle.problem.value(final["x"]).unsqueeze(-1)
    rows = torch.cat([means, certificates, looks, values, final["first"]], dim=1)
    return [Outcome(*row) for row in rows.tolist()]


def original(
    oracle: Oracle, trials: Sequence[BlockTrial], *, noise_seed: int = 0, progress: Progress | None = None
) -> list[Outcome]:
    """Run Algorithm 1 with `BallOGD` for every trial; the averages are those of its blocks.

    Args:
        oracle: the stochastic gradients, and the problem.
        trials: one per row.
        noise_seed: of the oracle.
        progress: called now and then with the number of steps made since.
    """
    x = _starts(oracle, len(trials))
    c = _column([t.c for t in trials])
    run = {
        "x": x,  # w_n, where the gradient is taken
        "delta": torch.zeros_like(x),
        "average": x.clone(),
        "gradient": torch.zeros_like(x),
        "spread": torch.zeros_like(c),
        "period": _column([t.period for t in trials]),
        "lr": _column([t.lr for t in trials]),
        "radius": _column([t.radius for t in trials]),
        "sums": x.new_zeros(len(trials), 2),
    }
    scalars = _Scalars([(Uniform(0, 1), t.seed) for t in trials])
    generator = torch.Generator().manual_seed(noise_seed)
    order = _Order([t.steps for t in trials], run)
    for t, r in order.steps(progress):
        full = oracle.gradient(r["x"])
        place = (t - 1) % r["period"] + 1  # within the block
        gamma = 1 / place
        square, _ = move_(Iterate(r["x"], full, None, r["average"], r["gradient"]), gamma, Coupling(), _by_row)
        widen_(r["spread"], square, gamma)
        ends = (place == r["period"]).to(x.dtype)
        r["sums"][:, 0:1] += ends * _norm(r["gradient"])
        r["sums"][:, 1:2] += ends * r["spread"]
        g = oracle.sample(r["x"], generator) if oracle.noise else full
        r["x"].addcmul_(r["delta"], 1 - scalars.at(t, order.live))
        r["delta"].addcmul_(g, -r["lr"]).mul_(1 - ends)
        # 0 stays 0: its factor, 1 at most, is never nan
        r["delta"].mul_(shrinkage(_by_row(r["delta"], r["delta"]), r["radius"]))
        r["x"].addcmul_(r["delta"], scalars.at(t + 1, order.live))
    final = order.finished()
    means = final["sums"] / _column([t.steps // t.period for t in trials])
    certificates = means[:, 0:1] + c * means[:, 1:2]
    values = oracle.problem.value(final["x"]).unsqueeze(-1)
    rows = torch.cat([means, certificates, torch.full_like(c, torch.nan), values], dim=1)
    return [Outcome(*row) for row in rows.tolist()]


class _Order:
    """Runs of different lengths: the rows that still run are the first, and the others are put aside."""

    def __init__(self, lengths: Sequence[int], run: dict[str, Tensor]) -> None:
        self._lengths = sorted(lengths, reverse=True)
        self._order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        self._run = {key: value[self._order] for key, value in run.items()}
        self._done: list[dict[str, Tensor]] = []
        self.live = self._order

    def steps(self, progress: Progress | None) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield t = 1, 2, … and the state of the rows that make step t."""
        last, reported = self._lengths[0], 0
        for t in range(1, last + 1):
            yield t, self._run
            if t == self._lengths[-1]:
                self._put_aside(t)
            if progress is not None and (t % _CHUNK == 0 or t == last):
                progress(t - reported)
                reported = t

    def _put_aside(self, t: int) -> None:
        left = sum(length > t for length in self._lengths)
        self._done.insert(0, {key: value[left:] for key, value in self._run.items()})
        self._run = {key: value[:left].clone() for key, value in self._run.items()}
        self._lengths, self.live = self._lengths[:left], self.live[:left]

    def finished(self) -> dict[str, Tensor]:
        """Return the final states in the order of the trials."""
        back = torch.empty(len(self._order), dtype=torch.long)
        back[torch.tensor(self._order)] = torch.arange(len(self._order))
        return {key: torch.cat([part[key] for part in self._done])[back] for key in self._run}


class _Scalars:
    """s_t of every row, drawn once for each pair of law and seed."""

    def __init__(self, rows: Sequence[tuple[Law | None, int]]) -> None:
        self._pairs = list(dict.fromkeys(rows))
        self._column = torch.tensor([self._pairs.index(row) for row in rows])
        self._live: tuple[Sequence[int], Tensor] = ((), self._column)
        self._chunks: dict[int, Tensor] = {}

    def at(self, t: int, live: Sequence[int]) -> Tensor:
        """Return s_t of the live rows, as a column."""
        k, i = divmod(t, _CHUNK)
        if k not in self._chunks:
            steps = range(max(k * _CHUNK, 1), (k + 1) * _CHUNK)
            drawn = [[1.0 if law is None else law.sample(seed, n) for law, seed in self._pairs] for n in steps]
            chunk = torch.tensor(drawn, dtype=torch.float64)
            self._chunks = {k - 1: self._chunks.get(k - 1, chunk), k: chunk}
        if self._live[0] is not live:
            self._live = (live, self._column[torch.tensor(live)])
        row = i - 1 if k == 0 else i
        return self._chunks[k][row].index_select(0, self._live[1]).unsqueeze(1)


def _starts(oracle: Oracle, rows: int) -> Tensor:
    return oracle.problem.start().to(torch.float64).expand(rows, -1).clone()


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def _by_row(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1, keepdim=True)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)
