"""Random scaling for any torch optimizer, in place.

    x_{t+1} = x_t + s_{t+1}·(what the optimizer would have added)

Most of torch's optimizers move by lr times something that lr does not enter, so it is enough to multiply lr by s for
the duration of a step: no memory, and the same bits as if lr·s had been set by hand. Any other optimizer's
parameters are remembered before the step, and the displacement is scaled after it.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

from o2nc import checks
from o2nc.certified import Certified
from o2nc.persistence import Persistent
from o2nc.scaling import Exponential, Law, check_law

# Linear in lr, with a state that lr does not enter. Not so: ASGD, Adafactor, LBFGS, Rprop.
_LINEAR_IN_LR: frozenset[type[Optimizer]] = frozenset(
    getattr(optim, name)
    for name in (
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "Muon",
        "NAdam",
        "RAdam",
        "RMSprop",
        "SGD",
        "SparseAdam",
    )
    if hasattr(optim, name)
)


def random_scaling(optimizer: Optimizer, scaling: Law | None = Exponential(), seed: int = 0) -> Any:
    """Multiply every update of ``optimizer`` by a random scalar, and return the same object.

    The object stays an instance of its class. Deep copies and pickles of it are scaled too and go on with the same
    scalars. So do checkpoints, loaded into an optimizer that `random_scaling` was applied to as well.

    Args:
        optimizer: any torch optimizer except o2nc's own, which scale already.
        scaling: the law of s; None leaves the updates as they are.
        seed: a non-negative integer; s_n is a pure function of it and n.

    Returns:
        ``optimizer``.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.random_scaling(torch.optim.AdamW(model.parameters(), lr=3e-4), seed=0)
        >>> isinstance(opt, torch.optim.AdamW)
        True
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {optimizer!r}")
    if isinstance(optimizer, RandomlyScaled):
        raise ValueError("optimizer is random-scaled already: scaling it twice would multiply two scalars")
    if isinstance(optimizer, Certified):
        raise ValueError(
            f"optimizer must not be one of o2nc's own ({type(optimizer).__name__} scales by itself): "
            "pass scaling=… when you construct it"
        )
    if optimizer.defaults.get("differentiable"):
        raise ValueError("optimizer must not be differentiable=True: autograd cannot follow the step hooks")
    check_law(scaling)
    checks.integer("seed", seed, 0)
    optimizer.__class__ = _scaled(type(optimizer))
    assert isinstance(optimizer, RandomlyScaled)
    optimizer._share({"scaling": scaling, "scaling_seed": seed, "scaling_step": 0})
    optimizer._hook()
    return optimizer


class RandomlyScaled(Persistent):
    """What `random_scaling` adds to an optimizer's class: two step hooks, and surviving copies."""

    needed: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ("scaling", "scaling_seed", "scaling_step")

    def _keeps_dtype(self, key: str) -> bool:
        return False  # the state is the wrapped optimizer's, cast as torch casts it

    def __reduce_ex__(self, protocol: Any) -> Any:
        # torch drops step hooks from copies; `_restore` and __setstate__ put them back
        return _restore, (type(self).__bases__[1],), self.__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not self._hooked:
            self._hook()

    _hooked = False
    _before: list[Any] | None = None

    def _hook(self) -> None:
        self._hooked = True
        self.register_step_pre_hook(_scale_before)
        self.register_step_post_hook(_scale_after)


_CLASSES: dict[type[Optimizer], type[Optimizer]] = {}


def _scaled(cls: type[Optimizer]) -> type[Optimizer]:
    """Return the class that is ``cls`` with `RandomlyScaled` in front, under the same name."""
    if cls not in _CLASSES:
        namespace = {"__doc__": cls.__doc__, "__module__": cls.__module__}
        _CLASSES[cls] = type(cls.__name__, (RandomlyScaled, cls), namespace)
    return _CLASSES[cls]


def _restore(cls: type[Optimizer]) -> Optimizer:
    scaled = _scaled(cls)
    return scaled.__new__(scaled)


def _is_linear(optimizer: Optimizer) -> bool:
    return type(optimizer).__bases__[1] in _LINEAR_IN_LR


def _tensors(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _scale_before(optimizer: Any, args: Any, kwargs: Any) -> None:
    group = optimizer.param_groups[0]
    law, seed, step = (group[key] for key in optimizer.shared)
    if law is None:
        return
    if not _is_linear(optimizer):
        optimizer._before = [p.detach().clone() for p in _tensors(optimizer)]
        return
    if optimizer._before is not None:  # the last step ended in an error, before lr was put back
        _put_back_lr(optimizer)
    s = law.sample(seed, step + 2)
    optimizer._before = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * s


def _put_back_lr(optimizer: Any) -> None:
    for group, lr in zip(optimizer.param_groups, optimizer._before, strict=False):
        group["lr"] = lr
    optimizer._before = None


@torch.no_grad()
def _scale_after(optimizer: Any, args: Any, kwargs: Any) -> None:
    group = optimizer.param_groups[0]
    law, seed, step = (group[key] for key in optimizer.shared)
    if law is None:
        return
    if _is_linear(optimizer):
        _put_back_lr(optimizer)
    else:
        s = law.sample(seed, step + 2)
        for p, x in zip(_tensors(optimizer), optimizer._before, strict=True):
            p.copy_(x.lerp_(p, s))
        optimizer._before = None
    found_inf = getattr(optimizer, "found_inf", None)
    skipped = found_inf is not None and bool(found_inf.item())
    if not skipped and any(p.grad is not None for p in _tensors(optimizer)):
        for group in optimizer.param_groups:
            group["scaling_step"] = step + 1
