"""``o2nc paper nonsmooth``: what a random scalar s costs and buys on 13 non-smooth problems and on the traps.

    o2nc paper nonsmooth              # a quarter of an hour
    o2nc paper nonsmooth --quick      # two problems and up to 400 steps

Every arm's learning rate is chosen on seeds of its own and reported on others; F is compared with that of plain
momentum (SGDM) with a linear decay, by the geometric mean over the problems. Many runs are trained at once: every row
of a tensor is an arm with a learning rate and a seed of its own, and a test compares rows with the library's
optimizers, run by run.

Result (docs/randomness.md; torch 2.13 on a CPU, 10 seeds, 8 others to tune, ± std of the logarithm over the seeds):
after 2,000 steps F is 3.42 ± 0.39 of SGDM's with s ~ Exp(1), 1.06 ± 0.20 with Gamma(16), 0.47 ± 0.65 with Nesterov's
lead and Gamma(16); of 210 runs on the traps 39 end above their start without scaling, none with Exp(1) or Gamma(16).

The certificate at a learning rate of its own and 4,000 steps ran at commit ea07a84; runs without a horizon, AdamW,
how long a trap holds, and ratios problem by problem at 48cebb2; random queries, anchors, restarts, other laws,
schedule-free AdamW, and ``--others`` at cf6f9b7. docs/randomness.md and docs/no-schedule.md keep their tables.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor

from o2nc import Exponential, Gamma, Law, Uniform, problems
from o2nc.problems import Additive, Climber, Oracle, Problem, Resonance, Subsampled
from o2nc_experiments import kit
from o2nc_experiments.runs import column, in_processes

HORIZONS = (500, 2000)
TUNING_SEED, TUNING_SEEDS = 1000, 8  # the first, counted from --seed, and how many
COARSE, WIDENINGS = range(-10, 7, 2), 5  # exponents of 2 of the learning rate, and how often the grid may grow
FLOOR = {"F": 1e-12, "certificate": 1e-3}  # in units of F* and G: less counts as that, since kinks may cancel
TRAP_STEPS, TRAP_SEEDS, FACTORS = 5000, 3, [2 ** (k / 2) for k in range(-3, 4)]
SHARE = 0.1  # the certificate is that of the last tenth of a run, every step weighing the same
NEAR = 0.1  # runs begin this far from the problem's start, in units of F*/G


@dataclass(frozen=True)
class Arm:
    """One way to train: m ← βm + g, Δ = −lr·φ_t·m, x ← x + sΔ."""

    law: Law | None = None  # of s
    nesterov: bool = False  # Δ = −lr·φ_t·(g + βm)
    decays: bool = True  # φ falls linearly to 0; else it is 1
    momentum: float = 0.9


LAWS: dict[str, Law] = {
    "Exp(1)": Exponential(),
    "U(0, 2)": Uniform(0, 2),
    "U(½, 3/2)": Uniform(0.5, 1.5),
    "U(¾, 5/4)": Uniform(0.75, 1.25),
    "U(0.9, 1.1)": Uniform(0.9, 1.1),
    **{f"Gamma({k})": Gamma(float(k)) for k in (2, 4, 16, 64)},
}
REFERENCE = "SGDM"
ARMS = {
    REFERENCE: Arm(),
    **{name: Arm(law) for name, law in LAWS.items()},
    "Nesterov": Arm(nesterov=True),
    **{f"Nesterov, {name}": Arm(LAWS[name], nesterov=True) for name in (*list(LAWS)[:4], "Gamma(16)")},
}

# ---- the problems: inf F = 0 in all of them, and two that o2nc.problems does not have


@dataclass(frozen=True)
class Fitted(Problem):
    """F(x) = mean |predict(x) − predict(x*)|, Lipschitz on balls only: ``lipschitz`` is ‖∇F(start)‖, a size."""

    predict: Callable[[Tensor], Tensor]
    solution: Tensor
    origin: Tensor

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return len(self.origin)

    @cached_property
    def lipschitz(self) -> float:
        """‖∇F(start)‖."""
        return self.gradient(self.origin).norm().item()

    def start(self) -> Tensor:
        """Return a random point of the law of x*."""
        return self.origin.clone()

    def _value(self, x: Tensor) -> Tensor:
        return (self.predict(x) - self.predict(self.solution)).abs().mean(-1)


def factorisation(size: int, rank: int) -> Fitted:
    """Return F(U, V) = mean |UVᵀ − U*V*ᵀ| over the entries of n × n matrices of rank r."""
    drawn = torch.randn(2, 2 * size * rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def product(x: Tensor) -> Tensor:
        u, v = x.unflatten(-1, (2, size, rank)).unbind(-3)
        return (u @ v.mT).flatten(-2)

    return Fitted(product, *(drawn / rank**0.25))


def deconvolution(size: int, samples: int) -> Fitted:
    """Return F(u, v) = mean |⟨a_i, u⟩⟨b_i, v⟩ − ⟨a_i, u*⟩⟨b_i, v*⟩|, normal a_i and b_i, unit vectors u*, v*."""
    drawn = torch.randn(samples + 2, 2, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = drawn[:-2].unbind(1)
    units = drawn[-2:] / drawn[-2:].norm(dim=-1, keepdim=True)
    return Fitted(lambda x: (x[..., :size] @ a.T) * (x[..., size:] @ b.T), *units.flatten(1))


PROBLEMS: dict[str, Oracle] = {
    "double well, d = 10": Additive(problems.DoubleWell(10), noise=0.0),
    "double well, d = 50, noise": Additive(problems.DoubleWell(50), noise=1.0),
    "kinks, d = 10, noise": Additive(problems.MultiKink(10), noise=1.0),
    "max-affine, d = 20": Additive(problems.MaxAffine(20, pieces=100), noise=0.0),
    "max-affine, d = 40, noise": Additive(problems.MaxAffine(40, pieces=100, seed=1), noise=0.5),
    "Chebyshev–Rosenbrock, d = 4": Additive(problems.ChebyshevRosenbrock(4), noise=0.0),
    "Chebyshev–Rosenbrock, d = 3, noise": Additive(problems.ChebyshevRosenbrock(3), noise=1.0),
    "phase retrieval, d = 10": Additive(problems.PhaseRetrieval(10, samples=60), noise=0.0),
    "phase retrieval, d = 30, batches": Subsampled(problems.PhaseRetrieval(30, samples=300, seed=1), batch=8),
    "ReLU net, d = 16": Additive(problems.ReluRegression(3, hidden=4, samples=40), noise=0.0),
    "ReLU net, d = 24, noise": Additive(problems.ReluRegression(5, hidden=4, samples=50, seed=1), noise=0.5),
    "ℓ1 factorisation, d = 40, noise": Additive(factorisation(10, rank=2), noise=0.1),
    "blind deconvolution, d = 20": Additive(deconvolution(10, samples=80), noise=0.0),
}
# by name: the trap, and whether the momentum buffer begins with the first gradient (and not with 0)
TRAPS: dict[str, tuple[Resonance | Climber, bool]] = {
    f"{name}, d = {d}": (make(d), primed)
    for name, make, primed in (
        ("T0", Resonance.buffer, True),
        ("Z0", Resonance.zero, False),
        ("Z0, momentum 0.5", partial(Resonance.zero, momentum=0.5), False),
        ("L1", Resonance.locked, True),
        ("climber", Climber, True),
    )
    for d in (1, 10)
}


# ---- the runs


class Row(NamedTuple):
    """One run; rows of one seed see the same noise and begin at the same point."""

    arm: Arm
    lr: float
    seed: int


class Outcome(NamedTuple):
    """What came of the rows, one number for each."""

    value: Tensor  # F at the end
    gradient: Tensor  # ‖mean of ∇F(x_t)‖ over the last tenth
    spread: Tensor  # mean of ‖x_t − their mean‖² over it


@lru_cache(maxsize=512)
def _scalars(law: Any, seed: int, steps: int) -> Tensor:
    drawn = [1.0 if law is None else law.sample(seed, t + 1) for t in range(1, steps + 1)]
    return torch.tensor(drawn, dtype=torch.float64)


def _noise(oracle: Oracle, seeds: Sequence[int]) -> Iterator[Tensor]:
    """Yield what is random in the gradients of every seed, step by step: the indices of a batch, or an error."""
    generators = [torch.Generator().manual_seed(seed * 100 + 14) for seed in seeds]
    d = oracle.problem.dimension
    while True:
        if isinstance(oracle, Subsampled):
            parts = [torch.randint(oracle.problem.samples, (500, oracle.batch), generator=g) for g in generators]
        else:
            drawn = [torch.randn(500, d, generator=g, dtype=torch.float64) for g in generators]
            parts = [oracle.noise / math.sqrt(d) * part for part in drawn]
        yield from torch.stack(parts, dim=1)


def run(
    oracle: Oracle,
    rows: Sequence[Row],
    steps: int,
    *,
    near: float = NEAR,
    primed: bool = False,
) -> Outcome:
    """Run all rows; with ``primed`` the momentum buffer begins with the first gradient, and not with 0.

    Example:
        >>> from o2nc import problems
        >>> well = problems.Additive(problems.DoubleWell(2), noise=0.1)
        >>> found = run(well, [Row(Arm(), lr, seed) for lr in (0.01, 0.02) for seed in (0, 1)], 200)
        >>> found.value.shape, bool((found.value < 1.5).all())
        (torch.Size([4]), True)
    """
    problem, arms, seeds = oracle.problem, [row.arm for row in rows], list(dict.fromkeys(row.seed for row in rows))
    at = torch.tensor([seeds.index(row.seed) for row in rows])
    lr, beta = column([row.lr for row in rows]), column([arm.momentum for arm in arms])
    nesterov, decays = column([arm.nesterov for arm in arms]) > 0, column([arm.decays for arm in arms])
    laws: list[Any] = [arm.law for arm in arms]
    s = torch.stack([_scalars(law, row.seed, steps) for law, row in zip(laws, rows, strict=True)], dim=1)
    scale = near * problem.gap / problem.lipschitz / math.sqrt(problem.dimension)
    drawn = [
        torch.randn(problem.dimension, generator=torch.Generator().manual_seed(seed * 100 + 13), dtype=torch.float64)
        for seed in seeds
    ]
    x = (problem.start() + scale * torch.stack(drawn))[at]
    m, late, noise = torch.zeros_like(x), [], _noise(oracle, seeds)
    for t in range(1, steps + 1):
        full = problem.gradient(x)
        if isinstance(oracle, Subsampled):
            g = oracle.problem.term_gradient(x, next(noise)[at])
        else:
            g = full + next(noise)[at] if oracle.noise else full
        if t > (1 - SHARE) * steps:
            late.append((x, full))
        m = beta * (g / (1 - beta) if primed and t == 1 else m) + g
        d = torch.where(nesterov, torch.addcmul(g, m, beta), m)
        x = torch.addcmul(x, -lr * ((steps - decays * (t - 1)) / steps) * d, s[t - 1].unsqueeze(1))
    points, gradients = (torch.stack(part) for part in zip(*late, strict=True))
    spread = (points - points.mean(0)).square().sum(-1).mean(0)
    return Outcome(problem.value(x), gradients.mean(0).norm(dim=1), spread)


# ---- tuning on some seeds, measuring on others


class Result(NamedTuple):
    """An arm on a problem after so many steps, by seed."""

    problem: str
    arm: str
    horizon: int
    lr: float
    values: list[float | None]  # F − inf F
    certificates: list[float | None]  # ‖ḡ‖ + cV of the last tenth


def learning_rate(oracle: Oracle, arm: Arm, exponent: float) -> float:
    """Return 2^k in units that suit the problem: lr/(1 − β) in F*/G²."""
    problem = oracle.problem
    return 2**exponent * (problem.gap / problem.lipschitz) / problem.lipschitz * (1 - arm.momentum)


def measure(
    oracle: Oracle, pairs: Sequence[tuple[str, float]], steps: int, seeds: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return F and certificate (pairs, seeds) of arms with exponents; c = G³/F*²."""
    rows = [Row(ARMS[name], learning_rate(oracle, ARMS[name], k), seed) for name, k in pairs for seed in seeds]
    found, c = run(oracle, rows, steps), oracle.problem.lipschitz**3 / oracle.problem.gap**2
    return found.value.view(len(pairs), -1), (found.gradient + c * found.spread).view(len(pairs), -1)


def compare(name: str, arms: Sequence[str], steps: int, tuning: Sequence[int], seeds: Sequence[int]) -> list[Result]:
    """Tune arms on one problem and measure them: a grid of factor 4 that is widened, then refined to 2 and √2."""
    oracle, scores = PROBLEMS[name], {arm: dict[float, float]() for arm in arms}

    def attempt(pairs: Sequence[tuple[str, float]]) -> None:
        if new := [(arm, k) for arm, k in dict.fromkeys(pairs) if k not in scores[arm]]:
            values, _ = measure(oracle, new, steps, tuning)
            means = torch.where(values.isnan(), math.inf, values).clamp(min=1e-300).log().mean(1).tolist()
            for (arm, k), score in zip(new, means, strict=True):
                scores[arm][k] = score

    def best(arm: str) -> float:
        return min(scores[arm], key=lambda k: scores[arm][k])

    attempt([(arm, k) for arm in arms for k in COARSE])
    for _ in range(WIDENINGS):
        edges = {arm: {min(scores[arm]): -2.0, max(scores[arm]): 2.0} for arm in arms}
        attempt([(arm, best(arm) + edges[arm][best(arm)]) for arm in arms if best(arm) in edges[arm]])
    for step in (1.0, 0.5):
        attempt([(arm, best(arm) + sign * step) for arm in arms for sign in (-1, 1)])
    chosen = [(arm, best(arm)) for arm in arms]
    columns = [part.tolist() for part in measure(oracle, chosen, steps, seeds)]
    return [
        Result(name, arm, steps, float(f"{learning_rate(oracle, ARMS[arm], k):.6g}"), *map(_short, found))
        for (arm, k), *found in zip(chosen, *columns, strict=True)
    ]


def _short(values: Sequence[float]) -> list[float | None]:
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]


# ---- the traps


class Trapped(NamedTuple):
    """An arm on a trap: of all learning rates and seeds, how many end above their start, how many are held."""

    trap: str
    arm: str
    runs: int
    above: int  # with a linear decay, F(end) > F(start)
    held: int  # at a constant learning rate, the mean gradient of the last tenth is half of the trap's slope or more
    ratio: float  # F(end)/F(start) with a linear decay, the geometric mean over the runs


def trap_rows(problem: Resonance | Climber, arm: Arm, factors: Sequence[float], seeds: Sequence[int]) -> list[Row]:
    """Return runs at multiples of the learning rate that is trapped; our buffer is a sum, the traps' a mean."""
    unit = problem.lr * (1 - problem.momentum)
    return [Row(replace(arm, momentum=problem.momentum), unit * factor, seed) for factor in factors for seed in seeds]


def count_trapped(name: str, seeds: Sequence[int], steps: int) -> list[Trapped]:
    """Run all arms on one trap, decayed and at a constant learning rate."""
    problem, primed = TRAPS[name]
    start = problem.value(problem.start()).item()
    slope = problem.slope - problem.valley
    decayed, constant = (
        run(
            Additive(problem, 0.0),
            [row for arm in ARMS.values() for row in trap_rows(problem, replace(arm, decays=decays), FACTORS, seeds)],
            steps,
            near=0.0,
            primed=primed,
        )
        for decays in (True, False)
    )
    ends, gradients = decayed.value.view(len(ARMS), -1), constant.gradient.view(len(ARMS), -1)
    ratios = (ends / start).clamp(min=1e-300).log().mean(1).exp().tolist()
    above, held = (ends > start + 1e-9).sum(1).tolist(), (gradients >= slope / 2).sum(1).tolist()
    runs = ends.shape[1]
    return [Trapped(name, arm, runs, *found) for arm, *found in zip(ARMS, above, held, ratios, strict=True)]


# ---- tables and pictures: logarithms of ratios to SGDM, seed by seed


class Ratio(NamedTuple):
    """A geometric mean over the problems, relative to SGDM with a linear decay."""

    log: float  # the mean of its logarithm over the seeds
    deviation: float  # and the standard deviation

    def __str__(self) -> str:
        if math.isinf(self.log):
            return "∞"
        return f"{math.exp(self.log):.{2 if self.log < math.log(100) else 0}f} ± {self.deviation:.2f}"


def ratio(found: Sequence[Result], arm: str, horizon: int, what: str = "F") -> Ratio:
    """Return F or certificate of an arm against SGDM's, both at the lr that was tuned for F."""
    columns: dict[str, list[list[float]]] = {arm: [], REFERENCE: []}
    for r in found:
        if r.arm in columns and r.horizon == horizon:
            of = PROBLEMS[r.problem].problem
            least = FLOOR[what] * (of.gap if what == "F" else of.lipschitz)
            values = r.values if what == "F" else r.certificates
            columns[r.arm].append([math.log(max(v, least)) if v is not None else math.inf for v in values])
    means = [[fmean(seed) for seed in zip(*columns[name], strict=True)] for name in (arm, REFERENCE)]
    logs = [a - b for a, b in zip(*means, strict=True)]
    return Ratio(fmean(logs), stdev(logs) if len(logs) > 1 and all(map(math.isfinite, logs)) else 0.0)


def costs_table(found: Sequence[Result], horizons: Sequence[int]) -> kit.Table:
    """Return what randomness costs with a linear decay."""
    rows = []
    for name, arm in ARMS.items():
        law: Any = arm.law
        about = [kit.NONE] * 2 if law is None else [f"{math.sqrt(law.second_moment - 1):.2f}", f"{law.price:.3g}"]
        cells = [ratio(found, name, h) for h in horizons]
        cells.append(ratio(found, name, horizons[-1], "certificate"))
        rows.append([name, *about, *map(str, cells)])
    head = ["", "std of s", "L", *(f"F, {h:,} steps" for h in horizons), "certificate"]
    notes = (
        "F, certificate: geometric mean over the problems against SGDM, both with a linear decay and lr tuned for F; "
        f"± std of its log; certificates below {FLOOR['certificate']:g}·G count as that"
    )
    return kit.Table(head, rows, "What randomness costs", notes)


def traps_table(found: Sequence[Trapped], steps: int) -> kit.Table:
    """Return how many runs end above their start and how many are held, arm by arm."""
    kinds, rows = ("T0", "Z0", "L1", "climber"), []
    for arm in dict.fromkeys(t.arm for t in found):
        own = [t for t in found if t.arm == arm]
        ratios = [f"{t.ratio:.2g}" for t in own if t.trap.startswith("climber")]
        groups = [[t for t in own if t.trap.startswith(kind)] for kind in kinds]
        held = [
            f"{sum(t.held for t in part)} of {sum(t.runs for t in part)}" if part else kit.NONE for part in groups
        ]
        rows.append([arm, f"{sum(t.above for t in own)} of {sum(t.runs for t in own)}", *ratios, *held])
    head = ["", "ends above its start", "F, d = 1", "F, d = 10", *(f"held: {kind}" for kind in kinds)]
    notes = (
        f"{steps:,} steps, seven learning rates around the trapped one. Above, F(end)/F(start) of the climber: with "
        "a linear decay. Held: at a constant lr the mean gradient of the last tenth is half of the slope or more"
    )
    return kit.Table(head, rows, "The traps", notes)


def main(
    out: Path = Path("o2nc-nonsmooth"),
    seed: int = 0,
    seeds: int = 10,
    quick: bool = False,
    workers: int = 2,
    quiet: bool = False,
) -> None:
    """Tune and measure all arms on all problems, and count the traps.

    Args:
        out: folder of the results; finished pieces of work are not repeated.
        seed: the first seed.
        seeds: number of seeds.
        quick: two problems and up to 400 steps: half a minute.
        workers: processes.
        quiet: print nothing.
    """
    kit.at_least(0, seed=seed)
    kit.at_least(1, seeds=seeds, workers=workers)
    terminal, names = kit.Terminal(quiet), list(PROBLEMS)[2:6:3] if quick else list(PROBLEMS)
    horizons = (100, 400) if quick else HORIZONS
    first, count = seed + TUNING_SEED, 2 if quick else TUNING_SEEDS
    tuning, own = range(first, first + count), range(seed, seed + (2 if quick else seeds))
    steps = TRAP_STEPS // 10 if quick else TRAP_STEPS
    work: dict[str, Any] = {
        f"{name}: {h} steps": (compare, name, [*ARMS], h, tuning, own) for name in names for h in horizons
    }
    work |= {f"trap {t}": (count_trapped, t, range(1 if quick else TRAP_SEEDS), steps) for t in TRAPS}
    asked = {"seed": seed, "seeds": seeds, "quick": quick}
    command = kit.written_command("o2nc paper nonsmooth", main, **asked)
    about = kit.circumstances(command, seeds=[*own], tuning_seeds=[*tuning])
    store = kit.Store(kit.make_folder(out) / "nonsmooth.json", asked, about)
    left = {key: job for key, job in work.items() if key not in store.runs}
    in_processes(left, workers, terminal, store.add)
    runs = {key: store.runs[key] for key in work}
    found = [Result(*row) for key, rows in runs.items() if ": " in key for row in rows]
    trapped = [Trapped(*row) for key, rows in runs.items() if key.startswith("trap") for row in rows]
    tables = [costs_table(found, horizons), traps_table(trapped, steps)]
    text = "\n\n".join(table.markdown() for table in tables)
    kit.write_text(out / "nonsmooth.md", f"# Non-smooth problems\n\n`{command}`\n\n{text}\n")
    for table in tables:
        terminal.table(table)
    terminal.say(f"Written to {out}: nonsmooth.json, nonsmooth.md")


if __name__ == "__main__":
    kit.run_script(main)
