"""Any torch optimizer, extended in place: averages, a certificate and random scaling around its own step.

`o2nc.optimizers.extended` has what such an optimizer does; here is how it becomes one: its class is exchanged for one
made on demand, which has `Extended` before its own.
"""

from typing import Any
from weakref import ref

from torch import optim
from torch.optim import Optimizer

from o2nc.averages import Average
from o2nc.optimizers.base import CertifiedOptimizer
from o2nc.optimizers.extended import Extended, check_extension, plain_class
from o2nc.scaling import Exponential, Law


def extend(
    optimizer: Optimizer,
    average: Average = None,
    scaling: Law | None = None,
    seed: int = 0,
    *,
    certificate: bool = True,
    progress: bool = True,
    offload: int | None = None,
) -> Any:
    """Give ``optimizer`` averages and a certificate, and random scaling if asked for; return the same object.

    The object stays an instance of its class, with ``averaged``, ``certificate``, ``output`` and ``progress`` like
    o2nc's own. Without ``scaling`` its parameters move as they would without us, to the bit. Deep copies, pickles
    and checkpoints go on where it was; a checkpoint is loaded into an optimizer that was extended as well.

    Args:
        optimizer: any torch optimizer that takes one gradient per step, except o2nc's own, which have it all.
        average: the window of x̄, ḡ and V: a discount β in (0, 1), or `o2nc.Polynomial` for one that grows with the
            run; None keeps no averages.
        scaling: the law of s, which multiplies every update; None leaves the updates as they are.
        seed: a non-negative integer; s_n is a pure function of it and n. Two optimizers of one program, as a GAN has
            them, draw the same s with the same seed: give each its own.
        certificate: False saves ḡ, 4 bytes per parameter, and there is no certificate.
        progress: False saves the last iterate, by which Δ is known, and there is no ``progress``.
        offload: k keeps all averages in the host's memory and takes every k-th iterate into them, so that they cost
            no memory of the device and little time; the window is as long as without. ḡ is of the gradients at
            those iterates, and there is no ``progress``. None keeps them beside the parameters.

    Returns:
        ``optimizer``.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.extend(torch.optim.NAdam(model.parameters()), average=o2nc.Polynomial(12))
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
        >>> isinstance(opt, torch.optim.NAdam)
        True
    """
    return _extend(optimizer, check_extension(average, scaling, seed, certificate, progress, offload), "extend")


def random_scaling(optimizer: Optimizer, scaling: Law | None = Exponential(), seed: int = 0) -> Any:
    """Multiply every update of ``optimizer`` by a random scalar, and return the same object.

    It is `extend` with scaling and no averages.

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
    return _extend(optimizer, check_extension(None, scaling, seed, True, True), "random_scaling")


_KEPT = frozenset(  # what an extended optimizer sets on itself
    (
        *("_param_refs", "_shards", "_is_node", "_is_whole", "_swaps", "_watchers", "_eager_cache", "_engine_cache"),
        *("_host_cache", "_observed", "_clock", "_is_taken", "_is_unscaled"),
    )
)


def _extend(optimizer: Any, own: dict[str, Any], name: str) -> Any:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {optimizer!r}")
    if isinstance(optimizer, optim.LBFGS):
        raise ValueError(
            "optimizer must not be LBFGS: it asks for several gradients per step, and learns the curvature from the "
            "steps that it thinks it made"
        )
    made = vars(optimizer)
    if made.get("param_groups") is None or "_optimizer_step_pre_hooks" not in made:  # as accelerate's, Lightning's
        raise ValueError(
            f"optimizer must be a torch optimizer itself, not {type(optimizer).__name__}, which wraps one: "
            f"apply {name} first, then wrap"
        )
    if isinstance(optimizer, Extended):
        raise ValueError("optimizer is extended already: say all at once, extend(optimizer, average=…, scaling=…)")
    if isinstance(optimizer, CertifiedOptimizer):
        raise ValueError(
            f"optimizer must not be one of o2nc's own ({type(optimizer).__name__} averages and scales by itself): "
            "pass average=… and scaling=… when you construct it"
        )
    if optimizer.defaults.get("differentiable"):
        raise ValueError("optimizer must not be differentiable=True: autograd cannot follow its step from outside")
    if any(key in group for group in optimizer.param_groups for key in Extended.shared):
        raise ValueError(
            "optimizer's parameter groups have entries of an extended one, from a checkpoint perhaps: "
            f"apply {name} first, then load"
        )
    taken = (_names(type(optimizer)) | made.keys()) & (_names(Extended) | _KEPT)
    if taken:
        raise ValueError(f"optimizer has names of its own that {name} needs: {sorted(taken)}")
    step = made.get("step")
    if step is not None and not hasattr(step, "_wrapped_by_lr_sched"):
        raise ValueError(f"optimizer.step was replaced by hand: apply {name} first, then replace it")
    plain = type(optimizer)
    try:
        optimizer.__class__ = _extended(plain)
    except TypeError as error:  # as for classes with ABC before Optimizer among their bases
        raise ValueError(
            f"optimizer cannot be extended in place, {plain.__name__} is laid out otherwise: {error}"
        ) from error
    try:
        assert isinstance(optimizer, Extended)
        optimizer._begin()
        optimizer._share(own)
        optimizer._note_params()
        optimizer._refuse_partial()
        optimizer._patch_step_function()
        if step is not None:  # a scheduler's, which calls the step that it has found
            optimizer.step = _noted(optimizer)  # type: ignore[method-assign]
    except BaseException:
        optimizer.__class__ = plain
        for key in _KEPT:
            made.pop(key, None)
        for group in (optimizer.defaults, *optimizer.param_groups):
            for key in Extended.shared:
                group.pop(key, None)
        raise
    return optimizer


def _names(cls: type) -> set[str]:
    """Return what a class and its parents define beyond `torch.optim.Optimizer`."""
    found = {name for parent in cls.__mro__ if not issubclass(Optimizer, parent) for name in vars(parent)}
    return {name for name in found if not name.startswith(("__", "_abc_"))} - set(dir(Optimizer))


# --- classes made on demand

_CLASSES: dict[type[Optimizer], type[Optimizer]] = {}


def _extended(cls: type[Optimizer]) -> type[Optimizer]:
    """Return the class that is ``cls`` with `Extended` in front, under the same name."""
    if cls not in _CLASSES:
        namespace = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__reduce_ex__": _reduce}
        _CLASSES[cls] = type(cls.__name__, (Extended, cls), namespace)
    return _CLASSES[cls]


def _reduce(self: Any, protocol: Any) -> Any:
    return _restore, (plain_class(type(self)),), self.__getstate__()


def _restore(cls: type[Optimizer]) -> Optimizer:
    extended = _extended(cls)
    return extended.__new__(extended)


def _noted(optimizer: Optimizer) -> Any:
    """Return a step that a scheduler knows to be one, and that finds the class as it is now."""
    owner = ref(optimizer)

    def step(*args: Any, **kwargs: Any) -> Any:
        found: Any = owner()
        found._opt_called = True
        return type(found).step(found, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step
