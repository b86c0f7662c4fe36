"""The step that all optimizers share.

    gradient → averages → rule → scaling → parameters

`Averaged` is a mixin before a torch optimizer's class; the rule is that class's own ``step``. All that o2nc keeps
between two steps is in ``param_groups[0]["o2nc"]`` and ``state[p]["o2nc"]``; everything else there is torch's.
"""

import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from inspect import signature
from operator import is_not
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from o2nc import checks
from o2nc.averages.update import Entry, Iterate, Row, begin, host_copies, update_
from o2nc.averages.windows import NO_TURN, Average, Window
from o2nc.certificates.displacement import Trail
from o2nc.fused import engine
from o2nc.fused.engine import NOT_BEGUN, OBSERVE, Engine
from o2nc.fused.rule import DeviceRule, Request
from o2nc.optimizers import torch_step
from o2nc.optimizers.accessors import Accessors
from o2nc.optimizers.auto_lr import AUTO, warm_up
from o2nc.optimizers.options import check_options, new_settings
from o2nc.optimizers.swap import SWAPPED
from o2nc.persist import checkpoints
from o2nc.persist.compiling import is_capturing, register, step_in_graph
from o2nc.persist.plain import AVERAGED, KEY, from_dict
from o2nc.persist.shards import why_partial
from o2nc.scaling import Law, draw
from o2nc.vector import gradients, is_sharded, values, wide


class Averaged(Accessors, Optimizer):
    """Adds averages, a certificate and random scaling to a torch optimizer: ``class AdamW(Averaged, optim.AdamW)``.

    Args:
        params: parameters or parameter groups.
        *args: further arguments of the torch optimizer.
        average, scaling, seed, certificate, offload: as `o2nc.extend` describes them.
        **kwargs: further arguments of the torch optimizer.
    """

    # What a subclass declares of the torch optimizer that it is made of,
    numbers: tuple[str, ...] = ()  # group options that must be numbers, or tensors
    state_keys: frozenset[str] = frozenset()  # all keys of its state; empty if they are not known
    is_linear_in_lr = False  # whether lr·s in place of lr multiplies the update by s
    couples_decay = False  # whether weight decay is part of the gradient
    torch_has_fused = False  # whether fused=True is an option of its own step
    device_rule: DeviceRule | None = None  # the rule as kernels, if it has that form
    _step_with_closure: Any = None  # how to step a rule that evaluates the closure itself
    # and of what it adds.
    shared_options = frozenset(("average", "scaling", "seed", "certificate", "offload"))  # not per parameter group
    unsupported_keys: frozenset[str] = frozenset()  # options of torch's optimizers that this one would ignore
    has_progress = False  # whether it knows Δ, for progress and output()
    owns_state = False  # whether all of the state is ours, and needed without averages, too
    shaped_entries: frozenset[str] = frozenset(("average", "gradient"))  # entries with the parameter's shape
    advice = "average=None: pass average=o2nc.Polynomial(12), say, when you construct it"

    # Set on the instance, without defaults on the class: Lightning wraps the optimizer in a subclass of our class,
    # and looks attributes up in the optimizer only where that subclass has none.
    _window: Window | None  # window, law and learner that the settings describe
    _law: Any
    _learner: Any
    _known_params: list[Any]  # read by a compiler, which would recompile whenever a group option changes
    _is_node: bool  # whether a compiler sees the step as one operator
    _is_sharded: bool
    _finite_at: int  # the last step at which certificate() was finite
    _is_checked: bool  # whether the parameters were checked to be whole (not FSDP1's or ZeRO's part)
    _lock: Any  # held while a step changes the parameters
    _watchers: dict[str, Callable[[], None]]  # called after every step
    _engine: Engine
    _trail: Trail | None  # snapshots for diagnose()
    _model: Callable[[], nn.Module | None]  # weak reference to a trainer's model, for parameter names

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Set what copies and pickles do not carry over."""
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
        try:
            super().__init__(params, *args, **kwargs)
        except (IndexError, TypeError):  # torch compares and indexes what may be no number
            check_options(self.numbers, signature(super().__init__).bind(params, *args, **kwargs).arguments)
            raise
        self._begin(settings)

    def _reset(self) -> None:
        register(self)
        self._lock, self._watchers, self._engine, self._model = threading.Lock(), {}, Engine(), lambda: None

    def _begin(self, settings: dict[str, Any]) -> None:
        self.param_groups[0][KEY] = settings
        # so that a GradScaler unscales the gradients itself and skips step() after an overflow
        self._step_supports_amp_scaling = False
        self._read_settings()
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
        """Evaluate the closure, then step with the gradients that are there; without any, change nothing."""
        loss = None
        if SWAPPED:  # before the closure, which would leave gradients at x̄
            self._refuse_swapped("step()")
        if closure is not None and self._step_with_closure is None:
            with torch.enable_grad():
                loss = closure()
            closure = None
        with self._lock:
            if SWAPPED:
                self._refuse_swapped("step()")
            self._check_params()
            if closure is not None:
                loss = self._step_with_closure(closure)
            elif self._has_gradients():
                if AUTO in self.param_groups[0][KEY]:
                    warm_up(self)
                self._advance()
        for watcher in list(self._watchers.values()):
            watcher()
        return loss

    def _advance(self) -> None:
        """Average x_t if it counts, let the rule move the parameters, count the step; with kernels where they can."""
        self._sample_for_diagnose()
        rule = self._rule_for_kernels()
        moves = rule is not None and rule.moves
        is_averaged = rule is not None and self._step_fused(rule)
        if is_averaged and moves:
            return
        self._refuse_capture(is_averaged)
        iterate = self._iterate(is_averaged)._replace(stands_in=moves)
        new = self._update_averages(iterate)
        self.param_groups[0][KEY][AVERAGED] = True
        self._move(iterate)
        self._finish(new)

    def _sample_for_diagnose(self) -> None:
        """Count this step for diagnose(), and now and then keep a sample of x_t and g_t, before the rule writes."""
        if self._trail is None:
            self._trail = Trail()
        if self._window is not None and self._trail.steps >= self._trail.due:
            self._trail.take(self)
        self._trail.steps += 1

    def _has_gradients(self) -> bool:
        """Return whether there are gradients; raise if one is sparse."""
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        for g in {(g.layout, g.dtype): g for g in grads}.values():  # one of each kind
            if g.layout is not torch.strided or not (g.is_floating_point() or g.is_complex()):
                checks.gradient(g)
        return bool(grads)

    def _iterate(self, is_averaged: bool = False) -> Iterate:
        """Return x_t, g_t and the random numbers of this step; parameters that need no work are left out.

        ``is_averaged`` says whether kernels have averaged x_t already.
        """
        settings, window = self.param_groups[0][KEY], None if is_averaged else self._window
        progress = self.has_progress and window is not None
        t = 0 if is_averaged and self._law is None else self._steps_done() + 1  # 0: then nothing depends on it
        turn = NO_TURN if window is None else window.turn(t)
        if AVERAGED in settings:  # by a step that failed afterwards
            turn = turn._replace(counts=False)
        k = turn.complete if turn.counts and progress else 0
        random = draw(self._law, settings["seed"], t, counts=turn.counts, progress=progress, k=k)
        needs_all, found = self.owns_state or progress, []
        for group in self.param_groups if needs_all or window is not None else ():
            for p in group["params"]:
                if p.grad is None and p not in self.state:
                    continue
                # torch creates its own state where there is none
                entry = self.state[p].setdefault(KEY, {}) if needs_all else self.state.get(p, {}).get(KEY, {})
                if needs_all or turn.counts or "average" not in entry:
                    found.append((p, entry, group))
        params = [p for p, _, _ in found]
        lists = zip(found, values(params), gradients(params), strict=True)
        return Iterate(t, turn, random, [Row(p, x, g, entry, group) for (p, entry, group), x, g in lists])

    @torch.no_grad()
    def _update_averages(self, iterate: Iterate) -> dict[Any, Entry]:
        """Add x_t and g_t to the averages if they count; return new entries, for parameters that had none."""
        if self._window is None:
            return {}
        settings, turn, known, new = self.param_groups[0][KEY], iterate.turn, [], {}
        for row in iterate.rows:
            p, x, g, entry, _ = row
            if "average" in entry:  # a parameter without a gradient is part of x_t, too
                mean, on_host = entry["average"], settings["offload"]
                is_cast = (mean.dtype is not x.dtype or x.itemsize < 4) and mean.dtype is not wide(x.dtype)
                if is_cast or (on_host and mean.device.type != "cpu"):  # by model.double(), or with all state
                    for key in (self.shaped_entries | {"spread"}) & entry.keys() - {"delta"}:
                        device = "cpu" if on_host else entry[key].device
                        entry[key] = entry[key].to(device, torch.float64 if key == "spread" else wide(x.dtype))
                known.append(row)
            elif g is not None:
                g = g if settings["certificate"] else None
                new[p] = begin(x, g, max(turn.n, 1), offload=settings["offload"])
        if turn.counts:
            rows = host_copies(known, settings["certificate"]) if settings["offload"] else known
            update_(rows, turn.gamma, iterate.draw.dither)
        return new

    def _move(self, iterate: Iterate, closure: Any = None) -> Any:
        """Run the rule; `torch_step.prepared` sees to gradients that it would write to, and to steps of kernels."""
        needed = iterate.stands_in or any(group.get("nesterov") for group in self.param_groups)
        with torch_step.prepared(self, iterate.stands_in) if needed else nullcontext():
            return self._run_rule(iterate.draw.s, closure)

    def _run_rule(self, s: float | None, closure: Any) -> Any:
        """Run the torch optimizer's own step, its update multiplied by s; without a law, bitwise unchanged."""
        step = super().step.__func__  # type: ignore[attr-defined]
        if getattr(step, "hooked", False):  # torch wrapped it to call step hooks, and calls them around ours already
            step = step.__wrapped__
        arguments = (self,) if closure is None else (self, closure)
        if s is None:
            return step(*arguments)
        if not self.is_linear_in_lr:
            before = [(p, p.detach().clone()) for group in self.param_groups for p in group["params"]]
            result = step(*arguments)
            with torch.no_grad():
                for p, x in before:
                    # lerp would turn an infinity that did not move into nan
                    p.copy_(torch.where(p == x, p, torch.lerp(x, p, s)))
            return result
        lrs = [(group, group["lr"]) for group in self.param_groups]
        try:
            for group, lr in lrs:
                group["lr"] = lr * s
            return step(*arguments)
        finally:
            for group, lr in lrs:
                group["lr"] = lr

    @torch.no_grad()
    def _finish(self, new: dict[Any, Entry]) -> None:
        """Advance the counter; store the entries of new parameters, now that torch has initialized its own state."""
        for p, entry in new.items():
            self.state[p].setdefault(KEY, {}).update(entry)
        settings = self.param_groups[0][KEY]
        step = settings["step"]
        if step.device.type == "cpu":
            step.add_(1)
        else:
            self._engine.count_step(step)
        settings.pop(AVERAGED, None)

    def _steps_done(self) -> int:
        """Return the number of steps taken."""
        step = self.param_groups[0][KEY]["step"]
        return int(step) if step.device.type == "cpu" else self._engine.steps_done(step)

    def _refuse_capture(self, is_averaged: bool) -> None:
        """Raise if a CUDA graph captures a step whose s or γ the host computes: every replay would repeat them."""
        needs_host = self._law is not None or (self._window is not None and not is_averaged)
        if needs_host and torch.cuda.is_initialized() and is_capturing():
            raise RuntimeError(
                f"this step of {type(self).__name__} cannot be captured in a CUDA graph: s and the counter are on "
                "the host, and every replay would repeat them; a fused step can be captured (fused=True insists)"
            )

    # --- the step by kernels

    def _rule_for_kernels(self) -> DeviceRule | None:
        """Return the rule that kernels run: the whole step, `OBSERVE` for the averages alone, or None."""
        groups = self.param_groups
        if groups[0][KEY]["offload"] or not any(p.device.type in engine.DEVICES for p in groups[0]["params"][:1]):
            return None
        demanded = any(group.get("fused") is True for group in groups)
        refused = any(group.get("fused") is False or group.get("foreach") is not None for group in groups)
        rule, has_law, has_window = self.device_rule, self._law is not None, self._window is not None
        wanted = demanded or ((has_law or has_window) and not refused)
        # a rule that is not bitwise torch's own step replaces it only where torch has no such step
        takes = rule is not None and (rule.is_bitwise or has_law or (demanded and has_window and self.has_progress))
        if takes and wanted and not self.defaults.get("differentiable"):
            return rule
        if demanded and rule is not None and not takes and not self.torch_has_fused:
            raise RuntimeError(
                f"fused=True, but the fused step cannot be taken: the device form of {type(self).__name__} is not "
                "bitwise its own step, and moves only where there is a law, scaling=… (fused=None falls back)"
            )
        return OBSERVE if has_window and not self.has_progress else None

    def _step_fused(self, rule: DeviceRule) -> bool:
        """Run the rule's kernels; return whether they could."""
        if AVERAGED in self.param_groups[0][KEY]:  # a step failed after it: torch takes this one
            return False
        request = Request(rule, self.param_groups, self.state, self._window, self._law)
        reason = self._engine.take(request)
        if reason not in (None, NOT_BEGUN) and rule.moves and any(g.get("fused") is True for g in self.param_groups):
            raise RuntimeError(f"fused=True, but the fused step cannot be taken: {reason} (fused=None falls back)")
        return reason is None

    # --- what torch asks of an optimizer

    def _read_settings(self) -> None:
        """Build window, law and learner from ``param_groups[0]["o2nc"]``, after construction and loading."""
        settings = self.param_groups[0][KEY]
        self._window, self._law = from_dict(settings["average"]), from_dict(settings["scaling"])
        self._learner = from_dict(settings.get("learner"))
        self._finite_at = 0
        self._read_params()

    def _read_params(self) -> None:
        """Read the parameters from the groups, and whether they are sharded or differentiable."""
        self._trail = None  # the next step starts a new one
        params = self._known_params = [p for group in self.param_groups for p in group["params"]]
        self._is_sharded = any(map(is_sharded, params))
        if self._is_sharded and any(is_sharded(p) and p.is_complex() for p in params):
            raise TypeError("sharded parameters must be real: complex ones can only be whole")
        differentiable = any(group.get("differentiable") for group in self.param_groups)
        self._is_node = not self._is_sharded and not differentiable
        self._is_checked = False

    def _check_params(self) -> None:
        """Read the parameters again if the groups have others; raise for options that this optimizer would ignore."""
        params, known = [p for group in self.param_groups for p in group["params"]], self._known_params
        if len(params) != len(known) or any(map(is_not, params, known)):
            self._read_params()
        if self.unsupported_keys:
            for group in self.param_groups:
                self._refuse_unsupported(group)
        if not self._is_checked:
            self._refuse_partial()
            self._is_checked = True

    def _refuse_unsupported(self, group: dict[str, Any]) -> None:
        for key in self.unsupported_keys & group.keys():
            if group[key]:
                raise ValueError(f"{type(self).__name__} has no {key}, got {group[key]!r} in a group")

    def _refuse_partial(self) -> None:
        """Raise if this process has only a part of the parameters, where averages need all of them."""
        reason = why_partial(self._known_params) if self._needs_all_params() else None
        if reason is not None:
            raise ValueError(
                f"{type(self).__name__} would average and certify each process's part alone, since this one has only "
                f"a part of the parameters: {reason}; without averages it works"
            )

    def _needs_all_params(self) -> bool:
        return self._window is not None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, as in torch; averages, law and seed are shared by all groups."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {param_group!r}")
        for key in self.shared_options & param_group.keys():
            raise ValueError(f"{key} is one for all parameter groups, got {param_group[key]!r} in a group")
        self._refuse_unsupported(param_group)
        if not isinstance(param_group["params"], Tensor | set):
            param_group["params"] = list(param_group["params"])
            tensors = [p[1] if isinstance(p, tuple) else p for p in param_group["params"]]
            if len({id(p) for p in tensors}) != len(tensors):
                raise ValueError("params must not repeat: a parameter appears twice in one group")
        check_options(self.numbers, self.defaults | param_group)
        super().add_param_group(param_group)
        if KEY in self.param_groups[0]:
            self._read_params()

    def __getstate__(self) -> dict[str, Any]:
        self._warn_if_swapped("a copy of the optimizer")
        self._engine.wait()
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._read_settings()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does; V and progress of sharded parameters are summed over the processes.

        Warns:
            UserWarning: inside `averaged`, where a model saved along with it would hold x̄ instead of x.
        """
        self._warn_if_swapped("state_dict()")
        self._engine.wait()
        return checkpoints.saved(self, super().state_dict)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; as in torch, the checkpoint's hyperparameters win.

        A law, learner, seed or window that differs from this optimizer's is taken from the checkpoint, with a warning
        that names both. Averages that the checkpoint lacks (one of ``torch.optim.AdamW``, say) start with the next
        step.

        Raises:
            ValueError: the checkpoint is of another kind of optimizer, or of other parameters.
        """
        self._refuse_swapped("load_state_dict()")
        checkpoints.load(self, state_dict, super().load_state_dict)
        self._engine.forget()  # its tables point at the old state

    def _is_swapped(self) -> bool:
        return any(id(p) in SWAPPED for group in self.param_groups for p in group["params"])

    def _refuse_swapped(self, what: str) -> None:
        if self._is_swapped():
            raise RuntimeError(f"{what} inside averaged(): the parameters hold x̄ there; leave the with block first")

    def _warn_if_swapped(self, what: str) -> None:
        if self._is_swapped():
            warnings.warn(
                f"{what} inside averaged(): the model holds x̄ there, and a run goes on from x; save outside",
                stacklevel=3,
            )
