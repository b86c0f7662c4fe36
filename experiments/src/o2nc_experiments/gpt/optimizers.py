"""The optimizers of an arm, with their averages; and running means of the experiment's own."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, optim
from torch.optim import Optimizer

import o2nc
from o2nc_experiments.arms import window
from o2nc_experiments.gpt.arms import OTHERS, Arm
from o2nc_experiments.gpt.model import GPT
from o2nc_experiments.gpt.schedule_free import ScheduleFreeAdamW


def make(arm: Arm, model: GPT, average: str | None, seed: int, *, certificate: bool = True) -> list[Optimizer]:
    """Return the optimizers of a model, which step one after the other: one, or Muon's two.

    Args:
        arm: optimizer, numbers and law.
        model: its parameters lie where they are trained.
        average: the window that they keep, None for no averages.
        seed: of s; the same in all of them, so they draw the same.
        certificate: whether to keep ḡ as well.
    """
    given: dict[str, Any] = dict(arm.options)
    params = list(model.parameters())
    on_gpu = params[0].is_cuda
    kept: dict[str, Any] = {"average": None if average is None else window(average), "scaling": arm.law, "seed": seed}
    extended = kept | {"certificate": certificate, "progress": certificate}
    match arm.optimizer:
        case "adamw":
            return [_adamw(params, arm.lr, given, on_gpu, kept | {"certificate": certificate})]
        case "sgdm":
            return [o2nc.ScaledSGDM(params, arm.lr, **given, **kept)]
        case "scale-free":
            learner = o2nc.learners.ScaleFree(lr=arm.lr)
            kept["average"] = kept["average"] or False
            return [o2nc.ExponentiatedO2NC(params, learner, beta=given["beta"], **kept)]
        case "schedule-free":
            return [ScheduleFreeAdamW(params, arm.lr, **given)]
        case "muon":
            if not hasattr(optim, "Muon"):
                raise ValueError(f"muon needs torch 2.9 or later, this is {torch.__version__}")
            adam = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": given["weight_decay"]}
            hidden = set(model.hidden())
            rest = [p for p in params if p not in hidden]
            muon = optim.Muon(
                model.hidden(),
                arm.lr,
                weight_decay=given["weight_decay"],
                momentum=given["momentum"],
                adjust_lr_fn="match_rms_adamw",  # one lr for both
            )
            theirs = _adamw(rest, arm.lr * given["adam"], adam, on_gpu, kept | {"certificate": certificate})
            return [o2nc.extend(muon, **extended), theirs]
    if "beta1" in given:
        given["betas"] = (given.pop("beta1"), given.pop("beta2"))
    return [o2nc.extend(OTHERS[arm.optimizer](params, lr=arm.lr, **given), **extended)]  # type: ignore[call-arg]


def _adamw(params: list[Any], lr: float, given: dict[str, Any], on_gpu: bool, kept: dict[str, Any]) -> Optimizer:
    betas = (given["beta1"], given["beta2"])
    fused = True if on_gpu else None
    return o2nc.AdamW(params, lr, betas, given["eps"], given["weight_decay"], fused=fused, **kept)


class Certificate(NamedTuple):
    """‖ḡ‖, V and the progress of all optimizers together."""

    gradient: float
    spread: float
    progress: float


def certificate(optimizers: Sequence[Any]) -> Certificate:
    """Return what the optimizers know without an evaluation; squares and sums over coordinates are added up."""
    found = [optimizer.certificate() for optimizer in optimizers]
    gradient = sum(c.gradient**2 for c in found) ** 0.5
    return Certificate(gradient, sum(c.spread for c in found), sum(o.progress for o in optimizers))


@contextmanager
def averaged(optimizers: Sequence[Any]) -> Iterator[None]:
    """Put the optimizers' own average into the parameters."""
    with ExitStack() as inside:
        for optimizer in optimizers:
            inside.enter_context(optimizer.averaged())
        yield


class Means:
    """Running means of the iterates under further windows, beside the optimizer's own.

    x̄ ← x̄ + γ_n(x_n − x̄), with γ_n = (r + 1)/(n + r) for t^r and (1 − β)/(1 − β^n) for a discount β: those of
    `o2nc.Polynomial` and of a number. Kept in float32 by foreach calls, one more pass over memory each.

    Args:
        params: the parameters.
        windows: as they are written in arms.
    """

    def __init__(self, params: Sequence[Tensor], windows: Sequence[str]) -> None:
        self.params = [p.detach() for p in params]
        self.windows = {text: window(text) for text in windows}
        self.means: dict[str, list[Tensor]] = {text: [p.clone() for p in self.params] for text in windows}
        self.count = 0

    def add_(self) -> None:
        """Take the iterate in, before the step that moves it, as the optimizers do."""
        self.count += 1
        for text, shape in self.windows.items():
            torch._foreach_lerp_(self.means[text], self.params, gamma(shape, self.count))

    @contextmanager
    def averaged(self, text: str) -> Iterator[None]:
        """Put a mean into the parameters inside a ``with`` block, and the iterate back on leaving it."""
        former = [p.clone() for p in self.params]
        torch._foreach_copy_(self.params, self.means[text])
        try:
            yield
        finally:
            torch._foreach_copy_(self.params, former)

    def state_dict(self) -> dict[str, Any]:
        """Return the means and how many iterates are in them."""
        return {"count": self.count, "means": self.means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.count = state["count"]
        for text, mean in self.means.items():
            torch._foreach_copy_(mean, state["means"][text])


def gamma(shape: float | o2nc.Polynomial, n: int) -> float:
    """Return the weight of the n-th iterate in the mean of the first n."""
    if isinstance(shape, float):
        return (1 - shape) / (1 - shape**n)
    return (shape.power + 1) / (n + shape.power)
