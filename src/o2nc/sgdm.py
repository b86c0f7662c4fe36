"""SGD with momentum and random scaling: ``torch.optim.SGD`` with three more arguments.

    b_t = momentum·b_{t−1} + (1 − dampening)·g_t,   x_{t+1} = x_t − s_{t+1}·lr·b_t,   s ~ Exp(1).

This is `ExponentiatedO2NC` with the learner `OGD` in other words. For κ = 1, momentum β̃ = β/(1 + ημ), dampening β̃ and
lr = βη/(1 − β + ημ); torch starts its buffer at g_1 where the theory starts at (1 − β̃)g_1, and the tests state the
exact map. The step itself is torch's own function, so ``scaling=None`` is ``torch.optim.SGD`` to the bit.
"""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

from o2nc import checks
from o2nc.averaging import Ledger, Seen, Weights, start
from o2nc.fused import Fused
from o2nc.persistence import COUNTERS, Persistent
from o2nc.scaling import ROUNDING, Exponential, Law, check_law, progress_weight, relative_weight, uniform
from o2nc.stepping import unscaling
from o2nc.torch_private import sgd, with_grad_if_differentiable
from o2nc.vector import real, wide

if TYPE_CHECKING:
    from o2nc.kernels.lanes import Lane

_HALF = frozenset((torch.bfloat16, torch.float16))


class ScaledSGDM(Fused, Persistent, SGD):
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
        average: the discount β in (0, 1) of x̄, ḡ and V; None keeps no averages. When it equals ``momentum`` (and
            dampening is 0) ḡ is read off the momentum buffer, which is then not to be reset by hand.

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
    shared: ClassVar[tuple[str, ...]] = (
        "scaling",
        "seed",
        "average",
        *COUNTERS,
    )

    _has_other_fused = True
    _late: ClassVar[dict[str, str]] = {"gradient": "average"}

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
        average: float | None = None,
    ) -> None:
        check_law(scaling)
        checks.integer("seed", seed, 0)
        if average is not None:
            checks.fraction("average", average)
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
        self._share(dict(zip(self.shared, (scaling, int(seed), average, 0, 0.0, 0.0, 0.0), strict=True)))
        self._refuse_partial()

    def _keeps_dtype(self, key: str) -> bool:
        return key != "momentum_buffer"  # torch's own, cast as torch casts it

    def _take(self) -> None:
        if not self._fuse():
            self._step_by_torch()

    @with_grad_if_differentiable
    def _step_by_torch(self) -> None:
        """Move with torch's own functions."""
        loss_scale = unscaling(self)
        if loss_scale is None:
            return  # a GradScaler's overflow: nothing is consumed
        law, seed, average, step, *sums = (self.param_groups[0][key] for key in self.shared)
        work = []
        for k, group in enumerate(self.param_groups):
            params: list[Tensor] = []
            grads: list[Tensor] = []
            buffers: list[Tensor | None] = []
            sparse = self._init_group(group, params, grads, buffers)
            dtypes = {g.dtype for g in grads}
            if sparse or not all(dtype.is_floating_point for dtype in dtypes):
                for g in grads:
                    checks.gradient(g)
            if group["fused"] and not _HALF.isdisjoint(dtypes) and any(p.device.type == "cpu" for p in params):
                # torch's fused kernel for CPUs (2.13) leaves every other vector of a half-precision buffer unwritten
                group = group | {"foreach": True, "fused": False}
            if params:
                work.append((k, group, params, grads, buffers))
        if not work:
            return
        t = step + 1
        weight = relative_weight(law, seed, t)
        weights, gamma = Weights(*sums).add(weight, 0.0 if average is None else average)
        s = None if law is None else law.sample(seed, t + 1)
        if average is not None:
            for p in self._absent():
                self._keep_own_gradient(self.state[p])
        for k, group, params, grads, buffers in work:
            seen = Seen(-loss_scale if group["maximize"] else loss_scale, _number(group["weight_decay"]))
            call = Call(group, group["lr"] if s is None else group["lr"] * s, seen, weight)
            if average is None:
                self._sgd(call, params, grads, buffers)
            else:
                ledger = self._open_ledger(k, call, params, grads, weights)
                self._catch_up(params, sums[2], seed, t)
                self._sgd_averaged(call, ledger, grads, buffers, gamma, (seed, t))
                for p in params:
                    self.state[p]["log_decay"] = weights.log_decay
        if average is not None:
            sums = list(weights)
        for group in self.param_groups:
            group.update(zip(COUNTERS, (t, *sums), strict=True))
        if average is not None:
            self._keep_output(seed, t)

    def _sgd(self, call: "Call", params: list[Tensor], grads: list[Tensor], buffers: list[Tensor | None]) -> None:
        """Call torch's function, kept from writing into ``.grad`` and from mixing old and new buffers."""
        group = call.group
        scaler = {key: getattr(self, key, None) for key in ("grad_scale", "found_inf")}
        if call.weight != 1:
            # of the gradient that SGD sees: what torch would do to it comes first, and is then not to be done again
            grads = self._directions(params, grads, call.seen)
            grads = [torch.mul(g, call.weight).to(p.dtype) for p, g in zip(params, grads, strict=True)]
            call = call._replace(group=group | {"weight_decay": 0.0, "maximize": False}, weight=1.0)
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
        old = [b is not None for b in buffers] if group["fused"] else []
        if any(old) and not all(old):
            for kind in (False, True):
                at = [i for i, known in enumerate(old) if known == kind]
                self._sgd(call, [params[i] for i in at], [grads[i] for i in at], [buffers[i] for i in at])
            return
        call(params, grads, buffers, **scaler)
        for p, buffer in zip(params, buffers, strict=False):  # there are none without momentum
            self.state[p]["momentum_buffer"] = buffer

    def _may_fuse(self, demanded: bool) -> bool:
        # scaling=None is torch's to the bit, so torch's own functions do it unless the fused step is demanded
        group = self.param_groups[0]
        asked = group["scaling"] is not None or (demanded and group["average"] is not None)
        return asked and not any(group["differentiable"] for group in self.param_groups)

    def _rule(self) -> Any:
        from o2nc.kernels.rules import SGD as RULE

        return RULE

    def _structure(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (*super()._structure(group), group["momentum"] != 0, group["nesterov"], _buffer_tells(group))

    def _group_numbers(self, group: dict[str, Any]) -> tuple[Any, ...]:
        sign = -1.0 if group["maximize"] else 1.0
        return group["lr"], group["momentum"], group["dampening"], group["weight_decay"], sign

    @torch.no_grad()
    def _lanes(self) -> "list[Lane]":
        from o2nc.kernels.lanes import sgd_lane

        lanes = []
        for k, group in enumerate(self.param_groups):
            tells = _buffer_tells(group)
            for p in group["params"]:
                known = bool(self.state.get(p))
                if p.grad is None and not known:
                    continue
                state = self._watched(p)
                if "average" in state and group["average"] is not None and (not tells or p.grad is None):
                    self._keep_own_gradient(state)
                from_start = not known and _is_start(group) and wide(p.dtype) == p.dtype
                lanes.append(sgd_lane(p, state, k, group, buffer_tells=tells and from_start))
        return lanes

    @torch.no_grad()
    def _open_ledger(
        self, key: int, call: "Call", params: list[Tensor], grads: list[Tensor], weights: Weights
    ) -> Ledger:
        """Return the ledger of a group's parameters, with averages begun for new ones."""
        group, seen = call.group, call.seen
        buffer_tells = _buffer_tells(group)
        ledger = self._ledgers.get(key)
        if ledger is not None and ledger.holds(params, self.state) and (buffer_tells or ledger.own_gradients):
            return ledger
        for p, g in zip(params, grads, strict=True):
            state = self.state[p]
            if "average" not in state:
                x = real(p)
                # from the very first step on, and in a dtype that an average can be kept in
                told = buffer_tells and _is_start(group) and wide(x.dtype) == x.dtype
                told = told and state.get("momentum_buffer") is None
                state.update(start(x, None if told else seen(real(g).to(wide(x.dtype)), x), weights))
            elif not buffer_tells:  # a schedule may have moved the momentum
                self._keep_own_gradient(state)
        return self._ledger(key, params, grads)

    def _sgd_averaged(
        self,
        call: "Call",
        ledger: Ledger,
        grads: list[Tensor],
        buffers: list[Tensor | None],
        gamma: float,
        now: tuple[int, int],
    ) -> None:
        """Take x_t and the gradient that SGD sees into the averages, and make the step; ``now`` is seed and t."""
        group, seen = call.group, call.seen
        params, states = ledger.params, ledger.states
        # Δ = −lr·b is read off the buffer one step later; with Nesterov or without momentum it must be kept.
        keeps_update = group["momentum"] == 0 or group["nesterov"]
        kept: list[Tensor | None] = buffers
        if not buffers or any("update" in state for state in states):
            kept = [state.get("update", state.get("momentum_buffer")) for state in states]
        known = [u is not None for u in kept]
        updates: Any = kept
        if not all(known):
            updates = [torch.zeros_like(p) if u is None else u for p, u in zip(params, kept, strict=True)]
        in_blocks = (
            kept is buffers
            and all(known)
            and not (keeps_update or group["differentiable"] or ledger.has_complex)
            and getattr(self, "grad_scale", None) is None
            and not isinstance(group["weight_decay"], Tensor)
            and call.weight == 1
        )
        dither = uniform(*now, stream=ROUNDING) - 0.5
        weight = progress_weight(group["scaling"], *now)
        if in_blocks:
            ledger.add_(grads, updates, gamma, weight=weight, seen=seen, then=call.__call__, dither=dither)
        else:
            ledger.add_(grads, updates if any(known) else None, gamma, weight=weight, seen=seen, dither=dither)
            directions = self._directions(params, grads, seen) if keeps_update else []
            self._sgd(call, params, grads, buffers)
            for state, direction in zip(states, directions, strict=False):
                direction.mul_(call.weight)
                if group["nesterov"] and group["momentum"] != 0:
                    direction.add_(real(state["momentum_buffer"].detach()), alpha=group["momentum"])
                state["update"] = direction
        rate = -_number(group["lr"])
        for state in states:
            state["rate"] = rate
            if not keeps_update and "update" in state:
                del state["update"]

    @torch.no_grad()
    def _directions(self, params: list[Tensor], grads: list[Tensor], seen: Seen) -> list[Tensor]:
        """Return copies of the gradients that SGD sees."""
        return [seen(real(g).to(wide(real(p).dtype), copy=True), real(p)) for p, g in zip(params, grads, strict=True)]


class Call(NamedTuple):
    """torch's function of SGD, with the numbers of one group at one step."""

    group: dict[str, Any]
    lr: float | Tensor  # s included
    seen: Seen  # what torch makes of ``.grad`` before the momentum
    weight: float  # w(s_t), of that gradient, under a weighted law

    def __call__(self, params: list[Tensor], grads: list[Tensor], buffers: Any, **scaler: Tensor | None) -> None:
        """Move parameters and buffers."""
        group = self.group
        sgd(
            params,
            grads,
            buffers,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=self.lr,  # type: ignore[arg-type]
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            has_sparse_grad=False,
            foreach=group["foreach"],
            fused=group["fused"],
            **scaler,
        )


def _buffer_tells(group: dict[str, Any]) -> bool:
    """Say whether the momentum buffer is Σβ^{n−t}w_t g_t, so that ḡ needs no storage of its own."""
    return group["momentum"] == group["average"] and group["dampening"] == 0


def _is_start(group: dict[str, Any]) -> bool:
    """Say whether no step was made yet; a counter on the device has begun."""
    return not isinstance(group["step"], Tensor) and group["step"] == 0


def _number(value: float | Tensor) -> float:
    return float(value.detach()) if isinstance(value, Tensor) else float(value)
