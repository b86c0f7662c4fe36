"""The theorems as functions: what is guaranteed, the best hyperparameters, steps enough and steps needed.

For a G-Lipschitz F with F(x_0) − inf F <= F* and stochastic gradients g_t with E[g_t | the whole past] = ∇F(x_t) and
variance at most σ², Algorithm 2 with `OGD` (κ = 1) outputs x̄ with E‖∇F(x̄)‖_c <= B. With α = 1 − β, A² = G² + σ²:

    B = (1/N)√((α²(N − 1)/(1 − β²) + 1)T) + σ(α(N − 1) + 1)/(N√(1 − β²)) + cCℓ²T/(α²(1 − β²)N)
    T = 2F*/η + A²N,   C = β((β + q)/(1 + β))² <= 1,   q = √(2 − β²)

for s ~ Exp(1), μ = 0, every lr ℓ = βη and the output law "geometric" (the energy theorem, docs/paper.md). C is of the
variance lemma, Σ E V_n <= (C/α²) Σ E‖Δ_n‖², where the paper has 12; no smaller constant is true.

* `energy`: the energy theorem; `guarantees` has it for hyperparameters of your own, or of an optimizer.
* `lemmas`: C, the weights λ behind it, the law of the output.
* `plans`: the best hyperparameters, or the printed ones; how many steps a target ε takes: enough, and necessary.
* `adaptive`: a plan that knows neither G nor σ, and its bound for all of them.
* `stability`: the learning rate that momentum bears when its steps are random.
* `stopping`: a target ε without knowing the gap: when to stop, in stages, and with noise.
* `plateaus`: whether F still falls, the level of a kink, convex and sharp rates.
"""

from o2nc.theory.adaptive import AdaptivePlan, adaptive_plan
from o2nc.theory.energy import Falling
from o2nc.theory.guarantees import Guarantee, guarantee
from o2nc.theory.lemmas import CONSTANTS as CONSTANTS
from o2nc.theory.lemmas import output_weights, spread_constant, variance_weights
from o2nc.theory.plans import Plan, lower_bound, plan, steps_for
from o2nc.theory.plateaus import convex_bound, energy_ratio, fall_seen, kink_level, sharp_stage
from o2nc.theory.stability import stable_lr
from o2nc.theory.stopping import StoppingPlan, holdout_samples, ladder, ladder_steps, noise_margin, stopping_plan

__all__ = [
    "AdaptivePlan",
    "Falling",
    "Guarantee",
    "Plan",
    "StoppingPlan",
    "adaptive_plan",
    "convex_bound",
    "energy_ratio",
    "fall_seen",
    "guarantee",
    "holdout_samples",
    "kink_level",
    "ladder",
    "ladder_steps",
    "lower_bound",
    "noise_margin",
    "output_weights",
    "plan",
    "sharp_stage",
    "spread_constant",
    "stable_lr",
    "steps_for",
    "stopping_plan",
    "variance_weights",
]
