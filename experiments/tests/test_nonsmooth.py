"""Rows of the non-smooth study are runs of the library's optimizers; the study, the traps and the command."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

import o2nc
from o2nc import problems
from o2nc_experiments import cli
from o2nc_experiments.nonsmooth import adaptive, command, escapes, runs, study, tables
from o2nc_experiments.nonsmooth.adaptive import Adam, Leader
from o2nc_experiments.nonsmooth.arms import (
    ARMS,
    DECAYED,
    FREE,
    OTHERS,
    RANDOM,
    REFERENCE,
    Arm,
    Decay,
    Power,
    Restarts,
)
from o2nc_experiments.nonsmooth.objectives import OBJECTIVES, BlindDeconvolution, Factorisation
from o2nc_experiments.nonsmooth.runs import ANCHOR, NOISE, QUERY, SHARE, START, Row, run
from o2nc_experiments.nonsmooth.study import CERTIFICATE, TOGETHER, VALUE, Result

STEPS = 60
WELL = problems.Additive(problems.DoubleWell(3), noise=0.0)
NOISY = problems.Additive(problems.MultiKink(4), noise=0.5)
BATCHES = problems.Subsampled(problems.PhaseRetrieval(4, samples=20), batch=3)


def begin(oracle, seed):
    """The start and the noise of a seed, drawn alone."""
    problem = oracle.problem
    scale = runs.NEAR * problem.gap / problem.lipschitz / math.sqrt(problem.dimension)
    generator = torch.Generator().manual_seed(seed * 100 + START)
    x = problem.start()
    x += scale * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    generator = torch.Generator().manual_seed(seed * 100 + NOISE)
    if isinstance(oracle, problems.Subsampled):
        drawn = torch.randint(problem.terms, (500, oracle.batch), generator=generator)
        return x, lambda y, t: problem.term_gradient(y, drawn[t - 1])
    error = torch.randn(500, problem.dimension, generator=generator, dtype=x.dtype) * oracle.noise
    return x, lambda y, t: problem.gradient(y) + error[t - 1] / math.sqrt(problem.dimension)


def alone(oracle, row, optimizer_of, read=None, steps=STEPS):
    """F where an optimizer of the library ends, with a scheduler of torch's."""
    x, gradient = begin(oracle, row.seed)
    optimizer = optimizer_of(x)
    factor = row.arm.schedule.factor
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: factor(t + 1, steps))
    for t in range(1, steps + 1):
        x.grad = gradient(x, t)
        optimizer.step()
        scheduler.step()
    if read is None:
        return oracle.problem.value(x).item()
    with optimizer.averaged():
        return oracle.problem.value(x).item()


@pytest.mark.some(1)
@pytest.mark.parametrize("oracle", [WELL, NOISY, BATCHES], ids=["exact", "noise", "batches"])
def test_rows_are_runs_of_scaled_sgdm(oracle):
    arms = [arm for arm in RANDOM if not arm.query]
    arms += [arm for arm in FREE if not (arm.anchor or arm.adaptive or isinstance(arm.schedule, Restarts))]
    rows = [Row(arm, lr, seed) for arm in arms for lr, seed in ((0.01, 0), (0.03, 1))]
    found = run(oracle, rows, [STEPS]).value[:, 0].tolist()
    for row, value in zip(rows, found, strict=True):
        arm = row.arm.prepared(STEPS)

        def make(x, arm=arm, row=row):
            given = {"nesterov": arm.nesterov, "scaling": arm.law, "seed": row.seed, "average": arm.window}
            return o2nc.ScaledSGDM([x], row.lr, 0.9, **given)

        assert value == pytest.approx(alone(oracle, row, make, arm.window), rel=1e-9), arm.name


def other(arm, x, lr, seed):
    """The library's optimizer of an adaptive arm."""
    kept = {"scaling": arm.law, "seed": seed}
    if arm.name.startswith("ScaleFree"):
        return o2nc.ExponentiatedO2NC([x], o2nc.learners.ScaleFree(lr), beta=arm.momentum, **kept)
    options = {"betas": (arm.momentum, adaptive.BETA2), "eps": adaptive.EPS}
    if arm.name.startswith("NAdam"):
        return o2nc.extend(torch.optim.NAdam([x], lr, **options), **kept)
    return o2nc.AdamW([x], lr, weight_decay=0.0, **options, **kept)


@pytest.mark.some(1)
@pytest.mark.parametrize("oracle", [WELL, NOISY, BATCHES], ids=["exact", "noise", "batches"])
def test_rows_are_runs_of_other_optimizers(oracle):
    arms = [*OTHERS, replace(ARMS["NAdam, Exp(1)"], momentum=0.5), replace(ARMS["ScaleFree"], momentum=0.5)]
    rows = [Row(arm, lr, seed) for arm in arms for lr, seed in ((0.01, 0), (0.05, 1))]
    found = run(oracle, rows, [STEPS]).value[:, 0].tolist()
    for row, value in zip(rows, found, strict=True):
        expected = alone(oracle, row, partial(other, row.arm, lr=row.lr, seed=row.seed))
        rounding = 1e-6 if row.arm.name.startswith("NAdam") else 1e-9  # torch's has μ_1⋯μ_t in float32
        assert value == pytest.approx(expected, rel=rounding), row.arm.name


def test_a_coordinate_without_gradients_stays():
    """Where g = 0 from the start the scale-free learner would divide 0 by 0."""

    class Flat(problems.DoubleWell):
        def gradient(self, x):
            return super().gradient(x) * torch.tensor([1.0, 0.0], dtype=x.dtype)

    oracle = problems.Additive(Flat(2), noise=0.0)
    assert run(oracle, [Row(ARMS["ScaleFree"], 0.01, 0)], [STEPS]).value.isfinite().all()


@pytest.mark.parametrize("power", [0, 3])
def test_rows_are_runs_of_schedule_free_adamw(power):
    """As it is published: y between z and x, the gradient there, a step of z, x the mean of all z weighed by t^r."""
    arm = next(arm for arm in FREE if arm.adaptive and arm.window == o2nc.Polynomial(power))
    (kappa, _), lr = arm.anchor, 0.05
    z, gradient = begin(NOISY, 2)
    x, v = z.clone(), torch.zeros_like(z)
    for t in range(1, STEPS + 1):
        x = x + (power + 1) / (t + power) * (z - x)
        g = gradient((1 - kappa) * z + kappa * x, t)
        v = adaptive.BETA2 * v + (1 - adaptive.BETA2) * g**2
        z = z - lr * g / ((v / (1 - adaptive.BETA2**t)).sqrt() + adaptive.EPS)
    found = run(NOISY, [Row(arm, lr, 2)], [STEPS]).value.item()
    assert found == pytest.approx(NOISY.problem.value(x).item(), rel=1e-9)


def test_an_anchor_is_asked_for_between_x_and_the_average():
    arm, lr, seed = ARMS["anchor U(0.9, 1), t^3"], 0.1, 4
    z, gradient = begin(BATCHES, seed)
    x = z.clone()
    for t in range(1, STEPS + 1):
        x = x + 4 / (t + 3) * (z - x)
        kappa = 0.9 + 0.1 * o2nc.scaling.uniform(seed, t, stream=ANCHOR)
        z = z - lr * gradient((1 - kappa) * z + kappa * x, t)
    found = run(BATCHES, [Row(arm, lr, seed)], [STEPS]).value.item()
    assert found == pytest.approx(BATCHES.problem.value(x).item(), rel=1e-9)


def test_a_query_asks_for_the_gradient_on_the_last_step():
    for nesterov in (False, True):
        row = Row(Arm("query", query=True, nesterov=nesterov), 0.02, 3)
        x, gradient = begin(NOISY, row.seed)
        optimizer = torch.optim.SGD([x], row.lr, 0.9, nesterov=nesterov)
        before = x.clone()
        for t in range(1, STEPS + 1):
            u = o2nc.scaling.uniform(row.seed, t, stream=QUERY)
            x.grad = gradient(x + u * (before - x), t)  # u = 0 is the end of the step, u = 1 its beginning
            before = x.clone()
            optimizer.param_groups[0]["lr"] = row.lr * Decay().factor(t, STEPS)
            optimizer.step()
        assert run(NOISY, [row], [STEPS]).value.item() == pytest.approx(NOISY.problem.value(x).item(), rel=1e-9)


def test_restarts_hand_back_the_end_of_the_last_decay():
    """After 20 + 40 steps of 60 the second decay has ended, and what comes after changes nothing."""
    arm = Arm("r", Restarts(first=20))
    x, gradient = begin(NOISY, 0)
    optimizer = torch.optim.SGD([x], 0.05, 0.9)
    for t in range(1, 61):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - (t - 1) / 20 if t <= 20 else 1 - (t - 21) / 40)
        x.grad = gradient(x, t)
        optimizer.step()
    found = run(NOISY, [Row(arm, 0.05, 0)], [60, 139]).value
    assert found[0].tolist() == pytest.approx([NOISY.problem.value(x).item()] * 2, rel=1e-9)


def test_a_trunk_goes_on_where_it_was_left():
    """Its branch takes two of ten steps, and the next ten begin where the trunk was before them."""
    arm = Arm("b", Restarts(trunk=True, first=10), momentum=0.5)
    x, gradient = begin(NOISY, 0)
    m, kept, ends = torch.zeros_like(x), None, []
    for t in range(1, 21):
        if t in (9, 19):
            kept = x.clone(), m.clone()
        m = 0.5 * m + gradient(x, t)
        x = x - 0.05 * (0.5 if t in (10, 20) else 1.0) * m
        if t in (10, 20):
            ends.append(NOISY.problem.value(x).item())
            x, m = kept
    assert run(NOISY, [Row(arm, 0.05, 0)], [10, 20]).value[0].tolist() == pytest.approx(ends, rel=1e-9)


def test_the_certificate_is_that_of_the_last_tenth():
    row, steps = Row(REFERENCE, 0.02, 0), 100
    x, gradient = begin(NOISY, 0)
    m, points = torch.zeros_like(x), []
    for t in range(1, steps + 1):
        if t > (1 - SHARE) * steps:
            points.append(x.clone())
        m = 0.9 * m + gradient(x, t)
        x = x - row.lr * Decay().factor(t, steps) * m
    y = torch.stack(points)
    found = run(NOISY, [row], [steps])
    assert len(points) == 10
    assert found.gradient.item() == pytest.approx(NOISY.problem.gradient(y).mean(0).norm().item(), rel=1e-9)
    assert found.spread.item() == pytest.approx((y - y.mean(0)).square().sum(1).mean().item(), rel=1e-9)


def test_rows_do_not_depend_on_their_neighbours():
    """A seed has its own noise, whatever else is run, and a longer run is the same as far as it goes."""
    rows = [
        Row(replace(arm, schedule=Power()), lr, seed) for arm in RANDOM[:3] for lr in (0.01, 0.1) for seed in (0, 7)
    ]
    together = run(BATCHES, rows, [30, 40])
    for i in (0, 5, 11):
        single = run(BATCHES, rows[i : i + 1], [30])
        assert single.value.item() == pytest.approx(together.value[i, 0].item(), rel=1e-12)


@pytest.mark.parametrize("problem", [Factorisation(5, rank=2), BlindDeconvolution(4, samples=12)], ids=repr)
def test_gradients_of_the_classical_problems(problem):
    x = torch.stack([problem.start(), problem.start() + 0.3, problem.solution * 1.1])
    x.requires_grad_()
    (expected,) = torch.autograd.grad(problem.value(x).sum(), x)
    torch.testing.assert_close(problem.gradient(x), expected, rtol=1e-10, atol=1e-12)
    assert isinstance(problem, problems.Problem)


def test_objectives_are_nonsmooth_and_have_the_least_value_0():
    assert len(OBJECTIVES) >= 10
    for oracle in OBJECTIVES.values():
        assert oracle.problem.smoothness == math.inf
        assert oracle.problem.gap == pytest.approx(oracle.problem.value(oracle.problem.start()).item())


# ---- tuning and tables


def test_the_best_learning_rate_is_found_and_reported_on_other_seeds(monkeypatch):
    """F is least at 2^13.5, beyond the coarse grid: it must be widened, then refined."""
    seen = []

    def fake(oracle, rows, horizons):
        unit = study.learning_rate(oracle, REFERENCE, 0.0)
        seen.extend(row.seed for row in rows)
        value = torch.tensor([[1 + abs(math.log2(row.lr / unit) - 13.5)] for row in rows], dtype=torch.float64)
        return runs.Outcome(value, 2 * value, 0 * value, value[:, 0])

    monkeypatch.setattr(study, "run", fake)
    name = next(iter(OBJECTIVES))
    results = study.compare(name, [REFERENCE], [100], [8, 9], [0, 1])
    assert [(r.tuned, r.values) for r in results] == [(VALUE, [1.0, 1.0]), (CERTIFICATE, [1.0, 1.0])]
    assert results[0].certificates == [2.0, 2.0]
    assert seen[-2:] == [0, 1]
    assert set(seen[:-2]) == {8, 9}


def fabricate(arm, objective, values, tuned=VALUE):
    return Result(objective, arm, 100, tuned, 0.1, values, [2 * v for v in values])


def test_ratios_are_geometric_means_paired_by_seed():
    first, second = tuple(OBJECTIVES)[:2]
    found = tables.Findings(
        [
            *(fabricate("SGDM", name, [1.0, 2.0]) for name in (first, second)),
            fabricate("Exp(1)", first, [4.0, 2.0]),
            fabricate("Exp(1)", second, [1.0, 2.0]),
            fabricate("Exp(1)", second, [math.inf, 2.0], TOGETHER),
            fabricate("U(0, 2)", first, [1e-9, 1e-9]),
        ]
    )
    ratio = found.ratio("Exp(1)", 100, VALUE)
    assert ratio.mean == pytest.approx(math.log(4) / 4)  # log 2 for seed 0, 0 for seed 1
    assert ratio.deviation == pytest.approx(math.log(2) / math.sqrt(2))
    assert str(ratio) == "1.41 ± 0.49"
    assert str(found.ratio("Exp(1)", 100, TOGETHER)) == "∞"
    assert str(found.ratio("Gamma(2)", 100, VALUE)) == "–"
    floor = tables.FLOOR * OBJECTIVES[first].problem.lipschitz
    assert found.logs("U(0, 2)", first, 100, VALUE, CERTIFICATE)[0] == pytest.approx(math.log(floor / 2))
    assert found.logs("U(0, 2)", first, 100, VALUE)[0] == pytest.approx(math.log(1e-9))


# ---- traps


def test_momentum_is_held_and_climbs_and_a_wide_law_frees_it():
    arms = [REFERENCE, ARMS["U(0, 2)"]]
    plain, free = escapes.count("climber, d = 1", arms, [0], 2000)
    assert plain.runs == 7
    assert plain.above >= 5
    assert plain.held >= 3
    assert plain.ratio > 10
    assert free.held == 0
    assert free.ratio < 0.5
    for trap in ("T0, d = 10", "Z0, d = 1", "Z0, momentum 0.5, d = 1", "L1, d = 1"):
        plain, free = escapes.count(trap, arms, [0], 1000)
        assert plain.held > 0, trap
        assert free.held == 0, trap


def test_a_narrow_law_takes_longer_to_get_free():
    narrow, wide = (escapes.time_to_freedom(w, range(5), 2000)[0].steps for w in (0.05, 0.5))
    assert min(narrow) == math.inf
    assert max(wide) < 1000


def test_other_optimizers_are_held_too_and_a_law_frees_them():
    """A gradient that does not change is a step of one period, from the first on with Adam's corrections."""
    names = ("AdamW", "NAdam", "AdamW, U(0, 2)", "NAdam, U(0, 2)")
    held = [e.held for e in escapes.count("T0, d = 1", [ARMS[name] for name in names], [0], 500)]
    assert min(held[:2]) > 0
    assert held[2:] == [0, 0]


@pytest.mark.parametrize("adaptive_rule", [Adam(), Adam(leads=True), Leader()], ids=repr)
def test_a_gradient_that_does_not_change_moves_a_coordinate_by_lr_times_the_length(adaptive_rule):
    a, b, c = adaptive_rule.weights(20_000, 0.8)[-1]
    assert a + b / (1 - 0.8) == pytest.approx(adaptive_rule.length(0.8) * math.sqrt(1 / c), rel=1e-3)


# ---- the command


@pytest.fixture
def small(monkeypatch):
    """A command that takes a second or two."""
    quick = command.Options((20, 30, 40), tuple(OBJECTIVES)[2:3], 1, 2)
    monkeypatch.setattr(command, "QUICK", quick)
    monkeypatch.setattr(study, "COARSE", range(-6, 3, 4))
    monkeypatch.setattr(study, "WIDENINGS", 0)
    monkeypatch.setattr(escapes, "STEPS", 200)
    monkeypatch.setattr(escapes, "PATIENCE", 300)
    monkeypatch.setattr(escapes, "WIDTHS", (0.05, 0.25, 1.0))


def invoke(out, *more):
    given = ["nonsmooth", "--quick", "--workers", "1", "--out", str(out), *more]
    result = CliRunner().invoke(cli.build_app(), given)
    assert result.exit_code == 0, result.output
    text = (out / "nonsmooth.json").read_text(encoding="utf-8")
    return result.output, json.loads(text, parse_constant=lambda word: pytest.fail(f"not JSON: {word}"))


@pytest.mark.usefixtures("small")
def test_command(tmp_path):
    output, record = invoke(tmp_path / "n")
    assert {row[1] for row in record["rows"]} == {arm.name for arm in (*RANDOM, *DECAYED, *FREE)}
    assert {escape["arm"] for escape in record["escapes"]} == {arm.name for arm in RANDOM}
    for name in ("nonsmooth_laws.png", "nonsmooth_horizons.png", "report.html", "nonsmooth.md"):
        assert (tmp_path / "n" / name).stat().st_size > 5000
    for word in ("U(¾, 5/4)", "restarts, Nesterov", "held: climber"):
        assert word in output


@pytest.mark.usefixtures("small")
def test_command_with_other_optimizers(tmp_path):
    output, record = invoke(tmp_path / "n", "--others")
    for key, place in (("rows", 1), ("escapes", "arm")):
        assert {row[place] for row in record[key]} == {arm.name for arm in (REFERENCE, *OTHERS)}
    assert record["freedoms"] == []
    assert "NAdam, Gamma(16)" in output
    page = (tmp_path / "n" / "report.html").read_text(encoding="utf-8")
    assert "Non-smooth problems: other optimizers" in page
    assert not list((tmp_path / "n").glob("*.png"))
