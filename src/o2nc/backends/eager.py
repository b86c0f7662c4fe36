"""The step as the algorithm has it, operation by operation, on any device.

    gradient → averages → learner → scaling → parameters

`Eager.take` is that line. The rest of the file is about speed on a CPU: small tensors are packed into one, so that a
step takes a handful of operations however many there are, and large ones go through the cache in blocks.
"""

from collections.abc import Iterator
from functools import partial
from operator import is_
from typing import Any, TypeAlias

import torch
from torch import Tensor

from o2nc import presence
from o2nc.averages import COUNTERS, Coupling, Iterate, inner, move_, segments, widen_
from o2nc.backends.host import copy_on_host
from o2nc.scaling import ROUNDING, uniform
from o2nc.step import Draw, Part, Step, draw
from o2nc.torch_support.compiling import refuse_capture
from o2nc.torch_support.private import flatten, foreach_copy_
from o2nc.vector import real, wide

_SMALL = 1 << 14  # elements up to which a tensor is packed with others
_CPU_BLOCK = 1 << 19  # a block and its temporaries stay in the cache
_DEVICE_BLOCK = 1 << 24  # elsewhere blocks only bound the temporaries

Lists: TypeAlias = tuple[list[Tensor], list[Tensor], list[Tensor]]  # x, g and u of some blocks


class Eager:
    """Carries out the steps of one optimizer, and keeps what it has packed for the next."""

    def __init__(self) -> None:
        self._packings: dict[Any, Packing] = {}

    def forget(self) -> None:
        """Let go of what was packed; the state itself is the optimizer's."""
        self._packings.clear()

    def take(self, step: Step) -> None:
        """Take one step; without gradients, and after a GradScaler's overflow, nothing is consumed."""
        if torch.cuda.is_initialized():
            refuse_capture(step.owner, step.law, step.window)
        if step.found_inf is not None and step.found_inf.item():
            return
        parts = _parts(step)
        if not parts:
            return
        first, window = step.groups[0], step.window
        t = first["step"] + 1
        counters: dict[str, Any] = {"step": t}
        if window is None:
            if first.get("averaged"):
                presence.end(step.groups, step.state.values())
                self.forget()
            drawn = draw(step.law, step.seed, t, averaged=False)
            for part in parts:
                part.move_(drawn)
        else:
            n = t if step.block is not None else first["averaged"] + 1  # iterates, this one included
            count = step.block if step.block is not None else max(n - window.start, 1)  # of averages to draw from
            drawn = draw(step.law, step.seed, t, count=count, settling=step.settling)
            if step.between:  # the gradient is at a uniform point of the way: its identity needs no weight
                drawn = drawn._replace(progress_weight=1.0)
            before = window.weights(first)
            after, gamma = window.advance(before, n, drawn.weight)
            for part in parts:
                _begin(part, after, is_start=t == 1, certificate=step.certificate)
                _catch_up(part.params, part.states, before.log_decay, step.seed, t)
                blocks = self._packing(part, step.state).add_(part, gamma, drawn)
                if part.in_blocks:
                    for x, g, u in blocks:
                        rate = part.move_block_(x, g, u, drawn)
                else:
                    for _ in blocks:
                        pass
                    rate = part.move_(drawn)
                for state in part.states:
                    state["rate"] = rate
                    state["log_decay"] = after.log_decay
            waits = drawn.renews or bool(first.get("pending"))  # for the average that the output is
            if step.block is None:  # else the step says it all
                counters |= zip(COUNTERS, (*after, n, int(waits and not drawn.settles)), strict=True)
        for group in step.groups:
            group.update(counters)
        if window is not None and count:
            _keep_output(step, t, after.log_decay, keeps=waits and drawn.settles)

    def begin(self, step: Step) -> None:
        """Begin the averages of parameters that are new, at an iterate that is not taken in."""
        assert step.window is not None
        weights = step.window.weights(step.groups[0])
        for part in _parts(step):
            _begin(part, weights, is_start=False, certificate=step.certificate)

    def _packing(self, part: Part, owner: dict[Tensor, Any]) -> "Packing":
        """Return the packing of these parameters, the one made before if it still holds."""
        packing = self._packings.get(part.key)
        if packing is None or not packing.holds(part.params, owner):
            packing = self._packings[part.key] = Packing(part)
        return packing


def _parts(step: Step) -> list[Part]:
    """Return the parameters that have gradients, by group."""
    return list(step.rule.parts(step, 1.0 if step.grad_scale is None else 1 / step.grad_scale.item()))


def _begin(part: Part, weights: Any, is_start: bool, certificate: bool) -> None:
    """Begin the averages of parameters that are new."""
    for p, g, state in zip(part.params, part.grads, part.states, strict=True):
        if "average" not in state:
            with torch.no_grad():
                x = real(p)
                dtype = wide(x.dtype)
                # from the very first step on, and in a dtype that an average can be kept in
                in_buffer = part.reads_buffer and is_start and dtype == x.dtype
                in_buffer = in_buffer and state.get("momentum_buffer") is None
                gradient = None if in_buffer or not certificate else part.coupling(real(g).to(dtype), x)
                state.update(presence.begin(x, gradient, weights))


def _catch_up(params: list[Tensor], states: list[dict[str, Any]], log_decay: float, seed: int, t: int) -> None:
    """Bring the averages of parameters up to date that were without a gradient for a while."""
    if any(state["log_decay"] < log_decay for state in states):
        presence.catch_up_(params, states, log_decay, uniform(seed, t, stream=ROUNDING, draw=1) - 0.5)


@torch.no_grad()
def _keep_output(step: Step, t: int, log_decay: float, *, keeps: bool) -> None:
    """Keep this average in place of the kept one if it is the output that was drawn.

    A parameter that came later keeps its first average, since until then it stood still.
    """
    known = {p: state for p, state in step.state.items() if "average" in state}
    if keeps or step.block or step.is_thinned:
        _catch_up(list(known), list(known.values()), log_decay, step.seed, t)
    for state in known.values():
        if "output" not in state:
            state["output"] = copy_on_host(state["average"])
        if step.block:
            norm = torch.linalg.vector_norm(state["gradient"], dtype=torch.float64)
            state["block_gradient_squared"] = norm.square()
            state["block_spread"] = state["spread"].clone()
            state["block_average"] = state["average"].clone()
    if keeps and known:
        foreach_copy_([s["output"] for s in known.values()], [s["average"] for s in known.values()])


class Packing:
    """The averages of parameters that step together, laid out once and used as long as they do.

    State stays keyed by parameter; the entries of small parameters become views of a few flat vectors. The packing
    holds no state of its own: dropping it costs only the time to make the next.
    """

    def __init__(self, part: Part) -> None:
        self.params, self.states = part.params, part.states
        kinds: dict[Any, list[int]] = {}
        for i, (p, state, g) in enumerate(zip(part.params, part.states, part.grads, strict=True)):
            kinds.setdefault((p.dtype, g.dtype, p.device, "gradient" in state), []).append(i)
        self._bunches = [_Bunch(indices, [self.states[i] for i in indices]) for indices in kinds.values()]
        self._views = _packed(self.states)
        self._has_complex = any(p.is_complex() for p in part.params)

    def holds(self, params: list[Tensor], owner: dict[Tensor, Any]) -> bool:
        """Say whether the packing is of these parameters and their state is still as it was packed."""
        return (
            len(params) == len(self.params)
            and all(map(is_, params, self.params))
            and all(map(is_, map(owner.get, params), self.states))
            and all(map(is_, self._views, _packed(self.states)))
        )

    @torch.no_grad()
    def add_(self, part: Part, gamma: float, drawn: Draw) -> Iterator[Lists]:
        """Take the parameters as they are now, and their gradients, into the averages.

        Yields x, g and u of every pack, or run of blocks, after its turn: they may be moved while in the cache.
        """
        xs, gs, us = self.params, part.grads, part.updates
        if self._has_complex:
            xs, gs = [real(p) for p in xs], [real(g) for g in gs]
            us = None if us is None else [real(u) for u in us]
        for bunch in self._bunches:
            yield from bunch.add_(xs, gs, us, gamma, drawn, part.coupling)


class _Bunch:
    """The parameters of one packing that share dtype and device: first the small ones, then the large."""

    def __init__(self, indices: list[int], states: list[dict[str, Any]]) -> None:
        sizes = [state["average"].numel() for state in states]
        order = sorted(range(len(states)), key=lambda k: sizes[k] > _SMALL)
        self.indices = [indices[k] for k in order]
        self.states = [states[k] for k in order]
        self.n_small = sum(n <= _SMALL for n in sizes)
        self.spread = _as_views(self.states, "spread")
        self.progress = _as_views(self.states, "progress")
        device = self.spread.device
        if self.n_small:
            small = self.states[: self.n_small]
            self.x_mean = _as_views(small, "average")
            self.g_mean = _as_views(small, "gradient") if "gradient" in small[0] else None
            lengths = torch.tensor([state["average"].numel() for state in small], device="cpu").to(device)
            self.inner = partial(segments, lengths)
        # A fresh temporary costs a CPU more than the arithmetic on it; elsewhere the allocator keeps them at hand.
        on_cpu = device.type == "cpu"
        self.block = _CPU_BLOCK if on_cpu else _DEVICE_BLOCK
        room = min(self.block, max(sizes)) if on_cpu and self.n_small < len(states) else 0
        self.scratch = [torch.empty(room, dtype=states[0]["average"].dtype, device=device) for _ in range(3)]
        self._counts: tuple[list[int], Tensor | None] = ([], None)

    def add_(
        self,
        xs: list[Tensor],
        gs: list[Tensor],
        us: list[Tensor] | None,
        gamma: float,
        drawn: Draw,
        coupling: Coupling,
    ) -> Iterator[Lists]:
        """Take this iterate in: the pack of small parameters, the blocks of large ones, then the sums."""
        squares, slopes = [], []
        if self.n_small:
            at = self.indices[: self.n_small]
            x, g = [xs[i] for i in at], [gs[i] for i in at]
            u = None if us is None else [us[i] for i in at]
            pack = Iterate(_flat(x), _flat(g), None if u is None else _flat(u), self.x_mean, self.g_mean)
            square, slope = move_(pack, gamma, coupling, self.inner, dither=drawn.dither)
            squares.append(square)
            slopes.append(slope)
        sums: list[tuple[Tensor, Tensor]] = []
        counts: list[int] = []
        waiting: list[Iterate] = []
        for i, state in zip(self.indices[self.n_small :], self.states[self.n_small :], strict=True):
            whole = Iterate(xs[i], gs[i], None if us is None else us[i], state["average"], state.get("gradient"))
            flat = all(t is None or t.is_contiguous() for t in whole)
            blocks = whole.split(self.block) if flat else [whole]
            counts.append(len(blocks))
            for block in blocks:
                scratch = [t[: block.x.numel()] for t in self.scratch] if flat and len(self.scratch[0]) else None
                sums.append(move_(block, gamma, coupling, torch.dot if flat else inner, scratch, drawn.dither))
                waiting.append(block)
                if us is not None and sum(b.x.numel() for b in waiting) >= self.block:
                    yield _columns(waiting)
                    waiting = []
        if us is not None and waiting:
            yield _columns(waiting)
        if sums:
            squares.append(self._by_parameter([square for square, _ in sums], counts))
            slopes.append(self._by_parameter([slope for _, slope in sums], counts))
        widen_(self.spread, torch.cat(squares), gamma)
        if us is not None:  # the progress grows by rate·⟨g, u⟩
            rates = [state["rate"] * drawn.progress_weight for state in self.states]
            if all(rate == rates[0] for rate in rates):
                self.progress.add_(torch.cat(slopes), alpha=rates[0])
            else:
                moved = torch.tensor(rates, dtype=torch.float64, device="cpu").to(self.progress.device)
                self.progress.add_(torch.where(moved == 0, 0.0, moved * torch.cat(slopes)))
        if self.n_small and u is not None:
            yield x, g, u

    def _by_parameter(self, sums: list[Tensor], counts: list[int]) -> Tensor:
        """Add up the sums of the blocks of every parameter, in a fixed order."""
        if self._counts[0] != counts or self._counts[1] is None:
            self._counts = (counts, torch.tensor(counts, device="cpu").to(self.spread.device))
        return torch.segment_reduce(torch.stack(sums).double(), "sum", lengths=self._counts[1], unsafe=True)


def _columns(blocks: list[Iterate]) -> Lists:
    return [b.x for b in blocks], [b.g for b in blocks], [b.u for b in blocks]  # type: ignore[misc]


def _flat(tensors: list[Tensor]) -> Tensor:
    if all(t.dim() == 1 for t in tensors):
        return torch.cat(tensors)
    return flatten(tensors)


def _packed(states: list[dict[str, Any]]) -> list[Any]:
    return [state.get(key) for key in ("average", "gradient", "spread", "progress") for state in states]


def _as_views(states: list[dict[str, Any]], key: str) -> Tensor:
    """Make ``state[key]`` of all states views of one flat vector, and return it."""
    shapes = [state[key].shape for state in states]
    flat = torch.cat([state[key].reshape(-1) for state in states])
    pieces = flat.split([shape.numel() for shape in shapes])
    for state, piece, shape in zip(states, pieces, shapes, strict=True):
        state[key] = piece.view(shape)
    return flat
