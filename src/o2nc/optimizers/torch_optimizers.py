"""``torch.optim.SGD`` and ``torch.optim.AdamW`` with averages: the rule is torch's own step."""

from typing import Any

from torch import optim

from o2nc.fused.rule import DeviceRule
from o2nc.optimizers.auto_lr import AUTO, FIRST, begin_probe
from o2nc.optimizers.base import Averaged


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

    is_linear_in_lr = couples_decay = torch_has_fused = True
    numbers = ("lr", "momentum", "dampening", "weight_decay")
    state_keys = frozenset(("momentum_buffer",))
    device_rule = DeviceRule("o2nc.fused.rules.sgd:sgd")


class AdamW(Averaged, optim.AdamW):
    """``torch.optim.AdamW``, bitwise, with weights x̄ that need no schedule.

    It takes all arguments of ``torch.optim.AdamW``, and ``average``, ``scaling``, ``seed``, ``certificate`` and
    ``offload`` as `Averaged` describes them. On a GPU it is bitwise torch's fused step.

    With ``lr="auto"`` a probe of about 30 steps (at most 200) finds a learning rate. The parameters then go most of
    the way back to their initial values, and lr warms up over 100 steps. With an average, lr falls from there as far
    as the noise of the gradients demands, until you set it; ``param_groups[i]["lr"]`` shows it. The averages skip the
    probe. Buffers, such as BatchNorm statistics, do not go back.

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

    is_linear_in_lr = torch_has_fused = True
    numbers = ("lr", "betas", "eps", "weight_decay")
    state_keys = frozenset(("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
    device_rule = DeviceRule("o2nc.fused.rules.adamw:adamw", is_bitwise=True)

    def __init__(self, params: Any, lr: Any = 1e-3, *args: Any, **kwargs: Any) -> None:
        is_auto = isinstance(lr, str) and lr == AUTO
        super().__init__(params, FIRST if is_auto else lr, *args, **kwargs)
        if is_auto:
            begin_probe(self)
