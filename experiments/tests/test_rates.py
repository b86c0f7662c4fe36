"""The rates experiment: its fits, its plans for Algorithm 1, its verdicts, and its command."""

import json
import math
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import o2nc
from jobs import add, fail
from o2nc import problems, theory
from o2nc_experiments import cli, figures, pool
from o2nc_experiments.rates import article, guarantees, hard_chain, studies, tables, traps
from o2nc_experiments.rates.curves import Curve
from o2nc_experiments.rates.studies import ARMS, ORIGINAL, STUDIES, block_plan, least_error

STEPS = [2**k for k in range(10, 18)]


def curve(slope, *, noise=0.0, bounds=2.0, exponent=-2 / 7, seeds=8):
    rng = np.random.default_rng(0)
    means = np.array(STEPS, dtype=float) ** slope
    values = means[:, None] * np.exp(noise * rng.normal(size=(len(STEPS), seeds)))
    return Curve(
        "s", "sharp", STEPS, [1.0] * 8, values.tolist(), values.tolist(), (bounds * means).tolist(), exponent
    )


def test_slope_of_a_power_law():
    middle, half = curve(-0.4).slope
    assert (middle, half) == pytest.approx((-0.4, 0), abs=1e-12)
    for fit in (curve(-0.4, noise=0.1).slope, curve(-0.4, noise=0.1).tail):
        assert abs(fit[0] + 0.4) <= 2 * fit[1]
        assert 0 < fit[1] < 0.2
    assert curve(-0.4, seeds=1).slope[1] == math.inf


def test_verdict():
    assert curve(-0.3).agrees
    assert not curve(-0.3).shallow
    assert curve(-0.27).shallow  # than −2/7
    assert not curve(-0.27, noise=0.3).shallow  # not significantly
    assert not curve(-0.27, seeds=1).shallow  # nobody knows
    assert not curve(-0.3, bounds=0.9).agrees
    free = Curve("s", "sharp, s = 1", STEPS, [], [[1.0]] * 8, [], [], -0.3)  # no theorem speaks of it
    assert free.agrees
    assert not free.shallow
    assert math.isnan(free.slack)


@pytest.mark.parametrize("noise", [0.0, 2.0])
@pytest.mark.parametrize("c", [0.01, 10.0])
def test_block_plan_is_the_best(c, noise):
    """F*/(DN) + (A + σ)/√T + cD²v(T) at the chosen T and D is least, up to the grid of T."""
    n, gap, lipschitz = 50_000, 2.0, 1.5
    best = block_plan(n, c, gap=gap, lipschitz=lipschitz, noise=noise)
    a = math.hypot(lipschitz, noise)
    assert best.lr == pytest.approx(best.radius / (a * math.sqrt(best.period)))

    def bound(t, d):
        v = sum((t - k) * (k + 1) ** 2 for k in range(1, t)) / t**2
        return gap / (d * n) + (a + noise) / math.sqrt(t) + c * d**2 * v

    assert best.bound == pytest.approx(bound(best.period, best.radius))
    rng = np.random.default_rng(0)
    for _ in range(200):
        t, d = max(2, round(best.period * math.exp(rng.normal()))), best.radius * math.exp(rng.normal())
        assert best.bound <= bound(t, d) * 1.001


def test_variance_of_a_block():
    """V <= D²v(T): no w's of a block, x_n = x_{n−1} + Δ_n with ‖Δ_n‖ <= D and w_n between, vary more."""
    rng = np.random.default_rng(0)
    for t in (2, 3, 8, 30):
        v = (t**2 + 4 * t + 5 - 10 / t) / 12
        for straight in (True, False):
            deltas = np.ones((t, 1)) if straight else rng.choice([-1.0, 1.0], size=(t, 1))
            x = np.concatenate([np.zeros((1, 1)), np.cumsum(deltas, axis=0)])
            for s in (rng.random((t, 1)), np.zeros((t, 1)), np.linspace(0, 1, t)[:, None]):
                w = x[:-1] + s * deltas
                assert ((w - w.mean(0)) ** 2).sum(1).mean() <= v


@pytest.mark.parametrize("eps", [1e-3, 1e-4])
def test_least_error_is_the_chains_own(eps):
    c, gap, lipschitz = 1.0, 10.0, 5.0
    oracle = problems.hard_instance(eps, gap=gap, smoothness=math.sqrt(c * eps), noise=lipschitz)
    assert least_error(oracle.steps(0.5), c, gap=gap, lipschitz=lipschitz) == pytest.approx(eps, rel=0.02)


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.title)
def test_every_study_has_the_constants_it_needs(study):
    for constants in theory.CONSTANTS:
        p = study.plan(4096, constants)
        assert 0 < p.bound < math.inf
        assert p.lipschitz == study.oracle.problem.lipschitz


def test_every_study_can_be_drawn(tmp_path):
    """All of them: c is a number in some and left to the regime in others."""
    curves = [
        Curve(study.title, arm, STEPS, [1.0] * 8, [[1.0, 2.0]] * 8, [[1.0, 2.0]] * 8, [3.0] * 8, study.exponent)
        for study in STUDIES
        for arm in (*ARMS, ORIGINAL)
    ]
    paths = figures.save(article.figure(curves), tmp_path, "rates")
    assert all(path.stat().st_size > 10_000 for path in paths)
    assert len(tables.rates_table(curves).lines) == len(curves) + len(STUDIES)


# ---- jobs side by side


@pytest.mark.some(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_pool(workers):
    seen = []
    work = [partial(add, i, 10) for i in range(5)]
    assert sorted(pool.run(work, workers=workers, progress=seen.append)) == [10, 11, 12, 13, 14]
    assert sum(seen) == 10
    with pytest.raises(RuntimeError, match="as asked"):
        list(pool.run([fail], workers=workers))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_workers_end_with_their_parent(tmp_path):
    """A parent that is killed cannot tell its workers."""
    code = (
        "import os, sys, time\n"
        "from functools import partial\n"
        "from o2nc_experiments import pool\n"
        "from jobs import sleep\n"
        "if __name__ == '__main__':\n"
        f"    list(pool.run([partial(sleep, {str(tmp_path)!r})] * 2))\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(code, encoding="utf-8")
    here = str(Path(__file__).parent)
    process = subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": here})
    for _ in range(600):
        pids = [int(p.name) for p in tmp_path.glob("[0-9]*")]
        if len(pids) == 2:
            break
        time.sleep(0.1)
    process.kill()
    process.wait()
    for _ in range(100):
        alive = [pid for pid in pids if is_alive(pid)]
        if not alive:
            break
        time.sleep(0.1)
    assert len(pids) == 2
    assert not alive


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/status")
    return not (status.exists() and "zombie" in status.read_text(encoding="utf-8"))


# ---- traps and chain


@pytest.fixture
def short(monkeypatch):
    """Make everything short, and only one study."""
    monkeypatch.setattr(traps, "STEPS", 400)
    monkeypatch.setattr(hard_chain, "EPSILONS", (0.05,))
    monkeypatch.setattr(studies, "STUDIES", STUDIES[:2])
    monkeypatch.setattr(guarantees, "CASES", [case._replace(steps=512) for case in guarantees.CASES[2:4]])


@pytest.mark.parametrize("name", traps.TRAPS)
def test_traps_hold_momentum_and_scaling_frees_it(name, short):
    plain, *scaled = traps.escapes(name, [0, 1])
    problem, _ = traps.TRAPS[name]
    slope = problem.trap.slope - (problem.valley if isinstance(problem, problems.Climber) else 0)
    assert plain.gradient == pytest.approx(slope, rel=1e-5)
    assert [e.seed for e in scaled] == [0, 1]
    assert max(e.gradient for e in scaled) < 0.5 * plain.gradient
    assert max(e.certificate for e in scaled) < plain.certificate


def test_chain_takes_the_steps_that_are_needed():
    (found,) = hard_chain.search(0.05, range(24))
    assert found.agrees
    assert found.needed <= found.taken < 10 * found.needed
    assert found.early < 12


def test_chain_notices_a_lower_bound_that_is_too_high(monkeypatch):
    monkeypatch.setattr(problems.ZeroChainOracle, "steps", lambda self, delta: 200)
    (found,) = hard_chain.search(0.05, range(24))
    assert not found.agrees
    assert not hard_chain.ChainSearch(0.1, 2, 0.1, 10, 1.0, 5.0, 24, 15, 24).agrees
    assert hard_chain.ChainSearch(0.1, 2, 0.1, 10, 1.0, 5.0, 1, 15, 1).agrees  # one run proves nothing


# ---- guarantees


def test_the_theorem_is_nearly_attained_on_the_washboard():
    case = guarantees.CASES[0]._replace(steps=3000)
    (found,) = guarantees.measure(case, [0, 1])
    assert 1 < found.slack < 1.06
    assert found.arm == "OGD, G and σ known"


def test_a_misjudged_constant_costs_more_than_not_being_told():
    """Guaranteed: the adaptive learner is behind one that knows G and σ, ahead of one that is wrong about them."""
    known, large, small, adaptive = guarantees.measure(guarantees.CASES[4]._replace(steps=2000), [0])
    assert known.bound < adaptive.bound < min(large.bound, small.bound)
    assert all(found.agrees for found in (known, large, small, adaptive))


def test_a_broken_promise_is_wrong():
    kept = guarantees.Guarantee("w", 10, "OGD", 0.2, [0.1, 0.2])
    broken = guarantees.Guarantee("w", 10, "OGD", 0.1, [0.1, 0.2])
    assert (kept.agrees, broken.agrees) == (True, False)
    assert kept.slack == pytest.approx(4 / 3)
    assert "WRONG" in tables.guarantees_table([kept, broken]).markdown()


# ---- the command

RUNNER = CliRunner()
SMALL = ["rates", "--seeds", "2", "--largest", "12", "--workers", "1"]


def strict(text):
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"not JSON: {word}"))


def test_command(tmp_path, short):
    result = RUNNER.invoke(cli.build_app(), [*SMALL, "--out", str(tmp_path / "r")])
    record = strict((tmp_path / "r" / "rates.json").read_text(encoding="utf-8"))
    assert record["complete"]
    assert len(record["curves"]) == 2 * 5
    assert result.exit_code == (0 if all(c["agrees"] for c in record["curves"]) else 1)
    assert [promise["steps"] for promise in record["guarantees"]] == [512] * 8
    assert len(record["traps"]) == 3 * len(traps.TRAPS)
    assert record["circumstances"]["steps"] == [1024, 2048, 4096]
    for name in ("rates.png", "rates.svg"):
        assert (tmp_path / "r" / name).stat().st_size > 10_000
    for word in ("double well", "Algorithm 1", "BallAdaGrad, not told", "climber", "taken/needed"):
        assert word in result.output


@pytest.mark.slow
def test_command_fails_when_a_bound_is_wrong(tmp_path, short, monkeypatch):
    monkeypatch.setattr(theory.Plan, "bound", property(lambda p: 1e-3))
    result = RUNNER.invoke(cli.build_app(), [*SMALL, "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "WRONG" in result.output


def test_interrupted_command_keeps_what_is_finished(tmp_path, short, monkeypatch):
    def interrupted(work, **kwargs):
        yield from (job(lambda made: None) for job in work[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "run", interrupted)
    result = RUNNER.invoke(cli.build_app(), [*SMALL, "--out", str(tmp_path)])
    assert result.exit_code == 130
    record = strict((tmp_path / "rates.json").read_text(encoding="utf-8"))
    assert not record["complete"]
    assert len(record["curves"]) == 4


def plan_output(*arguments):
    return RUNNER.invoke(cli.build_app(), ["plan", "--gap", "1", "--lipschitz", "1", *arguments])


def test_plan_command():
    result = plan_output("--c", "1", "--noise", "1", "--eps", "0.1")
    assert result.exit_code == 0
    assert "168,894" in result.output
    assert "296,639,413" in result.output
    line = next(text for text in result.output.replace("\n", "").split("paper: ")[0].split("sharp: ")[1:])
    assert line.startswith("o2nc.ExponentiatedO2NC(params, o2nc.learners.OGD(lr=")


def test_plan_command_with_laws():
    """One column a law, with the steps that are guaranteed for it; the line makes the plan's optimizer."""
    wanted = [word for law in ("exponential", "gamma(2)", "jitter(.25)") for word in ("--law", law)]
    result = plan_output("--c", "1", "--eps", "0.1", *wanted)
    assert result.exit_code == 0
    for n in ("26,975", "40,416", "2,183,762"):
        assert n in result.output
    line = next(text for text in result.output.replace("\n", "").split("jitter(.25): ")[1:])
    params = [torch.zeros(2)]
    made = eval(line, {"o2nc": o2nc, "params": params})
    planned = o2nc.theory.plan(2_183_762, c=1.0, gap=1.0, lipschitz=1.0, law=o2nc.Jitter(0.25)).optimizer(params)
    keys = ("learner", "beta", "scaling", "output")
    assert [made.param_groups[0][k] for k in keys] == [planned.param_groups[0][k] for k in keys]


def test_plan_command_names_the_smallest_n_of_the_paper():
    result = plan_output("--c", "50", "--steps", "2")
    assert result.exit_code == 0  # the sharp plan is there
    assert "steps >= 24 is enough" in " ".join(result.output.split())
    assert plan_output("--c", "50", "--steps", "2", "--constants", "paper").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--steps", "5"),
        ("--steps", "5", "--eps", "1", "--c", "1"),
        ("--c", "1", "--eps", "0.5", "--constants", "x"),
        ("--c", "1", "--eps", "1"),
        ("--c", "1", "--eps", "0.5", "--law", "normal"),
        ("--c", "1", "--eps", "0.5", "--law", "jitter"),
        ("--c", "1", "--eps", "0.5", "--law", "jitter(2)"),
        ("--c", "1", "--eps", "0.5", "--law", "gamma(2)", "--constants", "paper"),
    ],
)
def test_plan_command_refuses(arguments):
    result = plan_output(*arguments)
    assert result.exit_code == 2
