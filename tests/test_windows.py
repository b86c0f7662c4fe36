"""Windows of the averages against sums written out, in every optimizer and on both backends."""

import copy
import gc
import math
from weakref import ref

import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
from o2nc.averages import Discount

WINDOWS = [0.9, *map(o2nc.Polynomial, (0, 1, 3, 12)), o2nc.Polynomial(2.5, start=7)]


def weights(window, n, relative=None):
    """p_{n,1}, …, p_{n,n} from the definition: products of the discounts after t, times w_t."""
    relative = relative or [1.0] * n
    if isinstance(window, float):
        falls = [window] * n
        start = 0
    else:
        start = window.start
        falls = [(k - start - 1) / (k - start - 1 + window.power) if k > start + 1 else 0.0 for k in range(1, n + 1)]
    raw = [relative[t] * math.prod(falls[t + 1 :]) for t in range(n)]
    return torch.tensor(raw, dtype=torch.float64) / sum(raw)


def optimizers(window, **options):
    return {
        "ScaledSGDM": lambda ps: o2nc.ScaledSGDM(ps, lr=0.02, momentum=0.8, average=window, seed=3, **options),
        "Nesterov": lambda ps: o2nc.ScaledSGDM(
            ps, lr=0.02, momentum=0.8, nesterov=True, weight_decay=0.1, average=window, seed=3, **options
        ),
        "OGD": lambda ps: o2nc.ExponentiatedO2NC(
            ps, o2nc.learners.OGD(lr=0.02), beta=0.95, average=window, seed=3, **options
        ),
    }


def run(opt, params, steps, seed=0):
    """Step along; return the iterates and the gradients that the learner saw."""
    chance = torch.Generator().manual_seed(seed)
    xs, gs = [], []
    decay = opt.param_groups[0].get("weight_decay", 0.0)
    for _ in range(steps):
        for p in params:
            p.grad = (p.detach().cpu() * 0.3 + torch.randn(p.shape, generator=chance, dtype=p.dtype)).to(p.device)
        xs.append(torch.cat([p.detach().cpu().flatten() for p in params]))
        gs.append(torch.cat([(p.grad + decay * p.detach()).cpu().flatten() for p in params]))
        opt.step()
    return torch.stack(xs), torch.stack(gs)


@pytest.mark.some(16)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", ["ScaledSGDM", "Nesterov", "OGD"])
def test_averages_are_the_sums(kind, window, fused, device):
    place = device if fused else "cpu"
    params = rig.begin(place, torch.float64, shapes=[(5, 3), (4,)])
    opt = optimizers(window, fused=fused)[kind](params)
    steps = 25
    xs, gs = run(opt, params, steps)
    p = weights(window, steps, [1.0] * steps)
    mean, gradient = p @ xs, p @ gs
    spread = float(p @ (xs - mean).square().sum(1))
    found = opt.certificate(2.0)
    assert found.gradient == pytest.approx(float(gradient.norm()), rel=1e-10)
    assert found.spread == pytest.approx(spread, rel=1e-10)
    assert found.ess == pytest.approx(float(1 / p.square().sum()), rel=1e-10)
    with opt.averaged():
        torch.testing.assert_close(
            torch.cat([q.detach().cpu().flatten() for q in params]), mean, rtol=1e-12, atol=1e-13
        )


def test_weights_grow_like_a_power():
    """γ_n = (r + 1)/(n + r), and p_{n,t} ∝ Γ(t + r)/Γ(t), about t^r."""
    for power in (0, 1, 3, 12):
        p = weights(o2nc.Polynomial(power), 400)
        assert float(p[-1]) == pytest.approx((power + 1) / (400 + power))
        exact = torch.tensor([math.lgamma(t + power) - math.lgamma(t) for t in range(1, 401)], dtype=torch.float64)
        torch.testing.assert_close(p, torch.softmax(exact, 0), rtol=1e-9, atol=0)
        assert float(p[199] / p[399]) == pytest.approx(0.5**power, rel=0.2)
        # the effective number of iterates is a fixed share of the run
        assert float(1 / p.square().sum()) == pytest.approx(400 * (2 * power + 1) / (power + 1) ** 2, rel=0.1)


@pytest.mark.parametrize("fused", [False, True])
def test_before_the_start_there_is_nothing_to_ask_for(fused, device):
    params = rig.begin(device if fused else "cpu", torch.float32, shapes=[(6,)])
    opt = o2nc.ScaledSGDM(params, lr=0.1, average=o2nc.Polynomial(3, start=4), fused=fused)
    for t in range(1, 8):
        run(opt, params, 1, seed=t)
        for ask in (opt.certificate, opt.output, lambda: opt.averaged().__enter__()):
            if t <= 4:
                with pytest.raises(RuntimeError, match="begin after 4 steps"):
                    ask()
        assert math.isfinite(opt.progress)
    assert opt.certificate().ess == pytest.approx(float(1 / weights(o2nc.Polynomial(3), 3).square().sum()))


def test_the_output_is_uniform_over_the_averages_after_the_start():
    counts = [0] * 5
    for seed in range(400):
        x = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        opt = o2nc.ScaledSGDM([x], lr=1.0, scaling=None, seed=seed, average=o2nc.Polynomial(1, start=3))
        means = []
        for t in range(8):
            x.grad = -torch.ones_like(x)
            opt.step()
            if t >= 3:
                with opt.averaged():
                    means.append(x.item())
        counts[means.index(opt.output()[0].item())] += 1
    assert min(counts) > 50, counts


@pytest.mark.parametrize("fused", [False, True])
def test_a_checkpoint_goes_on_to_the_bit(fused, device, tmp_path):
    place = device if fused else "cpu"
    make = optimizers(o2nc.Polynomial(4, start=2), fused=fused)["ScaledSGDM"]
    params = rig.begin(place, torch.float32, shapes=[(5, 3), (4,)])
    opt = make(params)
    run(opt, params, 6)
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    again = [torch.nn.Parameter(p.detach().clone()) for p in params]
    other = make(again)
    other.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    twin = copy.deepcopy(other)
    assert twin.param_groups[0]["average"] == o2nc.Polynomial(4, start=2)
    run(opt, params, 5, seed=1)
    run(other, again, 5, seed=1)
    assert opt.certificate() == other.certificate()
    for p, q in zip(params, again, strict=True):
        assert torch.equal(p, q)


def test_a_checkpoint_with_another_window_says_so():
    params = rig.begin("cpu", torch.float32, shapes=[(3,)])
    opt = o2nc.ScaledSGDM(params, lr=0.1, average=0.9)
    run(opt, params, 3)
    other = o2nc.ScaledSGDM(params, lr=0.1, average=o2nc.Polynomial(3))
    with pytest.warns(UserWarning, match=r"average=0.9 \(made with Polynomial\(power=3, start=0\)\)"):
        other.load_state_dict(opt.state_dict())


def test_a_window_that_begins_late_counts_from_its_own_first_iterate():
    params = rig.begin("cpu", torch.float64, shapes=[(3,)])
    plain = o2nc.ScaledSGDM(params, lr=0.1, momentum=0.9)
    run(plain, params, 50)
    opt = o2nc.ScaledSGDM(params, lr=0.1, momentum=0.9, average=o2nc.Polynomial(2))
    with pytest.warns(UserWarning, match="begin with the next step"):
        opt.load_state_dict(plain.state_dict())
    xs, _ = run(opt, params, 10, seed=1)
    with opt.averaged():
        torch.testing.assert_close(params[0].detach(), weights(o2nc.Polynomial(2), 10) @ xs)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: o2nc.Polynomial(-1), "power must be a finite number >= 0, got -1"),
        (lambda: o2nc.Polynomial(math.nan), "power must be"),
        (lambda: o2nc.Polynomial(math.inf), "power must be"),
        (lambda: o2nc.Polynomial("3"), "power must be"),
        (lambda: o2nc.Polynomial(3, start=-1), "start must be an integer >= 0"),
        (lambda: o2nc.Polynomial(3, start=1.5), "start must be an integer >= 0"),
    ],
)
def test_bad_windows(make, error):
    with pytest.raises((ValueError, TypeError), match=error):
        make()


@pytest.mark.parametrize("average", [0.0, 1.0, -1, 2, math.nan, "0.9", [0.9], Discount(0.9)])
def test_bad_averages(average):
    x = [torch.nn.Parameter(torch.zeros(2))]
    message = r"average must be a number in \(0, 1\), o2nc.Polynomial\(power\) or None"
    with pytest.raises((ValueError, TypeError), match=message):
        o2nc.ScaledSGDM(x, average=average)
    with pytest.raises((ValueError, TypeError), match=message):
        o2nc.ExponentiatedO2NC(x, o2nc.learners.OGD(0.1), average=average)


def test_nonsense_put_into_the_groups_is_refused():
    opt = o2nc.ScaledSGDM([torch.nn.Parameter(torch.ones(2))], lr=0.1, average=0.9)
    opt.param_groups[0]["params"][0].grad = torch.ones(2)
    opt.step()
    for average in (1.5, 1, "0.9"):
        opt.param_groups[0]["average"] = average
        with pytest.raises((TypeError, ValueError), match="average must be"):
            opt.step()
    opt.param_groups[0]["average"] = np.float32(0.5)
    opt.step()
    assert opt.param_groups[0]["step"] == 2


def test_what_the_groups_share_is_the_first_ones():
    """Averages that are switched on in the first group are kept in all of them, the progress included."""
    runs = []
    for everywhere in (True, False):
        params = rig.begin("cpu")
        opt = o2nc.ScaledSGDM([{"params": [p]} for p in params], lr=0.1, momentum=0.9, nesterov=True, scaling=None)
        for group in opt.param_groups if everywhere else opt.param_groups[:1]:
            group["average"] = 0.9
        rig.advance(opt, params, (1, 2, 3))
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["ScaledSGDM", "OGD", "AdamW", "extended"])
def test_memory_of_averages_that_are_switched_off_is_given_back(kind, fused, device):
    """What a backend has laid out of them, small and large, goes as well."""
    params = rig.begin(device if fused else "cpu", torch.float32, shapes=[(5, 3), (1 << 15,)])
    makers = optimizers(0.9, fused=fused) | {
        "AdamW": lambda ps: o2nc.AdamW(ps, average=0.9, fused=fused),
        "extended": lambda ps: o2nc.extend(torch.optim.Adam(ps), average=0.9),
    }
    opt = makers[kind](params)
    if not fused:
        opt._engine.take = lambda step: "not here"
    for average in (0.9, None):
        opt.param_groups[0]["average"] = average
        for t in range(3):
            rig.set_noise(params, t)
            opt.step()
        if average is not None:
            kept = [ref(opt.state[p][key]) for p in params for key in ("average", "gradient", "spread")]
    gc.collect()
    assert all(found() is None for found in kept)
