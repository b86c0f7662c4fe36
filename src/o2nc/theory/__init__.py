"""The theorems as functions: hyperparameters, bounds with their constants, steps enough and steps needed.

For a G-Lipschitz F with F(x_0) − inf F <= F* and unbiased gradients of variance at most σ², Algorithm 2 with `OGD`
(κ = 1), s ~ Exp(1) and constant hyperparameters outputs a point with E‖∇F(x̄)‖_c <= B. With α = 1 − β:

"paper", exactly as printed (Theorem SGDM and its proof; A = G + σ):

    B = F*/(DN) + (2G + σ)/(αN) + σ√α + 12cD²/α² + ((1 + 2αN)/N)(2A/√α + 12cD²/α²)
    α = max{N^{−2/3}, F*^{4/7} c^{2/7} A^{−6/7} N^{−4/7}} <= ½,   D = F*/(A√α N),   η = 2D√α/A,   μ = 24cD/α².

"sharp", proved in docs/paper.md (A² = G² + σ²), at the D and the α <= ½ that make B least:

    B = F*/(DN) + (β/N)(G/α + σ/√(α(2 − α))) + σ√(α/(2 − α)) + C·cD²/α² + (β/N + α)A/√α
    C = 2β(1 + β√(2 − β²))/(1 + β)² <= 1,   D³ = F*α²/(2CcN),   η = D√α/A,   μ = 2CcD/α².

C comes from the variance lemma, Σ E V_n <= (C/α²) Σ E‖Δ_n‖², where the paper has 12; no smaller constant is true.

* `lemmas`: C, the weights λ behind it, and the factor from ‖∇F‖_c to ‖∇F‖.
* `plans`: a `Plan` is hyperparameters and their bound; `planning` chooses them.
* `complexity`: from a target ε to the number of steps, enough and necessary.
"""

from o2nc.theory.complexity import lower_bound, steps_for
from o2nc.theory.lemmas import CONSTANTS as CONSTANTS
from o2nc.theory.lemmas import spread_constant, variance_weights
from o2nc.theory.planning import bound, plan
from o2nc.theory.plans import Plan

__all__ = ["Plan", "bound", "lower_bound", "plan", "spread_constant", "steps_for", "variance_weights"]
