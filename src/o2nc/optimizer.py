"""Algorithm 2, Exponentiated O2NC: any online learner as a torch optimizer.

    g_t = ∇f(x_t)                           the gradient at the iterate itself
    Δ_{t+1} = learner(g_t)                  on the losses β^{−t}⟨g_t, Δ⟩ + (μ_t/2)‖Δ‖²
    x_{t+1} = x_t + s_{t+1} Δ_{t+1}         s ~ Exp(1), one scalar for all parameters
    x̄_t, ḡ_t, V_t                           β-weighted averages: ‖∇F(x̄_t)‖_c <= ‖ḡ_t‖ + cV_t

At call t = 1, 2, … of ``step`` the parameters are x_t and ``.grad`` is g_t (x_1 = x_0, since Δ_1 = 0); the call
takes them into the averages, asks the learner and moves the parameters to x_{t+1}.
"""

from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from o2nc import checks
from o2nc.averaging import STATE, Weights, start
from o2nc.fused import Fused
from o2nc.learners import Learner
from o2nc.persistence import Persistent
from o2nc.scaling import Exponential, Law, check_law, progress_weight, relative_weight
from o2nc.sharding import joint_norms
from o2nc.torch_private import foreach_add_, foreach_mul
from o2nc.vector import real, wide

if TYPE_CHECKING:
    from o2nc.kernels.lanes import Lane


class Active(NamedTuple):
    """The parameters that have or had a gradient, as parallel lists: together one vector of R^d.

    One that has none now counts with the gradient zero, in the learner and in the averages, and is not moved.
    """

    params: list[Tensor]
    xs: list[Tensor]
    gs: list[Tensor]
    states: list[dict[str, Any]]
    lrs: list[float]
    present: list[bool]

    def mark_moved(self) -> None:
        """Note whose next Δ is added to the parameter, so that the progress counts it, and whose is not."""
        for state, here in zip(self.states, self.present, strict=True):
            state["rate"] = 1.0 if here else 0.0

    def move_(self, s: float) -> None:
        """Add s·Δ to the parameters that have a gradient."""
        xs, deltas = ([v for v, here in zip(vs, self.present, strict=True) if here] for vs in (self.xs, self.deltas))
        foreach_add_(xs, deltas, alpha=s)

    @property
    def deltas(self) -> list[Tensor]:
        """Δ of every parameter."""
        return [state["delta"] for state in self.states]


def check_learner(learner: object) -> None:
    """Refuse ``learner`` unless it is a dataclass instance that offers lr, init and update."""
    if isinstance(learner, type) or not (isinstance(learner, Learner) and is_dataclass(learner)):
        raise TypeError(f"learner must be an online learner such as o2nc.learners.OGD(lr=0.01), got {learner!r}")


def active(optimizer: Optimizer, learner: Learner, *, averaged: bool) -> Active | None:
    """Gather the parameters that have or had a gradient, with state made where it is new; None when none has one now.

    All gradients are checked before anything is touched. Gradients and state are at least float32.
    """
    everyone = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    for p, _ in everyone:
        if p.grad is not None:
            checks.gradient(p.grad)
    if all(p.grad is None for p, _ in everyone):
        return None
    found = Active([], [], [], [], [], [])
    for p, group in everyone:
        if p.grad is None and "delta" not in optimizer.state.get(p, ()):
            continue
        x = real(p.detach())
        dtype = wide(x.dtype)
        g = torch.zeros_like(x, dtype=dtype) if p.grad is None else real(p.grad.detach()).to(dtype)
        state = optimizer.state[p]
        if "delta" not in state:
            delta = torch.zeros_like(x, dtype=dtype)
            state.update(_initial(learner, delta), delta=delta)
        if averaged and "average" not in state:
            state.update(start(x, g))
        found.params.append(p)
        found.xs.append(x)
        found.gs.append(g)
        found.states.append(state)
        found.lrs.append(float(group["lr"]))
        found.present.append(p.grad is not None)
    return found


# what torch's other optimizers read from a parameter group and these do not
FOREIGN = frozenset(("weight_decay", "momentum", "dampening", "nesterov", "maximize", "betas"))
_RESERVED = (*STATE, "delta", "fresh", "blank")


def _initial(learner: Learner, delta: Tensor) -> dict[str, Any]:
    """Return the learner's own state of one parameter, refused where it would collide with ours."""
    state = learner.init(delta)
    name = type(learner).__name__
    if not isinstance(state, dict):
        raise TypeError(f"{name}.init must return a dict of tensors and numbers, got {state!r}")
    taken = [key for key in state if key in _RESERVED]
    if taken:
        raise ValueError(f"{name}.init must not use the names {taken}: the optimizer keeps its own state under them")
    return state


def play(learner: Learner, found: Active, grads: list[Tensor], beta: float) -> None:
    """Have the learner replace Δ_t by Δ_{t+1}."""
    with joint_norms(found.params):
        returned = learner.update(found.deltas, grads, found.states, found.lrs, beta)  # type: ignore[func-returns-value]
    if returned is not None:
        raise TypeError(f"{type(learner).__name__}.update must change deltas in place and return None")


class ExponentiatedO2NC(Fused, Persistent):
    """Algorithm 2: learner × scaling × averaging.

    Args:
        params: parameters or parameter groups; a group may have an ``lr`` of its own, and no weight decay.
        learner: the online learner that plays the updates; ``param_groups[i]["lr"]`` starts at its ``lr``.
        beta: β in (0, 1), the discount of the losses and of the averages.
        scaling: the law of s, or None for no scaling (then no guarantee holds).
        seed: a non-negative integer; s_n is a pure function of it and n.
        average: False saves the memory of x̄, ḡ and the kept output, and there is no certificate.
        fused: one pass over memory on a GPU; None takes it where it applies, True insists on it.

    Example:
        >>> import torch, o2nc
        >>> x = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        >>> opt = o2nc.ExponentiatedO2NC([x], o2nc.learners.OGD(lr=0.01), beta=0.9)
        >>> for _ in range(300):
        ...     opt.zero_grad()
        ...     x.abs().sum().backward()
        ...     opt.step()
        >>> opt.certificate(c=1.0).value < 1.0
        True
    """

    foreign: ClassVar[frozenset[str]] = FOREIGN
    shared: ClassVar[tuple[str, ...]] = (
        "learner",
        "beta",
        "scaling",
        "seed",
        "average",
        "step",
        "weight_sum",
        "weight_square_sum",
    )

    def __init__(
        self,
        params: ParamsT,
        learner: Learner,
        *,
        beta: float = 0.99,
        scaling: Law | None = Exponential(),
        seed: int = 0,
        average: bool = True,
        fused: bool | None = None,
    ) -> None:
        check_learner(learner)
        checks.fraction("beta", beta)
        check_law(scaling)
        checks.integer("seed", seed, 0)
        checks.flag("average", average)
        if fused is not None:
            checks.flag("fused", fused)
        defaults = {
            "lr": learner.lr,
            "learner": learner,
            "beta": beta,
            "scaling": scaling,
            "seed": int(seed),
            "average": beta if average else None,
            "step": 0,
            "weight_sum": 0.0,
            "weight_square_sum": 0.0,
            "fused": fused,
        }
        super().__init__(params, defaults)
        self._step_supports_amp_scaling = bool(fused)  # a GradScaler then leaves unscaling and skipping to the step

    @torch.no_grad()
    def _take(self) -> None:
        if self._fuse():
            return
        learner, beta, law, seed, average, step, *sums = (self.param_groups[0][key] for key in self.shared)
        found = active(self, learner, averaged=average is not None)
        if found is None:
            return
        t = step + 1
        weight = relative_weight(law, seed, t)
        if average is not None:
            (*sums,), gamma = Weights(*sums).add(weight, average)
            ledger = self._ledger("active", found.params, found.gs)
            ledger.add_(found.gs, found.deltas, gamma, weight=progress_weight(law, seed, t))
            self._keep_output(seed, t)
            found.mark_moved()
        gs = found.gs if weight == 1 else list(foreach_mul(found.gs, weight))
        play(learner, found, gs, beta)
        s = 1.0 if law is None else law.sample(seed, t + 1)
        found.move_(s)
        for group in self.param_groups:
            group.update(step=t, weight_sum=sums[0], weight_square_sum=sums[1])

    def _rule(self) -> Any:
        from o2nc.kernels.rules import device_rule

        learner, beta = (self.param_groups[0][key] for key in ("learner", "beta"))
        dtypes = {wide(p.dtype) for group in self.param_groups for p in group["params"]}
        return device_rule(learner, beta, min(dtypes, key=lambda dtype: dtype.itemsize))

    def _structure(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (*super()._structure(group), group["learner"], group["beta"])

    def _group_numbers(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return group["lr"], 0.0, 0.0, 0.0, 1.0

    def _lanes(self) -> "list[Lane]":
        from o2nc.kernels.lanes import learner_lane

        rule = self._rule()
        return [
            learner_lane(p, self._watched(p), k, group, rule)
            for k, group in enumerate(self.param_groups)
            for p in group["params"]
            if p.grad is not None or "delta" in self.state.get(p, ())
        ]
