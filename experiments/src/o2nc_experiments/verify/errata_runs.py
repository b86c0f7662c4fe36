"""Errata that a run of the algorithm shows: what is printed fails, what the library does holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from o2nc import Exponential, ExponentiatedO2NC, OriginalO2NC
from o2nc.learners import OGD, BallOGD
from o2nc.problems import Additive, DoubleWell, MultiKink
from o2nc_experiments.verify.check import Finding, Z, enough, erratum, mean_error
from o2nc_experiments.verify.traces import Array, discounted, trace, traces


def agree(a: Sequence[float], b: Sequence[float]) -> bool:
    """Say whether two means, taken over the same runs, differ by `Z` standard errors at most."""
    mean, error = mean_error([x - y for x, y in zip(a, b, strict=True)])
    return abs(mean) <= Z * error


def _compare(printed: list[float], corrected: list[float], truth: list[float], what: str) -> Finding:
    """Make a finding of three means over runs: the printed one should miss the truth, the corrected one meet it."""
    _, error = mean_error([p - t for p, t in zip(printed, truth, strict=True)])
    measured = f"{what}, mean of {len(truth)} runs; corrected {mean_error(corrected)[0]:+.3f}"
    left, right = mean_error(printed)[0], mean_error(truth)[0]
    return Finding(measured, left, right, "==", also=agree(corrected, truth), tolerance=Z * error)


@erratum("erratum-a", "E[F(x_n)−F(x_{n−1})] = E⟨∇F(x_n), x_n−x_{n−1}⟩")
def progress_counts_moves_for_updates(seed: int, scale: float) -> Finding:
    """Section 3, twice; it is ⟨∇F(x_n), Δ_n⟩, which ``opt.progress`` adds up."""
    problem, steps = MultiKink(2), 20
    printed, corrected, truth = [], [], []
    for i in range(seed, seed + enough(200, scale, 60)):
        x = problem.start().requires_grad_()
        optimizer = ExponentiatedO2NC([x], OGD(lr=0.5), beta=0.7, seed=i)
        run = trace(optimizer, Additive(problem, 0.0), steps, i)
        printed.append(float((run.full[1:] * np.diff(run.points, axis=0)).sum()))
        corrected.append(optimizer.progress)
        ends = problem.value(torch.from_numpy(run.points[[0, -1]]))
        truth.append((ends[1] - ends[0]).item())
    return _compare(printed, corrected, truth, "Σ⟨∇F(x_n), x_n−x_{n−1}⟩ against F(x_N)−F(x_0)")


@erratum("erratum-d", "x_{t+1} = x_t − s_{n+1}·η̃·m_{t+1}")
def one_scalar_serves_all_steps(seed: int, scale: float) -> Finding:
    """The first SGDM display: the scalar is s_{t+1}, drawn anew in every step; and the first step is a no-op."""
    problem, steps = DoubleWell(1), 50
    x = problem.start().requires_grad_()
    run = trace(ExponentiatedO2NC([x], OGD(lr=0.01), beta=0.9, seed=seed), Additive(problem, 0.0), steps, seed)
    moves, updates = np.diff(run.points[:, 0]), run.updates[1:, 0]  # x_{t+1} − x_t and Δ_{t+1}, t = 1..N−1
    drawn = np.array([Exponential().sample(seed, t + 1) for t in range(1, steps)])
    fixed = Exponential().sample(seed, steps + 1)
    corrected = float(np.abs(moves - drawn * updates).max())
    still = run.updates[0] == 0 and run.points[0] == problem.start().numpy()
    worst = int(np.abs(moves - fixed * updates).argmax())
    measured = f"move of one step of a run with s_{{N+1}}, and as made; with s_{{t+1}} it is off by {corrected:.0e}"
    left, right = fixed * updates[worst], moves[worst]
    return Finding(measured, left, right, "==", also=bool(still.all()) and corrected < 1e-12, tolerance=1e-9)


@erratum("erratum-i", "Algorithm 1: g_n = ∇f(x_n, z_n)")
def algorithm_1_takes_the_gradient_at_x(seed: int, scale: float) -> Finding:
    """The listing of Algorithm 1 takes the gradient at x_n; F(x_n) − F(x_{n−1}) = E⟨∇F(w_n), Δ_n⟩ needs w_n."""
    problem, steps = MultiKink(2), 20
    printed, corrected, truth = [], [], []
    for k in range(seed, seed + enough(200, scale, 60)):
        x = problem.start().requires_grad_()
        optimizer = OriginalO2NC([x], BallOGD(lr=0.5, radius=0.7), period=steps, seed=k)
        run = trace(optimizer, Additive(problem, 0.0), steps, k)
        at = torch.from_numpy(problem.start().numpy() + np.cumsum(run.updates, axis=0))  # x_n
        printed.append(float((problem.gradient(at).numpy() * run.updates).sum()))
        corrected.append(optimizer.progress)
        truth.append((problem.value(at[-1]) - problem.value(problem.start())).item())
    return _compare(printed, corrected, truth, "Σ⟨∇F(x_n), Δ_n⟩ against F(x_N)−F(x_0)")


def sketched(beta: float, steps: int, seeds: Sequence[int]) -> tuple[Array, Array, Array]:
    """Return Σ_n Σ_t p_{n,t}⟨∇F(x_t), −Δ_t⟩, the same with (1 − β)β^{n−t}, and what the latter telescopes to."""
    problem = DoubleWell(2)
    runs = traces(Additive(problem, 0.0), OGD(lr=0.2 * (1 - beta)), beta, steps, seeds)
    gains = discounted(-(runs.full * runs.updates).sum(2, keepdims=True), beta)[..., 0]
    weight = discounted(np.ones((steps, 1)), beta)[:, 0]
    values = problem.value(torch.from_numpy(runs.points)).numpy()
    rises = np.diff(values, axis=1, prepend=values[:, :1])
    telescoped = values[:, 0] - values[:, -1] + rises @ beta ** np.arange(steps, 0.0, -1)
    return (gains / weight).sum(1), (1 - beta) * gains.sum(1), telescoped


@erratum("erratum-k", "ΣΣ p_{n,t}⟨∇F(x_t), −Δ_t⟩ ≲ 1−β")
def sketched_sum_does_not_shrink_with_alpha(seed: int, scale: float) -> Finding:
    """The sketch in Section 3; the sum is of the size of F*, whatever β, and its exact mean is in the formal proof.

    With the weights (1 − β)β^{n−t} it telescopes: E of it is F(x_0) − F(x_N) + Σ_t β^{N−t+1}(F(x_t) − F(x_{t−1})).
    """
    seeds = range(seed, seed + enough(16, scale, 8))
    far, near = (sketched(beta, 300, seeds) for beta in (0.9, 0.99))
    measured = (
        f"how the sum changes from β = .9 to .99, mean of {len(seeds)} runs; corrected, {far[1].mean():.2f} is the "
        f"telescoped {far[2].mean():.2f}, F* = {DoubleWell(2).gap:.2f}"
    )
    also = all(agree(corrected.tolist(), telescoped.tolist()) for _, corrected, telescoped in (far, near))
    return Finding(measured, near[0].mean() / far[0].mean(), 0.01 / 0.1, also=also)


@dataclass(frozen=True)
class Orthonormal:
    """A learner that plays the unit vectors one after the other."""

    lr: float = 1.0

    def init(self, delta: Tensor) -> dict[str, Any]:
        """Count the steps."""
        return {"count": 0}

    def update(
        self, deltas: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]], lrs: list[float], beta: float
    ) -> None:
        """Play the next unit vector."""
        deltas[0].zero_()
        deltas[0][states[0]["count"] % len(deltas[0])] = lrs[0]
        states[0]["count"] += 1


def _travelled(steps: int, seed: int) -> tuple[float, float]:
    """Return ‖x_{N+1} − x_1‖² after N orthonormal updates, and V of the last average, at 1 − β = N^{−½}."""
    x = torch.zeros(steps, dtype=torch.float64, requires_grad=True)
    optimizer = ExponentiatedO2NC([x], Orthonormal(), beta=1 - steps**-0.5, seed=seed)
    for _ in range(steps):
        x.grad = torch.zeros_like(x)
        optimizer.step()
    return x.detach().square().sum().item(), optimizer.certificate().spread


@erratum("erratum-l", "orthonormal Δ_t: ‖x_1−x_N‖ = O(N), as if tight")
def orthonormal_updates_do_not_go_that_far(seed: int, scale: float) -> Finding:
    """Section 3's example; the distance is √(2N), and E V = Σ_{ij} p_i p_j |i − j| is √N, not N."""
    few, many = 64, 1024
    runs = {n: np.array([_travelled(n, seed + j) for j in range(enough(8, scale))]) for n in (few, many)}
    growth = float(np.sqrt(runs[many][:, 0].mean() / runs[few][:, 0].mean()))
    count = len(runs[few])
    # Σs² has mean 2N and variance 20N
    right = all(abs(runs[n][:, 0].mean() - 2 * n) <= Z * np.sqrt(20 * n / count) for n in runs)
    p = (1 - many**-0.5) ** (many - np.arange(1.0, many + 1))
    p /= p.sum()
    below = np.cumsum(p)[:-1]
    between = below * (1 - below)  # E V = Σ_t E s_t² P(y before t) P(y from t on)
    exact, error = float(2 * between.sum()), float(Z * np.sqrt(20 * (between**2).sum() / count))
    spread = float(runs[many][:, 1].mean())
    measured = (
        f"how much ‖x_1−x_N‖ grows from N = {few} to {many}; √(2N) is met, and V = {spread:.1f} is "
        f"Σp_ip_j|i−j| = {exact:.1f}"
    )
    return Finding(measured, growth, many / few, "==", also=right and abs(spread - exact) <= error, tolerance=4.0)


def _after_two(gradients: Sequence[float], seed: int) -> tuple[float, float]:
    """Return x_3 and Δ_3 of Algorithm 2 with β = ½ and η = 1, from x_0 = 0 and these two gradients."""
    x = torch.zeros(1, dtype=torch.float64)
    optimizer = ExponentiatedO2NC([x], OGD(lr=1.0), beta=0.5, seed=seed)
    for g in gradients:
        x.grad = torch.full_like(x, g)
        optimizer.step()
    return x.item(), optimizer.state[x]["delta"].item()


def _progress(steps: int, seed: int, *, shuffled: bool) -> float:
    """Return by how much a run believes that F rose; F = 0 is the mean of x and −x, drawn afresh or by epochs."""
    rng, x = np.random.default_rng(seed), torch.zeros(1, dtype=torch.float64)
    optimizer = ExponentiatedO2NC([x], OGD(lr=0.1), beta=0.9, seed=seed)
    signs = rng.choice([-1.0, 1.0], size=steps)
    if shuffled:
        signs[1::2] = -signs[::2]
    for sign in signs:
        x.grad = torch.full_like(x, sign)
        optimizer.step()
    return optimizer.progress


@erratum("erratum-n", "F_t = σ-algebra of x_t; Δ_t ∈ F_t")
def update_is_not_known_from_the_point(seed: int, scale: float) -> Finding:
    """The proof of Theorem O2NC; F_t must be the whole past, and g_t unbiased given that: epochs are not enough."""
    first, second = (Exponential().sample(seed, t) for t in (2, 3))
    x, delta = _after_two((1.0, 0.0), seed)  # Δ_2 = −½, Δ_3 = −¼
    y, other = _after_two((0.0, (first + second / 2) / second), seed)  # nothing, and then as far at once
    runs = range(seed, seed + enough(24, scale, 12))
    fresh, epochs = ([_progress(20, k, shuffled=shuffled) for k in runs] for shuffled in (False, True))
    zero = [0.0] * len(fresh)
    measured = (
        f"Δ_3 of two runs that share x_3; on F = 0 the progress is {mean_error(fresh)[0]:+.3f} from fresh samples, "
        f"{mean_error(epochs)[0]:+.3f} from shuffled epochs"
    )
    also = abs(x - y) < 1e-12 and agree(fresh, zero) and not agree(epochs, zero)
    return Finding(measured, delta, other, "==", also=also, tolerance=1e-9)
