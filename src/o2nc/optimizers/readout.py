"""What an optimizer with averages offers between two steps: x̄, the certificate, a diagnosis, a new beginning."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from o2nc.certificates import diagnosis
from o2nc.certificates.certificate import Certificate
from o2nc.certificates.diagnosis import Diagnosis
from o2nc.optimizers import accessors
from o2nc.optimizers.accessors import NoAverages
from o2nc.optimizers.swap import Swap
from o2nc.persist.plain import KEY


class Readout:
    """The methods that read the averages, for `o2nc.optimizers.base.Averaged`."""

    def averaged(self, model: nn.Module | None = None, *, batches: Iterable[Any] | None = None) -> Swap:
        """Put x̄ into the parameters inside a ``with`` block and restore them bitwise on leaving it.

        Changes made to the parameters inside are lost; ``step()`` inside is refused.

        Args:
            model: the model, if its BatchNorm statistics are to be recomputed for x̄ as well.
            batches: inputs of the model, as in `o2nc.recalibrated`.
        """
        return Swap([self], model, batches)

    def averaged_state_dict(self, model: nn.Module) -> dict[str, Any]:
        """Return a copy of ``model.state_dict()`` with x̄ in place of this optimizer's parameters, to save and ship.

        Nothing in it shares memory with the model. Buffers, BatchNorm statistics among them, are copies of the
        model's; inside ``averaged(model, batches=…)`` they are those of x̄.
        """
        return accessors.averaged_state_dict(self, model)

    def certificate(self, c: float = 1.0) -> Certificate:
        """Return ‖ḡ‖ + c·V, an upper bound on ‖∇F(x̄)‖_c when the gradients are full ones.

        It is collective where parameters are sharded.

        Args:
            c: the price of spread, > 0.

        Returns:
            The certificate of all parameters together; ``.by_parameter`` has every one's own.
        """
        return accessors.certificate(self, c)

    def restart_averages(self: Any) -> None:
        """Begin the averages anew at the next iterate that counts, as after a gradient that was not finite.

        x̄ and the certificate then know nothing of what came before, and nor do ``output()`` and ``progress``. The
        parameters, their update and the law of s are left alone.

        Raises:
            NoAverages: there is no window, or one without ``start``.
            RuntimeError: a CUDA graph has captured the step, which would go on as before.
        """
        settings: dict[str, Any] = self.param_groups[0][KEY]
        window = settings["average"]
        if window is None:
            raise NoAverages(f"restart_averages(): this optimizer was made with {self.advice}")
        if "start" not in window:
            raise NoAverages(f"restart_averages() needs a window that has start, got average={self._window!r}")
        if self._engine.has_captured:
            raise RuntimeError("restart_averages(): a CUDA graph has captured step(), and would go on as before")
        # γ = 1 at the first iterate that counts: nothing is left of what was there
        settings["average"] = window | {"start": int(settings["step"])}
        for entry in self._entries().values():
            entry["since"] = 1
            if "progress" in entry:
                entry["progress"].zero_()
        self._note_settings()
        self._finite_at = int(settings["step"])

    def diagnose(self, loss: Callable[[], Any] | None = None) -> Diagnosis:
        """Return what the run is doing, in one word, with its evidence and one action. It changes nothing.

        It is collective where parameters are sharded. After a checkpoint was loaded it is "too early" at first.

        Args:
            loss: a function without arguments that returns a scalar, F on a batch, say. It is called without
                gradients at x and at x̄, with the same random numbers, for ``evidence["heat"]``.
        """
        return diagnosis.diagnose(self, loss)
