"""The one abstract class: an optimizer that describes its step, has it taken, and survives as torch's do.

An optimizer is final. It says what its step is (`o2nc.step.Step`), and here that is handed to a backend, first the
fused one where it applies. What torch asks of an optimizer beside the step is in `o2nc.torch_support`, what it says
of its averages in `o2nc.optimizers.readout`.
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from operator import is_not
from typing import Any, ClassVar
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from o2nc.averages import Discount, check_average
from o2nc.backends.eager import Eager
from o2nc.backends.triton import engine
from o2nc.certificates.certificate import Certificate
from o2nc.optimizers import readout
from o2nc.optimizers.learned import is_elementwise
from o2nc.optimizers.readout import Published
from o2nc.state import Fields
from o2nc.step import Step
from o2nc.torch_support import checkpoints, compiling, groups
from o2nc.torch_support.device_state import to_host
from o2nc.torch_support.private import disable_dynamo
from o2nc.torch_support.shards import Shards, is_sharded, local_parts, why_partial


class CertifiedOptimizer(Optimizer):
    """Steps as it describes, keeps averages of the iterates and certifies them."""

    shared: ClassVar[tuple[str, ...]]  # the keys that all parameter groups have in common
    needed: ClassVar[tuple[str, ...]] = ("lr",)  # the keys that a checkpoint's groups must have
    foreign: ClassVar[frozenset[str]] = frozenset()  # the keys that other optimizers obey and this one refuses
    published: ClassVar[Published] = Published()
    advice = "average=None: pass average=0.999, say, when you construct it"
    has_other_fused = False  # whether torch has a fused step of its own where ours does not run
    is_guest = False  # whether the state is another optimizer's, and only what `fields` declares is ours
    names: ClassVar[dict[str, str]] = {}  # of our entries in the parameter groups, where they have others there

    # On the instance, with no defaults on the class: Lightning's wrapper is of a class made from ours, and looks up
    # in the optimizer only what that class lacks.
    _param_refs: list[ref[Tensor]]  # for a compiler: one that looks at the groups compiles anew with every number
    _shards: Shards | None
    _is_node: bool  # whether a compiler sees the step as one node of its graph
    _is_whole: bool  # whether the parameters were found to be whole, and not one process's part of them
    _swaps: list[Any]  # one entry per `averaged` block that is open
    _watchers: dict[Any, Any]  # called after every step, in the operator if the step is compiled

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make it known to compiled graphs, copies included; begin with nobody watching, and nothing swapped."""
        optimizer = super().__new__(cls)
        optimizer._begin()
        return optimizer

    def _begin(self) -> None:
        compiling.register(self)
        self._shards, self._is_whole, self._swaps, self._watchers = None, False, [], {}

    @property
    def _groups(self) -> list[Any]:
        """The parameter groups, with our entries under our names."""
        return self.param_groups

    @property
    def _keeps_state(self) -> bool:
        """Whether any of the state is ours: it keeps its dtype, and is split where parameters are."""
        return not self.is_guest or self._groups[0].get("average") is not None

    @property
    def _window(self) -> Any:
        """The `Window` of the averages; None where there are none."""
        average = self._groups[0]["average"]
        if type(average) is float and 0 < average < 1:
            return Discount(average)
        average = check_average(average)  # changed in the groups by hand, perhaps to nonsense
        return Discount(average) if isinstance(average, float) else average

    @property
    def fields(self) -> Fields:
        """The state that is kept per parameter."""
        return self.fields_for(self.param_groups[0])

    @abstractmethod
    def fields_for(self, group: dict[str, Any]) -> Fields:
        """Return the state that is kept per parameter where the groups are like this one."""

    @abstractmethod
    def _describe(self, step: Step) -> Step:
        """Return the step with this optimizer's rule, and whatever else is its own, filled in."""

    # --- the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move from x_t to x_{t+1}.

        Args:
            closure: recomputes the loss and the gradients, and returns the loss.

        Returns:
            What the closure returned, or None.
        """
        if self._swaps:
            raise RuntimeError("step() inside averaged(): the parameters hold x̄ there; leave the with block first")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not torch.compiler.is_compiling():
            self._take_whole()
        elif self._is_node:
            compiling.take_as_one_node(self)
        else:
            self._take_outside()
        return loss

    def _take_whole(self) -> None:
        """Take the step for all parameters, each process for its part of them, and tell those who watch."""
        with self._local():
            self._take()
        if self._watchers:
            self._notify()

    @disable_dynamo
    def _take_outside(self) -> None:
        """Break the graph: shards cannot be handed to an operator, and autograd cannot look into one."""
        self._take_whole()

    def _take(self) -> bool:
        """Have a backend carry out the step: the fused one if it is demanded or applies; return whether it was."""
        for group in self.param_groups if self.foreign else ():
            if not self.foreign.isdisjoint(group):
                groups.refuse_foreign(self, group)
        eager, fused = self._eager, self._wants_fused()
        with torch.set_grad_enabled(bool(self.defaults.get("differentiable"))):
            step = self._describe(self._begin_step(fused))
            if step.fused is not False:
                reason = self._engine.take(step)
                if reason is None:
                    return True
                if step.fused:
                    refused = f"fused=True, but the fused step cannot be taken: {reason}"
                    raise RuntimeError(f"{refused} (fused=None does without by itself)")
            if isinstance(step.groups[0]["step"], Tensor):
                to_host(step.groups, self.state, self.fields)
            eager.take(step)
        return False

    def _begin_step(self, fused: bool | None) -> Step:
        """Return what every optimizer's step has, and its groups say."""
        groups = self._groups
        first, window = groups[0], self._window
        if len(groups) > 1:  # what they share is the first one's, also after a change by hand
            shared = {key: self.param_groups[0][key] for key in self.shared}
            for group in self.param_groups[1:]:
                group.update(shared)
        return Step(
            type(self).__name__,
            groups,
            self.state,
            window,
            first.get("scaling"),
            first["seed"],
            fused,
            self._shards is not None,
            getattr(self, "found_inf", None),
            getattr(self, "grad_scale", None),
            1 - window.beta if isinstance(window, Discount) and first.get("output") == "geometric" else 1.0,
        )

    def _wants_fused(self) -> bool | None:
        """Return what the groups ask for: True insists on the fused step, None takes it, False does without."""
        here = demanded = refused = False
        for group in self.param_groups:
            here |= any(p.device.type in engine.DEVICES for p in group["params"][:1])
            fused = group.get("fused")
            demanded |= fused is True
            refused |= fused is False or group.get("foreach") is not None
        if demanded and (here or not self.has_other_fused):  # elsewhere, so that a reason is given
            return True
        return None if here and not refused and not demanded else False

    @property
    def _eager(self) -> Eager:
        """The backend, with what it has packed: a cache, which copies and pickles leave behind."""
        if "_eager_cache" not in self.__dict__:
            self._eager_cache = Eager()
        return self._eager_cache

    @property
    def _engine(self) -> engine.Engine:
        """The fused backend, with its tables: a cache likewise."""
        if "_engine_cache" not in self.__dict__:
            self._engine_cache = engine.Engine()
        return self._engine_cache

    def _notify(self) -> None:
        for watcher in list(self._watchers.values()):
            watcher()

    @property
    def _gradient_scale(self) -> float:
        """By what gradients are multiplied, as they stand after a step: a GradScaler may leave its scale to us."""
        scale = getattr(self, "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    # --- parameters, as a compiler and shards want to know them

    @property
    def _all_params(self) -> list[Any]:
        """The parameters; None in the place of one that is gone, since they are not kept alive here."""
        return [found() for found in self._param_refs]

    def _note_params(self) -> None:
        """Note which parameters there are, and how a compiler and other processes have them."""
        compiling.register(self)
        self._param_refs = [ref(p) for group in self.param_groups for p in group["params"]]
        params = self._all_params
        self._shards = Shards(params) if self._keeps_state and any(map(is_sharded, params)) else None
        differentiable = any(group.get("differentiable") for group in self.param_groups)
        self._is_node = self._shards is None and not differentiable

    def _notice_exchange(self) -> bool:
        """Notice parameters that were exchanged in the groups, as wrappers of models do; return whether they were."""
        params = [p for group in self.param_groups for p in group["params"]]
        exchanged = len(params) != len(self._param_refs) or any(map(is_not, params, self._all_params))
        if exchanged:
            self._note_params()
        if exchanged or not self._is_whole:
            self._refuse_partial()  # once more: FSDP1 may have wrapped the model since
            self._is_whole = True
        return exchanged

    def _refuse_partial(self) -> None:
        """Refuse parameters whose other parts are out of reach, where norms or certificates need them."""
        group = self._groups[0]
        learner = group.get("learner")
        if not self._keeps_state or (group.get("average", 0.0) is None and (not learner or is_elementwise(learner))):
            return
        reason = why_partial(self._all_params)
        if reason is not None:
            raise ValueError(
                f"{type(self).__name__} would average, certify and measure norms for every process alone, since it "
                f"has only a part of the parameters: {reason}; without averages, learners by coordinate work"
            )

    def _local(self) -> AbstractContextManager[None]:
        """Return the context in which parameters and state are this process's own."""
        self._notice_exchange()
        return nullcontext() if self._shards is None else local_parts(self)

    # --- what survives

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as in torch; seed, law and the like are those of the first group."""
        groups.check_group(self, param_group)
        super().add_param_group(param_group)
        self._note_params()

    def _wait(self) -> None:
        """Wait for kernels that write the output to the host's memory."""
        for device in {p.device for p in self._all_params if p is not None and p.is_cuda}:
            torch.cuda.synchronize(device)

    def __getstate__(self) -> dict[str, Any]:
        self._warn_if_swapped("a copy of the optimizer")
        self._wait()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._note_params()

    def _share(self, entries: dict[str, Any]) -> None:
        """Give entries to the defaults and to groups that a parent class has already made."""
        self.defaults.update(entries)
        for group in self.param_groups:
            groups.adopt(self, group, self.defaults)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does, with laws and learners as plain dictionaries.

        Warns:
            UserWarning: inside `averaged`, where a model that is saved along with it would be x̄ and not x.
        """
        self._warn_if_swapped("state_dict()")
        with self._local():
            # now, so that what asks for the averages later finds nothing to do and leaves a checkpoint as it is
            known = {p: state for p, state in self.state.items() if "average" in state and "log_decay" in state}
            first = self._groups[0]
            if known and first.get("average", 0.0) is not None:
                readout.catch_up(self, first, list(known), list(known.values()))
        with checkpoints.hooks_after_saving(self) as hooked:
            return hooked(checkpoints.saved(self, super().state_dict()))

    def _warn_if_swapped(self, what: str) -> None:
        if self._swaps:
            warnings.warn(
                f"{what} inside averaged(): the model holds x̄ there, and a run goes on from x; save outside",
                stacklevel=3,
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; as in torch, the checkpoint's hyperparameters win, but not without a word.

        A checkpoint of another kind of optimizer is refused. One with another law, learner, seed or average than
        this optimizer was made with wins, with a warning that names both, so that the run goes on as it was. Two
        things stay as they were made: averages that the checkpoint knows nothing of begin with the next step, and
        ``fused``.

        Raises:
            ValueError: it is of another kind of optimizer, or of other parameters.
        """
        if self._swaps:
            raise RuntimeError("load_state_dict() inside averaged(): the parameters hold x̄ there")
        with checkpoints.hooks_around(self, state_dict) as state_dict:
            self._notice_exchange()
            checkpoints.load(self, state_dict, super().load_state_dict)
            self._eager.forget()
            self._engine.forget()

    # --- what it says of its averages

    def certificate(self, c: float = 1.0) -> Certificate:
        """Return ‖ḡ‖ + c·V, an upper bound on ‖∇F(x̄)‖_c when the gradients are full ones.

        Args:
            c: the price of spread, > 0.

        Returns:
            The certificate of all parameters together; ``.by_parameter`` has every one's own.
        """
        return readout.certificate(self, c)

    def averaged(self) -> AbstractContextManager[None]:
        """Put x̄ into the parameters inside a ``with`` block and restore them bitwise on leaving it.

        Changes made to the parameters inside are lost; ``step()`` inside is refused. Buffers are not averaged:
        with BatchNorm, evaluate inside `o2nc.recalibrated` as well.
        """
        return readout.averaged(self)

    def output(self) -> list[Tensor]:
        """Return x̄_n for an n that was drawn: the output that the theorems speak of.

        n is uniform over all steps so far, or as ``output`` said when the optimizer was made.

        Returns:
            A copy for every parameter, in the order of the parameter groups and in the dtype of the averages; a
            parameter that never had a gradient is returned as it stands.
        """
        return readout.output(self)

    @property
    def progress(self) -> float:
        """Σ w(s_n)⟨g_n, Δ_n⟩, an estimate of F(x_n) − F(x_0) that cost no evaluation of F.

        Where w is the law's weight it is unbiased. Laws whose weight has no finite variance, or whose support does
        not start at 0, have the mean of s in its place; then a term that telescopes is left out. Its noise adds up
        over the steps: with minibatches or long steps one run's value can be far off.
        """
        return readout.progress(self)


def certified(optimizer: Any) -> CertifiedOptimizer:
    """Return the optimizer of o2nc that a framework may have wrapped, as accelerate and Lightning do.

    Raises:
        TypeError: it is none that certifies.
        ValueError: it keeps no averages.
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, CertifiedOptimizer):
        raise TypeError(
            "optimizer must be one that certifies, such as o2nc.ScaledSGDM(…, average=0.999), "
            f"got {type(optimizer).__name__}"
        )
    if optimizer._groups[0].get("average", 0.0) is None:
        raise ValueError(f"optimizer keeps no averages, it was made with {optimizer.advice}")
    if not optimizer._groups[0].get("certificate", True):
        raise ValueError("optimizer keeps no certificate, it was made with certificate=False")
    return optimizer
