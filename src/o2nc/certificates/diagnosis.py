"""What a run is doing, in one word, with its evidence and one action: ``opt.diagnose()``.

    broken       x, x̄ or a gradient is not finite
    too early    fewer steps than the statistics need
    spike        an increment was more than twice as long as all before it
    stationary   J is small: the run hops in one place at this learning rate
    too hot      F(x) is far above F(x̄), or the weights are exchanged too fast, or the increments grow
    straight     F(x̄) is above F(x), or, without a loss, J is large: the run goes one way, and could go faster
    travelling   none of these

J is the displacement of `o2nc.certificates.displacement`. The first line that applies, from above, is the verdict.
docs/run.md explains the numbers, and has the measurements behind the thresholds.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from o2nc import checks, vector
from o2nc.averages import reading
from o2nc.certificates.certificate import Certificate
from o2nc.certificates.displacement import USED, Trail, displacements, measure, measure_gradients, momenta_of
from o2nc.persist.plain import KEY
from o2nc.persist.restored import all_restored, modules_of
from o2nc.text import printable

STATIONARY, STRAIGHT = 0.25, 2.0  # J below and above these
HOT, HOT_FAR = 1.0, 0.4  # heat above this share of |F(x̄)|; the second where the run travels far, J > 1
TURNOVER = 0.06  # turnover above this, times 2 J − 0.6 at J > 0.8
GROWTH = 16.0  # squared increments of so many times those at first
SPIKE = 4.0  # a squared increment of so many times all before it

ADVICE = {
    "too early": "Ask again after {wait} more steps.",
    "straight": "Raise the learning rate, by half to begin with.",
    "travelling": "Go on.",
    "stationary": "Lower the learning rate, as o2nc.Ladder does, or stop and take x̄.",
    "too hot": "Lower the learning rate, by half to begin with, unless the loss is falling fast.",
    "spike": "Look at the batches of steps {spike_step:.0f} to {spike_end:.0f}; if it recurs, clip the gradients.",
    "broken": "Go back to a checkpoint from before, and clip the gradients.",
}
VERDICTS = tuple(ADVICE)
RESTART = "Call restart_averages(), since x itself is finite."
REPLAYED = "Call step() outside of the CUDA graph, which runs no code of the host, to have a displacement."


@dataclass(frozen=True)
class Diagnosis:
    """What a run is doing.

    Attributes:
        verdict: "too early", "straight", "travelling", "stationary", "too hot", "spike" or "broken".
        evidence: the numbers behind it by name. Always ``displacement``, J: 1 for a random walk, up to 13 on a
            straight line, 0.1 or less where the run hops in one place, nan where it is not known; ``steps``, how
            many it is of; ``turnover`` and ``growth`` over them. ``heat``, F(x) − F(x̄), with ``loss`` and
            ``loss_averaged``, if a loss was given. With a certificate ``gradient``, ‖ḡ‖, and ``noise_floor``,
            √(mean ‖g‖²/ess), which it would have of gradients that are nothing but independent noise;
            ``gradient_to_noise`` is their ratio. ``spike_step`` of a spike; ``finite_at``, the last step at which
            all that was sampled was finite, if it is not any more.
        advice: one sentence, one action.
        by_parameter: the same for every parameter alone, by name (or index), with its own displacement.

    Example:
        >>> print(Diagnosis("stationary", {"displacement": 0.08, "steps": 400.0}, "Lower the learning rate."))
        stationary: displacement 0.08 (over 400 steps). Lower the learning rate.
    """

    verdict: str
    evidence: Mapping[str, float]
    advice: str
    by_parameter: Mapping[str | int, "Diagnosis"] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        counts, known = ("spike_step", "finite_at"), {k: v for k, v in self.evidence.items() if not math.isnan(v)}
        steps = known.pop("steps", 0.0)
        texts = {name: f"{value:,.0f}" if name in counts else f"{value:.3g}" for name, value in known.items()}
        numbers = ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in texts.items())
        over = f" (over {steps:,.0f} steps)" if steps else ""
        found = f"{self.verdict}: {numbers}{over}" if numbers else self.verdict
        return printable(f"{found}. {self.advice}")


@torch.no_grad()
def diagnose(
    optimizer: Any, loss: Callable[[], Any] | None = None, certificate: Certificate | None = None
) -> Diagnosis:
    """Return what the run of ``optimizer`` is doing, as `Averaged.diagnose` says.

    ``loss`` is a function without arguments that returns the loss, ``certificate`` the optimizer's, if it is known.
    """
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function without arguments that returns a scalar, got {loss!r}")
    if optimizer._window is None:
        reading.readable(optimizer, "diagnose()")  # raises, and says why
    if loss is not None:
        optimizer._refuse_swapped("diagnose(loss)")
    evidence, displacement, faults = _measure(optimizer)
    square, has_averages = evidence.pop("gradient_square"), reading.has_averages(optimizer)
    if loss is not None:
        evidence |= _heat(optimizer, loss) if has_averages and not faults else {"heat": math.nan}
    if reading.has_certificate(optimizer) and not faults:
        found = certificate or optimizer.certificate()
        evidence["gradient"], floor = found.gradient, math.sqrt(square / found.ess)
        if floor > 0:
            evidence |= {"noise_floor": floor, "gradient_to_noise": found.gradient / floor}
    trail, names = optimizer._trail or Trail(), reading.parameter_names(optimizer)
    rest = optimizer._window.start + 1 - optimizer._steps_done()
    values = {"wait": max(1, (USED + 1) * trail.stride - trail.steps, rest), "spike_step": math.nan, **evidence}
    alone = {}
    for p, j in displacement.items():
        verdict = "broken" if p in faults else verdict_of({"displacement": j})
        alone[names[p]] = Diagnosis(verdict, {"displacement": j}, ADVICE[verdict].format(**values))
    verdict = verdict_of(evidence) if has_averages else "too early"
    advice = ADVICE[verdict].format(**values)
    if faults:
        p, what = next(iter(faults.items()))
        can_restart = "x" not in faults.values() and "start" in optimizer.param_groups[0][KEY]["average"]
        action = RESTART if can_restart else ADVICE["broken"]
        verdict, advice = "broken", f"{what} of parameter {names[p]!r} is not finite: {action}"
    elif optimizer._engine.has_captured:
        verdict, advice = "too early", REPLAYED
    return Diagnosis(verdict, evidence, advice, alone)


def verdict_of(evidence: Mapping[str, float]) -> str:
    """Return the verdict on finite numbers: the first line of the module's table that applies."""
    j = evidence["displacement"]
    if not math.isfinite(evidence.get("heat", 0.0)):
        return "broken"
    if math.isnan(j):
        return "too early"
    if "spike_step" in evidence:
        return "spike"
    if j < STATIONARY:
        return "stationary"
    heat = evidence.get("heat", 0.0)
    is_straight = heat < 0 if "heat" in evidence else j > STRAIGHT
    if (
        heat > (HOT if j <= 1 else HOT_FAR) * abs(evidence.get("loss_averaged", 0.0))
        or evidence.get("growth", 0.0) > GROWTH
        or (evidence.get("turnover", 0.0) > TURNOVER * max(1.0, 2 * j - 0.6) and j <= STRAIGHT)
    ):
        return "too hot"
    return "straight" if is_straight else "travelling"


def _measure(optimizer: Any) -> tuple[dict[str, float], dict[Any, float], dict[Any, str]]:
    """Return the evidence, J of every parameter, and what is not finite of which; where sharded, collectively."""
    params, entries = optimizer._known_params, reading.entries_of(optimizer)
    xs, trail = vector.values(params), optimizer._trail or Trail()
    taken = [] if optimizer._engine.has_captured else trail.latest()
    ours = [{"x": x} | entries.get(p, {}) for x, p in zip(xs, params, strict=True)]
    rows = [
        torch.stack([_is_broken(own.get(key)).to(xs[0].device) for own in ours])
        for key in ("x", "average", "gradient")
    ]
    if taken:
        rows += [*measure_gradients(taken, xs), *measure([x for _, x, _ in taken], xs)]
    values = vector.total(torch.stack(rows), params).cpu()
    at = values[:3].gt(0).int().argmax(0).tolist()
    faults = {p: ("x", "x̄", "ḡ")[at[i]] for i, p in enumerate(params) if values[:3, i].any()}
    if not taken:
        unknown = {"displacement": math.nan, "steps": 0.0, "turnover": math.nan, "growth": math.nan}
        return unknown | {"gradient_square": 0.0}, dict.fromkeys(params, math.nan), faults
    times = [step for step, _, _ in taken]
    joint, *parts = displacements(times, values[6:], momenta_of(optimizer))
    means, spreads, increments = values[6], values[7], values[8:].sum(1).tolist()
    changed = (spreads / (means + spreads)).nan_to_num(0.0)
    sizes = torch.tensor([float(p.numel()) for p in params], device="cpu")
    quarter, (gg, gx, xx) = len(increments) // 4, values[3:6]
    decays = [decay if p in entries else 0.0 for p, decay in reading.decays_of(optimizer).items()]
    decay = torch.tensor(decays, dtype=torch.float64, device="cpu")  # ‖g + λx‖² is what the certificate averages
    evidence = {
        "displacement": 0.0 if not values[8:].any() else joint,  # 0 where nothing moves at all
        "steps": float(times[-1] - times[0]),
        "turnover": float((sizes * changed).sum() / (sizes * (spreads > 0)).sum().clamp(min=1.0)),
        "growth": math.fsum(increments[-quarter:]) / max(math.fsum(increments[:quarter]), 1e-300),
        "gradient_square": float((gg + 2 * decay * gx + decay**2 * xx).sum()),  # 0 if it is not known
    }
    begun = optimizer._steps_done() - trail.steps  # the trail may have begun later
    # increments, the latest ones, that exceed all before them by far; x_t is sampled before step t
    far = [q > SPIKE * max(increments[:i], default=math.inf) for i, q in enumerate(increments)]
    last = next((i for i in range(len(far) - 1, len(far) // 2, -1) if far[i]), None)
    if last is not None:
        first = last
        while far[first - 1]:  # momentum carries a long step from one increment into the next
            first -= 1
        evidence |= {"spike_step": float(begun + times[first] + 1), "spike_end": float(begun + times[last + 1])}
    finite = next((i for i, q in enumerate(increments) if not math.isfinite(q)), 0)
    if finite:  # the last snapshot before one that is not
        evidence["finite_at"] = float(begun + times[finite])
    return evidence, dict(zip(params, parts, strict=True)), faults


def _is_broken(x: Any) -> Tensor:
    """Return 1 if some number of a tensor is not finite, else 0."""
    if x is None:
        return torch.zeros((), dtype=torch.float64, device="cpu")
    return (~torch.linalg.vector_norm(x, 1, dtype=torch.float64).isfinite()).double()


def _heat(optimizer: Any, loss: Callable[[], Any]) -> dict[str, float]:
    """Return F(x) − F(x̄) and both, with the same random numbers."""
    params, values = optimizer._known_params, []
    modules = modules_of(params, optimizer._model())  # a trainer may have named the model
    for block in (nullcontext, optimizer.averaged):
        with all_restored(params, modules), block():
            values.append(checks.scalar("loss", loss()))
    x, average = values
    return {"heat": x - average, "loss": x, "loss_averaged": average}
