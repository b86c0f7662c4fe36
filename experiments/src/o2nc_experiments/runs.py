"""Algorithm 2 on small problems, many runs at once: every row of a tensor is a run with its own numbers and seed.

A step of an optimizer costs some 100 µs whatever the dimension; `verify` and `rates` need millions of them. So the
step is written out here for a whole matrix of runs, and a test compares the rows with `o2nc.ExponentiatedO2NC`.
What is measured is what the theorems bound: the mean over n of ‖Σ_t p_{n,t} ∇F(x_t)‖ + cV_n, with full gradients,
while the learner sees stochastic ones.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor

from o2nc import Exponential, Law
from o2nc.problems import Oracle
from o2nc_experiments import kit

TINY = torch.finfo(torch.float64).tiny ** 0.5


class Setting(NamedTuple):
    """The hyperparameters of one run."""

    lr: float  # η of OGD; the radius D of BallAdaGrad
    beta: float  # β
    c: float = 1.0  # price of spread
    decay: float = 0.0  # μ of OGD
    law: Law | None = Exponential()  # of s, None for s = 1


class Means(NamedTuple):
    """What came of the runs, one number for each."""

    uniform: Tensor  # mean over n of ‖Σp∇F‖ + cV
    geometric: Tensor  # the same under the output law P(n) = (1 − β^n)/N for n < N


def column(values: Sequence[float]) -> Tensor:
    """Return numbers as a float64 column."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def norm(x: Tensor) -> Tensor:
    """Return the length of every row, as a column."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def project_(delta: Tensor, radius: Tensor) -> None:
    """Shorten every row to at most this length, in place."""
    delta.mul_((radius / norm(delta)).clamp(max=1.0))  # 0 stays 0: its factor is 1, never nan


def scalars(laws: Sequence[Law | None], seeds: Sequence[int], step: int) -> Tensor:
    """Return s of this step for every row, as a column; each pair of law and seed is drawn once."""
    pairs = list(zip(map(id, laws), seeds, strict=True))
    known = dict(zip(pairs, zip(laws, seeds, strict=True), strict=True))
    drawn = {pair: 1.0 if law is None else law.sample(seed, step) for pair, (law, seed) in known.items()}
    return column([drawn[pair] for pair in pairs])


def algorithm_2(
    oracle: Oracle,
    settings: Sequence[Setting],
    steps: int,
    seeds: Sequence[int],
    *,
    adaptive: bool = False,
) -> Means:
    """Run every setting with every seed, rows setting by setting; ``adaptive`` plays `BallAdaGrad` instead of `OGD`.

    The noise of all runs comes from one generator, seeded with the first seed.

    Example:
        >>> from o2nc import problems, theory
        >>> well = problems.DoubleWell(dimension=2)
        >>> p = theory.plan(steps=100, c=1.0, gap=well.gap, lipschitz=well.lipschitz)
        >>> runs = algorithm_2(problems.Additive(well, noise=0.0), [Setting(p.lr, p.beta)], 100, [0, 1])
        >>> bool((runs.geometric < p.bound).all())
        True
    """
    rows = [(setting, seed) for setting in settings for seed in seeds]
    *numbers, laws = zip(*(setting for setting, _ in rows), strict=True)
    lr, beta, c, decay = map(column, numbers)
    drawn = [seed for _, seed in rows]
    shrink = 1 / beta + lr * decay / beta  # OGD with κ = 1: Δ ← (Δ − lr·g)/shrink
    x = oracle.problem.start().to(torch.float64).expand(len(rows), -1).clone()
    delta, average, mean = torch.zeros_like(x), x.clone(), torch.zeros_like(x)
    weight, squares, spread, uniform, geometric = (torch.zeros_like(beta) for _ in range(5))
    generator = torch.Generator().manual_seed(seeds[0])
    for t in range(1, steps + 1):
        full = oracle.gradient(x)
        weight = beta * weight + 1
        gamma = 1 / weight
        spread = (1 - gamma) * (spread + gamma * norm(x - average).square())
        average.lerp_(x, gamma)
        mean.lerp_(full, gamma)
        certificate = norm(mean) + c * spread
        uniform += certificate
        geometric += weight * certificate * (1 - beta if t < steps else 1.0)  # N·P(n) = αW_n, and W_N at the end
        g = oracle.sample(x, generator) if oracle.noise else full
        if adaptive:  # v ← β²v + ‖g‖², Δ ← Π_D(Δ − √2·D·g/√v)
            squares = beta**2 * squares + norm(g).square()
            delta.addcmul_(g, -math.sqrt(2) * lr / squares.sqrt().clamp(min=TINY))
            project_(delta, lr)
        else:
            delta.addcmul_(g, -lr).div_(shrink)
        x.addcmul_(delta, scalars(laws, drawn, t + 1))
    return Means(uniform.squeeze(1) / steps, geometric.squeeze(1) / steps)


def in_processes(
    work: Mapping[str, tuple[Any, ...]], workers: int, terminal: kit.Terminal, keep: Callable[[str, Any], object]
) -> None:
    """Call (function, *arguments) of every name in processes, and ``keep(name, result)`` as each is finished."""
    with (
        ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool,
        terminal.progress(len(work), f"{len(work)} pieces of work") as advance,
    ):
        jobs = {pool.submit(_alone, *job): name for name, job in work.items()}
        for job in as_completed(jobs):
            keep(jobs[job], job.result())
            advance(1, "")


def _alone(function: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(1)
    return function(*arguments)
