"""SGD with momentum and random scaling: ``torch.optim.SGD`` with three more arguments.

    b_t = momentum·b_{t−1} + (1 − dampening)·g_t,   x_{t+1} = x_t − s_{t+1}·lr·b_t,   s ~ Exp(1).

This is `ExponentiatedO2NC` with the learner `OGD` in other words. For κ = 1, momentum β̃ = β/(1 + ημ), dampening β̃ and
lr = βη/(1 − β + ημ); torch starts its buffer at g_1 where the theory starts at (1 − β̃)g_1, and the tests state the
exact map. The step itself is torch's own function, so ``scaling=None`` is ``torch.optim.SGD`` to the bit.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.optimizer import ParamsT, _use_grad_for_differentiable
from torch.optim.sgd import sgd

from o2nc import checks
from o2nc.averaging import Certified, Entry, accumulate, keep_output_, start
from o2nc.optimizer import check_gradient, evaluate
from o2nc.persistence import Persistent
from o2nc.scaling import Exponential, Law, check_law, progress_weight, relative_weight
from o2nc.vector import real, wide


class ScaledSGDM(Certified, Persistent, SGD):
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
        fused: torch's fused implementation.
        scaling: the law of s, or None for ``torch.optim.SGD`` itself.
        seed: a non-negative integer; s_n is a pure function of it and n.
        average: the discount β in (0, 1) of x̄, ḡ and V; None keeps no averages.

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

    shared: ClassVar[tuple[str, ...]] = ("scaling", "seed", "average", "step")

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
        self._share({"scaling": scaling, "seed": seed, "average": average, "step": 0})

    def _keeps_dtype(self, key: str) -> bool:
        return key != "momentum_buffer"  # torch's own, cast as torch casts it

    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move from x_t to x_{t+1}.

        Args:
            closure: recomputes the loss and the gradients, and returns the loss.

        Returns:
            What the closure returned, or None.
        """
        self._refuse_inside_averaged()
        loss = evaluate(closure)
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return loss  # a GradScaler's overflow: nothing is consumed
        law, seed, average, step = (self.param_groups[0][key] for key in self.shared)
        work = []
        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            buffers: list[Tensor | None] = []
            sparse = self._init_group(group, params, grads, buffers)
            if sparse or not all(map(torch.is_floating_point, grads)):
                for g in grads:
                    check_gradient(g)
            if params:
                work.append((group, params, grads, buffers))
        if not work:
            return loss
        t = step + 1
        if average is not None:
            weight, rate = relative_weight(law, seed, t), progress_weight(law, seed, t)
            for group, params, grads, _ in work:
                self._average(group, params, grads, weight, rate, average)
            keep_output_([self.state[p] for _, params, _, _ in work for p in params], seed, t)
        s = None if law is None else law.sample(seed, t + 1)
        for group, params, grads, buffers in work:
            lr = group["lr"] if s is None else group["lr"] * s
            self._sgd(group, params, grads, buffers, lr)
            if average is not None and group["nesterov"]:
                for p in params:
                    state = self.state[p]
                    state["update"].add_(real(state["momentum_buffer"].detach()), alpha=group["momentum"])
        for group in self.param_groups:
            group["step"] = t
        return loss

    @torch.no_grad()
    def _average(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        weight: float,
        rate: float,
        average: float,
    ) -> None:
        """Take x_t and the gradient that SGD sees into the averages."""
        momentum, lr, decay = group["momentum"], float(group["lr"]), float(group["weight_decay"])
        sign = -1.0 if group["maximize"] else 1.0
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            sign /= scale.item()
        # With average == momentum the buffer is Σβ^{n−t}g_t and ḡ needs no storage of its own.
        law = group["scaling"]
        buffer_tells = momentum == average and group["dampening"] == 0 and (law is None or not law.reweights)
        # Δ = −lr·b, read off the buffer one step later; without a buffer, or with Nesterov, it must be kept
        keeps_update = momentum == 0 or group["nesterov"]
        entries = []
        for p, g in zip(params, grads, strict=True):
            state = self.state[p]
            if p.is_complex():
                p, g = real(p), real(g)
            buffer = state.get("momentum_buffer")
            if "average" not in state:
                tells = buffer_tells and buffer is None and wide(p.dtype) == p.dtype
                state.update(start(p, own_gradient=not tells), last_lr=0.0)
            elif not buffer_tells and "gradient" not in state:  # a schedule has moved the momentum
                state["gradient"] = real(buffer) / state["weight"]
            update = state.get("update", buffer)
            update = None if update is None else real(update)
            entries.append(Entry(p, g, update, -state["last_lr"] * rate, state))
            state["last_lr"] = lr
        accumulate(entries, weight=weight, discount=average, sign=sign, decay=decay)
        for x, g, _, _, state in entries:
            if keeps_update:
                state["update"] = g.to(wide(x.dtype)).mul(sign).add_(x, alpha=decay)
            elif "update" in state:
                del state["update"]

    def _sgd(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        buffers: list[Tensor | None],
        lr: float | Tensor,
    ) -> None:
        """Call torch's function, kept from writing into ``.grad`` and from mixing old and new buffers."""
        scaler = {key: getattr(self, key, None) for key in ("grad_scale", "found_inf")}
        # torch's foreach Nesterov adds the buffer to .grad itself, and a fused step unscales .grad in place
        in_place = group["nesterov"] and group["foreach"] is not False and not group["fused"]
        if in_place or scaler["grad_scale"] is not None:
            grads = [g.clone() for g in grads]
        # torch's fused step takes either all buffers or none: a parameter unfrozen late goes on its own
        new = [i for i, b in enumerate(buffers) if b is None]
        old = [i for i, b in enumerate(buffers) if b is not None]
        parts = [new, old] if group["fused"] and new and old else [list(range(len(params)))]
        for part in parts:
            part_buffers = [buffers[i] for i in part] if buffers else []
            sgd(
                [params[i] for i in part],
                [grads[i] for i in part],
                part_buffers,
                weight_decay=group["weight_decay"],
                momentum=group["momentum"],
                lr=lr,  # type: ignore[arg-type]
                dampening=group["dampening"],
                nesterov=group["nesterov"],
                maximize=group["maximize"],
                has_sparse_grad=False,
                foreach=group["foreach"],
                fused=group["fused"],
                **scaler,
            )
            if group["momentum"] != 0:
                for i, buffer in zip(part, part_buffers, strict=True):
                    self.state[params[i]]["momentum_buffer"] = buffer
