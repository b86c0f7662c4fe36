"""The tables of one device: where every tensor lies, what its numbers are, and what runs over them."""

from collections.abc import Sequence
from itertools import accumulate, chain, groupby
from operator import attrgetter, is_
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from o2nc import checks
from o2nc.averages.windows import Discount
from o2nc.fused import kernels
from o2nc.fused.launch import Sequence as LaunchSequence
from o2nc.fused.launch import launches
from o2nc.fused.laws import device_law, device_window
from o2nc.fused.rule import BLOCK, CHUNK, DECAYED, Request, Rule
from o2nc.fused.uploads import Uploads
from o2nc.persist.plain import KEY
from o2nc.persist.private import same_pointers
from o2nc.persist.shards import assemble
from o2nc.scaling import ACCEPT, OUTPUT, ROUNDING, S, seed_key
from o2nc.vector import is_sharded, laid_like, local, local_gradient, wide

_TYPES = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
DTYPES = frozenset(_TYPES)
_NOWHERE = 16  # the address of a gradient without elements, which nobody reads
_OWN = ("average", "gradient", "output")  # in the order of their columns of addresses


class Row(NamedTuple):
    """One parameter as the kernels know it."""

    param: Any
    state: dict[str, Any]  # the optimizer's
    entry: dict[str, Any]  # ours, in it
    group: int  # index of its parameter group
    update: Any  # the rule, per element
    slots: tuple[str, ...]

    def holder(self, key: str) -> dict[str, Any]:
        """Return the dictionary in which a key of the state is."""
        return self.entry if key in self.entry else self.state

    def missing(self, rule: Rule, averaged: bool) -> list[str]:
        """Return the keys of state that kernels work on and that is not there."""
        keys = (*self.slots, *filter(None, [rule.number, rule.count]), *["average"] * averaged)
        return [key for key in keys if self.holder(key).get(key) is None]

    def put(self, key: str, value: Tensor) -> None:
        """Replace a tensor of the state by ``value``, or by a DTensor of which that is the local shard."""
        sharded = is_sharded(self.holder(key).get(key))
        self.holder(key)[key] = assemble(self.param, value) if sharded else value


def on_host(x: Tensor, value: Tensor) -> Tensor:
    """Return ``value`` in pinned CPU memory, which kernels can write to, with the strides of x."""
    like = (torch.device("cpu"), x.dtype, x.stride())
    if (value.device, value.dtype, value.stride()) == like and value.is_pinned() >= x.is_cuda:
        return value
    return torch.empty_like(x, device="cpu", pin_memory=x.is_cuda).copy_(value)


def _cache_key(request: Request, rule: Rule) -> tuple[Any, ...]:
    """Return the options that are compiled into kernels or written into tables; a change rebuilds the tables."""
    settings = request.settings
    options = (settings["seed"], settings["certificate"], settings.get("output"))
    decays = tuple(bool(group.get("weight_decay")) for group in request.groups)
    return (request.rule, request.window, request.law, options, decays, *map(rule.layout, request.groups))


def _number_of_entries(state: dict[Any, Any], p: Any) -> tuple[int, int]:
    """Return how many entries the state of a parameter has, torch's and ours together, and ours."""
    found = state.get(p, {})
    return len(found), len(found.get(KEY, ()))


class Tables:
    """Addresses and numbers of the parameters of one device and of their state, for kernels to work on.

    They are written once, and used as long as `are_current`.
    """

    def __init__(self, rule: Rule, request: Request, rows: list[Row], outside: list[Any]) -> None:
        law, settings = device_law(request.law), request.settings
        assert law is not None, "why_not was not asked"
        self.state, self.cache_key = request.state, _cache_key(request, rule)
        self.known_params = [p for group in request.groups for p in group["params"]]
        self.outside = {p: _number_of_entries(request.state, p) for p in outside}  # parameters that take no part
        self.device = rows[0].param.device
        self.rule, self.law = rule, law
        self.averaged = request.window is not None
        self.certifies = self.averaged and settings["certificate"]
        self.outputs = self.averaged and "output" in settings
        self.step = settings["step"].to(self.device)
        self.pending = settings.get("pending", torch.zeros((), dtype=torch.int64, device="cpu")).to(self.device)
        rows = sorted(rows, key=lambda row: repr(self._kind(row)))  # what shares a launch stands together
        self.rows, self.n = rows, len(rows)
        self.numbered = list(range(self.n))
        self.is_sharded = any(is_sharded(row.param) for row in rows)
        self.params = [row.param for row in rows]
        self.states = [request.state.get(p) for p in self.params]
        self.xs = [p.detach() for p in self._data()]
        self.addresses_known, self.sizes_known = [x.data_ptr() for x in self.xs], [x.numel() for x in self.xs]
        self.strides = [x.stride() for x in self.xs]
        self.dtypes = [x.dtype for x in self.xs]
        self.gradients = [0] * self.n  # where they lay at the last step
        decays = any(group.get("weight_decay") for group in request.groups)
        self.decoupled = rule.decoupled and (decays or any(DECAYED[0] in row.entry for row in rows))
        self._lay_out_state()
        self._write(request)
        self.sequences: dict[bool, LaunchSequence] = {}  # with and without an update of the averages
        self.uploads = Uploads(self.n, len(request.groups) * kernels.SCALARS.value, self.device)

    def _data(self) -> list[Tensor]:
        """Return the parameters, or their local shards."""
        return [local(p.detach()) for p in self.params] if self.is_sharded else self.params

    def _kind(self, row: Row) -> tuple[Any, ...]:
        dtypes = tuple(str(row.holder(key)[key].dtype) for key in row.slots)
        return str(row.param.dtype), "gradient" in row.entry, row.update.__name__, row.slots, dtypes

    def _lay_out_state(self) -> None:
        """Give state tensors the strides of their parameter, and make numbers of the state views of one table."""
        for row, x in zip(self.rows, self.xs, strict=True):
            for key in (*row.slots, *_OWN):
                value = local(row.holder(key).get(key))
                if value is None:
                    continue
                if value.shape != x.shape:
                    raise ValueError(
                        f"state {key!r} has shape {tuple(value.shape)}, its parameter has {tuple(x.shape)}: "
                        "was a parameter replaced, or are they in another order than in the checkpoint?"
                    )
                dtype = value.dtype if key in row.slots else wide(x.dtype)
                laid = on_host(local(row.entry["average"]), value) if key == "output" else laid_like(x, value, dtype)
                if laid is not value:
                    row.put(key, laid)
        keys = ("spread", "progress", "rate", self.rule.number, *DECAYED)
        self.numbers = torch.zeros(len(keys), self.n, dtype=torch.float64, device=self.device)
        for line, name in zip(self.numbers, keys, strict=True):
            if name is not None:
                self._move_numbers(line, name, always=name in DECAYED and self.decoupled)
        if self.rule.count is not None:
            self.counts = torch.zeros(self.n, dtype=torch.float32, device=self.device)
            self._move_numbers(self.counts, self.rule.count)
        else:
            self.counts = self.numbers[-1]
        found = [place for row in self.rows for place in self._places(row)]
        self.places = [*zip(*found, strict=True)] or [(), (), ()]  # where state was, its keys, and its tensors
        # an address stays good whatever becomes of the tensor
        self.alive = [local(t).detach() for t in self.places[2] if isinstance(t, Tensor)]

    def _move_numbers(self, line: Tensor, key: str, always: bool = False) -> None:
        """Copy the number ``key`` of every parameter's state into a line of a table, and replace it by a view."""
        at = [t for t, row in enumerate(self.rows) if key in row.holder(key) or always]
        if at:
            values = [self.rows[t].holder(key).get(key, torch.zeros((), device="cpu")) for t in at]
            line[at] = torch.stack([v.detach().to(self.device, line.dtype) for v in values])
        for t in at:
            row = self.rows[t]
            (row.entry if always else row.holder(key))[key] = line[t]

    def _places(self, row: Row) -> list[tuple[dict[str, Any], str, Any]]:
        """Return every entry of a parameter's state that the tables point at, as (dictionary, key, tensor)."""
        own = filter(None, [self.rule.number, self.rule.count])
        keys = (*row.slots, *_OWN, "spread", "progress", "rate", *own, *DECAYED)
        found = [(row.holder(key), key) for key in keys]
        kept = [(holder, key, holder[key]) for holder, key in found if isinstance(holder.get(key), Tensor)]
        return [(row.state, KEY, row.entry), *kept] if row.entry else kept

    def _write(self, request: Request) -> None:
        """Write the tables, group the tensors that share a launch, and allocate what kernels write."""
        device, rows = self.device, self.rows
        counts = [triton.cdiv(x.numel(), CHUNK) for x in self.xs]
        self.chunks = sum(counts)
        self.first = torch.tensor([0, *accumulate(counts)], device=device)
        numbered = torch.arange(self.n, dtype=torch.int32, device=device)
        self.which = numbered.repeat_interleave(torch.tensor(counts, device=device), output_size=self.chunks)
        self.sizes = torch.tensor([x.numel() for x in self.xs], device=device)
        self.group_of = torch.tensor([row.group for row in rows], device=device)
        table = np.zeros((kernels.COLUMNS, self.n), dtype=np.int64)
        for t, (row, x) in enumerate(zip(rows, self.xs, strict=True)):
            table[kernels.X.value, t] = x.data_ptr()
            for column, key in enumerate(row.slots, kernels.SLOT.value):
                table[column, t] = local(row.holder(key)[key]).data_ptr()
            for column, key in enumerate(_OWN, kernels.AVERAGE.value):
                if self.averaged and key in row.entry:
                    table[column, t] = local(row.entry[key]).data_ptr()
        self.addresses = torch.from_numpy(table).to(device)
        window, rule = device_window(request.window), self.rule
        assert window is not None, "why_not was not asked"
        taking = 1.0
        if request.settings.get("output") == "geometric" and isinstance(request.window, Discount):
            taking = 1 - request.window.beta**request.window.every
        constants = [*window, taking, self.law.mean, self.law.a, self.law.b, *rule.constants]
        self.constants = torch.tensor(constants, dtype=torch.float64, device=device)
        hashes = [seed_key(request.settings["seed"], stream) for stream in (S, OUTPUT, ROUNDING, ACCEPT)]
        signed = [key - (1 << 64) if key >> 63 else key for key in hashes]
        self.keys = torch.tensor(signed, dtype=torch.int64, device=device)
        self.now = torch.zeros(kernels.NOW, dtype=torch.float64, device=device)
        columns = kernels.OWN.value + rule.own
        self.coefficients = torch.zeros(columns, self.n, dtype=torch.float64, device=device)
        summed = self.certifies or rule.progress
        self.partial = torch.zeros(2, self.chunks if summed else 1, dtype=torch.float64, device=device)
        self.prepared = torch.zeros(kernels.PREPARED.value, self.n, dtype=torch.float64, device=device)
        self.buckets: list[tuple[int, int, dict[str, Any]]] = []  # first chunk, how many, what is compiled in
        at = 0
        for _, run in groupby(range(self.n), lambda t: self._kind(rows[t])):
            ts = list(run)
            number = sum(counts[t] for t in ts)
            if number:
                self.buckets.append((at, number, self._compiled_in(rows[ts[0]])))
            at += number

    def _compiled_in(self, row: Row) -> dict[str, Any]:
        rule, dtype = self.rule, wide(row.param.dtype)
        slots = [_TYPES[row.holder(key)[key].dtype] for key in row.slots] + [_TYPES[dtype]] * 3
        return {
            "UPDATE": row.update,
            "MOVES": rule.moves,
            "OWN_COUNT": rule.own,
            "SLOTS": len(row.slots),
            "AVERAGED": self.averaged,
            "OUTPUTS": self.outputs,
            "HAS_GRADIENT": self.certifies,
            "SUMS_PROGRESS": rule.progress,
            "DECOUPLED": self.decoupled,
            "ROUNDED": dtype == torch.float32,
            "FLOOR": torch.finfo(dtype).tiny ** 0.5,
            "X_TYPE": _TYPES[row.param.dtype],
            **{f"SLOT_{k}": slots[k] for k in range(3)},
            "WIDE": _TYPES[dtype],
            "CHUNK": CHUNK,
            "BLOCK": rule.block if self.certifies or rule.progress else BLOCK,
        }

    def have_all(self, request: Request) -> bool:
        """Return whether the optimizer has the same parameters, and those outside still take no part."""
        params = chain.from_iterable(group["params"] for group in request.groups)
        return (
            sum(len(group["params"]) for group in request.groups) == len(self.known_params)
            and all(map(is_, params, self.known_params))
            and all(p.grad is None and _number_of_entries(request.state, p) == n for p, n in self.outside.items())
        )

    def are_current(self, request: Request) -> bool:
        """Return whether options are as they were written, and parameters and their state where they were."""
        if request.state is not self.state or not self.have_all(request):
            return False
        data, (holders, keys, found), settings = self._data(), self.places, request.settings
        return (
            settings["step"] is self.step
            and settings.get("pending", self.pending) is self.pending
            and _cache_key(request, self.rule) == self.cache_key
            and all(map(is_, map(self.state.get, self.params), self.states))
            and all(map(is_, map(dict.get, holders, keys), found))
            and self._lie_at(data, self.addresses_known)
            and [*map(Tensor.numel, data)] == self.sizes_known
            and [*map(Tensor.stride, data)] == self.strides
        )

    def _lie_at(self, tensors: Sequence[Tensor | None], addresses: list[int]) -> bool:
        if same_pointers is not None:
            return bool(same_pointers(tensors, addresses, self.numbered))
        return [*map(Tensor.data_ptr, tensors)] == addresses  # type: ignore[arg-type]

    def locate(self) -> tuple[list[int], list[Tensor]] | None:
        """Return the addresses of the gradients, 0 for none, and the copies that had to be made.

        A gradient with other strides than its parameter is copied. None if one has another dtype than its parameter.
        """
        grads: list[Any] = [*map(local_gradient if self.is_sharded else attrgetter("grad"), self.params)]
        try:
            alike = [*map(Tensor.stride, grads)] == self.strides
            if alike and [g.dtype for g in grads] == self.dtypes:
                if not self._lie_at(grads, self.gradients):
                    self.gradients = [*map(Tensor.data_ptr, grads)]
                if all(self.gradients):
                    return self.gradients, []
        except (TypeError, RuntimeError, AttributeError):  # None, or sparse
            pass
        addresses, copies = [], []
        for g, x in zip(grads, self.xs, strict=True):
            if g is None:
                addresses.append(0)
                continue
            checks.gradient(g)
            if g.dtype != x.dtype:
                return None
            copies.append(laid_like(x, g.detach(), x.dtype))
            addresses.append(copies[-1].data_ptr() or _NOWHERE)
        return addresses, copies

    def run(self, uploaded: Tensor, averages: bool) -> None:
        """Launch one step with what `Uploads.upload` returned; with ``averages``, one that counts updates them."""
        if uploaded is not self.uploads.table:  # in a capture
            for launch in launches(self, uploaded, averages):
                launch()
        else:
            if averages not in self.sequences:
                self.sequences[averages] = LaunchSequence(launches(self, uploaded, averages), self.device)
            self.sequences[averages]()
