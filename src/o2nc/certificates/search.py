"""How `minimize` steps: BFGS with a weak Wolfe line search (Lewis and Overton), and Goldstein's direction.

BFGS works at kinks, but can stall at one. The next direction is then that of the weights with the least certificate,
−Σw∇F(y) over evaluated points near x (Goldstein's direction). Either F falls along it, or a gradient found there is
news that lowers the certificate.

With noise in the gradients the weights would fit it. A certificate that seems small enough is then computed again
from fresh gradients at the same points with the same weights: docs/minimize.md says why, and how many it takes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from o2nc.certificates.oracle import LARGE, Oracle, Sample, Stop
from o2nc.certificates.weights import minimise
from o2nc.theory.stopping import holdout_samples

DENSE = 1000  # dimension up to which BFGS keeps a matrix; above it, PAIRS pairs of steps and gradient differences
PAIRS = 20
MOST, NUMBERS = 200, 10**8  # recent points kept for certificates, and the numbers that they may hold
EVERY = 20  # evaluations between checks on the way; a twentieth of all, once that is more
ARMIJO, WOLFE = 1e-4, 0.5
TRIALS, DOUBLINGS = 30, 100  # of a line search: after these it fails, and F is unbounded below
MARGIN = 0.5  # with noise: the share of eps that is left to the error of fresh gradients
PRECISION = 0.25  # with noise: the error of a gradient that steers, as a share of the certificate


class Check(NamedTuple):
    """What a check of the certificate found: evaluations so far, the least F met, the certificate."""

    nfev: int
    fun: float
    certificate: float


@dataclass(frozen=True)
class Minimum:
    """What `minimize` returns, and what its callback is given.

    Args:
        x: the weighted mean of the witness's points, of the kind, shape and dtype of x0.
        fun: F(x); in a callback nan where x has not been evaluated.
        certificate: ‖Σw∇F(y)‖ + cΣw‖y − x‖² of the witness, in float64; with noise a bound of it if
            ``success``, else an estimate.
        success: whether the certificate is at most eps, rounding included.
        nfev: evaluations of fun.
        message: why it stopped.
        witness: the points ``(K, *x.shape)`` and their K weights, >= 0 with sum 1.
        history: a `Check` (nfev, fun, certificate) for every check.
    """

    x: Any
    fun: float
    certificate: float
    success: bool
    nfev: int
    message: str
    witness: tuple[Any, Any]
    history: list[Check]


Callback: TypeAlias = Callable[[Minimum], object] | None


class Search:
    """The state of a run: the current point, the points kept, the best certificate."""

    def __init__(
        self, oracle: Oracle, eps: float, c: float, seed: int, callback: Callback, noise: float, failure: float
    ) -> None:
        self.oracle, self.eps, self.c, self.callback = oracle, eps, c, callback
        self.noise, self.failure, self.random = noise, failure, np.random.default_rng(seed)
        self.margin = MARGIN * eps if noise else 0.0
        self.radius = math.sqrt((eps - self.margin) / c / 2)  # at which spread costs half of what is left
        start = oracle.start
        self.most = min(2 * len(start) + 25, MOST, max(25, NUMBERS // len(start)))
        self.kept: list[Sample] = []
        self.support: list[Sample] = []  # with weight in the last check
        self.history: list[Check] = []
        self.lowest, self.certificate = math.inf, math.inf  # the least F, and the best certificate
        self.x, self.points, self.weights = start, start[None], start.new_ones(1)  # of the best certificate
        self.visited, self.held_out = 0, 0  # points, and checks with fresh gradients

    def run(self) -> Minimum:
        """Take steps until something raises Stop."""
        try:
            self.now = self.evaluate(self.oracle.start)
            if not self.kept:
                raise Stop("fun or its gradient is not finite at x0")
            self.descend()
        except Stop as stop:
            return self.result(str(stop), final=True)

    def descend(self) -> NoReturn:
        """Take BFGS's steps, and Goldstein's where those stall."""
        metric, stalled, checked = Metric(len(self.now.y)), 0, 0
        length = max(self.radius, math.sqrt(float(self.now.g.norm()) / self.c) / 8)  # of the first step
        while True:
            if stalled > 10 * self.most:
                raise Stop(f"F and certificate fall no more: eps = {self.eps:g} is too small, or gradients are wrong")
            if stalled or self.visited - checked >= max(EVERY, self.visited // EVERY):
                (u, bound), checked = self.check(), self.visited
            if stalled and bound > 0:
                direction, slope = -self.radius * u, -self.radius * bound
            else:
                direction = metric.direction(self.now.g, length)
                slope = float(direction @ self.now.g)
                if not -math.inf < slope < 0:  # the metric has lost its digits
                    metric, stalled = Metric(len(self.now.y)), 1
                    continue
            before, self.now = self.now, self.line_search(direction, slope, stalled > 0)
            if self.now is before:
                stalled += 1
            else:
                stalled = 0
                change = self.now.g - before.g
                error = sum(self.noise / math.sqrt(sample.calls) for sample in (self.now, before))  # about
                if float(change.norm()) >= error:
                    metric.update(self.now.y - before.y, change)

    def evaluate(self, y: Tensor) -> Sample:
        """Call fun; keep the point if all is finite, and stop if its gradient alone is small enough."""
        calls = math.ceil((self.noise / (PRECISION * max(self.eps, self.certificate))) ** 2)
        sample, self.visited = self.oracle(y, max(1, calls)), self.visited + 1
        if sample.f == -math.inf:
            raise Stop(f"F is unbounded below: it is -inf at a distance of {float((y - self.x).norm()):.1e} from x")
        if not (math.isfinite(sample.f) and sample.g.abs().max() < LARGE):
            sample.f = math.inf
            return sample
        self.kept = [*self.kept[1 - self.most :], sample]
        self.lowest = min(self.lowest, sample.f)
        if float(sample.g.norm()) < self.certificate:
            self.propose([sample], y.new_ones(1))
        return sample

    def line_search(self, direction: Tensor, slope: float, is_stalled: bool) -> Sample:
        """Return a point along the direction where F has fallen enough, or the current one if none was found.

        An interval is divided until the slope has become WOLFE times the given one. For a stalled search that is
        enough: the gradient there is news, wherever F is. With noise F may not be known well enough to see it fall,
        and the slope decides alone.
        """
        low, high, t, best, length = 0.0, math.inf, 1.0, self.now, float(direction.norm())
        for trial in range(DOUBLINGS):
            y = self.oracle.rounded(self.now.y + t * direction)
            if torch.equal(y, best.y):
                if is_stalled:
                    raise Stop(f"steps of {t * length:.1e} are lost in rounding: eps = {self.eps:g} is too small")
                return best
            sample = self.evaluate(y)
            slope_here = float(sample.g @ direction)
            if self.noise:
                falls = slope_here <= -WOLFE * slope and sample.f < math.inf
            else:
                falls = sample.f <= self.now.f + (WOLFE / 2 if is_stalled else ARMIJO) * t * slope
            if falls:
                low, best = t, sample
            else:
                high = t
            is_flat = sample.f < math.inf and slope_here >= WOLFE * slope
            shortest = (0.1 if self.noise else 1e-3) * self.radius
            is_short = high < math.inf and ((high - low) * length < shortest or trial >= TRIALS)
            if (is_flat and (best is sample or is_stalled)) or is_short:
                return best
            t = 2 * t if high == math.inf else low + (high - low) * self.random.uniform(0.4, 0.6)
        raise Stop(f"F seems unbounded below: {sample.f:.3g} at a distance of {t * length:.1e} from x")

    def check(self) -> tuple[Tensor, float]:
        """Search weights of the points near x with a smaller certificate; return Goldstein's direction and a bound.

        The direction u, ‖u‖ <= 1, is the dual point of the weights' problem with its centre at x (`minimise`):
        ⟨u, g_k⟩ + c‖y_k − x‖² >= bound for all k, and u = m/‖m‖ for the mean gradient m unless that is 0. A point
        near x with ⟨u, g⟩ < bound/2 is news.
        """
        centre, duals, value = self.now.y, list[tuple[Tensor, float]](), math.inf
        near = [s for s in (*self.support, *self.kept) if float((s.y - centre).norm()) <= 8 * self.radius]
        near = list({id(s): s for s in (self.now, *near)}.values())
        y, g = torch.stack([s.y for s in near]), torch.stack([s.g for s in near])
        basis, r = (None, g.T) if len(g) >= g.shape[1] else torch.linalg.qr(g.T)
        tolerance = min(1e-4, max(1e-10, 1e5 * self.eps / float(g.norm(dim=1).min())))  # of values below 1e-6 ‖g‖
        while True:
            prices = self.c * (y - centre).square().sum(1)
            weights, u = (part.to(y) for part in minimise(r.cpu(), prices.cpu(), tolerance))
            duals.append((u if basis is None else basis @ u, float((u @ r + prices).min())))
            before, value = value, self.propose(near, weights)
            if value > min(0.99 * before, 4 * self.eps):
                break
            centre = weights @ y
        heaviest = weights.argsort(descending=True)[: self.most].tolist()
        self.support = [near[k] for k in heaviest if weights[k] > 1e-3 / len(near)]
        self.history.append(Check(self.oracle.count, self.lowest, value))
        if self.callback is not None:
            try:
                self.callback(self.result("running"))
            except StopIteration:
                raise Stop("the callback raised StopIteration") from None
        return duals[0]

    def propose(self, samples: list[Sample], weights: Tensor) -> float:
        """Return the certificate of the points under these weights; keep the best, and stop if it is at most eps.

        It is computed from the numbers that are returned, x as rounded to its dtype; ``error`` bounds by how much
        another order of summation may differ.
        """
        samples, weights = [s for s, w in zip(samples, weights, strict=True) if w > 1e-12], weights[weights > 1e-12]
        weights = weights / weights.sum()
        y, g = torch.stack([s.y for s in samples]), torch.stack([s.g for s in samples])
        x = self.oracle.rounded(weights @ y)
        spread = self.c * float(weights @ (y - x).square().sum(1))
        value = float((weights @ g).norm()) + spread + self.margin
        unit = 4 * len(samples) * 2.0**-53
        error = unit * (float(weights @ g.norm(dim=1)) + value) + self.c * (unit * float(y.abs().max())) ** 2 * len(x)
        text = f"the certificate is at most eps = {self.eps:g}"
        if self.noise and value + error <= self.eps:
            value = self.hold_out(samples, weights) + spread + self.margin
            text += f" with a probability of at least {1 - self.failure:g}"
        is_sure = value + error <= self.eps
        if value < self.certificate and (is_sure or value > self.eps):
            self.certificate, self.x, self.points, self.weights = value, x, y, weights
        if is_sure:
            raise Stop(text)
        return value

    def hold_out(self, samples: list[Sample], weights: Tensor) -> float:
        """Return ‖Σwg‖ of fresh gradients, within the margin of ‖Σw∇F‖; only after that they serve the search."""
        self.held_out += 1
        calls = holdout_samples(self.held_out, self.margin, largest=self.noise / 2, failure=self.failure)
        fresh = [self.oracle(s.y, math.ceil(calls * float(w))) for s, w in zip(samples, weights, strict=True)]
        value = float((weights @ torch.stack([s.g for s in fresh])).norm())
        if not math.isfinite(value):
            raise Stop("a gradient is not finite at a point where it was before")
        for sample, other in zip(samples, fresh, strict=True):
            sample.merge(other)
        return value

    def result(self, message: str, final: bool = False) -> Minimum:
        """Return the best certificate found as a result; only the final one evaluates F at a mean."""
        fun = next((s.f for s in self.kept if torch.equal(s.y, self.x)), math.nan)
        if final:
            if math.isnan(fun) and self.kept and self.oracle.count < self.oracle.limit:
                fun = self.oracle.call(self.x).f
            self.history.append(Check(self.oracle.count, self.lowest, self.certificate))
        shaped, weights = self.oracle.shaped, self.weights.clone()
        return Minimum(
            x=shaped(self.x),
            fun=fun,
            certificate=self.certificate,
            success=self.certificate <= self.eps,
            nfev=self.oracle.count,
            message=message,
            witness=(shaped(self.points), weights if self.oracle.is_tensor else weights.numpy()),
            history=list(self.history),
        )


class Metric:
    """BFGS's approximation of the inverse Hessian: a matrix, or in high dimension the last pairs (s, y)."""

    def __init__(self, dimension: int) -> None:
        self.is_dense = dimension <= DENSE
        self.matrix: Tensor | None = None
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def direction(self, g: Tensor, length: float) -> Tensor:
        """Return −Hg; before the first update, a step of this length along −g."""
        if self.matrix is not None:
            return -(self.matrix @ g)
        if not self.pairs:
            return -(length / g.norm()) * g
        g, dots = g.clone(), []
        for s, y in reversed(self.pairs):
            dots.append((s @ g) / (s @ y))
            g -= dots[-1] * y
        s, y = self.pairs[-1]
        g *= (s @ y) / (y @ y)
        for (s, y), dot in zip(self.pairs, reversed(dots), strict=True):
            g += (dot - (y @ g) / (s @ y)) * s
        return -g

    def update(self, s: Tensor, y: Tensor) -> None:
        """Take a step s and the change y of the gradient in, where F curves upwards along s."""
        sy = s @ y
        if not sy > 1e-14 * s.norm() * y.norm():
            return
        if not self.is_dense:
            self.pairs = [*self.pairs[1 - PAIRS :], (s, y)]
            return
        if self.matrix is None:
            self.matrix = sy / (y @ y) * torch.eye(len(s), dtype=s.dtype, device=s.device)
        hy = self.matrix @ y
        self.matrix += torch.outer((1 + (y @ hy) / sy) / sy * s - hy / sy, s) - torch.outer(s / sy, hy)
