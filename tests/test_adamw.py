"""o2nc.AdamW: torch.optim.AdamW to the bit, with averages, by torch's own step and by our kernel."""

import copy
import itertools

import pytest
import torch

import fused_device as rig
import o2nc
from problem import parameters, set_gradients
from test_windows import WINDOWS, weights

OPTIONS = [{"amsgrad": a, "maximize": b} for a, b in itertools.product((False, True), repeat=2)]
OTHERS = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"betas": (0.0, 0.5)}, {"weight_decay": 0.0}]


def both(a, b, steps, first=1):
    """Step twins along."""
    for t in range(first, first + steps):
        for opt, params in (a, b):
            set_gradients(params, t)
            opt.step()


def equal(a, b):
    """Parameters and torch's part of the state, to the bit."""
    (opt, params), (plain, twins) = a, b
    assert all(map(torch.equal, params, twins))
    for p, q in zip(params, twins, strict=True):
        for key, value in plain.state[q].items():
            assert torch.equal(torch.as_tensor(opt.state[p][key]), torch.as_tensor(value)), key


@pytest.mark.parametrize("average", [None, 0.9, o2nc.Polynomial(3)], ids=str)
@pytest.mark.parametrize("other", OTHERS, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_without_scaling_it_is_torchs_to_the_bit(options, other, average):
    options = {"lr": 0.02, "weight_decay": 0.1} | options | other
    a, b = parameters(torch.float32), parameters(torch.float32)
    ours = o2nc.AdamW(a, average=average, **options), a
    plain = torch.optim.AdamW(b, **options), b
    both(ours, plain, 8)
    equal(ours, plain)


def test_a_learning_rate_that_is_a_tensor():
    a, b = parameters(torch.float32), parameters(torch.float32)
    ours = o2nc.AdamW(a, lr=torch.tensor(0.02), average=0.9), a
    plain = torch.optim.AdamW(b, lr=torch.tensor(0.02)), b
    both(ours, plain, 4)
    equal(ours, plain)
    assert ours[0].progress != 0


def test_autograd_goes_through_a_differentiable_step():
    x = torch.nn.Parameter(torch.ones(3))
    opt = o2nc.AdamW([x], lr=0.1, differentiable=True, average=0.9)
    y = x.clone()
    opt.param_groups[0]["params"][0] = y
    y.grad = (2 * y).detach()
    opt.step()
    y.sum().backward()
    assert x.grad is not None


def test_scaling_is_lr_times_s():
    a, b = parameters(), parameters()
    opt = o2nc.AdamW(a, lr=0.02, scaling=o2nc.Jitter(0.25), seed=4, average=0.9)
    plain = torch.optim.AdamW(b, lr=0.02)
    for t in range(1, 8):
        set_gradients(a, t)
        set_gradients(b, t)
        opt.step()
        plain.param_groups[0]["lr"] = 0.02 * o2nc.Uniform(0.75, 1.25).sample(4, t + 1)
        plain.step()
    assert all(map(torch.equal, a, b))
    assert opt.param_groups[0]["lr"] == 0.02


@pytest.mark.some(14)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("law", [None, o2nc.Exponential()], ids=str)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_averages_and_progress_are_the_sums(window, law, amsgrad, fused, device):
    params = rig.begin(device if fused else "cpu", torch.float64, shapes=[(5, 3), (4,)])
    options = {"lr": 0.02, "weight_decay": 0.3, "amsgrad": amsgrad, "fused": fused}
    opt = o2nc.AdamW(params, average=window, scaling=law, seed=3, maximize=True, **options)
    twins = [torch.nn.Parameter(p.detach().cpu().clone()) for p in params]
    plain = torch.optim.AdamW(twins, maximize=True, **options | {"fused": None})
    xs, gs = [], []
    for t in range(1, 13):
        rig.set_noise(twins, t)
        for p, q in zip(params, twins, strict=True):
            p.grad = q.grad.to(p.device)
        xs.append(torch.cat([q.detach().flatten() for q in twins]))
        gs.append(-torch.cat([q.grad.flatten() for q in twins]))
        opt.step()
        s = 1.0 if law is None else law.sample(3, t + 1)
        plain.param_groups[0]["lr"] = 0.02 * s
        plain.step()
        for p, q in zip(params, twins, strict=True):
            torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-12, atol=1e-14)
    xs, gs, p = torch.stack(xs), torch.stack(gs), weights(window, 12)
    mean = p @ xs
    found = opt.certificate(2.0)
    assert found.gradient == pytest.approx(float((p @ gs).norm()), rel=1e-10)
    assert found.spread == pytest.approx(float(p @ (xs - mean).square().sum(1)), rel=1e-9)
    scalars = torch.tensor([1.0 if law is None else law.sample(3, t) for t in range(2, 13)], dtype=torch.float64)
    slopes = (gs[1:] * (xs[1:] - xs[:-1])).sum(1) / scalars
    assert opt.progress == pytest.approx(float(slopes.sum()), rel=1e-8)
    with opt.averaged():
        here = torch.cat([q.detach().cpu().flatten() for q in params])
        torch.testing.assert_close(here, mean, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_progress_is_of_the_numbers_that_a_step_was_made_with(fused, amsgrad, device):
    """As OneCycleLR changes β₁ at every step; here λ, β₂ and ε as well, and a parameter is away now and then."""
    params = rig.begin(device if fused else "cpu", torch.float64, shapes=[(5, 3), (4,)])
    opt = o2nc.AdamW(params, average=0.9, fused=fused, amsgrad=amsgrad)
    exact, before = 0.0, [p.detach().clone() for p in params]
    for t in range(1, 9):
        rig.set_noise(params, t, missing=[1] if t == 4 else [])
        numbers = {"betas": (0.95 - 0.05 * t, 0.99 - 0.1 * t), "eps": 0.1 * t, "lr": 0.1 / t, "weight_decay": 0.1 * t}
        opt.param_groups[0].update(numbers)
        for i, (p, x) in enumerate(zip(params, before, strict=True)):
            if i == 0 or t not in (4, 5):  # when it comes back, its last Δ was zero
                exact += float((p.grad * (p.detach() - x)).sum())
            x.copy_(p.detach())
        opt.step()
    assert opt.progress == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("fused", [False, True])
def test_checkpoints_that_lack_the_numbers_of_the_last_step_go_on(fused, device):
    """Those from before a step's β and ε were kept, with β and ε as they are."""
    params = rig.begin(device if fused else "cpu", torch.float64, shapes=[(5, 3), (4,)])
    opt = rig.advance(o2nc.AdamW(params, lr=0.02, average=0.9, fused=fused), params, range(1, 5))
    old = copy.deepcopy(opt.state_dict())
    for state in old["state"].values():
        del state["last_ratio"], state["last_floor"]
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = o2nc.AdamW(twins, lr=0.02, average=0.9, fused=fused)
    other.load_state_dict(old)
    rig.advance(opt, params, range(5, 9))
    rig.advance(other, twins, range(5, 9))
    assert all(map(torch.equal, params, twins))
    assert other.progress == pytest.approx(opt.progress, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("average", [None, 0.9], ids=str)
def test_the_kernel_rounds_as_torchs_fused_one_does(dtype, average, device):
    if device == "cpu" and dtype != torch.float32:
        pytest.skip("torch's fused step for CPUs keeps half precision in another order")
    a, b = (rig.begin(device, dtype, shapes=[(33, 7), (300,)]) for _ in range(2))
    options = {"lr": 0.02, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    opt, plain = o2nc.AdamW(a, average=average, **options), torch.optim.AdamW(b, **options)
    for t in range(1, 9):
        chance = torch.Generator().manual_seed(t)
        for p, q in zip(a, b, strict=True):
            p.grad = torch.randn(p.shape, generator=chance).to(p)
            q.grad = p.grad.clone()
        opt.step()
        plain.step()
    for p, q in zip(a, b, strict=True):
        if device == "cpu":  # torch has another formula there
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(p, q)
            for key in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(opt.state[p][key], plain.state[q][key])


@pytest.mark.parametrize("fused", [False, True])
def test_a_checkpoint_of_torchs_goes_on_to_the_bit(fused, device, tmp_path):
    place = device if fused else "cpu"
    options = {"lr": 0.02, "fused": fused}
    twins = rig.begin(place, torch.float32, shapes=[(5, 3), (4,)])
    plain = torch.optim.AdamW(twins, lr=0.02)
    for t in range(1, 5):
        rig.set_noise(twins, t)
        plain.step()
    torch.save(plain.state_dict(), tmp_path / "adamw.pt")
    params = [torch.nn.Parameter(p.detach().clone()) for p in twins]
    opt = o2nc.AdamW(params, average=o2nc.Polynomial(3), **options)
    opt.load_state_dict(torch.load(tmp_path / "adamw.pt", weights_only=True))
    for t in range(5, 9):
        rig.set_noise(twins, t)
        for p, q in zip(params, twins, strict=True):
            p.grad = q.grad.clone()
        plain.step()
        opt.step()
    compare = torch.testing.assert_close if fused else lambda a, b: torch.equal(a, b) or pytest.fail("differs")
    for p, q in zip(params, twins, strict=True):
        compare(p.detach(), q.detach())
    assert opt.certificate().ess == pytest.approx(1 / float(weights(o2nc.Polynomial(3), 4).square().sum()))
    # and back: what we save is what torch loads
    again = torch.optim.AdamW(twins, lr=0.02)
    again.load_state_dict(opt.state_dict())
    assert again.state[twins[0]]["step"].item() == 8


@pytest.mark.parametrize("fused", [False, True])
def test_copies_go_on_to_the_bit(fused, device, tmp_path):
    make = lambda ps: o2nc.AdamW(  # noqa: E731
        ps, lr=0.02, average=o2nc.Polynomial(3, start=1), scaling=o2nc.Exponential(), fused=fused
    )
    params = rig.begin(device if fused else "cpu", torch.float32, shapes=[(5, 3), (4,)])
    opt = make(params)
    for t in range(1, 5):
        rig.set_noise(params, t)
        opt.step()
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    loaded = make([torch.nn.Parameter(p.detach().clone()) for p in params])
    loaded.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    others = [loaded, copy.deepcopy(opt)]
    for t in range(5, 8):
        rig.set_noise(params, t)
        for other in others:
            for p, q in zip(params, other.param_groups[0]["params"], strict=True):
                q.grad = p.grad.clone()
            other.step()
        opt.step()
    for other in others:
        assert all(map(torch.equal, params, other.param_groups[0]["params"]))
        assert other.certificate() == opt.certificate()
        assert other.progress == opt.progress
        assert all(map(torch.equal, other.output(), opt.output()))


def test_falling_back_from_the_kernel_goes_on(device):
    """A law without a device form, say: torch's step takes over where the kernel was."""
    params = rig.begin(device, torch.float64, shapes=[(6,)])
    twins = [torch.nn.Parameter(p.detach().cpu().clone()) for p in params]
    opt = o2nc.AdamW(params, lr=0.02, average=0.9)
    plain = torch.optim.AdamW(twins, lr=0.02)
    for t in range(1, 9):
        rig.set_noise(twins, t)
        params[0].grad = twins[0].grad.to(params[0].device)
        for group in opt.param_groups:
            group["foreach"] = True if 3 < t < 6 else None
        opt.step()
        plain.step()
    torch.testing.assert_close(params[0].detach().cpu(), twins[0].detach(), rtol=1e-12, atol=1e-14)
    assert float(opt.state[params[0]]["step"]) == 8


def test_a_step_called_off_changes_nothing(device):
    params = rig.begin(device, torch.float32, shapes=[(6,)])
    opt = o2nc.AdamW(params, lr=0.02, average=0.9, fused=True)
    opt.found_inf, opt.grad_scale = (torch.tensor(v, device=params[0].device) for v in (1.0, 4.0))
    before = params[0].detach().clone()
    rig.set_noise(params, 1)
    opt.step()
    assert torch.equal(before, params[0])
    with pytest.raises(RuntimeError):
        opt.certificate()
    assert not opt.state_dict()["state"]
    opt.found_inf.zero_()
    opt.step()
    assert not torch.equal(before, params[0])
    assert opt.certificate().gradient == pytest.approx(float(params[0].grad.norm()) / 4, rel=1e-6)


def test_without_a_certificate_there_is_no_gradient_kept(device):
    for fused in (False, True):
        params = rig.begin(device if fused else "cpu", torch.float32, shapes=[(6,)])
        opt = o2nc.AdamW(params, average=0.9, certificate=False, fused=fused)
        for t in range(3):
            rig.set_noise(params, t)
            opt.step()
        params[0].grad = None
        opt.step()
        assert "gradient" not in opt.state[params[0]]
        with pytest.raises(RuntimeError, match="certificate=True"):
            opt.certificate()
        with opt.averaged():
            pass


def test_without_progress_the_rest_is_the_same(device):
    for fused in (False, True):
        runs = []
        for progress in (True, False):
            params = rig.begin(device if fused else "cpu", torch.float32)
            opt = o2nc.AdamW(params, average=0.9, progress=progress, fused=fused)
            rig.advance(opt, params, range(1, 6))
            runs.append([opt.certificate(c=0.7).value, *(p.detach() for p in params)])
        torch.testing.assert_close(*runs, rtol=0, atol=0)
        with pytest.raises(RuntimeError, match="progress=True"):
            _ = opt.progress


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"average": 1.5}, ValueError, "average must be"),
        ({"scaling": "exp"}, TypeError, "scaling"),
        ({"seed": -1}, ValueError, "seed"),
        ({"certificate": "no"}, TypeError, "certificate"),
        ({"progress": "no"}, TypeError, "progress"),
        ({"lr": -1.0}, ValueError, "learning rate"),
        ({"betas": (0.9, 1.0)}, ValueError, "beta"),
    ],
)
def test_bad_arguments(options, error, words):
    with pytest.raises(error, match=words):
        o2nc.AdamW(parameters(), **options)


def test_it_is_one_of_torchs():
    opt = o2nc.AdamW(parameters())
    assert isinstance(opt, torch.optim.AdamW)
    with pytest.raises(ValueError, match="already"):
        o2nc.extend(opt, average=0.9)


@rig.needs_cuda
@pytest.mark.parametrize("average", [None, 0.9], ids=str)
@pytest.mark.parametrize("setting", ["foreach", "fused"])
def test_capturable_steps_are_torchs_and_replay(setting, average):
    options = {"lr": 0.02, "capturable": True, setting: True}
    a, b = (rig.begin("cuda", torch.float32, shapes=[(33, 7), (300,)]) for _ in range(2))
    opt, plain = o2nc.AdamW(a, average=average, **options), torch.optim.AdamW(b, **options)
    for t in range(4):
        for o, params in ((opt, a), (plain, b)):
            rig.set_noise(params, t)
            o.step()
    if setting == "fused" or average is None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            opt.step()
        for _ in range(3):
            graph.replay()
            plain.step()
    assert all(map(torch.equal, a, b))
