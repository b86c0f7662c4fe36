"""x̄ of several optimizers at once, whatever frameworks have wrapped around them."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from o2nc.optimizers.base import averaged_optimizer
from o2nc.optimizers.swap import Swap


def averaged(*optimizers: Any, model: nn.Module | None = None, batches: Iterable[Any] | None = None) -> Swap:
    """Put x̄ into the parameters of several optimizers inside a ``with`` block, and restore them on leaving it.

    Args:
        *optimizers: o2nc's, also wrapped by accelerate or Lightning.
        model: the model: a warning names its trainable parameters that are in none of the optimizers.
        batches: inputs of the model; its BatchNorm statistics are then recomputed for x̄, as in `o2nc.recalibrated`.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> weight = o2nc.SGD([model.weight], lr=0.1, average=0.9)
        >>> bias = o2nc.AdamW([model.bias], average=0.9)
        >>> model(torch.ones(4, 3)).abs().mean().backward()
        >>> weight.step(), bias.step()
        (None, None)
        >>> with o2nc.averaged(weight, bias, model=model):
        ...     loss = model(torch.ones(4, 3)).abs().mean()
    """
    if not optimizers:
        raise TypeError("averaged() needs at least one optimizer")
    return Swap([averaged_optimizer(optimizer) for optimizer in optimizers], model, batches)
