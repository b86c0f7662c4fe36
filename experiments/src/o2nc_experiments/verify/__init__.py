"""Every statement of the paper, checked by running it; and every erratum, printed form and corrected.

A check measures the two sides of a statement where they come closest to contradicting it: an exact supremum, a search
for the worst case, or a mean over runs with its standard error. All of it goes through the library: the laws, the
learners, the optimizers, the certificate, the plans and the problems: a wrong formula there makes a row wrong.

* `reductions`: what a certificate says of gradients and Goldstein points
* `identities`: random scaling
* `spread`: the variance lemma
* `regret`: Theorem OGD
* `theorems`, `rates`, `lower`: convergence, its rate, and its limit
* `errata_runs`, `errata_formulas`, `errata_reductions`: what is printed and wrong
"""

from collections.abc import Callable, Sequence
from functools import partial

from o2nc_experiments.verify import (
    errata_formulas,
    errata_reductions,
    errata_runs,
    identities,
    lower,
    rates,
    reductions,
    regret,
    spread,
    theorems,
)
from o2nc_experiments.verify.report import markdown, record, table
from o2nc_experiments.verify.rows import Check, Row

__all__ = ["Check", "Row", "checks", "in_order", "jobs", "markdown", "record", "run", "select", "table"]

_STATEMENTS = (
    reductions.criterion_smooth,
    reductions.criterion_second_order,
    reductions.goldstein,
    identities.exponential_scaling,
    identities.other_laws,
    spread.variance_weights,
    spread.variance_sharp,
    theorems.theorem_o2nc,
    regret.omd_one_step,
    regret.ogd_1,
    regret.ogd_2,
    theorems.theorem_sgdm,
    theorems.sgdm_map,
    rates.nonsmooth,
    rates.smooth,
    rates.second_order,
    rates.steps_for,
    lower.lower_bound,
)
_ERRATA = (
    errata_runs.a,
    errata_formulas.b,
    errata_formulas.c,
    errata_runs.d,
    errata_reductions.e,
    errata_formulas.f,
    errata_formulas.g,
    errata_formulas.h,
    errata_runs.i,
    errata_formulas.j,
    errata_runs.k,
    errata_runs.l,
    errata_reductions.m,
    errata_reductions.n,
    errata_reductions.o,
    errata_formulas.p,
    errata_formulas.q,
)


def checks() -> list[Check]:
    """Return all checks in the order of the paper, the errata last."""
    return [*_STATEMENTS, *_ERRATA]


def select(keys: Sequence[str]) -> list[Check]:
    """Return the checks of these names, or all for none; a name may be the beginning of several.

    Raises:
        ValueError: there is no check of that name.

    Example:
        >>> [check.key for check in select(["criterion"])]
        ['criterion-smooth', 'criterion-second-order']
    """
    known = checks()
    for key in keys:
        if not any(check.key.startswith(key) for check in known):
            raise ValueError(f"there is no check {key!r}; there are {', '.join(check.key for check in known)}")
    return [check for check in known if not keys or any(check.key.startswith(key) for key in keys)]


def run(
    selected: Sequence[Check],
    seed: int = 0,
    progress: Callable[[Row], object] | None = None,
    *,
    scale: float = 1.0,
) -> list[Row]:
    """Make the checks, one after the other.

    Args:
        selected: what to check, such as ``checks()``.
        seed: of everything that is random.
        progress: called with every row when it is done.
        scale: by which samples, runs and searches are multiplied.

    Returns:
        The rows, in the order given. They depend on the seed and the scale only, their ``seconds`` apart.

    Example:
        >>> [row] = run(select(["erratum-o"]))
        >>> f"{row.left:g} {row.relation} {row.right:g}: {row.verdict}"  # the printed form fails, the corrected holds
        '0.05 <= 0.04: True'
    """
    rows = []
    for check in selected:
        rows.append(check.row(seed, scale))
        if progress is not None:
            progress(rows[-1])
    return rows


def jobs(selected: Sequence[Check], seed: int = 0) -> list[Callable[[Callable[[int], object]], Row]]:
    """Return the checks as pieces of work for `o2nc_experiments.pool`, the long ones first."""
    long = [check for module in (rates, theorems) for check in vars(module).values() if isinstance(check, Check)]
    return [partial(_make, check.key, seed) for check in sorted(selected, key=lambda check: check not in long)]


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return the rows in the order of `checks`."""
    order = [check.key for check in checks()]
    return sorted(rows, key=lambda row: order.index(row.key))


def _make(key: str, seed: int, progress: Callable[[int], object]) -> Row:
    (check,) = (check for check in checks() if check.key == key)  # a check itself cannot be pickled
    row = check.row(seed)
    progress(1)
    return row
