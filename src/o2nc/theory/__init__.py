"""The theorems as functions: what is guaranteed, the best hyperparameters, steps enough and steps needed.

* `energy`: the energy theorem; `guarantees` has it for hyperparameters of your own, or of an optimizer.
* `lemmas`: the constant of the variance lemma, the law of the output.
* `plans`: the best hyperparameters, or the printed ones; how many steps a target ε takes: enough, and necessary.
* `adaptive`: a plan that knows neither G nor σ, and its bound for all of them.
* `stability`: the learning rate that momentum bears when its steps are random.
* `stopping`: a target ε without knowing the gap: when to stop, also with noise.
"""

from o2nc.theory.adaptive import AdaptivePlan, adaptive_plan
from o2nc.theory.energy import Falling
from o2nc.theory.guarantees import Guarantee, guarantee
from o2nc.theory.lemmas import CONSTANTS as CONSTANTS
from o2nc.theory.lemmas import output_weights, spread_constant
from o2nc.theory.plans import Plan, lower_bound, plan, steps_for
from o2nc.theory.stability import stable_lr
from o2nc.theory.stopping import StoppingPlan, holdout_samples, stopping_plan

__all__ = [
    "AdaptivePlan",
    "Falling",
    "Guarantee",
    "Plan",
    "StoppingPlan",
    "adaptive_plan",
    "guarantee",
    "holdout_samples",
    "lower_bound",
    "output_weights",
    "plan",
    "spread_constant",
    "stable_lr",
    "steps_for",
    "stopping_plan",
]
