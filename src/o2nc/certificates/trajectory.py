"""K points of R^d and their gradients, read in column blocks: the sums that a certificate is made of.

A block is a K×B matrix cut out of all points at once, so that a pass needs the memory of a few blocks, whatever d is.
All sums are taken in float64, of numbers that a power of 2 has brought near 1: differences y_k − y_1 of points, and
gradients. So squares neither overflow nor vanish, and V is a sum of squared differences, never E‖y‖² − ‖x̄‖².
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor

from o2nc.persist.private import foreach_copy_
from o2nc.vector import Vector, real, wide

Point: TypeAlias = Tensor | list[Tensor]
BLOCK = 1 << 23  # numbers in a block, 64 MB in float64: cutting a piece out of every point costs time too
PANEL = 256  # rows of a Gram matrix that are multiplied at once; only the lower triangle is
DEAREST = 1e280  # the largest price of spread that the search for weights computes with
EXACT = 1e11  # multiplications up to which a Gram matrix of float32 numbers is computed in float64


@dataclass(frozen=True)
class Sums:
    """Sums under weights p: with m = Σp g and z = Σp y, gradients and distances each in units of their own,

    ``gradient`` = ‖m‖, ``dots`` = ⟨g_k, m⟩ and ``distances`` = ‖y_k − z‖ for all k.
    """

    weights: Tensor
    gradient: float
    dots: Tensor
    distances: Tensor

    @property
    def root(self) -> float:
        """√V, V = Σp‖y − z‖²."""
        return _norm(self.weights.sqrt() * self.distances)

    def value(self, price: float) -> float:
        """‖m‖ + price·V."""
        return self.gradient + price * self.root**2


@dataclass(frozen=True)
class Clipped:
    """Points pulled into a ball around x̄: their mean x', the exact distances, and what of the gradients is known."""

    point: Point
    distance: float  # ‖x̄ − x'‖
    radius: float  # max ‖ŷ − x'‖
    kept: float  # ‖Σp g‖ over the points that stayed where they were
    moved: float  # Σp over the others


@dataclass(frozen=True)
class Rows:
    """K vectors of R^d, read as (x_k − origin)/2^exponent; the origin is x_1 or 0."""

    rows: list[Vector]
    centred: bool
    exponent: int = 0

    def scaled(self, name: str) -> "Rows":
        """Return the same with an exponent that makes squares safe; raise if a number is not finite."""
        largest = [float(torch.stack(_largest(row)).max()) for row in self.rows]
        for k, size in enumerate(largest):
            if not math.isfinite(size):
                raise ValueError(f"{name} {k} has numbers that are not finite")
        if self.centred and not _is_safe(max(largest)):
            largest = [float(torch.linalg.vector_norm(block, torch.inf)) for block in self.blocks()]
            if not math.isfinite(max(largest)):
                raise ValueError(f"{name} are further apart than float64 can tell; rescale them")
        return Rows(self.rows, self.centred, 0 if _is_safe(max(largest)) else math.frexp(max(largest))[1])

    def blocks(self, dtype: torch.dtype = torch.float64) -> Iterator[Tensor]:
        """Yield the K rows as K×B matrices, column block by column block, each in the place of the one before."""
        half = self.exponent // 2  # in two steps, neither of which leaves float64's range
        for parts in zip(*self.rows, strict=True):
            flat = [real(part).reshape(-1) for part in parts]
            width = max(1, min(BLOCK // len(flat), flat[0].numel()))
            room = torch.empty(len(flat), width, dtype=dtype, device=flat[0].device)
            for i in range(0, flat[0].numel(), width):
                pieces = [x[i : i + width] for x in flat]
                block = room[:, : pieces[0].numel()]
                foreach_copy_(list(block.unbind()), pieces)
                if self.centred:
                    block.sub_(block[0].clone())
                if self.exponent:
                    block.mul_(2.0**-half).mul_(2.0 ** (half - self.exponent))
                yield block

    def dots_with_mean(self, weights: Tensor) -> tuple[Tensor, float]:
        """Return ⟨x_k, m⟩ for all k, and ‖m‖, for the weighted sum m = Σ w_k x_k."""
        dots, norm = torch.zeros(len(self.rows), dtype=torch.float64, device="cpu"), 0.0
        for block in self.blocks():
            m = weights.to(block.device) @ block
            dots += (block @ m).cpu()
            norm = math.hypot(norm, _norm(m))
        return dots, norm

    def gram(self) -> Tensor:
        """Return ⟨x_i, x_j⟩ for all pairs of rows.

        Many products of float32 numbers (`EXACT`) are taken in float32 within a block: the error is some 1e-7 of
        ‖x‖², which callers make up for by refinement. A result that overflows there is computed again in float64.
        """
        size, width = len(self.rows), sum(real(x).numel() for x in self.rows[0])
        narrow = all(x.dtype.to_real() != torch.float64 for x in self.rows[0])
        fast = narrow and float(size) * size * width > EXACT
        for dtype in (torch.float32, torch.float64) if fast else (torch.float64,):
            total = torch.zeros(size, size, dtype=torch.float64, device="cpu")
            for block in self.blocks(dtype):
                for i in range(0, size, PANEL):
                    total[i : i + PANEL, : i + PANEL] += (block[i : i + PANEL] @ block[: i + PANEL].T).cpu()
            if total.isfinite().all():
                break
        return total.tril() + total.tril(-1).T


class Trajectory:
    """K >= 1 points and the gradients there.

    Args:
        gradient: a function of a point, called once for each in order, or the K gradients.
        iterates: K points, each a tensor or a list of tensors; or one tensor whose first axis counts them.

    Only what the function returns is copied (it may reuse its memory), and for a pass what is not contiguous.
    """

    def __init__(self, gradient: Callable[[Any], Any] | Sequence[Any] | Tensor, iterates: Sequence[Any] | Tensor):
        given = _sequence("iterates", iterates)
        if not given:
            raise ValueError("iterates must hold at least one point, got none")
        self.single = isinstance(given[0], Tensor)
        points = [_vector(f"iterates[{k}]", y) for k, y in enumerate(given)]
        _same_shapes("iterates", points, points[0])
        if callable(gradient):
            gradients: list[Vector] = []
            for k, y in enumerate(given):
                # a copy: the function may work in place
                copied = y.detach().clone() if isinstance(y, Tensor) else [x.detach().clone() for x in y]
                found = _vector(f"gradient(iterates[{k}])", gradient(copied))
                gradients.append([g.clone() for g in found])
        else:
            found = _sequence("gradient", gradient)
            if len(found) != len(given):
                raise ValueError(f"there are {len(given)} iterates but {len(found)} gradients")
            gradients = [_vector(f"gradient[{k}]", g) for k, g in enumerate(found)]
        _same_shapes("gradient", gradients, points[0])
        self._dtype = reduce(torch.promote_types, {wide(x.dtype) for y in points for x in y})
        self._plain = Rows(points, centred=False)
        self.points = Rows(points, centred=True).scaled("iterates")
        self.gradients = Rows(gradients, centred=False).scaled("gradient")

    def __len__(self) -> int:
        return len(self._plain.rows)

    @property
    def width(self) -> int:
        """d, the real numbers in a point."""
        return sum(real(x).numel() for x in self._plain.rows[0])

    def sums(self, weights: Tensor) -> Sums:
        """Return the sums under these weights, in one pass over the points and one over the gradients."""
        dots, norm = self.gradients.dots_with_mean(weights)
        distances = torch.zeros(len(self), dtype=torch.float64, device="cpu")
        for block in self.points.blocks():
            off = _row_norms(block.sub_(weights.to(block.device) @ block)).cpu()
            distances = torch.hypot(distances, off)
        return Sums(weights, norm, dots, distances)

    def price(self, c: float) -> float:
        """Return c in the units of the sums, at most `DEAREST`."""
        return min(scaled(c, 2 * self.points.exponent - self.gradients.exponent), DEAREST)

    def in_units(self, sums: Sums) -> tuple[float, float]:
        """Return ‖m‖ and V, rounded up where float64 has no room for their digits."""
        mantissa, exponent = math.frexp(sums.root)
        spread = scaled(mantissa**2, 2 * (exponent + self.points.exponent))
        return scaled(sums.gradient, self.gradients.exponent), spread

    def mean(self, weights: Tensor) -> Point:
        """Return Σp y, shaped like one point and at least float32."""
        # allocated in one piece: scraps kept between blocks would fragment the heap
        flat, end = torch.empty(self.width, dtype=torch.float64, device="cpu"), 0
        for block in self._plain.blocks():
            start, end = end, end + block.shape[1]
            flat[start:end] = weights.to(block.device) @ block
        return self._shaped(flat)

    def clip(self, weights: Tensor, delta: float) -> Clipped:
        """Pull every point into the ball of radius δ around x̄ = Σp y: ŷ = x̄ + min(1, δ/r)(y − x̄)."""
        sums = self.sums(weights)
        lengths = [scaled(d, self.points.exponent) for d in sums.distances.tolist()]
        r = torch.tensor(lengths, dtype=torch.float64, device="cpu")
        factor = (delta / r).clamp(max=1.0).nan_to_num(nan=1.0)
        inside = (r <= delta).double()
        flat, end, distance = torch.empty(self.width, dtype=torch.float64, device="cpu"), 0, 0.0
        radii = torch.zeros(len(self), dtype=torch.float64, device="cpu")
        for block in self._plain.blocks():
            p = weights.to(block.device)
            centre = p @ block
            moved = block.sub_(centre).mul_(factor.to(block.device).unsqueeze(1))  # ŷ − x̄
            shift = p @ moved  # x' − x̄
            start, end = end, end + block.shape[1]
            flat[start:end] = centre + shift
            distance = math.hypot(distance, _norm(shift))
            radii = torch.hypot(radii, _row_norms(moved.sub_(shift)).cpu())
        kept = scaled(self.gradients.dots_with_mean(weights * inside)[1], self.gradients.exponent)
        radius = float(radii[weights > 0].max())
        return Clipped(self._shaped(flat), distance, radius, kept, float(weights @ (1 - inside)))

    def _shaped(self, flat: Tensor) -> Point:
        result, start = [], 0
        for like in self._plain.rows[0]:
            x = real(like)
            part = flat[start : start + x.numel()].reshape(x.shape).to(like.device, self._dtype)
            result.append(torch.view_as_complex(part) if like.is_complex() else part)
            start += x.numel()
        return result[0] if self.single else result


def scaled(x: float, exponent: int) -> float:
    """Return x·2^exponent for x >= 0, rounded up where float64 has no room for its digits: a bound stays a bound."""
    try:
        found = math.ldexp(x, exponent)
    except OverflowError:
        return math.inf
    return found if found >= sys.float_info.min or x == 0 else math.nextafter(found, math.inf)


def _is_safe(largest: float) -> bool:
    """Return whether squares of numbers of this size are far inside float64's range."""
    return largest == 0 or 1e-90 < largest < 1e90


def _largest(row: Vector) -> list[Tensor]:
    return [torch.linalg.vector_norm(x, torch.inf).double() for x in row if x.numel()]


def _row_norms(x: Tensor) -> Tensor:
    """Return the norms of the rows of a matrix, also where squares overflow or vanish."""
    squares = x.square().sum(1)  # vector_norm adds up one by one, which loses four digits of a million
    norms = squares.sqrt()
    unsafe = ~((squares > 1e-200) & (squares < 1e200))
    if bool(unsafe.any()):
        rows = x[unsafe]
        largest = torch.linalg.vector_norm(rows, torch.inf, dim=1, keepdim=True)
        unit = rows / torch.where(largest > 0, largest, 1.0)
        norms[unsafe] = unit.square_().sum(1).sqrt() * largest.squeeze(1)
    return norms


def _norm(x: Tensor) -> float:
    return float(_row_norms(x.unsqueeze(0)))


def _sequence(name: str, given: Any) -> list[Any]:
    if isinstance(given, Tensor):
        if given.dim() == 0:
            raise ValueError(f"{name} must be a sequence of points, got a tensor without axes")
        return list(given.detach().unbind())
    if isinstance(given, str | bytes | dict) or not hasattr(given, "__iter__"):
        raise TypeError(f"{name} must be a sequence of points, got {type(given).__name__}")
    return list(given)


def _vector(name: str, point: Any) -> Vector:
    parts = [point] if isinstance(point, Tensor) else point
    if not isinstance(parts, list | tuple) or not all(isinstance(x, Tensor) for x in parts):
        raise TypeError(f"{name} must be a tensor or a list of tensors, got {type(point).__name__}")
    for x in parts:
        if not (x.is_floating_point() or x.is_complex()):
            raise TypeError(f"{name} must hold floating-point numbers, got {x.dtype}")
        if x.layout != torch.strided:
            raise TypeError(f"{name} is sparse, which is not supported: convert it with .to_dense()")
    if not sum(x.numel() for x in parts):
        raise ValueError(f"{name} has no numbers in it")
    return [x.detach() for x in parts]


def _same_shapes(name: str, rows: list[Vector], like: Vector) -> None:
    want = [tuple(real(x).shape) for x in like]
    for k, row in enumerate(rows):
        got = [tuple(real(x).shape) for x in row]
        if got != want:
            raise ValueError(f"{name}[{k}] has the shapes {got}, iterates[0] has {want}")
