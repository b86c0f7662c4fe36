"""The arithmetic of the averages: x̄, ḡ, V and the progress, one iterate at a time.

With the weights of Algorithm 2, p_{n,t} ∝ β^{n−t} (times w(s_t) under a law other than Exp):

    W_n = w_n + βW_{n−1},   γ_n = w_n/W_n,   e = x_n − x̄_{n−1},
    x̄_n = x̄_{n−1} + γ_n e,   ḡ_n = ḡ_{n−1} + γ_n(g_n − ḡ_{n−1}),   V_n = (1 − γ_n)(V_{n−1} + γ_n‖e‖²).

V is Welford's update in float64; E‖x‖² − ‖x̄‖² would cancel. V, ‖ḡ‖² and ⟨g, Δ⟩ are sums over coordinates: they are
kept per parameter and added up only when asked, so a step never waits for the host.

x̄ in float32 would stand still where γe is below half a unit in its last place, which at β = 0.999 is a change of x by
3e-5 of itself. So it is rounded at random, up or down with the probabilities that make its mean right: before the
rounding (u − ½) units are added, with one u ~ U(0, 1) for all coordinates, a function of seed and n. That costs no
memory. The error of x̄ has mean 0 and, as long as x moves, a standard deviation of at most (8γ)^{−½} units; it fades
when x stands still.

The weights are those of the joint iterate, the same for all parameters; one without a gradient counts with the
gradient zero. It is left alone until it has one again, or is asked for: the product of the 1 − γ that it missed is
exp(−difference of ``log_decay``), and with it in the place of one 1 − γ the formulas above make up for all of them.
"""

import math
from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from o2nc.torch_private import flatten
from o2nc.vector import Scalar, real, wide

# Tensors of up to _SMALL elements are packed together, larger ones are worked on in blocks: on a CPU a block and its
# temporaries then stay in the cache. Elsewhere blocks only bound the temporaries.
_SMALL = 1 << 14
_CPU_BLOCK = 1 << 19
_DEVICE_BLOCK = 1 << 24

# The state of the averages: of the parameter's own shape; sums over its coordinates, and so over the processes that
# have a shard of it; all of it.
SHAPED = ("average", "gradient", "output", "update", "block_average")
SUMS = ("spread", "progress", "block_spread", "block_gradient_squared")
NUMBERS = ("rate", "log_decay", "joined")
STATE = (*SHAPED, *SUMS, *NUMBERS)

_EXPONENT = 0x7F800000  # the bits of a float32 that say in which power of two it lies

Then: TypeAlias = Callable[[list[Tensor], list[Tensor], Any], None]


class Weights(NamedTuple):
    """Of the weights of all iterates: their sum, the sum of their squares, and −Σ log(1 − γ), their common decay."""

    total: float
    squares: float
    log_decay: float

    def add(self, weight: float, discount: float) -> tuple["Weights", float]:
        """Return the sums with one more weight, and γ, the share of that weight."""
        w = weight + discount * self.total
        gamma = weight / w
        log_decay = self.log_decay - (math.log1p(-gamma) if gamma < 1 else 0.0)
        return Weights(w, weight**2 + discount**2 * self.squares, log_decay), gamma

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


class Seen(NamedTuple):
    """The gradient that the learner sees, scale·g + decay·x.

    The scale is −1 for ``maximize`` and undoes a scaled loss; the decay is coupled weight decay.
    """

    scale: float = 1.0
    decay: float = 0.0

    def __call__(self, g: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return it, in ``out`` if there is one, or g itself where there is nothing to do."""
        if self.scale != 1:
            g = torch.mul(g, self.scale, out=out)
        return g if self.decay == 0 else torch.add(g, x, alpha=self.decay, out=out)


def start(x: Tensor, gradient: Tensor | None, weights: Weights | None = None) -> dict[str, Any]:
    """Return the statistics of one parameter at its first step.

    A parameter that joins late stood still before: x̄ = x. Its earlier gradients were not seen and count as the first.

    Args:
        x: the parameter, as a real tensor.
        gradient: the gradient that the learner sees, or None when the momentum buffer tells ḡ.
        weights: those of the iterates, this one included; None where a kernel will fill in what depends on them.
    """
    state: dict[str, Any] = {"average": x.detach().to(wide(x.dtype), copy=True)}
    if gradient is not None:
        state["gradient"] = gradient.detach().to(wide(x.dtype), copy=True)
    for key in ("spread", "progress"):
        state[key] = x.new_zeros((), dtype=torch.float64)
    state["rate"] = 0.0  # Δ = rate·update: the first Δ is zero
    state["log_decay"] = math.nan if weights is None else weights.log_decay
    state["joined"] = -math.inf if weights is None else weights.joined
    return state


@torch.no_grad()
def catch_up_(x: Tensor, state: dict[str, Any], share: float, dither: float) -> None:
    """Bring the averages of a parameter up to date that stood still at x, without a gradient, for a while.

    Args:
        x: the parameter, as a real tensor.
        state: its state.
        share: what is left of the weight of what was averaged before, the product of the 1 − γ since.
        dither: u − ½, for the rounding.
    """
    row = Row(x, x, None, state["average"], None)
    square, _ = move_(row, 1 - share, Seen(), _inner, dither=dither)
    widen_(state["spread"], square, 1 - share)
    if "gradient" in state:
        state["gradient"].mul_(share)


class Ledger:
    """The averages of parameters that step together, laid out once and used as long as they do.

    State stays keyed by parameter; the ledger makes the entries of small parameters views of a few flat vectors, so
    that a step takes a handful of operations however many there are. It holds no state of its own: dropping it costs
    only the time to lay out the next.
    """

    def __init__(self, params: list[Tensor], states: list[dict[str, Any]], grads: list[Tensor]) -> None:
        self.params = params
        self.states = states
        kinds: dict[Any, list[int]] = {}
        for i, (p, state, g) in enumerate(zip(params, states, grads, strict=True)):
            kinds.setdefault((p.dtype, g.dtype, p.device, "gradient" in state), []).append(i)
        self._bunches = [_Bunch(indices, [states[i] for i in indices]) for indices in kinds.values()]
        self._views = _laid_out(states)
        self.has_complex = any(p.is_complex() for p in params)
        self.own_gradients = all("gradient" in state for state in states)

    def holds(self, params: list[Tensor], owner: dict[Tensor, Any]) -> bool:
        """Say whether the ledger is of these parameters and their state is still as it was laid out."""
        return (
            len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and all(map(is_, map(owner.get, params), self.states))
            and all(map(is_, self._views, _laid_out(self.states)))
        )

    @torch.no_grad()
    def add_(
        self,
        grads: list[Tensor],
        updates: list[Tensor] | None,
        gamma: float,
        *,
        weight: float = 1.0,
        seen: Seen = Seen(),
        then: Then | None = None,
        dither: float = 0.0,
    ) -> None:
        """Take the parameters as they are now, and their gradients, into the averages.

        Args:
            grads: the gradients.
            updates: the directions of the updates that led here (Δ = rate·update), None when there were none.
            gamma: γ_n, the weight of this iterate in the averages.
            weight: w(s_n), the weight of ⟨g, Δ⟩ in the progress.
            seen: what makes of g the gradient that the learner sees.
            then: called with x, g and update of each block after its turn, while they are in the cache.
            dither: u − ½, for the rounding of x̄.
        """
        xs, gs, us = self.params, grads, updates
        if self.has_complex:
            xs, gs = [real(p) for p in xs], [real(g) for g in gs]
            us = None if us is None else [real(u) for u in us]
        for bunch in self._bunches:
            bunch.add_(xs, gs, us, gamma, weight, seen, then, dither)


class _Bunch:
    """The parameters of one ledger that share dtype and device: first the small ones, then the large."""

    def __init__(self, indices: list[int], states: list[dict[str, Any]]) -> None:
        sizes = [state["average"].numel() for state in states]
        order = sorted(range(len(states)), key=lambda k: sizes[k] > _SMALL)
        self.indices = [indices[k] for k in order]
        self.states = [states[k] for k in order]
        self.n_small = sum(n <= _SMALL for n in sizes)
        self.spread = _as_views(self.states, "spread")
        self.progress = _as_views(self.states, "progress")
        device = self.spread.device
        if self.n_small:
            small = self.states[: self.n_small]
            self.x_mean = _as_views(small, "average")
            self.g_mean = _as_views(small, "gradient") if "gradient" in small[0] else None
            self.lengths = torch.tensor([state["average"].numel() for state in small], device="cpu").to(device)
        # A fresh temporary costs a CPU more than the arithmetic on it; elsewhere the allocator keeps them at hand.
        on_cpu = device.type == "cpu"
        self.block = _CPU_BLOCK if on_cpu else _DEVICE_BLOCK
        room = min(self.block, max(sizes)) if on_cpu and self.n_small < len(states) else 0
        self.scratch = [torch.empty(room, dtype=states[0]["average"].dtype, device=device) for _ in range(3)]
        self._counts: tuple[list[int], Tensor | None] = ([], None)

    def add_(
        self,
        xs: list[Tensor],
        gs: list[Tensor],
        us: list[Tensor] | None,
        gamma: float,
        weight: float,
        seen: Seen,
        then: Then | None,
        dither: float,
    ) -> None:
        """Take this iterate in: the pack of small parameters, the blocks of large ones, then the sums."""
        squares, slopes = [], []
        if self.n_small:
            at = self.indices[: self.n_small]
            x, g = [xs[i] for i in at], [gs[i] for i in at]
            u = None if us is None else [us[i] for i in at]
            row = Row(_flat(x), _flat(g), None if u is None else _flat(u), self.x_mean, self.g_mean)
            square, slope = move_(row, gamma, seen, self._segments, dither=dither)
            squares.append(square)
            slopes.append(slope)
            if then is not None and u is not None:
                then(x, g, u)
        blocks: list[tuple[Tensor, Tensor]] = []
        counts: list[int] = []
        waiting: list[Row] = []
        for i, state in zip(self.indices[self.n_small :], self.states[self.n_small :], strict=True):
            whole = Row(xs[i], gs[i], None if us is None else us[i], state["average"], state.get("gradient"))
            flat = all(t is None or t.is_contiguous() for t in whole)
            rows = whole.split(self.block) if flat else [whole]
            counts.append(len(rows))
            for row in rows:
                scratch = [t[: row.x.numel()] for t in self.scratch] if flat and len(self.scratch[0]) else None
                blocks.append(move_(row, gamma, seen, torch.dot if flat else _inner, scratch, dither))
                waiting.append(row)
                if then is not None and sum(r.x.numel() for r in waiting) >= self.block:
                    then(*([r[c] for r in waiting] for c in range(3)))  # type: ignore[arg-type]
                    waiting = []
        if then is not None and waiting:
            then(*([r[c] for r in waiting] for c in range(3)))  # type: ignore[arg-type]
        if blocks:
            squares.append(self._by_parameter([b[0] for b in blocks], counts))
            slopes.append(self._by_parameter([b[1] for b in blocks], counts))
        widen_(self.spread, torch.cat(squares), gamma)
        if us is not None:  # the progress grows by rate·⟨g, u⟩
            rates = [state["rate"] * weight for state in self.states]
            if all(rate == rates[0] for rate in rates):
                self.progress.add_(torch.cat(slopes), alpha=rates[0])
            else:
                moved = torch.tensor(rates, dtype=torch.float64, device="cpu").to(self.progress.device)
                self.progress.add_(torch.where(moved == 0, 0.0, moved * torch.cat(slopes)))

    def _segments(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the inner products of packed small parameters."""
        return torch.segment_reduce(a.double() * b, "sum", lengths=self.lengths, unsafe=True)

    def _by_parameter(self, sums: list[Tensor], counts: list[int]) -> Tensor:
        """Add up the sums of the blocks of every parameter, in a fixed order."""
        if self._counts[0] != counts or self._counts[1] is None:
            self._counts = (counts, torch.tensor(counts, device="cpu").to(self.spread.device))
        return torch.segment_reduce(torch.stack(sums).double(), "sum", lengths=self._counts[1], unsafe=True)


class Row(NamedTuple):
    """What one parameter, block or pack brings along; u is the direction of its last update."""

    x: Tensor
    g: Tensor
    u: Tensor | None
    x_mean: Tensor
    g_mean: Tensor | None

    def split(self, size: int) -> list["Row"]:
        """Cut contiguous tensors into flat blocks."""
        flat = Row(*(t if t is None or t.dim() == 1 else t.view(-1) for t in self))  # type: ignore[arg-type]
        n = self.x.numel()
        if n <= size:
            return [flat]
        columns = [None if t is None else t.split(size) for t in flat]
        return [Row(*(None if c is None else c[k] for c in columns)) for k in range(-(-n // size))]  # type: ignore[arg-type]


def move_(
    row: Row,
    gamma: Scalar,
    seen: Seen,
    inner: Callable[[Tensor, Tensor], Tensor],
    scratch: list[Tensor] | None = None,
    dither: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Move x̄ and ḡ by one iterate, in place; return ‖x − x̄_before‖² and ⟨gradient, u⟩.

    Args:
        row: the iterate and its averages; a stack of independent runs will do, with an ``inner`` by run.
        gamma: γ_n, a number, or a tensor that broadcasts against x.
        seen: what makes of g the gradient that the learner sees.
        inner: the inner product.
        scratch: room for three temporaries.
        dither: u − ½, for the rounding of x̄ in float32; 0 rounds to the nearest.
    """
    dtype = row.x_mean.dtype
    for_e, for_g, for_grid = scratch or (None, None, None)
    x = row.x.to(dtype)
    g = seen(row.g.to(dtype), x, out=for_g)
    e = torch.sub(x, row.x_mean, out=for_e)
    square = inner(e, e)
    slope = square if row.u is None else inner(g, row.u.to(dtype))
    if row.g_mean is not None:
        row.g_mean.copy_(g) if _is_first(gamma) else row.g_mean.lerp_(g, gamma)
    if _is_first(gamma):
        row.x_mean.copy_(x)
    elif dither and dtype == torch.float32:
        # e += (dither/γ)·unit·sign(e), x̄ += γe; where e = 0 nothing is added, so that what stands still stays
        out = None if for_grid is None else for_grid.view(torch.int32)
        power = torch.bitwise_and(row.x_mean.view(torch.int32), _EXPONENT, out=out).view(dtype)
        e.addcmul_(power, torch.sign(e, out=for_g), value=dither * 2.0**-23 / float(gamma))
        row.x_mean.add_(e, alpha=float(gamma))
    else:
        row.x_mean.lerp_(x, gamma)
    return square, slope


def widen_(spread: Tensor, square: Tensor, gamma: Scalar) -> None:
    """Set V ← (1 − γ)(V + γ‖e‖²), in place."""
    if _is_first(gamma):  # a first iterate wipes whatever was before, be it infinite
        spread.zero_()
    else:
        spread.add_(square * gamma).mul_(1 - gamma)


def _is_first(gamma: Scalar) -> bool:
    return not isinstance(gamma, Tensor) and gamma == 1


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dtype=torch.float64)


def _flat(tensors: list[Tensor]) -> Tensor:
    if all(t.dim() == 1 for t in tensors):
        return torch.cat(tensors)
    return flatten(tensors)


def _laid_out(states: list[dict[str, Any]]) -> list[Any]:
    return [state.get(key) for key in ("average", "gradient", "spread", "progress") for state in states]


def _as_views(states: list[dict[str, Any]], key: str) -> Tensor:
    """Make ``state[key]`` of all states views of one flat vector, and return it."""
    shapes = [state[key].shape for state in states]
    flat = torch.cat([state[key].reshape(-1) for state in states])
    pieces = flat.split([shape.numel() for shape in shapes])
    for state, piece, shape in zip(states, pieces, shapes, strict=True):
        state[key] = piece.view(shape)
    return flat
