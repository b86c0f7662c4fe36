"""Objectives with known constants, on which a claim can be checked to the last digit.

A `Problem` is F with G, F*, H and ρ; an `Oracle` is a stochastic gradient of it with σ.

* `traps`: periodic slopes that hold momentum without random scaling, and the climber that it walks up.
* `separable`: Σ_i f(x_i)/√d, with kinks (`DoubleWell`, `MultiKink`) and smooth (`Cosine`).
* `polyhedral`: piecewise linear and coupled (`MaxAffine`, `ChebyshevRosenbrock`).
* `finite_sums`: regression whose terms an oracle subsamples (`PhaseRetrieval`, `ReluRegression`).
"""

from o2nc.problems.finite_sums import PhaseRetrieval, ReluRegression, Subsampled
from o2nc.problems.polyhedral import ChebyshevRosenbrock, MaxAffine
from o2nc.problems.problem import Additive, Oracle, Problem
from o2nc.problems.separable import Cosine, DoubleWell, MultiKink
from o2nc.problems.traps import Climber, Resonance

__all__ = [
    "Additive",
    "ChebyshevRosenbrock",
    "Climber",
    "Cosine",
    "DoubleWell",
    "MaxAffine",
    "MultiKink",
    "Oracle",
    "PhaseRetrieval",
    "Problem",
    "ReluRegression",
    "Resonance",
    "Subsampled",
]
