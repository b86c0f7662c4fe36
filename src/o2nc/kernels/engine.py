"""Whether the fused step can be taken, and taking it."""

import importlib.util
import math
from contextlib import nullcontext
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.persistence import COUNTERS
from o2nc.scaling import Law
from o2nc.stepping import is_capturing

if TYPE_CHECKING:
    from o2nc.fused import Fused
    from o2nc.kernels.layout import Layout

DEVICES = ("cuda",)  # the tests add "cpu", where Triton's interpreter stands in
OLDEST_TRITON = (3, 3)
ON_DEVICE = math.nan  # stands for a number that is copied from a tensor on the device; equal to no plain number


def why_not(optimizer: "Fused", law: Law | None) -> str | None:
    """Return the reason for which the fused step cannot be taken, or None if it can."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    elsewhere = {p.device.type for p in params} - {*DEVICES}
    if elsewhere:
        return f"it runs on CUDA, and some parameters are on {', '.join(sorted(elsewhere))}"
    if importlib.util.find_spec("triton") is None:
        return "it is written in Triton, which is not installed (pip install triton)"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        return f"it needs Triton {'.'.join(map(str, OLDEST_TRITON))} or later, and {triton.__version__} is installed"
    from o2nc.kernels.laws import device_law
    from o2nc.kernels.layout import DTYPES

    strange = {p.dtype for p in params} - DTYPES
    if strange:
        names = (", ".join(sorted(map(str, dtypes))) for dtypes in (DTYPES, strange))
        return "it takes {}, and some parameters are {}".format(*names)
    if device_law(law) is None:
        return f"the law {type(law).__name__} has no device form"
    rule = optimizer._rule()
    if rule is None:
        return "the learner has no device form"
    if rule.measure is not None and len({p.device for p in params}) > 1:
        return "the learner's norm is joint, and the parameters are on several devices"
    if rule.measure is not None and optimizer._shards is not None:
        return "the learner's norm is joint, and the parameters are sharded"
    return None


class Engine:
    """Takes the fused step of one optimizer, with tables that are laid out again only when they must be."""

    def __init__(self) -> None:
        self.layouts: list[Layout] = []
        self.owner: Any = None  # the optimizer's state, by parameter, and its entries
        self.states: list[Any] = []
        self.captured: list[Layout] = []  # out of use, but a graph may still be replayed that reads their tables

    def forget(self) -> None:
        """Let go of the tables, but for those that a captured graph reads."""
        self.captured += [layout for layout in self.layouts if layout.live.captured]
        self.layouts, self.owner, self.states = [], None, []

    def take(self, optimizer: "Fused") -> str | None:
        """Take one step, or say why it cannot be taken; without gradients nothing is to be done."""
        groups = optimizer.param_groups
        capturing = is_capturing()
        if not self._holds(optimizer):
            if all(p.grad is None for group in groups for p in group["params"]):
                return None
            reason = why_not(optimizer, groups[0]["scaling"])
            if reason is not None:
                return reason
            self._lay_out(optimizer, capturing)
        work = [(layout, *layout.locate()) for layout in self.layouts]
        if not any(any(addresses) for _, addresses, _ in work):
            return None
        if any(layout.lacks_gradient(addresses) for layout, addresses, _ in work):
            self._lay_out(optimizer, capturing)
            work = [(layout, *layout.locate()) for layout in self.layouts]
        numbers: list[Any] = [v for group in groups for v in optimizer._group_numbers(group)]
        tensors = [(i, v) for i, v in enumerate(numbers) if isinstance(v, Tensor)]
        for i, v in tensors:
            numbers[i] = ON_DEVICE if v.device.type in DEVICES else float(v)
        found_inf, grad_scale = (getattr(optimizer, name, None) for name in ("found_inf", "grad_scale"))
        for layout, addresses, _copies in work:
            with _on(layout.device):
                live = layout.live.upload(addresses, numbers, capturing)
                for i, v in tensors:
                    if v.device.type in DEVICES:
                        layout.live.numbers(live)[i].copy_(v.detach().reshape(()))
                layout.run(live, found_inf, grad_scale)
        return None

    def _holds(self, optimizer: "Fused") -> bool:
        """Say whether everything is as it was when the tables were laid out."""
        groups = optimizer.param_groups
        return (
            bool(self.layouts)
            and optimizer.state is self.owner
            and len(self.owner) == len(self.states)
            and all(map(is_, self.owner.values(), self.states))
            and all(map(is_, [groups[0][key] for key in COUNTERS], self.layouts[0].counters))
            and [optimizer._structure(group) for group in groups] == self.structure
            and sum(len(group["params"]) for group in groups) == len(self.params)
            and all(map(is_, chain.from_iterable(group["params"] for group in groups), self.params))
            and all(p.grad is None for p in self.outside)
            and all(layout.holds() for layout in self.layouts)
        )

    def _lay_out(self, optimizer: "Fused", capturing: bool) -> None:
        """Lay all tables out: parameters, state or structure are not what they were."""
        if capturing:
            raise RuntimeError("this step cannot be captured: call step() once like this before you capture it")
        from o2nc.kernels import layout as tables
        from o2nc.kernels.laws import device_law

        groups = optimizer.param_groups
        self.params = [p for group in groups for p in group["params"]]
        for p in self.params:
            if p.grad is not None:
                checks.gradient(p.grad)
        law, seed, average = (groups[0][key] for key in ("scaling", "seed", "average"))
        form, rule = device_law(law), optimizer._rule()
        assert form is not None, "why_not was not asked"
        assert rule is not None, "why_not was not asked"
        lanes = optimizer._lanes()
        inside = {id(lane.param) for lane in lanes}
        self.outside = [p for p in self.params if id(p) not in inside]
        layouts = []
        for device in dict.fromkeys(lane.param.device for lane in lanes):
            counters = tables.Counters.on(device, [groups[0][key] for key in COUNTERS])
            here = [lane for lane in lanes if lane.param.device == device]
            with _on(device):
                layouts.append(tables.Layout(here, rule, form, seed, counters, average, len(groups)))
        for group in groups:
            group.update(zip(COUNTERS, layouts[0].counters, strict=True))
        self.forget()
        self.layouts = layouts
        self.owner = optimizer.state
        self.states = list(self.owner.values())
        self.structure = [optimizer._structure(group) for group in groups]


def _on(device: torch.device) -> Any:
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)
