"""The climber: momentum that walks uphill for ever, and the same momentum with random scaling.

Both are `ScaledSGDM` with the same arguments on the same objective (`o2nc.problems.Climber`), from the same start;
the one difference is ``scaling``. Without it nothing is random, so one run stands for all seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

import o2nc
from o2nc.problems import Climber
from o2nc_experiments.demo.numbers import signed, span

DIMENSIONS = (1, 10)
MOMENTUM = 0.9  # and the dampening: the buffer is a mean of gradients
AVERAGE = 0.999  # the certificate looks back over about 1000 steps
C = 1e-5  # the price of spread: ten periods away from the mean cost 0.001, about what ‖ḡ‖ is with scaling
POINTS = 200  # recorded per run
PATH = 40  # the first steps, of which every place is recorded

Progress = Callable[[int], object]
UNSCALED, SCALED = "unscaled", "scaled"


@dataclass(frozen=True)
class Run:
    """One run and what was recorded of it.

    Attributes:
        dimension: d.
        method: with or without scaling.
        seed: of the scalars s; None where no random number enters, so that any seed gives this run.
        steps: the numbers of steps after which was recorded, 0 included.
        values: F at the iterate.
        gradients: ‖ḡ‖ of the averages; at 0 the gradient's norm at the start.
        spreads: V of the averages.
        progress: the optimizer's own estimate of F(x_N) − F(x_0).
        path: the first coordinate of x_0, x_1, … during the first steps.
    """

    dimension: int
    method: str
    seed: int | None
    steps: list[int]
    values: list[float]
    gradients: list[float]
    spreads: list[float]
    progress: float
    path: list[float]

    @property
    def certificates(self) -> list[float]:
        """‖ḡ‖ + C·V."""
        return [g + C * v for g, v in zip(self.gradients, self.spreads, strict=True)]


def trials(seeds: Sequence[int], dimensions: Sequence[int] = DIMENSIONS) -> list[tuple[int, str, int | None]]:
    """Return dimension, method and seed of every run, in order."""
    methods = [(UNSCALED, None), *((SCALED, seed) for seed in seeds)]
    return [(d, method, seed) for d in dimensions for method, seed in methods]


def climb(
    dimension: int, method: str, seed: int | None, steps: int, progress_callback: Progress | None = None
) -> Run:
    """Make one run, one line of `trials`; the other arguments are those of `run`."""
    problem = Climber(dimension)
    x = problem.start()
    optimizer = o2nc.ScaledSGDM(
        [x],
        lr=problem.lr,
        momentum=MOMENTUM,
        dampening=MOMENTUM,
        scaling=o2nc.Exponential() if method == SCALED else None,
        seed=seed or 0,
        average=AVERAGE,
    )
    recorded, path = [0], [x[0].item()]
    values, gradients, spreads = [problem.value(x).item()], [problem.gradient(x).norm().item()], [0.0]
    every = max(1, steps // POINTS)
    for t in range(1, steps + 1):
        x.grad = problem.gradient(x)
        optimizer.step()
        if t <= PATH:
            path.append(x[0].item())
        if t % every == 0 or t == steps:
            certificate = optimizer.certificate(C)
            values.append(problem.value(x).item())
            gradients.append(certificate.gradient)
            spreads.append(certificate.spread)
            if progress_callback is not None:
                progress_callback(t - recorded[-1])
            recorded.append(t)
    return Run(dimension, method, seed, recorded, values, gradients, spreads, optimizer.progress, path)


def run(
    seeds: Sequence[int],
    steps: int,
    progress_callback: Progress | None = None,
    dimensions: Sequence[int] = DIMENSIONS,
) -> list[Run]:
    """Run the climber in every dimension, once without scaling and with scaling for every seed.

    Args:
        seeds: of the runs with scaling.
        steps: N, at least 1.
        progress_callback: called now and then with the number of steps made since its last call.
        dimensions: the d of the climbers.

    Returns:
        The runs, in the order of `trials`.

    Example:
        >>> plain, scaled = run(seeds=[0], steps=50, dimensions=[1])
        >>> f"{plain.values[0]:.2f} -> {plain.values[-1]:.2f}"  # 0.1 uphill in every step
        '0.53 -> 5.53'
    """
    return [climb(*trial, steps, progress_callback) for trial in trials(seeds, dimensions)]


def table(results: Sequence[Run]) -> Table:
    """Return one row per run; the dimension is left out if it is the same in all."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    grid.caption = f"certificate: ‖ḡ‖ + cV with c = {C:g}\nseed any: without scaling nothing is random"
    several = len({r.dimension for r in results}) > 1
    for name in (*(["d"] if several else []), "method", "seed", "F start", "F end", "‖ḡ‖", "V", "certificate"):
        grid.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for i, r in enumerate(results):
        grid.add_row(
            *([f"{r.dimension}"] if several else []),
            r.method,
            "any" if r.seed is None else f"{r.seed}",
            f"{r.values[0]:.2f}",
            f"{r.values[-1]:.2f}",
            f"{r.gradients[-1]:.4f}",
            f"{r.spreads[-1]:.3g}",
            f"{r.certificates[-1]:.4f}",
            style="red" if r.method == UNSCALED else "",
            end_section=i + 1 < len(results) and results[i + 1].dimension != r.dimension,
        )
    return grid


def summary(results: Sequence[Run]) -> str:
    """Return what was seen, one plain sentence per line."""
    sentences = []
    if stuck := [r for r in results if r.method == UNSCALED]:
        estimates = " and ".join(signed(r.progress, 1) for r in stuck)
        sentences.append(
            "Without scaling every step is one period long and meets the same slope again: F went "
            f"{changes(results)}, while the optimizer's own estimate of the change is {estimates}."
        )
    if any(r.method == SCALED for r in results):
        sentences.append(
            "With one random scalar s ~ Exp(1) per step, and nothing else changed, "
            f"F ends at {ends(results)}; its least value is 0."
        )
    return "\n".join(sentences)


def changes(results: Sequence[Run]) -> str:
    """Return from where to where F went without scaling."""
    return _by_dimension(results, UNSCALED, lambda own: f"from {own[0].values[0]:.2f} to {own[0].values[-1]:.2f}")


def ends(results: Sequence[Run]) -> str:
    """Return where F ended with scaling."""
    return _by_dimension(results, SCALED, lambda own: span([r.values[-1] for r in own]))


def _by_dimension(results: Sequence[Run], method: str, say: Callable[[list[Run]], str]) -> str:
    """Join what is said of a method's runs in each dimension, which is named if there are several."""
    own = [r for r in results if r.method == method]
    said = {d: say([r for r in own if r.dimension == d]) for d in sorted({r.dimension for r in own})}
    return " and ".join(f"{words} (d = {d})" if len(said) > 1 else words for d, words in said.items())
