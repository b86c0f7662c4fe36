"""Online learners: what plays the update Δ.

    optimizer = learner × scaling × averaging

A learner faces the exponentiated losses of Algorithm 2,

    ℓ_t(Δ) = ⟨g̃_t, Δ⟩ + (μ_t/2)‖Δ‖²,    g̃_t = β^{−t} g_t,  μ_t = β^{−t} μ,

plays Δ_1 = 0 and then Δ_{t+1} from the losses up to t. No learner forms β^{−t}, which overflows float32 at
t = 842 for β = 0.9: each is written in its *discounted* form, with every quantity multiplied by the power
of β that keeps it bounded. β = 1 is the ordinary learner, used by Algorithm 1. The regret that the module
docstrings bound is

    Reg_n(u) = Σ_{t<=n} ℓ_t(Δ_t) − ℓ_t(u).

Two rules of notation: η_t = β^t h_t is a learner's step size on these losses, with h_t the ``lr`` of the
parameter group; M_t = Σ_s β^{t−s} g_s and v_t = Σ_s β^{2(t−s)}‖g_s‖² are the discounted sums.

To write your own, make a frozen dataclass with ``lr``, ``init`` and ``update`` (see `Learner`); ``ogd.py`` is
the shortest example.
"""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from o2nc.learners.adagrad import AdaGrad
from o2nc.learners.ball_adagrad import BallAdaGrad
from o2nc.learners.ball_ogd import BallOGD
from o2nc.learners.coin_betting import CoinBetting
from o2nc.learners.ftrl import FTRL
from o2nc.learners.ogd import OGD
from o2nc.learners.scale_free import ScaleFree
from o2nc.vector import States, Vector

__all__ = ["FTRL", "OGD", "AdaGrad", "BallAdaGrad", "BallOGD", "CoinBetting", "Learner", "ScaleFree"]


@runtime_checkable
class Learner(Protocol):
    """What an online learner must offer: a frozen dataclass of hyperparameters, with its state kept outside.

    Example:
        >>> isinstance(OGD(lr=0.1), Learner)
        True
    """

    @property
    def lr(self) -> float:
        """What ``lr`` of the parameter groups starts at; `update` is given their present ones."""

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Return the state of one parameter beside Δ, as tensors and plain numbers; ``delta`` is its Δ_1 = 0."""

    def update(self, deltas: Vector, grads: Vector, states: States, lrs: list[float], beta: float) -> None:
        """Replace Δ_t by Δ_{t+1}, in place, and update the states.

        The lists run over the parameters; together they are one vector of R^d.

        Args:
            deltas: Δ_t on entry, Δ_{t+1} on return.
            grads: g_t, not to be written to.
            states: what ``init`` returned, parameter by parameter.
            lrs: the current scale of every parameter.
            beta: the discount of the losses, in (0, 1].
        """


# A learner that treats every coordinate by itself may say ``elementwise = True``. It can then update some of the
# parameters alone, which saves memory; those without a gradient are skipped. With ``recalls = True`` its
# ``last_updates(states)`` computes the last Δ from the state, whose first entry has the shape of the parameter, and
# `ExponentiatedO2NC` stores no Δ: see `ScaleFree`.
