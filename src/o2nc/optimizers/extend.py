"""Random scaling for any torch optimizer, in place.

    x_{t+1} = x_t + s_{t+1}·(what the optimizer would have added)

Most of torch's optimizers move by lr times something that lr does not enter, so it is enough to multiply lr by s for
the duration of a step: no memory, and the same bits as if lr·s had been set by hand. Any other optimizer's
parameters are remembered before the step, and the displacement is scaled after it.
"""

from typing import Any, ClassVar

import torch
from torch import optim
from torch.optim import Optimizer

from o2nc import checks
from o2nc.optimizers.base import CertifiedOptimizer
from o2nc.scaling import Exponential, Law, check_law, is_weighted
from o2nc.state import Fields
from o2nc.step import Step
from o2nc.torch_support.compiling import refuse_capture, take_as_one_node
from o2nc.torch_support.private import disable_dynamo

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
        seed: a non-negative integer; s_n is a pure function of it and n. Two optimizers of one program, as a GAN has
            them, draw the same s with the same seed: give each its own.

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
    if isinstance(optimizer, optim.LBFGS):
        raise ValueError(
            "optimizer must not be LBFGS: it learns the curvature from the steps that it thinks it made, and scaled "
            "ones are others"
        )
    if vars(optimizer).get("param_groups") is None:  # such as accelerate's and Lightning's
        raise ValueError(
            f"optimizer must be a torch optimizer itself, not {type(optimizer).__name__}, which wraps one: "
            "apply random_scaling first, then wrap"
        )
    if isinstance(optimizer, RandomlyScaled):
        raise ValueError("optimizer is random-scaled already: scaling it twice would multiply two scalars")
    if isinstance(optimizer, CertifiedOptimizer):
        raise ValueError(
            f"optimizer must not be one of o2nc's own ({type(optimizer).__name__} scales by itself): "
            "pass scaling=… when you construct it"
        )
    if optimizer.defaults.get("differentiable"):
        raise ValueError("optimizer must not be differentiable=True: autograd cannot follow the step hooks")
    check_law(scaling)
    if is_weighted(scaling):
        raise ValueError(
            f"scaling must be without weights, got {scaling!r}: weights belong to the losses, which are another "
            "optimizer's here; ExponentiatedO2NC and ScaledSGDM take them"
        )
    checks.integer("seed", seed, 0)
    if any(key in group for group in optimizer.param_groups for key in RandomlyScaled.shared):
        raise ValueError(
            "optimizer's parameter groups have entries of a scaled one, from a checkpoint perhaps: "
            "apply random_scaling first, then load"
        )
    plain = type(optimizer)
    optimizer.__class__ = _scaled(plain)
    try:
        assert isinstance(optimizer, RandomlyScaled)
        optimizer._begin()
        optimizer._share({"scaling": scaling, "scaling_seed": int(seed), "scaling_step": 0, "average": None})
        optimizer._hook()
    except BaseException:
        optimizer.__class__ = plain
        for group in (optimizer.defaults, *optimizer.param_groups):
            for key in RandomlyScaled.shared:
                group.pop(key, None)
        raise
    return optimizer


class RandomlyScaled(CertifiedOptimizer):
    """What `random_scaling` adds to an optimizer's class: two step hooks, and surviving copies."""

    shared: ClassVar[tuple[str, ...]] = ("scaling", "scaling_seed", "scaling_step", "average")
    advice = "random_scaling, which keeps none: o2nc.ScaledSGDM(…, average=0.999) does, say"
    owns_state = False  # it is the wrapped optimizer's
    _hooked = False
    _guarded = False  # inside `step`, which cleans up after an error
    _depth = 0  # of hooks within hooks: a subclass that calls super().step() runs them twice
    _before: list[Any] | None = None  # what `_scale_after` needs: the learning rates, or the parameters

    @property
    def needed(self) -> tuple[str, ...]:  # type: ignore[override]
        """The numbers of the wrapped optimizer, by which its checkpoints are known."""
        numbers = (key for key, value in self.defaults.items() if isinstance(value, int | float | tuple))
        return tuple(key for key in numbers if key not in self.shared and not isinstance(self.defaults[key], bool))

    @property
    def fields(self) -> Fields:
        """Nothing is kept per parameter."""
        return {}

    def _describe(self, fused: bool | None = False) -> Step:
        raise AssertionError  # the step is the wrapped optimizer's

    def __reduce_ex__(self, protocol: Any) -> Any:
        # torch drops step hooks from copies; `_restore` and __setstate__ put them back
        return _restore, (_plain(type(self)),), self.__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not self._hooked:
            self._hook()

    def _take(self) -> None:
        self.step()

    def _hook(self) -> None:
        self._list()
        self._hooked = True
        self.register_step_pre_hook(_scale_before)
        self.register_step_post_hook(_scale_after)


def _guarded_step(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Step, and put the learning rates back if the step ends in an error."""
    if torch.compiler.is_compiling() and not (args or kwargs):  # a closure's gradients come too late for one node
        return take_as_one_node(self)
    step = _plain(type(self)).step
    if self._guarded:
        return step(self, *args, **kwargs)
    self._guarded = True
    try:
        return step(self, *args, **kwargs)
    finally:
        self._guarded, self._depth = False, 0
        if self._before is not None:
            _clean_up(self)


_guarded_step.hooked = True  # type: ignore[attr-defined]  # the parent's step runs the hooks
_CLASSES: dict[type[Optimizer], type[Optimizer]] = {}


def _scaled(cls: type[Optimizer]) -> type[Optimizer]:
    """Return the class that is ``cls`` with `RandomlyScaled` in front, under the same name."""
    if cls not in _CLASSES:
        namespace = {"__doc__": cls.__doc__, "__module__": cls.__module__, "step": _guarded_step}
        _CLASSES[cls] = type(cls.__name__, (RandomlyScaled, cls), namespace)
    return _CLASSES[cls]


def _plain(scaled: type[Optimizer]) -> type[Optimizer]:
    """Return the class that ``scaled`` was made from."""
    return next(base for cls in scaled.__mro__ if RandomlyScaled in cls.__bases__ for base in cls.__bases__[1:])


def _restore(cls: type[Optimizer]) -> Optimizer:
    scaled = _scaled(cls)
    return scaled.__new__(scaled)


def _is_linear(optimizer: Optimizer) -> bool:
    return _plain(type(optimizer)) in _LINEAR_IN_LR


def _scalar(optimizer: Any) -> float:
    law, seed, step = (optimizer.param_groups[0][key] for key in optimizer.shared[:3])
    return law.sample(seed, step + 2)


@disable_dynamo
def _scale_before(optimizer: Any, args: Any, kwargs: Any) -> None:
    if optimizer.param_groups[0]["scaling"] is None:
        return
    refuse_capture(type(optimizer).__name__, optimizer.param_groups[0]["scaling"])
    if optimizer._before is not None and optimizer._guarded:
        optimizer._depth += 1
        return
    if optimizer._before is not None:  # an error in a step that a scheduler had wrapped before we came
        _clean_up(optimizer)
    if _is_linear(optimizer):
        s = _scalar(optimizer)
        optimizer._before = [(group, group["lr"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * s
    else:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        optimizer._before = [(p, p.detach().clone()) for p in params if p.requires_grad or p.grad is not None]


def _clean_up(optimizer: Any) -> None:
    if _is_linear(optimizer):
        for group, lr in optimizer._before:
            group["lr"] = lr
    optimizer._before = None


@disable_dynamo
@torch.no_grad()
def _scale_after(optimizer: Any, args: Any, kwargs: Any) -> None:
    if optimizer._before is None:
        return
    if optimizer._depth:
        optimizer._depth -= 1
        return
    if not _is_linear(optimizer):
        s = _scalar(optimizer)
        for p, x in optimizer._before:
            p.copy_(torch.where(p == x, p, torch.lerp(x, p, s)))  # infinities that stood still go on standing still
    _clean_up(optimizer)
    found_inf = getattr(optimizer, "found_inf", None)
    skipped = found_inf is not None and bool(found_inf.item())
    if not skipped and any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
        for group in optimizer.param_groups:
            group["scaling_step"] += 1
