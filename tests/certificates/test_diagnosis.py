"""`diagnose`: the displacement and its definition, every verdict on a run that shows it; nothing changes."""

import copy
import math

import numpy as np
import pytest
import torch

import o2nc
from o2nc.certificates.diagnosis import STATIONARY, STRAIGHT, VERDICTS, verdict_of
from o2nc.certificates.displacement import COORDINATES, MOST, USED, displacements, measure, sample, sums
from problem import noise, parameters
from refusals import refusals
from registry import OURS, advance, descend, identical, ours_of, snapshot
from unchanged import draw, restless, unchanged


def run(opt, gradient, steps):
    """Take steps with the gradients that a function of the step gives to the first parameter."""
    (x,) = opt.param_groups[0]["params"]
    for t in range(1, steps + 1):
        x.grad = gradient(t, x.detach())
        opt.step()
    return opt


def walk(opt, steps):
    """Take steps with gradients of noise alone."""
    return run(opt, lambda t, x: noise(t, len(x)), steps)


def sgd(d=200, momentum=0.9, **options):
    x = torch.nn.Parameter(torch.full((d,), 100.0, dtype=torch.float64))
    return o2nc.SGD([x], lr=0.01, momentum=momentum, average=o2nc.Polynomial(12), **options)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [150, 3000])
def test_a_random_walk_has_displacement_1_and_a_line_13(momentum, steps):
    """With momentum, before and after increments are longer than its memory; in 200 dimensions 1 is sharp."""
    walks = walk(sgd(momentum=momentum), steps).diagnose()
    assert walks.evidence["displacement"] == pytest.approx(1, abs=0.2)
    assert walks.verdict == "travelling"
    line = run(sgd(momentum=0.0), lambda t, x: torch.ones_like(x), steps).diagnose()
    assert line.evidence["displacement"] == pytest.approx(13, rel=0.1)
    assert line.verdict == "straight"


def test_displacement_equals_its_definition():
    """J = V/(κ Σ q_i (i/N)(1 − i/N)), with κ by the walk's own squared distances c(τ) at momentum 1/2."""
    steps = [2, 3, 7, 8, 9, 13, 20, 21, 22, 30, 31, 40]
    points = np.cumsum(np.random.default_rng(0).normal(size=(12, 5)), axis=0)
    measured = measure([*map(torch.tensor, points)], [torch.zeros(2, 1), torch.zeros(3)])
    found = displacements(steps, measured, [0.5, 0.5])
    shares = np.arange(1, 12) / 12 * (1 - np.arange(1, 12) / 12)
    between = np.array([[tau - (1 - 0.5**tau) / 0.75 for tau in np.abs(np.array(steps) - t)] for t in steps])
    kappa = between.mean() / 2 / (shares @ np.diag(between, 1))

    def expected(y):
        return y.var(0).sum() / (kappa * shares @ (np.diff(y, axis=0) ** 2).sum(1))

    assert found == pytest.approx([expected(points), expected(points[:, :2]), expected(points[:, 2:])], rel=1e-12)


def test_a_period_does_not_look_like_rest():
    """Snapshots at regular moments would see a run that goes round in 8 steps stand still."""
    opt = run(sgd(d=4, momentum=0.0), lambda t, x: math.cos(math.pi * t / 4) + 1e-3 * noise(t, 4), 900)
    assert opt.diagnose().evidence["displacement"] < 0.1


def test_sums_over_a_sample_estimate_those_over_all():
    """Large tensors are sampled, in any layout, small ones taken whole; together no more than so many coordinates."""
    generator = torch.Generator().manual_seed(0)
    xs = [torch.randn(s, generator=generator) for s in ((300, 128), (7, 3), (), (5, 64, 9, 9))]
    xs[-1] = xs[-1].to(memory_format=torch.channels_last)
    found = sample(xs)
    assert len(found) < 1.01 * COORDINATES
    squares = sums(found.square().unsqueeze(0), xs)[0]
    exact = torch.stack([x.double().square().sum() for x in xs])
    torch.testing.assert_close(squares[1:3], exact[1:3], rtol=1e-6, atol=0)
    torch.testing.assert_close(squares, exact, rtol=0.15, atol=0)


def test_the_trail_is_thinned_and_small():
    opt = walk(sgd(d=10_000), 700)
    taken = opt._trail.taken
    assert USED <= MOST // 2 <= len(taken) < MOST
    assert sum(y.nbytes for _, y, _ in taken) < MOST * COORDINATES * 8
    assert opt._trail.stride == 8
    steps = [t for t, _, _ in taken]
    assert steps == sorted(steps)
    assert steps[-1] > 680
    assert run(o2nc.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1), lambda t, x: x, 8)._trail.taken == []


class Halving(torch.optim.SGD):
    """Writes into the gradients."""

    def step(self, closure=None):
        self.param_groups[0]["params"][0].grad.mul_(0.5)
        return super().step(closure)


@pytest.mark.parametrize("options", [{}, {"weight_decay": 3.0}, {"weight_decay": 3.0, "maximize": True}])
@pytest.mark.parametrize("cls", [torch.optim.SGD, Halving])
def test_the_noise_floor_is_of_the_gradients_that_are_averaged(cls, options):
    """Where they are all equal ‖ḡ‖ is √ess times the floor; frozen tensors add nothing."""
    plain = cls([torch.nn.Parameter(torch.ones(5, dtype=torch.float64))], lr=0.0, **options)
    opt = o2nc.extend(plain, average=0.9, certificate=True)
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(10_000), requires_grad=False)]})
    found = run(opt, lambda t, x: torch.full_like(x, 2.0), 200).diagnose().evidence
    assert found["gradient_to_noise"] == pytest.approx(math.sqrt(opt.certificate().ess), rel=1e-6)


def test_a_gradient_lies_in_memory_as_it_likes():
    """With ∇F = −λx and coupled decay all that is averaged is 0."""
    x = torch.nn.Parameter(torch.arange(1e4).view(100, 100))
    opt = o2nc.SGD([x], lr=0.0, weight_decay=1.0, average=0.9, certificate=True)
    run(opt, lambda t, x: (-x).t().contiguous().t(), 200)
    opt.param_groups[0]["momentum"] = None  # as some optimizers have it
    assert "noise_floor" not in opt.diagnose().evidence


def test_the_mean_of_noise_is_at_the_noise_floor():
    opt = walk(sgd(certificate=True), 600)
    found = opt.diagnose().evidence
    assert found["noise_floor"] == pytest.approx(math.sqrt(200 / opt.certificate().ess), rel=0.1)
    assert found["gradient_to_noise"] == pytest.approx(1, rel=0.2)
    assert "noise_floor" not in walk(sgd(), 200).diagnose().evidence


FIRST = [
    ({"displacement": math.nan, "heat": 5.0, "loss_averaged": 1.0}, "too early"),
    ({"displacement": 0.9 * STATIONARY, "spike_step": 7.0}, "spike"),
    ({"displacement": 0.9 * STATIONARY, "heat": 5.0, "loss_averaged": 1.0}, "stationary"),
    ({"displacement": 1.0, "heat": 1.1, "loss_averaged": -1.0}, "too hot"),
    ({"displacement": 1.0, "turnover": 0.085, "growth": 1.0}, "too hot"),  # above 0.06·1.4
    ({"displacement": 1.0, "turnover": 0.083, "growth": 1.0}, "travelling"),
    ({"displacement": 5.0, "turnover": 0.9, "growth": 99.0}, "too hot"),
    ({"displacement": 1.0, "heat": 0.01, "loss_averaged": 1.0, "turnover": 0.01, "growth": 2.0}, "travelling"),
    ({"displacement": 1.1 * STRAIGHT, "turnover": 0.9}, "straight"),
    ({"displacement": 0.9 * STRAIGHT, "turnover": 0.01}, "travelling"),
    ({"displacement": 1.1 * STRAIGHT, "heat": 0.1, "loss_averaged": 1.0, "turnover": 0.9}, "travelling"),
    ({"displacement": 1.1, "heat": 0.5, "loss_averaged": 1.0, "turnover": 0.01}, "too hot"),
    ({"displacement": 0.9, "heat": 0.5, "loss_averaged": 1.0, "turnover": 0.01}, "travelling"),
    ({"displacement": 1.0, "heat": -0.1, "loss_averaged": 1.0, "turnover": 0.01}, "straight"),
]


@pytest.mark.parametrize(("evidence", "verdict"), FIRST)
def test_the_first_line_that_applies_is_the_verdict(evidence, verdict):
    assert verdict_of(evidence) == verdict


def test_a_kink_at_a_constant_learning_rate_is_stationary():
    """And it is printed readably in any encoding."""
    opt = run(sgd(d=20), lambda t, x: (x - 101).sign(), 800)
    found = opt.diagnose(lambda: (opt.param_groups[0]["params"][0] - 101).abs().sum())
    assert found.verdict == "stationary"
    assert found.evidence["heat"] == pytest.approx(found.evidence["loss"] - found.evidence["loss_averaged"])
    assert found.evidence["heat"] > 0
    assert "learning rate" in found.advice
    text = str(found)
    assert text.startswith("stationary: displacement 0.0")
    assert "x̄" in text


def test_a_run_that_exchanges_its_weights_or_diverges_is_too_hot():
    """Noise that a slope pulls back to 0, and |x| growing by 1 % a step; neither needs the loss to be seen."""
    assert run(sgd(), lambda t, x: noise(t, 200) + 0.05 * x, 1200).diagnose().verdict == "too hot"
    assert run(sgd(momentum=0.0), lambda t, x: -x, 600).diagnose().verdict == "too hot"


@pytest.mark.parametrize("bad", [540, 561, 580, 583])
def test_a_spike_and_what_broke_are_found_and_dated(bad):
    found = run(sgd(), lambda t, x: noise(t, 200) * (50 if t == bad else 1), 600).diagnose()
    assert found.verdict == "spike"
    first, last = (round(found.evidence[key]) for key in ("spike_step", "spike_end"))
    assert first <= bad <= last <= first + 30
    assert f"steps {first} to {last}" in found.advice
    broken = run(sgd(), lambda t, x: noise(t, 200) * (math.nan if t == bad else 1), 600).diagnose()
    assert broken.verdict == "broken"
    assert bad - 10 <= broken.evidence["finite_at"] < bad


@pytest.mark.parametrize("where", ["x", "x̄", "ḡ"])
def test_what_is_not_finite_is_named(where):
    params = parameters()
    opt = o2nc.AdamW([(f"layer{i}", p) for i, p in enumerate(params)], average=0.9, certificate=True)
    advance(opt, range(3))
    entry = ours_of(opt, params[2])
    with torch.no_grad():
        {"x": params[2], "x̄": entry["average"], "ḡ": entry["gradient"]}[where].fill_(math.inf)
    found = opt.diagnose(lambda: pytest.fail("the loss is not called"))
    assert found.verdict == "broken"
    assert found.advice.startswith(f"{where} of parameter 'layer2' is not finite")
    assert ("restart_averages()" in found.advice) == (where != "x")
    assert [name for name, part in found.by_parameter.items() if part.verdict == "broken"] == ["layer2"]


def test_the_advice_is_to_go_back_where_averages_cannot_restart():
    opt = advance(OURS["OriginalO2NC"](parameters()), range(12))
    for key in ("average", "spread"):
        ours_of(opt, opt.param_groups[0]["params"][0])[key].fill_(math.nan)
    assert "Go back to a checkpoint" in opt.diagnose().advice
    with pytest.warns(UserWarning, match="is not finite") as warned:
        opt.certificate()
    assert "restart_averages" not in str(warned[0].message)


def test_before_the_averages_begin_it_is_too_early():
    opt = sgd()
    assert opt.diagnose().verdict == "too early"
    assert str(opt.diagnose()) == "too early. Ask again after 132 more steps."  # no number is known yet
    late = o2nc.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1, average=o2nc.Polynomial(2, start=1000))
    found = run(late, lambda t, x: torch.ones_like(x), 300).diagnose(lambda: pytest.fail("there is no x̄ to compare"))
    assert found.verdict == "too early"
    assert math.isnan(found.evidence["heat"])  # there is always one where a loss was given
    assert "after 701 more steps" in found.advice


def test_too_early_says_how_long_to_wait():
    opt = walk(sgd(), 100)
    found = opt.diagnose()
    assert found.verdict == "too early"
    assert math.isnan(found.evidence["displacement"])
    wait = int("".join(filter(str.isdigit, found.advice)))
    assert walk(opt, wait).diagnose().verdict == "travelling"
    assert run(sgd(), lambda t, x: torch.zeros_like(x), 200).diagnose().verdict == "stationary"  # at rest


def test_replayed_steps_have_no_displacement():
    """A captured graph runs no code of the host: its steps leave no trail."""
    opt = walk(sgd(), 300)
    opt._engine.captured.append(None)
    found = opt.diagnose()
    assert found.verdict == "too early"
    assert math.isnan(found.evidence["displacement"])
    assert "CUDA graph" in found.advice


@pytest.mark.parametrize("name", OURS)
def test_every_optimizer_has_it_and_it_changes_nothing(name):
    """Whatever the loss changes, and the run goes on bitwise."""
    runs = []
    for asks in (True, False):
        opt = OURS[name]((model := restless()).parameters())

        def loss(model=model, opt=opt):
            opt.zero_grad()
            model(torch.randn(8, 4) + draw())
            model.eval()
            with torch.enable_grad():
                value = model(torch.randn(8, 4)).sum(1).abs().mean()
                value.backward()
            model[1].running_mean += 1
            return value

        for t in range(140):
            descend(opt, lambda: model(torch.randn(8, 4)).sum(1).abs().mean())
            if asks and t in (0, 60, 139):
                blank = torch.nn.Module.__new__(torch.nn.Module)  # alive, but not initialised
                before = snapshot(opt)
                with unchanged(model):
                    found = opt.diagnose(loss)
                identical(snapshot(opt), before)
                assert not hasattr(blank, "training")
                assert found.verdict in VERDICTS
                assert len(found.by_parameter) == 6
        runs.append(copy.deepcopy((model.state_dict(), opt.state_dict())))
        if asks:
            assert math.isfinite(found.evidence["displacement"])
            assert found.verdict != "too early"
            assert "heat" in found.evidence
    identical(*runs)


def test_compiled_models_are_as_before():
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)), backend="eager")
    opt = o2nc.SGD(model.parameters(), lr=0.1, average=0.9)

    def loss():
        model.eval()
        model(torch.ones(4, 3))
        model.train()
        return model(torch.rand(4, 3)).square().sum()

    descend(opt, loss, 2)
    model.eval()
    with unchanged(model):
        opt.diagnose(loss)


def test_heat_is_of_the_same_random_numbers():
    """Where x = x̄ two calls of a loss with dropout and random data are equal."""
    x = torch.nn.Parameter(torch.ones(50))
    opt = run(o2nc.SGD([x], lr=0.0, average=0.9), lambda t, x: torch.ones_like(x), 2)
    found = opt.diagnose(lambda: torch.nn.functional.dropout(x).sum() + draw())
    assert found.evidence["heat"] == 0


def test_a_loaded_run_begins_its_trail_again():
    again = sgd()
    again.load_state_dict(walk(sgd(), 200).state_dict())
    assert again.diagnose().verdict == "too early"
    assert walk(again, 200).diagnose().verdict == "travelling"
    again.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    assert again.diagnose().verdict == "too early"


test_bad_input = refusals(
    (lambda: o2nc.SGD(parameters(), lr=0.1).diagnose(), RuntimeError, "average=None"),
    (lambda: walk(sgd(), 2).diagnose(3.0), TypeError, r"loss must be a function without arguments.*got 3\.0"),
    (lambda: walk(sgd(), 2).diagnose(lambda: torch.ones(3)), TypeError, "loss must return a scalar"),
)


def test_a_loss_that_fails_and_one_inside_averaged():
    opt = walk(sgd(), 2)
    x = opt.param_groups[0]["params"][0]
    before = x.detach().clone()
    with pytest.raises(ZeroDivisionError):
        opt.diagnose(lambda: 1 / 0)
    assert torch.equal(x, before)
    with opt.averaged():
        assert opt.diagnose().verdict == "too early"
        with pytest.raises(RuntimeError, match=r"diagnose\(loss\) inside averaged"):
            opt.diagnose(lambda: 0.0)


def test_a_loss_that_is_not_finite_and_parameters_that_stand_still():
    opt, mixed = walk(sgd(), 200), sgd()
    assert opt.diagnose(lambda: float("nan")).verdict == "broken"
    mixed.add_param_group({"params": [torch.nn.Parameter(torch.ones(10_000), requires_grad=False)]})
    assert walk(mixed, 200).diagnose().evidence["turnover"] == pytest.approx(opt.diagnose().evidence["turnover"])
