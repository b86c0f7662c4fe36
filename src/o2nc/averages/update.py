"""The averages: how they are initialized, and how one iterate updates them.

    e = x − x̄,   x̄ ← x̄ + γe,   ḡ ← ḡ + γ(g − ḡ),   V ← (1 − γ)(V + γ‖e‖²)

V is Welford's update in float64 (E‖x‖² − ‖x̄‖² would cancel). Everything is kept per parameter and summed when it is
read, so a step never synchronizes with the host, and shards and layers come for free.

In float32, x̄ would not move where γe is less than half a unit in its last place; at β = 0.999 that is a change of x
by 3e-5 of itself. So x̄ is rounded stochastically: u − ½ units are added before rounding, with one u ~ U(0, 1) for all
coordinates, a function of seed and step. That needs no memory and is unbiased; the error has a standard deviation of
at most (8γ)^(−½) units as long as x moves.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from o2nc.averages.windows import Turn
from o2nc.scaling import Draw
from o2nc.vector import wide

Entry: TypeAlias = dict[str, Any]  # ``state[p]["o2nc"]``
AVERAGES = ("average", "gradient", "spread")  # its keys of x̄, ḡ and V; the last two are there with a certificate

EXPONENT = 0x7F800000  # the exponent bits of a float32
CPU_SLICE, DEVICE_SLICE = 1 << 17, 1 << 24  # elements: temporaries stay in a CPU's cache, and small elsewhere
_SMALLEST, _LARGEST = 1e-12, 1e18  # norms between which float32 neither underflows nor overflows


class Row(NamedTuple):
    """One parameter in one step."""

    param: Any
    x: Any  # its value and its gradient, if it has one, as real local tensors
    g: Any
    entry: Entry  # empty for a new parameter
    group: dict[str, Any]


class Iterate(NamedTuple):
    """One step's x_t, g_t and random numbers."""

    t: int
    turn: Turn
    draw: Draw
    rows: Sequence[Row]  # of the parameters that averages or learners need
    stands_in: bool = False  # whether torch takes this step because our kernels cannot


def begin(x: Tensor, g: Tensor | None, since: int, *, offload: bool = False) -> Entry:
    """Return the averages of a parameter after its first iterate.

    A parameter that joins late stood still before, so x̄ = x; its earlier gradients were not seen, so ḡ = g.
    Without a certificate g is None. ``since`` is the number of this iterate among those that count; with ``offload``
    the averages are in the host's memory.
    """
    entry: Entry = {"average": copied(x, offload), "since": since}
    if g is not None:
        entry["gradient"] = copied(g, offload)
        entry["spread"] = torch.zeros((), dtype=torch.float64, device="cpu" if offload else x.device)
    return entry


def copied(x: Tensor, offload: bool) -> Tensor:
    """Return a copy in the averages' dtype; with ``offload`` in the host's memory."""
    dtype = wide(x.dtype)
    if not offload:
        return x.detach().to(dtype, copy=True)
    return torch.empty_like(x, dtype=dtype, device="cpu", pin_memory=x.is_cuda).copy_(x.detach())


@torch.no_grad()
def host_copies(rows: Sequence[Row], certifies: bool) -> list[Row]:
    """Return the rows with x, and g if there is a certificate, in the host's memory; CPU tensors as they are."""

    def copy(t: Tensor | None) -> Tensor | None:  # torch pins the copy of a GPU's tensor, and reuses pinned memory
        return None if t is None else t.to("cpu", non_blocking=t.is_cuda)

    found = [row._replace(x=copy(row.x), g=copy(row.g) if certifies else None) for row in rows]
    for device in {row.x.device for row in rows if row.x.is_cuda}:
        torch.cuda.current_stream(device).synchronize()  # then the copies are complete
    return found


def update_(rows: Sequence[Row], gamma: float, dither: float) -> None:
    """Update the averages of every parameter by one iterate of share γ, in place.

    x and g are on the averages' devices; an entry without ``gradient`` keeps x̄ alone. ``dither`` is u − ½.
    """
    for _, x, g, entry, _ in rows:
        mean, gradient = entry["average"], entry.get("gradient")
        if gamma == 1:  # replaces what was there, even if it was infinite
            mean.copy_(x)
            if gradient is not None:
                gradient.zero_() if g is None else gradient.copy_(g)
                entry["spread"].zero_()
            continue
        parts, certifies = zip(_slices(mean), _slices(x), strict=True), gradient is not None
        squares = [_update_mean_(mean_part, x_part, gamma, dither, certifies) for mean_part, x_part in parts]
        if gradient is not None:
            gradient.mul_(1 - gamma) if g is None else gradient.lerp_(g.to(gradient.dtype), gamma)
            entry["spread"].add_(torch.stack(squares).sum(), alpha=gamma).mul_(1 - gamma)  # type: ignore[arg-type]


def _update_mean_(mean: Tensor, x: Tensor, gamma: float, dither: float, certifies: bool) -> Tensor | None:
    """Move x̄ by γ(x − x̄); return ‖x − x̄‖² in float64 if it is wanted."""
    e = x.to(mean.dtype) - mean
    square = _square(e) if certifies else None
    if mean.dtype == torch.float32:
        # e += (dither/γ)·unit·sign(e): where e = 0 nothing is added, so that what stands still stays
        power = torch.bitwise_and(mean.view(torch.int32), EXPONENT).view(torch.float32)
        e.addcmul_(power, e.sign(), value=dither * 2.0**-23 / gamma)
    mean.add_(e, alpha=gamma)
    return square


def _square(e: Tensor) -> Tensor:
    """Return ‖e‖² in float64; on a CPU the fast way, unless the sum underflows or overflows there."""
    norm = torch.linalg.vector_norm(e, dtype=None if e.device.type == "cpu" else torch.float64)
    if e.device.type == "cpu" and not _SMALLEST < norm < _LARGEST:
        norm = torch.linalg.vector_norm(e, dtype=torch.float64)
    return norm.double().square()


def _slices(x: Tensor) -> tuple[Tensor, ...]:
    """Cut a large tensor along its first axis."""
    size = CPU_SLICE if x.device.type == "cpu" else DEVICE_SLICE
    return (x,) if x.numel() <= size else x.split(max(1, size * len(x) // x.numel()))


def dots(xs: Sequence[Tensor], ys: Sequence[Tensor]) -> list[Tensor]:
    """Return ⟨x, y⟩ of every pair, in float64."""
    pairs = (zip(_slices(x), _slices(y), strict=True) for x, y in zip(xs, ys, strict=True))
    return [
        torch.stack([torch.dot(u.reshape(-1), v.reshape(-1)).double() for u, v in parts]).sum() for parts in pairs
    ]
