"""Iterate averages and what they certify: x̄, ḡ, V, the progress, and the uniform output.

With the weights of Algorithm 2, p_{n,t} ∝ β^{n−t} (times w(s_t) under a law other than Exp):

    W_n = w_n + βW_{n−1},  γ_n = w_n/W_n,  e = x_n − x̄_{n−1}
    x̄_n = x̄_{n−1} + γ_n e,   ḡ_n = ḡ_{n−1} + γ_n(g_n − ḡ_{n−1}),   V_n = (1 − γ_n)(V_{n−1} + γ_n‖e‖²).

V is Welford's update in float64; E‖x‖² − ‖x̄‖² would cancel. Everything is kept per parameter (V, ‖ḡ‖² and ⟨g, Δ⟩
are sums over coordinates) and added up only when asked, so a step never waits for the host.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors
from torch.optim import Optimizer

from o2nc import checks
from o2nc.certificate import Certificate
from o2nc.scaling import uniform
from o2nc.vector import real, wide

# Elements that are worked on at once. On a CPU a block and its temporaries then stay in the cache, which
# makes the averages several times faster; elsewhere the limit only bounds the temporaries.
_CPU_BLOCK = 1 << 17
_DEVICE_BLOCK = 1 << 24


class Entry(NamedTuple):
    """One parameter's part in a step: all tensors real and of one shape."""

    x: Tensor  # the iterate, before the step
    g: Tensor  # its gradient
    update: Tensor | None  # the direction of the update that led to x, None when there was none
    rate: float  # Δ = rate·update; the weight of the progress is in it
    state: dict[str, Any]  # what `start` returned


class _Row(NamedTuple):
    x: Tensor
    g: Tensor
    x_mean: Tensor
    g_mean: Tensor | None
    update: Tensor | None


def start(x: Tensor, *, own_gradient: bool = True) -> dict[str, Any]:
    """Return the statistics of one parameter before its first step.

    Args:
        x: the parameter, as a real tensor.
        own_gradient: False when ḡ need not be kept because the momentum buffer tells it.
    """
    zero = x.new_zeros((), dtype=torch.float64)
    state = {
        "average": x.detach().to(wide(x.dtype), copy=True),
        "spread": zero,
        "progress": zero,
        "weight": 0.0,
        "weight_squared": 0.0,
    }
    if own_gradient:
        state["gradient"] = torch.zeros_like(state["average"])
    return state


@torch.no_grad()
def accumulate(
    entries: list[Entry], *, weight: float, discount: float, sign: float = 1.0, decay: float = 0.0
) -> None:
    """Take an iterate and its gradient into the averages.

    The gradient that counts is the one the learner sees, sign·g + decay·x: ``maximize`` and a scaled loss
    are in the sign, coupled weight decay in the second term.

    Args:
        entries: the parameters that take part in this step.
        weight: w_n, the weight of this iterate.
        discount: β, what the earlier weights are multiplied by.
        sign: the factor of the gradients.
        decay: the factor of the iterates in the gradient.
    """
    # Parameters that always stepped together share one W, so this is one group as a rule; dtypes, devices,
    # late and once frozen parameters make further ones.
    groups: dict[Any, list[Entry]] = {}
    for entry in entries:
        x, g, update, rate, state = entry
        kind = (state["weight"], rate, x.dtype, g.dtype, x.device, update is None, "gradient" in state)
        groups.setdefault(kind, []).append(entry)
    for (w_before, rate, *_), group in groups.items():
        w = weight + discount * w_before
        gamma = weight / w
        states = [entry.state for entry in group]
        square, slope = _average_(group, gamma, sign, decay)
        spread = torch.stack([s["spread"] for s in states]).add_(square, alpha=gamma).mul_(1 - gamma)
        progress = torch.stack([s["progress"] for s in states]).add_(slope, alpha=rate)
        for s, v, f in zip(states, spread.unbind(), progress.unbind(), strict=True):
            s["spread"], s["progress"], s["weight"] = v, f, w
            s["weight_squared"] = weight**2 + discount**2 * s["weight_squared"]


def _average_(group: list[Entry], gamma: float, sign: float, decay: float) -> tuple[Tensor, Tensor]:
    """Move x̄ and ḡ in place; return ‖x − x̄_before‖² and ⟨gradient, update⟩ for every entry."""
    owners: list[int] = []
    squares: list[Tensor] = []
    slopes: list[Tensor] = []
    for indices, rows in _blocks(group):
        square, slope = _block_(rows, gamma, sign, decay)
        owners += indices
        squares.append(square)
        slopes.append(slope)
    device = group[0].x.device
    owner = torch.tensor(owners, device=device)
    total = torch.zeros(2, len(group), dtype=torch.float64, device=device)
    total.index_add_(1, owner, torch.stack([torch.cat(squares), torch.cat(slopes)]))
    return total[0], total[1]


def _blocks(group: list[Entry]) -> Iterator[tuple[list[int], list[_Row]]]:
    """Cut large tensors into blocks and pack small ones together; also yield whose blocks they are."""
    limit = _CPU_BLOCK if group[0].x.device.type == "cpu" else _DEVICE_BLOCK
    indices: list[int] = []
    rows: list[_Row] = []
    size = 0
    for i, (x, g, update, _, state) in enumerate(group):
        row = _Row(x, g, state["average"], state.get("gradient"), update)
        n = x.numel()
        if n > limit and all(t is None or t.is_contiguous() for t in row):
            pieces = [() if t is None else t.view(-1).split(limit) for t in row]
            for k in range(len(pieces[0])):
                yield [i], [_Row(*(p[k] if p else None for p in pieces))]  # type: ignore[arg-type]
            continue
        if size + n > limit and rows:
            yield indices, rows
            indices, rows, size = [], [], 0
        indices.append(i)
        rows.append(row)
        size += n
    if rows:
        yield indices, rows


def _block_(rows: list[_Row], gamma: float, sign: float, decay: float) -> tuple[Tensor, Tensor]:
    x, g, x_mean, g_mean, update = (list(column) for column in zip(*rows, strict=True))
    lengths = torch.tensor([t.numel() for t in x], device=x[0].device)
    dtype = x_mean[0].dtype
    flat_x = _flatten_dense_tensors(x).to(dtype)
    e = flat_x - _flatten_dense_tensors(x_mean)
    square = _sums(e, e, lengths)
    if update[0] is None:
        slope = torch.zeros_like(square)
    else:
        seen = _flatten_dense_tensors(g).to(dtype)
        seen = seen if sign == 1 else seen * sign
        seen = seen if decay == 0 else torch.add(seen, flat_x, alpha=decay)
        slope = _sums(seen, _flatten_dense_tensors(update).to(dtype), lengths)
    x = [t.to(dtype) for t in x]
    torch._foreach_lerp_(x_mean, x, gamma)
    if g_mean[0] is not None:
        if sign == 1:
            torch._foreach_lerp_(g_mean, [t.to(dtype) for t in g], gamma)
        else:
            torch._foreach_mul_(g_mean, 1 - gamma)
            torch._foreach_add_(g_mean, [t.to(dtype) for t in g], alpha=gamma * sign)
        if decay != 0:
            torch._foreach_add_(g_mean, x, alpha=gamma * decay)
    return square, slope


def _sums(a: Tensor, b: Tensor, lengths: Tensor) -> Tensor:
    """Return Σab over every segment, as float64."""
    if len(lengths) == 1:
        return torch.dot(a, b).double().reshape(1)
    return torch.segment_reduce(a.double() * b, "sum", lengths=lengths)


def keep_output_(states: list[dict[str, Any]], seed: int, count: int) -> None:
    """Reservoir of size one: keep the count-th average in place of the kept one with probability 1/count.

    After N calls the kept average is uniform over the N, which is the output of Algorithms 1 and 2. A parameter that
    came later keeps its first average: until then it stood still.
    """
    replace = uniform(seed, count, stream=1) * count < 1
    kept = [s for s in states if "output" in s]
    if replace and kept:
        torch._foreach_copy_([s["output"] for s in kept], [s["average"] for s in kept])
    for s in states:
        if "output" not in s:
            s["output"] = s["average"].clone()


class Certified(Optimizer):
    """The part of an optimizer that speaks of its averages: certificate, swap, output, progress."""

    _average_key = "average"
    _nothing_yet = "nothing is averaged before the first step()"
    _inside_averaged = False

    def _summary(self, state: dict[str, Any]) -> tuple[Tensor, Tensor, float]:
        """Return ‖ḡ‖², V and the effective sample size of one parameter."""
        mean = state.get("gradient")
        if mean is None:  # then the momentum buffer is Σβ^{n−t}g_t
            mean = real(state["momentum_buffer"]) / state["weight"]
        square = torch.linalg.vector_norm(mean, dtype=torch.float64).square()
        return square, state["spread"], state["weight"] ** 2 / state["weight_squared"]

    def _averages(self, asked: str, key: str) -> list[tuple[str | int, Tensor, dict[str, Any]]]:
        """Return name, parameter and state of all that have averages, or say why there are none."""
        if self.param_groups[0].get("average", 0.0) is None:
            raise RuntimeError(
                f"{asked} needs averages, and this optimizer was made with average=None: "
                "pass average=0.999, say, when you construct it"
            )
        found = []
        i = 0
        for group in self.param_groups:
            names = group.get("param_names", range(i, i + len(group["params"])))
            for name, p in zip(names, group["params"], strict=True):
                i += 1
                if key in self.state.get(p, {}):
                    found.append((name, p, self.state[p]))
        if not found:
            raise RuntimeError(f"{asked}: {self._nothing_yet}")
        return found

    @torch.no_grad()
    def certificate(self, c: float = 1.0) -> Certificate:
        """Return ‖ḡ‖ + c·V, an upper bound on ‖∇F(x̄)‖_c when the gradients are full ones.

        Args:
            c: the price of spread, > 0.

        Returns:
            The certificate of all parameters together; ``.by_parameter`` has every one's own.
        """
        checks.positive("c", c)
        averages = self._averages("certificate()", self._average_key)
        parts = [self._summary(state) for _, _, state in averages]
        squares, spreads = (
            torch.stack([part[k].to("cpu", torch.float64) for part in parts]) for k in range(2)
        )
        by_parameter: dict[str | int, Certificate] = {
            name: Certificate(c, square**0.5, spread, part[2])
            for (name, _, _), part, square, spread in zip(
                averages, parts, squares.tolist(), spreads.tolist(), strict=True
            )
        }
        ess = min(part[2] for part in parts)
        return Certificate(c, squares.sum().sqrt().item(), spreads.sum().item(), ess, by_parameter)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put x̄ into the parameters inside a ``with`` block and restore them bitwise on leaving it.

        Changes made to the parameters inside are lost; ``step()`` inside is refused. Buffers are not averaged:
        recompute BatchNorm's statistics before you evaluate.
        """
        averages = self._averages("averaged()", self._average_key)
        was_inside = self._inside_averaged
        backup = [p.detach().clone() for _, p, _ in averages]
        self._inside_averaged = True
        try:
            for _, p, state in averages:
                real(p.detach()).copy_(state[self._average_key])
            yield
        finally:
            for (_, p, _), saved in zip(averages, backup, strict=True):
                p.detach().copy_(saved)
            self._inside_averaged = was_inside

    def _refuse_inside_averaged(self) -> None:
        if self._inside_averaged:
            raise RuntimeError(
                "step() inside averaged(): the parameters hold x̄ there; leave the with block first"
            )

    def output(self) -> list[Tensor]:
        """Return x̄_n for a uniformly drawn n: the output that the theorems speak of.

        Returns:
            A copy for every parameter, in the order of the parameter groups; a parameter that never had a
            gradient is returned as it stands.
        """
        self._averages("output()", "output")
        result = []
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state.get(p, {}).get("output")
                if kept is None:
                    result.append(p.detach().clone())
                else:
                    result.append(torch.view_as_complex(kept.clone()) if p.is_complex() else kept.clone())
        return result

    @property
    def progress(self) -> float:
        """Σ w(s_n)⟨g_n, Δ_n⟩, an unbiased estimate of F(x_n) − F(x_0) that cost no evaluation."""
        averages = self._averages("progress", "progress")
        return torch.stack([state["progress"].cpu() for _, _, state in averages]).sum().item()
