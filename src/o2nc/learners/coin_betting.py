"""Coin betting: a parameter-free learner; it has a wealth to start from instead of a learning rate.

Naive form, with G_t = β^{−t}G >= ‖g̃_t‖: at every step bet a fraction of the wealth against the gradients,

    Δ_t = −W_{t−1} Σ_{s<t} g̃_s / (G_t(G_t + Σ_{s<t}‖g̃_s‖)),
    W_t = W_{t−1} + ε(β^{−t} − β^{1−t}) − ⟨g̃_t, Δ_t⟩,     W_0 = ε.

The middle term endows the bettor again at every step, since a fixed ε is worth ever less among growing losses.
Discounted, with w_t = β^t W_t and A_t = βA_{t−1} + ‖g_t‖:

    Δ_{t+1} = −β² w_t M_t / (G(G + βA_t)),     w_t = βw_{t−1} + (1 − β)ε − ⟨g_t, Δ_t⟩.

The wealth is kept as w_t = ε + Σ_p r_p, one share per parameter, r_p ← βr_p − ⟨g_p, Δ_p⟩, and A in the same way.

Regret. The wealth stays positive, so at u = 0, for every β:

    Reg_n(0) <= β^{−n} ε.

For β = 1 and any u, with a = G(G + A_n) (Orabona and Tommasi 2017 by coordinate; here for the joint norm):

    Reg_n(u) <= ε + ‖u‖ sqrt(a ln(1 + a(1 + A_n/G)‖u‖²/ε²)).

For β < 1 and u ≠ 0 no closed bound is claimed. While the gradient points one way at full length the wealth grows by
up to β + β² a step, exponentially when β > 0.62; it is capped at the square root of the dtype's range.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from o2nc import checks
from o2nc.persist.private import foreach_copy_
from o2nc.vector import States, Vector, add_shares_, combine_, dots, scale_, squares


@dataclass(frozen=True)
class CoinBetting:
    """Parameter-free betting on the joint norm.

    ``param_groups[i]["lr"]`` is a multiplier of the bet that starts at 1, so that schedules have something to act on.

    Args:
        wealth: ε > 0, the initial wealth and its endowment: what may be lost in all.
        lipschitz: G > 0, a bound on the gradient's joint norm. A longer gradient is shortened to it.

    Example:
        The bets grow as long as they are won.

        >>> import torch
        >>> learner, delta = CoinBetting(wealth=1.0, lipschitz=1.0), torch.zeros(1)
        >>> states = [learner.init(delta)]
        >>> for _ in range(3):
        ...     learner.update([delta], [torch.tensor([-1.0])], states, [learner.lr], beta=1.0)
        ...     print(f"{delta.item():.3f}")
        0.500
        1.000
        1.875
    """

    wealth: float = 1.0
    lipschitz: float = 1.0
    lr: ClassVar[float] = 1.0  # a multiplier of the bet; up to 1 the wealth stays positive

    def __post_init__(self) -> None:
        checks.positive("wealth", self.wealth)
        checks.positive("lipschitz", self.lipschitz)

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Keep M_t and this parameter's shares of the gain w_t − ε and of A_t."""
        zero = delta.new_zeros((), dtype=torch.float64)
        return {"momentum": torch.zeros_like(delta), "gain": zero, "sum_norms": zero.clone()}

    def update(self, deltas: Vector, grads: Vector, states: States, lrs: list[float], beta: float) -> None:
        """Settle the last bet, then place the next one."""
        m, gains, norms = ([state[key] for state in states] for key in ("momentum", "gain", "sum_norms"))
        sq = squares(grads)
        norm = sq.sum().sqrt()
        shorten = (self.lipschitz / norm).clamp(max=1.0)
        # the shares ‖g_p‖²/‖g‖ add up to ‖g‖
        share = sq / norm.clamp(min=torch.finfo(torch.float64).tiny)
        wealth = self.wealth + add_shares_(gains, beta, -shorten * dots(grads, deltas))
        a = add_shares_(norms, beta, shorten * share)
        combine_(m, [beta] * len(m), grads, [shorten] * len(m))
        # a multiplier above 1 can lose all; a gradient that never turns multiplies the wealth for ever
        wealth = wealth.clamp(min=0.0, max=torch.finfo(deltas[0].dtype).max ** 0.5)
        bet = -(beta**2) * wealth / (self.lipschitz * (self.lipschitz + beta * a))
        foreach_copy_(deltas, m)
        scale_(deltas, [bet * multiplier for multiplier in lrs])
