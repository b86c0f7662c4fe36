"""K points of R^d and their gradients, read in column blocks: the sums that a certificate is made of.

A block is a K×B matrix cut out of all points at once, so that a pass needs the memory of a few blocks, whatever d is.
All sums are taken in float64; V is a sum of squared differences, never E‖y‖² − ‖x̄‖².
"""

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
EXACT = 1e11  # multiplications up to which a Gram matrix of float32 numbers is computed in float64


@dataclass(frozen=True)
class Sums:
    """What weights p make of a trajectory: with m = Σp g and z = Σp y,

    ``gradient`` = ‖m‖, ``dots`` = ⟨g_k, m⟩ and ``squares`` = ‖y_k − z‖² for all k, ``spread`` = Σp‖y − z‖².
    """

    weights: Tensor
    gradient: float
    dots: Tensor
    squares: Tensor

    @property
    def spread(self) -> float:
        """V = Σp‖y − z‖²."""
        return float(self.weights @ self.squares)

    def value(self, c: float) -> float:
        """‖m‖ + c·V."""
        return self.gradient + c * self.spread


@dataclass(frozen=True)
class Clipped:
    """Points pulled into a ball around x̄: their mean x', the exact distances, and what of the gradients is known."""

    point: Point
    distance: float  # ‖x̄ − x'‖
    radius: float  # max ‖ŷ − x'‖
    kept: float  # ‖Σp g‖ over the points that stayed where they were
    moved: float  # Σp over the others


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
        self.points = [_vector(f"iterates[{k}]", y) for k, y in enumerate(given)]
        _same_shapes("iterates", self.points, self.points[0])
        if callable(gradient):
            self.gradients: list[Vector] = []
            for k, y in enumerate(given):
                # a copy: the function may work in place
                copied = y.detach().clone() if isinstance(y, Tensor) else [x.detach().clone() for x in y]
                found = _vector(f"gradient(iterates[{k}])", gradient(copied))
                self.gradients.append([g.clone() for g in found])
        else:
            found = _sequence("gradient", gradient)
            if len(found) != len(given):
                raise ValueError(f"there are {len(given)} iterates but {len(found)} gradients")
            self.gradients = [_vector(f"gradient[{k}]", g) for k, g in enumerate(found)]
        _same_shapes("gradient", self.gradients, self.points[0])
        self._dtype = reduce(torch.promote_types, {wide(x.dtype) for y in self.points for x in y})

    def __len__(self) -> int:
        return len(self.points)

    @property
    def width(self) -> int:
        """d, the real numbers in a point."""
        return sum(real(x).numel() for x in self.points[0])

    def sums(self, weights: Tensor) -> Sums:
        """Return the sums under these weights, in one pass; refuse numbers that are not finite."""
        dots, square = dots_with_mean(self.gradients, weights)
        squares = torch.zeros(len(self), dtype=torch.float64, device="cpu")
        for block in blocks(self.points):
            p = weights.to(block.device)
            squares += torch.linalg.vector_norm(block.sub_(p @ block), dim=1).square().cpu()
        if not (dots.isfinite().all() and squares.isfinite().all()):
            self._find_not_finite()
        return Sums(weights, square**0.5, dots, squares)

    def mean(self, weights: Tensor) -> Point:
        """Return Σp y, shaped like one point and at least float32."""
        # allocated in one piece: scraps kept between blocks would fragment the heap
        flat, end = torch.empty(self.width, dtype=torch.float64, device="cpu"), 0
        for block in blocks(self.points):
            start, end = end, end + block.shape[1]
            flat[start:end] = weights.to(block.device) @ block
        return self._shaped(flat)

    def clip(self, weights: Tensor, delta: float) -> Clipped:
        """Pull every point into the ball of radius δ around x̄ = Σp y: ŷ = x̄ + min(1, δ/r)(y − x̄)."""
        r = self.sums(weights).squares.sqrt()
        factor = (delta / r).clamp(max=1.0).nan_to_num(nan=1.0)
        inside = (r <= delta).double()
        flat, end, distance = torch.empty(self.width, dtype=torch.float64, device="cpu"), 0, 0.0
        squares = torch.zeros(len(self), dtype=torch.float64, device="cpu")
        for block in blocks(self.points):
            p = weights.to(block.device)
            centre = p @ block
            moved = block.sub_(centre).mul_(factor.to(block.device).unsqueeze(1))  # ŷ − x̄
            shift = p @ moved  # x' − x̄
            start, end = end, end + block.shape[1]
            flat[start:end] = centre + shift
            distance += float(shift.square().sum())
            squares += torch.linalg.vector_norm(moved.sub_(shift), dim=1).square().cpu()
        _, kept = dots_with_mean(self.gradients, weights * inside)
        radius = float(squares[weights > 0].max()) ** 0.5
        return Clipped(self._shaped(flat), distance**0.5, radius, kept**0.5, float(weights @ (1 - inside)))

    def _shaped(self, flat: Tensor) -> Point:
        result, start = [], 0
        for like in self.points[0]:
            x = real(like)
            part = flat[start : start + x.numel()].reshape(x.shape).to(like.device, self._dtype)
            result.append(torch.view_as_complex(part) if like.is_complex() else part)
            start += x.numel()
        return result[0] if self.single else result

    def _find_not_finite(self) -> None:
        for name, rows in (("iterates", self.points), ("gradient", self.gradients)):
            for k, row in enumerate(rows):
                if not all(x.isfinite().all() for x in row):
                    raise ValueError(f"{name} {k} has numbers that are not finite")
        raise ValueError("the numbers are too large: their squares overflow float64; rescale them")


def blocks(rows: list[Vector], dtype: torch.dtype = torch.float64) -> Iterator[Tensor]:
    """Yield the K rows as K×B matrices, column block by column block, each in the place of the one before."""
    for parts in zip(*rows, strict=True):
        flat = [real(part).reshape(-1) for part in parts]
        width = max(1, min(BLOCK // len(rows), flat[0].numel()))
        room = torch.empty(len(rows), width, dtype=dtype, device=flat[0].device)
        for i in range(0, flat[0].numel(), width):
            pieces = [x[i : i + width] for x in flat]
            block = room[:, : pieces[0].numel()]
            foreach_copy_(list(block.unbind()), pieces)
            yield block


def dots_with_mean(rows: list[Vector], weights: Tensor) -> tuple[Tensor, float]:
    """Return ⟨x_k, m⟩ for all k, and ‖m‖², for the weighted sum m = Σ w_k x_k of the rows."""
    dots, square = torch.zeros(len(rows), dtype=torch.float64, device="cpu"), 0.0
    for block in blocks(rows):
        m = weights.to(block.device) @ block
        dots += (block @ m).cpu()
        square += float(m @ m)
    return dots, square


def gram(rows: list[Vector]) -> Tensor:
    """Return ⟨x_i, x_j⟩ for all pairs of rows.

    Many products of float32 numbers (`EXACT`) are taken in float32 within a block: the error is some 1e-7 of ‖x‖²,
    which callers make up for by refinement. A result that overflows there is taken again in float64.
    """
    size, width = len(rows), sum(real(x).numel() for x in rows[0])
    narrow = all(x.dtype.to_real() != torch.float64 for x in rows[0])
    fast = narrow and float(size) * size * width > EXACT
    for dtype in (torch.float32, torch.float64) if fast else (torch.float64,):
        total = torch.zeros(size, size, dtype=torch.float64, device="cpu")
        for block in blocks(rows, dtype):
            for i in range(0, size, PANEL):
                total[i : i + PANEL, : i + PANEL] += (block[i : i + PANEL] @ block[: i + PANEL].T).cpu()
        if total.isfinite().all():
            break
    return total.tril() + total.tril(-1).T


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
