"""Nothing is silently wrong: uses that once gave other numbers than they should, without a word."""

import copy
import math
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

import o2nc
from fused_device import advance, begin, device, ieee, sgdm  # noqa: F401
from o2nc import learners


def ones(n=2, dtype=torch.float32):
    return torch.nn.Parameter(torch.ones(n, dtype=dtype))


def train(opt, params, steps, absent=lambda t, i: False):
    for t in range(steps):
        for i, p in enumerate(params):
            p.grad = None if absent(t, i) else torch.ones_like(p)
        opt.step()


@ieee
@pytest.mark.parametrize("fused", [True, False])
def test_asking_after_a_checkpoint_leaves_it_as_it_is(device, fused):  # noqa: F811
    """Averages of an absent parameter are brought up to date when they are asked for, or saved."""
    params = begin(device, torch.float32)
    opt = sgdm(params, fused, momentum=0.9, average=0.9)
    train(opt, params, 30, absent=lambda t, i: i == 1 and t >= 20)
    saved = opt.state_dict()
    certificate = opt.certificate()
    other = sgdm(begin(device, torch.float32), fused, momentum=0.9, average=0.9)
    other.load_state_dict(copy.deepcopy(saved))
    for p, q in zip(params, other.param_groups[0]["params"], strict=True):
        q.data.copy_(p.data)
    assert other.certificate().value == pytest.approx(certificate.value, rel=1e-12)
    assert other.certificate().by_parameter[1].spread == pytest.approx(certificate.by_parameter[1].spread, rel=1e-12)


def test_a_buffer_in_half_precision_is_no_mean():
    """ḡ is read off the momentum buffer only where that can be kept as a mean."""
    p = ones(100)
    opt = o2nc.ScaledSGDM([p], lr=1e-3, momentum=0.99, average=0.99)
    train(opt, [p], 1)
    q = torch.nn.Parameter(p.detach().bfloat16())
    other = o2nc.ScaledSGDM([q], lr=1e-3, momentum=0.99, average=0.99)
    other.load_state_dict(opt.state_dict())
    train(other, [q], 500)
    assert other.certificate().gradient == pytest.approx(10.0, rel=1e-3)


@ieee
@pytest.mark.parametrize("make", ["sgdm", "learner"])
def test_gradients_of_another_dtype_are_not_cast(device, make):  # noqa: F811
    """A float32 gradient of a float16 parameter may be beyond float16's range."""
    if not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    found = []
    for fused in (None, False):
        p = torch.nn.Parameter(torch.ones(4, dtype=torch.float16, device=device))
        p.grad_dtype = torch.float32
        if make == "sgdm":
            opt = o2nc.ScaledSGDM([p], lr=1e-7, momentum=0.9, average=0.99, fused=fused)
        else:
            opt = o2nc.ExponentiatedO2NC([p], learners.OGD(1e-7), beta=0.9, fused=fused)
        for _ in range(3):
            p.grad = torch.full((4,), 1e5, device=device)
            opt.step()
        found.append((p.tolist(), opt.certificate().gradient))
    assert found[0] == found[1]
    assert found[0][1] == pytest.approx(2e5)


@ieee
@pytest.mark.parametrize("scale", [None, 2.0**17])
def test_a_scale_in_whatever_default_dtype(device, scale):  # noqa: F811
    torch.set_default_dtype(torch.float16)
    try:
        p = torch.nn.Parameter(torch.ones(2, dtype=torch.float32, device=device))
        opt = o2nc.ExponentiatedO2NC([p], learners.OGD(0.1), fused=True, scaling=None)
        p.grad = torch.full((2,), scale or 1.0, dtype=torch.float32, device=device)
        if scale:
            opt.grad_scale = torch.tensor(scale, dtype=torch.float32, device=device)  # with no flag beside it
        opt.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert p.tolist() == pytest.approx([1 - 0.099] * 2)


def test_a_late_parameter_is_unscaled_once():
    """torch's fused step wants old and new buffers apart."""
    runs = []
    for scale in (1.0, 1024.0):
        a, b = ones(), ones()
        opt = o2nc.ScaledSGDM([a, b], lr=0.1, momentum=0.9, fused=True)
        for t in range(4):
            a.grad = torch.full((2,), scale)
            b.grad = torch.full((2,), scale) if t else None
            opt.grad_scale, opt.found_inf = torch.tensor(scale), torch.tensor(0.0)
            opt.step()
        runs.append(torch.cat([a, b]).detach())
    torch.testing.assert_close(*runs)


def test_late_parameters_of_algorithm_1_have_fewer_samples():
    a, b = ones(), ones()
    opt = o2nc.OriginalO2NC([a, b], learners.OGD(0.1), period=10)
    train(opt, [a, b], 10, absent=lambda t, i: i == 1 and t < 8)
    by = opt.certificate().by_parameter
    assert by[0].ess == pytest.approx(10)
    assert by[1].ess == pytest.approx(1 / (0.9**2 + 0.1**2))
    train(opt, [a, b], 10)
    assert opt.certificate().by_parameter[1].ess == pytest.approx(10)


def test_a_discount_below_all_rounding():
    a, b = ones(1), ones(1)
    opt = o2nc.ScaledSGDM([a, b], lr=0.1, average=1e-17, scaling=None)
    train(opt, [a, b], 5, absent=lambda t, i: i == 1 and t >= 2)
    assert opt.certificate().by_parameter[1].gradient == 0
    with opt.averaged():
        averaged = b.item()
    assert averaged == b.item()


def test_an_infinite_gradient_ends_with_its_block():
    a, b = ones(), ones()
    opt = o2nc.OriginalO2NC([a, b], learners.BallOGD(0.1, 1.0), period=2, restart=True)
    for t in range(1, 5):
        a.grad = torch.ones(2)
        b.grad = None if t == 3 else torch.full((2,), float("inf") if t == 2 else 1.0)
        opt.step()
        with torch.no_grad():
            b.nan_to_num_()
    assert opt.certificate().by_parameter[1].gradient == pytest.approx(0.5 * 2**0.5)


def test_the_progress_knows_the_mean_of_the_law():
    """On a linear F the progress is F's decrease, whatever the mean of s."""
    for law in (o2nc.Uniform(0.5, 1), o2nc.Jitter(0.25), o2nc.Weibull(2.5), o2nc.Gamma(3.0, scale=0.5)):
        ratios = []
        for seed in range(8):
            p = ones(1, torch.float64)
            opt = o2nc.ScaledSGDM([p], lr=0.01, momentum=0.9, average=0.99, scaling=law, seed=seed)
            train(opt, [p], 100)
            ratios.append(opt.progress / (p.item() - 1))
        assert sum(ratios) / 8 == pytest.approx(1, abs=0.1), law


@dataclass(frozen=True)
class Dropping:
    """Every third s is 0, another as good as that, and the mean is 1."""

    price: float = 1.0

    def sample(self, seed, step):
        return (0.0, 3.0, 5e-324)[step % 3]

    def weight(self, s):
        return 1.0


def test_a_step_that_s_stops_does_not_count_in_the_progress():
    x = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = o2nc.extend(torch.optim.SGD([x], lr=0.1), average=0.9, scaling=Dropping())
    exact, before = 0.0, x.detach().clone()
    for t in range(1, 13):
        x.grad = torch.full((3,), float(t), dtype=torch.float64)
        s = Dropping().sample(0, t)
        if t > 1 and s == 3.0:
            exact += float((x.grad * (x.detach() - before)).sum()) / s
        before.copy_(x.detach())
        opt.step()
    assert opt.progress == pytest.approx(exact, rel=1e-12)


def test_a_law_that_underflows():
    x = torch.nn.Parameter(torch.ones(3))
    opt = o2nc.extend(torch.optim.SGD([x], lr=1e-3), average=0.9, scaling=o2nc.Gamma(0.005))
    assert min(o2nc.Gamma(0.005).sample(0, t) for t in range(2, 52)) == 0.0
    train(opt, [x], 50)
    assert math.isfinite(opt.progress)


@ieee
def test_a_law_that_underflows_on_the_device(device):  # noqa: F811
    found = []
    for kernels in (True, False):
        params = begin(device)
        opt = o2nc.extend(torch.optim.SGD(params, lr=0.1), average=0.9, scaling=o2nc.Weibull(0.5, scale=1e-322))
        if not kernels:
            opt._engine.take = lambda step: "not here"
        train(opt, params, 12)
        assert isinstance(opt.param_groups[0]["scaling_step"], torch.Tensor) == kernels
        found.append(opt.progress)
    assert found == [0.0, 0.0]


def output_of_late_averages(seed, where, fused):
    """The output of 4 averages after 20 steps without, and the first of these averages."""
    (p,) = begin(where, shapes=[(1,)])
    opt = o2nc.ExponentiatedO2NC([p], learners.OGD(0.1), average=False, seed=seed, fused=fused)
    train(opt, [p], 20)
    opt.param_groups[0]["average"] = 0.9
    x = p.item()
    train(opt, [p], 4)
    return opt.output()[0].item(), x


def test_the_output_is_uniform_over_averages_that_began_late():
    found = [output_of_late_averages(seed, "cpu", False) for seed in range(40)]
    assert 3 <= sum(kept == first for kept, first in found) <= 19  # 10 of 40; 33 where all steps are counted


@ieee
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_fused_output_of_late_averages_is_the_same(device, seed):  # noqa: F811
    ours, theirs = (output_of_late_averages(seed, device, fused) for fused in (True, False))
    assert ours == pytest.approx(theirs)


@ieee
@pytest.mark.parametrize("fused", [True, False])
def test_averages_that_are_switched_off_begin_anew(device, fused):  # noqa: F811
    params = begin(device)
    opt = sgdm(params, fused, momentum=0.9, average=0.9)
    for average in [0.9] * 3 + [None] * 5 + [0.9] * 4:
        opt.param_groups[0]["average"] = average
        train(opt, params, 1)
        if average is None:
            with pytest.raises(RuntimeError, match="average"):
                opt.certificate()
    certificate = opt.certificate()
    assert certificate.gradient == pytest.approx(sum(p.numel() for p in params) ** 0.5)  # all gradients are 1
    assert certificate.ess == pytest.approx(sum(0.9**k for k in range(4)) ** 2 / sum(0.81**k for k in range(4)))


def test_loading_inside_averaged_is_refused():
    p = ones()
    opt = o2nc.ScaledSGDM([p], lr=0.1, average=0.9)
    train(opt, [p], 2)
    saved = opt.state_dict()
    with opt.averaged(), pytest.raises(RuntimeError, match="inside averaged"):
        opt.load_state_dict(saved)


# --- checkpoints that lack something, or have it wrong


def saved_and(change):
    params = [ones(), ones(3)]
    opt = o2nc.ScaledSGDM(params, lr=0.1, momentum=0.9, average=0.99)
    train(opt, params, 5)
    saved = copy.deepcopy(opt.state_dict())
    change(saved)
    return o2nc.ScaledSGDM([ones(), ones(3)], lr=0.1, momentum=0.9, average=0.99), saved


WRONG = {
    "seed": lambda saved: saved["param_groups"][0].update(seed=-1),
    "step": lambda saved: saved["param_groups"][0].pop("step"),
    "weight_sum": lambda saved: saved["param_groups"][0].pop("weight_sum"),
    "lr": lambda saved: saved["param_groups"][0].update(lr=float("nan")),
    "log_decay": lambda saved: saved["param_groups"][0].update(log_decay=float("nan")),
    "scaling": lambda saved: saved["param_groups"][0].update(scaling="exponential"),
    "spread": lambda saved: saved["state"][1].pop("spread"),
    "blank": lambda saved: saved["state"][1].pop("blank"),
    "none of its groups": lambda saved: saved["state"].update({7: {}}),
}


@pytest.mark.parametrize("what", WRONG)
def test_damaged_checkpoints_are_refused(what):
    opt, saved = saved_and(WRONG[what])
    with pytest.raises((ValueError, TypeError), match=what):
        opt.load_state_dict(saved)
    train(opt, opt.param_groups[0]["params"], 2)  # nothing of it has come in


def test_the_first_checkpoints_go_on():
    """Of before parameters could be absent: no log_decay, no joined."""

    def older(saved):
        for entries in (*saved["param_groups"], *saved["state"].values()):
            for key in ("log_decay", "joined"):
                entries.pop(key, None)

    opt, saved = saved_and(older)
    opt.load_state_dict(saved)
    train(opt, opt.param_groups[0]["params"], 3)
    params = [ones(), ones(3)]
    same = o2nc.ScaledSGDM(params, lr=0.1, momentum=0.9, average=0.99)
    train(same, params, 8)
    assert opt.certificate().ess == pytest.approx(same.certificate().ess)
    assert opt.certificate().gradient == pytest.approx(same.certificate().gradient)


def test_a_law_that_does_not_fit_is_named():
    opt, saved = saved_and(lambda saved: saved["param_groups"][0]["scaling"].update(b=1))
    with pytest.raises(ValueError, match="scaling does not fit Exponential"):
        opt.load_state_dict(saved)


def test_a_checkpoint_of_another_optimizer_is_refused_by_a_scaled_one():
    adam = torch.optim.AdamW([ones()])
    opt = o2nc.random_scaling(torch.optim.SGD([ones()], lr=0.1))
    with pytest.raises(ValueError, match="momentum"):
        opt.load_state_dict(adam.state_dict())


def test_what_random_scaling_fails_on_is_left_as_it_was():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, inner.defaults

    inner = torch.optim.SGD([ones()], lr=0.1)
    before = copy.deepcopy(inner.param_groups[0]["lr"]), set(inner.param_groups[0])
    with pytest.raises(ValueError, match="then wrap"):
        o2nc.random_scaling(Wrapper(inner))
    assert (inner.param_groups[0]["lr"], set(inner.param_groups[0])) == before
    o2nc.random_scaling(inner)


FORK = """
import os, sys, torch, o2nc

p = torch.nn.Parameter(torch.ones(2))
opt = o2nc.ScaledSGDM([p], lr=0.1, average=0.9)
log = o2nc.CertificateLogger(opt, sys.argv[1], every=1)

def train(steps):
    for _ in range(steps):
        p.grad = torch.ones(2)
        opt.step()

train(2)
child = os.fork()
if child == 0:
    train(2)
    os._exit(0)
os.waitpid(child, 0)
train(1)
log.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_write_into_its_parents_log(tmp_path):
    """In a process of its own: not every thread of this one survives a fork."""
    path = tmp_path / "c.csv"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", FORK, path], check=True, timeout=60, env=environment)
    assert [line.split(",")[0] for line in path.read_text().splitlines()[1:]] == ["1", "2", "3"]
