"""The part of an optimizer that may take its step in one pass on a GPU."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from torch import Tensor

from o2nc.certified import Certified
from o2nc.kernels import engine
from o2nc.persistence import land
from o2nc.stepping import refuse_capture

if TYPE_CHECKING:
    from o2nc.kernels.lanes import Lane, State
    from o2nc.kernels.rules import Rule


class Fused(Certified):
    """Takes the fused step of `o2nc.kernels` where it applies, and can do without.

    In state per parameter, beside `Certified`'s: ``fresh``, what of it no step has touched yet (see `persistence`).
    """

    _has_other_fused = False  # whether torch has a fused step of its own where ours does not run

    @abstractmethod
    def _lanes(self) -> "list[Lane]":
        """Return the parameters that take part, with all state made that they need."""

    @abstractmethod
    def _rule(self) -> "Rule | None":
        """Return the learner as device functions, or None if it has no such form."""

    def _structure(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return what must stay as it is in a group for the tables to hold."""
        return group["scaling"], group["seed"], group["average"]

    @abstractmethod
    def _group_numbers(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return lr, momentum, dampening, weight decay and the sign of the gradient, as numbers or tensors."""

    @property
    def _engine(self) -> engine.Engine:
        """The tables laid out so far: a cache, which copies and pickles leave behind."""
        if "_engine_cache" not in self.__dict__:
            self._engine_cache = engine.Engine()
        return self._engine_cache

    def _forget_layouts(self) -> None:
        super()._forget_layouts()
        self._engine.forget()

    def _fuse(self) -> bool:
        """Take the fused step if it is demanded or applies; return whether this step is done with."""
        here, demanded, refused = False, False, False
        for group in self.param_groups:
            here |= any(p.device.type in engine.DEVICES for p in group["params"][:1])
            fused = group.setdefault("fused", None)  # an older checkpoint may lack it
            demanded |= fused is True
            refused |= fused is False or group.get("foreach") is not None
        here |= demanded and not self._has_other_fused  # so that a reason is given
        if here and (demanded or not refused) and self._may_fuse(demanded):
            reason = self._engine.take(self)
            if reason is None:
                return True
            if demanded:
                raise RuntimeError(
                    f"fused=True, but the fused step cannot be taken: {reason} (fused=None does without by itself)"
                )
        refuse_capture(self, self.param_groups[0]["scaling"], self.param_groups[0]["average"])
        land(self)
        return False

    def _may_fuse(self, demanded: bool) -> bool:
        return True

    def _watched(self, p: Tensor) -> "State":
        """Return the state of a parameter as one that tells when it is touched."""
        from o2nc.kernels.lanes import State

        state = self.state[p]
        if not isinstance(state, State):
            state = self.state[p] = State(state)
        return state
