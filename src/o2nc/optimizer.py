"""Algorithm 2, Exponentiated O2NC: any online learner as a torch optimizer.

    g_t = ∇f(x_t)                           the gradient at the iterate itself
    Δ_{t+1} = learner(g_t)                  on the losses β^{−t}⟨g_t, Δ⟩ + (μ_t/2)‖Δ‖²
    x_{t+1} = x_t + s_{t+1} Δ_{t+1}         s ~ Exp(1), one scalar for all parameters
    x̄_t, ḡ_t, V_t                           β-weighted averages: ‖∇F(x̄_t)‖_c <= ‖ḡ_t‖ + cV_t

At call t = 1, 2, … of ``step`` the parameters are x_t and ``.grad`` is g_t (x_1 = x_0, since Δ_1 = 0); the call
takes them into the averages, asks the learner and moves the parameters to x_{t+1}.
"""

from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from o2nc import checks
from o2nc.averaging import STATE, Seen, Weights, start
from o2nc.fused import Fused
from o2nc.learners import Learner, is_elementwise
from o2nc.persistence import COUNTERS, Persistent
from o2nc.scaling import ROUNDING, Exponential, Law, check_law, progress_weight, relative_weight, uniform
from o2nc.sharding import joint_norms
from o2nc.stepping import unscaling
from o2nc.torch_private import foreach_add_, foreach_mul
from o2nc.vector import real, wide

if TYPE_CHECKING:
    from o2nc.kernels.lanes import Lane


_SLICE = 1 << 24  # elements that a learner by coordinate is asked for at a time


class Active(NamedTuple):
    """The parameters that a step speaks of, as parallel lists: together one vector of R^d.

    One without a gradient now is not moved. To a learner with a joint norm its gradient is zero, since the norm is
    over all of them; other learners are not asked for it, and its state waits.
    """

    params: list[Tensor]
    xs: list[Tensor]
    gs: list[Tensor]
    states: list[dict[str, Any]]
    lrs: list[float]
    present: list[bool]
    scale: float  # undoes a scaled loss

    def take(self, at: Iterable[int]) -> "Active":
        """Return some of them."""
        at = list(at)
        return Active(*([values[i] for i in at] for values in self[:6]), self.scale)  # type: ignore[arg-type, call-arg]

    @property
    def moving(self) -> "Active":
        """Those that have a gradient."""
        return self if all(self.present) else self.take(i for i, here in enumerate(self.present) if here)

    def slices(self, size: int) -> Iterator["Active"]:
        """Cut them into runs of about so many elements."""
        at: list[int] = []
        elements = 0
        for i, x in enumerate(self.xs):
            at.append(i)
            elements += x.numel()
            if elements >= size or i == len(self.xs) - 1:
                yield self.take(at)
                at, elements = [], 0

    def move_(self, s: float) -> None:
        """Add s·Δ to the parameters."""
        foreach_add_(self.xs, self.deltas, alpha=s)

    @property
    def deltas(self) -> list[Tensor]:
        """Δ of every parameter."""
        return [state["delta"] for state in self.states]


def check_learner(learner: object) -> None:
    """Refuse ``learner`` unless it is a dataclass instance that offers lr, init and update."""
    if isinstance(learner, type) or not (isinstance(learner, Learner) and is_dataclass(learner)):
        raise TypeError(f"learner must be an online learner such as o2nc.learners.OGD(lr=0.01), got {learner!r}")


def active(optimizer: Any, learner: Learner, weights: Weights | None) -> Active | None:
    """Gather the parameters that a step speaks of, with state made where it is new; None when there is nothing to do.

    All gradients are checked before anything is touched.

    Args:
        optimizer: whose.
        learner: the online learner.
        weights: those of the iterates, this one included; None if no averages are kept.
    """
    everyone = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    for p, _ in everyone:
        if p.grad is not None:
            checks.gradient(p.grad)
    for group in optimizer.param_groups:
        optimizer._refuse_foreign(group)
    scale = unscaling(optimizer)
    if scale is None or all(p.grad is None for p, _ in everyone):
        return None
    found = Active([], [], [], [], [], [], scale)
    for p, group in everyone:
        if p.grad is None and (is_elementwise(learner) or "delta" not in optimizer.state.get(p, ())):
            continue
        x = real(p.detach())
        dtype = wide(x.dtype)
        g = torch.zeros_like(x) if p.grad is None else real(p.grad.detach())
        state = optimizer.state[p]
        if "delta" not in state:
            delta = torch.zeros_like(x, dtype=dtype)
            state.update(_initial(learner, delta), delta=delta)
        if weights is not None and "average" not in state:
            state.update(start(x, Seen(scale)(g.to(dtype), x), weights))
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


def average_(
    optimizer: Any,
    moving: Active,
    decays: tuple[float, float],
    gamma: float,
    seed: int,
    count: int,
    *,
    weight: float = 1.0,
) -> None:
    """Take x_t and g_t into the averages.

    Args:
        optimizer: whose.
        moving: the parameters that have a gradient.
        decays: log_decay of the averages before and after this iterate.
        gamma: γ_t.
        seed: of the rounding.
        count: t.
        weight: of ⟨g, Δ⟩ in the progress.
    """
    before, after = decays
    optimizer._catch_up(moving.params, before, seed, count)
    ledger = optimizer._ledger("moving", moving.params, moving.gs)
    dither = uniform(seed, count, stream=ROUNDING) - 0.5
    ledger.add_(moving.gs, moving.deltas, gamma, weight=weight, seen=Seen(moving.scale), dither=dither)
    for state in moving.states:
        state.update(rate=1.0, log_decay=after)


def play(learner: Learner, found: Active, beta: float, weight: float = 1.0) -> None:
    """Have the learner replace Δ_t by Δ_{t+1}.

    It sees gradients of at least float32. One that plays by coordinate is asked for a slice at a time, so that copies
    of half-precision gradients, and its own temporaries, never are as large as the model.
    """
    factor = weight * found.scale
    for part in found.slices(_SLICE) if is_elementwise(learner) else (found,):
        gs = [g.to(delta.dtype) for g, delta in zip(part.gs, part.deltas, strict=True)]
        if factor != 1:
            gs = list(foreach_mul(gs, factor))
        with joint_norms(part.params):
            returned = learner.update(part.deltas, gs, part.states, part.lrs, beta)  # type: ignore[func-returns-value]
        if returned is not None:
            raise TypeError(f"{type(learner).__name__}.update must change deltas in place and return None")


class ExponentiatedO2NC(Fused, Persistent):
    """Algorithm 2: learner × scaling × averaging.

    Args:
        params: parameters or parameter groups; a group may have an ``lr`` of its own, and no weight decay.
        learner: the online learner that plays the updates; ``param_groups[i]["lr"]`` starts at its ``lr``.
        beta: β in (0, 1), the discount of the losses and of the averages.
        scaling: the law of s, or None for no scaling (then no guarantee holds).
        seed: a non-negative integer; s_n is a pure function of it and n. Two optimizers of one program, as a GAN has
            them, draw the same s with the same seed: give each its own.
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
        *COUNTERS,
    )
    needed: ClassVar[tuple[str, ...]] = ("lr", "learner", "beta")
    _advice = "average=False: leave that at True when you construct it"

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
            **dict.fromkeys(COUNTERS, 0.0),
            "step": 0,
            "fused": fused,
        }
        super().__init__(params, defaults)
        self._refuse_partial()
        self._step_supports_amp_scaling = bool(fused)  # a GradScaler then leaves unscaling and skipping to the step

    @torch.no_grad()
    def _take(self) -> None:
        if self._fuse():
            return
        learner, beta, law, seed, average, step, *sums = (self.param_groups[0][key] for key in self.shared)
        t = step + 1
        weight = relative_weight(law, seed, t)
        weights, gamma = Weights(*sums).add(weight, beta if average is None else average)
        found = active(self, learner, None if average is None else weights)
        if found is None:
            return
        moving = found.moving
        if average is not None:
            decays = sums[2], weights.log_decay
            average_(self, moving, decays, gamma, seed, t, weight=progress_weight(law, seed, t))
            sums = list(weights)
        play(learner, found, beta, weight)
        moving.move_(1.0 if law is None else law.sample(seed, t + 1))
        for group in self.param_groups:
            group.update(zip(COUNTERS, (t, *sums), strict=True))
        if average is not None:
            self._keep_output(seed, t)

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
