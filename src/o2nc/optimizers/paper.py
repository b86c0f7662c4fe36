"""What the paper's optimizers have beyond averages: the output of the theorems, and the progress.

    output()    x̄_n for a random n
    progress    Σ w(s_n)⟨g_n, Δ_n⟩, an estimate of F(x_n) − F(x_1) that needs no evaluation of F

Both need Δ, the update before scaling, which these optimizers know from their state. So a parameter's entry has, beside
the averages, ``output``, ``progress`` and ``rate``: Δ = rate·u, with a direction u that the subclass knows.
"""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.averages.update import Entry, dots
from o2nc.averages.windows import Discount, Window
from o2nc.optimizers.accessors import NoAverages, published
from o2nc.optimizers.base import Averaged
from o2nc.persist.plain import KEY
from o2nc.persist.shards import assemble, is_sharded, local, total
from o2nc.scaling import OUTPUT, SETTLING, progress_weight, uniform


def check_output(output: Any, window: Window | None) -> None:
    """Raise unless ``output`` names a law of n that goes with the window."""
    checks.choice("output", output, ("uniform", "geometric"))
    if output == "geometric" and window is not None and not isinstance(window, Discount):
        raise ValueError(f'output="geometric" needs an average with a discount β in (0, 1), got average={window!r}')


class Paper(Averaged):
    """Keeps what ``output()`` and ``progress`` need, in the state of the averages."""

    shaped_entries = Averaged.shaped_entries | {"output", "update", "delta", "last_average", "last_gradient"}

    def _begin_output(self, output: str) -> None:
        settings = self.param_groups[0][KEY]
        check_output(output, self._window)
        settings["output"] = output
        settings["pending"] = torch.zeros(
            (), dtype=torch.int64, device="cpu"
        )  # an output is drawn, but not taken yet

    @torch.no_grad()
    def _update_averages(self, params: list[Any], window: Window, t: int) -> dict[Any, Entry]:
        """Add to the progress, take x_t in, and keep x̄ if it is the output."""
        is_new = not self._has_averaged
        if is_new:
            self._add_progress(t)
        for p, entry in super()._update_averages(params, window, t).items():
            self.state[p].setdefault(KEY, {}).update(entry | self._new_entry(p, entry))
        k = window.complete(t)
        if is_new and k and window.counts(t) and self._takes_output(k, window):
            for entry in self._local_entries(self._entries().values()):
                entry["output"].copy_(entry["average"])
        return {}

    def _new_entry(self, p: Any, entry: Entry) -> Entry:
        """Return what is kept of a parameter beside its averages."""
        zero = torch.zeros((), dtype=torch.float64, device=p.device)
        kept = torch.empty_like(local(entry["average"]), device="cpu", pin_memory=p.is_cuda)
        return {"output": kept.copy_(local(entry["average"])), "progress": zero, "rate": zero.clone()}

    def _takes_output(self, k: int, window: Window) -> bool:
        """Return whether the k-th average becomes the output: a reservoir of size one, perhaps with a delay."""
        settings = self.param_groups[0][KEY]
        drawn = uniform(settings["seed"], k, stream=OUTPUT) * k < 1 or bool(settings["pending"])
        takes = uniform(settings["seed"], k, stream=SETTLING) < take_probability(settings["output"], window)
        settings["pending"].fill_(int(drawn and not takes))
        return drawn and takes

    def _add_progress(self, t: int) -> None:
        """Add w(s_t)⟨g_t, Δ_t⟩."""
        settings = self.param_groups[0][KEY]
        entries = {p: entry for p, entry in self._entries().items() if p.grad is not None}
        if not entries or t == 1:
            return
        weight = self._progress_weight(settings["seed"], t)
        found = self._local_entries(entries.values())
        gradients, directions = self._rule_gradients(list(entries), found), self._directions(list(entries), found)
        for entry, product in zip(found, dots(gradients, directions), strict=True):
            gain = torch.where(entry["rate"] == 0, 0.0, entry["rate"] * product)  # it may not have moved
            entry["progress"].add_(gain, alpha=weight)

    def _progress_weight(self, seed: int, t: int) -> float:
        return progress_weight(self._law, seed, t)

    @abstractmethod
    def _rule_gradients(self, params: list[Any], entries: list[Entry]) -> list[Tensor]:
        """Return the gradients as the rule sees them, in the averages' dtype."""

    @abstractmethod
    def _directions(self, params: list[Any], entries: list[Entry]) -> list[Tensor]:
        """Return u of the updates Δ = rate·u that led to x_t, in the averages' dtype."""

    # --- what it says

    def output(self) -> list[Tensor]:
        """Return x̄_n for a random n: the output that the theorems speak of.

        n is uniform over all averages so far, or as ``output`` said when the optimizer was made.

        Returns:
            A copy for every parameter, in the order of the parameter groups and in the dtype of the averages; a
            parameter that never had a gradient is returned as it stands.
        """
        published(self, "output()")  # says why there is none
        settings, entries = self.param_groups[0][KEY], self._entries()
        self._engine.wait()
        key = "average" if bool(settings["pending"]) else "output"
        result = []
        for p in (p for group in self.param_groups for p in group["params"]):
            if p not in entries:
                result.append(p.detach().clone())
                continue
            kept = local(entries[p][key]).to(p.device, copy=True)
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
        settings, entries = self.param_groups[0][KEY], self._entries()
        if settings["average"] is None or int(settings["step"]) == 0:
            published(self, "progress")
        if not entries:
            raise NoAverages("progress: no parameter has had a gradient yet")
        values = torch.stack([entry["progress"].to("cpu") for entry in entries.values()])
        return math.fsum((total(values, list(entries)) if self._is_sharded else values).tolist())


def take_probability(output: str, window: Window) -> float:
    """Return the probability with which a drawn output is taken at an average: 1, or with "geometric" 1 − β."""
    return 1 - window.beta**window.every if output == "geometric" and isinstance(window, Discount) else 1.0
