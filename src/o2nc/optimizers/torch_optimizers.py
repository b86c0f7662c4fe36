"""``torch.optim.SGD`` and ``torch.optim.AdamW`` with averages: the rule is torch's own step."""

from typing import Any

from torch import optim

from o2nc.fused.rule import DeviceRule
from o2nc.optimizers import auto_lr
from o2nc.optimizers.base import Averaged


class SGD(Averaged, optim.SGD):
    """``torch.optim.SGD``, bitwise, with weights x̄ that need no schedule.

    It takes all arguments of ``torch.optim.SGD``, and ``average``, ``scaling``, ``seed``, ``certificate`` and
    ``offload`` as `o2nc.extend` describes them.

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
    ``offload`` as `o2nc.extend` describes them. On a GPU it is bitwise torch's fused step.

    With ``lr="auto"`` the shapes of the parameters give lr, which warms up over 100 steps unless there is a scheduler
    or you set lr; ``param_groups[i]["lr"]`` shows it. For a language model add ``tokens``, of a step, of all
    processes and micro-batches together (docs/no-learning-rate.md).

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

    def __init__(self, params: Any, lr: Any = 1e-3, *args: Any, tokens: int | None = None, **kwargs: Any) -> None:
        is_auto = isinstance(lr, str) and lr == auto_lr.AUTO
        if tokens is not None and not is_auto:
            raise ValueError(f'tokens is for lr="auto" alone, got tokens={tokens!r} and lr={lr!r}')
        super().__init__(params, auto_lr.PLACEHOLDER if is_auto else lr, *args, **kwargs)
        if is_auto:
            auto_lr.start_warm_up(self, tokens)
