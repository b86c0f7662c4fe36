"""Whether the fused step can be taken, and taking it."""

import importlib.util
import math
from contextlib import nullcontext
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from o2nc import checks, presence
from o2nc.step import COUNTERS, Step
from o2nc.torch_support.compiling import is_capturing

if TYPE_CHECKING:
    from o2nc.backends.triton.tables import Tables

DEVICES = ("cuda",)  # the tests add "cpu", where Triton's interpreter stands in
OLDEST_TRITON = (3, 3)
ON_DEVICE = math.nan  # stands for a number that is copied from a tensor on the device; equal to no plain number


class OtherDtype(Exception):
    """A gradient has not the dtype of its parameter."""


def why_not(step: Step) -> str | None:
    """Return the reason for which the fused step cannot be taken, or None if it can."""
    params = [p for group in step.groups for p in group["params"]]
    elsewhere = {p.device.type for p in params} - {*DEVICES}
    if elsewhere:
        return f"it runs on CUDA, and some parameters are on {', '.join(sorted(elsewhere))}"
    if importlib.util.find_spec("triton") is None:
        return "it is written in Triton, which is not installed (pip install triton)"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        return f"it needs Triton {'.'.join(map(str, OLDEST_TRITON))} or later, and {triton.__version__} is installed"
    from o2nc.backends.triton.laws import device_law, device_window
    from o2nc.backends.triton.rules import device_rule
    from o2nc.backends.triton.tables import DTYPES

    strange = {p.dtype for p in params} - DTYPES
    if strange:
        names = (", ".join(sorted(map(str, dtypes))) for dtypes in (DTYPES, strange))
        return "it takes {}, and some parameters are {}".format(*names)
    if device_law(step.law) is None:
        return f"the law {type(step.law).__name__} has no device form"
    if device_window(step.window) is None:
        return f"the average {type(step.window).__name__} has no device form"
    rule = device_rule(step)
    if rule is None:
        return f"the {'learner' if hasattr(step.rule, 'learner') else 'optimizer'} has no device form"
    if rule.measure is not None and len({p.device for p in params}) > 1:
        return "the learner's norm is joint, and the parameters are on several devices"
    if rule.measure is not None and step.is_sharded:
        return "the learner's norm is joint, and the parameters are sharded"
    return None


class Engine:
    """Takes the fused steps of one optimizer, with tables that are written again only when they must be."""

    def __init__(self) -> None:
        self.tables: list[Tables] = []  # one for each device
        self.owner: Any = None  # the optimizer's state, by parameter, and its entries
        self.states: list[Any] = []
        self.captured: list[Tables] = []  # out of use, but a graph may still be replayed that reads them

    def forget(self) -> None:
        """Let go of the tables, but for those that a captured graph reads."""
        self.captured += [tables for tables in self.tables if tables.uploads.captured]
        self.tables, self.owner, self.states = [], None, []

    def take(self, step: Step) -> str | None:
        """Take one step, or say why it cannot be taken; without gradients nothing is to be done."""
        capturing = is_capturing()
        if not self._holds(step):
            if all(p.grad is None for group in step.groups for p in group["params"]):
                return None
            reason = why_not(step)
            if reason is not None:
                return reason
            self._write(step, capturing)
        try:
            work = [(tables, *tables.locate()) for tables in self.tables]
        except OtherDtype:  # `grad_dtype` can make it so
            return "gradients have another dtype than their parameters"
        if not any(any(addresses) for _, addresses, _ in work):
            return None
        if any(tables.lacks_gradient(addresses) for tables, addresses, _ in work):
            self._write(step, capturing)
            work = [(tables, *tables.locate()) for tables in self.tables]
        numbers: list[Any] = [v for group in step.groups for v in step.rule.numbers(group)]
        tensors = [(i, v) for i, v in enumerate(numbers) if isinstance(v, Tensor)]
        for i, v in tensors:
            numbers[i] = ON_DEVICE if v.device.type in DEVICES else float(v)
        for tables, addresses, _copies in work:
            with _on(tables.device):
                uploaded = tables.uploads.upload(addresses, numbers, capturing)
                for i, v in tensors:
                    if v.device.type in DEVICES:
                        tables.uploads.numbers(uploaded)[i].copy_(v.detach().reshape(()))
                tables.run(uploaded, step.found_inf, step.grad_scale)
        return None

    def _holds(self, step: Step) -> bool:
        """Say whether everything is as it was when the tables were written."""
        groups = step.groups
        return (
            bool(self.tables)
            and step.state is self.owner
            and len(self.owner) == len(self.states)
            and all(map(is_, self.owner.values(), self.states))
            and all(map(is_, [groups[0][key] for key in COUNTERS], self.tables[0].counters))
            and _structure(step) == self.structure
            and sum(len(group["params"]) for group in groups) == len(self.params)
            and all(map(is_, chain.from_iterable(group["params"] for group in groups), self.params))
            and all(p.grad is None for p in self.outside)
            and all(tables.hold() for tables in self.tables)
        )

    def _write(self, step: Step, capturing: bool) -> None:
        """Write all tables: parameters, state or structure are not what they were."""
        if capturing:
            raise RuntimeError("this step cannot be captured: call step() once like this before you capture it")
        from o2nc.backends.triton.slots import lay_out
        from o2nc.backends.triton.tables import Counters, Tables

        self.params = [p for group in step.groups for p in group["params"]]
        for p in self.params:
            if p.grad is not None:
                checks.gradient(p.grad)
        if step.window is None and any("average" in state for state in step.state.values()):
            presence.end(step.groups, step.state.values())
        rows = lay_out(step)
        inside = {id(row.param) for row in rows}
        self.outside = [p for p in self.params if id(p) not in inside]
        written = []
        for device in dict.fromkeys(row.param.device for row in rows):
            counters = Counters.on(device, [step.groups[0][key] for key in COUNTERS])
            with _on(device):
                written.append(Tables(step, [row for row in rows if row.param.device == device], counters))
        for group in step.groups:
            group.update(zip(COUNTERS, written[0].counters, strict=True))
        self.forget()
        self.tables = written
        self.owner = step.state
        self.states = list(self.owner.values())
        self.structure = _structure(step)


def _structure(step: Step) -> list[Any]:
    """Return what must stay as it is for tables to hold, beside tensors."""
    return [step.law, step.seed, step.window, step.settling, *map(step.rule.structure, step.groups)]


def _on(device: torch.device) -> Any:
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)
