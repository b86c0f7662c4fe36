"""The public methods of an optimizer with averages: x̄, certificate, diagnosis, restart."""

import copy
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from o2nc import checks
from o2nc.averages.reading import NoAverages, decays_of, entries_of, parameter_names, readable
from o2nc.certificates import diagnosis
from o2nc.certificates.certificate import Certificate
from o2nc.certificates.diagnosis import Diagnosis
from o2nc.optimizers.swap import Swap, warn_if_left_out
from o2nc.persist.plain import AVERAGED, KEY
from o2nc.vector import total, values


class Accessors:
    """Methods of `o2nc.optimizers.base.Averaged` that read or restart the averages."""

    def averaged(self, model: nn.Module | None = None, *, batches: Iterable[Any] | None = None) -> Swap:
        """Put x̄ into the parameters inside a ``with`` block and restore them bitwise on leaving it.

        Changes made to the parameters inside are lost; ``step()`` inside is refused.

        Args:
            model: the model; needed to recompute its BatchNorm statistics for x̄.
            batches: inputs of the model, on its device: tensors, or tuples or lists that start with one (the rest,
                such as labels, is ignored), or dictionaries of keyword arguments. Every batch goes through the model
                once; its BatchNorm layers then have the statistics that `torch.optim.swa_utils.update_bn` computes,
                and on leaving the block those of x again.
        """
        return Swap([self], model, batches)

    @torch.no_grad()
    def averaged_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return a copy of ``model.state_dict()`` with x̄ in place of this optimizer's parameters, to save and ship.

        Nothing in it shares memory with the model. Buffers, BatchNorm statistics among them, are copies of the
        model's; inside ``averaged(model, batches=…)`` they are those of x̄. With several optimizers call it inside
        ``with o2nc.averaged(opt1, opt2):``.

        Warns:
            UserWarning: trainable parameters of the model are not this optimizer's, and hold no x̄.
        """
        entries, _ = readable(self, "averaged_state_dict()")
        warn_if_left_out(model, [self], "averaged_state_dict()")
        found: dict[str, Any] = model.state_dict(keep_vars=True)  # its versions are in an attribute: keep the object
        if any(p in entries and found.get(name, p) is not p for name, p in model.named_parameters()):
            raise ValueError(
                "this model's state_dict() has copies of its parameters: call and clone it in averaged()"
            )
        for name, value in found.items():
            found[name] = value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
            if isinstance(value, Tensor) and value in entries:
                values([found[name]])[0].copy_(entries[value]["average"])
        return found

    @torch.no_grad()
    def certificate(self: Any, c: float = 1.0) -> Certificate:
        """Return ‖ḡ‖ + c·V, an upper bound on ‖∇F(x̄)‖_c if the gradients are exact (not those of minibatches).

        Under sharding it is a collective: call it on every process.

        Args:
            c: the price of spread, > 0.

        Returns:
            The certificate of all parameters together; ``.by_parameter`` has one for each.
        """
        checks.positive("c", c)
        c = float(c)
        settings = self.param_groups[0][KEY]
        if settings["average"] is not None and not settings["certificate"]:
            raise NoAverages("certificate(): this optimizer was made with certificate=False; pass certificate=True")
        entries, n = readable(self, "certificate()")
        ess = {since: self._window.ess(n, since) for since in {entry["since"] for entry in entries.values()}}
        decays, sums = decays_of(self), []
        for p, entry in entries.items():
            gradient = entry["gradient"]
            if decays[p]:  # averages are linear: ḡ of F + (λ/2)‖x‖²
                gradient = gradient.add(entry["average"], alpha=decays[p])
            sums.append((torch.linalg.vector_norm(gradient, dtype=torch.float64).square(), entry["spread"]))
        home = sums[0][0].device
        columns = [torch.stack([v.to(home) for v in column]) for column in zip(*sums, strict=True)]
        squares, spreads = total(torch.stack(columns), list(entries)).tolist()
        names = parameter_names(self)
        parts = {
            names[p]: Certificate(c, math.sqrt(square), spread, ess[entry["since"]])
            for (p, entry), square, spread in zip(entries.items(), squares, spreads, strict=True)
        }
        self._warn_if_broken({name: part.gradient + part.spread for name, part in parts.items()})
        gradient = math.hypot(*(part.gradient for part in parts.values()))  # squares may overflow
        return Certificate(c, gradient, sum(spreads), min(ess.values()), parts)

    def _warn_if_broken(self: Any, values: dict[str | int, float]) -> None:
        """Warn that a certificate is not finite, in the same words until it is, so that Python shows them once."""
        settings, names = self.param_groups[0][KEY], [k for k, v in values.items() if not math.isfinite(v)]
        if not names:
            self._finite_at = int(settings["step"])
            return
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        advice = "; once they are finite again, restart_averages() starts the averages again"
        warnings.warn(
            f"the certificate is not finite: an iterate or a gradient of {', '.join(map(str, names[:3]))}{more} was "
            f"not finite after step {self._finite_at} (ask for certificates more often to narrow it down)"
            f"{advice if 'start' in settings['average'] else ''}",
            stacklevel=4,
        )

    def restart_averages(self: Any) -> None:
        """Restart the averages at the next iterate that counts, after a gradient that was not finite, say.

        x̄, the certificate, ``output()`` and ``progress`` then forget what came before. The parameters and the rest of
        the optimizer's state do not change.

        Raises:
            NoAverages: there is no window, or one without ``start``.
            RuntimeError: a CUDA graph has captured the step and would not notice.
        """
        settings: dict[str, Any] = self.param_groups[0][KEY]
        window = settings["average"]
        if window is None:
            raise NoAverages(f"restart_averages(): this optimizer was made with {self.advice}")
        if "start" not in window:
            raise NoAverages(f"restart_averages() needs a window that has start, got average={self._window!r}")
        if self._engine.has_captured:
            raise RuntimeError("restart_averages(): a CUDA graph has captured step() and would not notice")
        # γ = 1 at the first iterate that counts: nothing is left of what was there
        settings["average"] = window | {"start": max(window["start"], int(settings["step"]))}
        settings.pop(AVERAGED, None)  # of a step that failed
        for entry in entries_of(self).values():
            entry["since"] = 1
            if "progress" in entry:
                entry["progress"].zero_()
        self._read_settings()
        self._finite_at = int(settings["step"])

    def diagnose(self, loss: Callable[[], Any] | None = None) -> Diagnosis:
        """Return what the run is doing: a one-word verdict, its evidence and one action. It changes nothing.

        Under sharding it is a collective. After loading a checkpoint the verdict is "too early" at first.

        Args:
            loss: a function without arguments that returns the loss on some batch. It is called at x and at x̄,
                without gradients and with the same random numbers, for ``evidence["heat"]``.
        """
        return diagnosis.diagnose(self, loss)
