"""The tables of one device: where every tensor lies, what its numbers are, and what runs over them."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from o2nc import checks
from o2nc.averaging import NUMBERS
from o2nc.kernels import passes
from o2nc.kernels.lanes import Lane
from o2nc.kernels.launch import Chain, launches
from o2nc.kernels.laws import DeviceLaw
from o2nc.kernels.live import Live
from o2nc.kernels.rules import Rule
from o2nc.scaling import OUTPUT, ROUNDING, S, seed_key
from o2nc.torch_private import same_pointers
from o2nc.vector import wide

CHUNK, BLOCK = 1024, 512  # elements of a program, and at a time: measured, larger ones are slower

_TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
DTYPES = frozenset(_TYPES)
_NOWHERE = 16  # the address of a gradient without elements, which nobody reads


class Counters(NamedTuple):
    """The step counter and the sums of the weights, as tensors of one number."""

    step: Tensor
    weight_sum: Tensor
    weight_square_sum: Tensor
    log_decay: Tensor

    @classmethod
    def on(cls, device: torch.device, values: Sequence[Any]) -> "Counters":
        """Bring numbers or tensors to a device; tensors that are there already stay the same."""
        dtypes = (torch.int64, torch.float64, torch.float64, torch.float64)
        return cls(*(torch.as_tensor(v, dtype=d, device=device) for v, d in zip(values, dtypes, strict=True)))


def is_dense(x: Tensor) -> bool:
    """Say whether the elements fill one stretch of memory, in whatever order."""
    expected = 1
    for stride, size in sorted((st, n) for st, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride != expected:
            return x.numel() == 0
        expected *= size
    return True


def laid_like(x: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``value`` itself if it lies in memory as x does, else a copy that does."""
    if value.dtype == dtype and value.device == x.device and (value.stride() == x.stride() or x.numel() == 0):
        return value
    return torch.empty_like(x, dtype=dtype).copy_(value)


class Layout:
    """The parameters of one device, laid out once and used until something is no longer where it was."""

    def __init__(
        self,
        lanes: list[Lane],
        rule: Rule,
        law: DeviceLaw,
        seed: int,
        counters: Counters,
        average: float | None,
        groups: int,
    ) -> None:
        self.device = lanes[0].param.device
        self.rule, self.law, self.seed, self.counters = rule, law, seed, counters
        self.averaged = average is not None
        lanes = sorted(lanes, key=lambda lane: repr(self._kind(lane)))  # what shares a launch stands together
        self.params = [lane.param for lane in lanes]
        self.states = [lane.state for lane in lanes]
        self.n = len(lanes)
        self.numbered = list(range(self.n))
        self.xs = [p.detach() if is_dense(p) else p.new_empty(p.shape) for p in self.params]
        self.staged = [(p.detach(), x) for p, x in zip(self.params, self.xs, strict=True) if not is_dense(p)]
        self.sizes_known = [p.numel() for p in self.params]
        self.strides_known = [p.stride() for p in self.params]
        self.strides = [x.stride() for x in self.xs]
        self.dtypes = [x.dtype for x in self.xs]
        self.gradients = [0] * self.n  # where they lay at the last step
        self._lay_out_state(lanes)
        self._write_tables(lanes, average)
        self.chains: dict[bool, Chain] = {}  # with and without a GradScaler
        self.scaler = torch.ones(2, device=self.device)
        self.live = Live(self.n, groups * passes.NUMBERS.value, self.device)

    def _kind(self, lane: Lane) -> tuple[Any, ...]:
        dtypes = tuple(str(lane.state[key].dtype) for key in lane.slots)
        return str(lane.param.dtype), "gradient" in lane.state, lane.play.__name__, lane.slots, dtypes

    def _lay_out_state(self, lanes: list[Lane]) -> None:
        """Bring state tensors into the memory order of their parameter, and numbers into the book."""
        self.alive = []  # an address in the tables stays good whatever becomes of the tensor
        for lane, x in zip(lanes, self.xs, strict=True):
            for key in (*lane.slots, "average", "gradient", "output"):
                if key in lane.state:
                    value = lane.state[key]
                    if value.shape != x.shape:
                        raise ValueError(
                            f"state {key!r} has shape {tuple(value.shape)}, its parameter has {tuple(x.shape)}: "
                            "was a parameter replaced, or are they in another order than in the checkpoint?"
                        )
                    lane.state[key] = laid_like(x, value, value.dtype if key in lane.slots else wide(x.dtype))
                    self.alive.append(lane.state[key].detach())
        columns = ("spread", "progress", "rate", "fresh", "log_decay", "joined", *self.rule.numbers)
        self.book = torch.zeros(passes.BOOK, self.n, dtype=torch.float64, device=self.device)
        for row, key in zip(self.book, columns, strict=False):
            values = [state.get(key, 0.0) for state in self.states]
            if any(isinstance(v, Tensor) for v in values):
                here = [torch.as_tensor(v, dtype=torch.float64, device=self.device) for v in values]
                row.copy_(torch.stack(here))
            else:
                row.copy_(torch.tensor(values, dtype=torch.float64, device="cpu"))
            kept = self.averaged or key not in ("spread", "progress", *NUMBERS)
            if kept:
                for state, entry in zip(self.states, row, strict=True):
                    state[key] = entry
        self.touched: list[bool] = []
        for state in self.states:
            state.touched = self.touched

    def _write_tables(self, lanes: list[Lane], average: float | None) -> None:
        device = self.device
        counts = [triton.cdiv(x.numel(), CHUNK) for x in self.xs]
        self.chunks = sum(counts)
        first = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.first = torch.from_numpy(first.astype(np.int64)).to(device)
        numbered = torch.arange(self.n, dtype=torch.int32, device=device)
        self.which = numbered.repeat_interleave(torch.tensor(counts, device=device), output_size=self.chunks)
        self.sizes = torch.tensor([x.numel() for x in self.xs], device=device)
        self.group_of = torch.tensor([lane.group for lane in lanes], device=device)
        table = np.zeros((passes.COLUMNS, self.n), dtype=np.int64)
        for t, (lane, x) in enumerate(zip(lanes, self.xs, strict=True)):
            table[passes.X.value, t] = x.data_ptr()
            for column, key in enumerate(lane.slots, passes.A.value):
                table[column, t] = lane.state[key].data_ptr()
            for column, key in enumerate(("average", "gradient", "output"), passes.AVERAGE.value):
                if self.averaged and key in lane.state:
                    table[column, t] = lane.state[key].data_ptr()
        self.addresses = torch.from_numpy(table).to(device)
        self.x_addresses = [p.data_ptr() for p in self.params]
        constants = [average or 0.0, self.law.a, self.law.b, *self.rule.constants]
        constants += [0.0] * (passes.CONSTANTS - len(constants))
        self.constants = torch.tensor(constants, dtype=torch.float64, device=device)
        hashes = [seed_key(self.seed, stream) for stream in (S, OUTPUT, ROUNDING)]
        signed = [key - (1 << 64) if key >> 63 else key for key in hashes]
        self.keys = torch.tensor(signed, dtype=torch.int64, device=device)
        self.now = torch.zeros(passes.NOW, dtype=torch.float64, device=device)
        self.rows = torch.zeros(passes.ROWS, self.n, dtype=torch.float64, device=device)
        joint = self.rule.measure is not None
        summed = self.chunks if self.averaged or joint else 1
        self.partial = torch.zeros(2, summed, dtype=torch.float64, device=device)
        self.totals = torch.zeros(2, self.n if joint else 1, dtype=torch.float64, device=device)
        self.buckets: list[tuple[int, int, dict[str, Any]]] = []  # first chunk, how many, what is compiled in
        at = 0
        for _, run in groupby(range(self.n), lambda t: self._kind(lanes[t])):
            ts = list(run)
            number = sum(counts[t] for t in ts)
            if number:
                self.buckets.append((at, number, self._compiled_in(lanes[ts[0]])))
            at += number

    def _compiled_in(self, lane: Lane) -> dict[str, Any]:
        dtype = wide(lane.param.dtype)
        slots = [_TYPES[lane.state[key].dtype] for key in lane.slots] + [_TYPES[dtype]] * 3
        return {
            "PLAY": lane.play,
            "SLOTS": len(lane.slots),
            "AVERAGED": self.averaged,
            "OWN": self.averaged and "gradient" in lane.state,
            "JOINT": self.rule.measure is not None,
            "ROUNDED": dtype == torch.float32,
            "FLOOR": torch.finfo(dtype).tiny ** 0.5,
            "X_TYPE": _TYPES[lane.param.dtype],
            "A_TYPE": slots[0],
            "B_TYPE": slots[1],
            "C_TYPE": slots[2],
            "WIDE": _TYPES[dtype],
            "CHUNK": CHUNK,
            "BLOCK": BLOCK,
        }

    def holds(self) -> bool:
        """Say whether parameters and state are still where they were laid out."""
        return (
            not self.touched
            and self._lie_at(self.params, self.x_addresses)
            and [*map(Tensor.numel, self.params)] == self.sizes_known
            and [*map(Tensor.stride, self.params)] == self.strides_known
        )

    def _lie_at(self, tensors: Sequence[Tensor | None], addresses: list[int]) -> bool:
        if same_pointers is not None:
            return bool(same_pointers(tensors, addresses, self.numbered))
        return [*map(Tensor.data_ptr, tensors)] == addresses  # type: ignore[arg-type]

    def lacks_gradient(self, addresses: list[int]) -> bool:
        """Say whether a parameter without a gradient now has no ḡ of its own, which it then needs."""
        if not self.averaged or all(addresses):
            return False
        return any(not a and "gradient" not in s for a, s in zip(addresses, self.states, strict=True))

    def locate(self) -> tuple[list[int], list[Tensor]]:
        """Return where the gradients lie, 0 for none, and copies of those that do not lie as their parameter does."""
        grads = [p.grad for p in self.params]
        try:
            alike = [*map(Tensor.stride, grads)] == self.strides  # type: ignore[arg-type]
            if alike and [g.dtype for g in grads] == self.dtypes:  # type: ignore[union-attr]
                if not self._lie_at(grads, self.gradients):
                    self.gradients = [*map(Tensor.data_ptr, grads)]  # type: ignore[arg-type]
                if all(self.gradients):
                    return self.gradients, []
        except (TypeError, RuntimeError):  # None, or sparse
            pass
        addresses, copies = [], []
        for g, x in zip(grads, self.xs, strict=True):
            if g is None:
                addresses.append(0)
                continue
            checks.gradient(g)
            copies.append(laid_like(x, g.detach(), x.dtype))
            addresses.append(copies[-1].data_ptr() or _NOWHERE)
        return addresses, copies

    def run(self, live: Tensor, found_inf: Tensor | None, grad_scale: Tensor | None) -> None:
        """Launch one step.

        Args:
            live: what `Live.upload` returned.
            found_inf: a GradScaler's flag: where it is set nothing changes.
            grad_scale: a GradScaler's scale, None if the gradients are unscaled already.
        """
        for p, x in self.staged:
            x.copy_(p)
        scaled = found_inf is not None
        if found_inf is not None:
            self.scaler[:1].copy_(found_inf)
            self.scaler[1:].fill_(1.0) if grad_scale is None else self.scaler[1:].copy_(grad_scale)
        if live is not self.live.table:  # in a capture
            for launch in launches(self, live, scaled):
                launch()
        else:
            if scaled not in self.chains:
                self.chains[scaled] = Chain(launches(self, live, scaled), self.device)
            self.chains[scaled]()
        for p, x in self.staged:
            p.copy_(x)
