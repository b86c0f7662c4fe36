"""The averages x̄, ḡ, V and the progress: their weights, their state, and how one iterate moves them.

The weights of earlier iterates fall by δ_n at step n; w_n is 1, or w(s_n) under a law that is weighted:

    W_n = w_n + δ_nW_{n−1},   γ_n = w_n/W_n,   e = x_n − x̄_{n−1},
    x̄_n = x̄_{n−1} + γ_n e,   ḡ_n = ḡ_{n−1} + γ_n(g_n − ḡ_{n−1}),   V_n = (1 − γ_n)(V_{n−1} + γ_n‖e‖²).

A window says what δ_n is. A constant β gives the weights of Algorithm 2, p_{n,t} ∝ β^{n−t}: the last 1/(1 − β) steps.
(n − 1)/(n − 1 + r) gives weights that grow like t^r (`Polynomial`): the last share of a run, however long it is.

V is Welford's update in float64; E‖x‖² − ‖x̄‖² would cancel. V, ‖ḡ‖² and ⟨g, Δ⟩ are sums over coordinates: they are
kept per parameter and added up only when asked, so a step never waits for the host.

x̄ in float32 would stand still where γe is below half a unit in its last place, which at β = 0.999 is a change of x by
3e-5 of itself. So it is rounded at random, up or down with the probabilities that make its mean right: before the
rounding (u − ½) units are added, with one u ~ U(0, 1) for all coordinates, a function of seed and n. That costs no
memory. The error of x̄ has mean 0 and, as long as x moves, a standard deviation of at most (8γ)^{−½} units; it fades
when x stands still.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from o2nc import checks
from o2nc.state import Field, Kind
from o2nc.vector import Scalar

FIELDS = {
    "average": Field(Kind.SHAPED),  # x̄
    "gradient": Field(Kind.SHAPED),  # ḡ; absent where it is read off the momentum buffer
    "spread": Field(Kind.SUM),  # V
    "progress": Field(Kind.SUM),  # Σ w⟨g, Δ⟩
    "output": Field(Kind.SHAPED, on_host=True),  # x̄ of a uniformly drawn step; replaced some ln N times in N steps
    "update": Field(Kind.SHAPED),  # the direction last added, where no other state tells it
    "rate": Field(Kind.NUMBER),  # what it was multiplied by: Δ = rate·update
    "log_decay": Field(Kind.NUMBER),  # −Σ log(1 − γ) up to when all this is
    "joined": Field(Kind.NUMBER),  # since when the parameter is there, see `Weights.joined`
}

# of the weights, in every parameter group, the same in each; how many averages there were, and whether the output is
# still to come: see `o2nc.scaling.Draw`
COUNTERS = ("weight_sum", "weight_square_sum", "log_decay", "averaged", "pending")
WHOLE = ("step", "averaged", "pending")  # those that are integers

ALL_GONE = 1e3  # as a decay: nothing is left of e^{−1000} in float64
EXPONENT = 0x7F800000  # the bits of a float32 that say in which power of two it lies

Inner: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Weights(NamedTuple):
    """Of the weights of all iterates: their sum, the sum of their squares, and −Σ log(1 − γ), their common decay."""

    total: float
    squares: float
    log_decay: float

    @property
    def concentration(self) -> float:
        """Σp², one over the effective sample size."""
        return self.squares / self.total**2

    @property
    def joined(self) -> float:
        """What a parameter notes that joins now: its first gradient stands for all that it has missed."""
        missed = 1 - self.concentration
        return self.log_decay + 0.5 * math.log(missed) if missed > 0 else -math.inf

    def ess(self, joined: float) -> float:
        """Return the effective sample size 1/Σp² of a parameter that joined then."""
        return 1 / (self.concentration + math.exp(2 * (joined - self.log_decay)))


def begin_counters() -> dict[str, Any]:
    """Return the counters before the first average."""
    return {key: 0 if key in WHOLE else 0.0 for key in COUNTERS}


def check_output(value: Any, average: Any) -> None:
    """Refuse ``value`` unless it is the name of a law of the output that goes with the window."""
    checks.choice("output", value, ("uniform", "geometric"))
    if value == "geometric" and average is not None and not isinstance(average, float):
        raise ValueError(f'output="geometric" needs an average with a discount β in (0, 1), got average={average!r}')


class Running(ABC):
    """A window over all iterates so far; one of your own is a frozen dataclass that inherits from it."""

    start: int = 0  # how many iterates pass before: until then x̄ is x itself, not to be asked for

    @abstractmethod
    def discount(self, n: int) -> float:
        """Return δ_n in [0, 1] for the n-th iterate that is averaged, n = 1, 2, …; δ_n = 0 begins anew."""

    def thinned(self, every: int) -> "Running":
        """Return the window for one iterate in ``every``, the first included: as long as this one."""
        return Thinned(self, every, -(-self.start // every))

    def weights(self, group: dict[str, Any]) -> Weights:
        """Return the weights so far, from a parameter group."""
        return Weights(*(group[key] for key in COUNTERS[:3]))

    def published(self, group: dict[str, Any]) -> Weights:
        """Return the weights of the averages that can be asked for: those so far."""
        return self.weights(group)

    def advance(self, before: Weights, n: int, weight: float) -> tuple[Weights, float]:
        """Return the weights with that of iterate n added, and γ_n."""
        discount = self.discount(n)
        total = weight + discount * before.total
        gamma = weight / total
        if gamma < 1:
            log_decay = before.log_decay - math.log1p(-gamma)
        else:  # the first iterate, or a δ below all rounding
            log_decay = before.log_decay + (ALL_GONE if before.total else 0.0)
        return Weights(total, weight**2 + discount**2 * before.squares, log_decay), gamma


@dataclass(frozen=True)
class Thinned(Running):
    """A window over one iterate in ``every``, which have the weights among each other that they have in another."""

    window: Running
    every: int
    start: int

    def discount(self, n: int) -> float:
        """Return the product of the window's discounts since the last iterate that was averaged."""
        last = (n - 1) * self.every + 1
        return math.prod(self.window.discount(k) for k in range(max(last - self.every, 0) + 1, last + 1))


@dataclass(frozen=True)
class Discount(Running):
    """The window of Algorithm 2: the weights of earlier iterates fall by β at every step."""

    beta: float

    def discount(self, n: int) -> float:
        """Return β."""
        return self.beta

    def thinned(self, every: int) -> "Discount":
        """Return the window for one iterate in ``every``, in closed form."""
        return Discount(self.beta**every)


@dataclass(frozen=True)
class Polynomial(Running):
    """A window that grows with the run: x̄_n weights x_t by about t^power, the last n/(power + 1) steps.

    There is no horizon in it: at every moment the window is the same share of the run. With a constant learning rate
    such an average is meant to do what a decayed learning rate does, at all lengths at once.

    Args:
        power: r >= 0; 0 is the plain mean, 12 the last 8 % of the run.
        start: how many iterates it lets pass, such as those of a warm-up.

    Example:
        >>> import torch, o2nc
        >>> x = torch.nn.Parameter(torch.tensor([3.0]))
        >>> opt = o2nc.ScaledSGDM([x], lr=0.1, scaling=None, average=o2nc.Polynomial(12))
        >>> for _ in range(60):
        ...     opt.zero_grad()
        ...     x.abs().sum().backward()
        ...     opt.step()
        >>> with opt.averaged():
        ...     bool(x.abs() < 0.1)
        True
    """

    power: float
    start: int = 0

    def __post_init__(self) -> None:
        checks.non_negative("power", self.power)
        checks.integer("start", self.start, 0)

    def discount(self, n: int) -> float:
        """Return (k − 1)/(k − 1 + r), with k iterates since the start."""
        before = n - self.start - 1
        return before / (before + self.power) if before > 0 else 0.0

    def thinned(self, every: int) -> "Polynomial":
        """Return the window for one iterate in ``every``, the first of them included."""
        return Polynomial(self.power, -(-self.start // every))


@dataclass(frozen=True)
class Blocks:
    """The window of Algorithm 1: uniform weights within a block, and nothing is left of the blocks before."""

    period: int
    start: ClassVar[int] = 0

    def weights(self, group: dict[str, Any]) -> Weights:
        """Return the weights so far, from a parameter group."""
        return self._after(group["step"])

    def published(self, group: dict[str, Any]) -> Weights:
        """Return the weights of the last block that is complete."""
        return self._after(group["step"] - group["step"] % self.period)

    def advance(self, before: Weights, n: int, weight: float) -> tuple[Weights, float]:
        """Return the weights with that of iterate n added, and γ_n."""
        after = self._after(n)
        return after, 1 / after.total

    def _after(self, n: int) -> Weights:
        block, steps = divmod(max(n, 1) - 1, self.period)
        return Weights(steps + 1, steps + 1, ALL_GONE * block + math.log(steps + 1))


Window: TypeAlias = Running | Blocks
Average: TypeAlias = float | Running | None  # what optimizers are asked for


def check_average(value: Any) -> Average:
    """Return ``value`` if it says how to average, or None; refuse it otherwise."""
    if value is None or (isinstance(value, Running) and not isinstance(value, Discount)):
        return value
    allowed = "a number in (0, 1), o2nc.Polynomial(power) or None"
    checks.number("average", value, allowed, lambda v: 0 < v < 1)
    return float(value)


class Coupling(NamedTuple):
    """What makes of ``.grad`` the gradient that a learner is given: scale·g + decay·x.

    The scale is −1 for ``maximize`` and undoes a scaled loss; the decay is coupled weight decay.
    """

    scale: float = 1.0
    decay: float = 0.0

    def __call__(self, g: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return it, in ``out`` if there is one, or g itself where there is nothing to do."""
        if self.scale != 1:
            g = torch.mul(g, self.scale, out=out)
        return g if self.decay == 0 else torch.add(g, x, alpha=self.decay, out=out)


class Iterate(NamedTuple):
    """What one parameter, block or pack brings along; u is the direction of its last update."""

    x: Tensor
    g: Tensor
    u: Tensor | None
    x_mean: Tensor
    g_mean: Tensor | None

    def split(self, size: int) -> list["Iterate"]:
        """Cut contiguous tensors into flat blocks."""
        flat = Iterate(*(t if t is None or t.dim() == 1 else t.view(-1) for t in self))  # type: ignore[arg-type]
        n = self.x.numel()
        if n <= size:
            return [flat]
        columns = [None if t is None else t.split(size) for t in flat]
        blocks = ((None if c is None else c[k] for c in columns) for k in range(-(-n // size)))
        return [Iterate(*block) for block in blocks]  # type: ignore[arg-type]


def move_(
    iterate: Iterate,
    gamma: Scalar,
    coupling: Coupling,
    inner: Inner,
    scratch: list[Tensor] | None = None,
    dither: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Move x̄ and ḡ by one iterate, in place; return ‖x − x̄_before‖² and ⟨gradient, u⟩.

    Args:
        iterate: with its averages; a stack of independent runs will do, with an ``inner`` by run.
        gamma: γ_n, a number, or a tensor that broadcasts against x.
        coupling: what makes of g the gradient that the learner is given.
        inner: the inner product.
        scratch: room for three temporaries.
        dither: u − ½, for the rounding of x̄ in float32; 0 rounds to the nearest.
    """
    x_mean, g_mean = iterate.x_mean, iterate.g_mean
    dtype = x_mean.dtype
    for_e, for_g, for_grid = scratch or (None, None, None)
    is_first = not isinstance(gamma, Tensor) and gamma == 1
    x = iterate.x.to(dtype)
    g = coupling(iterate.g.to(dtype), x, out=for_g)
    e = torch.sub(x, x_mean, out=for_e)
    square = inner(e, e)
    slope = square if iterate.u is None else inner(g, iterate.u.to(dtype))
    if g_mean is not None:
        g_mean.copy_(g) if is_first else g_mean.lerp_(g, gamma)
    if is_first:
        x_mean.copy_(x)
    elif dither and dtype == torch.float32:
        # e += (dither/γ)·unit·sign(e), x̄ += γe; where e = 0 nothing is added, so that what stands still stays
        out = None if for_grid is None else for_grid.view(torch.int32)
        power = torch.bitwise_and(x_mean.view(torch.int32), EXPONENT, out=out).view(dtype)
        e.addcmul_(power, torch.sign(e, out=for_g), value=dither * 2.0**-23 / float(gamma))
        x_mean.add_(e, alpha=float(gamma))
    else:
        x_mean.lerp_(x, gamma)
    return square, slope


def widen_(spread: Tensor, square: Tensor, gamma: Scalar) -> None:
    """Set V ← (1 − γ)(V + γ‖e‖²), in place."""
    if not isinstance(gamma, Tensor) and gamma == 1:  # a first iterate wipes whatever was before, be it infinite
        spread.zero_()
    else:
        spread.add_(square * gamma).mul_(1 - gamma)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Return ⟨a, b⟩ in float64."""
    return (a * b).sum(dtype=torch.float64)


def segments(lengths: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the inner products of vectors that stand one behind the other."""
    return torch.segment_reduce(a.double() * b, "sum", lengths=lengths, unsafe=True)
