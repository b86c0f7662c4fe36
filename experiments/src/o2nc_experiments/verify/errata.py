"""The errata: what is printed fails, shown by a run or at a point, and what the library does holds."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import o2nc
from o2nc import Certificate, Exponential, ExponentiatedO2NC, OriginalO2NC, theory
from o2nc.learners import OGD, BallOGD
from o2nc.problems import Additive, Cosine, DoubleWell, MultiKink, Problem
from o2nc_experiments.verify.lemmas import BETAS, summed_weights, variance_weights
from o2nc_experiments.verify.regret import play, traces
from o2nc_experiments.verify.row import ROUNDING, Array, Sides, Z, agree, discounted, enough, mean_error, row

BETA, H, H_NEXT, MU = 0.8, 0.5, 0.4, 0.7  # of a step of the learner
played = partial(play, decay=MU, beta=BETA, lrs=(H, H_NEXT))


def replay(learner: OGD | BallOGD, gradients: Tensor, beta: float) -> Tensor:
    """Return Δ_1 = 0, Δ_2, …, Δ_{N+1} as the learner plays them against these gradients."""
    delta = torch.zeros_like(gradients[0])
    state, rows = learner.init(delta), [delta.clone()]
    for g in gradients:
        learner.update([delta], [g], [state], [learner.lr], beta)
        rows.append(delta.clone())
    return torch.stack(rows)


def follow(optimizer: Any, problem: Problem, x: Tensor, steps: int) -> Tensor:
    """Step along exact gradients; return the points x_1, …, x_N at which they were taken."""
    points = []
    for _ in range(steps):
        points.append(x.detach().clone())
        x.grad = problem.gradient(x.detach())
        optimizer.step()
    return torch.stack(points)


def compare(what: str, seeds: range, run: Callable[[int], tuple[float, float, float]]) -> Sides:
    """Compare three means over runs: the printed one should miss the truth, the corrected one meet it."""
    printed, corrected, truth = np.array([run(seed) for seed in seeds]).T
    measured = f"{what} against F(x_N)−F(x_0), mean of {len(seeds)} runs; corrected {corrected.mean():+.3f}"
    tolerance = Z * mean_error(printed - truth)[1]
    return Sides(measured, printed.mean(), truth.mean(), "==", also=agree(corrected, truth), tolerance=tolerance)


@row("erratum-a", "E[F(x_n)−F(x_{n−1})] = E⟨∇F(x_n), x_n−x_{n−1}⟩")
def progress_counts_moves_for_updates(seed: int, scale: float) -> Sides:
    """Section 3, twice; it is ⟨∇F(x_n), Δ_n⟩, which ``opt.progress`` adds up."""

    def run(i: int) -> tuple[float, float, float]:
        problem = MultiKink(2)
        x = problem.start().requires_grad_()
        optimizer = ExponentiatedO2NC([x], OGD(lr=0.5), beta=0.7, seed=i)
        points = follow(optimizer, problem, x, 20)
        printed = (problem.gradient(points[1:]) * points.diff(dim=0)).sum().item()
        return printed, optimizer.progress, (problem.value(points[-1]) - problem.value(points[0])).item()

    return compare("Σ⟨∇F(x_n), x_n−x_{n−1}⟩", range(seed, seed + enough(200, scale, 60)), run)


def argmin(objective: Callable[[Tensor], Tensor], dimension: int) -> Array:
    """Return where a quadratic is least, by one Newton step with derivatives of the objective itself."""
    zero = torch.zeros(dimension, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(objective, zero)
    slope = torch.autograd.functional.jacobian(objective, zero)
    return torch.linalg.solve(hessian, -slope).numpy()


def composite(g: Array, divergence: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return ⟨g, w⟩ + D(w, Δ_t) + (μ_{t+1}/2)‖w‖² + (1/η_{t+1} − 1/η_t)‖w‖², the objective of Theorem OGD."""
    growth = 1 / (BETA * H_NEXT) - 1 / H
    return lambda w: w @ torch.from_numpy(g) + divergence(w) + (MU / BETA / 2 + growth) * (w @ w)


@row("erratum-b", "explicit update = argmin of Theorem OGD")
def explicit_update_is_not_the_argmin(seed: int, scale: float) -> Sides:
    """The explicit update has η_t(1/η_{t+1} − 1/η_t) once, the argmin twice: κ = 1 and κ = 2."""
    delta, g = np.random.default_rng(seed).normal(size=(2, 3))
    start = torch.from_numpy(delta)
    least = argmin(composite(g, lambda w: ((w - start) ** 2).sum() / (2 * H)), 3)
    explicit = (delta - H * g) / (1 + H * MU / BETA + H * (1 / (BETA * H_NEXT) - 1 / H))
    off = float(np.abs([played(delta, g, kappa=1) - explicit, played(delta, g, kappa=2) - least]).max())
    measured = f"length of Δ_{{t+1}} by either; OGD with κ = 1 is the one, with κ = 2 the other, to {off:.0e}"
    left, right = float(np.linalg.norm(explicit)), float(np.linalg.norm(least))
    return Sides(measured, left, right, "==", also=off < 1e-12, tolerance=1e-9)


@row("erratum-c", "μ_t = 24cD²β^{−t}/α² gives β^tμ_t/2 = 12cD/α²")
def decay_has_one_d_too_many(seed: int, scale: float) -> Sides:
    """The proof of Theorem O2NC; D is right, and so is μ = 24F*c/((G + σ)α^{5/2}N), not G + D."""
    p = theory.plan(10_000, 2.0, gap=3.0, lipschitz=1.5, noise=0.5, constants="paper")
    needed = 12 * p.c * p.radius / p.alpha**2
    closed = 24 * p.gap * p.c / ((p.lipschitz + p.noise) * p.alpha**2.5 * p.steps)
    also = math.isclose(p.decay / 2, needed, rel_tol=ROUNDING) and math.isclose(p.decay, closed, rel_tol=ROUNDING)
    measured = f"both sides at D = {p.radius:.2g}; the plan's decay gives {p.decay / 2:.4g}"
    return Sides(measured, 12 * p.c * p.radius**2 / p.alpha**2, needed, "==", also=also, tolerance=1e-9 * needed)


@row("erratum-d", "x_{t+1} = x_t − s_{n+1}·η̃·m_{t+1}")
def one_scalar_serves_all_steps(seed: int, scale: float) -> Sides:
    """The first SGDM display: the scalar is s_{t+1}, a new one in every step; and the first step is a no-op."""
    problem, steps, learner = DoubleWell(1), 50, OGD(lr=0.01)
    x = problem.start().requires_grad_()
    run = follow(ExponentiatedO2NC([x], learner, beta=0.9, seed=seed), problem, x, steps)
    points, updates = run[:, 0].numpy(), replay(learner, problem.gradient(run), 0.9)[:, 0].numpy()
    moves = np.diff(points)  # x_{t+1} − x_t, t = 1..N−1
    drawn = np.array([Exponential().sample(seed, t + 1) for t in range(1, steps)])
    fixed = Exponential().sample(seed, steps + 1)
    corrected = float(np.abs(moves - drawn * updates[1:steps]).max())
    worst = int(np.abs(moves - fixed * updates[1:steps]).argmax())
    still = updates[0] == 0 and points[0] == problem.start().item()
    measured = f"move of one step of a run with s_{{N+1}}, and as made; with s_{{t+1}} it is off by {corrected:.0e}"
    left, right = fixed * updates[worst + 1], moves[worst]
    return Sides(measured, left, right, "==", also=bool(still) and corrected < 1e-12, tolerance=1e-9)


@row("erratum-e", "∇F(x) = ∇F(y) + ∇²F(x)(x−y) + ½∇³F(z)[x−y]²")
def taylor_remainder_has_the_wrong_sign(seed: int, scale: float) -> Sides:
    """The proof of Lemma criterion-reduction, F' = h²/2 at x = 1, y = 0: the last sign is −, and 2ε is loose."""
    # c = H²/ε with F'(h) = 1.25 − |h| at ±½, and c = ρ/2 with F'(h) = 1 − h²/2 at ±1; ε = 1 in both
    smooth = Certificate(1.0, 0.75, 0.25, 2.0).gradient_norm(smoothness=1.0)
    second = Certificate(0.5, 0.5, 1.0, 2.0).gradient_norm(second_order=1.0)
    at_x, at_y, linear, remainder = 0.5, 0.0, 1.0, 0.5
    also = max(abs(smooth - 1.25), abs(second - 1.0)) < ROUNDING and at_x == at_y + linear - remainder
    measured = f"both sides for F = h³/6; with − it holds; the constants reached are {smooth:g}ε and {second:g}ε"
    return Sides(measured, at_x, at_y + linear + remainder, "==", also=also)


@row("erratum-f", "Σ_{n=t}^N λ_{n,t} ≤ 8Σ_{n=1}^{N−t} nβ^n")
def spread_sum_ends_one_term_early(seed: int, scale: float) -> Sides:
    """The proof of Lemma variance-regularizer; the sum goes to N − t + 1, and then 4 is enough for 8."""
    ratios, steps = [], 200
    for beta in BETAS:
        powers = np.cumsum(np.arange(1, steps + 1) * beta ** np.arange(1.0, steps + 1))
        ratios.append((summed_weights(beta, steps) / (4 * powers[::-1])).max())  # t = N has the first partial sum
    last, worst = float(variance_weights(steps, 0.9)[-1]), float(np.max(ratios))
    measured = f"at t = N = {steps}, β = .9, where the sum on the right is empty; corrected, worst ratio {worst:.4f}"
    return Sides(measured, last, 0.0, also=0.99 < worst <= 1 + ROUNDING)


def printed_plans(rng: np.random.Generator, count: int, stretch: Callable[[], float]) -> Iterator[theory.Plan]:
    """Yield plans with the printed constants, for random c, F*, G and σ, at so many times the fewest steps."""
    for _ in range(count):
        c, gap, lipschitz, noise = 10 ** rng.uniform(-3, 3, size=4)
        least = max(2**1.5, 2**1.75 * gap * math.sqrt(c) / (lipschitz + noise) ** 1.5)  # from which on α <= ½
        steps = math.ceil(least * stretch())
        yield theory.plan(steps, c, gap=gap, lipschitz=lipschitz, noise=noise, constants="paper")


@row("erratum-g", "(1/N)·2(G+σ)/√α ≲ (G+σ)/N")
def regret_term_loses_a_root_of_alpha(seed: int, scale: float) -> Sides:
    """The proof of Theorem SGDM drops 1/√α, which grows; it is dominated, and the whole bound is <= 36.7(G + σ)√α."""

    def ratios(steps: int) -> tuple[float, float]:
        p = theory.plan(steps, 1e-12, gap=1.0, lipschitz=1.0, noise=1.0, constants="paper")
        term = p.terms["regret"] / (1 + 2 * p.alpha * steps)  # (1/N)(2A/√α), the rest vanishes with c
        return term * steps / 2, term * steps * math.sqrt(p.alpha) / 2

    (few, few_right), (many, many_right) = ratios(10**4), ratios(10**12)
    rng = np.random.default_rng(seed)
    plans = printed_plans(rng, enough(2000, scale, 1000), lambda: 10 ** rng.uniform(0.01, 6))
    worst = float(np.max([p.bound / ((p.lipschitz + p.noise) * math.sqrt(p.alpha)) for p in plans]))
    also = abs(many_right / few_right - 1) < 1e-3 and 25 < worst <= 36.7
    measured = f"growth of left/right from N = 10⁴ to 10¹²; largest bound met {worst:.1f}(G+σ)√α, proved 36.7(G+σ)√α"
    return Sides(measured, many / few, 1.0, also=also)


@row("erratum-h", "D_ψ(x,y) = ψ(x) − ψ(y) − ⟨∇ψ(y), y−x⟩")
def bregman_divergence_has_the_wrong_sign(seed: int, scale: float) -> Sides:
    """The Bregman divergence; with x − y the argmin of Theorem OGD is what `OGD` plays, with y − x it is not."""
    delta, g = np.random.default_rng(seed).normal(size=(2, 3))
    y = torch.from_numpy(delta)

    def bregman(x: Tensor, sign: float) -> Tensor:
        return (x @ x - y @ y - sign * 2 * (y @ (x - y))) / (2 * H)

    wrong, least = (argmin(composite(g, partial(bregman, sign=sign)), 3) for sign in (-1.0, 1.0))
    now = played(delta, g, kappa=2)
    at = torch.from_numpy(now)
    printed, right = bregman(at, -1.0).item(), ((at - y) @ (at - y) / (2 * H)).item()
    also = float(np.abs(now - least).max()) < 1e-12 < float(np.abs(now - wrong).max())
    measured = "D_ψ(Δ_{t+1}, Δ_t) for ψ = ‖·‖²/2η against ‖Δ_{t+1}−Δ_t‖²/2η; with x − y OGD plays the argmin"
    return Sides(measured, printed, right, "==", also=also, tolerance=1e-9)


@row("erratum-i", "Algorithm 1: g_n = ∇f(x_n, z_n)")
def algorithm_1_takes_the_gradient_at_x(seed: int, scale: float) -> Sides:
    """The listing of Algorithm 1 takes the gradient at x_n; F(x_n) − F(x_{n−1}) = E⟨∇F(w_n), Δ_n⟩ needs w_n."""

    def run(k: int) -> tuple[float, float, float]:
        problem, learner = MultiKink(2), BallOGD(lr=0.5, radius=0.7)
        x = problem.start().requires_grad_()
        optimizer = OriginalO2NC([x], learner, period=20, seed=k)
        updates = replay(learner, problem.gradient(follow(optimizer, problem, x, 20)), 1.0)[:20]
        at = problem.start() + updates.cumsum(0)  # x_n
        rise = problem.value(at[-1]) - problem.value(problem.start())
        return (problem.gradient(at) * updates).sum().item(), optimizer.progress, rise.item()

    return compare("Σ⟨∇F(x_n), Δ_n⟩", range(seed, seed + enough(200, scale, 60)), run)


@row("erratum-j", "F(x)−F(y) = ∫₀¹⟨∇F(x+t(y−x)), y−x⟩dt")
def integral_has_the_wrong_sign(seed: int, scale: float) -> Sides:
    """Assumption 1; the integral is F(y) − F(x), on every problem of the library that is asked."""
    rng, count = np.random.default_rng(seed), enough(20_000, scale, 4000)
    t = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    problems: list[Problem] = [MultiKink(3), DoubleWell(2), Cosine(3)]
    sides, errors = [], []
    for problem in problems:
        x, y = torch.from_numpy(problem.start().numpy() + 2 * rng.normal(size=(2, problem.dimension)))
        integral = (problem.gradient(x + t[:, None] * (y - x)) @ (y - x)).mean().item()
        rise = (problem.value(y) - problem.value(x)).item()
        sides.append((-rise, integral))
        errors.append(abs(rise - integral))
    left, right = max(sides, key=lambda pair: abs(pair[0] - pair[1]))
    tolerance, off = 100 / count, float(np.max(errors))  # of a midpoint rule that meets a few kinks
    measured = f"both sides on the worst of {len(problems)} problems; F(y)−F(x) is the integral to {off:.0e}"
    return Sides(measured, left, right, "==", also=off < tolerance, tolerance=tolerance)


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


@row("erratum-k", "ΣΣ p_{n,t}⟨∇F(x_t), −Δ_t⟩ ≲ 1−β")
def sketched_sum_does_not_shrink_with_alpha(seed: int, scale: float) -> Sides:
    """The sketch in Section 3; the sum is of the size of F*, whatever β, and its exact mean is in the formal proof.

    With the weights (1 − β)β^{n−t} it telescopes: E of it is F(x_0) − F(x_N) + Σ_t β^{N−t+1}(F(x_t) − F(x_{t−1})).
    """
    seeds = range(seed, seed + enough(16, scale, 8))
    far, near = (sketched(beta, 300, seeds) for beta in (0.9, 0.99))
    means = f"{far[1].mean():.2f} is the telescoped {far[2].mean():.2f}"
    measured = f"how the sum changes from β = .9 to .99, mean of {len(seeds)} runs; corrected, {means}"
    also = all(agree(corrected, telescoped) for _, corrected, telescoped in (far, near))
    return Sides(measured, near[0].mean() / far[0].mean(), 0.01 / 0.1, also=also)


@row("erratum-l", "orthonormal Δ_t: ‖x_1−x_N‖ = O(N), as if tight")
def orthonormal_updates_do_not_go_that_far(seed: int, scale: float) -> Sides:
    """Section 3's example; the distance is √(2N), and E V = Σ_{ij} p_i p_j |i − j| is √N, not N (α = N^{−½})."""
    few, many, count = 64, 1024, enough(8, scale)
    drawn = [[Exponential().sample(seed + j, t) for t in range(2, many + 2)] for j in range(count)]
    squares = np.square(drawn)
    distances = squares.cumsum(1).mean(0)  # ‖x_{N+1} − x_1‖² for every N, of mean 2N and variance 20N
    right = all(abs(distances[n - 1] - 2 * n) <= Z * np.sqrt(20 * n / count) for n in (few, many))
    p = (1 - many**-0.5) ** np.arange(many - 1, -1.0, -1)
    before = np.cumsum(p / p.sum())  # the weight of the points up to an update
    between = before * (1 - before)  # V = Σ_t s_t² P(y before t) P(y from t on)
    spread, exact = (squares @ between).mean(), 2 * between.sum()
    right = right and abs(spread - exact) <= Z * np.sqrt(20 * (between**2).sum() / count)
    growth = float(np.sqrt(distances[many - 1] / distances[few - 1]))
    measured = f"growth of ‖x_1−x_N‖ from N = {few} to {many}; √(2N) is met, V = {spread:.1f} is {exact:.1f}"
    return Sides(measured, growth, many / few, "==", also=right, tolerance=4.0)


def plateau(x: Tensor) -> Tensor:
    """Return F' = −1 for |h| <= 1 and +1 beyond: zero on average over y = 0, 0, ±1⁺, and steep within distance 1."""
    return torch.where(x.abs() <= 1, -1.0, 1.0).to(x.dtype)


@row("erratum-m", "c = ε/δ²: almost (δ,ε)-Goldstein stationary")
def goldstein_price_is_too_low(seed: int, scale: float) -> Sides:
    """Section 2; a (c, ε)-stationary point at that c may be nowhere near. It takes c >= 2G/δ²."""
    eps = 0.01
    y = torch.tensor([[0.0], [0.0], [1 + 1e-9], [-1 - 1e-9]], dtype=torch.float64)
    at = o2nc.certify(plateau, y, eps, beta=1 - 1e-12)  # E F'(y) = 0 and V = ½
    steep = abs(plateau(y.clamp(-1, 1)).mean().item())  # the same at all points within δ = 1
    with warnings.catch_warnings(action="ignore"):  # that epsilon >= G, which is the point here
        claimed = at.goldstein(1.0, lipschitz=1.0).epsilon
        enough_c, less_c = (Certificate(c, 0.1, 0.05, 2.0).goldstein(1.0, lipschitz=1.0).epsilon for c in (2.0, 1.0))
    also = at.value <= eps and steep <= claimed and abs(enough_c - 0.2) < ROUNDING and less_c > 0.15 + ROUNDING
    measured = f"mean gradient of every ŷ within δ = 1 where ‖∇F(x)‖_c ≤ ε/2; goldstein says {claimed:.2f}, G being 1"
    return Sides(measured, steep, eps, also=also)


def after_two(gradients: Sequence[float], seed: int) -> tuple[float, float]:
    """Return x_3 and Δ_3 of Algorithm 2 with β = ½ and η = 1, from x_0 = 0 and these two gradients."""
    x, learner = torch.zeros(1, dtype=torch.float64), OGD(lr=1.0)
    optimizer = ExponentiatedO2NC([x], learner, beta=0.5, seed=seed)
    for g in gradients:
        x.grad = torch.full_like(x, g)
        optimizer.step()
    seen = torch.tensor(gradients, dtype=torch.float64).unsqueeze(1)
    return x.item(), replay(learner, seen, 0.5)[-1].item()


def believed_rise(steps: int, seed: int, *, shuffled: bool) -> float:
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


@row("erratum-n", "F_t = σ-algebra of x_t; Δ_t ∈ F_t")
def update_is_not_known_from_the_point(seed: int, scale: float) -> Sides:
    """The proof of Theorem O2NC; F_t must be the whole past, and g_t unbiased given that: epochs are not enough."""
    first, second = (Exponential().sample(seed, t) for t in (2, 3))
    x, delta = after_two((1.0, 0.0), seed)  # Δ_2 = −½, Δ_3 = −¼
    y, other = after_two((0.0, (first + second / 2) / second), seed)  # nothing, and then as far at once
    runs = range(seed, seed + enough(24, scale, 12))
    fresh, epochs = ([believed_rise(20, k, shuffled=shuffled) for k in runs] for shuffled in (False, True))
    zero, means = [0.0] * len(fresh), f"{np.mean(fresh):+.3f} from fresh samples, {np.mean(epochs):+.3f} by epochs"
    measured = f"Δ_3 of two runs that share x_3; on F = 0 the progress is {means}"
    also = abs(x - y) < 1e-12 and agree(fresh, zero) and not agree(epochs, zero)
    return Sides(measured, delta, other, "==", also=also, tolerance=1e-9)


@row("erratum-o", "c = H²/ε: ‖∇F(x)‖_c ≤ ε ⇒ ‖∇F(x)‖ ≤ ε")
def smooth_reduction_is_short_of_a_quarter(seed: int, scale: float) -> Sides:
    """Section 5; the lemma gives 2ε, and 1.25ε is reached: F'(h) = 1.25ε − H|h|, y = ±ε/2H."""
    eps, smoothness = 0.04, 3.0
    slope = 1.25 * eps
    at = Certificate(smoothness**2 / eps, slope - eps / 2, (eps / (2 * smoothness)) ** 2, 2.0)
    claimed = at.gradient_norm(smoothness=smoothness)
    also = abs(at.value - eps) < ROUNDING and abs(claimed - slope) < ROUNDING
    measured = f"‖∇F(x)‖ at a point with ‖∇F‖_c = ε, H = {smoothness:g}; gradient_norm says {claimed / eps:.4f}ε"
    return Sides(measured, slope, eps, also=also)


@row("erratum-p", "ημ ≈ α")
def decay_is_not_of_the_size_of_alpha(seed: int, scale: float) -> Sides:
    """Section 4.3; ημ = 48α on the branch of large c and less on the other, so momentum forgets 49 times faster."""
    plans = list(printed_plans(np.random.default_rng(seed), enough(2000, scale), lambda: 10.0))
    ratios = [plan.lr * plan.decay / plan.alpha for plan in plans]
    large = [plan.alpha > plan.steps ** (-2 / 3) * (1 + ROUNDING) for plan in plans]
    off = max(abs(ratio - 48) for ratio, is_large in zip(ratios, large, strict=True) if is_large)
    measured = f"greatest ημ/α over random constants; on the second branch it is 48 to {off:.0e}"
    also = off < 1e-9 and max(ratios) <= 48 + 1e-9
    return Sides(measured, float(np.max(ratios)), 1.0, "==", also=also, tolerance=1.0)


@row("erratum-q", "F(x)−F(y) = ⟨F(x), x−y⟩ + O(‖x−y‖²)")
def expansion_lacks_a_gradient(seed: int, scale: float) -> Sides:
    """Section 3 lacks a ∇: with it, the remainder is at most H‖x − y‖²/2."""
    rng, length, problem = np.random.default_rng(seed), 1e-4, Cosine(1)
    x = problem.start() + 3 * torch.from_numpy(rng.normal(size=(enough(200, scale), 1)))
    rise, unit = problem.value(x) - problem.value(x - length), length**2 * problem.smoothness / 2
    printed = ((rise - problem.value(x) * length).abs() / unit).max().item()
    corrected = ((rise - problem.gradient(x)[:, 0] * length).abs() / unit).max().item()
    measured = f"remainder over H‖x−y‖²/2 at ‖x−y‖ = 10⁻⁴ in one dimension; with ∇ at most {corrected:.3f}"
    return Sides(measured, printed, 1.0, also=0.9 < corrected <= 1.01)
