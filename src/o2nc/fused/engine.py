"""Whether kernels can take a step, and having them take it."""

import importlib.util
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from o2nc.fused.rule import DeviceRule, Request
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
        # the counter on the device, its version, and its value, which the host so need not wait for
        self.counter: tuple[Tensor | None, int, int] = (None, 0, 0)
        self.tables: Tables | None = None
        self.captured: list[Tables] = []  # out of use, but a graph may still be replayed that reads them
        # by parameter: a step, and the keys of state that it lacked before it
        self.missing: dict[Any, tuple[int, list[str]]] = {}

    @property
    def has_captured(self) -> bool:
        """Whether a graph may have advanced the counter without the host's knowledge."""
        return bool(self.captured or (self.tables and self.tables.uploads.captured))

    def forget(self) -> None:
        """Drop the tables, except those that a captured graph reads."""
        if self.tables is not None and self.tables.uploads.captured:
            self.captured.append(self.tables)
        self.tables = None

    def wait(self) -> None:
        """Wait for kernels that write the output to the host's memory."""
        if self.tables is not None and self.tables.outputs and self.tables.device.type == "cuda":
            torch.cuda.synchronize(self.tables.device)

    @torch.no_grad()
    def take(self, request: Request) -> str | None:
        """Take one step with kernels; return None, or the reason for which they cannot take it."""
        capturing = is_capturing()
        averages = request.window is not None
        if averages and not capturing and not self.has_captured:  # else the device decides
            averages = request.window.counts(self.steps_done(request.settings["step"]) + 1)
        if not averages and not request.rule.moves and self.tables is not None and self.tables.have_all(request):
            return None
        device = next(p.device for group in request.groups for p in group["params"])
        with torch.cuda.device(device.index if device.type == "cuda" else -1):  # a negative one changes nothing
            if self.tables is None or not self.tables.are_current(request):
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
            here = {i: v for i, v in enumerate(scalars) if isinstance(v, Tensor) and v.device.type in DEVICES}
            numbers = [ON_DEVICE if i in here else float(v) for i, v in enumerate(scalars)]
            uploaded = tables.uploads.upload(addresses, numbers, capturing)
            for i, v in here.items():
                tables.uploads.scalars(uploaded)[i].copy_(v.detach().reshape(()))
            tables.run(uploaded, averages)
        if request.rule.moves:
            step, version, value = self.counter
            self.counter = (step, version, value + 1)
        return None

    def steps_done(self, step: Tensor) -> int:
        """Return the value of the counter ``step``; wait for its device only if the host does not know it."""
        known, version, value = self.counter
        if known is not step or version != step._version or self.has_captured:
            value = int(step)
            self.counter = (step, step._version, value)
        return value

    def count_step(self, step: Tensor) -> None:
        """Add 1 to the counter, by an operation of torch."""
        known, version, value = self.counter
        is_known = known is step and version == step._version
        step.add_(1)
        self.counter = (step, step._version, value + 1) if is_known else (None, 0, 0)

    def _write(self, request: Request, capturing: bool) -> str | None:
        """Write new tables; return `NOT_BEGUN` if a parameter that takes part lacks state."""
        from o2nc.fused.tables import Row, Tables

        rule = request.rule.resolve()
        if request.window is None:  # then nobody can ask for the progress
            rule = replace(rule, progress=False)
        rows, outside = [], []
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
                outside.append(p)
        self.missing.clear()
        if capturing:
            raise RuntimeError("this step cannot be captured: call step() twice like this before you capture it")
        tables = Tables(rule, request, rows, outside)
        self.forget()
        self.tables = tables
        for key, tensor in (("step", tables.step), ("pending", tables.pending)):
            if key in request.settings:
                request.settings[key] = tensor
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
