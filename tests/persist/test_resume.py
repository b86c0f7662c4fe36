"""Save at a random step, or be killed at one, load in a new process, continue: the same bits.

And no global generator is touched.
"""

import copy
import itertools
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import o2nc
from o2nc import learners
from problem import EXTENDED, SHAPES, parameters, set_gradients

CASES = {
    "sgdm": lambda ps: o2nc.ScaledSGDM(ps, lr=0.02, momentum=0.9, seed=3, average=0.99),
    "sgdm shared buffer": lambda ps: o2nc.ScaledSGDM(ps, lr=0.02, momentum=0.9, seed=3, average=0.9),
    "sgdm nesterov": lambda ps: o2nc.ScaledSGDM(ps, lr=0.02, momentum=0.9, nesterov=True, average=0.99, foreach=True),
    "sgdm no momentum": lambda ps: o2nc.ScaledSGDM(ps, lr=0.02, average=0.99, scaling=o2nc.Uniform(0, 2)),
    "sgdm no average": lambda ps: o2nc.ScaledSGDM(
        ps, lr=0.02, momentum=0.9, weight_decay=0.1, scaling=o2nc.Jitter(0.5)
    ),
    "ogd": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(lr=0.02, decay=0.5), beta=0.95, seed=1),
    "ball": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.BallOGD(lr=0.02, radius=0.1), scaling=o2nc.Weibull(1.2)),
    "ftrl": lambda ps: o2nc.ExponentiatedO2NC(
        ps, learners.FTRL(lr=0.02, decay=0.5, radius=0.1), scaling=o2nc.Gamma(0.5)
    ),
    "adagrad": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.AdaGrad(lr=0.02, decay=0.1)),
    "ball adagrad": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.BallAdaGrad(lr=0.02), seed=4),
    "adam": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.ScaleFree(lr=0.02, radius=0.5)),
    "coin": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.CoinBetting(lipschitz=10.0)),
    "original": lambda ps: o2nc.OriginalO2NC(ps, learners.BallOGD(lr=0.02, radius=0.1), period=4, seed=2),
    "wrapped": lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.02), seed=6),
    "wrapped, by displacement": lambda ps: o2nc.random_scaling(torch.optim.Rprop(ps, lr=0.02), seed=6),
    **EXTENDED,
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
STEPS = 23


def defaults_of(name, params):
    """The same optimizer with other seeds and hyperparameters: the checkpoint's must win."""
    if name.startswith("sgdm"):
        return o2nc.ScaledSGDM(params, lr=1.0, seed=99, average=None if name == "sgdm no average" else 0.5)
    return CASES[name](params)


def advance(opt, params, first, last):
    for t in range(first, last + 1):
        opt.param_groups[0]["lr"] = 0.02 * (1 + 0.3 * math.sin(t))
        set_gradients(params, t)
        opt.step()


def report(opt, params):
    """Everything that must agree to the bit, as plain data."""
    result = {"params": [p.detach() for p in params]}
    if hasattr(opt, "certificate") and opt.param_groups[0].get("average", 0) is not None:
        certificate = opt.certificate(c=0.7)
        result.update(
            certificate=[certificate.gradient, certificate.spread, certificate.value, certificate.ess],
            progress=opt.progress,
            output=opt.output(),
        )
        with opt.averaged():
            result["averaged"] = [p.detach().clone() for p in params]
    return result


def assert_same(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        for x, y in zip(value, b[key], strict=True) if isinstance(value, list) else [(value, b[key])]:
            if isinstance(x, torch.Tensor):
                assert x.dtype == y.dtype
                assert torch.equal(x, y), key
            else:
                assert x == y, key


def train_until_killed(folder, names):
    """Train without an end, with a new checkpoint after every step."""
    runs = {name: parameters(torch.float32) for name in names}
    opts = {name: CASES[name](params) for name, params in runs.items()}
    for step in itertools.count(1):
        for name, opt in opts.items():
            advance(opt, runs[name], step, step)
        torch.save({f"{name}|float32": job(opts[name], runs[name], step, step + 9) for name in names}, folder / "new")
        os.replace(folder / "new", folder / "jobs.pt")


def job(opt, params, step, last):
    """Return what is to be continued, and how far."""
    return {"params": [p.detach() for p in params], "optimizer": opt.state_dict(), "step": step, "last": last}


def main(folder):
    """What the new process does: load, continue, write the report."""
    jobs = torch.load(folder / "jobs.pt", weights_only=True)
    reports = {}
    for key, found in jobs.items():
        name, dtype = key.split("|")
        params = parameters(DTYPES[dtype])
        opt = defaults_of(name, params)
        with torch.no_grad():
            for p, saved in zip(params, found["params"], strict=True):
                p.copy_(saved)
        opt.load_state_dict(found["optimizer"])
        advance(opt, params, found["step"] + 1, found["last"])
        reports[key] = report(opt, params)
    torch.save(reports, folder / "reports.pt")


def test_new_process_continues_to_the_same_bits(tmp_path):
    jobs, expected = {}, {}
    draw = random.Random(0)
    for name, make in CASES.items():
        for dtype in DTYPES:
            params = parameters(DTYPES[dtype])
            opt = make(params)
            step = draw.randrange(1, STEPS)
            advance(opt, params, 1, step)
            jobs[f"{name}|{dtype}"] = copy.deepcopy(job(opt, params, step, STEPS))
            advance(opt, params, step + 1, STEPS)
            expected[f"{name}|{dtype}"] = report(opt, params)
    torch.save(jobs, tmp_path / "jobs.pt")
    assert_continued(tmp_path, expected)


def assert_continued(folder, expected):
    """Continue in a new process, and compare its reports."""
    subprocess.run([sys.executable, __file__, str(folder)], check=True)
    reports = torch.load(folder / "reports.pt", weights_only=True)
    assert reports.keys() == expected.keys()
    for key in expected:
        assert_same(expected[key], reports[key])


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_it_goes_on_to_the_same_bits(tmp_path):
    """Wherever SIGKILL falls, into the writing of a checkpoint as well."""
    names = (*EXTENDED, "sgdm")
    running = subprocess.Popen([sys.executable, __file__, str(tmp_path), *names])
    try:
        while not (tmp_path / "jobs.pt").exists():
            assert running.poll() is None
            time.sleep(0.05)
        time.sleep(random.uniform(0, 0.2))
    finally:
        running.kill()
    assert running.wait() == -signal.SIGKILL
    expected = {}
    for key, killed in torch.load(tmp_path / "jobs.pt", weights_only=True).items():
        params = parameters(torch.float32)
        opt = CASES[key.split("|")[0]](params)
        advance(opt, params, 1, killed["last"])
        expected[key] = report(opt, params)
    assert_continued(tmp_path, expected)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_continue_to_the_same_bits(name, how):
    opt = CASES[name](parameters(torch.float32))
    params = opt.param_groups[0]["params"]
    advance(opt, params, 1, 9)
    other = copy.deepcopy(opt) if how == "deepcopy" else pickle.loads(pickle.dumps(opt))
    theirs = other.param_groups[0]["params"]
    advance(opt, params, 10, STEPS)
    advance(other, theirs, 10, STEPS)
    assert_same(report(opt, params), report(other, theirs))
    advance(other, theirs, STEPS + 1, STEPS + 2)  # the copy does not write into the original
    again = CASES[name](parameters(torch.float32))
    twins = again.param_groups[0]["params"]
    advance(again, twins, 1, STEPS)
    assert_same(report(opt, params), report(again, twins))


@pytest.mark.parametrize("name", CASES)
def test_global_generators_are_untouched(name):
    params = parameters()
    opt = CASES[name](params)
    set_gradients(params, 1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    for _ in range(6):
        opt.step()
    report(opt, params)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


def test_checkpoint_is_plain_data():
    params = parameters()
    opt = o2nc.ExponentiatedO2NC(params, learners.ScaleFree(lr=0.1), scaling=o2nc.Gamma(0.5))
    advance(opt, params, 1, 3)
    saved = opt.state_dict()
    assert saved["param_groups"][0]["scaling"] == {"__name__": "Gamma", "shape": 0.5, "scale": 2.0}
    assert saved["param_groups"][0]["learner"]["__name__"] == "ScaleFree"
    for state in saved["state"].values():
        assert all(isinstance(v, torch.Tensor | float | int) for v in state.values())
    assert opt.param_groups[0]["scaling"] == o2nc.Gamma(0.5)  # the live group keeps the law itself


@dataclass(frozen=True)
class Constant:
    """A user's law and learner in one: s = 1, Δ = −lr·g."""

    lr: float = 0.1

    def sample(self, seed, step):
        return 1.0

    def weight(self, s):
        return 1.0

    def init(self, delta):
        return {}

    def update(self, deltas, grads, states, lrs, beta):
        for delta, g, lr in zip(deltas, grads, lrs, strict=True):
            delta.copy_(-lr * g)


def test_checkpoints_of_a_users_own_factors():
    make = lambda ps: o2nc.ExponentiatedO2NC(ps, Constant(0.3), scaling=Constant())  # noqa: E731
    params = parameters()
    opt = make(params)
    advance(opt, params, 1, 3)
    other = make(parameters())
    other.load_state_dict(opt.state_dict())
    assert other.param_groups[0]["learner"] == Constant(0.3)
    stranger = o2nc.ExponentiatedO2NC(parameters(), learners.OGD(lr=0.1))
    with pytest.raises(ValueError, match=r"learner=Constant.*does not know"):
        stranger.load_state_dict(opt.state_dict())
    assert stranger.param_groups[0]["learner"] == learners.OGD(lr=0.1)
    assert not stranger.state


def test_state_keeps_its_dtype_on_loading():
    """Optimizer.load_state_dict would cast a float64 V and a float32 x̄ to bfloat16."""
    params = parameters(torch.bfloat16)
    opt = o2nc.ScaledSGDM(params, lr=0.02, momentum=0.9, average=0.99)
    advance(opt, params, 1, 5)
    other = o2nc.ScaledSGDM(params, lr=0.02, average=0.99)
    other.load_state_dict(opt.state_dict())
    for p in params:
        kept = {k: v.dtype for k, v in other.state[p].items() if isinstance(v, torch.Tensor)}
        assert kept == {k: v.dtype for k, v in opt.state[p].items() if isinstance(v, torch.Tensor)}
        assert kept["average"] == torch.float32
        assert kept["spread"] == torch.float64
        assert kept["momentum_buffer"] == torch.bfloat16


def test_loading_does_not_share_memory():
    params = parameters()
    opt = o2nc.ExponentiatedO2NC(params, learners.OGD(lr=0.02))
    advance(opt, params, 1, 3)
    saved = opt.state_dict()
    before = copy.deepcopy(saved)
    other = o2nc.ExponentiatedO2NC(parameters(), learners.OGD(lr=0.02))
    other.load_state_dict(saved)
    advance(other, other.param_groups[0]["params"], 4, 6)
    for state, kept in zip(saved["state"].values(), before["state"].values(), strict=True):
        assert all(torch.equal(torch.as_tensor(state[k]), torch.as_tensor(kept[k])) for k in kept)


def test_a_checkpoint_of_another_shape_changes_nothing():
    params = parameters()
    opt = o2nc.ScaledSGDM(params, lr=0.02, momentum=0.9, average=0.9)
    advance(opt, params, 1, 3)
    fewer = o2nc.ScaledSGDM(parameters(shapes=SHAPES[:2]), lr=0.5, average=0.9)
    with pytest.raises(ValueError, match="size"):
        fewer.load_state_dict(opt.state_dict())
    assert not fewer.state
    assert fewer.param_groups[0]["lr"] == 0.5


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[2:]:
        train_until_killed(Path(sys.argv[1]), sys.argv[2:])
    main(Path(sys.argv[1]))
