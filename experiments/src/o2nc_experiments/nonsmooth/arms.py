"""What is compared: momentum and its relatives, each a value made of factors.

    x̄_t = x̄_{t−1} + γ_t(x_t − x̄_{t−1})                   window
    y_t = (1 − κ_t)(x_t − u_tΔ_t) + κ_tx̄_t               query, anchor: where the gradient g_t is asked for
    m_t = βm_{t−1} + g_t                                  momentum
    Δ_{t+1} = −lr·φ_t·m_t                                 schedule; nesterov has g_t + βm_t in place of m_t
    x_{t+1} = x_t + s_{t+1}Δ_{t+1}                        law

Without query and anchor y_t = x_t, without a law s = 1. The query has u_t ~ U(0, 1): the gradient is asked for
anywhere on the last step. An anchor has κ_t ~ U(low, high): near x̄, and with β = 0 this is schedule-free SGD. An
arm that is `adaptive` steps as Adam or a relative does, also as schedule-free AdamW. What an arm hands back is x̄_n if
it has a window, where its last decay ended if it restarts, else x_{n+1}.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from o2nc import Exponential, Gamma, Law, Polynomial, Uniform
from o2nc.scaling import uniform
from o2nc_experiments.nonsmooth.adaptive import Adam, Adaptive, Leader


class Schedule(Protocol):
    """φ_t, and whether it must know where the run ends."""

    @property
    def has_horizon(self) -> bool:
        """Whether φ depends on the number of steps."""

    def factor(self, t: int, steps: int) -> float:
        """Return φ_t of a run of so many steps, t = 1, 2, …"""


@dataclass(frozen=True)
class Decay:
    """Constant, then linearly to 0 over the last share of the run: 1 is linear decay, 0.2 is WSD 20 %."""

    share: float = 1.0
    has_horizon: ClassVar[bool] = True

    def factor(self, t: int, steps: int) -> float:
        """Return min(1, what is left of the run over the share)."""
        return min(1.0, (steps - t + 1) / (self.share * steps))


@dataclass(frozen=True)
class Power:
    """t^{−p}; 0 is a constant learning rate."""

    exponent: float = 0.0
    has_horizon: ClassVar[bool] = False

    def factor(self, t: int, steps: int) -> float:
        """Return t^{−p}."""
        return t**-self.exponent


@dataclass(frozen=True)
class Restarts:
    """Linear decays one after the other, each twice as long as the one before.

    Each begins at the full learning rate, or at (first/length)^fall of it. With a trunk a decay is a branch: a
    constant run is left for the last fifth of every doubling, and taken up again where it was left. The steps of the
    branches count.

    Args:
        trunk: whether decays are branches.
        fall: how the peaks fall, an exponent.
        first: the length of the first decay, with its part of the trunk.

    Example:
        >>> Restarts(first=2).ends(10), Restarts(trunk=True, first=10).ends(20)
        ({2: None, 6: None}, {10: 9, 20: 19})
    """

    trunk: bool = False
    fall: float = 0.0
    first: int = 50
    has_horizon: ClassVar[bool] = False

    def _decays(self, steps: int) -> list[tuple[int, int]]:
        """Return the first and the last step of every decay that begins within so many steps."""
        found: list[tuple[int, int]] = []
        begins, length = 1, self.first
        while begins <= steps:
            ends = begins + length - 1
            share = max(1, length // 5) if self.trunk else length
            found.append((ends - share + 1, ends))
            begins, length = ends + 1, length * (1 if self.trunk and not found[1:] else 2)
        return found

    def ends(self, steps: int) -> dict[int, int | None]:
        """Return the steps after which a decay has ended, each with the step before which the run goes on."""
        return {last: first if self.trunk else None for first, last in self._decays(steps) if last <= steps}

    def factor(self, t: int, steps: int) -> float:
        """Return what is left of the decay under way, 1 on the trunk."""
        first, last = next(decay for decay in self._decays(t) if t <= decay[1])
        peak = 1.0 if self.trunk else (self.first / (last - first + 1)) ** self.fall
        return peak * min(1.0, (last - t + 1) / (last - first + 1))


@dataclass(frozen=True)
class Unweighted:
    """What a law without a density has in place of weights: none, since nothing here uses them."""

    estimates: ClassVar[bool] = False

    def weight(self, s: float) -> float:
        """Return nan."""
        return math.nan


@dataclass(frozen=True)
class TwoPoint(Unweighted):
    """s = 1 − w or 1 + w, as a coin falls."""

    width: float

    def sample(self, seed: int, step: int) -> float:
        """Return s_step."""
        return 1 + self.width if uniform(seed, step) < 0.5 else 1 - self.width


@dataclass(frozen=True)
class Rare(Unweighted):
    """s of a law in every so many steps, and 1 in the others."""

    law: Law
    every: int

    def sample(self, seed: int, step: int) -> float:
        """Return s_step."""
        return self.law.sample(seed, step) if step % self.every == 0 else 1.0


@dataclass(frozen=True)
class Fading(Unweighted):
    """1 + √φ·(s − 1): a law whose variance falls with a linearly decayed learning rate."""

    law: Law
    steps: int = 0  # of the run; `Arm.prepared` fills it in

    def sample(self, seed: int, step: int) -> float:
        """Return s_step; the law's scalar of step t + 1 belongs to the update at step t."""
        return 1 + math.sqrt(max(Decay().factor(step - 1, self.steps), 0.0)) * (self.law.sample(seed, step) - 1)


@dataclass(frozen=True)
class Arm:
    """One way to train; the module's docstring has the factors."""

    name: str
    schedule: Schedule = Decay()
    law: Law | None = None
    query: bool = False
    nesterov: bool = False
    momentum: float = 0.9
    window: Polynomial | float | None = None
    anchor: tuple[float, float] | None = None
    adaptive: Adaptive | None = None

    def prepared(self, steps: int) -> "Arm":
        """Return the arm for a run of so many steps."""
        return replace(self, law=replace(self.law, steps=steps)) if isinstance(self.law, Fading) else self


REFERENCE = Arm("SGDM")


def jitter(width: float) -> Uniform:
    """Return U(1 − w, 1 + w)."""
    return Uniform(1 - width, 1 + width)


LAWS: dict[str, Law] = {
    "Exp(1)": Exponential(),
    "U(0, 2)": jitter(1.0),
    "U(½, 3/2)": jitter(0.5),
    "U(¾, 5/4)": jitter(0.25),
    "U(0.9, 1.1)": jitter(0.1),
    **{f"Gamma({k})": Gamma(float(k)) for k in (2, 4, 16, 64)},
}
# with linear decay: what randomness costs
RANDOM = [
    REFERENCE,
    *(Arm(name, law=law) for name, law in LAWS.items()),
    Arm("½ or 3/2", law=TwoPoint(0.5)),
    Arm("¾ or 5/4", law=TwoPoint(0.25)),
    Arm("every fifth step Exp(1)", law=Rare(Exponential(), 5)),
    Arm("Exp(1) that fades", law=Fading(Exponential())),
    Arm("U(0, 2) that fades", law=Fading(jitter(1.0))),
    Arm("query", query=True),
    Arm("query, Nesterov", query=True, nesterov=True),
    Arm("Nesterov", nesterov=True),
    *(
        Arm(f"Nesterov, {name}", law=LAWS[name], nesterov=True)
        for name in ("Exp(1)", "U(0, 2)", "U(½, 3/2)", "U(¾, 5/4)", "Gamma(16)")
    ),
    Arm("Nesterov, U(0, 2) that fades", law=Fading(jitter(1.0)), nesterov=True),
]
# other decays, to be measured against
DECAYED = [Arm("SGDM, WSD 20 %", Decay(0.2)), Arm("AdamW", adaptive=Adam())]
# other optimizers, each without a law and with some: the same again
OTHERS = [
    arm
    for plain in (DECAYED[-1], Arm("NAdam", adaptive=Adam(leads=True)), Arm("ScaleFree", adaptive=Leader()))
    for arm in (
        plain,
        *(
            replace(plain, name=f"{plain.name}, {law}", law=LAWS[law])
            for law in ("Exp(1)", "U(0, 2)", "Gamma(4)", "Gamma(16)", "U(¾, 5/4)")
        ),
    )
]


def _free(
    name: str, power: float, anchor: tuple[float, float], exponent: float = 0.0, adaptive: Adaptive | None = None
) -> Arm:
    schedule, window = Power(exponent), Polynomial(power)
    return Arm(name, schedule, momentum=0.0, window=window, anchor=anchor, adaptive=adaptive)


# without a horizon: one run, read off wherever one likes
FREE = [
    Arm("constant, last iterate", Power()),
    *(Arm(f"constant, x̄ by t^{r}", Power(), window=Polynomial(r)) for r in (4, 8, 12)),
    Arm("constant, x̄ by 0.99^age", Power(), window=0.99),
    Arm("t^−½, last iterate", Power(0.5)),
    Arm("t^−½, x̄ by t^12", Power(0.5), window=Polynomial(12)),
    Arm("t^−¾, x̄ by t^12", Power(0.75), window=Polynomial(12)),
    *(_free(f"anchor U(0.9, 1), t^{r}", r, (0.9, 1.0)) for r in (0, 3)),
    _free("anchor 0.98, t^3", 3, (0.98, 0.98)),
    _free("anchor 0.98, t^3, lr t^−½", 3, (0.98, 0.98), 0.5),
    _free("anchor 0.98, t^3, lr 1/t", 3, (0.98, 0.98), 1.0),
    _free("schedule-free AdamW, 0.9, t^0", 0, (0.9, 0.9), adaptive=Adam()),
    _free("schedule-free AdamW, 0.95, t^3", 3, (0.95, 0.95), adaptive=Adam()),
    Arm("restarts", Restarts()),
    Arm("restarts, Nesterov", Restarts(), nesterov=True),
    Arm("restarts, Nesterov, peaks fall", Restarts(fall=0.5), nesterov=True),
    Arm("branches of a trunk", Restarts(trunk=True)),
]
ARMS = {arm.name: arm for arm in (*RANDOM, *DECAYED, *OTHERS, *FREE)}
