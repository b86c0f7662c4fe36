"""``o2nc paper plan``: the theorem's hyperparameters, the parts of their bound, the line that makes the optimizer.

o2nc paper plan --steps 100000 --c 1 --gap 1 --lipschitz 1 --noise 1
o2nc paper plan --eps 0.1 --c 1 --gap 1 --lipschitz 1 --law 'jitter(0.25)'
"""

import re
from collections.abc import Mapping
from typing import Any

import o2nc
from o2nc import Exponential, Law, theory
from o2nc.theory import Plan
from o2nc_experiments import kit

LAWS = {"exponential": o2nc.Exponential, "gamma": o2nc.Gamma, "jitter": o2nc.Jitter, "uniform": o2nc.Uniform}


def read_law(text: str) -> Law:
    """Return the law of a text such as gamma(16) or uniform(0.5,1.5).

    Example:
        >>> read_law("jitter(0.25)")
        Jitter(width=0.25)
    """
    found = re.fullmatch(r"([a-z]+)\(?([^()]*)\)?", text.replace(" ", "").lower())
    if found is None or found[1] not in LAWS:
        raise kit.UsageError(f"--law must be one of {', '.join(LAWS)} with its numbers, as gamma(16); got {text!r}")
    try:
        return LAWS[found[1]](*(float(word) for word in found[2].split(",") if word))
    except (TypeError, ValueError) as error:
        raise kit.UsageError(f"--law {text}: {error}") from None


def table(plans: Mapping[str, Plan]) -> kit.Table:
    """Return one column per plan."""
    every: list[Plan] = [*plans.values()]
    rows = [["N", "steps", *(f"{p.steps:,}" for p in every)]]
    rows.append(["c", "price of spread", *(f"{p.c:.4g}" for p in every)])
    for name, meaning in (
        ("beta", "β, discount of losses, averages"),
        ("lr", "η, the learner's step"),
        ("decay", "μ, the variance regulariser"),
        ("radius", "D, of comparator or updates"),
        ("momentum", "β̃ of the same SGDM"),
        ("effective_lr", "η̃ of it, dampening = momentum"),
    ):
        rows.append([name, meaning, *(f"{getattr(p, name):.8g}" for p in every)])
    for name in dict.fromkeys(name for p in every for name in p.terms):
        rows.append([f"· {name}", "part of the bound", *(f"{p.terms.get(name, 0.0):.4g}" for p in every)])
    rows.append(["output", "the law of n in x̄ = x̄_n", *(p.output for p in every)])
    rows.append(["bound", "on E‖∇F(x̄)‖_c", *(f"{p.bound:.4g}{'*' * p.vacuous}" for p in every)])
    if any(p.gradient_bound is not None for p in every):
        rows.append(["gradient bound", "on E‖∇F(x̄)‖", *(f"{p.gradient_bound or 0.0:.4g}" for p in every)])
    notes = "* not below G: no more than F's Lipschitz constant says; take more steps"
    return kit.Table(["quantity", "", *plans], rows, notes=notes if any(p.vacuous for p in every) else "")


def code(p: Plan) -> str:
    """Return the line that makes the plan's optimizer."""
    law = "" if p.law == Exponential() else f", scaling=o2nc.{p.law!r}"
    output = "" if p.output == "uniform" else f", output={p.output!r}"
    learner = f"o2nc.learners.OGD(lr={p.lr!r}, decay={p.decay!r})"
    return f"o2nc.ExponentiatedO2NC(params, {learner}, beta={p.beta!r}{law}{output})"


def main(
    gap: float,
    lipschitz: float,
    noise: float = 0.0,
    steps: int | None = None,
    eps: float | None = None,
    c: float | None = None,
    smoothness: float | None = None,
    second_order: float | None = None,
    constants: str = "both",
    law: str | None = None,
) -> None:
    """Print the theorem's hyperparameters for N steps, or for the fewest that guarantee ε.

    Args:
        gap: F*, at least F(start) − inf F.
        lipschitz: G, the largest gradient norm.
        noise: σ, root mean square error of a stochastic gradient.
        steps: N; or give --eps.
        eps: target; the least N for it is found.
        c: price of spread.
        smoothness: H of a smooth F, in place of --c.
        second_order: ρ of ∇²F, in place of --c.
        constants: sharp, paper or both.
        law: of s, as gamma(16) or jitter(0.25).
    """
    if (steps is None) == (eps is None):
        raise kit.UsageError("give one of --steps and --eps")
    if constants not in (*theory.CONSTANTS, "both"):
        raise kit.UsageError(f"--constants must be {', '.join(theory.CONSTANTS)} or both, got {constants!r}")
    if eps is not None and 0 < lipschitz <= eps:
        raise kit.UsageError(f"--eps {eps:g} needs no step: ‖∇F‖_c <= G = {lipschitz:g} everywhere")
    known: dict[str, Any] = {"c": c, "gap": gap, "lipschitz": lipschitz, "noise": noise}
    known |= {"smoothness": smoothness, "second_order": second_order, "law": read_law(law) if law else Exponential()}
    versions = ("sharp",) if law else ("sharp", "paper") if constants == "both" else (constants,)
    plans, refusals = {}, {}
    for version in versions:
        try:
            n = steps or theory.steps_for(eps or 0.0, **known, constants=version)
            plans[version] = theory.plan(n, **known, constants=version)
        except ValueError as error:
            refusals[version] = str(error)
    if not plans:
        raise kit.UsageError(next(iter(refusals.values())))
    terminal = kit.Terminal()
    terminal.table(table(plans))
    for name, p in plans.items():
        terminal.say(f"{name}: {code(p)}")
    for name, refusal in refusals.items():
        terminal.say(f"no plan for {name}: {refusal}")


if __name__ == "__main__":
    kit.run_script(main)
