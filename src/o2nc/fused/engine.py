"""Whether kernels can take a step, and having them take it."""

import importlib.util
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from o2nc.fused.rule import DeviceRule, Request, Rule
from o2nc.persist.compiling import is_capturing
from o2nc.persist.plain import KEY
from o2nc.vector import is_dense, local

if TYPE_CHECKING:
    from o2nc.fused.tables import Row, Tables

DEVICES = ("cuda",)  # the tests add "cpu", where Triton's interpreter stands in
OLDEST_TRITON = (3, 3)
ON_DEVICE = math.nan  # stands for a number that is copied from a tensor on the device; equal to no plain number
NOT_BEGUN = "some parameters have no state yet, which their first step creates"


OBSERVE = DeviceRule("o2nc.fused.rules.observe:observe", moves=False)


def why_not(request: Request) -> str | None:
    """Return the reason for which the fused step cannot be taken, or None if it can."""
    params = [p for group in request.groups for p in group["params"]]
    elsewhere = {p.device.type for p in params} - {*DEVICES}
    if elsewhere:
        return f"it runs on CUDA, and some parameters are on {', '.join(sorted(elsewhere))}"
    if len({p.device for p in params}) > 1:
        return "it runs on one GPU, and the parameters are on several"
    if importlib.util.find_spec("triton") is None:
        return "it is written in Triton, which is not installed (pip install triton)"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        return f"it needs Triton {'.'.join(map(str, OLDEST_TRITON))} or later, and {triton.__version__} is installed"
    from o2nc.fused.laws import device_law, device_window
    from o2nc.fused.tables import DTYPES

    strange = {p.dtype for p in params} - DTYPES
    if strange:
        names = (", ".join(sorted(map(str, dtypes))) for dtypes in (DTYPES, strange))
        return "it takes {}, and some parameters are {}".format(*names)
    if not all(is_dense(local(p.detach())) for p in params):
        return "some parameters are views with gaps between their elements"
    if device_law(request.law) is None:
        return f"the law {type(request.law).__name__} has no device form"
    if device_window(request.window) is None:
        return f"the average {type(request.window).__name__} has no device form"
    if not request.rule.form:
        return "the learner has no device form: no device_rule, or a joint norm"
    return None


class Engine:
    """Takes the fused steps of one optimizer, with tables that are written again only when they must be."""

    def __init__(self) -> None:
        self.tables: Tables | None = None
        self.captured: list[Tables] = []  # out of use, but a graph may still be replayed that reads them
        self.known: tuple[Any, ...] = ()
        # the step before which a parameter lacked state, and which
        self.missing: dict[Any, tuple[int, list[str]]] = {}

    @property
    def has_captured(self) -> bool:
        """Whether a graph may have advanced the counter without the host's knowledge."""
        return bool(self.captured or (self.tables and self.tables.uploads.captured))

    def forget(self) -> None:
        """Drop the tables, except those that a captured graph reads."""
        if self.tables is not None and self.tables.uploads.captured:
            self.captured.append(self.tables)
        self.tables, self.known = None, ()

    def wait(self) -> None:
        """Wait for kernels that write the output to the host's memory."""
        if self.tables is not None and self.tables.outputs and self.tables.device.type == "cuda":
            torch.cuda.synchronize(self.tables.device)

    @torch.no_grad()
    def take(self, request: Request, steps_done: Callable[[], int]) -> str | None:
        """Take one step, of which some parameters have gradients; return None, or why it cannot be taken."""
        capturing = is_capturing()
        averages = request.window is not None
        if averages and not capturing and not self.has_captured:  # else the device decides
            averages = request.window.counts(steps_done() + 1)
        if not averages and not request.rule.moves and self._has_all(request):
            return None
        with _on(next(p.device for group in request.groups for p in group["params"])):
            if not self._holds(request):
                reason = why_not(request) or self._write(request, capturing)
                if reason is not None:
                    self.forget()  # what torch's step stores now may make the old tables wrong
                    return reason
            tables = self.tables
            assert tables is not None
            located = tables.locate()
            if located is None:  # `grad_dtype` can make it so
                return "gradients have another dtype than their parameters"
            addresses, _copies = located  # the copies live until the kernels are launched
            scalars: list[Any] = [v for group in request.groups for v in tables.rule.scalars(group)]
            tensors = [(i, v) for i, v in enumerate(scalars) if isinstance(v, Tensor)]
            for i, v in tensors:
                scalars[i] = ON_DEVICE if v.device.type in DEVICES else float(v)
            uploaded = tables.uploads.upload(addresses, scalars, capturing)
            for i, v in tensors:
                if v.device.type in DEVICES:
                    tables.uploads.scalars(uploaded)[i].copy_(v.detach().reshape(()))
            tables.run(uploaded, averages)
        return None

    def _has_all(self, request: Request) -> bool:
        """Return whether the tables have all parameters that have gradients."""
        params, outside = self.known[2:] or ([], {})
        return (
            self.tables is not None
            and sum(len(group["params"]) for group in request.groups) == len(params)
            and all(map(is_, chain.from_iterable(group["params"] for group in request.groups), params))
            and all(p.grad is None and _extent(request.state, p) == extent for p, extent in outside.items())
        )

    def _holds(self, request: Request) -> bool:
        """Return whether everything is as it was when the tables were written."""
        return (
            self.tables is not None
            and self._has_all(request)
            and request.state is self.known[0]
            and request.settings["step"] is self.tables.step
            and request.settings.get("pending", self.tables.pending) is self.tables.pending
            and _cache_key(request, self.tables.rule) == self.known[1]
            and self.tables.hold(request.state)
        )

    def _write(self, request: Request, capturing: bool) -> str | None:
        """Write all tables; return why not if state is missing."""
        from o2nc.fused.tables import Row, Tables

        rule = request.rule.resolve()
        if request.window is None:  # then nobody can ask for the progress
            rule = replace(rule, progress=False)
        rows, outside = [], {}
        for k, group in enumerate(request.groups):
            update, slots = rule.layout(group)
            for p in group["params"]:
                state = request.state.get(p, {})
                row = Row(p, state, state.get(KEY, {}), k, update, slots)
                missing = row.missing(rule, request.window is not None)
                is_stale = rule.progress and "update" in row.entry and "update" not in slots  # of other options
                if not missing and not is_stale:
                    rows.append(row)
                    continue
                if missing and p.grad is not None and not capturing:
                    self._refuse_misspelt(request, row, missing)
                if p.grad is not None or (request.window is not None and "average" in row.entry):
                    return NOT_BEGUN
                outside[p] = _extent(request.state, p)
        self.missing.clear()
        if capturing:
            raise RuntimeError("this step cannot be captured: call step() twice like this before you capture it")
        tables = Tables(rule, request, rows)
        self.forget()
        self.tables = tables
        for key, tensor in (("step", tables.step), ("pending", tables.pending)):
            if key in request.settings:
                request.settings[key] = tensor
        params = [p for group in request.groups for p in group["params"]]
        self.known = (request.state, _cache_key(request, rule), params, outside)
        return None

    def _refuse_misspelt(self, request: Request, row: "Row", missing: list[str]) -> None:
        """Raise if a parameter lacks the same state as before the step that should have created it."""
        t = int(request.settings["step"])
        before, same = self.missing.get(row.param, (t, missing))
        if before < t and same == missing:
            raise RuntimeError(
                f"the device form {request.rule.form} works on state {missing}, which no step creates: a parameter "
                f"of shape {tuple(row.param.shape)} has {[*row.state]} and, of ours, {[*row.entry]}"
            )
        self.missing[row.param] = (t, missing)


def _extent(state: dict[Any, Any], p: Any) -> tuple[int, int]:
    """Return how much state a parameter has: without any it takes no part."""
    found = state.get(p, {})
    return len(found), len(found.get(KEY, ()))


def _cache_key(request: Request, rule: Rule) -> tuple[Any, ...]:
    """Return the options that are written into the tables; a change of them writes the tables anew."""
    settings = request.settings
    options = (settings["seed"], settings["certificate"], settings.get("output"))
    decays = tuple(bool(group.get("weight_decay")) for group in request.groups)
    return (request.rule, request.window, request.law, options, decays, *map(rule.layout, request.groups))


def _on(device: torch.device) -> Any:
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)
