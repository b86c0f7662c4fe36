"""K points of R^d and their gradients, read in column blocks: the sums that a certificate is made of.

A block is a K×B matrix cut out of all points at once, so that a pass needs the memory of a few blocks, whatever d is.
All sums are taken in float64, which holds the squares of numbers from 1e-150 to 1e150, and of differences y_k − y_1
of points: V is a sum of squared differences, never E‖y‖² − ‖x̄‖².
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from o2nc.vector import Vector, real, wide

Point: TypeAlias = Tensor | list[Tensor]
BLOCK = 1 << 23  # numbers in a block, 64 MB in float64: cutting a piece out of every point costs time too


class Sums(NamedTuple):
    """Sums under weights p: ``gradient`` = ‖Σp g‖ and ``distances`` = ‖y_k − Σp y‖ for all k."""

    weights: Tensor
    gradient: float
    distances: Tensor

    @property
    def spread(self) -> float:
        """V = Σp‖y − z‖² with z = Σp y."""
        return float(self.weights @ self.distances.square())


class Trajectory:
    """K >= 1 points and the gradients there, given as `o2nc.certify` is.

    Only what the function returns is copied, as it may reuse its memory.
    """

    def __init__(self, gradient: Callable[[Any], Any] | Sequence[Any] | Tensor, iterates: Sequence[Any] | Tensor):
        given = _sequence("iterates", iterates)
        if not given:
            raise ValueError("iterates must hold at least one point, got none")
        self.is_tensor = isinstance(given[0], Tensor)
        self.points = [_vector(f"iterates[{k}]", y, given[0]) for k, y in enumerate(given)]
        if callable(gradient):
            self.gradients = []
            for k, point in enumerate(self.points):
                copied = [x.clone() for x in point]  # the function may work in place
                found = gradient(copied[0] if self.is_tensor else copied)
                self.gradients.append([g.clone() for g in _vector(f"gradient(iterates[{k}])", found, given[0])])
        else:
            listed = _sequence("gradient", gradient)
            if len(listed) != len(given):
                raise ValueError(f"there are {len(given)} iterates but {len(listed)} gradients")
            self.gradients = [_vector(f"gradient[{k}]", g, given[0]) for k, g in enumerate(listed)]

    def __len__(self) -> int:
        return len(self.points)

    def sums(self, p: Tensor) -> Sums:
        """Return the sums under weights p, in one pass over the points and one over the gradients."""
        gradient, distances = 0.0, torch.zeros_like(p)
        for g in _blocks(self.gradients):
            gradient += float((p.to(g.device) @ g).square().sum())
        for y in _blocks(self.points):
            y -= y[0].clone()
            distances += (y - p.to(y.device) @ y).square().sum(1).cpu()
        if not distances.isfinite().all():
            raise ValueError("iterates are further apart than float64 can tell; rescale them")
        return Sums(p, gradient**0.5, distances.sqrt())

    def triangle(self) -> Tensor:
        """Return a matrix with the inner products of the gradients, of at most K rows (QR)."""
        r = torch.zeros(0, len(self), dtype=torch.float64, device="cpu")
        for g in _blocks(self.gradients):
            r = torch.linalg.qr(torch.cat([r, g.T.cpu()]), mode="r").R
        return r

    def mean(self, weights: Tensor) -> Point:
        """Return Σp y, shaped like one point and at least float32."""
        flat = torch.cat([(weights.to(y.device) @ y).cpu() for y in _blocks(self.points)])
        dtype = reduce(torch.promote_types, {wide(x.dtype) for y in self.points for x in y})
        result = []
        for like, part in zip(self.points[0], flat.split([real(x).numel() for x in self.points[0]]), strict=True):
            x = part.reshape(real(like).shape).to(like.device, dtype)
            result.append(torch.view_as_complex(x) if like.is_complex() else x)
        return result[0] if self.is_tensor else result


def _blocks(rows: list[Vector]) -> Iterator[Tensor]:
    """Yield the K rows as K×B matrices in float64, column block by column block."""
    for parts in zip(*rows, strict=True):
        pieces = (real(part).reshape(-1).split(max(1, BLOCK // len(rows))) for part in parts)
        for block in zip(*pieces, strict=True):
            yield torch.stack([x.to(parts[0].device, torch.float64) for x in block])


def _sequence(name: str, given: Any) -> list[Any]:
    if isinstance(given, Tensor):
        if given.dim() == 0:
            raise ValueError(f"{name} must be a sequence of points, got a tensor without axes")
        return list(given.unbind())
    if isinstance(given, str | bytes | dict) or not hasattr(given, "__iter__"):
        raise TypeError(f"{name} must be a sequence of points, got {type(given).__name__}")
    return list(given)


def _vector(name: str, point: Any, like: Any) -> Vector:
    """Return a point or gradient as a list of tensors; raise unless it is finite and has the shapes of ``like``."""
    parts, first = ([x] if isinstance(x, Tensor) else x for x in (point, like))
    if not isinstance(parts, list | tuple) or not all(isinstance(x, Tensor) for x in parts):
        raise TypeError(f"{name} must be a tensor or a list of tensors, got {type(point).__name__}")
    for x in parts:
        if not (x.is_floating_point() or x.is_complex()):
            raise TypeError(f"{name} must hold floating-point numbers, got {x.dtype}")
        if x.layout != torch.strided:
            raise TypeError(f"{name} is sparse, which is not supported: convert it with .to_dense()")
        if not x.isfinite().all():
            raise ValueError(f"{name} has numbers that are not finite")
    if not sum(x.numel() for x in parts):
        raise ValueError(f"{name} has no numbers in it")
    got, want = ([tuple(real(x).shape) for x in vector] for vector in (parts, first))
    if got != want:
        raise ValueError(f"{name} has the shapes {got}, iterates[0] has {want}")
    return [x.detach() for x in parts]
