"""The one abstract class: an optimizer that describes its step, and answers for its averages.

An optimizer is final. It says what its step is (`o2nc.step.Step`), and here that is handed to a backend, first the
fused one where it applies. What torch asks of an optimizer beside the step is in `o2nc.torch_support`.
"""

import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from operator import is_not
from typing import Any, ClassVar, NamedTuple
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from o2nc import checks
from o2nc.averages import Weights, catch_up_
from o2nc.backends.eager import Eager
from o2nc.backends.triton import engine
from o2nc.certificates.certificate import Certificate
from o2nc.learners import is_elementwise
from o2nc.scaling import ROUNDING, uniform
from o2nc.state import Fields
from o2nc.step import Step
from o2nc.torch_support import checkpoints, compiling
from o2nc.torch_support.private import disable_dynamo
from o2nc.torch_support.shards import Shards, assemble, is_sharded, local_parts, why_partial
from o2nc.vector import as_numbers, real, squares


class NoAverages(RuntimeError, AttributeError):
    """There are no averages to speak of; for a property that means, as ever in Python, that it is not there."""


class Published(NamedTuple):
    """Which state `averaged` and `certificate` speak of."""

    average: str = "average"
    spread: str = "spread"
    gradient_squared: str | None = None  # None: that of ḡ
    nothing_yet: str = "nothing is averaged before the first step()"


class CertifiedOptimizer(Optimizer):
    """Steps as it describes, keeps averages of the iterates and certifies them."""

    shared: ClassVar[tuple[str, ...]]  # the keys that all parameter groups have in common
    needed: ClassVar[tuple[str, ...]] = ("lr",)  # the keys that a checkpoint's groups must have
    foreign: ClassVar[frozenset[str]] = frozenset()  # the keys that a group must not hope to have obeyed
    published: ClassVar[Published] = Published()
    advice = "average=None: pass average=0.999, say, when you construct it"
    has_other_fused = False  # whether torch has a fused step of its own where ours does not run
    is_guest = False  # whether the state is another optimizer's, and only what `fields` declares is ours
    names: ClassVar[dict[str, str]] = {}  # by which our entries go in the parameter groups, where not by their own

    # On the instance, with no defaults on the class: Lightning's wrapper is of a class made from ours, and looks up
    # in the optimizer only what that class lacks.
    _known: list[ref[Tensor]]  # the parameters: a compiler that looks at the groups compiles anew with every number
    _shards: Shards | None
    _is_node: bool  # to a compiler
    _is_whole: bool  # as far as was looked
    _swaps: list[Any]  # one entry per `averaged` block that is open
    _watchers: dict[int, Callable[[], None]]  # called after every step, in the operator if the step is compiled

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
    @abstractmethod
    def fields(self) -> Fields:
        """The state that is kept per parameter."""

    @abstractmethod
    def _describe(self, fused: bool | None = False) -> Step:
        """Return the step that is to be taken, with the gradients that the parameters have.

        Args:
            fused: what the groups ask for, see `_wants_fused`.
        """

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
        self._notice_exchange()
        if self._shards is None:
            self._take()
        else:
            with local_parts(self):
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
                checkpoints.refuse_foreign(self, group)
        eager, fused = self._eager, self._wants_fused()
        with torch.set_grad_enabled(bool(self.defaults.get("differentiable"))):
            step = self._describe(fused)
            if step.fused is not False:
                reason = self._engine.take(step)
                if reason is None:
                    return True
                if step.fused:
                    refused = f"fused=True, but the fused step cannot be taken: {reason}"
                    raise RuntimeError(f"{refused} (fused=None does without by itself)")
            if isinstance(self._groups[0]["step"], Tensor):
                checkpoints.to_host(self._groups, self.state, self.fields)
            eager.take(step)
        return False

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

    # --- parameters, as a compiler and shards want to know them

    @property
    def _listed(self) -> list[Any]:
        """The parameters; None in the place of one that is gone, since they are not kept alive here."""
        return [known() for known in self._known]

    def _list(self) -> None:
        compiling.register(self)
        self._known = [ref(p) for group in self.param_groups for p in group["params"]]
        params = self._listed
        self._shards = Shards(params) if self._keeps_state and any(map(is_sharded, params)) else None
        differentiable = any(group.get("differentiable") for group in self.param_groups)
        self._is_node = self._shards is None and not differentiable

    def _notice_exchange(self) -> bool:
        """Notice parameters that were exchanged in the groups, as wrappers of models do; return whether they were."""
        params = [p for group in self.param_groups for p in group["params"]]
        exchanged = len(params) != len(self._known) or any(map(is_not, params, self._listed))
        if exchanged:
            self._list()
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
        reason = why_partial(self._listed)
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
        checkpoints.check_group(self, param_group)
        super().add_param_group(param_group)
        self._list()

    def _wait(self) -> None:
        """Wait for kernels that write the output to the host's memory."""
        for device in {p.device for p in self._listed if p is not None and p.is_cuda}:
            torch.cuda.synchronize(device)

    def __getstate__(self) -> dict[str, Any]:
        self._wait()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._list()

    def _share(self, entries: dict[str, Any]) -> None:
        """Give entries to the defaults and to groups that a parent class has already made."""
        self.defaults.update(entries)
        for group in self.param_groups:
            checkpoints.adopt(self, group, self.defaults)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does, with laws and learners as plain dictionaries."""
        with self._local():
            # now, so that what asks for the averages later finds nothing to do and leaves a checkpoint as it is
            known = {p: state for p, state in self.state.items() if "average" in state and "log_decay" in state}
            if known and self._groups[0].get("average", 0.0) is not None:
                self._catch_up(list(known), list(known.values()))
        return checkpoints.saved(self, super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; as in torch, the checkpoint's hyperparameters win, but not without a word.

        A checkpoint of another kind of optimizer is refused. One with another law, learner, seed or average than
        this optimizer was made with wins, with a warning that names both, so that the run goes on as it was. Two
        things stay as they were made: averages that the checkpoint knows nothing of begin with the next step, and
        ``fused``.

        Raises:
            ValueError: it is of another kind of optimizer, or of other parameters.
        """
        # torch calls hooks before and after what it does; here that includes decoding and keeping dtypes
        before, after = self._optimizer_load_state_dict_pre_hooks, self._optimizer_load_state_dict_post_hooks
        if self._swaps:
            raise RuntimeError("load_state_dict() inside averaged(): the parameters hold x̄ there")
        state_dict = state_dict.copy()
        for hook in before.values():
            state_dict = hook(self, state_dict) or state_dict
        self._notice_exchange()
        try:
            self._optimizer_load_state_dict_pre_hooks = OrderedDict()
            self._optimizer_load_state_dict_post_hooks = OrderedDict()
            checkpoints.load(self, state_dict, super().load_state_dict)
        finally:
            self._optimizer_load_state_dict_pre_hooks = before
            self._optimizer_load_state_dict_post_hooks = after
        self._eager.forget()
        self._engine.forget()
        for post_hook in after.values():
            post_hook(self)

    # --- what it says of its averages

    @torch.no_grad()
    def certificate(self, c: float = 1.0) -> Certificate:
        """Return ‖ḡ‖ + c·V, an upper bound on ‖∇F(x̄)‖_c when the gradients are full ones.

        Args:
            c: the price of spread, > 0.

        Returns:
            The certificate of all parameters together; ``.by_parameter`` has every one's own.
        """
        checks.positive("c", c)
        c = float(c)
        self._refuse_unless("certificate()", "certificate")
        with self._local():
            names, params, states = self._averages("certificate()", self.published.average)
            self._catch_up(params, states)
            parts = self._totals(torch.stack(self._squares_and_spreads(states)), params)
            numbers = zip(*parts, self._ess(states), strict=True)
        by_parameter: dict[str | int, Certificate] = {
            name: Certificate(c, square**0.5, spread, ess)
            for name, (square, spread, ess) in zip(names, numbers, strict=True)
        }
        ess = min(part.ess for part in by_parameter.values())
        return Certificate(c, math.fsum(parts[0]) ** 0.5, math.fsum(parts[1]), ess, by_parameter)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put x̄ into the parameters inside a ``with`` block and restore them bitwise on leaving it.

        Changes made to the parameters inside are lost; ``step()`` inside is refused. Buffers are not averaged:
        with BatchNorm, evaluate inside `o2nc.recalibrated` as well.
        """
        with self._local():
            _, params, states = self._averages("averaged()", self.published.average)
            self._catch_up(params, states)
        backup = [p.detach().clone() for p in params]
        self._swaps.append(self)
        try:
            for p, state in zip(params, states, strict=True):
                real(p.detach()).copy_(state[self.published.average])
            yield
        finally:
            self._swaps.pop()
            with ExitStack() as restore:  # all of them, even if one cannot be
                for p, former in zip(params, backup, strict=True):
                    restore.callback(p.detach().copy_, former)

    def output(self) -> list[Tensor]:
        """Return x̄_n for an n that was drawn: the output that the theorems speak of.

        n is uniform over all steps so far, or as ``output`` said when the optimizer was made.

        Returns:
            A copy for every parameter, in the order of the parameter groups; a parameter that never had a
            gradient is returned as it stands.
        """
        with self._local():
            _, params, states = self._averages("output()", "output")
            late = bool(int(self._groups[0].get("pending", 0)))  # it is the average of now
            if late:
                self._catch_up(params, states)
        self._wait()
        result = []
        for p in self._listed:
            kept = self.state.get(p, {}).get("average" if late else "output")
            if kept is None:
                result.append(p.detach().clone())
                continue
            kept = kept.to(p.device, copy=True)
            kept = torch.view_as_complex(kept) if p.is_complex() else kept
            result.append(assemble(p, kept) if is_sharded(p) else kept)
        return result

    @property
    def progress(self) -> float:
        """Σ w(s_n)⟨g_n, Δ_n⟩, an estimate of F(x_n) − F(x_0) that cost no evaluation of F.

        Where w is the law's weight it is unbiased. Laws whose weight has no finite variance, or whose support does
        not start at 0, have the mean of s in its place; then a term that telescopes is left out. Its noise adds up
        over the steps: with minibatches or long steps one run's value can be far off.
        """
        self._refuse_unless("progress", "progress")
        with self._local():
            _, params, states = self._averages("progress", "progress")
            gains = [state["progress"] for state in states]
            together = torch.stack([gain.to(gains[0].device) for gain in gains])
            return math.fsum(self._totals(together, params))

    def _refuse_unless(self, wish: str, option: str) -> None:
        """Refuse what the optimizer was made without."""
        group = self._groups[0]
        if option == "progress" and group.get("offload") is not None:
            raise NoAverages(f"{wish}: not with offload={group['offload']}, by which iterates are passed over")
        if not group.get(option, True) and group.get("average") is not None:
            raise NoAverages(f"{wish}: this optimizer was made with {option}=False; pass {option}=True")

    def _averages(self, wish: str, key: str) -> tuple[list[str | int], list[Tensor], list[dict[str, Any]]]:
        """Return names, parameters and states of all that have averages, or say why there are none."""
        if self._groups[0].get("average", 0.0) is None:
            raise NoAverages(f"{wish} needs averages, and this optimizer was made with {self.advice}")
        names: list[str | int] = []
        params, states = [], []
        waiting = self._not_begun()
        i = 0
        for group in self.param_groups:
            given = group.get("param_names", range(i, i + len(group["params"])))
            for name, p in zip(given, group["params"], strict=True):
                state = self.state.get(p, {})
                if key in state and id(state) not in waiting:
                    names.append(i if name in names else name)
                    params.append(p)
                    states.append(state)
                i += 1
        if not params or self._groups[0]["step"] == 0:
            raise NoAverages(f"{wish}: {self.published.nothing_yet}")
        start = getattr(self._groups[0].get("average"), "start", 0)
        if key != "progress" and start and not self._has_started():
            raise NoAverages(f"{wish}: the averages begin after {start} steps (start={start} in average=…)")
        return names, params, states

    def _has_started(self) -> bool:
        """Say whether the window has begun."""
        window = self._describe().window
        return window is None or not window.start or int(self._groups[0]["averaged"]) > window.start

    def _not_begun(self) -> set[int]:
        """Return the ids of states whose averages wait for a first step: all so far were called off."""
        states = [state for state in self.state.values() if isinstance(state.get("fresh"), Tensor)]
        flags = as_numbers([state["fresh"] for state in states])
        fresh = checkpoints.FRESH_AVERAGES
        return {id(state) for state, flag in zip(states, flags, strict=True) if int(flag) & fresh}

    def _weights(self, *, published: bool = False) -> Weights:
        """Return the weights of the iterates so far, or of those that the published averages are of."""
        window = self._describe().window
        assert window is not None
        group = self._groups[0]
        return Weights(*as_numbers(window.published(group) if published else window.weights(group)))

    def _catch_up(self, params: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> None:
        """Bring averages up to date, of parameters without a gradient at the last steps, too."""
        group = self._groups[0]
        dither = uniform(group["seed"], max(int(group["step"]), 1), stream=ROUNDING, draw=1) - 0.5
        catch_up_(params, states, self._weights().log_decay, dither)

    def _squares_and_spreads(self, states: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        """Return ‖ḡ‖² and V of every parameter, as two tensors on the device."""
        keys = self.published
        if keys.gradient_squared is not None:
            found = torch.stack([s[keys.gradient_squared].to(states[0][keys.spread].device) for s in states])
        else:
            # where there is no ḡ the momentum buffer is Σβ^{n−t}g_t
            told = ["gradient" not in state for state in states]
            means = [real(s["momentum_buffer"]) if t else s["gradient"] for s, t in zip(states, told, strict=True)]
            found = squares(means)
            if any(told):
                total = torch.as_tensor(self._groups[0]["weight_sum"], dtype=torch.float64, device=found.device)
                found = torch.where(torch.tensor(told, device="cpu").to(found.device), found / total.square(), found)
        return found, torch.stack([state[keys.spread].to(found.device) for state in states])

    def _ess(self, states: list[dict[str, Any]]) -> list[float]:
        """Return every parameter's effective sample size."""
        weights = self._weights(published=True)
        return [weights.ess(joined) for joined in as_numbers([state["joined"] for state in states])]

    def _totals(self, values: Tensor, params: list[Tensor]) -> Any:
        """Return sums over coordinates as numbers, over all processes that have a shard.

        Args:
            values: one row of numbers, or several; a column for each parameter.
            params: the parameters.
        """
        if self._shards is not None:
            rows = [self._shards.total(row, params) for row in values.reshape(-1, len(params))]
            values = torch.stack(rows).reshape(values.shape)
        return values.tolist()


def certified(optimizer: Any) -> CertifiedOptimizer:
    """Return the optimizer of o2nc that a framework may have wrapped, as accelerate and Lightning do.

    Raises:
        TypeError: it is none that certifies.
        ValueError: it keeps no averages.
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, CertifiedOptimizer) or not optimizer._keeps_state:
        raise TypeError(
            "optimizer must be one that certifies, such as o2nc.ScaledSGDM(…, average=0.999), "
            f"got {type(optimizer).__name__}"
        )
    if optimizer._groups[0].get("average", 0.0) is None:
        raise ValueError(f"optimizer keeps no averages, it was made with {optimizer.advice}")
    if not optimizer._groups[0].get("certificate", True):
        raise ValueError("optimizer keeps no certificate, it was made with certificate=False")
    return optimizer


def progress_of(optimizer: CertifiedOptimizer) -> float:
    """Return the progress, or nan where the optimizer was made without."""
    return optimizer.progress if optimizer._groups[0].get("progress", True) else math.nan


def has_averages(optimizer: CertifiedOptimizer) -> bool:
    """Say whether there is anything to certify: a step was made, and with `OriginalO2NC` a block is complete."""
    begun = any(optimizer.published.average in state for state in optimizer.state.values())
    return begun and int(optimizer._groups[0]["step"]) > 0 and optimizer._has_started()
