"""``step()``, the same for all optimizers, and as one node of a compiled graph.

s, γ and the counters are numbers of the host that change with every step: torch.compile would freeze them, or compile
anew each time. So to a compiler the whole step is one operator, given the parameters and their gradients; when it is
run it takes the same step as ever, fused on a GPU, at the learning rates of that moment.
"""

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import is_not
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from o2nc.sharding import Shards, at_home, is_sharded
from o2nc.torch_private import disable_dynamo, one_node

_LIVE: WeakValueDictionary[int, Any] = WeakValueDictionary()


class Compilable(Optimizer):
    """An optimizer whose step a compiler sees as one node.

    ``_known`` repeats the parameters: to look at the parameter groups would make a compiler compile anew whenever a
    number in them changes. It does not keep them alive if others take their places.
    """

    _known: list[ref[Tensor]]

    @property
    def _listed(self) -> list[Any]:
        """The parameters; None in the place of one that is gone."""
        return [known() for known in self._known]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make it known to compiled graphs, copies included."""
        optimizer = super().__new__(cls)
        _LIVE[id(optimizer)] = optimizer
        return optimizer

    @abstractmethod
    def _take(self) -> None:
        """Move the parameters, with the gradients that they have."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as in torch."""
        super().add_param_group(param_group)
        self._list()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._list()

    def _list(self) -> None:
        _LIVE[id(self)] = self
        self._known = [ref(p) for p in _everyone(self)]

    def _keep_listed(self) -> bool:
        """Notice parameters that were exchanged in the groups, as wrappers of models do; return whether they were."""
        everyone = _everyone(self)
        exchanged = len(everyone) != len(self._known) or any(map(is_not, everyone, self._listed))
        if exchanged:
            self._list()
        return exchanged

    def _tell(self) -> None:
        """Tell those who watch that a step was taken."""

    def _take_as_one_node(self) -> None:
        """Put the step into the graph that is being made."""
        everyone = self._listed
        at = [i for i, p in enumerate(everyone) if p is not None and p.grad is not None]
        with torch.no_grad():
            _node([everyone[i] for i in at], [everyone[i].grad for i in at], at, id(self))


class Stepping(Compilable):
    """The part of an optimizer that steps, with parameters that may be sharded."""

    # On the instance, with no defaults on the class: Lightning's wrapper is of a class made from ours, and looks up
    # in the optimizer only what that class lacks.
    _shards: Shards | None
    _is_node: bool  # to a compiler
    _swaps: list[Any]  # one entry per `averaged` block that is open
    _watchers: dict[int, Callable[[], None]]  # called after every step, in the operator if the step is compiled

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Begin with nobody watching, and nothing swapped."""
        optimizer = super().__new__(cls)
        optimizer._shards, optimizer._swaps, optimizer._watchers = None, [], {}
        return optimizer

    def _tell(self) -> None:
        for watcher in list(self._watchers.values()):
            watcher()

    def _list(self) -> None:
        super()._list()
        self._shards = Shards(self._listed) if any(map(is_sharded, self._listed)) else None
        differentiable = any(group.get("differentiable") for group in self.param_groups)
        self._is_node = self._shards is None and not differentiable

    def _home(self) -> AbstractContextManager[None]:
        """Return the context in which parameters and state are this process's own."""
        self._keep_listed()
        return nullcontext() if self._shards is None else at_home(self)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move from x_t to x_{t+1}.

        Args:
            closure: recomputes the loss and the gradients, and returns the loss.

        Returns:
            What the closure returned, or None.
        """
        self._check_state()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():
            self._take_at_home()
        elif self._is_node:
            self._take_as_one_node()
        else:
            self._take_outside()
        return loss

    def _take_at_home(self) -> None:
        with self._home():
            self._take()
        self._tell()

    @disable_dynamo
    def _take_outside(self) -> None:
        """Break the graph: shards cannot be handed to an operator, and autograd cannot look into one."""
        self._take_at_home()

    def _check_state(self) -> None:
        """Refuse to step where that makes no sense."""


def unscaling(optimizer: Any) -> float | None:
    """Return what undoes the scale of a GradScaler that leaves that to the step; None after an overflow."""
    found_inf, grad_scale = (getattr(optimizer, name, None) for name in ("found_inf", "grad_scale"))
    if found_inf is not None and found_inf.item():
        return None
    return 1.0 if grad_scale is None else 1 / grad_scale.item()


def is_capturing() -> bool:
    """Say whether what is launched now becomes part of a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # is_available is slow


def refuse_capture(optimizer: Optimizer, law: Any, average: Any = None) -> None:
    """Refuse to be captured by a CUDA graph where the host draws s and γ: every replay would repeat them."""
    if (law is not None or average is not None) and is_capturing():
        raise RuntimeError(
            f"this step of {type(optimizer).__name__} cannot be captured in a CUDA graph: s and the counters are on "
            "the host, and every replay would repeat them; a fused step can be captured (fused=True insists on it)"
        )


def _everyone(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@one_node("o2nc::step", "(Tensor(a!)[] params, Tensor[] grads, int[] at, int optimizer) -> ()")
def _node(params: list[Tensor], grads: list[Tensor], at: list[int], optimizer: int) -> None:
    owner = _LIVE[optimizer]
    if owner._keep_listed():
        raise RuntimeError("the lists of parameters were changed by hand after step() was compiled: call it again")
    everyone = owner._listed
    before = [p.grad for p in everyone]
    # a compiler may hand over copies, which it writes back afterwards
    copies = [(everyone[i], p) for i, p in zip(at, params, strict=True) if everyone[i].data_ptr() != p.data_ptr()]
    try:
        for p in everyone:
            p.grad = None
        for i, g in zip(at, grads, strict=True):
            everyone[i].grad = g
        for own, given in copies:
            own.detach().copy_(given)
        owner._take()
        for own, given in copies:
            given.copy_(own.detach())
    finally:
        for p, former in zip(everyone, before, strict=True):
            p.grad = former
    owner._tell()


@_node.register_fake  # type: ignore[untyped-decorator]
def _(params: list[Tensor], grads: list[Tensor], at: list[int], optimizer: int) -> None:
    return None
