"""What Adam and its relatives make of gradient and buffer: every coordinate divided by the size of its gradients.

    v_t = β₂v_{t−1} + (1 − β₂)g_t²
    Δ_{t+1} = −lr·φ_t·(a_tg_t + b_tm_t)/(√(v_t/c_t) + ε)             m_t = βm_{t−1} + g_t, as in `arms`

            β₂      a_t                         b_t                                  c_t
    Adam    0.95    0                           (1 − β)/(1 − β^t)                    1 − β₂^t
    NAdam   0.95    (1 − μ_t)/(1 − μ_1⋯μ_t)     μ_{t+1}(1 − β)/(1 − μ_1⋯μ_{t+1})     1 − β₂^t
    leader  β²      0                           1                                    1 − β₂

NAdam is torch's, whose lead grows slowly: μ_t = β(1 − ½·0.96^{0.004t}). The leader is o2nc's `ScaleFree`, with ε = 0.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

BETA2, EPS = 0.95, 1e-8


class Weights(NamedTuple):
    """a_t, b_t and c_t."""

    gradient: float
    buffer: float
    squares: float


class Adaptive(Protocol):
    """A relative of Adam's."""

    @property
    def eps(self) -> float:
        """ε."""

    def beta2(self, momentum: float) -> float:
        """Return β₂."""

    def weights(self, steps: int, momentum: float) -> list[Weights]:
        """Return the weights of steps 1, 2, …"""

    def length(self, momentum: float) -> float:
        """Return |Δ|/lr in the long run when a gradient does not change."""


@dataclass(frozen=True)
class Adam:
    """Adam without weight decay, with NAdam's lead if ``leads``."""

    leads: bool = False
    eps: float = EPS

    def beta2(self, momentum: float) -> float:
        """Return β₂."""
        return BETA2

    def weights(self, steps: int, momentum: float) -> list[Weights]:
        """Return the weights of steps 1, 2, …"""
        found = []
        product, mu = 1.0, _lead(1, momentum)
        for t in range(1, steps + 1):
            a, b = 0.0, (1 - momentum) / (1 - momentum**t)
            if self.leads:
                product, following = product * mu, _lead(t + 1, momentum)
                a, b = (1 - mu) / (1 - product), following * (1 - momentum) / (1 - product * following)
                mu = following
            found.append(Weights(a, b, 1 - BETA2**t))
        return found

    def length(self, momentum: float) -> float:
        """Return |Δ|/lr in the long run when a gradient does not change."""
        return 1.0


@dataclass(frozen=True)
class Leader:
    """Scale-free follow the regularised leader, by coordinate."""

    eps: float = 0.0

    def beta2(self, momentum: float) -> float:
        """Return β₂."""
        return momentum**2

    def weights(self, steps: int, momentum: float) -> list[Weights]:
        """Return the weights of steps 1, 2, …"""
        return [Weights(0.0, 1.0, 1 - self.beta2(momentum))] * steps

    def length(self, momentum: float) -> float:
        """Return |Δ|/lr in the long run when a gradient does not change."""
        return math.sqrt((1 + momentum) / (1 - momentum))


def _lead(t: int, momentum: float) -> float:
    return momentum * (1 - 0.5 * 0.96 ** (0.004 * t))
