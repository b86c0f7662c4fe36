"""``o2nc plan``: a plan as people read it, with what its bound is made of, and the line to paste."""

from collections.abc import Sequence

import typer

from o2nc import theory
from o2nc.theory import Plan
from o2nc_experiments.console import make_console, print_plain
from o2nc_experiments.tables import Column, Table

_MEANINGS = {
    "gap": "to get down: F*'s part of the energy",
    "energy": "of the gradients",
    "descent": "F*/(DN), to get down",
    "start": "the first window",
    "noise": "left in the averages",
    "spread": "c times variance of iterates",
    "regret": "of the learner",
}
_BOTH = ("sharp", "paper")


def show(steps: int | None, eps: float | None, constants: str, **known: float | None) -> None:
    """Print the plans for N steps, or for the target ε."""
    console = make_console(quiet=False)
    if (steps is None) == (eps is None):
        raise typer.BadParameter("give one of --steps and --eps")
    if sum(known[name] is not None for name in ("c", "smoothness", "second_order")) != 1:
        raise typer.BadParameter("give one of --c, --smoothness and --second-order")
    if constants not in (*theory.CONSTANTS, "both"):
        allowed = "sharp, regret, paper or both"
        raise typer.BadParameter(f"must be {allowed}, got {constants!r}", param_hint="'--constants'")
    lipschitz = known["lipschitz"]
    if eps is not None and lipschitz is not None and 0 < lipschitz <= eps:
        raise typer.BadParameter(
            f"{eps:g} needs no step: ‖∇F‖_c <= G = {lipschitz:g} everywhere", param_hint="'--eps'"
        )
    plans, refusals = [], []
    for version in _BOTH if constants == "both" else (constants,):
        try:
            n = steps if eps is None else theory.steps_for(eps, constants=version, **known)  # type: ignore[arg-type]
            plans.append(theory.plan(n, constants=version, **known))  # type: ignore[call-overload]
        except ValueError as error:
            refusals.append(str(error))
        except (OverflowError, ZeroDivisionError):
            refusals.append("these constants are too far apart for floating-point numbers")
    if not plans:
        raise typer.BadParameter(refusals[0])
    console.print(table(plans))
    for p in plans:
        print_plain(console, f"{p.constants}: {code(p)}")
    for refusal in refusals:
        print_plain(console, f"\nnot with the paper's constants: {refusal}")


def table(plans: Sequence[Plan]) -> Table:
    """Return one column per plan."""
    heads = [Column("quantity", "left"), Column("", "left"), *(Column(p.constants) for p in plans)]
    starred = any(p.vacuous for p in plans)
    notes = "* not below G: no more than F's Lipschitz constant says; take more steps" if starred else ""
    made = Table(heads, notes=notes)

    def line(name: str, meaning: str, values: Sequence[str], *, last: bool = False) -> None:
        made.add(name, meaning, *values, ruled=last)

    line("N", "steps", [f"{p.steps:,}" for p in plans])
    line("c", "price of spread", [f"{p.c:.4g}" for p in plans], last=True)
    line("beta", "β, discount of losses, averages", [f"{p.beta:.8g}" for p in plans])
    line("lr", "η, the learner's step", [f"{p.lr:.6g}" for p in plans])
    line("decay", "μ, the variance regulariser", [f"{p.decay:.6g}" for p in plans])
    line("radius", "D, of comparator or updates", [f"{p.radius:.6g}" for p in plans])
    line("momentum", "β̃ of the same SGDM", [f"{p.momentum:.8g}" for p in plans])
    line("effective lr", "η̃ of it, dampening = momentum", [f"{p.effective_lr:.6g}" for p in plans], last=True)
    terms = [p.terms for p in plans]
    rows = [name for name in _MEANINGS if any(t.get(name) for t in terms)]
    for name in rows:
        values = [f"{t[name]:.4g}" if t.get(name) else "–" for t in terms]
        line(f"  {name}", _MEANINGS[name], values, last=name == rows[-1])
    line("output", "the law of n in x̄ = x̄_n", [p.output for p in plans])
    line("bound", "on E‖∇F(x̄)‖_c", [_starred(p, p.bound) for p in plans])
    if plans[0].gradient_bound is not None:
        line("gradient bound", "on E‖∇F(x̄)‖", [_starred(p, p.gradient_bound or 0.0) for p in plans])
    return made


def _starred(p: Plan, bound: float) -> str:
    return f"{bound:.4g}{'*' if bound >= p.lipschitz else ''}"


def code(p: Plan) -> str:
    """Return the line that makes the plan's optimizer."""
    learner = f"o2nc.learners.OGD(lr={p.lr!r}, decay={p.decay!r})"
    return f"o2nc.ExponentiatedO2NC(params, {learner}, beta={p.beta!r})"
