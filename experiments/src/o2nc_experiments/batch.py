"""Many runs at once: every row of a tensor is a run of its own, with its own plan, seed and scalars.

A step of the optimizers costs some 100 µs whatever the dimension, so a study of small problems over plans, seeds and
numbers of steps would take hours. Here the same step is made for all rows together, with the optimizers' arithmetic.
A test holds the rows to `ExponentiatedO2NC` and `OriginalO2NC`, run by run.

What is measured is what the theorems bound: the mean over n = 1, …, N by the law of the output (over the blocks for
Algorithm 1) of ‖Σ p_{n,t} ∇F(x_t)‖ + cV_n, with full gradients, while the learner sees stochastic ones.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from o2nc import Exponential, Law, Uniform
from o2nc.problems import Oracle
from o2nc.theory import Plan
from o2nc_experiments.pool import Progress, ignore

_REPORT = 1024  # progress is reported after so many steps
_TINY = torch.finfo(torch.float64).tiny ** 0.5  # the learner's floor
_LOOK = 8  # ‖∇F(x̄_n)‖ is looked at in every so many steps


class Algorithm2(NamedTuple):
    """A run of Algorithm 2 with `OGD`."""

    steps: int  # N
    lr: float  # η
    decay: float  # μ
    beta: float  # β
    c: float  # the price of spread
    seed: int  # of the scalars
    scaling: Law | None = Exponential()  # the law of s, or None for s = 1
    output: str = "uniform"  # the law of n that the means are taken with, as `o2nc.theory.output_weights` has it

    @classmethod
    def of(cls, plan: Plan, seed: int, scaling: Law | None = Exponential()) -> "Algorithm2":
        """Return the run that a plan asks for."""
        return cls(plan.steps, plan.lr, plan.decay, plan.beta, plan.c, seed, scaling, plan.output)


class Adaptive(NamedTuple):
    """A run of Algorithm 2 with `BallAdaGrad`."""

    steps: int  # N
    radius: float  # D
    beta: float  # β
    c: float  # the price of spread
    seed: int  # of the scalars
    scaling: Exponential | None = Exponential()  # Exp(1), or None for s = 1


class Algorithm1(NamedTuple):
    """A run of Algorithm 1 with `BallOGD`, restarted in every block."""

    steps: int  # N, a multiple of the period
    period: int  # T
    radius: float  # D
    lr: float  # η
    c: float  # the price of spread
    seed: int  # of the scalars


@dataclass(frozen=True)
class Outcome:
    """Means over a run, by the law that its output is drawn by."""

    gradient: float  # of ‖Σ p ∇F(x_t)‖
    spread: float  # of V
    certificate: float  # of ‖Σ p ∇F(x_t)‖ + cV, the quantity that the theorems bound
    at_average: float  # of ‖∇F(x̄_n)‖ over every 8th n (not kept by Algorithm 1: nan)
    value: float  # F at the last iterate
    first: float  # the first n at which x̄_n was good enough, inf if none was or nothing was asked
    # of ‖Σ p ∇F(x_t)‖ + cV over n = min(t + Geometric, N), t uniform: the output law P (Algorithm 1: nan)
    geometric: float


def run_algorithm_2(
    oracle: Oracle,
    runs: Sequence[Algorithm2] | Sequence[Adaptive],
    *,
    good: Callable[[Tensor], Tensor] | None = None,
    noise_seed: int = 0,
    progress: Progress = ignore,
) -> list[Outcome]:
    """Run Algorithm 2 with `OGD` or with `BallAdaGrad`, all runs at once.

    ``good`` says of rows of x̄_n whether they are good enough.

    Example:
        >>> from o2nc import problems, theory
        >>> well = problems.DoubleWell(dimension=2)
        >>> p = theory.plan(steps=100, c=1.0, gap=well.gap, lipschitz=well.lipschitz)
        >>> exact = problems.Additive(well, noise=0.0)
        >>> scaled, plain = run_algorithm_2(exact, [Algorithm2.of(p, 0), Algorithm2.of(p, 0, None)])
        >>> scaled.certificate < p.bound
        True
    """
    steps, beta = _read(runs, "steps"), _read(runs, "beta")
    state = _start(oracle, runs)
    state |= {"alpha": 1 - beta, "beta": beta, "weight": torch.zeros_like(beta)}
    if isinstance(runs[0], Adaptive):
        play_ = _play_ball_adagrad_
        state |= {"radius": _read(runs, "radius"), "squares": torch.zeros_like(beta)}
    else:  # Δ ← (Δ − lr·g)/shrink, h_t being constant and κ = 1
        play_, lr = _play_ogd_, _read(runs, "lr")
        shrink = 1 + lr * _read(runs, "decay") / beta + (1 / beta - 1)
        state |= {"keep": 1 / shrink, "gain": -lr / shrink}
    scalars = _Scalars([(run.scaling, run.seed) for run in runs])
    generator = torch.Generator().manual_seed(noise_seed)
    rows = _Rows([run.steps for run in runs], state)
    for t, r in rows.steps(progress):
        full = oracle.gradient(r["x"])
        r["weight"].mul_(r["beta"]).add_(1.0)
        _average_(r, full, 1 / r["weight"])
        found = torch.cat([_norm(r["gradient"]), r["spread"]], dim=1)
        r["sums"] += found
        r["geometric"].addcmul_(r["weight"] * r["alpha"], found)
        if t % _LOOK == 0:
            r["looks"] += _norm(oracle.gradient(r["average"]))
        if good is not None:
            r["first"].masked_fill_(good(r["average"]).unsqueeze(1) & r["first"].isinf(), t)
        g = oracle.sample(r["x"], generator) if oracle.noise else full
        play_(r, g)
        r["x"].addcmul_(r["delta"], scalars.at(t + 1, rows.running))
    final = rows.finished()
    # N·P(n) = αW_n for n < N, and W_N
    final["geometric"] += beta * final["weight"] * torch.cat([_norm(final["gradient"]), final["spread"]], dim=1)
    return _outcomes(oracle, runs, final, steps, steps // _LOOK)


def run_algorithm_1(
    oracle: Oracle, runs: Sequence[Algorithm1], *, noise_seed: int = 0, progress: Progress = ignore
) -> list[Outcome]:
    """Run Algorithm 1 with `BallOGD`, all runs at once; the averages are those of its blocks."""
    state = _start(oracle, runs)  # x is w_n, where the gradient is taken
    state |= {name: _read(runs, name) for name in ("period", "lr", "radius")}
    scalars = _Scalars([(Uniform(0, 1), run.seed) for run in runs])
    state["s"] = scalars.at(1, torch.arange(len(runs)))
    generator = torch.Generator().manual_seed(noise_seed)
    rows = _Rows([run.steps for run in runs], state)
    for t, r in rows.steps(progress):
        full = oracle.gradient(r["x"])
        place = (t - 1) % r["period"] + 1  # within the block
        _average_(r, full, 1 / place)
        ends = (place == r["period"]).to(full.dtype)
        r["sums"] += ends * torch.cat([_norm(r["gradient"]), r["spread"]], dim=1)
        g = oracle.sample(r["x"], generator) if oracle.noise else full
        r["x"].addcmul_(r["delta"], 1 - r["s"])
        r["delta"].addcmul_(g, -r["lr"]).mul_(1 - ends)
        _project_(r["delta"], r["radius"])
        r["s"] = scalars.at(t + 1, rows.running)
        r["x"].addcmul_(r["delta"], r["s"])
    blocks = _column([run.steps // run.period for run in runs])
    return _outcomes(oracle, runs, rows.finished(), blocks, torch.zeros_like(blocks))


def _play_ogd_(r: dict[str, Tensor], g: Tensor) -> None:
    r["delta"].mul_(r["keep"]).addcmul_(g, r["gain"])


def _play_ball_adagrad_(r: dict[str, Tensor], g: Tensor) -> None:
    # v ← β²v + ‖g‖², Δ ← Π_D(Δ − √2·D·g/√v)
    r["squares"].mul_(r["beta"] ** 2).add_(_square(g))
    r["delta"].addcmul_(g, -math.sqrt(2) * r["radius"] / r["squares"].sqrt().clamp(min=_TINY))
    _project_(r["delta"], r["radius"])


def _project_(delta: Tensor, radius: Tensor) -> None:
    # 0 stays 0: its factor, 1 at most, is never nan
    delta.mul_((radius / _square(delta).sqrt()).clamp(max=1.0))


def _start(oracle: Oracle, runs: Sequence[Algorithm2 | Adaptive | Algorithm1]) -> dict[str, Tensor]:
    """Return the state that both algorithms have, one row per run."""
    x = oracle.problem.start().to(torch.float64).expand(len(runs), -1).clone()
    return {
        "x": x,
        "delta": torch.zeros_like(x),
        "average": x.clone(),
        "gradient": torch.zeros_like(x),
        "spread": x.new_zeros(len(runs), 1),
        "sums": x.new_zeros(len(runs), 2),  # of ‖Σp∇F‖ and V
        "geometric": x.new_full((len(runs), 2), math.nan if isinstance(runs[0], Algorithm1) else 0.0),
        "looks": x.new_zeros(len(runs), 1),  # the sum of ‖∇F(x̄)‖
        "first": x.new_full((len(runs), 1), math.inf),
    }


def _average_(r: dict[str, Tensor], full: Tensor, gamma: Tensor) -> None:
    """Move x̄ and Σp∇F by one iterate that weighs γ, and V ← (1 − γ)(V + γ‖x − x̄‖²); in place."""
    square = _square(r["x"] - r["average"])
    r["gradient"].lerp_(full, gamma)
    r["average"].lerp_(r["x"], gamma)
    r["spread"].add_(square * gamma).mul_(1 - gamma)


def _outcomes(
    oracle: Oracle,
    runs: Sequence[Algorithm2 | Adaptive | Algorithm1],
    final: dict[str, Tensor],
    count: Tensor,
    looks: Tensor,
) -> list[Outcome]:
    """Return the means: ``count`` certificates and ``looks`` at x̄ were added up."""
    price, drawn = _read(runs, "c"), final["geometric"] / count
    asked = _column([getattr(run, "output", "uniform") == "geometric" for run in runs])
    means = torch.where(asked > 0, drawn, final["sums"] / count)
    certificates, under_p = (m[:, 0:1] + price * m[:, 1:2] for m in (means, drawn))
    values = oracle.problem.value(final["x"]).unsqueeze(-1)
    rows = torch.cat([means, certificates, final["looks"] / looks, values, final["first"], under_p], dim=1)
    return [Outcome(*row) for row in rows.tolist()]


class _Rows:
    """Runs of different lengths: those that still run are the first rows, and the others are put aside."""

    def __init__(self, lengths: Sequence[int], state: dict[str, Tensor]) -> None:
        self._lengths = sorted(lengths, reverse=True)
        self._order = torch.tensor(sorted(range(len(lengths)), key=lambda i: -lengths[i]))
        self._state = {key: value[self._order] for key, value in state.items()}
        self._done: list[dict[str, Tensor]] = []

    @property
    def running(self) -> Tensor:
        """The runs that the rows are, as indices."""
        return self._order[: len(self._lengths)]

    def steps(self, progress: Progress) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield t = 1, 2, … and the state of the rows that make step t."""
        last, reported = self._lengths[0], 0
        for t in range(1, last + 1):
            yield t, self._state
            if t == self._lengths[-1]:
                left = sum(length > t for length in self._lengths)
                self._done.insert(0, {key: value[left:] for key, value in self._state.items()})
                self._state = {key: value[:left].clone() for key, value in self._state.items()}
                self._lengths = self._lengths[:left]
            if t % _REPORT == 0 or t == last:
                progress(t - reported)
                reported = t

    def finished(self) -> dict[str, Tensor]:
        """Return the final states in the order of the runs."""
        back = self._order.argsort()
        return {key: torch.cat([part[key] for part in self._done])[back] for key in self._state}


class _Scalars:
    """s_t of every run, drawn once for each pair of law and seed."""

    def __init__(self, runs: Sequence[tuple[Law | None, int]]) -> None:
        self._pairs = list(dict.fromkeys(runs))
        self._pair = torch.tensor([self._pairs.index(run) for run in runs])

    def at(self, t: int, running: Tensor) -> Tensor:
        """Return s_t of these runs, as a column."""
        drawn = _column([1.0 if law is None else law.sample(seed, t) for law, seed in self._pairs])
        return drawn[self._pair[running]]


def _read(runs: Sequence[Algorithm2 | Adaptive | Algorithm1], name: str) -> Tensor:
    return _column([getattr(run, name) for run in runs])


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def _square(x: Tensor) -> Tensor:
    return (x * x).sum(-1, keepdim=True)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)
