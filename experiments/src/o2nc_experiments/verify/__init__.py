"""Every statement of the paper, checked by running it; and every erratum, printed form and corrected.

A check measures the two sides of a statement where they come closest to contradicting it: an exact supremum, a search
for the worst case, or a mean over runs with its standard error. All of it goes through the library: the laws, the
learners, the optimizers, the certificate, the plans and the problems: a wrong formula there makes a result wrong.

* `reductions`: what a certificate says of gradients and Goldstein points
* `lemmas`: random scaling, and the spread of the iterates
* `regret`: Theorem OGD
* `energy`: the energy theorem for any lr and β, and the output law; `adaptive`: the theorem without G and σ
* `renewal`: other laws without weights; `stability`: the learning rate that they bear
* `convergence`: how fast; `hard_chain`: how fast at best
* `errata_runs`, `errata_formulas`: what is printed and wrong, shown by a run or at a point

A `Check` (`check`) has a `Finding`, the two sides, and becomes a `Result`; `command` shows results.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType

from o2nc_experiments.verify import (
    adaptive,
    convergence,
    energy,
    errata_formulas,
    errata_runs,
    hard_chain,
    lemmas,
    reductions,
    regret,
    renewal,
    stability,
)
from o2nc_experiments.verify.check import Check, Result

__all__ = ["Check", "Result", "checks", "in_order", "jobs", "run", "select"]

_STATEMENTS = (
    reductions.criterion_smooth,
    reductions.criterion_second_order,
    reductions.goldstein,
    lemmas.exponential_scaling,
    lemmas.other_laws,
    renewal.renewal_identity,
    lemmas.variance_weights,
    lemmas.variance_sharp,
    energy.output_law_check,
    lemmas.variance_output,
    convergence.theorem_o2nc,
    convergence.conversion_sharp,
    regret.omd_one_step,
    regret.ogd_1,
    regret.ogd_2,
    adaptive.adaptive_regret,
    convergence.theorem_sgdm,
    convergence.sgdm_map,
    energy.energy_identity,
    energy.theorem_energy,
    renewal.energy_any_law,
    stability.stability,
    adaptive.theorem_adaptive,
    convergence.rate_nonsmooth,
    convergence.rate_smooth,
    convergence.rate_second_order,
    convergence.steps_for,
    hard_chain.lower_bound,
)


def _checks_of(*modules: ModuleType) -> list[Check]:
    return [check for module in modules for check in vars(module).values() if isinstance(check, Check)]


_ERRATA = sorted(_checks_of(errata_runs, errata_formulas), key=lambda check: check.key)


def checks() -> list[Check]:
    """Return all checks in the order of the paper, the errata last."""
    return [*_STATEMENTS, *_ERRATA]


def select(keys: Sequence[str]) -> list[Check]:
    """Return the checks of these names, or all for none; a name may be the beginning of several.

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
    progress: Callable[[Result], object] = lambda result: None,
    *,
    scale: float = 1.0,
) -> list[Result]:
    """Make the checks in this order, one after the other; results depend on seed and scale, their seconds apart.

    Example:
        >>> [found] = run(select(["erratum-o"]))
        >>> f"{found.left:g} {found.relation} {found.right:g}: {found.verdict}"  # what is printed fails
        '0.05 <= 0.04: True'
    """
    results = []
    for check in selected:
        results.append(check.run(seed, scale))
        progress(results[-1])
    return results


def jobs(selected: Sequence[Check], seed: int = 0) -> list[Callable[[Callable[[int], object]], Result]]:
    """Return the checks as pieces of work for `o2nc_experiments.pool`, the long ones first."""
    long = _checks_of(convergence, hard_chain)
    return [partial(_make, check.key, seed) for check in sorted(selected, key=lambda check: check not in long)]


def in_order(results: Sequence[Result]) -> list[Result]:
    """Return the results in the order of `checks`."""
    order = [check.key for check in checks()]
    return sorted(results, key=lambda result: order.index(result.key))


def _make(key: str, seed: int, progress: Callable[[int], object]) -> Result:
    (check,) = (check for check in checks() if check.key == key)  # a check itself cannot be pickled
    result = check.run(seed)
    progress(1)
    return result
