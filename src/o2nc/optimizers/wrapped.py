"""`averaged` for several optimizers at once, also those that accelerate or Lightning has wrapped."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from o2nc.optimizers.base import Averaged
from o2nc.optimizers.swap import Swap
from o2nc.persist.plain import KEY


def averaged_optimizer(optimizer: Any, certificate: bool = False) -> Averaged:
    """Return the o2nc optimizer inside what accelerate or Lightning may have wrapped around it.

    Args:
        optimizer: the optimizer.
        certificate: whether it must keep a certificate, too.

    Raises:
        TypeError: there is none.
        ValueError: it keeps no averages, or no certificate.
    """
    while hasattr(optimizer, "optimizer") and not (isinstance(optimizer, Averaged) and "state" in vars(optimizer)):
        optimizer = optimizer.optimizer  # an o2nc optimizer may have an attribute of that name, too
    if not isinstance(optimizer, Averaged):
        raise TypeError(
            "optimizer must be one of o2nc's with averages, such as o2nc.AdamW(…, average=o2nc.Polynomial(12)), "
            f"got {type(optimizer).__name__}{' (pass it as model=…)' if isinstance(optimizer, nn.Module) else ''}"
        )
    if optimizer.param_groups[0][KEY]["average"] is None:
        raise ValueError(f"optimizer keeps no averages, it was made with {optimizer.advice}")
    if certificate and not optimizer.param_groups[0][KEY]["certificate"]:
        raise ValueError("optimizer keeps no certificate: pass certificate=True when you construct it")
    return optimizer


def averaged(*optimizers: Any, model: nn.Module | None = None, batches: Iterable[Any] | None = None) -> Swap:
    """Put x̄ into the parameters of several optimizers inside a ``with`` block, and restore them on leaving it.

    Args:
        *optimizers: o2nc optimizers with averages; accelerate's and Lightning's wrappers are unwrapped.
        model: a warning names its trainable parameters that none of the optimizers has.
        batches: inputs of the model; its BatchNorm statistics are then recomputed for x̄.

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
