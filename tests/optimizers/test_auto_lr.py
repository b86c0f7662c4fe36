"""lr="auto": the probe's formula, the rewind, and that nothing but a number is left of it."""

import copy
import io
import itertools
import math

import pytest
import torch
from torch import optim

import o2nc
from o2nc.optimizers.auto_lr import LONGEST, SHARE, WARMUP

WINDOW = o2nc.Polynomial(3, start=2, every=3)
OPTIONS = {"average": WINDOW, "certificate": True, "weight_decay": 0.1, "betas": (0.8, 0.95)}


def weights(dtype=torch.float32):
    """Return parameters at x_0."""
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in ((7, 5), (5,), ())]


def set_gradients(params, t, scale=1.0):
    """Set noisy gradients of a parabola whose minimum is at distance 2 from the start."""
    generator = torch.Generator().manual_seed(t + 1)
    for i, (p, start) in enumerate(zip(params, weights(), strict=True)):
        noise = torch.randn(p.shape, generator=generator).to(p.dtype)
        p.grad = scale * ((i + 1) * (p.detach() - start.detach().to(p.dtype) + 2) + noise)


def train(opt, begin, end, scale=1.0):
    """Take steps; return the learning rates after each."""
    params, found = [p for group in opt.param_groups for p in group["params"]], []
    for t in range(begin, end):
        set_gradients(params, t, scale)
        opt.step()
        found.append(opt.param_groups[0]["lr"])
    return found


def is_probing(opt):
    return "d" in opt.param_groups[0]["o2nc"].get("auto", ())


def probe(opt, sign=1.0):
    """Take the steps of the probe; return how many there were."""
    for t in itertools.count():
        if not is_probing(opt):
            return t
        train(opt, t, t + 1, sign)


PROBED = probe(o2nc.AdamW(weights(), lr="auto", **OPTIONS))


def state_of(opt):
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def is_equal(a, b):
    """Return whether parameters and all of the state are bitwise the same."""
    pairs = zip(*([p for group in opt.param_groups for p in group["params"]] for opt in (a, b)), strict=True)
    texts = [repr(torch.utils._pytree.tree_map(_plain, opt.state_dict())) for opt in (a, b)]
    return all(torch.equal(p, q) for p, q in pairs) and texts[0] == texts[1]


def _plain(x):
    return x.double().tolist() if isinstance(x, torch.Tensor) else x


def test_d_is_the_distance_estimate():
    params, twins = weights(torch.float64), [p.detach().clone() for p in weights(torch.float64)]
    opt = o2nc.AdamW(params, lr="auto", weight_decay=0.1)
    starts = [x.clone() for x in twins]
    means, squares, r = [torch.zeros_like(x) for x in twins], [torch.zeros_like(x) for x in twins], 0.0
    d = 1e-3 * math.sqrt(sum(float((x**2).sum()) for x in starts) / sum(x.numel() for x in starts))
    for t in range(1, 200):
        (shown,) = train(opt, t - 1, t)
        for x in twins:
            x.requires_grad_()
        set_gradients(twins, t - 1)
        gs = [x.grad for x in twins]
        twins = [x.detach() for x in twins]
        r = 0.9 * r + 0.1 * sum(float((g * (s - x)).sum()) for g, s, x in zip(gs, starts, twins, strict=True))
        for i, g in enumerate(gs):
            means[i] = 0.9 * means[i] + 0.1 * g
            squares[i] = 0.999 * squares[i] + 0.001 * g**2
            u = means[i] / (1 - 0.9**t) / ((squares[i] / (1 - 0.999**t)).sqrt() + 1e-8)
            twins[i] = twins[i] - d * 0.1 * twins[i] - d * u
        d = max(d, 4 * r / sum(float(m.abs().sum()) for m in means))
        if not is_probing(opt):
            break
        assert shown == pytest.approx(d, rel=1e-9)
        assert all(torch.allclose(p, x, rtol=1e-9) for p, x in zip(params, twins, strict=True))
    assert 10 < t < 100
    assert opt.param_groups[0]["o2nc"]["auto"]["target"] == pytest.approx(SHARE * d, rel=1e-9)
    assert all(torch.equal(p, x) for p, x in zip(params, starts, strict=True))


@pytest.mark.parametrize(
    "options", [{}, {"average": None, "certificate": False}, {"scaling": o2nc.Gamma(16)}, {"maximize": True}]
)
def test_after_the_probe_it_is_adamw_at_that_number(options):
    options = OPTIONS | options
    sign = -1 if "maximize" in options else 1
    found = o2nc.AdamW([{"params": [p]} for p in weights()], lr="auto", **options)
    n = probe(found, sign)
    assert not found.state
    assert int(found.param_groups[0]["o2nc"]["step"]) == 0
    rates = train(found, n, n + WARMUP + 20, sign)
    plain = o2nc.AdamW([{"params": [p]} for p in weights()], lr=rates[-1], **options)
    for t in range(WARMUP + 20):
        for group in plain.param_groups:
            group["lr"] = rates[-1] * min(1.0, (t + 1) / WARMUP)
        assert train(plain, n + t, n + t + 1, sign) == [rates[t]]
    assert "auto" not in found.param_groups[0]["o2nc"]
    assert is_equal(found, plain)


@pytest.mark.parametrize("into", ["auto", 1e-3])
@pytest.mark.parametrize("at", [0, 1, PROBED - 1, PROBED, PROBED + 7, PROBED + WARMUP, PROBED + WARMUP + 5])
def test_a_run_resumes_bitwise_in_every_phase(at, into):
    first = o2nc.AdamW(weights(), lr="auto", **OPTIONS)
    train(first, 0, at)
    copied = copy.deepcopy(first)
    params = weights()
    second = o2nc.AdamW(params, lr=into, **OPTIONS)
    with torch.no_grad():
        for p, q in zip(params, first.param_groups[0]["params"], strict=True):
            p.copy_(q)
    second.load_state_dict(state_of(first))
    end = PROBED + WARMUP + 20
    rates = [train(opt, at, end) for opt in (first, second, copied)]
    assert rates[0] == rates[1] == rates[2]
    assert is_equal(first, second)
    assert is_equal(first, copied)


def test_a_number_in_a_checkpoint_wins():
    torchs = optim.AdamW(weights(), lr=0.02)
    train(torchs, 0, 3)
    opt = o2nc.AdamW(torchs.param_groups[0]["params"], lr="auto", average=0.9)
    opt.load_state_dict(torchs.state_dict())
    assert train(opt, 3, 6) == [0.02] * 3


def test_it_does_not_depend_on_the_scale_of_the_loss():
    rates = [train(o2nc.AdamW(weights(), lr="auto", eps=0), 0, 120, scale)[-1] for scale in (1.0, 1024.0)]
    assert rates[0] == pytest.approx(rates[1], rel=1e-5)


def test_a_closure_is_called_once_a_step_and_its_loss_returned():
    params = weights()
    opt, calls = o2nc.AdamW(params, lr="auto", average=0.9), []

    def closure():
        calls.append(1)
        set_gradients(params, len(calls))
        return len(calls)

    assert [opt.step(closure) for _ in range(120)] == list(range(1, 121))
    with opt.averaged(), torch.no_grad():
        assert float((params[1] - weights()[1] + 2).abs().mean()) < 0.5


def test_nan_and_missing_gradients_do_not_end_the_probe_badly():
    params = weights()
    opt = o2nc.AdamW(params, lr="auto")
    train(opt, 0, 5)
    params[0].grad.fill_(torch.nan)
    params[1].grad = None
    opt.step()
    probe(opt)
    assert all(torch.equal(p, x) for p, x in zip(params, weights(), strict=True))
    assert 0 < opt.param_groups[0]["lr"] < 1


def test_it_warns_where_there_is_nothing_to_find():
    params = weights()
    opt = o2nc.AdamW(params, lr="auto")
    for p in params:
        p.grad = torch.zeros_like(p)
    for _ in range(LONGEST - 1):
        opt.step()
    with pytest.warns(UserWarning, match="200 steps gave no estimate"):
        opt.step()
    assert not is_probing(opt)


def test_others_that_change_lr_are_refused():
    opt = o2nc.AdamW(weights(), lr="auto")
    scheduler = optim.lr_scheduler.LambdaLR(opt, lambda t: 1.0)
    train(opt, 0, 4)
    scheduler.step()
    with pytest.raises(ValueError, match="use no scheduler"):
        train(opt, 4, 5)
    opt = o2nc.AdamW(weights(), lr="auto")
    opt.param_groups[0]["params"].pop()
    opt.add_param_group({"params": weights()[2:], "lr": 0.1})
    with pytest.raises(ValueError, match=r"is now 0\.1 in a group"):
        train(opt, 0, 1)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda ps: o2nc.AdamW([{"params": ps, "lr": 0.1}], lr="auto"), ValueError, "one for all parameter groups"),
        (lambda ps: o2nc.AdamW([{"params": ps, "lr": "auto"}]), TypeError, "lr must be"),
        (lambda ps: o2nc.AdamW(ps, lr="fast"), TypeError, 'of AdamW also "auto", got .fast'),
        (lambda ps: o2nc.AdamW([p.bfloat16() for p in ps], lr="auto"), ValueError, "at least 32 bits"),
        (lambda ps: o2nc.SGD(ps, lr="auto"), TypeError, 'of AdamW also "auto"'),
    ],
)
def test_what_it_cannot_do_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make([p.detach() for p in weights()])
