"""Restores what evaluating a loss may change in the model, which an optimizer does not know."""

import gc
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy


@contextmanager
def all_restored(params: Iterable[Any], modules: Iterable[Module]) -> Iterator[None]:
    """Restore on leaving what a loss may change: random numbers, gradients, modes and buffers of the modules."""
    before = [(m, m.training, dict(m._buffers)) for m in modules]
    params = {*params, *(p for m, _, _ in before for p in m._parameters.values() if p is not None)}
    buffers = {id(b): b for _, _, own in before for b in own.values() if b is not None and not is_lazy(b)}
    copies = [(b, b.clone()) for b in buffers.values() if b.layout is torch.strided and not b.is_meta]
    gradients, python = [(p, p.grad) for p in params], random.getstate()
    numpy = np.random.get_state()  # noqa: NPY002
    try:
        for p in params:
            p.grad = None  # so that nothing is added to the former one
        with torch.random.fork_rng({p.device for p in params if p.device.type == "cuda"}):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for p, g in gradients:
            p.grad = g
        for b, former in copies:
            if not torch.equal(b, former):  # else a pending backward() need not know of it
                b.copy_(former)
        for module, mode, own in before:
            if module.training != mode:
                module.training = mode
            for name, buffer in own.items():
                if getattr(module, name, None) is not buffer:
                    setattr(module, name, buffer)


def modules_of(params: Iterable[Any], named: Module | None = None) -> list[Module]:
    """Return the modules of ``named`` and of all models that have one of the parameters.

    An optimizer does not know its model, so the garbage collector is asked for modules (those that `gc.freeze` has
    hidden are not found).
    """
    known = {id(p) for p in params}
    found = [m for m in gc.get_objects() if issubclass(type(m), Module) and hasattr(m, "_buffers")]  # initialised
    roots = [m for m in found if any(id(p) in known for p in m.parameters())] + ([named] if named is not None else [])
    return list(dict.fromkeys(m for root in roots for m in root.modules()))
