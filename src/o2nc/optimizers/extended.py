"""The class that `o2nc.extend` puts before an optimizer's own, and its entries in the parameter groups.

    x̄, ḡ, V  ←  x_t, g_t                    before the step, with whatever window
    x_{t+1} = x_t + s_{t+1}·Δ_{t+1}          Δ is what the optimizer adds; s = 1 without a law

How an optimizer's own step is multiplied by s is in `o2nc.optimizers.multiplied`, how it is seen in
`o2nc.optimizers.observed`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from o2nc import averages, checks, presence
from o2nc.averages import Average, check_average
from o2nc.backends.host import HostCopies, copy_on_host
from o2nc.backends.triton import engine
from o2nc.optimizers.base import CertifiedOptimizer
from o2nc.optimizers.multiplied import LINEAR_IN_LR, multiplied_displacement, multiplied_lr
from o2nc.optimizers.named import NAMES, Named
from o2nc.optimizers.observed import Observed
from o2nc.scaling import Law, check_law
from o2nc.state import Field, Fields, Kind
from o2nc.step import COUNTERS, Step
from o2nc.torch_support.compiling import refuse_capture


def check_extension(
    average: Average, scaling: Law | None, seed: int, certificate: bool, progress: bool, offload: int | None = None
) -> dict[str, Any]:
    """Refuse arguments that cannot be meant; return the entries of the parameter groups, by their names there."""
    average = check_average(average)
    check_law(scaling)
    checks.integer("seed", seed, 0)
    checks.flag("certificate", certificate)
    checks.flag("progress", progress)
    if offload is not None:
        checks.integer("offload", offload, 1)
        if average is None:
            raise ValueError(f"offload={offload!r} says where averages are kept, and there are none: pass average=…")
        if isinstance(average, float) and offload > (length := round(1 / (1 - average))):
            raise ValueError(
                f"offload must be an integer from 1 to {length}, the length of average={average!r} in steps, "
                f"got {offload!r}: x̄ would be a single iterate, and not the last"
            )
    progress = progress and offload is None  # Δ is not known of iterates that are passed over
    values = (scaling, int(seed), average, certificate, progress, offload, 0, *averages.begin_counters().values())
    return dict(zip(Extended.shared, values, strict=True))


class Extended(CertifiedOptimizer):
    """What `extend` puts before an optimizer's class: it takes the iterates in, then has the optimizer step."""

    names: ClassVar[dict[str, str]] = NAMES
    shared: ClassVar[tuple[str, ...]] = tuple(
        NAMES.get(key, key) for key in ("scaling", "seed", "average", "certificate", "progress", "offload", *COUNTERS)
    )
    advice = "average=None: pass average=o2nc.Polynomial(12), say, when you extend it"
    is_guest = True  # in the state, most of which is the optimizer's own
    in_parts = False  # whether the optimizer, too, steps what a process has of sharded parameters, and not the whole

    @property
    def needed(self) -> tuple[str, ...]:  # type: ignore[override]
        """The numbers of the optimizer, by which its checkpoints are known."""
        numbers = (key for key, value in self.defaults.items() if isinstance(value, int | float | tuple))
        return tuple(key for key in numbers if key not in self.shared and not isinstance(self.defaults[key], bool))

    own_fields: ClassVar[Fields] = averages.FIELDS | {"previous": Field(Kind.SHAPED)}

    def fields_for(self, group: dict[str, Any]) -> Fields:
        """Return the state that is kept per parameter, beside the optimizer's own."""
        if group[NAMES["offload"]] is None:
            return self.own_fields
        ours = {key: field._replace(on_host=True) for key, field in averages.FIELDS.items()}
        return {**self.own_fields, **ours}

    @property
    def _groups(self) -> list[Any]:
        return [Named(group) for group in self.param_groups]

    @property
    def _window(self) -> Any:
        window, offload = super()._window, self.param_groups[0][NAMES["offload"]]
        return window if window is None or offload is None else window.thinned(offload)

    def _describe(self, step: Step) -> Step:
        new = (p for p in _params(self) if p.grad is not None and "average" not in self.state.get(p, ()))
        if step.window is None or any(True for _ in new):
            step = step._replace(fused=False)
        return self._observed_by(Observed(step.groups[0]["progress"]), step)

    def _observed_by(self, rule: Observed, step: Step) -> Step:
        """Return the step with this rule, which is asked afterwards what it has begun."""
        self._observed = rule
        return step._replace(rule=rule, certificate=step.groups[0]["certificate"])

    def _wants_fused(self) -> bool | None:
        """Take the iterates in by a kernel where that applies: how the optimizer steps is its own business."""
        return None if any(p.device.type in engine.DEVICES for p in _params(self)) else False

    def _take_whole(self) -> None:
        """Take the iterate in, each process its part of it; then step, and tell those who watch."""
        with self._local():
            moved = self._observe()
            if self.in_parts and not moved:
                self._move()
                moved = True
        if not moved:
            self._move()
        if self._watchers:
            self._notify()

    def _take(self) -> bool:
        if not self._observe():
            self._move()
        return True

    def _observe(self) -> bool:
        """Take the iterate in; return whether a kernel has moved it already."""
        group = self.param_groups[0]
        self._is_unscaled = False
        if "_is_taken" in self.__dict__ and self._counts():
            self._take_up()
            return False
        is_tidy = not isinstance(group[NAMES["step"]], Tensor) and not group[NAMES["averaged"]]
        if is_tidy and group["average"] is None and not (self.has_other_fused and group["fused"]):
            self._advance()
            return False
        self._refuse_new_offload()
        if group[NAMES["offload"]] is not None:
            self._observe_on_host(group[NAMES["offload"]])
            return False
        moved = super()._take() and type(self._observed) is not Observed
        if group["average"] is None:  # switched off: should it be switched on again, it was not the last iterate
            for state in self.state.values():
                if "previous" in state:  # a pop would count as a change, after which tables are written again
                    state.pop("previous")
            if not moved:  # the tables are of averages
                self._engine.forget()
        return moved

    def _take_up(self) -> None:
        """Go on with a step that has failed after its iterate was taken in, perhaps with other gradients."""
        del self._is_taken
        rule = self.__dict__.get("_observed")
        if rule is not None:
            rule.begun = [(p, new) for p, new in rule.begun if p.grad is not None]

    def _advance(self) -> None:
        """Count a step that has nothing to take in: s_n is a function of the seed and n alone."""
        refuse_capture(type(self).__name__, self.param_groups[0]["scaling"])
        if self._advances():
            for group in self.param_groups:
                group[NAMES["step"]] += 1

    def _observe_on_host(self, every: int) -> None:
        """Take the iterate in if it is its turn, from copies in the host's memory; count it in any case."""
        params = list(_params(self))
        with_gradients = [p for p in params if p.grad is not None]
        for p in with_gradients:
            checks.gradient(p.grad)  # type: ignore[arg-type]
        refuse_capture(type(self).__name__, None, self.param_groups[0]["average"])
        if not with_gradients or self._is_called_off():
            return
        if self._window is None:  # switched off
            presence.end(self._groups, self.state.values())
            self._eager.forget()
            self.__dict__.pop("_host_cache", None)
            self._advance()
            return
        first = self._groups[0]
        t = first["step"] + 1
        is_turn = (t - 1) % every == 0 or not first["averaged"]
        # a parameter that is new begins with its first gradient, be it between two turns
        taken = params if is_turn else [p for p in with_gradients if "average" not in self.state.get(p, ())]
        if taken:
            rule = Observed(progress=False)
            copies = dict(zip(taken, (self._host_copies if is_turn else HostCopies()).refresh(taken), strict=True))
            step = self._observed_by(rule, self._begin_step(fused=False))._replace(
                groups=[Named(g, [copies[p] for p in g["params"] if p in copies]) for g in self.param_groups],  # type: ignore[misc]
                state={copies[p]: state for p, state in self.state.items() if p in copies},
                is_thinned=True,
            )
            self._eager.take(step) if is_turn else self._eager.begin(step)
            owners = {copy: p for p, copy in copies.items()}
            rule.begun = [(owners[copy], new) for copy, new in rule.begun]
        for group in self._groups:
            group.update({"step": t})

    def _refuse_new_offload(self) -> None:
        """Refuse averages to go on of another share of the iterates than they began with, or elsewhere."""
        key, group = NAMES["offload"], self.param_groups[0]
        if group[key] != self.defaults[key] and group[NAMES["averaged"]]:
            raise RuntimeError(
                f"{key} was changed to {group[key]!r} in param_groups, and the averages are those of "
                f"{self.defaults[key]!r}, with which they go on: put it back"
            )
        self.defaults[key] = group[key]

    @property
    def _host_copies(self) -> HostCopies:
        """Copies of the parameters: a cache, which copies and pickles of the optimizer leave behind."""
        if "_host_cache" not in self.__dict__:
            self._host_cache = HostCopies()
        return self._host_cache

    def _move(self) -> None:
        """Have the optimizer step, at a scaled rate if there is a law."""
        try:
            with self._scaled():
                inner_step(plain_class(type(self)))(self)
        except BaseException:
            self.__dict__.pop("_clock", None)
            if self.param_groups[0]["average"] is not None and self._counts():  # the next attempt has this iterate
                self._is_taken = True
            elif self._advances():  # what only counts is taken back
                for group in self.param_groups:
                    group[NAMES["step"]] -= 1
            raise
        self._is_unscaled = True  # torch's fused steps divide gradients by a GradScaler's scale, in place
        rule = self.__dict__.pop("_observed", None)
        for p, new in rule.begun if rule is not None else ():
            new.setdefault("output", copy_on_host(new["average"]))
            self.state[p if self._shards is None or self.in_parts else self._shards.owners[p]].update(new)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for key in ("_is_taken", "_observed", "_clock"):  # of a step before
            self.__dict__.pop(key, None)
        super().__setstate__(state)

    @property
    def _gradient_scale(self) -> float:
        return 1.0 if self.__dict__.get("_is_unscaled") else super()._gradient_scale

    def _advances(self) -> bool:
        """Say whether this step draws an s."""
        return self.param_groups[0]["scaling"] is not None and self._counts()

    def _counts(self) -> bool:
        """Say whether this step counts: there are gradients, and a GradScaler has not called it off."""
        return any(p.grad is not None for p in _params(self)) and not self._is_called_off()

    def _is_called_off(self) -> bool:
        """Say whether a GradScaler has called this step off."""
        found_inf = getattr(self, "found_inf", None)
        return found_inf is not None and bool(found_inf.item())

    def _count(self) -> int:
        """Return how many steps have counted, without asking a device at every one of them."""
        step = self.param_groups[0][NAMES["step"]]
        if not isinstance(step, Tensor):
            self.__dict__.pop("_clock", None)
            return step
        tensor, known = self.__dict__.get("_clock", (None, 0))
        self._clock = (step, known + 1 if tensor is step else int(step))
        return self._clock[1]

    def _scaled(self) -> AbstractContextManager[None]:
        """Return the context in which a step that counts adds s times what it would."""
        if not self._advances():
            return nullcontext()
        group = self.param_groups[0]
        s = group["scaling"].sample(group[NAMES["seed"]], self._count() + 1)
        is_linear = plain_class(type(self)) in LINEAR_IN_LR
        return multiplied_lr(self, s) if is_linear else multiplied_displacement(self, s)


def _params(optimizer: Optimizer) -> Iterator[Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def plain_class(extended: type[Optimizer]) -> type[Optimizer]:
    """Return the class that an extended one was made from."""
    return next(base for cls in extended.__mro__ if Extended in cls.__bases__ for base in cls.__bases__[1:])


def inner_step(cls: type[Optimizer]) -> Any:
    """Return the step of a class without torch's hooks, which have run when this one is called."""
    step: Any = cls.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step
