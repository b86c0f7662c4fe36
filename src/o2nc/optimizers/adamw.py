"""``torch.optim.AdamW`` with averages."""

from typing import Any

from torch import optim

from o2nc.averages.windows import Window
from o2nc.fused.engine import DeviceRule
from o2nc.optimizers.base import Averaged
from o2nc.optimizers.sgd import OPTIONS, check_numbers, wants_fused
from o2nc.persist.plain import KEY


class AdamW(Averaged, optim.AdamW):
    """``torch.optim.AdamW``, bitwise, with weights x̄ that need no schedule.

    It takes all arguments of ``torch.optim.AdamW``, and ``average``, ``scaling``, ``seed``, ``certificate`` and
    ``offload`` as `Averaged` describes them.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.AdamW(model.parameters(), lr=1e-2, average=o2nc.Polynomial(12, every=8))
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
    """

    is_linear_in_lr = True
    shared_options = OPTIONS
    device_rule = DeviceRule("o2nc.fused.rules.adamw:adamw")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as in torch; averages, law and seed are those of all groups."""
        super().add_param_group(param_group)
        check_numbers(self.param_groups[-1], ("lr", "eps", "weight_decay"))

    def _device_rule(self, window: Window | None, law: Any) -> DeviceRule | None:
        wants = wants_fused(self.param_groups, has_torchs=True)
        nothing = window is None and law is None and not wants
        if wants is False or nothing or self.param_groups[0][KEY]["offload"] or self.defaults["differentiable"]:
            return None
        return self.device_rule
