"""`o2nc verify`: every row is right, and turns wrong when one formula of the library is broken."""

import json
import math
import pickle
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from o2nc import scaling, theory
from o2nc.certificates import certificate
from o2nc.learners import ball_adagrad, ogd
from o2nc.problems import hard, separable
from o2nc.theory import adaptive as adaptive_theory
from o2nc.theory import complexity, lemmas, plans
from o2nc_experiments import cli, verify
from o2nc_experiments import pool as cli_pool
from o2nc_experiments.verify import adaptive, convergence, energy, renewal
from o2nc_experiments.verify import command as view
from o2nc_experiments.verify import lemmas as spread
from o2nc_experiments.verify.check import Check, Finding

SCALE = 0.25  # of the samples, runs and searches
KEYS = [check.key for check in verify.checks()]


# ---- the breaks: each changes one formula


def times(owner, name, factor):
    """Multiply what a function returns."""
    whole = getattr(owner, name)
    return owner, name, lambda *args, **kwargs: factor * whole(*args, **kwargs)


def of_goldstein(**factors):
    """Multiply some of what `Certificate.goldstein` promises."""
    whole = certificate.Certificate.goldstein

    def broken(self, *args, **kwargs):
        found = whole(self, *args, **kwargs)
        return replace(found, **{name: getattr(found, name) * factor for name, factor in factors.items()})

    return certificate.Certificate, "goldstein", broken


def without(function, term):
    """Leave a term out of a bound."""
    whole = getattr(plans, function)
    return plans, function, lambda p: {key: value for key, value in whole(p).items() if key != term}


def growth_times(factor):
    """Change κ in the update of OGD."""
    whole = ogd.coefficients
    return ogd, "coefficients", lambda h, decay, beta, growth: whole(h, decay, beta, factor * growth)


def property_of_plan(name, function):
    return theory.Plan, name, property(function)


def plan_with_growing_c(steps, c=None, *, second_order=None, **kwargs):
    price = second_order / 2 if c is None else c
    return replace(theory_plan(steps, price * steps**0.25, **kwargs), second_order=second_order)


def regret_without_root(p):
    terms = theory_paper_terms(p)
    return terms | {"regret": (1 + 2 * p.alpha * p.steps) / p.steps * 2 * (p.lipschitz + p.noise)}


def plan_with_fixed_c(steps, c=None, *, smoothness=None, **kwargs):
    return theory_plan(steps, 1.0, **kwargs)


theory_plan, theory_paper_terms = theory.plan, plans._paper_terms


class Ones:
    """A law that is not random."""

    def sample(self, seed, step):
        return 1.0


ones = (scaling.Exponential, "sample", Ones.sample)
no_ball = (ball_adagrad, "shrinkage", lambda square, radius: torch.ones_like(square))
shrunk_norm = times(certificate.Certificate, "gradient_norm", 0.95)
whole_update = ball_adagrad.BallAdaGrad.update


def update_in_twice_the_ball(self, deltas, grads, states, lrs, beta):
    whole_update(self, deltas, grads, states, [2 * lr for lr in lrs], beta)


twice_the_ball = (ball_adagrad.BallAdaGrad, "update", update_in_twice_the_ball)
raw_value = (certificate.Certificate, "gradient_norm", lambda self, **_: self.value)

BREAKS = {
    "criterion-smooth": shrunk_norm,
    "criterion-second-order": shrunk_norm,
    "goldstein": of_goldstein(epsilon=0.95),
    "exponential-scaling": (scaling.Exponential, "weight", lambda self, s: 1.0),
    "other-laws": (scaling.Weibull, "weight", lambda self, s: self.scale / self.shape),
    "renewal-identity": times(renewal, "integrated", 0.8),
    "variance-weights": times(theory, "variance_weights", 1.001),
    "variance-sharp": times(theory, "spread_constant", 0.99),
    "output-law": times(energy, "output_law", 1.001),
    "variance-output": times(spread, "spread_factor", 0.99),
    "theorem-o2nc": ones,
    "conversion-sharp": ones,
    "omd-one-step": growth_times(0.9),
    "theorem-ogd-1": growth_times(0.9),
    "theorem-ogd-2": growth_times(0.0),
    "adaptive-regret": no_ball,
    "theorem-sgdm": without("_regret_terms", "regret"),
    "sgdm-map": property_of_plan("momentum", lambda self: self.beta),
    "energy-identity": growth_times(0.9),
    "theorem-energy": times(energy, "energy_bound", 0.9),
    "energy-any-law": (scaling.Gamma, "sample", Ones.sample),
    "stability": times(theory, "stable_lr", 1.01),
    "theorem-adaptive": times(adaptive_theory.AdaptivePlan, "bound", 0.999),
    "rate-nonsmooth": property_of_plan("lr", lambda self: self.radius * self.alpha),
    "rate-smooth": (complexity, "plan", plan_with_fixed_c),
    "rate-second-order": (complexity, "plan", plan_with_growing_c),
    "steps-for": times(lemmas, "spread_constant", 1.1),
    "lower-bound": (hard.ZeroChainOracle, "sample", lambda self, x, generator=None: self.problem.gradient(x)),
    "erratum-a": (scaling, "progress_weight", lambda law, seed, step: law.sample(seed, step)),
    "erratum-b": growth_times(0.5),
    "erratum-c": property_of_plan("decay", lambda self: 24 * self.c * self.radius**2 / self.alpha**2),
    "erratum-d": (scaling.Exponential, "sample", lambda self, seed, step: 0.7),
    "erratum-e": times(certificate.Certificate, "gradient_norm", 1.6),
    "erratum-f": times(theory, "variance_weights", 1.01),
    "erratum-g": (plans, "_paper_terms", regret_without_root),
    "erratum-h": growth_times(0.5),
    "erratum-i": (scaling.Uniform, "sample", Ones.sample),
    "erratum-j": times(separable.MultiKink, "gradient", -1.0),
    "erratum-k": ones,
    "erratum-l": ones,
    "erratum-m": (
        certificate.Certificate,
        "goldstein",
        lambda self, delta, **_: certificate.Goldstein(None, 2 * delta, self.value, delta),
    ),
    "erratum-n": growth_times(0.5),
    "erratum-o": raw_value,
    "erratum-p": times(lemmas, "spread_constant", 1 / 48),
    "erratum-q": times(separable.Cosine, "gradient", 0.99),
}


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[pytest.mark.slow] if key.startswith("rate-") else []) for key in KEYS]
)
def test_row_is_right_and_notices_a_broken_formula(key, monkeypatch):
    (check,) = (c for c in verify.checks() if c.key == key)
    row = check.run(seed=0, scale=SCALE)
    assert row.verdict, row
    assert row.left != row.right or row.relation in ("<=", "<")
    monkeypatch.setattr(*BREAKS[key])
    broken = check.run(seed=0, scale=SCALE)
    assert not broken.verdict, broken


FURTHER = {
    "renewal-identity": (renewal, "zigzag_corrector", lambda r, tau, length: 0 * tau),
    "variance-output": (spread, "output_law", lambda beta, steps: 1.02 * energy.output_law(beta, steps)),
    "conversion-sharp": (convergence, "output_law", lambda beta, steps: 1.3 * energy.output_law(beta, steps)),
    "adaptive-regret": twice_the_ball,
    "theorem-energy": ones,
    "energy-any-law": times(renewal, "memory", -1.0),
    "stability": (scaling.Exponential, "sample", lambda self, seed, step: 2 * scaling.uniform(seed, step)),
    "theorem-adaptive": (adaptive, "spread_factor", lambda beta: 0.9 * energy.spread_factor(beta)),
}


@pytest.mark.parametrize("key", FURTHER)
def test_row_notices_another_broken_formula(key, monkeypatch):
    """The two sides of a statement are broken one at a time."""
    (check,) = (c for c in verify.checks() if c.key == key)
    monkeypatch.setattr(*FURTHER[key])
    assert not check.run(seed=0, scale=SCALE).verdict


def test_every_check_has_a_break_and_fits_the_table():
    assert list(BREAKS) == KEYS
    assert len(set(KEYS)) == len(KEYS)
    assert [key for key in KEYS if key.startswith("erratum")] == [f"erratum-{c}" for c in "abcdefghijklmnopq"]
    assert max(len(check.statement) for check in verify.checks()) <= Check.longest


def test_errata_show_the_printed_form_failing():
    rows = verify.run(verify.select(["erratum-c", "erratum-g", "erratum-o"]), scale=SCALE)
    assert all(row.slack < 1 and row.verdict for row in rows)


def test_rows_depend_on_the_seed_only():
    chosen = verify.select(["exponential", "omd", "erratum-i"])
    first, again, other = (verify.run(chosen, seed, scale=0.05) for seed in (3, 3, 4))
    assert [replace(row, seconds=0.0) for row in first] == [replace(row, seconds=0.0) for row in again]
    assert [row.left for row in first] != [row.left for row in other]


def test_run_reports_every_row_when_it_is_done():
    seen = []
    rows = verify.run(verify.select(["erratum-c", "erratum-o"]), progress=seen.append)
    assert seen == rows
    assert [row.key for row in rows] == ["erratum-c", "erratum-o"]


def test_jobs_are_the_checks_and_can_be_sent_to_other_processes():
    chosen = verify.select(["sgdm", "erratum-c", "erratum-o", "steps"])
    made, rows = [], []
    for job in verify.jobs(chosen, seed=1):
        rows.append(pickle.loads(pickle.dumps(job))(made.append))
    assert made == [1] * len(chosen)
    assert {row.key for row in rows[:2]} == {"sgdm-map", "steps-for"}  # of the modules with the long ones
    expected = [replace(row, seconds=0.0) for row in verify.run(chosen, seed=1)]
    assert [replace(row, seconds=0.0) for row in verify.in_order(rows)] == expected


def test_select_names_what_there_is():
    assert verify.select([]) == verify.checks()
    with pytest.raises(ValueError, match="no check 'nothing'; there are criterion-smooth"):
        verify.select(["nothing"])


@pytest.mark.parametrize(
    ("left", "relation", "right", "holds", "slack"),
    [
        (1.0, "<=", 2.0, True, 2.0),
        (2.0, "<=", 1.0, False, 0.5),
        (1.0, "<", 1.0, False, 1.0),
        (0.5, "<", 1.0, True, 2.0),
        (3.0, ">=", 1.0, True, 3.0),
        (1.0, ">=", 3.0, False, 1 / 3),
        (0.0, "<=", 1.0, True, math.inf),
    ],
)
def test_slack_is_one_at_the_border(left, relation, right, holds, slack):
    found = Finding("", left, right, relation)
    assert (found.holds, found.slack) == (holds, pytest.approx(slack))


def test_slack_of_an_equation():
    found = Finding("", 1.0, 1.5, "==", tolerance=0.25)
    assert (found.holds, found.slack) == (False, 0.5)
    assert replace(found, tolerance=1.0).holds


def rows_of_all_kinds():
    good, bad = verify.run(verify.select(["erratum-e", "omd"]), scale=0.01)
    return [good, replace(bad, verdict=False, slack=math.inf), replace(good, left=-1.23456e-7, right=123456.7)]


@pytest.mark.parametrize("width", [80, 120])
def test_table_fits_the_terminal(width):
    out = StringIO()
    rows = verify.run(verify.select(["erratum-c", "erratum-e", "criterion-second"]), scale=0.05)
    rows += [*rows_of_all_kinds(), replace(rows[0], statement=f"[{'x' * (Check.longest - 2)}]", left=-1.2e-105)]
    Console(file=out, width=width).print(view.table(rows, width))
    lines = out.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width  # x̄ is two characters in one cell
    assert "…" not in out.getvalue().replace("−…", "")
    assert sum(any(w in line for w in ("right", "shown", "WRONG")) for line in lines) - 1 >= len(rows)
    assert "½∇³F(z)[x−y]²" in out.getvalue()


def test_markdown_and_record():
    rows = rows_of_all_kinds()
    lines = view.markdown(rows).splitlines()
    assert len(lines) == len(rows) + 2
    assert {line.count("|") for line in lines} == {9}
    told = json.loads(json.dumps(view.as_record(rows, seed=5), allow_nan=False))
    assert (told["circumstances"]["seed"], told["right"], told["wrong"]) == (5, 2, [rows[1].key])
    assert [row["key"] for row in told["rows"]] == [row.key for row in rows]


@pytest.mark.parametrize("key", KEYS)
def test_every_row_has_its_place_in_the_document(key):
    text = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
    if key.startswith("erratum-"):
        assert f"\n| {key[-1]} | " in text
    else:
        assert f"`{key}`" in text


def command(*arguments):
    return CliRunner().invoke(cli.build_app(), ["verify", "--workers", "1", *arguments])


def test_command(tmp_path):
    result = command("erratum-c", "criterion-second-order", "--out", str(tmp_path / "results"))
    assert result.exit_code == 0, result.output
    assert "2 of 2 right" in result.output
    told = json.loads((tmp_path / "results" / "verify.json").read_text(encoding="utf-8"))
    assert [row["key"] for row in told["rows"]] == ["criterion-second-order", "erratum-c"]
    assert "erratum-c" in (tmp_path / "results" / "verify.md").read_text(encoding="utf-8")


def test_command_fails_on_a_wrong_verdict(monkeypatch):
    monkeypatch.setattr(*BREAKS["erratum-c"])
    result = command("erratum-c", "erratum-h")
    assert result.exit_code == 1
    assert "1 of 2 right: not erratum-c" in result.output
    assert "WRONG" in result.output


def test_command_refuses_an_unknown_name():
    result = command("theorem-x")
    assert result.exit_code == 2
    assert "erratum-q" in " ".join(result.output.split())


@pytest.mark.parametrize("key", ["exponential-scaling", "variance-weights", "sgdm-map", "theorem-sgdm", "erratum-q"])
def test_what_is_not_a_number_is_wrong(key, monkeypatch):
    """A maximum must not lose a nan."""
    where = {
        "exponential-scaling": (scaling.Exponential, "weight", lambda self, s: math.nan),
        "variance-weights": times(theory, "variance_weights", math.nan),
        "sgdm-map": (scaling.Exponential, "sample", lambda self, seed, step: math.nan),
        "theorem-sgdm": times(separable.MultiKink, "gradient", math.nan),
        "erratum-q": times(separable.Cosine, "gradient", math.nan),
    }
    monkeypatch.setattr(*where[key])
    (check,) = verify.select([key])
    assert not check.run(seed=0, scale=SCALE).verdict


def test_a_part_is_recorded_as_one(tmp_path, monkeypatch):
    def interrupted(jobs, **kwargs):
        yield jobs[0](lambda made: None)
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_pool, "run", interrupted)
    result = command("erratum-c", "erratum-h", "--out", str(tmp_path))
    assert result.exit_code == 130
    told = json.loads((tmp_path / "verify.json").read_text(encoding="utf-8"))
    assert (told["complete"], len(told["rows"])) == (False, 1)
    assert told["circumstances"]["command"] == "o2nc verify erratum-c erratum-h --seed 0"
    assert "1 of 2 checks made" in result.output
