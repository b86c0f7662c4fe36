"""Algorithm 1, the original O2NC (Cutkosky, Mehta and Orabona 2023).

    x_n = x_{n−1} + Δ_n,   w_n = x_{n−1} + s_n Δ_n,   s_n ~ U[0, 1],   g_n = ∇f(w_n)

and the output is uniform over the block averages w̄_k of ``period`` consecutive w's. The paper's listing takes the
gradient at x_n; the identity F(x_n) − F(x_{n−1}) = E⟨∇F(w_n), Δ_n⟩ needs it at w_n.

The parameters hold w_n when the gradient is taken. x_n needs no buffer, since s_n can be computed again:
x_n = w_n + (1 − s_n)Δ_n, and so one call moves w_n to w_{n+1} = w_n + (1 − s_n)Δ_n + s_{n+1}Δ_{n+1}.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from o2nc import checks
from o2nc.averaging import Weights
from o2nc.certified import Certified
from o2nc.learners import Learner
from o2nc.optimizer import FOREIGN, active, average_, check_learner, play
from o2nc.persistence import Persistent
from o2nc.scaling import Uniform
from o2nc.stepping import refuse_capture

_LAW = Uniform(0, 1)
_ALL_GONE = 1e3  # as a decay: nothing is left of e^{−1000} in float64


class OriginalO2NC(Certified, Persistent):
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
    _average_key = "block_average"
    _late: ClassVar[dict[str, str]] = {
        "block_average": "average",
        "block_spread": "spread",
        "block_gradient_squared": "spread",
        "output": "average",
    }
    _nothing_yet = "no block is complete before step() was called `period` times"

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

    def _squares_and_spreads(self, states: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        keys = ("block_gradient_squared", "block_spread")
        squares, spreads = (torch.stack([state[key].to(states[0][key].device) for state in states]) for key in keys)
        return squares, spreads

    def _ess(self, states: list[dict[str, Any]]) -> list[float]:
        return [float(self.param_groups[0]["period"])] * len(states)

    def _weights(self) -> Weights:
        return self._weights_at(self.param_groups[0]["step"])

    def _weights_at(self, n: int) -> Weights:
        """Return the weights after n steps: uniform within a block, and nothing is left of the blocks before."""
        block, steps = divmod(max(n, 1) - 1, self.param_groups[0]["period"])
        return Weights(steps + 1, steps + 1, _ALL_GONE * block + math.log(steps + 1))

    @torch.no_grad()
    def _take(self) -> None:
        learner, period, seed, restart, step = (self.param_groups[0][key] for key in self.shared)
        refuse_capture(self, _LAW)
        n = step + 1
        before, after = self._weights_at(step), self._weights_at(n)
        found = active(self, learner, after)
        if found is None:
            return
        moving = found.moving
        average_(self, moving, (before.log_decay, after.log_decay), 1 / after.total, seed, n)
        moving.move_(1 - _LAW.sample(seed, n))
        for group in self.param_groups:
            group["step"] = n
        block_ends = n % period == 0
        if block_ends:
            self._complete_block(seed, n // period)
        if block_ends and restart:
            for state in self.state.values():
                state["delta"].zero_()
                state.update(learner.init(state["delta"]))
        else:
            play(learner, found, 1.0)
        for p in self._absent():
            self.state[p]["delta"].zero_()  # it stays at w_n, which so becomes its x_n
        moving.move_(_LAW.sample(seed, n + 1))

    def _complete_block(self, seed: int, k: int) -> None:
        """Publish w̄_k and its certificate; the running averages go on as the next block's."""
        self._catch_all_up()
        self._keep_output(seed, k)
        for state in self.state.values():
            if "average" in state:
                norm = torch.linalg.vector_norm(state["gradient"], dtype=torch.float64)
                state["block_gradient_squared"] = norm.square()
                state["block_spread"] = state["spread"].clone()
                state["block_average"] = state["average"].clone()
