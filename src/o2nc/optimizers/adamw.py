"""AdamW with averages, a certificate and random scaling: ``torch.optim.AdamW`` with four more arguments.

    m ← β₁m + (1 − β₁)g,   v ← β₂v + (1 − β₂)g²,
    Δ = −lr·(m̂/(√v̂ + ε) + λx),   x ← x + sΔ,   m̂ = m/(1 − β₁^t),   v̂ = v/(1 − β₂^t).

On a GPU one pass over memory does it all, in the order and precision of torch's fused step. Elsewhere torch's step is
called, so without scaling it is ``torch.optim.AdamW`` to the bit. Δ, of which the progress is made, needs no memory:
m and v of the last step are still there when the next gradient comes.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, optim
from torch.optim.optimizer import ParamsT

from o2nc.averages import Average
from o2nc.optimizers.base import CertifiedOptimizer
from o2nc.optimizers.extended import Extended, check_extension
from o2nc.optimizers.observed import Observed, Seen
from o2nc.scaling import Law
from o2nc.state import Field, Fields, Kind
from o2nc.step import Draw, Step
from o2nc.vector import DECAYED, real, wide


class AdamW(Extended, optim.AdamW):
    """``torch.optim.AdamW`` that averages its iterates, certifies them, and scales its updates if asked to.

    Args:
        params: as in torch, and so are all arguments up to ``fused``.
        lr: learning rate, a number or a tensor.
        betas: discounts of m and v.
        eps: ε.
        weight_decay: decoupled weight decay λ.
        amsgrad: use the largest v so far.
        maximize: maximise instead of minimise.
        foreach: torch's foreach implementation.
        capturable: torch's, for steps that are captured outside the fused path.
        differentiable: whether autograd goes through the step.
        fused: on a GPU one pass over memory, averages included: None takes it where there is something to average or
            to scale, True insists on it. On a CPU torch's fused implementation.
        average: the window of x̄, ḡ and V: a discount β in (0, 1), or `o2nc.Polynomial` for one that grows with the
            run; None keeps no averages.
        scaling: the law of s, which multiplies every update; None, the default, scales nothing.
        seed: a non-negative integer; s_n is a pure function of it and n.
        certificate: False saves ḡ, 4 bytes per parameter, and there is neither a certificate nor ``progress``.
        progress: False saves time on a CPU, where Δ is computed for it; nothing on a GPU.
        offload: k keeps all averages in the host's memory and takes every k-th iterate into them, so that they cost
            no memory of the device; the step is then torch's own. There is no ``progress``.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.AdamW(model.parameters(), lr=1e-2, average=o2nc.Polynomial(12))
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> certificate = opt.certificate(c=1.0)
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
    """

    needed: ClassVar[tuple[str, ...]] = ("lr", "betas", "eps", "weight_decay")
    advice = "average=None: pass average=o2nc.Polynomial(12), say, when you construct it"
    has_other_fused = True
    in_parts = True

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        average: Average = None,
        scaling: Law | None = None,
        seed: int = 0,
        certificate: bool = True,
        progress: bool = True,
        offload: int | None = None,
    ) -> None:
        own = check_extension(average, scaling, seed, certificate, progress=certificate and progress, offload=offload)
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            foreach=foreach,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
        )
        self._share(own)
        self._note_params()
        self._refuse_partial()

    def fields_for(self, group: dict[str, Any]) -> Fields:
        """Return the state that is kept per parameter."""
        return _FIELDS | super().fields_for(group)

    def _wants_fused(self) -> bool | None:
        return CertifiedOptimizer._wants_fused(self)

    def _describe(self, step: Step) -> Step:
        nothing = step.law is None and step.window is None
        if (nothing and not step.fused) or any(group["differentiable"] for group in step.groups):
            step = step._replace(fused=False)
        return self._observed_by(Adam(step.groups[0]["progress"]), step)

    def _move(self) -> None:
        """Have torch step, with its counts where it wants them: a kernel of ours may have counted before."""
        for group in self.param_groups:
            for p in group["params"] if group["capturable"] or group["fused"] else ():
                state = self.state.get(p, {})
                if "step" in state and state["step"].device != p.device:
                    state["step"] = state["step"].to(p.device)
        super()._move()


# of the last step: s·lr, λ, √(1 − β₂^t)/(1 − β₁^t), and √(1 − β₂^t)·ε; the groups may have others by now
LAST = (*DECAYED, "last_ratio", "last_floor")

_FIELDS: Fields = {
    "step": Field(Kind.COUNT, is_torchs=True),
    "exp_avg": Field(Kind.SHAPED, is_torchs=True),
    "exp_avg_sq": Field(Kind.SHAPED, is_torchs=True),
    "max_exp_avg_sq": Field(Kind.SHAPED, is_torchs=True),
    **dict.fromkeys(LAST, Field(Kind.NUMBER)),
}


class Adam(Observed):
    """The rule of AdamW: by a kernel, or observed while torch steps."""

    def structure(self, group: Any) -> tuple[Any, ...]:
        """Return what must stay as it is in a group for tables of addresses to hold."""
        return group["amsgrad"], self.progress, group["certificate"]

    def numbers(self, group: Any) -> tuple[Any, ...]:
        """Return the sign of the gradient, no coupled weight decay, lr, β₁, β₂, ε and λ."""
        sign = -1.0 if group["maximize"] else 1.0
        return sign, 0.0, group["lr"], *group["betas"], group["eps"], group["weight_decay"]

    def part(self, key: int, group: Any, params: list[Tensor], step: Step, scale: float) -> "Seen":
        """Return the parameters of one group."""
        return SeenByAdam(key, group, params, step, scale, self)


class SeenByAdam(Seen):
    """Parameters whose last Δ is made of m and v."""

    def __init__(self, key: int, group: Any, params: list[Tensor], step: Step, scale: float, rule: Observed) -> None:
        self.group = group
        super().__init__(key, params, step, scale, rule)

    @torch.no_grad()
    def _updates(self) -> list[Tensor]:
        """Return u of the last Δ = −lr·u, which is (m̂/(√v̂ + ε) + λx)/(1 − s·lr·λ) with x as it is now."""
        found = []
        for p, state in zip(self.params, self.states, strict=True):
            x = real(p).to(wide(p.dtype))
            complete_(state, self.group)
            if not state.get(LAST[2]):
                found.append(torch.zeros_like(x))
                continue
            m, v = (real(state[key]).to(x.dtype) for key in ("exp_avg", _denominator(self.group)))
            move, decay, ratio, floor = (state[key] for key in LAST)
            left = 1 - move * decay
            u = v.sqrt().add_(floor)  # one buffer: a fresh one costs more than its arithmetic
            torch.div(m, u, out=u).mul_(ratio / left)
            found.append(u.add_(x, alpha=decay / left) if decay else u)
        return found

    def move_(self, draw: Draw) -> float:
        """Move nothing; note with which numbers torch will."""
        lr = float(self.group["lr"])
        move = lr if draw.s is None else lr * draw.s
        for state in self.states if self.updates is not None else ():
            corrections = _corrections(self.group, float(state.get("step", 0.0)) + 1)
            state.update(zip(LAST, (move, float(self.group["weight_decay"]), *corrections), strict=True))
        return -lr


def complete_(state: dict[str, Any], group: Any) -> None:
    """Fill in what older checkpoints lack of the last step, as if β and ε had been those of now."""
    t = float(state.get("step", 0.0)) if DECAYED[0] in state and LAST[2] not in state else 0.0
    if t:
        state.update(zip(LAST[2:], _corrections(group, t), strict=True))


def _corrections(group: Any, t: float) -> tuple[float, float]:
    """Return √(1 − β₂^t)/(1 − β₁^t) and √(1 − β₂^t)·ε."""
    beta1, beta2 = map(float, group["betas"])
    root = (1 - beta2**t) ** 0.5
    return root / (1 - beta1**t), root * float(group["eps"])


def _denominator(group: Any) -> str:
    return "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
