"""The step that all optimizers share.

    gradient → averages → rule → scaling → parameters

`Averaged` stands before a torch optimizer's class, and the rule is that class's own step. What survives a step is in
``param_groups[0]["o2nc"]`` and in ``state[p]["o2nc"]``, one dictionary each; all else there is torch's.
"""

import threading
import warnings
from collections.abc import Callable, Iterable
from operator import is_not
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from o2nc import checks
from o2nc.averages.offload import HostCopies
from o2nc.averages.update import Entry, begin, update_
from o2nc.averages.windows import Average, Window, as_window
from o2nc.certificates.certificate import Certificate
from o2nc.fused import engine
from o2nc.fused.engine import NOT_BEGUN, OBSERVE, DeviceRule, Engine
from o2nc.optimizers import accessors
from o2nc.optimizers.swap import SWAPPED, Swap
from o2nc.persist import checkpoints
from o2nc.persist.compiling import is_capturing, register, step_in_graph
from o2nc.persist.plain import KEY, from_dict, to_dict
from o2nc.persist.shards import assemble, is_sharded, local, local_gradient, why_partial
from o2nc.scaling import ROUNDING, Law, check_law, uniform
from o2nc.vector import real


def new_settings(average: Any, scaling: Any, seed: int, certificate: bool, offload: bool) -> dict[str, Any]:
    """Return ``param_groups[0]["o2nc"]`` before the first step, from the arguments of `Averaged`."""
    window = as_window(average)
    check_law(scaling)
    checks.integer("seed", seed, 0)
    checks.flag("certificate", certificate)
    checks.flag("offload", offload)
    if offload and window is None:
        raise ValueError("offload=True says where averages are kept, and there are none: pass average=…")
    return {
        "step": torch.zeros((), dtype=torch.int64, device="cpu"),  # a tensor, so that a captured step can count
        "average": to_dict(window),
        "scaling": to_dict(scaling),
        "seed": int(seed),
        "certificate": certificate,
        "offload": offload,
    }


class Averaged(Optimizer):
    """Puts averages, a certificate and scaling before a torch optimizer: ``class AdamW(Averaged, optim.AdamW)``.

    Args:
        params: parameters or parameter groups.
        *args: further arguments of the torch optimizer.
        average: a window such as ``Polynomial(12)``, or a number β for ``Discount(β)``; None keeps no averages.
        scaling: the law of s, which multiplies every update; None leaves the updates bitwise as they are.
        seed: a non-negative integer; s_n is a pure function of it and n. Two optimizers of one program, as a GAN has
            them, draw the same s with the same seed: give each its own.
        certificate: keep ḡ and V beside x̄, for ``certificate()``.
        offload: keep the averages in the host's memory; use it with a window that has ``every``.
        **kwargs: further arguments of the torch optimizer.
    """

    is_linear_in_lr = False  # whether lr·s in place of lr multiplies the update by s
    couples_decay = False  # whether weight decay is part of the gradient
    shared_options: frozenset[str] = frozenset()  # arguments that a parameter group cannot have for itself
    advice = "average=None: pass average=o2nc.Polynomial(12), say, when you construct it"
    shaped_entries: frozenset[str] = frozenset(("average", "gradient"))  # that have the parameter's shape
    _calls_closure = False  # whether the rule evaluates the closure itself

    # On the instance, with no defaults on the class: Lightning's wrapper is of a class made from ours, and looks up
    # in the optimizer only what that class lacks.
    _known_params: list[Any]  # for a compiler, which would recompile whenever an option in the groups changes
    _is_node: bool  # whether a compiler sees the step as one operator
    _is_sharded: bool
    _is_checked: bool  # whether the parameters were found to be whole
    _has_averaged: bool  # a step failed after it had averaged x_t: the next attempt must not do so again
    _clock: tuple[Any, int, int]  # the counter, its version and its value, where reading it would wait for a device
    _lock: Any  # held while parameters are moved
    _watchers: dict[str, Callable[[], None]]  # called after every step
    _engine: Engine
    _host_copies: HostCopies

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Set what does not survive in copies: caches and flags."""
        optimizer = super().__new__(cls)
        optimizer._reset()
        return optimizer

    def __init__(
        self,
        params: Any,
        *args: Any,
        average: Average = None,
        scaling: Law | None = None,
        seed: int = 0,
        certificate: bool = False,
        offload: bool = False,
        **kwargs: Any,
    ) -> None:
        settings = new_settings(average, scaling, seed, certificate, offload)
        super().__init__(params, *args, **kwargs)
        self._begin(settings)

    def _reset(self) -> None:
        self._has_averaged, self._clock, self._watchers = False, (None, 0, 0), {}
        self._lock, self._engine, self._host_copies = threading.Lock(), Engine(), HostCopies()

    def _begin(self, settings: dict[str, Any]) -> None:
        self.param_groups[0][KEY] = settings
        # a GradScaler then unscales the gradients itself, and does not call step() after an overflow
        self._step_supports_amp_scaling = False
        self._note_params()
        self._refuse_partial()

    # --- the step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move from x_t to x_{t+1}.

        Args:
            closure: recomputes the loss and the gradients, and returns the loss.

        Returns:
            What the closure returned, or None.
        """
        if torch.compiler.is_compiling():
            return step_in_graph(self, closure)
        return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        """Average x_t if it counts, have the rule move, advance the counter. Without gradients nothing changes."""
        loss = None
        if closure is not None and not self._calls_closure:
            with torch.enable_grad():
                loss = closure()
            closure = None
        if SWAPPED:
            self._refuse_swapped("step()")
        with self._lock:
            self._notice_params()
            params = self._with_gradients()
            settings = self.param_groups[0][KEY]
            window, law = from_dict(settings["average"]), from_dict(settings["scaling"])
            if closure is not None:
                return self._step_with(closure, window, law)
            if not params:
                return loss
            rule = self._device_rule(window, law)
            fused = rule is not None and self._step_fused(rule, window, law)
            if not (fused and rule.moves):  # type: ignore[union-attr]
                self._refuse_capture(law, None if fused else window)
                t = 0 if fused and law is None else self._steps_done() + 1
                new = {} if fused or window is None else self._update_averages(params, window, t)
                self._has_averaged = True
                self._move(params, t, self._draw(law, t))
                self._finish(new)
        for watcher in list(self._watchers.values()):
            watcher()
        return loss

    def _refuse_capture(self, law: Any, window: Window | None) -> None:
        """Raise if a CUDA graph captures a step whose s or γ the host computes: every replay would repeat them."""
        if (law is not None or window is not None) and is_capturing():
            raise RuntimeError(
                f"this step of {type(self).__name__} cannot be captured in a CUDA graph: s and the counter are on "
                "the host, and every replay would repeat them; a fused step can be captured (fused=True insists on it)"
            )

    def _with_gradients(self) -> list[Any]:
        """Return the parameters that have gradients, all of them dense."""
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p in params:
            if p.grad.layout is not torch.strided or not p.grad.is_floating_point():
                checks.gradient(p.grad)
        return params

    def _draw(self, law: Any, t: int) -> float | None:
        """Return s_{t+1}; None without a law."""
        return None if law is None else law.sample(self.param_groups[0][KEY]["seed"], t + 1)

    @torch.no_grad()
    def _update_averages(self, params: list[Any], window: Window, t: int) -> dict[Any, Entry]:
        """Take x_t and g_t into the averages if they count; return new ones, for parameters that had none."""
        settings, entries, n = self.param_groups[0][KEY], self._entries(), window.count(t)
        offload, certificate = settings["offload"], settings["certificate"]
        if window.counts(t) and not self._has_averaged:
            owners = list(entries)  # a parameter without a gradient is part of x_t, too
            xs: list[Any] = [self._data(p.detach()) for p in owners]
            gs: list[Any] = [self._gradient(p) if certificate else None for p in owners]
            if offload:
                found = self._host_copies(xs + gs)
                xs, gs = found[: len(xs)], found[len(xs) :]
            local_entries = [self._local(entry) for entry in entries.values()]
            dither = uniform(settings["seed"], t, stream=ROUNDING) - 0.5
            update_(local_entries, xs, gs, float(window.gamma(n)), dither)
        new = {}
        for p in params:
            if p not in entries:
                g = self._gradient(p) if certificate else None
                new[p] = self._assembled(p, begin(self._data(p.detach()), g, max(n, 1), offload=offload))
        return new

    def _move(self, params: list[Any], t: int, s: float | None, closure: Any = None) -> Any:
        """Have the torch optimizer step, its update multiplied by s; None leaves it bitwise as it is."""
        step = super().step.__func__  # type: ignore[attr-defined]
        if getattr(step, "hooked", False):  # wrapped by torch to call the step hooks, which it does around ours
            step = step.__wrapped__
        arguments = (self,) if closure is None else (self, closure)
        if s is None:
            return step(*arguments)
        if not self.is_linear_in_lr:
            before = [(p, p.detach().clone()) for group in self.param_groups for p in group["params"]]
            result = step(*arguments)
            with torch.no_grad():
                for p, x in before:
                    p.copy_(torch.where(p == x, p, torch.lerp(x, p, s)))  # infinities that stood still go on doing so
            return result
        lrs = [group["lr"] for group in self.param_groups]
        try:
            for group, lr in zip(self.param_groups, lrs, strict=True):
                group["lr"] = lr * s
            return step(*arguments)
        finally:
            for group, lr in zip(self.param_groups, lrs, strict=True):
                group["lr"] = lr

    @torch.no_grad()
    def _finish(self, new: dict[Any, Entry]) -> None:
        """Advance the counter, and add the averages of new parameters: torch begins its own state where it is empty."""
        for p, entry in new.items():
            self.state[p].setdefault(KEY, {}).update(entry)
        step = self.param_groups[0][KEY]["step"]
        tensor, version, value = self._clock
        is_known = tensor is step and version == step._version
        step.add_(1)
        self._clock = (step, step._version, value + 1) if is_known else (None, 0, 0)
        self._has_averaged = False

    def _step_with(self, closure: Callable[[], Any], window: Window | None, law: Any) -> Any:
        """Step a rule that evaluates the closure itself, perhaps several times and at other points (SAM).

        The gradients of the closure's first call are averaged; or, if the rule has moved the parameters before that
        call, those that were there when the step began.
        """
        t = self._steps_done() + 1
        counts = window is not None and window.counts(t) and not self._has_averaged
        everyone = [p for group in self.param_groups for p in group["params"]]
        versions = [p._version for p in everyone]
        before = _remember(everyone) if counts else []
        new: dict[Any, Entry] | None = None

        def average() -> None:
            nonlocal new
            params = self._with_gradients()
            if new is None and params:
                new = {} if window is None else self._update_averages(params, window, t)
                self._has_averaged = True

        def observed() -> Any:
            if counts and new is None and versions != [p._version for p in everyone]:
                now = _remember(everyone)
                _put_back(before)
                average()
                _put_back(now)
            with torch.enable_grad():
                loss = closure()
            average()
            return loss

        loss = self._move(everyone, t, self._draw(law, t), observed)
        if new is not None:
            self._finish(new)
        return loss

    def _steps_done(self) -> int:
        """Return the counter; where it is on a device, without waiting for it if it is known."""
        step = self.param_groups[0][KEY]["step"]
        if step.device.type == "cpu":
            return int(step)
        tensor, version, value = self._clock
        if tensor is not step or version != step._version or self._engine.has_captured:
            value = int(step)
            self._clock = (step, step._version, value)
        return value

    def _entries(self) -> dict[Any, Entry]:
        """Return the averages, by parameter."""
        params = (p for group in self.param_groups for p in group["params"])
        found = {p: self.state[p].get(KEY, {}) for p in params if p in self.state}
        return {p: entry for p, entry in found.items() if "average" in entry}

    # --- complex and sharded parameters, as real local tensors

    def _data(self, x: Any) -> Any:
        x = local(x) if self._is_sharded else x
        return real(x) if x.is_complex() else x

    def _gradient(self, p: Any) -> Any:
        g = local_gradient(p) if self._is_sharded else p.grad
        return real(g.detach()) if g is not None and g.is_complex() else g

    def _local(self, entry: Entry) -> Entry:
        return {key: local(value) for key, value in entry.items()} if self._is_sharded else entry

    def _assembled(self, p: Any, entry: Entry) -> Entry:
        """Return an entry with what has the shape of a local shard as DTensors."""
        if not is_sharded(p):
            return entry
        shape = p.to_local().shape
        shaped = (key for key, v in entry.items() if isinstance(v, Tensor) and v.dim() and v.shape == shape)
        return entry | {key: assemble(p, entry[key]) for key in shaped}

    # --- the fused step

    device_rule: DeviceRule | None = None  # the rule as kernels, if it has that form

    def _device_rule(self, window: Window | None, law: Any) -> DeviceRule | None:
        """Return what kernels can do of this step: all of it, the averages alone, or nothing (None)."""
        first = next(p for group in self.param_groups for p in group["params"])
        if first.device.type not in engine.DEVICES or window is None or self.param_groups[0][KEY]["offload"]:
            return None
        return OBSERVE

    def _step_fused(self, rule: DeviceRule, window: Window | None, law: Any) -> bool:
        """Have kernels take the step, or the averages' part of it; return whether they did."""
        if self._has_averaged and not rule.moves:
            return True
        reason = self._engine.take(rule, self.param_groups, self.state, window, law, self._steps_done)
        if reason is None and rule.moves:
            step, version, value = self._clock
            self._clock = (step, version, value + 1)
        if reason not in (None, NOT_BEGUN) and rule.moves and any(group.get("fused") is True for group in self.param_groups):
            raise RuntimeError(f"fused=True, but the fused step cannot be taken: {reason} (fused=None falls back)")
        return reason is None

    # --- what torch asks of an optimizer

    def _note_params(self) -> None:
        """Note which parameters there are, for a compiler and for shards."""
        register(self)
        self._known_params = [p for group in self.param_groups for p in group["params"]]
        self._is_sharded = any(map(is_sharded, self._known_params))
        differentiable = any(group.get("differentiable") for group in self.param_groups)
        self._is_node = not self._is_sharded and not differentiable
        self._is_checked = False

    def _notice_params(self) -> None:
        """Notice parameters that were exchanged in the groups, or wrapped since, as wrappers of models do."""
        params = [p for group in self.param_groups for p in group["params"]]
        if len(params) != len(self._known_params) or any(map(is_not, params, self._known_params)):
            self._note_params()
        if not self._is_checked:
            self._refuse_partial()
            self._is_checked = True

    def _refuse_partial(self, always: bool = False) -> None:
        """Raise if this process has only a part of the parameters, where averages need all of them."""
        needs_all = always or self.param_groups[0][KEY]["average"] is not None
        reason = why_partial(self._known_params) if needs_all else None
        if reason is not None:
            raise ValueError(
                f"{type(self).__name__} would average and certify for every process alone, since it has only a part "
                f"of the parameters: {reason}; without averages it works"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as in torch; averages, law and seed are those of all groups."""
        if isinstance(param_group, dict) and not isinstance(param_group["params"], Tensor | set):
            param_group["params"] = list(param_group["params"])
            tensors = [p[1] if isinstance(p, tuple) else p for p in param_group["params"]]
            if len({id(p) for p in tensors}) != len(tensors):
                raise ValueError("params must not repeat: a parameter appears twice in one group")
        for key in self.shared_options & param_group.keys():
            raise ValueError(f"{key} is one for all parameter groups, got {param_group[key]!r} in a group")
        super().add_param_group(param_group)
        if KEY in self.param_groups[0]:
            self._note_params()

    def __getstate__(self) -> dict[str, Any]:
        self._warn_if_swapped("a copy of the optimizer")
        self._engine.wait()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._reset()
        self._note_params()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does; sums over sharded parameters are whole.

        Warns:
            UserWarning: inside `averaged`, where a model that is saved along with it would be x̄ and not x.
        """
        self._warn_if_swapped("state_dict()")
        self._engine.wait()
        return checkpoints.saved(self, super().state_dict)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; as in torch, the checkpoint's hyperparameters win.

        A checkpoint of another kind of optimizer is refused. One with another law, learner, seed or window than this
        optimizer was made with wins, with a warning that names both. Averages that the checkpoint lacks, as one of
        torch's own optimizer does, begin with the next step.

        Raises:
            ValueError: it is of another kind of optimizer, or of other parameters.
        """
        self._refuse_swapped("load_state_dict()")
        checkpoints.load(self, state_dict, super().load_state_dict)
        self._reset_caches()

    def _reset_caches(self) -> None:
        self._has_averaged, self._clock = False, (None, 0, 0)
        self._engine.forget()
        self._note_params()

    def _refuse_swapped(self, what: str) -> None:
        if any(id(p) in SWAPPED for group in self.param_groups for p in group["params"]):
            raise RuntimeError(f"{what} inside averaged(): the parameters hold x̄ there; leave the with block first")

    def _warn_if_swapped(self, what: str) -> None:
        if any(id(p) in SWAPPED for group in self.param_groups for p in group["params"]):
            warnings.warn(
                f"{what} inside averaged(): the model holds x̄ there, and a run goes on from x; save outside",
                stacklevel=3,
            )

    # --- what it says of its averages

    def averaged(self, model: nn.Module | None = None, *, batches: Iterable[Any] | None = None) -> Swap:
        """Put x̄ into the parameters inside a ``with`` block and restore them bitwise on leaving it.

        Changes made to the parameters inside are lost; ``step()`` inside is refused.

        Args:
            model: the model, if its BatchNorm statistics are to be recomputed for x̄ as well.
            batches: inputs of the model, as in `o2nc.recalibrated`.
        """
        return Swap([self], model, batches)

    def averaged_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return a copy of ``model.state_dict()`` with x̄ in place of this optimizer's parameters, to save and ship.

        Nothing in it shares memory with the model. Buffers, BatchNorm statistics among them, are copies of the
        model's; inside ``averaged(model, batches=…)`` they are those of x̄.
        """
        return accessors.averaged_state_dict(self, model)

    def certificate(self, c: float = 1.0) -> Certificate:
        """Return ‖ḡ‖ + c·V, an upper bound on ‖∇F(x̄)‖_c when the gradients are full ones.

        It is collective where parameters are sharded.

        Args:
            c: the price of spread, > 0.

        Returns:
            The certificate of all parameters together; ``.by_parameter`` has every one's own.
        """
        return accessors.certificate(self, c)


def _remember(params: list[Any]) -> list[tuple[Any, Tensor, Tensor | None]]:
    return [(p, p.detach().clone(), None if p.grad is None else p.grad.clone()) for p in params]


@torch.no_grad()
def _put_back(remembered: list[tuple[Any, Tensor, Tensor | None]]) -> None:
    for p, x, g in remembered:
        p.copy_(x)
        p.grad = g


def averaged_optimizer(optimizer: Any) -> Averaged:
    """Return the optimizer of o2nc that a framework may have wrapped, as accelerate and Lightning do.

    Raises:
        TypeError: it is none of o2nc's.
        ValueError: it keeps no averages.
    """
    while hasattr(optimizer, "optimizer") and not (isinstance(optimizer, Averaged) and "state" in vars(optimizer)):
        optimizer = optimizer.optimizer  # an optimizer of the user's may have one of its own
    if not isinstance(optimizer, Averaged):
        raise TypeError(
            "optimizer must be one of o2nc's with averages, such as o2nc.AdamW(…, average=o2nc.Polynomial(12)), "
            f"got {type(optimizer).__name__}"
        )
    if optimizer.param_groups[0][KEY]["average"] is None:
        raise ValueError(f"optimizer keeps no averages, it was made with {optimizer.advice}")
    return optimizer


def certified(optimizer: Any) -> Averaged:
    """Return the optimizer of o2nc that a framework may have wrapped; raise if it keeps no certificate."""
    found = averaged_optimizer(optimizer)
    if not found.param_groups[0][KEY]["certificate"]:
        raise ValueError("optimizer keeps no certificate: pass certificate=True when you construct it")
    return found
