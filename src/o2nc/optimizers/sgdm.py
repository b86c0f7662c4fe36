"""SGD with momentum and random scaling: ``torch.optim.SGD`` with three more arguments.

    b_t = momentum·b_{t−1} + (1 − dampening)·g_t,   x_{t+1} = x_t − s_{t+1}·lr·b_t,   s ~ Exp(1).

This is `ExponentiatedO2NC` with the learner `OGD` in other words. For κ = 1, momentum β̃ = β/(1 + ημ), dampening β̃ and
lr = βη/(1 − β + ημ); torch starts its buffer at g_1 where the theory starts at (1 − β̃)g_1, and the tests state the
exact map. The step itself is torch's own function, so ``scaling=None`` is ``torch.optim.SGD`` to the bit.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

from o2nc import averages, checks
from o2nc.averages import Average, Coupling, check_average, check_output
from o2nc.optimizers.base import CertifiedOptimizer
from o2nc.scaling import Exponential, Law, check_law
from o2nc.state import Field, Fields, Kind
from o2nc.step import COUNTERS, Draw, Step
from o2nc.torch_support.private import check_fused, sgd
from o2nc.vector import real, wide

_HALF = frozenset((torch.bfloat16, torch.float16))


class ScaledSGDM(CertifiedOptimizer, SGD):
    """``torch.optim.SGD`` whose update is multiplied by a random scalar, with averages and a certificate.

    Args:
        params: as in torch, and so are all arguments up to ``fused``.
        lr: learning rate, a number or a tensor.
        momentum: momentum factor.
        dampening: dampening of the momentum.
        weight_decay: coupled weight decay (an L2 penalty).
        nesterov: Nesterov momentum.
        maximize: maximise instead of minimise.
        foreach: torch's foreach implementation.
        differentiable: whether autograd goes through the step.
        fused: on a GPU one pass over memory, averages included: None takes it where it applies, True insists on it.
            On a CPU torch's fused implementation.
        scaling: the law of s, or None for ``torch.optim.SGD`` itself.
        seed: a non-negative integer; s_n is a pure function of it and n. Two optimizers of one program, as a GAN has
            them, draw the same s with the same seed: give each its own.
        average: the window of x̄, ḡ and V: a discount β in (0, 1), or `o2nc.Polynomial` for one that grows with the
            run; None keeps no averages. Where β equals ``momentum`` (and dampening is 0) ḡ is read off the momentum
            buffer, which is then not to be reset by hand.
        output: the law of n in ``output()``: "uniform" over all steps, or "geometric", uniform plus a geometric time
            of mean β/(1 − β), cut off at the end, for which more is proved (docs/paper.md).

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.ScaledSGDM(model.parameters(), lr=0.01, momentum=0.9, average=0.99)
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> certificate = opt.certificate(c=1.0)
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
    """

    needed: ClassVar[tuple[str, ...]] = ("lr", "momentum", "dampening", "weight_decay")
    shared: ClassVar[tuple[str, ...]] = ("scaling", "seed", "average", "output", *COUNTERS)
    has_other_fused = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        scaling: Law | None = Exponential(),
        seed: int = 0,
        average: Average = None,
        output: str = "uniform",
    ) -> None:
        check_law(scaling)
        checks.integer("seed", seed, 0)
        average = check_average(average)
        check_output(output, average)
        if not isinstance(lr, Tensor):
            checks.number("lr", lr, "a finite number >= 0", lambda v: True)  # torch refuses negative ones
        for name, value in (("momentum", momentum), ("dampening", dampening), ("weight_decay", weight_decay)):
            if not isinstance(value, Tensor):
                checks.number(name, value, "a finite number", lambda v: True)
        super().__init__(
            params,
            lr,
            momentum,
            dampening,
            weight_decay,
            nesterov,
            maximize=maximize,
            foreach=foreach,
            differentiable=differentiable,
            fused=fused,
        )
        own = {"scaling": scaling, "seed": int(seed), "average": average, "output": output, "step": 0}
        self._share(own | averages.begin_counters())
        self._refuse_partial()

    def fields_for(self, group: dict[str, Any]) -> Fields:
        """Return the state that is kept per parameter."""
        return _FIELDS

    def _describe(self, step: Step) -> Step:
        # scaling=None is torch's to the bit, so torch's own functions do it unless the fused step is demanded
        is_torchs = step.law is None and not (step.fused and step.window is not None)
        if is_torchs or any(group["differentiable"] for group in step.groups):
            return step._replace(rule=Momentum(), fused=False)
        return step._replace(rule=Momentum())


_FIELDS: Fields = averages.FIELDS | {
    "gradient": Field(Kind.SHAPED, like="average"),
    "momentum_buffer": Field(Kind.SHAPED, is_torchs=True),
}


class Momentum:
    """The rule of SGD with momentum; what it needs to know is in the parameter groups."""

    def structure(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return what must stay as it is in a group for tables of addresses to hold."""
        return group["momentum"] != 0, group["nesterov"], buffer_is_mean(group)

    def numbers(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """Return the sign of the gradient, coupled weight decay, lr, momentum and dampening."""
        sign = -1.0 if group["maximize"] else 1.0
        return sign, group["weight_decay"], group["lr"], group["momentum"], group["dampening"], 0.0, 0.0

    def parts(self, step: Step, unscale: float) -> "Iterator[MomentumPart]":
        """Yield the parameters of every group that have gradients."""
        work = []
        for k, group in enumerate(step.groups):
            params = [p for p in group["params"] if p.grad is not None]
            grads: list[Any] = [p.grad for p in params]
            dtypes = {g.dtype for g in grads}
            if any(g.layout is not torch.strided for g in grads) or not all(d.is_floating_point for d in dtypes):
                for g in grads:
                    checks.gradient(g)
            if group["fused"]:
                for p in params:
                    if not step.state.get(p):
                        check_fused(p)
            if group["fused"] and not _HALF.isdisjoint(dtypes) and any(p.device.type == "cpu" for p in params):
                # torch's fused kernel for CPUs (2.13) leaves every other vector of a half-precision buffer unwritten
                group = group | {"foreach": True, "fused": False}
            if params:
                work.append((k, group, params, grads))
        if step.window is not None and work:
            self._keep_own_gradients(step)
        for k, group, params, grads in work:
            yield MomentumPart(k, group, params, grads, step, unscale)

    @torch.no_grad()
    def _keep_own_gradients(self, step: Step) -> None:
        """Give parameters a ḡ of their own where the momentum buffer will no longer tell it."""
        for group in step.groups:
            reads_buffer = buffer_is_mean(group)
            for p in group["params"]:
                if not reads_buffer or p.grad is None or p.dtype in _HALF:
                    keep_own_gradient(step.state.get(p, {}), group["weight_sum"])


class MomentumPart:
    """The parameters of one group that have gradients."""

    def __init__(
        self, key: int, group: dict[str, Any], params: list[Tensor], grads: list[Tensor], step: Step, unscale: float
    ) -> None:
        self.key, self.group, self.params, self.grads = key, group, params, grads
        keeps_state = group["momentum"] != 0 or step.window is not None
        self.states = [step.state[p] for p in params] if keeps_state else []
        self.coupling = Coupling(-unscale if group["maximize"] else unscale, _number(group["weight_decay"]))
        self.reads_buffer = buffer_is_mean(group)
        self.scaler = {"grad_scale": step.grad_scale, "found_inf": step.found_inf}
        self.buffers: list[Tensor | None] = []
        if group["momentum"] != 0:
            self.buffers = [state.get("momentum_buffer") for state in self.states]
        # Δ = −lr·b is read off the buffer one step later; with Nesterov or without momentum it must be kept
        self.keeps_update = group["momentum"] == 0 or group["nesterov"]
        kept = self.buffers
        if not kept or any("update" in state for state in self.states):
            kept = [state.get("update", state.get("momentum_buffer")) for state in self.states]
        known = [u is not None for u in kept]
        self.updates: Any = kept  # the directions u of the updates that led here
        if not all(known):
            zeros = (torch.zeros_like(p) if u is None else u for p, u in zip(params, kept, strict=False))
            self.updates = [*zeros] if any(known) else None
        # whether torch's function can be called for some coordinates at a time, and needs nothing else
        self.in_blocks = (
            kept is self.buffers
            and all(known)
            and not (self.keeps_update or group["differentiable"] or any(p.is_complex() for p in params))
            and step.grad_scale is None
            and not isinstance(group["weight_decay"], Tensor)
            and not getattr(step.law, "weighted", False)
        )

    def move_(self, draw: Draw) -> float:
        """Move parameters and buffers; keep the direction where nothing else tells it."""
        group = self.group
        is_averaged = group["average"] is not None
        directions = self._directions() if is_averaged and self.keeps_update else []
        self._sgd(draw)
        for state, direction in zip(self.states, directions, strict=False):
            direction.mul_(draw.weight)
            if group["nesterov"] and group["momentum"] != 0:
                direction.add_(real(state["momentum_buffer"].detach()), alpha=group["momentum"])
            state["update"] = direction
        if is_averaged and not self.keeps_update:
            for state in self.states:
                state.pop("update", None)
        return -_number(group["lr"])

    def move_block_(self, x: list[Tensor], g: list[Tensor], u: list[Tensor], draw: Draw) -> float:
        """Move some of the parameters, or some of their coordinates, with their buffers u."""
        self._call(self.group, x, g, u, draw)  # type: ignore[arg-type]
        return -_number(self.group["lr"])

    def _sgd(self, draw: Draw) -> None:
        """Call torch's function, kept from writing into ``.grad`` and from mixing old and new buffers."""
        group, grads, buffers = self.group, self.grads, self.buffers
        scaler: dict[str, Tensor | None] = self.scaler
        if draw.weight != 1:
            # of the gradient that SGD sees: what torch would do to it comes first, and is then not to be done again
            pairs = zip(self.params, grads, strict=True)
            coupled = ((p, self.coupling(g.to(torch.promote_types(p.dtype, torch.float32)), p)) for p, g in pairs)
            grads = [torch.mul(g, draw.weight).to(p.dtype) for p, g in coupled]
            group = group | {"weight_decay": 0.0, "maximize": False}
            scaler = {}
        elif scaler["grad_scale"] is not None and not group["fused"]:  # foreach had to stand in, and knows no scale
            grads, scaler = [g / scaler["grad_scale"] for g in grads], {}
        # torch writes into .grad itself in three cases: Nesterov by foreach, a fused step that unscales, tensor decay
        if (
            (group["nesterov"] and group["foreach"] is not False and not group["fused"])
            or scaler.get("grad_scale") is not None
            or isinstance(group["weight_decay"], Tensor)
        ):
            grads = [g.clone() for g in grads]
        # torch's fused step takes either all buffers or none: a parameter unfrozen late goes on its own
        is_old = [b is not None for b in buffers]
        kinds = (False, True) if group["fused"] and len({*is_old}) > 1 else (None,)
        for kind in kinds:
            at = [i for i in range(len(self.params)) if kind is None or is_old[i] == kind]
            some = [buffers[i] for i in at] if buffers else []
            self._call(group, [self.params[i] for i in at], [grads[i] for i in at], some, draw, **scaler)
            for i, buffer in zip(at, some, strict=False):  # there are none without momentum
                self.states[i]["momentum_buffer"] = buffer

    def _call(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[Tensor | None],
        draw: Draw,
        **scaler: Tensor | None,
    ) -> None:
        sgd(
            params,
            grads,
            buffers,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"] if draw.s is None else group["lr"] * draw.s,
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            has_sparse_grad=False,
            foreach=group["foreach"],
            fused=group["fused"],
            **scaler,
        )

    @torch.no_grad()
    def _directions(self) -> list[Tensor]:
        """Return copies of the gradients that SGD sees."""
        pairs = ((real(p), real(g)) for p, g in zip(self.params, self.grads, strict=True))
        return [self.coupling(g.to(wide(x.dtype), copy=True), x) for x, g in pairs]


def buffer_is_mean(group: dict[str, Any]) -> bool:
    """Say whether the momentum buffer is Σβ^{n−t}w_t g_t, so that ḡ needs no storage of its own."""
    return group["momentum"] == group["average"] and group["dampening"] == 0


def keep_own_gradient(state: dict[str, Any], weight_sum: float | Tensor) -> None:
    """Give a parameter a ḡ of its own where so far the momentum buffer told it."""
    if "average" in state and "gradient" not in state:
        buffer = real(state["momentum_buffer"])
        state["gradient"] = buffer.to(wide(buffer.dtype)) / weight_sum


def _number(value: float | Tensor) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)
