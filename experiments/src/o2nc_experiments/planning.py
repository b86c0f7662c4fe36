"""A plan as people read it: the hyperparameters, what the bound is made of, and the line to paste."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from o2nc.theory import Plan

_MEANINGS = {
    "descent": "F*/(DN), to get down",
    "start": "the first window",
    "noise": "left in the averages",
    "spread": "c times variance of iterates",
    "regret": "of the learner",
}


def table(plans: Sequence[Plan]) -> Table:
    """Return one column per plan."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left")
    grid.add_column("quantity", no_wrap=True)
    grid.add_column("", no_wrap=True)
    for p in plans:
        grid.add_column(p.constants, justify="right", no_wrap=True)

    def line(name: str, meaning: str, values: Sequence[str], *, last: bool = False) -> None:
        grid.add_row(name, meaning, *values, end_section=last)

    line("N", "steps", [f"{p.steps:,}" for p in plans])
    line("c", "price of spread", [f"{p.c:.4g}" for p in plans], last=True)
    line("beta", "β, discount of losses, averages", [f"{p.beta:.8g}" for p in plans])
    line("lr", "η, the learner's step", [f"{p.lr:.6g}" for p in plans])
    line("decay", "μ, the variance regulariser", [f"{p.decay:.6g}" for p in plans])
    line("radius", "D, the comparator's length", [f"{p.radius:.6g}" for p in plans])
    line("momentum", "β̃ of the same SGDM", [f"{p.momentum:.8g}" for p in plans])
    line("effective lr", "η̃ of it, dampening = momentum", [f"{p.effective_lr:.6g}" for p in plans], last=True)
    terms = [p.terms for p in plans]
    for i, (name, meaning) in enumerate(_MEANINGS.items()):
        line(f"  {name}", meaning, [f"{t[name]:.4g}" for t in terms], last=i + 1 == len(_MEANINGS))
    line("bound", "on E‖∇F(x̄)‖_c, x̄ = output()", [_starred(p, p.bound) for p in plans])
    if plans[0].gradient_bound is not None:
        line("gradient bound", "on E‖∇F(x̄)‖", [_starred(p, p.gradient_bound or 0.0) for p in plans])
    if any((p.gradient_bound or p.bound) >= p.lipschitz for p in plans):
        grid.caption = "* not below G: no more than F's Lipschitz constant says; take more steps"
    return grid


def _starred(p: Plan, bound: float) -> str:
    return f"{bound:.4g}{'*' if bound >= p.lipschitz else ''}"


def code(p: Plan) -> str:
    """Return the line that makes the plan's optimizer."""
    learner = f"o2nc.learners.OGD(lr={p.lr!r}, decay={p.decay!r})"
    return f"o2nc.ExponentiatedO2NC(params, {learner}, beta={p.beta!r})"
