"""`extend` gives any torch optimizer averages in place: its class becomes one with `Averaged` before it."""

from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import ref

import torch
from torch import optim
from torch.optim import Optimizer

from o2nc.averages.update import Entry, Iterate
from o2nc.averages.windows import Average
from o2nc.optimizers.base import Averaged
from o2nc.optimizers.options import new_settings
from o2nc.persist.plain import AVERAGED, KEY
from o2nc.scaling import Exponential, Law

# Weight decay is part of the gradient, unless a group has decoupled_weight_decay.
_COUPLES_DECAY = frozenset(["Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD"])
# Linear in lr, with a state that lr does not enter. Not so: ASGD, Adafactor, LBFGS, Rprop.
_LINEAR_IN_LR = _COUPLES_DECAY - {"ASGD"} | {"AdamW", "Muon"}


def extend(
    optimizer: Optimizer,
    average: Average = None,
    scaling: Law | None = None,
    seed: int = 0,
    *,
    certificate: bool = False,
    offload: bool = False,
) -> Any:
    """Give ``optimizer`` averages, and if you wish a certificate and random scaling; return the same object.

    It stays an instance of its class. Without ``scaling`` its parameters move bitwise as they would without o2nc.
    Copies, pickles and checkpoints carry the averages along; extend an optimizer before you load such a checkpoint.

    Args:
        optimizer: any torch optimizer except LBFGS and o2nc's own, which have averages already.
        average: a window such as ``o2nc.Polynomial(12)``, or a number β for ``o2nc.Discount(β)``; None keeps none.
        scaling: the law of s, a random number that multiplies every update; None leaves updates as they are.
        seed: a non-negative integer; s_n is a pure function of it and n. Two optimizers with the same seed draw the
            same s: give each of a GAN's two its own.
        certificate: keep ḡ and V beside x̄, for ``certificate()``.
        offload: keep the averages in the host's memory; combine it with a window that has ``every``.

    Returns:
        ``optimizer``.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.extend(torch.optim.NAdam(model.parameters()), average=o2nc.Polynomial(12, every=8))
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
        >>> isinstance(opt, torch.optim.NAdam)
        True
    """
    settings = new_settings(average, scaling, seed, certificate, offload)
    _refuse(optimizer)
    plain: Any = type(optimizer)
    own = dict(vars(optimizer))
    try:
        optimizer.__class__ = _with_averages(plain)
    except TypeError as error:  # as for classes with ABC before Optimizer among their bases
        raise ValueError(
            f"optimizer cannot be extended in place: {plain.__name__} has another layout: {error}"
        ) from error
    try:
        optimizer._reset()  # type: ignore[attr-defined]
        optimizer._begin(settings)  # type: ignore[attr-defined]
        optimizer._patch_step_function()  # torch calls the step hooks around our step
        if "step" in vars(optimizer):  # set by a scheduler, and bound to the class of that moment
            optimizer.step = _tracked_step(optimizer)  # type: ignore[method-assign]
    except BaseException:
        optimizer.__class__ = plain
        optimizer.param_groups[0].pop(KEY, None)
        vars(optimizer).clear()
        vars(optimizer).update(own)
        raise
    return optimizer


def random_scaling(optimizer: Optimizer, scaling: Law | None = Exponential(), seed: int = 0) -> Any:
    """Multiply every update of ``optimizer`` by a random scalar, and return the same object.

    It is `extend`, which describes the arguments, with scaling and no averages.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.random_scaling(torch.optim.AdamW(model.parameters(), lr=3e-4), seed=0)
        >>> isinstance(opt, torch.optim.AdamW)
        True
    """
    return extend(optimizer, None, scaling, seed)


def _refuse(optimizer: Any) -> None:
    """Raise if an optimizer cannot be extended."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {optimizer!r}")
    if isinstance(optimizer, optim.LBFGS):
        raise ValueError(
            "optimizer must not be LBFGS: it evaluates several gradients per step, and estimates the curvature from "
            "the steps that it would have taken alone"
        )
    own = vars(optimizer)
    if own.get("param_groups") is None or "_optimizer_step_pre_hooks" not in own:  # as accelerate's, Lightning's
        raise ValueError(
            f"optimizer must be a torch optimizer itself, not {type(optimizer).__name__}, which wraps one: "
            f"apply extend first, then wrap"
        )
    if isinstance(optimizer, Averaged):
        raise ValueError(
            f"optimizer is one of o2nc's already ({type(optimizer).__name__}): pass average=… and scaling=… at once, "
            "when you construct or extend it"
        )
    if optimizer.defaults.get("differentiable"):
        raise ValueError("optimizer must not be differentiable=True: autograd cannot follow its step through extend")
    if any(KEY in entries for entries in (*optimizer.param_groups, *optimizer.state.values())):
        raise ValueError(
            f"optimizer has entries called {KEY!r}, from the checkpoint of an extended one perhaps: "
            f"apply extend first, then load"
        )
    if "step" in own and not hasattr(own["step"], "_wrapped_by_lr_sched"):
        raise ValueError("optimizer.step was replaced by hand: apply extend first, then replace it")
    taken = (_names(type(optimizer)) | own.keys()) & (_names(Averaged) | _INSTANCE_NAMES)
    if taken:
        raise ValueError(f"optimizer has names of its own that extend needs: {sorted(taken)}")


_INSTANCE_NAMES = frozenset(Averaged.__annotations__)  # attributes that o2nc sets on the instance


def _names(cls: type) -> set[str]:
    """Return the names that a class and its parents define beyond `torch.optim.Optimizer`."""
    found = {name for parent in cls.__mro__ if not issubclass(Optimizer, parent) for name in vars(parent)}
    return {name for name in found if not name.startswith(("__", "_abc_"))} - set(dir(Optimizer))


@cache
def _with_averages(cls: Any) -> type[Optimizer]:
    """Return a subclass of `Averaged` and ``cls``, under the name of ``cls``."""
    is_torchs = cls.__module__.startswith("torch.optim.")
    namespace = {
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "__reduce_ex__": lambda self, protocol: (_restore, (cls,), self.__getstate__()),
        "is_linear_in_lr": is_torchs and cls.__name__ in _LINEAR_IN_LR,
        "couples_decay": is_torchs and cls.__name__ in _COUPLES_DECAY,
        "advice": "average=None: pass average=o2nc.Polynomial(12), say, when you extend it",
        "_step_with_closure": _step_with_closure,
        "shared_options": frozenset(),  # its groups may have options of these names
    }
    return type(cls.__name__, (Averaged, cls), namespace)


def _restore(cls: Any) -> Optimizer:
    """Return an uninitialized optimizer of the extended class, for copies and pickles to fill."""
    extended = _with_averages(cls)
    return extended.__new__(extended)


def _tracked_step(optimizer: Optimizer) -> Any:
    """Return a step that marks itself as called, as schedulers want it, and looks up the present class."""
    owner = ref(optimizer)

    def step(*args: Any, **kwargs: Any) -> Any:
        found: Any = owner()
        found._opt_called = True
        return type(found).step(found, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step


def _step_with_closure(self: Any, closure: Callable[[], Any]) -> Any:
    """Step an optimizer that evaluates the closure itself, perhaps several times and at other points (SAM).

    The averages take the gradients of the closure's first call; if the optimizer has moved the parameters before that
    call, those that were there when the step began.
    """
    params, had_gradients, start = self._known_params, self._has_gradients(), self._iterate()
    copies = [row._replace(x=row.x.clone(), g=None if row.g is None else row.g.clone()) for row in start.rows]
    versions = [p._version for p in params]
    new: dict[Any, Entry] | None = None

    def average(iterate: Iterate) -> None:
        nonlocal new
        self._sample_for_diagnose()
        new = self._update_averages(iterate)
        self.param_groups[0][KEY][AVERAGED] = True

    def observed() -> Any:
        if new is None and had_gradients and versions != [p._version for p in params]:
            average(start._replace(rows=copies))
        with torch.enable_grad():
            loss = closure()
        if new is None and self._has_gradients():
            average(self._iterate())
        return loss

    loss = self._move(start, observed)
    if new is not None:
        self._finish(new)
    return loss
