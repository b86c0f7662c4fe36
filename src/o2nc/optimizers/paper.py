"""What the paper's optimizers have beyond averages, the output and the progress; and `ScaledSGDM`.

    output()    x̄_n for a random n
    progress    Σ w(s_n)⟨g_n, Δ_n⟩, an estimate of F(x_n) − F(x_1) that needs no evaluation of F

Both need Δ, the update before scaling, which these optimizers can recover from their state: Δ = rate·u, with a
direction u that the subclass knows. Beside the averages, a parameter's entry has ``output``, ``progress``, ``rate``.

`ScaledSGDM` is SGD with momentum whose update is multiplied by s ~ Exp(1),

    b_t = momentum·b_{t−1} + (1 − dampening)·g_t,   x_{t+1} = x_t − s_{t+1}·lr·b_t,

which is `ExponentiatedO2NC` with the learner `OGD` in torch's terms. For κ = 1, momentum β̃ = β/(1 + ημ), dampening β̃
and lr = βη/(1 − β + ημ); torch starts its buffer at g_1 where the theory starts at (1 − β̃)g_1, and the tests state
the exact map. The step itself is torch's own, so ``scaling=None`` is ``torch.optim.SGD`` bitwise.
"""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.averages.reading import NoAverages, entries_of, readable
from o2nc.averages.update import CPU_SLICE, DEVICE_SLICE, Entry, Iterate, Row, copied, dots
from o2nc.averages.windows import Average, Discount
from o2nc.fused.rule import DeviceRule
from o2nc.optimizers.base import Averaged
from o2nc.optimizers.torch_optimizers import SGD
from o2nc.persist.plain import AVERAGED, KEY
from o2nc.persist.shards import assemble
from o2nc.scaling import Draw, Exponential, Law
from o2nc.vector import is_sharded, total, values


class Paper(Averaged):
    """Adds ``output()`` and ``progress``; what they need is kept beside the averages."""

    has_progress = weighs_progress = True
    shaped_entries = Averaged.shaped_entries | {"output", "update", "delta", "last_average", "last_gradient"}

    def __init__(self, params: Any, *args: Any, output: str = "uniform", **kwargs: Any) -> None:
        checks.choice("output", output, ("uniform", "geometric"))
        super().__init__(params, *args, certificate=True, **kwargs)
        if output == "geometric" and self._window is not None and not isinstance(self._window, Discount):
            raise ValueError(
                f'output="geometric" needs an average with a discount β in (0, 1), got average={self._window!r}'
            )
        # whether an output is drawn that is not taken yet
        pending = torch.zeros((), dtype=torch.int64, device="cpu")
        self.param_groups[0][KEY] |= {"output": output, "pending": pending}

    @torch.no_grad()
    def _update_averages(self, iterate: Iterate) -> dict[Any, Entry]:
        """Update the progress, then the averages, and copy x̄ if it becomes the output; new entries are stored."""
        if self._window is None:
            return {}
        if AVERAGED not in self.param_groups[0][KEY]:
            self._add_progress(iterate)
        for p, entry in super()._update_averages(iterate).items():
            self.state[p][KEY].update(entry | self._new_entry(p, entry))
        if iterate.turn.counts and iterate.turn.complete and self._takes_output(iterate.draw):
            for row in iterate.rows:
                if "average" in row.entry:
                    row.entry["output"].copy_(row.entry["average"])
        return {}

    def _new_entry(self, p: Any, entry: Entry) -> Entry:
        """Return the entries that a parameter has beside its averages."""
        zero = torch.zeros((), dtype=torch.float64, device=p.device)
        return {"output": copied(entry["average"], offload=True), "progress": zero, "rate": zero.clone()}

    def _takes_output(self, draw: Draw) -> bool:
        """Return whether this average becomes the output: reservoir sampling, with a delay if "geometric"."""
        settings, window = self.param_groups[0][KEY], self._window
        drawn = draw.redraws or bool(settings["pending"])
        takes = drawn
        if isinstance(window, Discount) and settings["output"] == "geometric":
            takes = drawn and draw.accept < 1 - window.beta**window.every
        settings["pending"].fill_(int(drawn and not takes))
        return takes

    def _add_progress(self, iterate: Iterate) -> None:
        """Add w(s_t)⟨g_t, Δ_t⟩."""
        weight = iterate.draw.weight if self.weighs_progress else 1.0
        for rows in in_slices([row for row in iterate.rows if row.g is not None and "progress" in row.entry]):
            # named, so that their memory is not given back before the next run of rows wants as much
            seen, directions = self._rule_gradients(rows), self._directions(rows)
            for row, product in zip(rows, dots(seen, directions), strict=True):
                rate = row.entry["rate"]  # 0 for a parameter that did not move
                row.entry["progress"].add_(torch.where(rate == 0, 0.0, rate * product), alpha=weight)

    @abstractmethod
    def _rule_gradients(self, rows: list[Row]) -> list[Tensor]:
        """Return the gradients as the rule sees them, in the averages' dtype."""

    @abstractmethod
    def _directions(self, rows: list[Row]) -> list[Tensor]:
        """Return u of the updates Δ = rate·u that led to x_t, in the averages' dtype."""

    # --- accessors

    def output(self) -> list[Tensor]:
        """Return x̄_n for a random n: the output that the theorems speak of.

        n is uniform over all averages so far, or as ``output`` said when the optimizer was made.

        Returns:
            A copy for every parameter, in the order of the parameter groups and in the dtype of the averages; a
            parameter that never had a gradient is returned as it stands.
        """
        readable(self, "output()")  # raises with the reason if there is none
        settings, entries = self.param_groups[0][KEY], entries_of(self)
        self._engine.wait()
        key = "average" if bool(settings["pending"]) else "output"
        result = []
        for p in (p for group in self.param_groups for p in group["params"]):
            if p not in entries:
                result.append(p.detach().clone())
                continue
            kept = entries[p][key].to(p.device, copy=True)
            kept = torch.view_as_complex(kept) if p.is_complex() else kept
            result.append(assemble(p, kept) if is_sharded(p) else kept)
        return result

    @property
    def progress(self) -> float:
        """Σ w(s_n)⟨g_n, Δ_n⟩, an estimate of F(x_n) − F(x_1) that cost no evaluation of F.

        Where w is the law's weight it is unbiased. Laws whose weight has no finite variance, or whose support does
        not start at 0, have the mean of s in its place; then a term that telescopes is left out. Its noise adds up
        over the steps: with minibatches or long steps one run's value can be far off.
        """
        settings, entries = self.param_groups[0][KEY], entries_of(self)
        if settings["average"] is None or int(settings["step"]) == 0:
            readable(self, "progress")
        if not entries:
            raise NoAverages("progress: no parameter has had a gradient yet")
        shares = torch.stack([entry["progress"].to("cpu") for entry in entries.values()])
        return math.fsum(total(shares, list(entries)).tolist())


def in_slices(rows: list[Row]) -> list[list[Row]]:
    """Cut the rows into lists of about as many elements as `o2nc.averages.update` slices tensors to."""
    runs: list[list[Row]] = []
    elements = 0
    for row in rows:
        size = CPU_SLICE if row.x.device.type == "cpu" else DEVICE_SLICE
        if not runs or elements >= size:
            runs.append([])
            elements = 0
        runs[-1].append(row)
        elements += row.x.numel()
    return runs


class ScaledSGDM(Paper, SGD):
    """``torch.optim.SGD`` whose update is multiplied by a random scalar, with averages and a certificate.

    It takes all arguments of ``torch.optim.SGD``, ``average`` and ``seed`` as `o2nc.extend` describes them, and:

    Args:
        params: parameters or parameter groups.
        *args: further arguments of ``torch.optim.SGD``.
        scaling: the law of s, or None for ``torch.optim.SGD`` itself.
        seed: as in `o2nc.extend`.
        average: as in `o2nc.extend`; with one there is always a certificate.
        output: the law of n in ``output()``: "uniform" over all steps, or "geometric", uniform plus a geometric time
            of mean β/(1 − β), cut off at the end, for which more is proved (docs/paper.md).
        **kwargs: further arguments of ``torch.optim.SGD``. ``fused``: on a GPU one pass over memory, averages
            included; None takes it where it applies, True insists on it.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.ScaledSGDM(model.parameters(), lr=0.01, momentum=0.9, average=0.99)
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> certificate = opt.certificate(c=1.0)
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
    """

    def __init__(
        self,
        params: Any,
        *args: Any,
        scaling: Law | None = Exponential(),
        seed: int = 0,
        average: Average = None,
        output: str = "uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(params, *args, average=average, scaling=scaling, seed=seed, output=output, **kwargs)

    @property
    def device_rule(self) -> DeviceRule:  # type: ignore[override]
        """The rule as kernels, with the progress where there are averages."""
        return DeviceRule("o2nc.fused.rules.sgd:" + ("sgd" if self._window is None else "scaled_sgdm"))

    def _move(self, iterate: Iterate, closure: Any = None) -> None:
        """Run torch's step; store the direction of the update where the momentum buffer is not it."""
        averaged = [row for row in iterate.rows if "rate" in row.entry]
        moved = [row for row in averaged if row.g is not None]
        kept = [row for row in moved if row.group["momentum"] == 0 or row.group["nesterov"]]
        directions = [g.clone() for g in self._rule_gradients(kept)]
        super()._move(iterate)
        with torch.no_grad():
            for row in averaged:
                lr = row.group["lr"]
                row.entry["rate"].fill_(0.0 if row.g is None else -lr.reshape(()) if isinstance(lr, Tensor) else -lr)
                if row.g is not None:
                    row.entry.pop("update", None)
            for row, direction, buffer in zip(kept, directions, self._buffers(kept), strict=True):
                row.entry["update"] = direction.add_(buffer, alpha=row.group["momentum"])

    @torch.no_grad()
    def _rule_gradients(self, rows: list[Row]) -> list[Tensor]:
        """Return ±g + λx."""
        found = []
        for row in rows:
            g = row.g.detach().to(row.entry["average"].dtype)
            g = -g if row.group["maximize"] else g
            decay = float(row.group["weight_decay"])
            found.append(torch.add(g, row.x.to(g.dtype), alpha=decay) if decay else g)
        return found

    def _directions(self, rows: list[Row]) -> list[Tensor]:
        return [row.entry.get("update", b) for row, b in zip(rows, self._buffers(rows), strict=True)]

    def _buffers(self, rows: list[Row]) -> list[Tensor]:
        """Return the momentum buffers in the averages' dtype; zeros where there is none."""
        pairs = [(self.state[row.param].get("momentum_buffer"), row.entry["average"]) for row in rows]
        return [torch.zeros_like(x) if b is None else values([b])[0].to(x.dtype) for b, x in pairs]
