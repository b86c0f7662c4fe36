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
from o2nc.averages import FIELDS, WHOLE
from o2nc.backends.host import on_host
from o2nc.backends.triton import kernels
from o2nc.backends.triton.engine import OtherDtype
from o2nc.backends.triton.launches import Sequence as LaunchSequence
from o2nc.backends.triton.launches import launches
from o2nc.backends.triton.laws import DeviceWindow, device_law, device_window
from o2nc.backends.triton.rules import device_rule
from o2nc.backends.triton.slots import Row
from o2nc.backends.triton.uploads import Uploads
from o2nc.scaling import OUTPUT, ROUNDING, SETTLING, S, seed_key
from o2nc.step import Step
from o2nc.torch_support.private import same_pointers
from o2nc.vector import DECAYED, wide

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
    averaged: Tensor
    pending: Tensor

    @classmethod
    def on(cls, device: torch.device, values: Sequence[Any]) -> "Counters":
        """Bring numbers or tensors to a device; tensors that are there already stay the same."""
        dtypes = [torch.int64 if name in WHOLE else torch.float64 for name in cls._fields]
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


class Tables:
    """The parameters of one device, written down once and used until something is no longer where it was."""

    def __init__(self, step: Step, rows: list[Row], counters: Counters) -> None:
        law, rule, window = device_law(step.law), device_rule(step), device_window(step.window)
        assert law is not None, "why_not was not asked"
        assert window is not None, "why_not was not asked"
        assert rule is not None, "why_not was not asked"
        self.device = rows[0].param.device
        self.rule, self.law, self.seed, self.counters = rule, law, step.seed, counters
        self.averaged, self.certificate = step.window is not None, step.certificate
        self.summed = self.averaged and (step.certificate or getattr(step.rule, "progress", True))
        rows = sorted(rows, key=lambda row: repr(self._kind(row)))  # what shares a launch stands together
        self.params = [row.param for row in rows]
        self.states = [row.state for row in rows]
        self.n = len(rows)
        self.numbered = list(range(self.n))
        self.xs = [p.detach() if is_dense(p) else p.new_empty(p.shape) for p in self.params]
        self.staged = [(p.detach(), x) for p, x in zip(self.params, self.xs, strict=True) if not is_dense(p)]
        self.sizes_known = [p.numel() for p in self.params]
        self.strides_known = [p.stride() for p in self.params]
        self.strides = [x.stride() for x in self.xs]
        self.dtypes = [x.dtype for x in self.xs]
        self.gradients = [0] * self.n  # where they lay at the last step
        self._lay_out_state(rows)
        self._write(rows, step, window)
        self.sequences: dict[bool, LaunchSequence] = {}  # with and without a GradScaler
        self.scaler = torch.zeros(2, dtype=torch.float32, device=self.device)  # flag and scale
        self.uploads = Uploads(self.n, len(step.groups) * kernels.NUMBERS.value, self.device)

    def _kind(self, row: Row) -> tuple[Any, ...]:
        dtypes = tuple(str(row.state[key].dtype) for key in row.slots)
        return str(row.param.dtype), "gradient" in row.state, row.play.__name__, row.slots, dtypes

    def _lay_out_state(self, rows: list[Row]) -> None:
        """Bring state tensors into the memory order of their parameter, and numbers into one table."""
        self.alive = []  # an address in the tables stays good whatever becomes of the tensor
        for row, x in zip(rows, self.xs, strict=True):
            for key in (*row.slots, "average", "gradient", "output"):
                if key in row.state:
                    value = row.state[key]
                    if value.shape != x.shape:
                        raise ValueError(
                            f"state {key!r} has shape {tuple(value.shape)}, its parameter has {tuple(x.shape)}: "
                            "was a parameter replaced, or are they in another order than in the checkpoint?"
                        )
                    row.state[key] = self._laid_out(row, key, x)
                    self.alive.append(row.state[key].detach())
        columns = ("spread", "progress", "rate", "fresh", "log_decay", "joined", *self.rule.numbers)
        columns += DECAYED * self.rule.decoupled
        # a line more: one is read even of a rule that keeps none
        self.numbers = torch.zeros(len(columns) + 1, self.n, dtype=torch.float64, device=self.device)
        for line, key in zip(self.numbers[:-1], columns, strict=True):
            values = [state.get(key, 0.0) for state in self.states]
            if any(isinstance(v, Tensor) for v in values):
                here = [torch.as_tensor(v, dtype=torch.float64, device=self.device) for v in values]
                line.copy_(torch.stack(here))
            else:
                line.copy_(torch.tensor(values, dtype=torch.float64, device="cpu"))
            kept = self.averaged or key not in FIELDS
            if kept:
                for state, entry in zip(self.states, line, strict=True):
                    state[key] = entry
        self.kept = self.numbers[kernels.KEPT.value : -1]
        self.touched: list[bool] = []
        for state in self.states:
            state.touched = self.touched

    @staticmethod
    def _laid_out(row: Row, key: str, x: Tensor) -> Tensor:
        """Return an entry of the state in the memory order of its parameter, where it belongs."""
        value: Tensor = row.state[key]
        if key == "output":
            return on_host(row.state["average"], value)
        return laid_like(x, value, value.dtype if key in row.slots else wide(x.dtype))

    def _write(self, rows: list[Row], step: Step, window: DeviceWindow) -> None:
        device = self.device
        counts = [triton.cdiv(x.numel(), CHUNK) for x in self.xs]
        self.chunks = sum(counts)
        first = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.first = torch.from_numpy(first.astype(np.int64)).to(device)
        numbered = torch.arange(self.n, dtype=torch.int32, device=device)
        self.which = numbered.repeat_interleave(torch.tensor(counts, device=device), output_size=self.chunks)
        self.sizes = torch.tensor([x.numel() for x in self.xs], device=device)
        self.group_of = torch.tensor([row.group for row in rows], device=device)
        table = np.zeros((kernels.COLUMNS, self.n), dtype=np.int64)
        for t, (row, x) in enumerate(zip(rows, self.xs, strict=True)):
            table[kernels.X.value, t] = x.data_ptr()
            for column, key in enumerate(row.slots, kernels.SLOT.value):
                table[column, t] = row.state[key].data_ptr()
            for column, key in enumerate(("average", "gradient", "output"), kernels.AVERAGE.value):
                if self.averaged and key in row.state:
                    table[column, t] = row.state[key].data_ptr()
        self.addresses = torch.from_numpy(table).to(device)
        self.x_addresses = [p.data_ptr() for p in self.params]
        constants = [*window, step.settling, self.law.mean, self.law.a, self.law.b, *self.rule.constants]
        constants.append(0.0)  # one is read even of a rule that has none
        self.constants = torch.tensor(constants, dtype=torch.float64, device=device)
        hashes = [seed_key(self.seed, stream) for stream in (S, OUTPUT, ROUNDING, SETTLING)]
        signed = [key - (1 << 64) if key >> 63 else key for key in hashes]
        self.keys = torch.tensor(signed, dtype=torch.int64, device=device)
        self.now = torch.zeros(kernels.NOW, dtype=torch.float64, device=device)
        columns = kernels.OWN.value + self.rule.coefficients + 4 * self.rule.decoupled
        self.coefficients = torch.zeros(columns, self.n, dtype=torch.float64, device=device)
        joint = self.rule.measure is not None
        summed = self.chunks if self.summed or joint else 1
        self.partial = torch.zeros(3 if joint else 2, summed, dtype=torch.float64, device=device)
        self.totals = torch.zeros(self.rule.sums, self.n, dtype=torch.float64, device=device)
        self.buckets: list[tuple[int, int, dict[str, Any]]] = []  # first chunk, how many, what is compiled in
        at = 0
        for _, run in groupby(range(self.n), lambda t: self._kind(rows[t])):
            ts = list(run)
            number = sum(counts[t] for t in ts)
            if number:
                self.buckets.append((at, number, self._compiled_in(rows[ts[0]])))
            at += number

    def _compiled_in(self, row: Row) -> dict[str, Any]:
        dtype = wide(row.param.dtype)
        slots = [_TYPES[row.state[key].dtype] for key in row.slots] + [_TYPES[dtype]] * 3
        return {
            "PLAY": row.play,
            "MOVES": self.rule.moves,
            "COEFFICIENTS": self.rule.coefficients,
            "SLOTS": len(row.slots),
            "AVERAGED": self.averaged,
            "SUMMED": self.summed,
            "HAS_GRADIENT": self.averaged and "gradient" in row.state,
            "JOINT": self.rule.measure is not None,
            "DECOUPLED": self.rule.decoupled,
            "ROUNDED": dtype == torch.float32,
            "FLOOR": torch.finfo(dtype).tiny ** 0.5,
            "X_TYPE": _TYPES[row.param.dtype],
            "SLOT_0": slots[0],
            "SLOT_1": slots[1],
            "SLOT_2": slots[2],
            "WIDE": _TYPES[dtype],
            "CHUNK": CHUNK,
            "BLOCK": min(self.rule.block, BLOCK) if self.summed else BLOCK,
        }

    def hold(self) -> bool:
        """Say whether parameters and state are still where they were written."""
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
        if not self.averaged or not self.certificate or all(addresses):
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
            if g.dtype != x.dtype:
                raise OtherDtype
            copies.append(laid_like(x, g.detach(), x.dtype))
            addresses.append(copies[-1].data_ptr() or _NOWHERE)
        return addresses, copies

    def run(self, uploaded: Tensor, found_inf: Tensor | None, grad_scale: Tensor | None) -> None:
        """Launch one step.

        Args:
            uploaded: what `Uploads.upload` returned.
            found_inf: a GradScaler's flag: where it is set nothing changes.
            grad_scale: a GradScaler's scale, None if the gradients are unscaled already.
        """
        for p, x in self.staged:
            x.copy_(p)
        scaled = found_inf is not None or grad_scale is not None
        if scaled:
            self.scaler[:1].zero_() if found_inf is None else self.scaler[:1].copy_(found_inf)
            self.scaler[1:].fill_(1.0) if grad_scale is None else self.scaler[1:].copy_(grad_scale)
        if uploaded is not self.uploads.table:  # in a capture
            for launch in launches(self, uploaded, scaled):
                launch()
        else:
            if scaled not in self.sequences:
                self.sequences[scaled] = LaunchSequence(launches(self, uploaded, scaled), self.device)
            self.sequences[scaled]()
        for p, x in self.staged:
            p.copy_(x)
