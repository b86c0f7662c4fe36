"""What a certificate says of gradients and of Goldstein points, against functions that make it as wrong as possible.

The functions are of one variable, with a derivative that is constant on pieces and bounded: the slope of ∇F for
smooth F, of ∇²F for second-order smooth F, and ∇F itself for Lipschitz F. Function, random point y and price c are
improved together by random steps from many starts, toward the greatest ratio of the truth to the bound.
"""

import warnings
from collections.abc import Callable

import numpy as np
import torch

import o2nc
from o2nc import Certificate
from o2nc.problems import Cosine, DoubleWell, MultiKink, Problem, Ripple
from o2nc_experiments.verify.check import ROUNDING, Finding, enough, greatest, statement
from o2nc_experiments.verify.traces import Array

POINTS, PIECES = 4, 8
EDGES = np.linspace(-4.0, 4.0, PIECES + 1)  # of the pieces; y is at most so far from x = 0, give or take
TIGHT = 0.999
CONSTANTS = {1: "smoothness", 2: "second_order"}  # by the order of the derivative that has the constant


def climb(score: Callable[[Array], Array], size: int, rng: np.random.Generator, starts: int, rounds: int) -> float:
    """Return the greatest score found: random steps on some of the coordinates, kept where they help."""
    x = rng.normal(size=(starts, size))
    best, length = score(x), np.ones(starts)
    for _ in range(rounds):
        moved = rng.normal(size=x.shape) * (rng.random(x.shape) < 0.3) * length[:, None]
        found = score(x + moved)
        better = found > best
        x[better] += moved[better]
        best[better] = found[better]
        length = np.clip(length * np.where(better, 1.5, 0.93), 1e-4, 2.0)
    return float(best.max())


def unpack(x: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Return points with mean 0, weights, derivatives on the pieces in [−1, 1], a number, and c > 0, row by row."""
    y, logits, pieces, number, log_c = np.split(x, np.cumsum([POINTS, POINTS, PIECES, 1]), axis=1)
    p = np.exp(np.clip(2 * logits, -5, 5))  # a smaller p would show rounding
    p /= p.sum(1, keepdims=True)
    y = y - (p * y).sum(1, keepdims=True)
    return y, p, np.clip(1.5 * pieces, -1, 1), number, np.exp(log_c[:, 0])


SIZE = 2 * POINTS + PIECES + 2


def integral(y: Array, pieces: Array, order: int) -> Array:
    """Return the integral from 0 to y, taken ``order`` times, of the function with these values on the pieces."""
    distance, side = np.abs(y)[:, :, None], np.sign(y)
    total = np.zeros_like(y)
    for sign in (1.0, -1.0):
        ends = (EDGES[:-1], EDGES[1:]) if sign > 0 else (EDGES[1:], EDGES[:-1])
        near, far = (np.maximum(0.0, sign * edge) for edge in ends)
        covered = np.maximum(distance - near, 0) ** order - np.maximum(distance - far, 0) ** order
        total += np.where(side == sign, (covered * pieces[:, None, :]).sum(-1), 0.0)
    return total * (side if order == 1 else 1.0) / order


def gradient_bound(at: Certificate, order: int, constant: float, constants: str = "sharp") -> float:
    """Return the bound on ‖∇F‖ for H (order 1) or ρ (order 2)."""
    return at.gradient_norm(**{CONSTANTS[order]: constant}, constants=constants)


def norms(constants: str, order: int) -> Callable[[Array], Array]:
    """Return the score of `climb`: |F'(0)| over the bound on it, for H = 1 (order 1) or ρ = 1 (order 2).

    As in the lemma, c = H²/ε or c = ρ/2. Where the spread is less than a tenth of ε the score is 0: a point y = x
    makes the second bound an equality, and shows nothing.
    """

    def score(x: Array) -> Array:
        y, p, pieces, number, _ = unpack(x)
        change = integral(y, pieces, order)  # F'(y) − F'(0), less F''(0)y, whose mean is 0
        mean = np.abs(number[:, 0] + (p * change).sum(1))
        spread = (p * y**2).sum(1)
        # ε = mean + spread/ε
        c = 2 / (mean + np.sqrt(mean**2 + 4 * spread)) if order == 1 else np.full(len(x), 0.5)
        matters = c * spread > 0.1 * (mean + c * spread)
        bounds = [
            gradient_bound(Certificate(price, g, v, 1.0), order, 1.0, constants)
            for price, g, v in zip(c.tolist(), mean.tolist(), spread.tolist(), strict=True)
        ]
        return matters * np.abs(number[:, 0]) / np.maximum(bounds, 1e-12)

    return score


def certified(problem: Problem, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, Certificate]:
    """Return a few points near a random place, exponential or optimal weights, and their certificate."""
    count = int(rng.integers(2, 6))
    centre = problem.start().numpy() + rng.normal(size=problem.dimension)
    y = torch.from_numpy(centre + 10 ** rng.uniform(-2, 0.5) * rng.normal(size=(count, problem.dimension)))
    weights = "optimal" if rng.random() < 0.2 else "exponential"
    c, beta = float(10 ** rng.uniform(-1, 2)), float(rng.uniform(0.05, 0.999))
    at = o2nc.certify(problem.gradient, y, c, weights=weights, beta=beta)
    assert at.weights is not None
    return y, at.weights, at


def reduced(order: int, seed: int, scale: float) -> tuple[dict[str, float], float, bool]:
    """Return the greatest ratio by constants, that of the tight example, and whether the bounds hold at any c."""
    rng = np.random.default_rng(seed)
    starts, rounds = 24, enough(400, scale, 100)
    worst = {constants: climb(norms(constants, order), SIZE, rng, starts, rounds) for constants in ("sharp", "paper")}
    several: list[Problem] = [Cosine(1), Cosine(3), Ripple(1), Ripple(4)]
    valid = True
    for problem in several:
        constant = getattr(problem, CONSTANTS[order])
        for _ in range(enough(100, scale)):
            y, p, at = certified(problem, rng)
            truth = problem.gradient(p @ y).norm().item()
            for constants in worst:
                valid = valid and truth <= gradient_bound(at, order, constant, constants) * (1 + ROUNDING)
    # F'(h) = a − H|h| at y = ±1/2c; F'(h) = a − ρh²/2 at c = ρ/2, H = ρ = 1
    tight = Certificate(1.0, 0.75, 0.25, 2.0) if order == 1 else Certificate(0.5, 0.6, 0.8, 2.0)
    truth = 0.75 + 0.5 if order == 1 else 0.6 + 0.4
    return worst, truth / gradient_bound(tight, order, 1.0), valid


def _criterion(order: int, seed: int, scale: float) -> Finding:
    with warnings.catch_warnings(action="ignore"):  # that c is small for the smoothness
        worst, tight, valid = reduced(order, seed, scale)
    measured = (
        f"greatest ‖∇F(x)‖/bound: search over functions and laws {worst['sharp']:.4f}, known example {tight:.4f}; "
        f"of the printed 2ε {worst['paper']:.3f}"
    )
    also = valid and tight > TIGHT and worst["sharp"] > 0.97 and worst["paper"] <= 1
    return Finding(measured, greatest(worst["sharp"], tight), 1.0, also=also)


@statement("criterion-smooth", "‖∇F(x)‖ ≤ ‖∇F(x)‖_c + H²/4c  (printed: 2ε)")
def criterion_smooth(seed: int, scale: float) -> Finding:
    """Lemma criterion-reduction for H-smooth F."""
    return _criterion(1, seed, scale)


@statement("criterion-second-order", "‖∇F(x)‖ ≤ ‖∇F(x)‖_c, c ≥ ρ/2  (printed: 2ε)")
def criterion_second_order(seed: int, scale: float) -> Finding:
    """Lemma criterion-reduction for second-order smooth F."""
    return _criterion(2, seed, scale)


def clipped_score(x: Array) -> Array:
    """Return three ratios for δ = G = 1, as columns: distance, radius and mean gradient, to what is promised.

    The last is 0 where the spread is less than a tenth of ε: with y = x it is 1, and shows nothing.
    """
    y, p, pieces, _, c = unpack(x)
    inside = np.clip(y, -1, 1)

    def slope(at: Array) -> Array:
        return np.take_along_axis(pieces, np.searchsorted(EDGES[1:-1], at), axis=1)

    mean, clipped = np.abs((p * slope(y)).sum(1)), np.abs((p * slope(inside)).sum(1))
    spread, shift = (p * y**2).sum(1), (p * inside).sum(1)
    radius = np.abs(inside - shift[:, None]).max(1)
    clipped = clipped * (c * spread > 0.1 * (mean + c * spread))
    promised = []
    for price, g, v in zip(c.tolist(), mean.tolist(), spread.tolist(), strict=True):
        found = Certificate(price, g, v, 1.0).goldstein(1.0, lipschitz=1.0)
        promised.append((found.distance, found.radius, found.epsilon))
    return np.stack([np.abs(shift), radius, clipped], axis=1) / np.maximum(promised, 1e-12)


def goldstein_ratios(
    problem: Problem, y: torch.Tensor, p: torch.Tensor, at: Certificate, delta: float
) -> list[float]:
    """Return distance, radius and mean gradient at the clipped points over what is promised, sharp and printed."""
    x = p @ y
    r = (y - x).norm(dim=1)
    inside = x + (delta / r).clamp(max=1.0).nan_to_num(1.0)[:, None] * (y - x)
    middle = p @ inside
    radius = (inside - middle).norm(dim=1)[p > 0].max()
    truth = ((middle - x).norm(), radius, (p @ problem.gradient(inside)).norm())
    ratios = []
    for constants in ("sharp", "paper"):
        found = at.goldstein(delta, lipschitz=problem.lipschitz, constants=constants)
        assert isinstance(found.point, torch.Tensor)
        off = (found.point - middle).norm().item() > 1e-9
        promised = (found.distance, found.radius, found.epsilon)
        ratios += [float("inf") if off else t.item() / max(b, 1e-12) for t, b in zip(truth, promised, strict=True)]
    return ratios


@statement("goldstein", "‖E∇F(ŷ)‖ ≤ max(1, 2G/cδ²)ε, ‖x−x'‖ ≤ V/4δ")
def goldstein(seed: int, scale: float) -> Finding:
    """Lemma goldstein-reduction, with its improved constants and as printed."""
    rng = np.random.default_rng(seed)
    starts, rounds = 16, enough(300, scale, 100)
    with warnings.catch_warnings(action="ignore"):  # that epsilon says nothing
        near, wide, mean = (
            climb(lambda x, k=k: clipped_score(x)[:, k], SIZE, rng, starts, rounds)  # type: ignore[misc]
            for k in range(3)
        )
        # F' = −1 up to |h| = 1 and 1 beyond, at 0 such that E F'(y) = 0; y = 0 or ±1⁺ with probabilities .6, .2, .2
        known = 0.8 / Certificate(2.0, 0.0, 0.4, 1.0).goldstein(1.0, lipschitz=1.0).epsilon
        ratios = []
        for problem in (MultiKink(1), MultiKink(3), DoubleWell(1), DoubleWell(2)):
            for _ in range(enough(100, scale)):
                ratios += goldstein_ratios(problem, *certified(problem, rng), float(10 ** rng.uniform(-1.5, 0.5)))
    measured = (
        f"greatest ratio to the bound, by search: ‖x − x'‖ {near:.4f}, ‖ŷ − x'‖ {wide:.4f}, ‖E∇F(ŷ)‖ {mean:.4f} "
        f"(known example {known:.4f}); on library problems {greatest(ratios):.4f}"
    )
    tight = near > 0.98 and known > TIGHT and mean > 0.8
    return Finding(measured, greatest(near, wide, mean, known, *ratios), 1.0, also=tight)
