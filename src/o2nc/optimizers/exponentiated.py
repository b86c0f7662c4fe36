"""Algorithm 2, Exponentiated O2NC: any online learner as a torch optimizer.

    g_t = ∇f(x_t)                           the gradient at the iterate itself
    Δ_{t+1} = learner(g_t)                  on the losses β^{−t}⟨g_t, Δ⟩ + (μ_t/2)‖Δ‖²
    x_{t+1} = x_t + s_{t+1} Δ_{t+1}         s ~ Exp(1), one scalar for all parameters
    x̄_t, ḡ_t, V_t                           β-weighted averages: ‖∇F(x̄_t)‖_c <= ‖ḡ_t‖ + cV_t

At call t = 1, 2, … of ``step`` the parameters are x_t and ``.grad`` is g_t (x_1 = x_0, since Δ_1 = 0); the call
takes them into the averages, asks the learner and moves the parameters to x_{t+1}.
"""

from typing import Any, ClassVar

from torch.optim.optimizer import ParamsT

from o2nc import averages, checks
from o2nc.averages import Average, check_average, check_output
from o2nc.learners import Learner
from o2nc.optimizers.base import CertifiedOptimizer
from o2nc.optimizers.learned import FOREIGN, Learned, check_learner
from o2nc.scaling import Exponential, Law, check_law
from o2nc.state import Fields
from o2nc.step import COUNTERS, Step


class ExponentiatedO2NC(CertifiedOptimizer):
    """Algorithm 2: learner × scaling × averaging.

    Args:
        params: parameters or parameter groups; a group may have an ``lr`` and a ``weight_decay`` of its own.
        learner: the online learner that plays the updates; ``param_groups[i]["lr"]`` starts at its ``lr``.
        beta: β in (0, 1), the discount of the losses and of the averages.
        scaling: the law of s, or None for no scaling (then no guarantee holds).
        seed: a non-negative integer; s_n is a pure function of it and n. Two optimizers of one program, as a GAN has
            them, draw the same s with the same seed: give each its own.
        average: the window of x̄, ḡ and V: True is Algorithm 2's, with β; a number in (0, 1) or `o2nc.Polynomial` is
            another; False or None saves the memory of x̄, ḡ and the kept output, and there is no certificate.
        fused: one pass over memory on a GPU; None takes it where it applies, True insists on it.
        weight_decay: λ >= 0, decoupled as in AdamW: Δ becomes Δ − lr·λx, with the group's lr, and gradients stay
            those of F. The lr of `ScaleFree` is smaller than Adam's; its λ is to be as much larger.
        maximize: maximise F, instead of minimise.
        output: the law of n in ``output()``: "uniform" over all steps, or "geometric", uniform plus a geometric time
            of mean β/(1 − β), cut off at the end, for which more is proved (docs/paper.md).

    Example:
        >>> import torch, o2nc
        >>> x = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        >>> opt = o2nc.ExponentiatedO2NC([x], o2nc.learners.OGD(lr=0.01), beta=0.9)
        >>> for _ in range(300):
        ...     opt.zero_grad()
        ...     x.abs().sum().backward()
        ...     opt.step()
        >>> opt.certificate(c=1.0).value < 1.0
        True
    """

    foreign: ClassVar[frozenset[str]] = FOREIGN - {"weight_decay", "maximize"}
    shared: ClassVar[tuple[str, ...]] = (
        "learner",
        "beta",
        "scaling",
        "seed",
        "average",
        "maximize",
        "output",
        *COUNTERS,
    )
    needed: ClassVar[tuple[str, ...]] = ("lr", "learner", "beta")
    advice = "average=False: leave that at True when you construct it"

    def __init__(
        self,
        params: ParamsT,
        learner: Learner,
        *,
        beta: float = 0.99,
        scaling: Law | None = Exponential(),
        seed: int = 0,
        average: bool | Average = True,
        fused: bool | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
        output: str = "uniform",
    ) -> None:
        check_learner(learner)
        checks.non_negative("weight_decay", weight_decay)
        checks.flag("maximize", maximize)
        checks.fraction("beta", beta)
        check_law(scaling)
        checks.integer("seed", seed, 0)
        if isinstance(average, bool):
            average = beta if average else None
        average = check_average(average)
        check_output(output, average)
        if fused is not None:
            checks.flag("fused", fused)
        defaults = {
            "lr": learner.lr,
            "learner": learner,
            "beta": beta,
            "scaling": scaling,
            "seed": int(seed),
            "average": average,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "output": output,
            **averages.begin_counters(),
            "step": 0,
            "fused": fused,
        }
        super().__init__(params, defaults)
        self._refuse_partial()
        self._step_supports_amp_scaling = bool(fused)  # a GradScaler then leaves unscaling and skipping to the step

    def fields_for(self, group: dict[str, Any]) -> Fields:
        """Return the state that is kept per parameter."""
        return averages.FIELDS | Learned(group["learner"], 1.0, keeps=False).fields

    def _describe(self, step: Step) -> Step:
        group = step.groups[0]
        return step._replace(rule=Learned(group["learner"], group["beta"], keeps=False))
