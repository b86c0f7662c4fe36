"""Online gradient descent without a ball: composite online mirror descent.

The paper's Theorem OGD, with ψ_t = ‖·‖²/(2η_t) and the two composite terms:

    Δ_{t+1} = (Δ_t − η_t g̃_t) / (1 + η_t μ_{t+1} + κ η_t (1/η_{t+1} − 1/η_t)).

κ = 1 is the update that the paper prints, κ = 2 the argmin that its theorem states. With η_t = β^t h_t:

    Δ_{t+1} = (Δ_t − h_t g_t) / (1 + h_t μ/β + κ(h_t/(β h_{t+1}) − 1)),

for a constant h: Δ_{t+1} = β(Δ_t − h g_t)/(β + hμ + κ(1 − β)). This is SGD with momentum: for κ = 1,
β̃ = β/(1 + hμ) and learning rate βh/(1 − β + hμ) on a momentum that is a mean (dampening β̃), or β̃h on torch's
default, a sum (dampening 0).

Regret, for nonincreasing η_t (h may grow by 1/β a step):

    κ = 1:  Reg_n(u) <= ‖u‖²/(2η_n) + ½ Σ_{t<=n} η_t‖g̃_t‖²
    κ = 2:  Reg_n(u) <= (2/η_{n+1} + μ_{n+1}/2)‖u‖² + ½ Σ_{t<=n} η_t‖g̃_t‖²     (Theorem OGD)
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from o2nc import checks
from o2nc.vector import States, Vector, combine_, number


@dataclass(frozen=True)
class OGD:
    """Composite online mirror descent on R^d; inside `ExponentiatedO2NC` it is SGD with momentum.

    Args:
        lr: η >= 0, in the units of torch.optim.SGD's lr (with decay 0: SGD's lr divided by β). A schedule acts on
            it; an lr of 0 plays Δ = 0 and so forgets the momentum.
        decay: μ >= 0, the strength of the variance regulariser (μ/2)‖Δ‖².
        kappa: 1 (default, the better constant) or 2.

    Example:
        With lr = η and no decay, β = 0.9 gives Δ_2 = −βηg_1 and Δ_3 = β(Δ_2 − ηg_2): momentum.

        >>> import torch
        >>> learner, delta = OGD(lr=0.1), torch.zeros(2)
        >>> states = [learner.init(delta)]
        >>> for _ in range(2):
        ...     learner.update([delta], [torch.tensor([1.0, -2.0])], states, [learner.lr], beta=0.9)
        ...     print(delta)
        tensor([-0.0900,  0.1800])
        tensor([-0.1710,  0.3420])
    """

    lr: float
    decay: float = 0.0
    kappa: int = 1
    elementwise: ClassVar[bool] = True
    device_rule: ClassVar[str] = "o2nc.fused.rules.learners:ogd"

    def __post_init__(self) -> None:
        checks.non_negative("lr", self.lr)
        checks.non_negative("decay", self.decay)
        checks.choice("kappa", self.kappa, (1, 2))

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Keep h_t, the lr of the last step; 0 before the first."""
        return {"last_lr": number()}

    def update(self, deltas: Vector, grads: Vector, states: States, lrs: list[float], beta: float) -> None:
        """Play Δ_{t+1} = (Δ_t − h_t g_t) / (…), one axpy."""
        a, b = [], []
        for state, h_next in zip(states, lrs, strict=True):
            h = float(state["last_lr"]) or h_next
            state["last_lr"].fill_(h_next)
            if h_next == 0:
                a.append(0.0)
                b.append(0.0)
                continue
            growth = h / (beta * h_next) - 1
            if self.kappa == 2:
                growth = max(growth, 0.0)  # faster growth than 1/β would make φ_t concave
            shrink = 1 + h * self.decay / beta + self.kappa * growth
            a.append(1 / shrink)
            b.append(-h / shrink)
        combine_(deltas, a, grads, b)
