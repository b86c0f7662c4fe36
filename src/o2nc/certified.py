"""The part of an optimizer that speaks of its averages: certificate, swap, output, progress."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from o2nc import checks
from o2nc.averaging import Ledger, Weights, catch_up_
from o2nc.certificates.certificate import Certificate
from o2nc.learners import is_elementwise
from o2nc.persistence import FRESH_AVERAGES
from o2nc.scaling import OUTPUT, ROUNDING, uniform
from o2nc.sharding import assemble, distributed_runs, is_sharded, to_part, to_whole, why_partial
from o2nc.stepping import Stepping
from o2nc.torch_private import foreach_copy_
from o2nc.vector import as_numbers, real, squares


class NoAverages(RuntimeError, AttributeError):
    """There are no averages to speak of; for a property that means, as ever in Python, that it is not there."""


class Certified(Stepping):
    """Keeps averages of the iterates and answers for them.

    State per parameter: ``average`` x̄, ``gradient`` ḡ (absent where the momentum buffer tells it), ``spread`` V,
    ``progress``, ``output``, ``rate``, by which the direction of the last update was multiplied, ``log_decay``, up to
    when all this is, and ``joined``, since when the parameter is there.
    """

    _average_key = "average"
    _nothing_yet = "nothing is averaged before the first step()"
    _advice = "average=None: pass average=0.999, say, when you construct it"
    _is_whole = False  # as far as was looked
    # state that a parameter may get after its first step: state of the same shape and dtype
    _late: ClassVar[dict[str, str]] = {}

    def _ledger(self, key: Any, params: list[Tensor], grads: list[Tensor]) -> Ledger:
        """Return the ledger of these parameters, the one laid out before if it still holds."""
        ledger = self._ledgers.get(key)
        if ledger is None or not ledger.holds(params, self.state):
            ledger = self._ledgers[key] = Ledger(params, [self.state[p] for p in params], grads)
        return ledger

    def _forget_layouts(self) -> None:
        self._ledgers.clear()

    @property
    def _ledgers(self) -> dict[Any, Ledger]:
        """The ledgers laid out so far: a cache, which copies and pickles leave behind."""
        return self.__dict__.setdefault("_ledger_cache", {})

    def _weights(self) -> Weights:
        """Return the weights of the iterates so far."""
        group = self.param_groups[0]
        return Weights(*as_numbers([group[key] for key in ("weight_sum", "weight_square_sum", "log_decay")]))

    def _catch_up(self, params: Sequence[Tensor], log_decay: float, seed: int, count: int) -> None:
        """Bring the averages of these parameters up to date, where they had no gradient for a while."""
        states = [self.state[p] for p in params]
        known = as_numbers([state["log_decay"] for state in states])
        for p, state, then in zip(params, states, known, strict=True):
            if then < log_decay:
                dither = uniform(seed, max(count, 1), stream=ROUNDING, draw=1) - 0.5
                catch_up_(real(p.detach()), state, math.exp(then - log_decay), dither)
                _note(state, rate=0.0, log_decay=log_decay)  # it has not moved

    def _catch_all_up(self, params: Sequence[Tensor] | None = None) -> None:
        """Bring all averages up to date, of parameters without a gradient at the last steps, too."""
        if params is None:
            params = [p for p, state in self.state.items() if "average" in state]
        group = self.param_groups[0]
        self._catch_up(params, self._weights().log_decay, group["seed"], int(group["step"]))

    def _absent(self) -> list[Tensor]:
        """Return the parameters that have averages but no gradient now."""
        params = [p for group in self.param_groups for p in group["params"]]
        return [p for p in params if p.grad is None and "average" in self.state.get(p, ())]

    def _keep_own_gradient(self, state: dict[str, Any]) -> None:
        """Give a parameter a ḡ of its own where so far the momentum buffer told it."""
        if "gradient" not in state:
            state["gradient"] = real(state["momentum_buffer"]) / self.param_groups[0]["weight_sum"]
            self._ledgers.clear()

    @torch.no_grad()
    def _keep_output(self, seed: int, count: int) -> None:
        """Reservoir of size one: keep the count-th average in place of the kept one with probability 1/count.

        After N calls the kept average is uniform over the N: the output of Algorithms 1 and 2. A parameter that came
        later keeps its first average, since until then it stood still.
        """
        replace = uniform(seed, count, stream=OUTPUT) * count < 1
        if replace:
            self._catch_all_up()
        states = [state for state in self.state.values() if "average" in state]
        for state in states:
            if "output" not in state:
                state["output"] = state["average"].clone()
        if replace:
            foreach_copy_([s["output"] for s in states], [s["average"] for s in states])

    def _squares_and_spreads(self, states: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        """Return ‖ḡ‖² and V of every parameter, as two tensors on the device."""
        # where there is no ḡ the momentum buffer is Σβ^{n−t}g_t
        told = ["gradient" not in state for state in states]
        means = [real(s["momentum_buffer"]) if t else s["gradient"] for s, t in zip(states, told, strict=True)]
        found = squares(means)
        if any(told):
            total = torch.as_tensor(self.param_groups[0]["weight_sum"], dtype=torch.float64, device=found.device)
            found = torch.where(torch.tensor(told, device="cpu").to(found.device), found / total.square(), found)
        return found, torch.stack([state["spread"].to(found.device) for state in states])

    def _ess(self, states: list[dict[str, Any]]) -> list[float]:
        """Return every parameter's effective sample size."""
        weights = self._weights()
        return [weights.ess(joined) for joined in as_numbers([state["joined"] for state in states])]

    def _not_begun(self) -> set[int]:
        """Return the ids of states whose averages wait for a first step: all so far were called off."""
        states = [state for state in self.state.values() if isinstance(state.get("fresh"), Tensor)]
        flags = as_numbers([state["fresh"] for state in states])
        return {id(state) for state, flag in zip(states, flags, strict=True) if int(flag) & FRESH_AVERAGES}

    def _averages(self, asked: str, key: str) -> list[tuple[str | int, Tensor, dict[str, Any]]]:
        """Return name, parameter and state of all that have averages, or say why there are none."""
        if self.param_groups[0].get("average", 0.0) is None:
            raise NoAverages(f"{asked} needs averages, and this optimizer was made with {self._advice}")
        found: list[tuple[str | int, Tensor, dict[str, Any]]] = []
        waiting = self._not_begun()
        taken: set[str | int] = set()
        i = 0
        for group in self.param_groups:
            names = group.get("param_names", range(i, i + len(group["params"])))
            for name, p in zip(names, group["params"], strict=True):
                if key in self.state.get(p, {}) and id(self.state[p]) not in waiting:
                    found.append((i if name in taken else name, p, self.state[p]))
                    taken.add(name)
                i += 1
        if not found or self.param_groups[0]["step"] == 0:
            raise NoAverages(f"{asked}: {self._nothing_yet}")
        return found

    @torch.no_grad()
    def certificate(self, c: float = 1.0) -> Certificate:
        """Return ‖ḡ‖ + c·V, an upper bound on ‖∇F(x̄)‖_c when the gradients are full ones.

        Args:
            c: the price of spread, > 0.

        Returns:
            The certificate of all parameters together; ``.by_parameter`` has every one's own.
        """
        checks.positive("c", c)
        c = float(c)
        with self._home():
            averages = self._averages("certificate()", self._average_key)
            params, states = [p for _, p, _ in averages], [state for _, _, state in averages]
            self._catch_all_up(params)
            parts = self._totals(torch.stack(self._squares_and_spreads(states)), params)
            numbers = zip(*parts, self._ess(states), strict=True)
        by_parameter: dict[str | int, Certificate] = {
            name: Certificate(c, square**0.5, spread, ess)
            for (name, _, _), (square, spread, ess) in zip(averages, numbers, strict=True)
        }
        ess = min(part.ess for part in by_parameter.values())
        return Certificate(c, math.fsum(parts[0]) ** 0.5, math.fsum(parts[1]), ess, by_parameter)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put x̄ into the parameters inside a ``with`` block and restore them bitwise on leaving it.

        Changes made to the parameters inside are lost; ``step()`` inside is refused. Buffers are not averaged:
        with BatchNorm, evaluate inside `o2nc.recalibrated` as well.
        """
        with self._home():
            averages = self._averages("averaged()", self._average_key)
            self._catch_all_up([p for _, p, _ in averages])
        backup = [p.detach().clone() for _, p, _ in averages]
        self._swaps.append(self)
        try:
            for _, p, state in averages:
                real(p.detach()).copy_(state[self._average_key])
            yield
        finally:
            self._swaps.pop()
            with ExitStack() as restore:  # all of them, even if one cannot be
                for (_, p, _), saved in zip(averages, backup, strict=True):
                    restore.callback(p.detach().copy_, saved)

    def _refuse_partial(self) -> None:
        """Refuse parameters whose other parts are out of reach, where norms or certificates need them."""
        group = self.param_groups[0]
        learner = group.get("learner")
        if group.get("average", 0.0) is None and (learner is None or is_elementwise(learner)):
            return
        reason = why_partial(self._listed)
        if reason is not None:
            raise ValueError(
                f"{type(self).__name__} would average, certify and measure norms for every process alone, since it "
                f"has only a part of the parameters: {reason}; without averages, learners by coordinate work"
            )

    def _keep_listed(self) -> bool:
        exchanged = super()._keep_listed()
        if exchanged or not self._is_whole:
            self._refuse_partial()  # once more: FSDP1 may have wrapped the model since
            self._is_whole = True
        return exchanged

    def _check_state(self) -> None:
        if self._swaps:
            raise RuntimeError("step() inside averaged(): the parameters hold x̄ there; leave the with block first")

    def output(self) -> list[Tensor]:
        """Return x̄_n for a uniformly drawn n: the output that the theorems speak of.

        Returns:
            A copy for every parameter, in the order of the parameter groups; a parameter that never had a
            gradient is returned as it stands.
        """
        with self._home():
            self._averages("output()", "output")
        result = []
        for p in self._listed:
            kept = self.state.get(p, {}).get("output")
            if kept is None:
                result.append(p.detach().clone())
                continue
            kept = torch.view_as_complex(kept.clone()) if p.is_complex() else kept.clone()
            result.append(assemble(p, kept) if is_sharded(p) else kept)
        return result

    @property
    def progress(self) -> float:
        """Σ w(s_n)⟨g_n, Δ_n⟩, an unbiased estimate of F(x_n) − F(x_0) that cost no evaluation of F.

        Its noise adds up over the steps: with minibatches or long steps one run's value can be far off.
        """
        with self._home():
            averages = self._averages("progress", "progress")
            gains = [state["progress"] for _, _, state in averages]
            together = torch.stack([gain.to(gains[0].device) for gain in gains])
            return math.fsum(self._totals(together, [p for _, p, _ in averages]))

    def _totals(self, values: Tensor, params: list[Tensor]) -> Any:
        """Return sums over coordinates as numbers, over all processes that have a shard.

        Args:
            values: one row of numbers, or several; a column for each parameter.
            params: the parameters.
        """
        if self._shards is not None:
            rows = [self._shards.total(row, params) for row in values.reshape(-1, len(params))]
            values = torch.stack(rows).reshape(values.shape)
        return values.tolist()

    def _to_saved(self, p: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        # torch.distributed.checkpoint loads the keys that one step makes, into the tensors that are there: they must
        # be those of any checkpoint, with memory of their own. Without processes zeros need none
        blank = [key for key in self._late if "average" in state and key not in state]
        for key in blank:
            like = state[self._late[key]]
            zeros = torch.zeros_like(like) if distributed_runs() else like.new_zeros(()).expand(like.shape)
            state = state | {key: zeros}
        if self._late and "average" in state:
            state["blank"] = bool(blank)
        return to_whole(p, state, self._shards) if self._shards is not None and is_sharded(p) else state

    def _from_saved(self, p: Tensor, state: dict[str, Any]) -> dict[str, Any]:
        state = to_part(p, state) if is_sharded(p) else state
        gone = {"blank", *self._late} if state.get("blank") else {"blank"}
        return {key: value for key, value in state.items() if key not in gone}


def _note(state: dict[str, Any], **numbers: float) -> None:
    """Write numbers into a state, on the device where they live there."""
    for key, value in numbers.items():
        if isinstance(state[key], Tensor):
            state[key].fill_(value)
        else:
            state[key] = value


def certified(optimizer: Any) -> Certified:
    """Return the optimizer of o2nc that a framework may have wrapped, as accelerate and Lightning do.

    Raises:
        TypeError: it is none that certifies.
        ValueError: it keeps no averages.
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Certified):
        raise TypeError(
            "optimizer must be one that certifies, such as o2nc.ScaledSGDM(…, average=0.999), "
            f"got {type(optimizer).__name__}"
        )
    if optimizer.param_groups[0].get("average", 0.0) is None:
        raise ValueError(f"optimizer keeps no averages, it was made with {optimizer._advice}")
    return optimizer


def has_averages(optimizer: Certified) -> bool:
    """Say whether there is anything to certify: a step was made, and with `OriginalO2NC` a block is complete."""
    begun = any(optimizer._average_key in state for state in optimizer.state.values())
    return begun and int(optimizer.param_groups[0]["step"]) > 0
