"""``o2nc plan``: a plan as people read it, with what its bound is made of, and the line to paste."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from o2nc import Exponential, Law, scaling, theory
from o2nc.theory import Plan, energy
from o2nc_experiments import laws
from o2nc_experiments.console import make_console, print_plain
from o2nc_experiments.tables import NONE, Column, Table

_MEANINGS = {
    "gap": "to get down: F*'s part of the energy",
    "energy": "of the gradients",
    "law": "what a law other than Exp adds to it",
    "descent": "F*/(DN), to get down",
    "start": "the first window",
    "noise": "left in the averages",
    "spread": "c times variance of iterates",
    "regret": "of the learner",
}
_BOTH = ("sharp", "paper")


def show(
    steps: int | None, eps: float | None, constants: str, wanted: Sequence[str] = (), **known: float | None
) -> None:
    """Print the plans for N steps, or for the target ε; one for each of the laws, if any are wanted."""
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
    plans, refusals = {}, {}
    for name, version, law in _asked(constants, wanted):
        try:
            options: dict[str, Any] = {**known, "constants": version, "law": law}
            n = steps if eps is None else theory.steps_for(eps, **options)
            plans[name] = theory.plan(n, **options)  # type: ignore[arg-type]  # there is one of the two
        except ValueError as error:
            refusals[name] = str(error)
        except (OverflowError, ZeroDivisionError):
            refusals[name] = "these constants are too far apart for floating-point numbers"
    if not plans:
        raise typer.BadParameter(next(iter(refusals.values())))
    console.print(table(plans))
    for name, p in plans.items():
        print_plain(console, f"{name}: {code(p)}")
    for name, refusal in refusals.items():
        print_plain(console, f"\nno plan for {name}: {refusal}")


def _asked(constants: str, wanted: Sequence[str]) -> list[tuple[str, str, Law]]:
    """Return the name of every plan, its constants and its law; those for laws other than Exp(1) are sharp."""
    if not wanted:
        return [(version, version, Exponential()) for version in (_BOTH if constants == "both" else (constants,))]
    try:
        found = {"".join(text.split()): laws.parse(text) for text in wanted}
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--law'") from None
    return [(name, "sharp" if constants == "both" else constants, law) for name, law in found.items()]


def table(plans: Mapping[str, Plan]) -> Table:
    """Return one column per plan."""
    heads = [Column("quantity", "left"), Column("", "left"), *map(Column, plans)]
    starred = any(p.vacuous for p in plans.values())
    notes = "* not below G: no more than F's Lipschitz constant says; take more steps" if starred else ""
    made = Table(heads, notes=notes)

    def line(name: str, meaning: str, tell: Callable[[Plan], str], *, last: bool = False) -> None:
        made.add(name, meaning, *map(tell, plans.values()), ruled=last)

    line("N", "steps", lambda p: f"{p.steps:,}")
    line("c", "price of spread", lambda p: f"{p.c:.4g}", last=True)
    if any(p.law != Exponential() for p in plans.values()):
        line("E s²", "second moment of the law", lambda p: f"{energy.second_moment(p.law):.4g}")
        line("L", "its price without weights", lambda p: f"{scaling.price(p.law):.4g}", last=True)
    line("beta", "β, discount of losses, averages", lambda p: f"{p.beta:.8g}")
    line("lr", "η, the learner's step", lambda p: f"{p.lr:.6g}")
    line("decay", "μ, the variance regulariser", lambda p: f"{p.decay:.6g}")
    line("radius", "D, of comparator or updates", lambda p: f"{p.radius:.6g}")
    line("momentum", "β̃ of the same SGDM", lambda p: f"{p.momentum:.8g}")
    line("effective lr", "η̃ of it, dampening = momentum", lambda p: f"{p.effective_lr:.6g}", last=True)
    rows = [name for name in _MEANINGS if any(p.terms.get(name) for p in plans.values())]
    for name in rows:
        made.add(
            f"  {name}",
            _MEANINGS[name],
            *(f"{p.terms[name]:.4g}" if p.terms.get(name) else NONE for p in plans.values()),
            ruled=name == rows[-1],
        )
    line("output", "the law of n in x̄ = x̄_n", lambda p: p.output)
    line("bound", "on E‖∇F(x̄)‖_c", lambda p: _starred(p, p.bound))
    if any(p.gradient_bound is not None for p in plans.values()):
        line("gradient bound", "on E‖∇F(x̄)‖", lambda p: _starred(p, p.gradient_bound or 0.0))
    return made


def _starred(p: Plan, bound: float) -> str:
    return f"{bound:.4g}{'*' if bound >= p.lipschitz else ''}"


def code(p: Plan) -> str:
    """Return the line that makes the plan's optimizer."""
    learner = f"o2nc.learners.OGD(lr={p.lr!r}, decay={p.decay!r})"
    law = "" if p.law == Exponential() else f", scaling=o2nc.{p.law!r}"
    output = "" if p.output == "uniform" else f", output={p.output!r}"
    return f"o2nc.ExponentiatedO2NC(params, {learner}, beta={p.beta!r}{law}{output})"
