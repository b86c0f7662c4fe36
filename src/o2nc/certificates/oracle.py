"""The function that `minimize` is given, as its search sees it: on flat float64 vectors."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALL, LARGE = 1e-60, 1e60  # between which squares and their ratios neither underflow nor overflow


@dataclass(eq=False)
class Sample:
    """A point as fun saw it, F and the gradient there, in float64 and flat: means of so many calls."""

    y: Tensor
    f: float
    g: Tensor
    calls: int = 1

    def merge(self, other: "Sample") -> None:
        """Take in further calls at the same point."""
        calls = self.calls + other.calls
        self.f += (other.f - self.f) * (other.calls / calls)
        self.g = torch.lerp(self.g, other.g, other.calls / calls)
        self.calls = calls


class Stop(Exception):
    """Ends the search; the text is the result's message."""


class Oracle:
    """fun on flat float64 vectors: converts, counts, checks what it returns, and keeps one evaluation for the end."""

    def __init__(self, fun: Callable[[Any], Any], x0: Any, limit: int) -> None:
        self.fun, self.limit, self.count = fun, limit, 0
        self.is_tensor = isinstance(x0, Tensor)
        start = as_tensor("x0", x0)
        if start.is_complex() or start.numel() == 0 or not start.isfinite().all():
            raise ValueError(f"x0 must have finite real numbers, at least one, got {x0!r}")
        self.dtype = start.dtype if start.is_floating_point() else torch.float64
        self.shape, self.start = start.shape, start.double().reshape(-1)

    def shaped(self, flat: Tensor) -> Any:
        """Return a vector, or several as rows, in the kind, shape and dtype of x0; the memory is new."""
        x = flat.to(self.dtype, copy=True).reshape((*flat.shape[:-1], *self.shape))
        return x if self.is_tensor else x.numpy()

    def rounded(self, flat: Tensor) -> Tensor:
        """Return the vector in float64 as fun will see it."""
        return flat.to(self.dtype).double()

    def __call__(self, flat: Tensor, calls: int = 1) -> Sample:
        """Return F and gradient; raise Stop if that would leave no evaluation for the result."""
        if self.count + calls > max(1, self.limit - 1):
            left = max(0, self.limit - 1 - self.count)
            raise Stop(f"max_evaluations = {self.limit} are used up: {left} are left, and {calls} would come next")
        sample = self.call(flat)
        for _ in range(calls - 1):
            sample.merge(self.call(flat))
        return sample

    def call(self, flat: Tensor) -> Sample:
        """Call fun, and check what it returns."""
        self.count += 1
        x = self.shaped(flat)
        with torch.enable_grad(), warnings.catch_warnings():
            # fun may turn F into a float, and return a gradient of its own
            warnings.filterwarnings("ignore", "Converting a tensor with requires_grad", UserWarning)
            found = self.fun(x.requires_grad_() if self.is_tensor else x)
            if self.is_tensor and isinstance(found, Tensor):
                if found.numel() != 1 or not found.requires_grad:
                    raise ValueError(f"fun must return a scalar that depends on x within autograd, got {found!r}")
                found = found, torch.autograd.grad(found.sum(), x, materialize_grads=True)[0]
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeError(f"fun must return (value, gradient), for a tensor also a scalar tensor, got {found!r}")
        parts = [as_tensor("what fun returns", part) for part in found]
        if any(part.is_complex() for part in parts):
            raise TypeError(f"fun must return a real value and a real gradient, got {found!r}")
        value, gradient = parts
        if value.numel() != 1 or gradient.shape != self.shape:
            shapes = f"{tuple(self.shape)}, got {tuple(value.shape)} and {tuple(gradient.shape)}"
            raise ValueError(f"fun's value must be a scalar, its gradient of x0's shape {shapes}")
        return Sample(self.rounded(flat), float(value), gradient.to(flat, copy=True).reshape(-1))


def as_tensor(name: str, given: Any) -> Tensor:
    """Return a tensor without its graph, or an array's numbers as a new one; ``name`` is for the error."""
    try:
        return given.detach() if isinstance(given, Tensor) else torch.from_numpy(np.array(given))
    except (TypeError, ValueError):  # ragged, or no numbers
        raise TypeError(f"{name} must be an array or a tensor of real numbers, got {given!r}") from None
