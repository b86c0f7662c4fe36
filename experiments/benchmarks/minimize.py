"""Does `o2nc.minimize` prove what it claims, with how many evaluations, and what F do others have after as many?

    python experiments/benchmarks/minimize.py --out runs/minimize      # PyGRANSO is compared where it is installed

Thirteen non-smooth problems (`o2nc paper nonsmooth`, without their noise), each from several points near its start,
c = G³/F*², eps in units of G. Every certificate is computed again from scratch in NumPy. NTDescent (Davis and Jiang,
2022) is written out below; PyGRANSO 1.2 (``pip install --no-deps pygranso osqp``) runs with its own options.

Result: docs/minimize.md.
"""

import contextlib
import importlib.util
import io
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from torch import Tensor

import o2nc
from o2nc.certificates.minimize import Minimum
from o2nc.problems import Problem
from o2nc_experiments import kit
from o2nc_experiments.nonsmooth import PROBLEMS
from o2nc_experiments.runs import in_processes

EPS = (1e-1, 1e-2, 1e-3, 1e-5)
BUDGETS = (100, 200, 500, 2000)
FLOOR = 1e-6  # F/F* below which a problem counts as solved
OURS = "minimize"
TINY = 1e-12  # eps of the comparison, so that `minimize` goes on
Fun = Callable[[Tensor], tuple[float, Tensor]]


class Enough(BaseException):
    """The evaluations are used up; PyGRANSO catches every Exception."""


def start(problem: Problem, seed: int) -> Tensor:
    """Return a point at a tenth of F*/G from the problem's start."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(problem.dimension, generator=generator, dtype=torch.float64)
    return problem.start() + 0.1 * problem.gap / problem.lipschitz * direction / direction.norm()


def recomputed(problem: Problem, found: Minimum, c: float) -> float:
    """Return the certificate of the witness, from scratch."""
    y, w = (part.numpy() for part in found.witness)
    x = (w[:, None] * y).sum(0)
    assert (w >= 0).all()
    assert np.allclose([w.sum(), *x], [1, *found.x.numpy()], rtol=1e-12, atol=1e-12)
    g = np.stack([problem.gradient(torch.from_numpy(row)).numpy() for row in y])
    return float(np.linalg.norm((w[:, None] * g).sum(0)) + c * (w * ((y - x) ** 2).sum(1)).sum())


def certified(name: str, seeds: int) -> list[dict[str, float]]:
    """Return for every eps: evaluations (median, most), the plan's, runs without success, certificates above eps."""
    problem, rows = PROBLEMS[name].problem, []
    g, gap = problem.lipschitz, problem.gap
    c = g**3 / gap**2
    for eps in EPS:
        limits: dict[str, Any] = {"eps": eps * g, "c": c, "max_evaluations": 20_000}
        pair = lambda x: (problem.value(x), problem.gradient(x))  # noqa: E731
        runs = [o2nc.minimize(pair, start(problem, seed), seed=seed, **limits) for seed in range(seeds)]
        wrong = sum(run.success and recomputed(problem, run, c) > eps * g for run in runs)
        plan, counts = o2nc.theory.steps_for(eps * g, lipschitz=g, gap=gap, c=c), [run.nfev for run in runs]
        failed = sum(not run.success for run in runs)
        found = {"evaluations": median(counts), "most": max(counts), "plan": plan, "failed": failed, "wrong": wrong}
        rows.append({"eps": eps, "runs": seeds, **found})
    return rows


def nt_descent(fun: Fun, x: Tensor, seed: int) -> None:
    """NTDescent without known constants: in round k, k radii 2^-i, and at each up to k normal and k tangent steps."""
    generator = torch.Generator().manual_seed(seed)
    for k in range(sys.maxsize):
        f, v = fun(x)
        first, best = v.norm().item(), (f, x)
        for radius in (2.0**-i for i in reversed(range(min(k, 50)))):
            for is_normal in (True, False):
                for _ in range(k):
                    size = v.norm().item()
                    if size < 1e-20:
                        return
                    below, g = fun(x - radius / size * v)
                    if below <= f - radius * size / 8:
                        break
                    if is_normal:
                        g = fun(x - torch.rand((), generator=generator).item() * radius / size * v)[1]
                    change = g - v
                    v = v + min(1.0, max(0.0, -float(v @ change) / max(float(change @ change), 1e-300))) * change
            y = x - radius / max(v.norm().item(), 1e-300) * v
            best = min(best, (fun(y)[0], y), key=lambda pair: pair[0])
            if v.norm().item() < radius * first:
                break
        x = best[1]


def granso(fun: Fun, x: Tensor, seed: int) -> None:
    """PyGRANSO without a tolerance; its imports expect NumPy 1, and a solver that it does not use."""
    sys.modules.setdefault("gurobipy", types.ModuleType("gurobipy")).__dict__.setdefault("GRB", None)
    for module in (np, importlib.import_module("numpy.core.numeric")):
        module.__dict__.update(Inf=math.inf, inf=math.inf, NaN=math.nan)
    pygranso: Any = importlib.import_module("pygranso.pygranso")
    options = importlib.import_module("pygranso.pygransoStruct").pygransoStruct()
    given = {"x0": x[:, None], "maxit": BUDGETS[-1], "opt_tol": 0.0, "print_level": 0, "quadprog_info_msg": False}
    for name, value in (given | {"globalAD": False, "torch_device": torch.device("cpu")}).items():
        setattr(options, name, value)

    def combined(now: Any) -> list[object]:
        f, g = fun(now.x.detach().reshape(-1))
        return [f, g[:, None], None, None, None, None]

    with contextlib.redirect_stdout(io.StringIO()):
        pygranso.pygranso(var_spec={"x": [len(x), 1]}, combined_fn=combined, user_opts=options)


def ours(fun: Fun, x: Tensor, seed: int, **limits: Any) -> None:
    """`minimize` as an arm."""
    o2nc.minimize(fun, x, seed=seed, max_evaluations=BUDGETS[-1], **limits)


def race(name: str, arm: str, seeds: range) -> list[float]:
    """Return the least F met within each budget, in units of F*: the geometric mean over the seeds."""
    problem, logs = PROBLEMS[name].problem, []
    limits = {"eps": TINY * problem.lipschitz, "c": problem.lipschitz**3 / problem.gap**2} if arm == OURS else {}
    for seed in seeds:
        lowest: list[float] = []

        def fun(x: Tensor, lowest: list[float] = lowest) -> tuple[float, Tensor]:
            if len(lowest) == BUDGETS[-1]:
                raise Enough
            f = problem.value(x.detach()).item()
            lowest.append(min([f, *lowest[-1:]]))
            return f, problem.gradient(x)

        with contextlib.suppress(Enough):
            ARMS[arm](fun, start(problem, seed), seed, **limits)
        logs.append([math.log(max(FLOOR, lowest[min(n, len(lowest)) - 1] / problem.gap)) for n in BUDGETS])
    return [math.exp(fmean(column)) for column in zip(*logs, strict=True)]


ARMS: dict[str, Callable[..., None]] = {OURS: ours, "NTDescent": nt_descent, "PyGRANSO": granso}


def main(out: Path, seeds: int = 20, rivals: int = 3, workers: int = 2, quiet: bool = False) -> None:
    """Run what is missing in OUT/minimize.json, and print the tables."""
    terminal, arms = kit.Terminal(quiet), [a for a in ARMS if a != "PyGRANSO" or importlib.util.find_spec("pygranso")]
    about = kit.circumstances("python experiments/benchmarks/minimize.py")
    store = kit.Store(kit.make_folder(out) / "minimize.json", {"seeds": seeds, "rivals": rivals, "arms": arms}, about)
    work: dict[str, tuple[object, ...]] = {name: (certified, name, seeds) for name in PROBLEMS}
    work |= {f"{name}: {arm}": (race, name, arm, range(100, 100 + rivals)) for arm in arms for name in PROBLEMS}
    in_processes({k: job for k, job in work.items() if k not in store.runs}, workers, terminal, store.add)
    rows = [[name, *(f"{r['evaluations']:g} of {r['plan']:.2g}" for r in store.runs[name])] for name in PROBLEMS]
    everything = [r for name in PROBLEMS for r in store.runs[name]]
    terminal.table(kit.Table(["evaluations, of the plan's", *(f"eps = {eps:g}" for eps in EPS)], rows))
    counts = {key: int(sum(r[key] for r in everything)) for key in ("runs", "failed", "wrong")}
    terminal.say(f"{counts}, most of the plan: {max(r['most'] / r['plan'] for r in everything):.1e}")
    for arm in arms[1:]:
        pairs = [(store.runs[f"{name}: {OURS}"], store.runs[f"{name}: {arm}"]) for name in PROBLEMS]
        ratios = [[a[i] / b[i] for a, b in pairs] for i in range(len(BUDGETS))]
        rows = [[name, *(f"{r[k]:.3g}" for r in ratios)] for k, name in enumerate(PROBLEMS)]
        rows.append(["median", *(f"{median(r):.3g}" for r in ratios)])
        terminal.table(kit.Table([f"F in times of {arm}'s", *(f"{n:,} evaluations" for n in BUDGETS)], rows))


if __name__ == "__main__":
    kit.run_script(main)
