"""`o2nc paper nonsmooth`, `rates` and `plan`: rows of many runs are the library's optimizers, tables add up."""

import json
import math

import pytest
import torch

import o2nc
from o2nc import problems, theory
from o2nc.problems import Additive
from o2nc_experiments import kit, nonsmooth, plan, rates, runs
from o2nc_experiments.nonsmooth import Arm, Row, deconvolution, factorisation, run
from o2nc_experiments.runs import Setting, algorithm_2

WELL = Additive(problems.DoubleWell(3), 0.0)


def step(optimizer, x, problem, count):
    for _ in range(count):
        x.grad = problem.gradient(x.detach())
        optimizer.step()


# ---- rows against the optimizers


@pytest.mark.parametrize(
    ("learner", "setting"),
    [
        (o2nc.learners.OGD(0.05, decay=0.3), Setting(0.05, 0.9, 0.7, 0.3)),
        (o2nc.learners.OGD(0.05), Setting(0.05, 0.5, 0.7, law=None)),
        (o2nc.learners.OGD(0.05), Setting(0.05, 0.9, 0.7, law=o2nc.Gamma(4.0))),
        (o2nc.learners.BallAdaGrad(lr=0.1), Setting(0.1, 0.9, 0.7)),
    ],
)
def test_algorithm_2_is_the_optimizer(learner, setting):
    adaptive = isinstance(learner, o2nc.learners.BallAdaGrad)
    found = algorithm_2(WELL, [setting, setting._replace(lr=setting.lr / 3)], 40, [3, 4], adaptive=adaptive)
    x = WELL.problem.start().requires_grad_()
    optimizer = o2nc.ExponentiatedO2NC([x], learner, beta=setting.beta, scaling=setting.law, seed=4)
    certificates = []
    for _ in range(40):
        step(optimizer, x, WELL.problem, 1)
        certificates.append(optimizer.certificate(0.7).value)
    law = theory.output_weights(40, setting.beta)
    assert found.uniform[1].item() == pytest.approx(sum(certificates) / 40, rel=1e-9)
    assert found.geometric[1].item() == pytest.approx(law @ certificates, rel=1e-9)


@pytest.mark.parametrize("name", ["SGDM", "Exp(1)", "Nesterov, Gamma(16)", "constant"])
def test_rows_are_the_optimizers(name):
    arm, steps, lr = nonsmooth.ARMS.get(name, Arm(decays=False)), 30, 0.03
    found = run(WELL, [Row(nonsmooth.ARMS["U(0, 2)"], lr, 7), Row(arm, lr, 7)], steps, near=0.0)
    x = WELL.problem.start().requires_grad_()
    optimizer = o2nc.ScaledSGDM([x], lr, 0.9, nesterov=arm.nesterov, scaling=arm.law, seed=7)
    points, gradients = [], []
    for t in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = lr * ((steps - t + 1) / steps if arm.decays else 1.0)
        points.append(x.detach().clone())
        gradients.append(WELL.problem.gradient(x.detach()))
        step(optimizer, x, WELL.problem, 1)
    last = torch.stack(points[-3:])
    assert found.value[1].item() == pytest.approx(WELL.problem.value(x.detach()).item(), rel=1e-8)
    assert found.gradient[1].item() == pytest.approx(torch.stack(gradients[-3:]).mean(0).norm().item(), rel=1e-8)
    assert found.spread[1].item() == pytest.approx((last - last.mean(0)).square().sum(1).mean().item(), rel=1e-8)


@pytest.mark.parametrize("name", ["double well, d = 50, noise", "phase retrieval, d = 30, batches"])
def test_rows_of_a_seed_see_the_same_noise(name):
    oracle = nonsmooth.PROBLEMS[name]
    found = run(oracle, [Row(Arm(), 1e-3, seed) for seed in (1, 2, 1)], 40).value
    alone = run(oracle, [Row(Arm(), 1e-3, 2)], 40).value
    assert found[0] == found[2] != found[1]
    assert found[1].item() == pytest.approx(alone[0].item(), rel=1e-12)


@pytest.mark.parametrize("problem", [factorisation(4, 2), deconvolution(3, 10)])
def test_problems_of_our_own(problem):
    assert problem.value(problem.solution).item() == 0
    assert problem.value(problem.start()).item() == problem.gap > 0
    x = problem.start() + 0.1
    h = 1e-6 * torch.ones_like(x)
    rise = (problem.value(x + h) - problem.value(x - h)).item() / 2
    assert (problem.gradient(x) @ h).item() == pytest.approx(rise, rel=1e-4)


# ---- tuning, traps, ratios


def test_the_grid_is_widened_until_the_best_is_inside(monkeypatch):
    tried = []

    def measure(oracle, pairs, steps, seeds):
        tried.extend(k for _, k in pairs)
        value = torch.tensor([[2.0 ** abs(k - 9.5)] * len(seeds) for _, k in pairs])
        return value, value

    monkeypatch.setattr(nonsmooth, "measure", measure)
    found = nonsmooth.compare("kinks, d = 10, noise", ["SGDM"], 10, [100], [0, 1])
    oracle = nonsmooth.PROBLEMS["kinks, d = 10, noise"]
    assert [r.lr for r in found] == [pytest.approx(nonsmooth.learning_rate(oracle, Arm(), 9.5), rel=1e-5)]
    assert max(tried) > 9.5


def result(arm, problem, values):
    return nonsmooth.Result(problem, arm, 10, 0.1, values, values)


def test_ratios_are_geometric_means_with_a_floor():
    a, b = list(nonsmooth.PROBLEMS)[:2]
    tiny = 1e-30
    rows = [("SGDM", a, [1.0, 1.0]), ("SGDM", b, [1.0, tiny]), ("Exp(1)", a, [4.0, 2.0]), ("Exp(1)", b, [1.0, tiny])]
    rows += [("Nesterov", a, [None, 1.0]), ("Nesterov", b, [1.0, 1.0])]
    found = [result(*row) for row in rows]
    assert str(nonsmooth.ratio(found, "Exp(1)", 10)) == "1.68 ± 0.25"  # √4, √2: runs at the floor count as equal
    assert str(nonsmooth.ratio(found, "Nesterov", 10)) == "∞"


def test_momentum_is_trapped_and_a_law_frees_it():
    found = {t.arm: t for t in nonsmooth.count_trapped("climber, d = 1", [0], 1000)}
    assert found["SGDM"].held > 0
    assert found["SGDM"].above > 0
    assert 5 * found["Gamma(16)"].ratio < found["SGDM"].ratio


def in_this_process(work, workers, terminal, keep):
    for name, (function, *arguments) in work.items():
        keep(name, function(*arguments))


@pytest.mark.slow
def test_nonsmooth_quick(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(nonsmooth, "in_processes", in_this_process)
    nonsmooth.main(tmp_path, quick=True)
    assert "The traps" in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"nonsmooth.json", "nonsmooth.md"}
    monkeypatch.setattr(nonsmooth, "in_processes", lambda work, *_: exec("raise AssertionError") if work else None)
    nonsmooth.main(tmp_path, quick=True, quiet=True)  # nothing is repeated
    with pytest.raises(kit.UsageError, match="has runs with seed 0"):
        nonsmooth.main(tmp_path, seed=1, quick=True)


# ---- rates


def test_curves_stay_below_their_bounds_and_fall():
    found = rates.curves("many kinks, d = 10", [256, 512, 1024], [0, 1, 2])
    assert [curve.arm for curve in found] == list(rates.ARMS)
    sharp, plain = found[:2]
    assert sharp.slack > 1.5
    assert plain.slack == math.inf
    assert sharp.slope()[0] < -0.15
    assert curve_table_cells(found)["sharp constants"][-1] == ""
    exceeded = sharp._replace(bounds=[0.0] * 3)
    assert curve_table_cells([exceeded])["sharp constants"][-1] == "EXCEEDED"


def curve_table_cells(found):
    return {row[1]: row for row in rates.curves_table(found).rows}


def test_slopes_are_fitted_seed_by_seed():
    steps = [10, 100, 1000]
    curve = rates.Curve("many kinks, d = 10", "", steps, [[n**-0.5, n**-0.3] for n in steps], None)
    middle, half = curve.slope()
    assert middle == pytest.approx(-0.4)
    assert half == pytest.approx(12.706 * 0.1, rel=1e-3)
    assert curve._replace(values=[[1.0], [0.1], [0.01]]).slope() == (pytest.approx(-1.0), math.inf)


@pytest.mark.slow
def test_rates(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rates, "STUDIES", dict(list(rates.STUDIES.items())[-1:]))
    monkeypatch.setattr(rates, "in_processes", in_this_process)
    rates.main(tmp_path, seeds=2, largest=12)
    assert "All stay below" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"rates.json", "rates.md", "rates.png"}
    told = json.loads((tmp_path / "rates.json").read_text())
    told["runs"][next(iter(rates.STUDIES))][0][4] = [0.0] * 3  # bounds of nothing
    (tmp_path / "rates.json").write_text(json.dumps(told))
    with pytest.raises(SystemExit):
        rates.main(tmp_path, seeds=2, largest=12)
    assert "not respected: cosines" in capsys.readouterr().out


def test_work_in_processes(capsys):
    found = {}
    runs.in_processes({"a": (math.hypot, 3, 4), "b": (math.hypot, 6, 8)}, 1, kit.Terminal(True), found.__setitem__)
    assert found == {"a": 5.0, "b": 10.0}


# ---- plan

KNOWN = {"gap": 1.0, "lipschitz": 1.0, "noise": 1.0, "c": 1.0}


def test_plan_prints_what_the_theorem_says(capsys):
    plan.main(**KNOWN, eps=0.1)
    printed = capsys.readouterr().out
    assert "168,894" in printed
    assert "296,639,413" in printed
    line = next(line for line in printed.splitlines() if line.startswith("sharp: "))
    x = torch.zeros(2, requires_grad=True)
    made = eval(line.removeprefix("sharp: "), {"o2nc": o2nc, "params": [x]})
    assert isinstance(made, o2nc.ExponentiatedO2NC)
    plan.main(**KNOWN, eps=0.1, law="gamma(16)")
    assert "scaling=o2nc.Gamma(shape=16.0" in capsys.readouterr().out
    plan.main(**KNOWN, steps=2)
    assert "no plan for paper" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "one of --steps and --eps"), ({"steps": 9, "eps": 0.1}, "one of --steps"), ({"eps": 2.0}, "needs no step"),
     ({"steps": 100, "smoothness": 1.0}, "one of c,"), ({"steps": 100, "constants": "best"}, "--constants must"),
     ({"steps": 100, "law": "normal"}, "--law must be"), ({"steps": 100, "law": "gamma(-1)"}, "--law gamma")],
)  # fmt: skip
def test_plans_that_cannot_be_made(options, words):
    with pytest.raises(kit.UsageError, match=words):
        plan.main(**KNOWN, **options)
