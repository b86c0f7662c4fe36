"""`guarantee`: what the energy theorem promises for the learning rate and momentum that were chosen."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch.optim import Optimizer

from o2nc import checks, scaling
from o2nc.averages.reading import made_with
from o2nc.averages.windows import Discount
from o2nc.learners import OGD
from o2nc.optimizers.o2nc import ExponentiatedO2NC
from o2nc.optimizers.paper import ScaledSGDM
from o2nc.scaling import Exponential, Law
from o2nc.text import printable
from o2nc.theory import energy, lemmas
from o2nc.theory.energy import Falling, Rates, Run

Schedule = float | Falling | Sequence[float] | Callable[[int], float]


@dataclass(frozen=True)
class Guarantee:
    """An upper bound of E‖∇F(x̄)‖_c, term by term.

    The energy theorem's root √(T Σ a²/w)/N is divided in proportion to the parts of T: "gap" for 2bF*, "energy" for
    A²Σℓ, "law" for the price of a law other than Exp. "noise" is what the averages leave of it, "start" the first
    averages of the uniform output law, and a first buffer that dampening makes too long; "spread" is c times the
    variance of the iterates.

    Attributes:
        steps: N.
        c: the price of spread.
        lipschitz: G.
        output: the law that the output x̄ is drawn by, "uniform" or "geometric".
        terms: the summands.

    Example:
        >>> found = guarantee(lr=3e-5, momentum=0.99, steps=30_000, c=1.0, gap=1.0, lipschitz=1.0)
        >>> f"{found.bound:.3f}", found.vacuous
        ('0.132', False)
    """

    steps: int
    c: float
    lipschitz: float
    output: str
    terms: Mapping[str, float]

    @property
    def bound(self) -> float:
        """B >= E‖∇F(x̄)‖_c."""
        return sum(self.terms.values())

    @property
    def vacuous(self) -> bool:
        """Whether ‖∇F‖_c <= G says as much of every point."""
        return self.bound >= self.lipschitz

    def __str__(self) -> str:
        parts = " + ".join(f"{value:.3g} {name}" for name, value in self.terms.items() if value)
        nothing = f"; no less than G = {self.lipschitz:.4g}, which holds everywhere" if self.vacuous else ""
        found = f"{self.bound:.4g} = {parts} ({self.steps} steps, {self.output} output){nothing}"
        return printable(f"E‖∇F(x̄)‖_c <= {found}")


def guarantee(
    optimizer: Optimizer | None = None,
    *,
    steps: int,
    c: float,
    gap: float,
    lipschitz: float,
    noise: float = 0.0,
    lr: Schedule | None = None,
    momentum: float | None = None,
    average: float | None = None,
    law: Law = Exponential(),
    output: str | None = None,
) -> Guarantee:
    """Return what the energy theorem guarantees for a run of momentum with random scaling.

    It speaks of N steps from a start with F(x_0) − inf F <= F*, for a G-Lipschitz F and gradients with
    E[g_t | all that came before] = ∇F(x_t) and E‖g_t − ∇F(x_t)‖² <= σ²: fresh samples in every step, unclipped.

    Args:
        optimizer: a `ScaledSGDM` or an `ExponentiatedO2NC` with `OGD`, whose learning rate, momentum, discount of the
            averages and law are read; or None to name them.
        steps, c, gap, lipschitz, noise: as in `plan`.
        lr: torch's learning rate: a number > 0, or N of them, or a function of the step 1, …, N; it may grow by less
            than 1/momentum² a step. It must be fixed before the run: for a list that was recorded from a scheduler
            which looks at the run (ReduceLROnPlateau) nothing is proved; give its range, `Falling`. Beside an
            optimizer, the schedule that it will have.
        momentum: torch's momentum in [0, 1), without dampening.
        average: β in (0, 1), the discount of the averages; the momentum if left out.
        law: the law of s.
        output: how x̄ is drawn from x̄_1, …, x̄_N: "uniform", or "geometric" as `output_weights` has it; left out, as
            the optimizer's ``output()`` is, and uniform without one.

    Raises:
        ValueError: something voids the theorem; the message has all that does.

    Example:
        >>> known = dict(steps=30_000, c=1.0, gap=1.0, lipschitz=1.0)
        >>> print(guarantee(lr=3e-5, momentum=0.99, output="geometric", **known))
        E‖∇F(x̄)‖_c <= 0.1287 = 0.0875 gap + 0.0398 energy + 0.00145 spread (30000 steps, geometric output)
        >>> guarantee(lr=0.1, momentum=0.9, **known).vacuous
        True
    """
    known = {"c": c, "gap": gap, "lipschitz": lipschitz, "noise": noise}
    checks.known(steps=steps, **known)
    given = lr
    if optimizer is None:
        if lr is None or momentum is None:
            raise TypeError(f"give an optimizer, or lr and momentum, got lr={lr!r} and momentum={momentum!r}")
        average = momentum if average is None else average
        checks.known(momentum=momentum)
        checks.fraction("average", average)
        check_law(law)
        factor, run = 1.0, Run(float(momentum), float(average), law)
        output = output or "uniform"
    elif momentum is None and average is None and law == Exponential():
        lr, factor, run = _read(optimizer, lr)
        output = output or made_with(optimizer).get("output", "uniform")
    else:
        raise TypeError("momentum, average and law are read from the optimizer: leave them out beside it")
    checks.choice("output", output, lemmas.OUTPUTS)
    if isinstance(lr, Falling) and run.law.price:
        raise ValueError(f"lr={lr!r} has a theorem for s ~ Exp only, got {run.law!r}: fix lr in advance")
    if output == "uniform" and energy.second_moment(run.law) > 4 / (1 - run.average):
        only = "for which only output='geometric' has a theorem"
        raise ValueError(f"law={run.law!r} has E s² > 4/(1 − β), {only}, got {output!r}")

    def compute() -> dict[str, float]:
        rates = _rates(lr, factor * scaling.mean(run.law), run.momentum, int(steps))
        return energy.energy_terms(run, rates, output, **known)

    shown = {"lr": given if isinstance(given, float | int) else None, **known}
    terms = lemmas.in_float64(compute, lambda found: 0 < sum(found.values()) < math.inf, **shown)
    return Guarantee(int(steps), float(c), float(lipschitz), output, terms)


def _rates(lr: Schedule, factor: float, momentum: float, steps: int) -> Rates:
    """Return what the theorem needs of ``factor`` times a learning rate."""
    if isinstance(lr, Falling):
        checks.positive("lr.first", lr.first)
        checks.number("lr.least", lr.least, f"a number in (0, lr.first = {lr.first!r}]", lambda v: 0 < v <= lr.first)
        # bounds for all such rates, as far as Exp needs them, by w_n >= (1 − b²)ℓ_{n−1}
        low, high = (Rates.constant(factor * value, momentum, steps) for value in (lr.least, lr.first))
        return high._replace(last=low.last, inverse=low.inverse)
    if not callable(lr) and not isinstance(lr, Sequence | np.ndarray):
        checks.positive("lr", lr)
        return Rates.constant(factor * lr, momentum, steps)
    lrs = np.array([lr(t) for t in range(1, steps + 1)] if callable(lr) else lr)
    if lrs.shape != (steps,) or lrs.dtype.kind not in "iuf":
        raise ValueError(f"lr must be one number for each of the {steps} steps, got {lrs.shape} of {lrs.dtype}")
    return Rates.scheduled(factor * lrs.astype(np.float64), momentum)


def check_law(law: object) -> None:
    """Raise unless a theorem holds for the law."""
    if void := _voids(law):
        raise ValueError(f"no theorem holds: {void}")


def _voids(law: object) -> str | None:
    """Say why there is no theorem for a law, if there is none."""
    if law is None:
        return "without random scaling (s = 1, whose price is infinite) momentum can be trapped"
    scaling.check_law(law, "law")
    if not (hasattr(law, "price") and hasattr(law, "second_moment")):
        return f"{law!r} has no price or no second_moment"
    return None if math.isfinite(law.price) else f"{law!r} has an infinite price"


def _read(optimizer: Optimizer, lr: Schedule | None) -> tuple[Schedule, float, Run]:
    """Return an optimizer's lr, the factor of ℓ to it, and its run; or refuse it with all that voids the theorem."""
    groups, group = optimizer.param_groups, made_with(optimizer)
    is_sgdm, learner = type(optimizer) is ScaledSGDM, cast(Any, group.get("learner"))
    if not is_sgdm and not (type(optimizer) is ExponentiatedO2NC and type(learner) is OGD):
        name = type(optimizer).__name__ + (f" with {type(learner).__name__}" if learner else "")
        raise ValueError(f"the theorem is about ScaledSGDM and ExponentiatedO2NC with OGD, got {name}")
    rate: Any = float(group["lr"]) if lr is None else lr
    fixed, law, average = isinstance(rate, float | int), group["scaling"], group["average"]
    if is_sgdm:
        b, changes = float(group["momentum"]), False
        dampening = float(group["dampening"]) if b else 0.0  # torch has none without a buffer
        factor = 1 - dampening
    else:  # Δ_{t+1} = b(Δ_t − ηg_t) with b = β/(β + ημ + κα)
        beta, dampening = group["beta"], 0.0
        b = beta / (beta + rate * learner.decay + learner.kappa * (1 - beta)) if fixed else beta
        factor, changes = b, not fixed and (learner.decay or learner.kappa == 2)
    names = ("lr", "weight_decay", "maximize") + ("momentum", "dampening", "nesterov") * is_sgdm
    differ = [name for name in names if len({float(other[name]) for other in groups}) > 1]
    decays = any(float(other["weight_decay"]) for other in groups)
    voids = {
        **{f"parameter groups differ in {name}": True for name in differ},
        f"weight_decay={group['weight_decay']!r}: the theorem is about neither form of it": decays,
        str(_voids(law)): _voids(law),
        f"average={average!r}: the averages of the theorem have a discount in (0, 1)": (
            not isinstance(average, Discount) or average.start or average.every > 1
        ),
        "a scheduler changes lr: give all of it, as lr=[…]": lr is None and any("initial_lr" in g for g in groups),
        "nesterov=True is another update": is_sgdm and group["nesterov"],
        f"momentum={b!r} is not in [0, 1)": not 0 <= b < 1,
        f"dampening={dampening!r} takes in no gradient": dampening >= 1,
        "with decay or kappa=2 a schedule of lr changes the momentum, too": changes,
        f"lr={rate!r} moves nothing": fixed and rate <= 0,
    }
    if reasons := [reason for reason, holds in voids.items() if holds]:
        raise ValueError("no theorem holds: " + "; ".join(reasons))
    return rate, factor, Run(b, average.beta, law, dampening)
