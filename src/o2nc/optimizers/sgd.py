"""``torch.optim.SGD`` with averages."""

from typing import Any

from torch import Tensor, optim

from o2nc import checks
from o2nc.averages.windows import Window
from o2nc.fused import engine
from o2nc.fused.engine import OBSERVE, DeviceRule
from o2nc.optimizers.base import Averaged
from o2nc.persist.plain import KEY

OPTIONS = frozenset(("average", "scaling", "seed", "certificate", "offload"))


def wants_fused(groups: list[dict[str, Any]], has_torchs: bool) -> bool | None:
    """Return what the groups ask for: True insists on our kernels, None takes them where they apply, False does not.

    Args:
        groups: the parameter groups.
        has_torchs: whether ``fused=True`` means torch's own fused step where ours does not run.
    """
    here = any(p.device.type in engine.DEVICES for group in groups for p in group["params"][:1])
    demanded = any(group.get("fused") is True for group in groups)
    refused = any(group.get("fused") is False or group.get("foreach") is not None for group in groups)
    if demanded:
        return True if here or not has_torchs else False
    return None if here and not refused else False


def check_numbers(group: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise unless these options of a group are finite numbers, or tensors."""
    for name in names:
        if not isinstance(group[name], Tensor):
            checks.number(name, group[name], "a finite number", lambda v: True)


class SGD(Averaged, optim.SGD):
    """``torch.optim.SGD``, bitwise, with weights x̄ that need no schedule.

    It takes all arguments of ``torch.optim.SGD``, and ``average``, ``scaling``, ``seed``, ``certificate`` and
    ``offload`` as `Averaged` describes them.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Linear(3, 1)
        >>> opt = o2nc.SGD(model.parameters(), lr=0.1, momentum=0.9, average=o2nc.Polynomial(12, every=8))
        >>> for _ in range(20):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 3)).abs().mean().backward()
        ...     opt.step()
        >>> with opt.averaged():
        ...     loss = model(torch.ones(4, 3)).abs().mean()
    """

    is_linear_in_lr = couples_decay = True
    shared_options = OPTIONS
    device_rule = DeviceRule("o2nc.fused.rules.sgd:sgd")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as in torch; averages, law and seed are those of all groups."""
        super().add_param_group(param_group)
        check_numbers(self.param_groups[-1], ("lr", "momentum", "dampening", "weight_decay"))

    def _device_rule(self, window: Window | None, law: Any) -> DeviceRule | None:
        wants = wants_fused(self.param_groups, has_torchs=True)
        if wants is False or self.param_groups[0][KEY]["offload"] or self.defaults["differentiable"]:
            return None
        if law is None:  # torch's own step is bitwise torch's
            return None if window is None else OBSERVE
        return self.device_rule
