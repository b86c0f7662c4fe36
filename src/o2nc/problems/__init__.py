"""Objectives with known constants, on which a claim can be checked to the last digit.

* `traps`: periodic slopes that hold momentum without random scaling, and the climber that it walks up.
"""

from o2nc.problems.traps import Climber, Trap

__all__ = ["Climber", "Trap"]
