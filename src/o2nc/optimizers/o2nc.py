"""Algorithms 1 and 2: any online learner as a torch optimizer.

Algorithm 2, Exponentiated O2NC:

    g_t = ∇f(x_t)                           the gradient at the iterate itself
    Δ_{t+1} = learner(g_t)                  on the losses β^{−t}⟨g_t, Δ⟩ + (μ_t/2)‖Δ‖²
    x_{t+1} = x_t + s_{t+1} Δ_{t+1}         s ~ Exp(1), one scalar for all parameters
    x̄_t, ḡ_t, V_t                           β-weighted averages: ‖∇F(x̄_t)‖_c <= ‖ḡ_t‖ + cV_t

At call t = 1, 2, … of ``step`` the parameters are x_t and ``.grad`` is g_t (x_1 = x_0, since Δ_1 = 0).

Algorithm 1, the original O2NC (Cutkosky, Mehta and Orabona 2023):

    x_n = x_{n−1} + Δ_n,   w_n = x_{n−1} + s_n Δ_n,   s_n ~ U[0, 1],   g_n = ∇f(w_n)

and the output is uniform over the averages w̄_k of blocks of ``period`` consecutive w's. The paper's listing takes the
gradient at x_n; the identity F(x_n) − F(x_{n−1}) = E⟨∇F(w_n), Δ_n⟩ needs it at w_n. The parameters hold w_n, and x_n
needs no buffer, since s_n can be drawn again: w_{n+1} = w_n + (1 − s_n)Δ_n + s_{n+1}Δ_{n+1}.
"""

from contextlib import nullcontext
from dataclasses import is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.averages.update import AVERAGES, Entry, Iterate, Row
from o2nc.averages.windows import Average, Blocks
from o2nc.fused import engine
from o2nc.fused.rule import DECAYED, DeviceRule
from o2nc.laws import Uniform
from o2nc.learners import Learner
from o2nc.optimizers.paper import Paper, in_slices
from o2nc.persist.plain import KEY, to_dict
from o2nc.persist.private import foreach_add_, foreach_mul_
from o2nc.scaling import Exponential, Law
from o2nc.vector import completed, number, total, wide

_RESERVED = frozenset((*AVERAGES, "since", "output", "progress", "rate", "update", "delta"))


class Learned(Paper):
    """Steps by an online learner, which sees all parameters that have gradients as one vector of R^d."""

    numbers = ("lr",)
    owns_state = True
    keeps_delta = False  # whether Δ is stored even if the learner can recover it from its other state
    unsupported_keys = frozenset(("momentum", "dampening", "nesterov", "betas"))

    def __init__(
        self, params: Any, learner: Learner, options: dict[str, Any], own: dict[str, Any], **kwargs: Any
    ) -> None:
        if isinstance(learner, type) or not (isinstance(learner, Learner) and is_dataclass(learner)):
            raise TypeError(f"learner must be an online learner such as o2nc.learners.OGD(lr=0.01), got {learner!r}")
        super().__init__(params, {"lr": learner.lr, **options}, **kwargs)
        self.param_groups[0][KEY] |= {"learner": to_dict(learner), **own}
        self._read_settings()
        self._refuse_partial()

    def _needs_all_params(self) -> bool:
        has_joint_norm = self._learner is not None and not is_elementwise(self._learner)
        return super()._needs_all_params() or has_joint_norm

    @torch.no_grad()
    def _move(self, iterate: Iterate, closure: Any = None) -> None:
        """Ask the learner for Δ_{t+1}, and set x ← x + sΔ_{t+1}.

        A parameter without a gradient is not moved. A learner with a joint norm sees a gradient of zero for it; other
        learners skip it.
        """
        s = 1.0 if iterate.draw.s is None else iterate.draw.s
        by_coordinate, key = is_elementwise(self._learner), self._learner_key()
        rows = [row for row in iterate.rows if row.g is not None or (not by_coordinate and key in row.entry)]
        for row in rows:
            if key not in row.entry:
                self._begin_state(row)
        self._decay([row for row in rows if row.g is not None], s)
        for some in in_slices(rows) if by_coordinate else [rows]:
            self._apply_learner(some, s)
        for row in iterate.rows:
            if "rate" in row.entry:
                row.entry["rate"].fill_(float(row.g is not None))

    def _keeps_delta(self) -> bool:
        return self.keeps_delta or not getattr(self._learner, "recalls", False)

    def _learner_key(self) -> str:
        """Return an entry that every parameter with learner state has."""
        return "delta" if self._keeps_delta() else _first_key(self._learner)

    def _begin_state(self, row: Row) -> None:
        """Give a parameter the learner's state; raise where its names would collide with ours."""
        delta = torch.zeros_like(row.x, dtype=wide(row.x.dtype))
        state, name = self._learner.init(delta), type(self._learner).__name__
        if not isinstance(state, dict):
            raise TypeError(f"{name}.init must return a dict of tensors and numbers, got {state!r}")
        taken = sorted(key for key in state if key.removeprefix("last_") in _RESERVED)
        if taken:
            raise ValueError(f"{name}.init must not use the names {taken}: the optimizer keeps its own state there")
        row.entry.update(state | ({"delta": delta} if self._keeps_delta() else {}))

    def _apply_learner(self, rows: list[Row], s: float) -> None:
        """Let the learner replace Δ_t by Δ_{t+1}, then add it; gradients are passed in at least float32."""
        learner, key, params = self._learner, self._learner_key(), [row.param for row in rows]
        entries, lrs = [row.entry for row in rows], [float(row.group["lr"]) for row in rows]
        deltas = [entry["delta"] if key == "delta" else torch.empty_like(entry[key]) for entry in entries]
        beta = self.param_groups[0][KEY]["beta"]
        with completed(lambda values: total(values, params)) if self._is_sharded else nullcontext():
            if learner.update(deltas, self._rule_gradients(rows), entries, lrs, beta) is not None:
                raise TypeError(f"{type(learner).__name__}.update must change deltas in place and return None")
        moved = [(row.x, delta) for row, delta in zip(rows, deltas, strict=True) if row.g is not None]
        foreach_add_([x for x, _ in moved], [delta for _, delta in moved], alpha=s)

    def _decay(self, rows: list[Row], s: float) -> None:
        """Set x ← x − s·lr·λx, and store s and lr·λ for the progress; also at lr = 0, when DCP creates state."""
        decays = any(group.get("weight_decay") for group in self.param_groups)
        if not decays and not any(DECAYED[0] in row.entry for row in rows):
            return
        pulls = [float(row.group["lr"]) * row.group.get("weight_decay", 0.0) for row in rows]
        foreach_mul_([row.x for row in rows], [1 - s * pull for pull in pulls])
        for row, pull in zip(rows, pulls, strict=True):
            for key, value in zip(DECAYED, (-s, -pull), strict=True):
                row.entry.setdefault(key, number()).fill_(value)

    def _rule_gradients(self, rows: list[Row]) -> list[Tensor]:
        found, key = [], self._learner_key()
        for row in rows:
            like = row.entry[key]
            g = torch.zeros_like(like) if row.g is None else row.g.detach().to(like.dtype)
            found.append(-g if row.group.get("maximize") else g)
        return found

    def _directions(self, rows: list[Row]) -> list[Tensor]:
        """Return Δ_t, with the weight decay that was part of it."""
        entries, found = [row.entry for row in rows], []
        deltas = [e["delta"] for e in entries] if self._keeps_delta() else self._learner.last_updates(entries)
        for row, delta in zip(rows, deltas, strict=True):
            move, decay = (float(row.entry.get(key, 0.0)) for key in DECAYED)
            if decay:  # of x one step ago, which is (x + move·Δ)/(1 − move·decay)
                delta = torch.add(delta, row.x.to(delta.dtype), alpha=decay).div_(1 - move * decay)
            found.append(delta)
        return found


class ExponentiatedO2NC(Learned):
    """Algorithm 2: learner × scaling × averages.

    Args:
        params: parameters or parameter groups; a group may have an ``lr`` and a ``weight_decay`` of its own.
        learner: the online learner that chooses the updates; ``param_groups[i]["lr"]`` starts at its ``lr``.
        beta: β in (0, 1), the discount of the losses and of the averages.
        scaling: the law of s, or None for no scaling (then no guarantee holds).
        seed: as in `o2nc.extend`.
        average: the window of x̄, ḡ and V: True is Algorithm 2's, with β; a number in (0, 1) or a window such as
            `o2nc.Polynomial` is another; False or None saves the memory of x̄, ḡ and the kept output.
        fused: one pass over memory on a GPU; None takes it where it applies, True insists on it.
        weight_decay: λ >= 0, decoupled as in AdamW: Δ becomes Δ − lr·λx, with the group's lr, and gradients stay
            those of F. The lr of `ScaleFree` is smaller than Adam's; its λ is to be as much larger.
        maximize: maximise F instead of minimising it.
        output: as in `ScaledSGDM`.

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

    shared_options = frozenset(("learner", "beta", "scaling", "seed", "average", "output"))
    advice = "average=False: leave that at True when you construct it"

    def __init__(
        self,
        params: Any,
        learner: Learner,
        *,
        beta: float = 0.99,
        scaling: Law | None = Exponential(),
        seed: int = 0,
        average: bool | Average = True,
        fused: bool | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
        output: str = "uniform",
    ) -> None:
        checks.non_negative("weight_decay", weight_decay)
        checks.flag("maximize", maximize)
        checks.fraction("beta", beta)
        if fused is not None:
            checks.flag("fused", fused)
        if isinstance(average, bool):
            average = float(beta) if average else None
        options = {"weight_decay": weight_decay, "maximize": maximize, "fused": fused}
        factors = {"scaling": scaling, "seed": seed, "average": average, "output": output}
        super().__init__(params, learner, options, {"beta": float(beta)}, **factors)

    def _rule_for_kernels(self) -> DeviceRule | None:
        demanded = any(group["fused"] for group in self.param_groups)
        refused = any(group["fused"] is False for group in self.param_groups)
        here = any(p.device.type in engine.DEVICES for p in self.param_groups[0]["params"][:1])
        form = getattr(self._learner, "device_rule", "") if is_elementwise(self._learner) else ""
        if not demanded and (refused or not here or not form):
            return None
        return DeviceRule(form, (self._learner, self.param_groups[0][KEY]["beta"]))


class OriginalO2NC(Learned):
    """Algorithm 1: gradients between the iterates, averages over blocks.

    ``averaged()``, ``certificate()`` and ``output()`` speak of completed blocks, with uniform weights.

    Args:
        params: parameters or parameter groups; a group may have an ``lr`` of its own.
        learner: an online learner, as a rule one on a ball, such as `BallOGD`.
        period: T >= 1, the length of a block.
        seed: a non-negative integer.
        restart: start every block with a new learner, as the theorem for Algorithm 1 has it.

    Example:
        >>> import torch, o2nc
        >>> x = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> opt = o2nc.OriginalO2NC([x], o2nc.learners.BallOGD(lr=0.005, radius=0.02), period=50)
        >>> for _ in range(500):
        ...     opt.zero_grad()
        ...     x.abs().sum().backward()
        ...     opt.step()
        >>> opt.certificate(c=1.0).value < 1.0
        True
    """

    shared_options = frozenset(("learner", "period", "seed", "restart"))
    unsupported_keys = Learned.unsupported_keys | {"weight_decay", "maximize"}
    keeps_delta = True
    weighs_progress = False  # s is uniform on the way from x_{t−1} to x_t: the identity needs no weight

    def __init__(self, params: Any, learner: Learner, *, period: int, seed: int = 0, restart: bool = False) -> None:
        checks.integer("period", period, 1)
        checks.flag("restart", restart)
        own, window, law = {"beta": 1.0, "restart": restart}, Blocks(int(period)), Uniform(0, 1)
        super().__init__(params, learner, {}, own, average=window, scaling=law, seed=seed)

    @torch.no_grad()
    def _update_averages(self, iterate: Iterate) -> dict[Any, Entry]:
        """Copy the averages of a complete block before the next block overwrites them."""
        if self._window is not None and self._window.complete(iterate.t - 1) and iterate.turn.counts:
            for entry in (row.entry for row in iterate.rows if "average" in row.entry):
                for key in AVERAGES:
                    entry[f"last_{key}"].copy_(entry[key])
        return super()._update_averages(iterate)

    def _new_entry(self, p: Any, entry: Entry) -> Entry:
        return super()._new_entry(p, entry) | {f"last_{key}": entry[key].clone() for key in AVERAGES}

    @torch.no_grad()
    def _move(self, iterate: Iterate, closure: Any = None) -> None:
        """Set w_{t+1} = w_t + (1 − s_t)Δ_t + s_{t+1}Δ_{t+1}."""
        settings = self.param_groups[0][KEY]
        moved = [row for row in iterate.rows if row.g is not None and "delta" in row.entry]
        if moved:
            rest = 1 - self._law.sample(settings["seed"], iterate.t)
            foreach_add_([row.x for row in moved], [row.entry["delta"] for row in moved], alpha=rest)
        if settings["restart"] and iterate.turn.complete:
            for row in iterate.rows:
                self._begin_state(row)  # Δ = 0
        else:
            super()._move(iterate)
        for row in iterate.rows:
            if row.g is None and "delta" in row.entry:
                row.entry["delta"].zero_()  # it stays at w_t, which so becomes its x_t


@cache
def _first_key(learner: Any) -> str:
    """Return the name of the learner's first state, which has the parameter's shape."""
    return next(iter(learner.init(torch.zeros(1, device="cpu"))))


def is_elementwise(learner: Any) -> bool:
    """Return whether the learner treats every coordinate separately."""
    return getattr(learner, "elementwise", False)
