"""lr="auto": the probe's formula, the rewind, the control by heat, and that it is AdamW at the lr that it shows."""

import copy
import io
import itertools

import pytest
import torch
from torch import optim

import o2nc
from o2nc.optimizers.auto_lr import HEAT, KEPT, LONGEST, LOOK, LOWEST, REVIEW, WARMUP
from registry import identical, ours_of, params_of

OPTIONS = {"average": o2nc.Polynomial(3, start=2, every=3), "certificate": True, "betas": (0.8, 0.95)}


def weights(dtype=torch.float32, shapes=((7, 5), (5,), ())):
    """Return parameters at x_0."""
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def gradient(x, t, i=0):
    """Return a noisy gradient of a parabola that rises with i."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(10 * t + i))
    return (i + 1) * (x + 2) + 3 * noise.to(x.dtype)


def train(opt, begin, end, scale=1.0):
    """Take steps; return the learning rate after each."""
    rates = []
    for t in range(begin, end):
        for i, p in enumerate(params_of(opt)):
            p.grad = scale * gradient(p.detach(), t, i)
        opt.step()
        rates.append(opt.param_groups[0]["lr"])
    return rates


def is_probing(opt):
    return "d" in ours_of(opt).get("auto", ())


def probe(opt, scale=1.0):
    """Take the steps of the probe, at whose end there is no state again; return how many there were."""
    for t in itertools.count():
        if not is_probing(opt):
            assert not opt.state
            return t
        train(opt, t, t + 1, scale)


PROBED = probe(o2nc.AdamW(weights(), lr="auto", **OPTIONS))


def whole(opt):
    return [params_of(opt), opt.state_dict()]


def test_d_is_the_distance_estimate():
    (p,) = params = weights(torch.float64, [(40,)])
    opt = o2nc.AdamW(params, lr="auto", weight_decay=0.1)
    start = x = p.detach().clone()
    m = v = torch.zeros_like(x)
    r, d, rate = 0.0, 1e-3 * float(x.square().mean().sqrt()), 0.0
    for t in range(1, 100):
        (shown,) = train(opt, t, t + 1)
        g = gradient(x, t)
        r = 0.9 * r + 0.1 * float(g @ (start - x))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        roots = (v / (1 - 0.999**t)).sqrt()
        x = x - d * (0.1 * x + m / (1 - 0.9**t) / (roots + 1e-8))
        rate = max(rate, 4 * r / (1 - 0.9**t) / float(roots.sum()))
        d = max(d, 4 * r / float(m.abs().sum()))
        if not is_probing(opt):
            break
        assert shown == pytest.approx(d, rel=1e-9)
        assert torch.allclose(p, x, rtol=1e-9)
    assert ours_of(opt)["auto"]["target"] == pytest.approx(rate, rel=1e-9)
    assert 0.1 * d < rate < d
    assert torch.allclose(p, start + KEPT * (x - start), rtol=1e-9)
    assert not torch.equal(p, start)


@pytest.mark.parametrize(
    "options", [{}, {"average": None, "certificate": False}, {"scaling": o2nc.Gamma(16)}, {"maximize": True}]
)
def test_after_the_probe_it_is_adamw_at_the_lr_that_it_shows(options):
    options, sign = OPTIONS | options, -1 if "maximize" in options else 1
    found = o2nc.AdamW([{"params": [p]} for p in weights()], lr="auto", **options)
    n = probe(found, sign)
    target, rewound = ours_of(found)["auto"]["target"], copy.deepcopy(params_of(found))
    rates = train(found, n, n + WARMUP + 2 * REVIEW, sign)
    assert rates[:WARMUP] == [target * min(1.0, (t + 1) / WARMUP) for t in range(WARMUP)]
    assert (rates[-1] < target) == (ours_of(found)["average"] is not None)
    plain = o2nc.AdamW([{"params": [p]} for p in rewound], lr=rates[-1], **options)
    for t, lr in enumerate(rates):
        for group in plain.param_groups:
            group["lr"] = lr
        train(plain, n + t, n + t + 1, sign)
    ours_of(found).pop("auto", None)
    identical(whole(found), whole(plain))


@pytest.mark.parametrize("offload", [False, True])
def test_heat_lowers_lr(offload):
    opt = o2nc.AdamW(weights(), lr="auto", average=o2nc.Polynomial(12), offload=offload)
    n = probe(opt)
    lr, goal, heats = ours_of(opt)["auto"]["target"], ours_of(opt)["auto"]["goal"], []
    lowest = LOWEST * lr
    train(opt, n, n + WARMUP)
    for t in range(WARMUP + 1, 2000):
        pairs = [(p.detach(), gradient(p.detach(), t, i)) for i, p in enumerate(params_of(opt))]
        means = [opt.state[p]["o2nc"]["average"] for p in params_of(opt)]
        if t % LOOK == 0:
            heats.append(sum(float((g * (x - mean)).sum()) for (x, g), mean in zip(pairs, means, strict=True)))
        (shown,) = train(opt, t, t + 1)
        if t % REVIEW == 0:
            h = sum(heats) / len(heats)
            factor = min(max(goal / h, 1 / 1.1), 1.1) if h > 0 else 1.1
            lr, heats = min(max(lr * factor, lowest), 10 * lowest), []
        assert shown == pytest.approx(lr, rel=1e-5)
    assert lr < 9 * lowest


def test_the_goal_is_a_share_of_the_largest_product_and_the_scale_of_the_loss_does_not_matter():
    found = []
    for scale in (1.0, 2.0**10):
        opt = o2nc.AdamW(weights(torch.float64), lr="auto", average=o2nc.Polynomial(12), eps=0.0)
        peaks = []
        for t in itertools.count():
            peaks.append(ours_of(opt)["auto"].get("peak"))
            if peaks[-1] is None:
                break
            train(opt, t, t + 1, scale)
        assert ours_of(opt)["auto"]["goal"] >= HEAT * peaks[-2] > 0
        found.append(train(opt, t, t + 500, scale))
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert len(set(found[0][WARMUP:])) > 1


@pytest.mark.parametrize("how", ["number", "scheduler"])
def test_the_control_ends_where_somebody_else_sets_lr(how):
    opt = o2nc.AdamW(weights(), lr="auto", average=o2nc.Polynomial(12))
    train(opt, 0, PROBED + WARMUP + 20)
    assert "heat" in ours_of(opt)["auto"]
    (group,) = opt.param_groups
    if how == "number":
        group["lr"] *= 0.5
    else:
        optim.lr_scheduler.LambdaLR(opt, lambda t: 0.5)
    lr = group["lr"]
    assert {*train(opt, 0, 3 * REVIEW)} == {lr}
    assert "auto" not in ours_of(opt)


@pytest.mark.parametrize("into", ["auto", 1e-3])
@pytest.mark.parametrize("at", [0, 1, PROBED - 1, PROBED, PROBED + 7, PROBED + WARMUP, PROBED + WARMUP + 38])
def test_a_run_resumes_bitwise_in_every_phase(at, into):
    first, second = (o2nc.AdamW(weights(), lr=lr, **OPTIONS) for lr in ("auto", into))
    train(first, 0, at)
    copied = copy.deepcopy(first)
    torch.save(whole(first), buffer := io.BytesIO())
    buffer.seek(0)
    params, state = torch.load(buffer, weights_only=True)
    for p, q in zip(params_of(second), params, strict=True):
        p.data.copy_(q)
    second.load_state_dict(state)
    rates = [train(opt, at, PROBED + WARMUP + 2 * REVIEW) for opt in (first, second, copied)]
    assert rates[0] == rates[1] == rates[2]
    identical(whole(first), whole(second))
    identical(whole(first), whole(copied))


def test_a_log_begins_with_the_run(tmp_path):
    opt = o2nc.AdamW(weights(), lr="auto", **OPTIONS)
    with o2nc.CertificateLogger(opt, tmp_path / "log.csv", every=7):
        train(opt, 0, PROBED + 25)
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["step", "7", "14", "21"]


def test_a_number_in_a_checkpoint_wins():
    torchs = optim.AdamW(weights(), lr=0.02)
    train(torchs, 0, 3)
    opt = o2nc.AdamW(params_of(torchs), lr="auto", average=0.9)
    opt.load_state_dict(torchs.state_dict())
    assert train(opt, 3, 6) == [0.02] * 3


def test_a_closure_is_called_once_a_step_and_its_loss_returned():
    opt, calls = o2nc.AdamW(weights(), lr="auto", average=o2nc.Polynomial(3)), []

    def closure():
        calls.append(1)
        for p in params_of(opt):
            p.grad = gradient(p.detach(), len(calls))
        return len(calls)

    assert [opt.step(closure) for _ in range(200)] == list(range(1, 201))
    with opt.averaged():
        assert max(float((p.detach() + 2).abs().mean()) for p in params_of(opt)) < 0.5


def test_nan_and_missing_gradients_do_not_end_the_probe_badly():
    opt = o2nc.AdamW(weights(), lr="auto", average=0.9)
    train(opt, 0, 5)
    with pytest.raises(RuntimeError, match="still finding the learning rate"), opt.averaged():
        pass
    params_of(opt)[0].grad.fill_(torch.nan)
    params_of(opt)[1].grad = None
    opt.step()
    probe(opt)
    assert 0 < opt.param_groups[0]["lr"] < 1
    assert torch.equal(params_of(opt)[0], weights()[0])  # where the probe has left nan it is x_0
    assert all(p.isfinite().all() for p in params_of(opt))


def test_it_warns_where_there_is_nothing_to_find():
    opt = o2nc.AdamW(weights(), lr="auto")
    train(opt, 0, LONGEST - 1, 0.0)
    with pytest.warns(UserWarning, match="200 steps gave no estimate"):
        train(opt, 0, 1, 0.0)
    assert not is_probing(opt)
    empty = torch.nn.Parameter(torch.zeros(0))
    opt = o2nc.AdamW([empty], lr="auto")
    empty.grad = torch.zeros(0)
    opt.step()
    assert is_probing(opt)


def test_others_that_change_lr_are_refused():
    opt = o2nc.AdamW(weights(), lr="auto")
    train(opt, 0, 4)
    optim.lr_scheduler.LambdaLR(opt, lambda t: 1.0)  # it would go back to this lr, whenever it is stepped
    with pytest.raises(ValueError, match="a scheduler was made already"):
        train(opt, 4, 5)
    opt = o2nc.AdamW(weights(), lr="auto")
    opt.add_param_group({"params": weights(), "lr": 0.1})
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


def test_weight_decay_bounds_lr():
    x = torch.nn.Parameter(torch.tensor(1.0))
    opt = o2nc.AdamW([x], lr="auto", average=0.9, weight_decay=0.01)

    def go_far():
        for _ in range(400):
            opt.zero_grad()
            (x - 1e5).abs().backward()
            opt.step()

    with pytest.warns(UserWarning, match=r"as much as weight_decay=0\.01 allows"):
        go_far()
    assert x.isfinite()
    assert opt.param_groups[0]["lr"] <= 0.25 / 0.01


def test_a_group_added_after_loading_has_the_lr_that_was_found():
    opt = o2nc.AdamW(weights(), lr="auto", average=0.9)
    train(opt, 0, PROBED + WARMUP + 20)
    again = o2nc.AdamW(weights(), lr="auto", average=0.9)
    again.load_state_dict(opt.state_dict())
    again.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    assert again.param_groups[1]["lr"] == opt.param_groups[0]["lr"]


def test_numbers_in_a_checkpoint_are_checked():
    """All are at least 0, but for the heat, a sum of products."""
    opt = o2nc.AdamW(weights(), lr="auto", average=0.9)
    train(opt, 0, PROBED + WARMUP + 20)
    saved = copy.deepcopy(opt.state_dict())
    auto = saved["param_groups"][0]["o2nc"]["auto"]
    auto["heat"] = -1.0
    opt.load_state_dict(saved)
    for key in auto.keys() - {"heat"}:
        auto[key], former = -1.0, auto[key]
        with pytest.raises(ValueError, match=f'"auto" of the checkpoint: {key} must be'):
            opt.load_state_dict(saved)
        auto[key] = former
