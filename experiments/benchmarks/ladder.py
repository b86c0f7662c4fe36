"""SGD with momentum and `o2nc.Ladder`, one run, against SGD with momentum and a linear decay tuned for every horizon.

    python experiments/benchmarks/ladder.py --out ladder --record docs/results/nonsmooth.json

The 13 non-smooth problems of `o2nc paper nonsmooth`, whose record has the decayed runs' learning rates, and smooth,
noisy controls. The ladder's learning rate, one for all horizons, was chosen on seeds 1000 to 1002, for an earlier
rule; it is read off at x̄. "16 times" is the same with the learning rate 16 times as large. On the traps, with
s ~ Gamma(16), runs that end above their start.

Result: docs/run.md (two cores, torch 2.13 on a CPU, seeds 40 and 41).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

import o2nc
from o2nc.problems import Additive, Oracle, Problem, Resonance, Subsampled
from o2nc_experiments import kit
from o2nc_experiments.nonsmooth import FACTORS, HORIZONS, PROBLEMS, TRAPS, learning_rate
from o2nc_experiments.nonsmooth_runs import NEAR, Arm, Row, _noise, run

SEEDS, TUNING = (40, 41), (1000, 1001)
EXPONENTS = dict(zip(PROBLEMS, (4, 8, 2, -4, -6, 6, 6, 0, -2, 2, 4, -2, -2), strict=True))  # log2 of lr
CONTROLS = (-4, -2, -6)
GRID = range(-8, 3)  # of the decayed runs on the controls
LEAST = 0.01  # a smaller ratio counts as this


@dataclass(frozen=True)
class Smooth(Problem):
    """A smooth function by its value, of which inf F is taken off; ``lipschitz`` is ‖∇F(start)‖, a size."""

    of: Callable[[Tensor], Tensor]
    origin: Tensor
    least: float = 0.0

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return len(self.origin)

    @property
    def lipschitz(self) -> float:
        """‖∇F(start)‖."""
        return self.gradient(self.origin).norm().item()

    def start(self) -> Tensor:
        """Return the start."""
        return self.origin.clone()

    def _value(self, x: Tensor) -> Tensor:
        return self.of(x) - self.least


def controls() -> dict[str, Oracle]:
    """Return quadratics and a logistic regression, with noise."""
    drawn = torch.randn(200, 21, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, data = drawn[:, 0].sign(), drawn[:, 1:21]
    data = data + 0.7 * labels[:, None] / math.sqrt(20)

    def quadratic(power: float) -> Smooth:
        curvatures = torch.arange(1, 41, dtype=torch.float64) ** -power
        return Smooth(lambda x: (curvatures * x**2).sum(-1) / 2, torch.ones(40, dtype=torch.float64))

    def logistic(x: Tensor) -> Tensor:
        return nn.functional.softplus(-labels * (x @ data.T)).mean(-1) + 0.005 * x.square().sum(-1)

    best = torch.zeros(20, dtype=torch.float64)
    for _ in range(2000):
        best -= 0.5 * Smooth(logistic, best).gradient(best)
    return {
        "quadratic, condition 40, noise": Additive(quadratic(1.0), noise=1.0),
        "quadratic, condition 1,600, noise": Additive(quadratic(2.0), noise=0.3),
        "logistic, noise": Additive(
            Smooth(logistic, torch.ones(20, dtype=torch.float64), logistic(best).item()), noise=0.5
        ),
    }


def climb_down(oracle: Oracle, lr: float, seed: int, horizons: Sequence[int], **more: Any) -> list[float]:
    """Return F(x̄) at all horizons of a run with `o2nc.Ladder`; start and noise are those of `nonsmooth_runs.run`."""
    problem, near = oracle.problem, more.pop("near", NEAR)
    drawn = torch.randn(
        problem.dimension, generator=torch.Generator().manual_seed(seed * 100 + 13), dtype=torch.float64
    )
    x = nn.Parameter(problem.start() + near * problem.gap / problem.lipschitz / math.sqrt(problem.dimension) * drawn)
    opt = o2nc.SGD([x], lr=lr, average=o2nc.Polynomial(12), seed=seed, **{"momentum": 0.9} | more)
    ladder, noise, found = o2nc.Ladder(opt), _noise(oracle, [seed]), []
    for t in range(1, horizons[-1] + 1):
        at = x.detach()
        if isinstance(oracle, Subsampled):
            x.grad = oracle.problem.term_gradient(at, next(noise)[0])
        else:
            x.grad = problem.gradient(at) + (next(noise)[0] if oracle.noise else 0.0)
        opt.step()
        ladder.step()
        if t in horizons:
            with opt.averaged():
                found.append(problem.value(x.detach()).item())
    return found


def mean_logs(rows: Sequence[Sequence[float]], least: float) -> list[float]:
    """Return the mean logarithm of every column."""
    return [
        fmean(math.log(max(v, least) if math.isfinite(v) else 1e6) for v in column)
        for column in zip(*rows, strict=True)
    ]


def decayed(oracle: Oracle, lrs: Sequence[float], seeds: Sequence[int], horizon: int) -> Tensor:
    """Return the mean log F of SGD with momentum and a linear decay, for each learning rate."""
    rows = [Row(Arm(), lr, seed) for lr in lrs for seed in seeds]
    value = run(oracle, rows, horizon).value.view(len(lrs), -1)
    return torch.where(value.isfinite(), value, 1e6).clamp(min=1e-12 * oracle.problem.gap).log().mean(1)


def tuned(oracle: Oracle, horizon: int) -> float:
    """Return the best learning rate of these runs on the seeds to tune on."""
    lrs = [learning_rate(oracle, Arm(), k) for k in GRID]
    return lrs[int(decayed(oracle, lrs, TUNING, horizon).argmin())]


def compare(oracle: Oracle, reference: list[float], exponent: float) -> dict[str, list[float]]:
    """Return the ratios of F to the decayed runs', with the chosen learning rate and with 16 times it."""
    found = {}
    for title, k in (("ladder", exponent), ("16 times", exponent + 4)):
        runs = [climb_down(oracle, learning_rate(oracle, Arm(), k), seed, HORIZONS) for seed in SEEDS]
        logs = mean_logs(runs, 1e-12 * oracle.problem.gap)
        found[title] = [math.exp(a - b) for a, b in zip(logs, reference, strict=True)]
    return found


def trapped() -> dict[str, int]:
    """Return how many runs with s ~ Gamma(16) and the ladder end above their start, of how many."""
    above = runs = 0
    for problem, _ in TRAPS.values():
        momentum = problem.momentum if isinstance(problem, Resonance) else 0.9
        for factor in FACTORS:
            more = {"momentum": momentum, "scaling": o2nc.Gamma(16.0), "near": 0.0}
            end = climb_down(Additive(problem, 0.0), problem.lr * (1 - momentum) * factor, 3, [2000], **more)[0]
            above, runs = above + (end > problem.value(problem.start()).item() + 1e-9), runs + 1
    return {"above": above, "runs": runs}


def main(out: Path, record: Path) -> None:
    """Run all, write it down and print the tables."""
    kit.make_folder(out)
    results: dict[str, dict[str, Any]] = {}
    runs: Any = (kit.read_json(record) or {})["runs"].values()
    known = [r for rows in runs for r in rows if isinstance(r, list) and r[1] == "SGDM" and r[3] == "F"]
    lrs = {(r[0], r[2]): r[4] for r in known}
    exponents = EXPONENTS | dict(zip(controls(), CONTROLS, strict=True))
    for name, oracle in {**PROBLEMS, **controls()}.items():
        best = [lrs[name, h] if name in PROBLEMS else tuned(oracle, h) for h in HORIZONS]
        reference = [decayed(oracle, [lr], SEEDS, h).item() for lr, h in zip(best, HORIZONS, strict=True)]
        results[name] = {"control": name not in PROBLEMS, **compare(oracle, reference, exponents[name])}
        print(name, results[name], flush=True)
    traps = trapped()
    kit.write_json(
        out / "ladder.json",
        {"circumstances": kit.circumstances("ladder.py", seeds=SEEDS), "runs": results, "traps": traps},
    )
    rows = []
    for title in ("ladder", "16 times"):
        for control in (False, True):
            ratios = [r[title] for r in results.values() if r["control"] == control]
            columns = list(zip(*ratios, strict=True))
            cells = [
                f"{math.exp(fmean(math.log(max(v, LEAST)) for v in c)):.2f}, {median(c):.2f}, {max(c):.3g}"
                for c in columns
            ]
            rows.append([f"{title}, {'controls' if control else 'non-smooth'}", *cells])
    head = ["floored geometric mean, median, worst", *(f"{h:,} steps" for h in HORIZONS)]
    kit.Terminal().table(kit.Table(head, rows, notes=f"traps: {traps['above']} of {traps['runs']} above their start"))


if __name__ == "__main__":
    kit.run_script(main)
