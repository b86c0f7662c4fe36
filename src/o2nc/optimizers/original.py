"""Algorithm 1, the original O2NC (Cutkosky, Mehta and Orabona 2023).

    x_n = x_{n−1} + Δ_n,   w_n = x_{n−1} + s_n Δ_n,   s_n ~ U[0, 1],   g_n = ∇f(w_n)

and the output is uniform over the block averages w̄_k of ``period`` consecutive w's. The paper's listing takes the
gradient at x_n; the identity F(x_n) − F(x_{n−1}) = E⟨∇F(w_n), Δ_n⟩ needs it at w_n.

The parameters hold w_n when the gradient is taken. x_n needs no buffer, since s_n can be computed again:
x_n = w_n + (1 − s_n)Δ_n, and so one call moves w_n to w_{n+1} = w_n + (1 − s_n)Δ_n + s_{n+1}Δ_{n+1}.
"""

from typing import Any, ClassVar

from torch.optim.optimizer import ParamsT

from o2nc import averages, checks
from o2nc.averages import Blocks
from o2nc.laws import Uniform
from o2nc.learners import Learner
from o2nc.optimizers.base import CertifiedOptimizer
from o2nc.optimizers.learned import BLOCK_FIELDS, FOREIGN, Learned, check_learner
from o2nc.optimizers.readout import Published
from o2nc.state import Field, Fields, Kind
from o2nc.step import Step


class OriginalO2NC(CertifiedOptimizer):
    """Algorithm 1: gradients between the iterates, averages over blocks.

    ``averaged()``, ``certificate()`` and ``output()`` speak of completed blocks, with uniform weights.

    Args:
        params: parameters or parameter groups; a group may have an ``lr`` of its own.
        learner: an online learner, as a rule one on a ball, such as `BallOGD`.
        period: T >= 1, the length of a block.
        seed: a non-negative integer.
        restart: begin every block with a new learner (the learner runs on otherwise).

    Example:
        >>> import torch, o2nc
        >>> x = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> opt = o2nc.OriginalO2NC([x], o2nc.learners.BallOGD(lr=0.005, radius=0.02), period=50)
        >>> for _ in range(500):
        ...     opt.zero_grad()
        ...     x.abs().sum().backward()
        ...     opt.step()
        >>> opt.certificate(c=1.0).value < 1.0
        True
    """

    foreign: ClassVar[frozenset[str]] = FOREIGN
    shared: ClassVar[tuple[str, ...]] = ("learner", "period", "seed", "restart", "step")
    needed: ClassVar[tuple[str, ...]] = ("lr", "learner", "period")
    published: ClassVar[Published] = Published(
        average="block_average",
        spread="block_spread",
        gradient_squared="block_gradient_squared",
        nothing_yet="no block is complete before step() was called `period` times",
    )

    def __init__(
        self, params: ParamsT, learner: Learner, *, period: int, seed: int = 0, restart: bool = False
    ) -> None:
        check_learner(learner)
        checks.integer("period", period, 1)
        checks.integer("seed", seed, 0)
        checks.flag("restart", restart)
        defaults = {
            "lr": learner.lr,
            "learner": learner,
            "period": period,
            "seed": int(seed),
            "restart": restart,
            "step": 0,
        }
        super().__init__(params, defaults)
        self._refuse_partial()

    def fields_for(self, group: dict[str, Any]) -> Fields:
        """Return the state that is kept per parameter."""
        kept = averages.FIELDS | {"output": Field(Kind.SHAPED, like="average", on_host=True)} | BLOCK_FIELDS
        return kept | Learned(group["learner"], 1.0).fields

    @property
    def _window(self) -> Blocks:
        return Blocks(self.param_groups[0]["period"])

    def _describe(self, step: Step) -> Step:
        group = step.groups[0]
        block, left = divmod(group["step"] + 1, group["period"])
        return step._replace(
            rule=Learned(group["learner"], 1.0),
            law=Uniform(0, 1),
            fused=False,
            between=True,
            block=0 if left else block,
            restarts=group["restart"] and not left,
        )
