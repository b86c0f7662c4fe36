"""`o2nc paper verify`: every row is right, and turns wrong when one formula of the library is broken."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from o2nc import laws, problems, scaling, theory
from o2nc.certificates import certificate
from o2nc.learners import OGD, CoinBetting
from o2nc.theory import lemmas as theory_lemmas
from o2nc_experiments import kit, verify
from o2nc_experiments.verify import lemmas, lower_bound, regret, stopping, theorems
from o2nc_experiments.verify.row import Sides, check

SCALE = 0.25  # of the samples, runs and searches
KEYS = list(verify.ROWS)


def times(owner, name, factor):
    """Multiply what a function returns."""
    whole = getattr(owner, name)
    return owner, name, lambda *args, **kwargs: factor * whole(*args, **kwargs)


def goldstein_times(factor):
    """Multiply the epsilon that `Certificate.goldstein` promises."""
    whole = certificate.Certificate.goldstein

    def broken(self, *args, **kwargs):
        found = whole(self, *args, **kwargs)
        return replace(found, epsilon=factor * found.epsilon)

    return certificate.Certificate, "goldstein", broken


def changed_plan(change):
    """Give plans other attributes."""
    whole = theory.plan

    def broken(*args, **kwargs):
        p = whole(*args, **kwargs)
        return replace(p, **change(p))

    return theory, "plan", broken


def without_roots(p):
    """Leave terms out of a bound."""
    return {"terms": {key: value for key, value in p.terms.items() if key not in ("gap", "energy")}}


def other_beta(power):
    """Make OGD play with another discount."""
    whole = OGD.update

    def broken(self, deltas, grads, states, lrs, beta):
        whole(self, deltas, grads, states, lrs, beta**power)

    return OGD, "update", broken


def regret_without_root(p):
    return {"terms": p.terms | {"regret": (1 + 2 * p.alpha * p.steps) / p.steps * 2 * (p.lipschitz + p.noise)}}


def constant(law, value):
    """Make a law return one number."""
    return law, "sample", lambda self, seed, step: value


def flat(law):
    """Make a law uniform on (0, 2)."""
    return law, "sample", lambda self, seed, step: 2 * scaling.uniform(seed, step)


stubborn = lambda self, deltas, *_, **__: deltas[0].fill_(0.05)  # noqa: E731 (it always bets as much)
ones = constant(scaling.Exponential, 1.0)
shrunk_norm = times(certificate.Certificate, "gradient_norm", 0.95)
wrong_exponential = flat(scaling.Exponential)
nearly_one = (scaling.Exponential, "sample", lambda self, seed, step: 0.9 + 0.2 * scaling.uniform(seed, step))
vacuous_goldstein = lambda self, delta, **_: certificate.Goldstein(2 * delta, self.value, delta)  # noqa: E731

BREAKS = {  # by row: ways to break it, each an attribute to replace
    "criterion-smooth": [shrunk_norm],
    "criterion-second-order": [shrunk_norm],
    "goldstein": [goldstein_times(0.95)],
    "exponential-scaling": [wrong_exponential],
    "other-laws": [flat(laws.Weibull), flat(laws.Gamma)],
    "variance-weights": [times(lemmas, "variance_weights", 1.001)],
    "variance-sharp": [times(theory, "spread_constant", 0.99), times(theory, "output_weights", 1.02)],
    "output-law": [times(theory, "output_weights", 1.001)],
    "theorem-o2nc": [ones],
    "theorem-ogd-1": [other_beta(0.9)],
    "theorem-ogd-2": [other_beta(0.0)],
    "theorem-sgdm": [changed_plan(without_roots)],
    "sgdm-map": [(theory.Plan, "momentum", property(lambda self: self.beta))],
    "theorem-energy": [(theory.Guarantee, "bound", property(lambda self: 0.9 * sum(self.terms.values()))), ones],
    "energy-any-law": [constant(laws.Gamma, 1.0), (laws.Gamma, "price", -0.3)],
    "stability": [times(theory, "stable_lr", 1.01), wrong_exponential],
    "theorem-adaptive": [times(theory.AdaptivePlan, "bound", 0.999), times(theorems, "adaptive_bound", 0.5)],
    "steps-for": [times(theory_lemmas, "spread_constant", 1.1)],
    "lower-bound": [(lower_bound.Chain, "sample", lambda self, x, _: self.reveal(x, torch.ones(x.shape[:-1])))],
    "stopping-time": [times(theory_lemmas, "spread_constant", 1.1), nearly_one],
    "ladder": [times(stopping, "ladder_steps", 0.99)],
    "stop-with-noise": [times(theory, "holdout_samples", 2)],
    "plateau": [wrong_exponential],
    "progress-error": [ones],
    "kink-level": [times(stopping, "kappa", 1.1)],
    "convex": [times(stopping, "convex_bound", 0.9), times(stopping, "convex_bound", 1.2)],
    "learned-scale": [(CoinBetting, "update", stubborn)],
    "erratum-a": [ones],
    "erratum-b": [other_beta(0.5)],
    "erratum-c": [changed_plan(lambda p: {"decay": 24 * p.c * p.radius**2 / p.alpha**2})],
    "erratum-d": [constant(scaling.Exponential, 0.7)],
    "erratum-e": [times(certificate.Certificate, "gradient_norm", 1.6)],
    "erratum-f": [times(lemmas, "variance_weights", 1.01)],
    "erratum-g": [changed_plan(regret_without_root)],
    "erratum-h": [other_beta(0.5)],
    "erratum-i": [constant(laws.Uniform, 1.0)],
    "erratum-j": [times(problems.MultiKink, "gradient", -1.0)],
    "erratum-k": [ones],
    "erratum-l": [ones],
    "erratum-m": [(certificate.Certificate, "goldstein", vacuous_goldstein)],
    "erratum-n": [other_beta(0.5)],
    "erratum-o": [(certificate.Certificate, "gradient_norm", lambda self, **_: self.value)],
    "erratum-p": [(theory_lemmas, "PRINTED", 12 / 48)],
    "erratum-q": [times(problems.Cosine, "gradient", 0.99), times(problems.Cosine, "gradient", math.nan)],
}


@pytest.mark.parametrize("key", KEYS)
def test_row_is_right_and_notices_a_broken_formula(key, monkeypatch):
    assert check(key, scale=SCALE).verdict
    for owner, name, broken in BREAKS[key]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            found = check(key, scale=SCALE)
        assert not found.verdict, (name, found)


def test_there_are_27_statements_and_17_errata_each_with_its_place_in_the_document():
    text = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    statements = [key for key in KEYS if not key.startswith("erratum")]
    assert list(BREAKS) == KEYS
    assert (len(statements), KEYS[27:]) == (27, [f"erratum-{c}" for c in "abcdefghijklmnopq"])
    assert [key for key in statements if f"`{key}`" not in text] == []
    assert [key for key in KEYS[27:] if f"\n| {key[-1]} | " not in text] == []


@pytest.mark.parametrize(
    ("left", "relation", "right", "tolerance", "holds", "slack"),
    [
        (1.0, "<=", 2.0, 0.0, True, 2.0),
        (2.0, "<=", 1.0, 0.0, False, 0.5),
        (3.0, ">=", 1.0, 0.0, True, 3.0),
        (1.0, ">=", 3.0, 0.0, False, 1 / 3),
        (0.0, "<=", 1.0, 0.0, True, math.inf),
        (1.0, "==", 1.5, 0.25, False, 0.5),
        (1.0, "==", 1.5, 1.0, True, 2.0),
    ],
)
def test_slack_is_one_at_the_border(left, relation, right, tolerance, holds, slack):
    found = Sides("", left, right, relation, tolerance=tolerance)
    assert (found.holds, found.slack) == (holds, pytest.approx(slack))


def test_rows_depend_on_the_seed_only():
    first, again, other = (check("exponential-scaling", seed, 0.05).left for seed in (3, 3, 4))
    assert first == again != other


def test_command(tmp_path, capsys):
    verify.main(tmp_path / "results", only="erratum-c,criterion-second", workers=1)
    assert "2 of 2 right" in capsys.readouterr().out
    told = json.loads((tmp_path / "results" / "verify.json").read_text(encoding="utf-8"))
    assert [row["key"] for row in told["rows"]] == ["criterion-second-order", "erratum-c"]
    assert told["wrong"] == []
    assert "erratum-c" in (tmp_path / "results" / "verify.md").read_text(encoding="utf-8")


def test_command_fails_on_a_wrong_verdict(tmp_path, monkeypatch, capsys):
    good = check("erratum-c")
    monkeypatch.setattr(verify, "in_processes", lambda work, *_: _[-1]("erratum-c", good._replace(verdict=False)))
    with pytest.raises(SystemExit) as ended:
        verify.main(tmp_path, only="erratum-c")
    assert ended.value.code == 1
    assert "0 of 1 right: not erratum-c" in capsys.readouterr().out
    with pytest.raises(kit.UsageError, match=r"there is no such row.*erratum-q"):
        verify.main(tmp_path, only="nothing")


def test_runs_of_the_learner_are_the_optimizers():
    """The updates that rows replay are those of the optimizer."""
    import o2nc
    from o2nc.problems import Additive, DoubleWell

    problem, learner = DoubleWell(3), OGD(0.05, decay=0.1)
    run = regret.traces(Additive(problem, 0.0), learner, 0.9, 30, [5])
    x = problem.start().requires_grad_()
    optimizer = o2nc.ExponentiatedO2NC([x], learner, beta=0.9, seed=5)
    for point in run.points[0]:
        torch.testing.assert_close(x.detach(), torch.from_numpy(point), rtol=1e-12, atol=1e-12)
        x.grad = problem.gradient(x.detach())
        optimizer.step()
