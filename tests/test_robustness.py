"""Parameters as they come: grad-less, frozen, late, mixed, odd layouts; the swap; bad input that changes nothing."""

import copy
import inspect
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import o2nc
from o2nc.learners import FTRL, OGD, AdaGrad, BallAdaGrad, BallOGD, CoinBetting, ScaleFree
from problem import flat, parameters, set_gradients
from twin import averages

MAKERS = {
    "sgdm": lambda ps: o2nc.ScaledSGDM(ps, lr=0.02, momentum=0.9, average=0.95),
    "sgdm fused": lambda ps: o2nc.ScaledSGDM(ps, lr=0.02, momentum=0.9, average=0.95, fused=True),
    "sgdm foreach nesterov": lambda ps: o2nc.ScaledSGDM(
        ps, lr=0.02, momentum=0.9, nesterov=True, foreach=True, average=0.9
    ),
    "sgdm buffer tells": lambda ps: o2nc.ScaledSGDM(ps, lr=0.02, momentum=0.9, average=0.9),
    "ogd": lambda ps: o2nc.ExponentiatedO2NC(ps, OGD(lr=0.02), beta=0.95),
    "ball": lambda ps: o2nc.ExponentiatedO2NC(ps, BallOGD(lr=0.02, radius=0.1), beta=0.95),
    "ftrl": lambda ps: o2nc.ExponentiatedO2NC(ps, FTRL(lr=0.02, decay=0.1, radius=0.1), beta=0.95),
    "adagrad": lambda ps: o2nc.ExponentiatedO2NC(ps, AdaGrad(lr=0.02, decay=0.1), beta=0.95),
    "adagrad diagonal": lambda ps: o2nc.ExponentiatedO2NC(ps, AdaGrad(lr=0.02, diagonal=True, kappa=2), beta=0.95),
    "ball adagrad": lambda ps: o2nc.ExponentiatedO2NC(ps, BallAdaGrad(lr=0.02), beta=0.95),
    "scale free": lambda ps: o2nc.ExponentiatedO2NC(ps, ScaleFree(lr=0.02, diagonal=False, radius=0.1), beta=0.95),
    "adam": lambda ps: o2nc.ExponentiatedO2NC(ps, ScaleFree(lr=0.02), beta=0.95),
    "coin": lambda ps: o2nc.ExponentiatedO2NC(ps, CoinBetting(lipschitz=20.0), beta=0.95),
    "original": lambda ps: o2nc.OriginalO2NC(ps, BallOGD(lr=0.02, radius=0.1), period=3),
}


@pytest.fixture(params=MAKERS)
def make(request):
    return MAKERS[request.param]


def finite(opt):
    certificate = opt.certificate()
    return np.isfinite([certificate.value, certificate.ess, opt.progress]).all() and all(
        p.isfinite().all() for g in opt.param_groups for p in g["params"]
    )


def snapshot(opt):
    return copy.deepcopy((opt.state_dict(), [p.detach() for g in opt.param_groups for p in g["params"]]))


def assert_unchanged(opt, before):
    after = snapshot(opt)
    assert after[0]["param_groups"] == before[0]["param_groups"]
    assert after[0]["state"].keys() == before[0]["state"].keys()
    for a, b in zip(after[0]["state"].values(), before[0]["state"].values(), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for k in a)
    assert all(torch.equal(x, y) for x, y in zip(after[1], before[1], strict=True))


def test_gradients_are_never_written_to(make):
    params = parameters(torch.float32, shapes=[(3, 2), (200, 300)])
    opt = make(params)
    for t in range(1, 6):
        set_gradients(params, t)
        before = [p.grad.clone() for p in params]
        opt.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(params, before, strict=True))


def test_frozen_and_gradless_parameters(make):
    """A parameter without a gradient stays where it is and its momentum waits, as in torch."""
    a, b, frozen = parameters(shapes=[(3,), (4,), (5,)])
    frozen.requires_grad_(False)
    opt = make([a, b, frozen])
    start = frozen.clone()
    for t in range(1, 13):
        set_gradients([a, b], t)
        if t in (4, 5, 9):
            b.grad = None
        before = b.detach().clone()
        opt.step()
        assert torch.equal(b, before) == (b.grad is None or (t == 1 and bool((b == before).all())))
    assert finite(opt)
    assert torch.equal(frozen, start)
    assert frozen not in opt.state
    assert torch.equal(opt.output()[2], frozen)


def test_an_absent_gradient_counts_as_zero():
    """The weights are those of the joint iterate, so a missing part of the gradient is a zero."""
    for average in (0.9, 0.95):  # 0.9: ḡ is read off the momentum buffer until the gap
        a, b = parameters(shapes=[(3,), (4,)])
        opt = o2nc.ScaledSGDM([a, b], lr=0.05, momentum=0.9, average=average, seed=1)
        xs, gs = [], []
        for t in range(1, 16):
            set_gradients([a, b], t)
            if t in (6, 7, 11):
                b.grad = None
            xs.append(flat([a, b]))
            gs.append(flat([a.grad, torch.zeros_like(b) if b.grad is None else b.grad]))
            opt.step()
        x_mean, g_mean, spread, _ = averages(xs, gs, average, [1.0] * 15)
        assert opt.certificate().spread == pytest.approx(spread, rel=1e-12)
        assert opt.certificate().gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-12)
        with opt.averaged():
            np.testing.assert_allclose(flat([a, b]), x_mean, rtol=1e-12)
        # Δ_t of b is zero on leaving a gap: it had not moved
        law = o2nc.Exponential()
        steps = zip(xs, xs[1:], gs[1:], range(2, 16), strict=False)
        progress = sum(g @ ((y - x) / law.sample(1, t)) for x, y, g, t in steps)
        assert opt.progress == pytest.approx(progress, rel=1e-9)


def test_step_without_any_gradient_consumes_nothing(make):
    params = parameters()
    opt = make(params)
    opt.step()
    assert not any(opt.state.values())
    for t in range(1, 8):
        set_gradients(params, t)
        opt.step()
    before = snapshot(opt)
    opt.zero_grad()
    opt.step()
    assert_unchanged(opt, before)


def test_late_parameters(make):
    a, b, c = parameters(shapes=[(3,), (4,), (2, 2)])
    opt = make([a])
    for t in range(1, 10):
        if t == 4:
            opt.add_param_group({"params": [b], "lr": 0.01})
        if t == 7:
            opt.add_param_group({"params": c})
        params = [p for g in opt.param_groups for p in g["params"]]
        set_gradients(params, t)
        opt.step()
    assert finite(opt)
    assert [g["step"] for g in opt.param_groups] == [9, 9, 9]
    assert opt.param_groups[1]["lr"] == 0.01
    assert len(opt.output()) == 3
    assert set(opt.certificate().by_parameter) == {0, 1, 2}


def test_a_parameter_unfrozen_within_its_group(make):
    a, b = parameters(torch.float32, shapes=[(3,), (4,)])
    opt = make([a, b])
    for t in range(1, 9):
        set_gradients([a] if t < 4 else [a, b], t)
        opt.step()
    assert finite(opt)


def test_mixed_dtypes(make):
    params = [
        *parameters(torch.float32, shapes=[(3,), (130, 140)]),
        *parameters(torch.bfloat16, shapes=[(4,), (130, 140)]),
        *parameters(torch.float64, shapes=[(2,)]),
    ]
    opt = make(params)
    for t in range(1, 8):
        set_gradients(params, t)
        opt.step()
    assert finite(opt)
    assert [opt.state[p]["average"].dtype for p in params] == [torch.float32] * 4 + [torch.float64]
    assert [p.dtype for p in params] == [torch.float32] * 2 + [torch.bfloat16] * 2 + [torch.float64]


def test_complex_parameters(make):
    """A complex parameter is its real and imaginary parts side by side."""
    (z,) = parameters(torch.complex128, shapes=[(3, 2)])
    if make is MAKERS["sgdm fused"]:
        set_gradients([z], 1)
        with pytest.raises(RuntimeError, match="floating point"):  # torch's own words
            make([z]).step()
        return
    x = torch.nn.Parameter(torch.view_as_real(z.detach()).clone())
    ours, twin = make([z]), make([x])
    for t in range(1, 10):
        set_gradients([z], t)
        x.grad = torch.view_as_real(z.grad).clone()
        ours.step()
        twin.step()
    torch.testing.assert_close(torch.view_as_real(z.detach()), x.detach(), rtol=1e-12, atol=1e-14)
    assert ours.certificate().value == pytest.approx(twin.certificate().value, rel=1e-11)
    assert ours.progress == pytest.approx(twin.progress, rel=1e-10)
    assert ours.output()[0].dtype == torch.complex128
    torch.testing.assert_close(torch.view_as_real(ours.output()[0]), twin.output()[0])


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_empty_and_scalar_tensors(make, shape):
    params = parameters(torch.float32, shapes=[shape, (4,)])
    opt = make(params)
    for t in range(1, 7):
        set_gradients(params, t)
        opt.step()
    assert finite(opt)


def test_channels_last_and_transposed_parameters(make):
    """Strides are the user's business: the same numbers come out."""
    shapes = [(4, 3, 5, 5), (16, 40, 6, 6), (200, 130)]
    plain = parameters(shapes=shapes)
    odd = [
        torch.nn.Parameter(plain[0].detach().clone(memory_format=torch.channels_last)),
        torch.nn.Parameter(plain[1].detach().clone(memory_format=torch.channels_last)),
        torch.nn.Parameter(plain[2].detach().t().contiguous().t()),
    ]
    a, b = make(plain), make(odd)
    for t in range(1, 6):
        set_gradients(plain, t)
        for p, q in zip(plain, odd, strict=True):
            q.grad = torch.empty_like(q).copy_(p.grad)
        a.step()
        b.step()
    for p, q in zip(plain, odd, strict=True):
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-12, atol=1e-13)
    assert a.certificate().value == pytest.approx(b.certificate().value, rel=1e-11)
    assert a.progress == pytest.approx(b.progress, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([1, 7, 1000, 17_000, 140_000]), min_size=1, max_size=5),
    seed=st.integers(0, 10),
    momentum=st.sampled_from([0.0, 0.9]),
    decay=st.sampled_from([0.0, 0.3]),
)
def test_packing_and_blocks_do_not_matter(sizes, seed, momentum, decay):
    """One long vector or many pieces of it: the same averages, whatever is packed and whatever is cut."""
    whole = torch.nn.Parameter(torch.randn(sum(sizes), generator=torch.Generator().manual_seed(seed)).double())
    pieces = [torch.nn.Parameter(t.clone()) for t in whole.detach().split(sizes)]
    options = {"lr": 0.02, "momentum": momentum, "weight_decay": decay, "seed": seed, "average": 0.9}
    a, b = o2nc.ScaledSGDM([whole], **options), o2nc.ScaledSGDM(pieces, **options)
    for t in range(3):
        generator = torch.Generator().manual_seed(t)
        whole.grad = torch.randn(sum(sizes), generator=generator).double()
        for p, g in zip(pieces, whole.grad.split(sizes), strict=True):
            p.grad = g.clone()
        a.step()
        b.step()
    assert torch.equal(torch.cat([p.detach() for p in pieces]), whole)
    x, y = a.certificate(), b.certificate()
    assert (x.gradient, x.spread) == pytest.approx((y.gradient, y.spread), rel=1e-12)
    assert a.progress == pytest.approx(b.progress, rel=1e-10)
    torch.testing.assert_close(torch.cat(b.output()), a.output()[0], rtol=1e-13, atol=1e-15)


def test_averaged_restores_bitwise(make):
    params = parameters(torch.float32)
    opt = make(params)
    for t in range(1, 8):
        set_gradients(params, t)
        opt.step()
    before = [p.detach().clone() for p in params]
    state = snapshot(opt)
    with opt.averaged():
        assert not torch.equal(params[0], before[0])
        inside = [p.detach().clone() for p in params]
        with opt.averaged():  # nesting is harmless
            assert all(torch.equal(p, x) for p, x in zip(params, inside, strict=True))
        with pytest.raises(RuntimeError, match="inside averaged"):
            opt.step()
        assert torch.is_grad_enabled()
    assert_unchanged(opt, state)
    with pytest.raises(ZeroDivisionError), opt.averaged():
        params[0].data.mul_(1 / 0)
    assert_unchanged(opt, state)
    with torch.no_grad(), opt.averaged():
        assert not torch.is_grad_enabled()
    set_gradients(params, 8)
    opt.step()  # and stepping goes on


def test_overflow_of_a_grad_scaler_consumes_nothing():
    """A fused optimizer's step() still runs on overflow; unscaled gradients are the ones in ḡ."""
    for fused in (False, True):
        p, q = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
        opt = o2nc.ScaledSGDM([p], lr=0.1, momentum=0.9, average=0.95, fused=fused)
        twin = o2nc.ScaledSGDM([q], lr=0.1, momentum=0.9, average=0.95, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for factor in (1.0, 2.0, float("inf"), 3.0):
            before = snapshot(opt)
            opt.zero_grad()
            scaler.scale((p.sin() * factor).sum()).backward()
            scaler.step(opt)
            scaler.update()
            if factor == float("inf"):
                assert_unchanged(opt, before)
            else:
                twin.zero_grad()
                (q.sin() * factor).sum().backward()
                twin.step()
        torch.testing.assert_close(p, q)
        assert opt.certificate().value == pytest.approx(twin.certificate().value, rel=1e-5)
        assert opt.progress == pytest.approx(twin.progress, rel=1e-5)


class Embedding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(5, 3, sparse=True)
        self.rest = torch.nn.Linear(3, 1)

    def forward(self, i):
        return self.rest(self.table(i)).sum()


def test_sparse_gradients_are_refused_and_nothing_moves(make):
    model = Embedding()
    params = [model.rest.weight, model.rest.bias, model.table.weight]
    opt = make(params)
    for p in params:
        p.grad = torch.ones_like(p)
    for _ in range(4):
        opt.step()
    before = snapshot(opt)
    opt.zero_grad()
    model(torch.tensor([1, 3])).backward()
    with pytest.raises(RuntimeError, match="sparse gradients"):
        opt.step()
    assert_unchanged(opt, before)


def test_integer_gradients_are_refused():
    p = torch.ones(3, dtype=torch.int64)
    p.grad = torch.ones(3, dtype=torch.int64)
    for opt in (o2nc.ScaledSGDM([p], lr=0.1), o2nc.ExponentiatedO2NC([p], OGD(lr=0.1))):
        with pytest.raises(TypeError, match="int64"):
            opt.step()
    assert p.tolist() == [1, 1, 1]


X = torch.nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: o2nc.ScaledSGDM([X], lr=float("nan")), ValueError, "lr must be .*nan"),
        (lambda: o2nc.ScaledSGDM([X], lr=float("inf")), ValueError, "lr"),
        (lambda: o2nc.ScaledSGDM([X], lr="0.1"), TypeError, "lr"),
        (lambda: o2nc.ScaledSGDM([X], lr=True), TypeError, "lr"),
        (lambda: o2nc.ScaledSGDM([X], momentum=float("nan")), ValueError, "momentum"),
        (lambda: o2nc.ScaledSGDM([X], dampening=None), TypeError, "dampening"),
        (lambda: o2nc.ScaledSGDM([X], weight_decay=float("inf")), ValueError, "weight_decay"),
        (lambda: o2nc.ScaledSGDM([X], average=1.0), ValueError, r"average must be a number in \(0, 1\), .* got 1.0"),
        (lambda: o2nc.ScaledSGDM([X], average=0), ValueError, "average"),
        (lambda: o2nc.ScaledSGDM([X], average=True), TypeError, "average"),
        (lambda: o2nc.ScaledSGDM([X], scaling="exp"), TypeError, "scaling must be a law"),
        (lambda: o2nc.ScaledSGDM([X], scaling=o2nc.Exponential), TypeError, "scaling"),
        (lambda: o2nc.ScaledSGDM([X], seed=-1), ValueError, "seed must be an integer >= 0, got -1"),
        (lambda: o2nc.ScaledSGDM([X], seed=1.5), TypeError, "seed"),
        (lambda: o2nc.ScaledSGDM([X], seed=None), TypeError, "seed"),
        (lambda: o2nc.ScaledSGDM([]), ValueError, "empty"),
        (lambda: o2nc.ScaledSGDM([X, X]), ValueError, "twice"),
        (lambda: o2nc.ScaledSGDM(X), TypeError, "iterable"),
        (lambda: o2nc.ScaledSGDM([{"params": [X], "seed": 3}]), ValueError, "seed is one for all"),
        (lambda: o2nc.ScaledSGDM([{"params": [X], "lr": -1}]), ValueError, "lr"),
        (lambda: o2nc.ExponentiatedO2NC([X, X], OGD(lr=0.1)), ValueError, "twice"),
        (lambda: o2nc.ExponentiatedO2NC([], OGD(lr=0.1)), ValueError, "empty"),
        (lambda: o2nc.ExponentiatedO2NC([X], OGD), TypeError, "learner must be"),
        (lambda: o2nc.ExponentiatedO2NC([X], 0.1), TypeError, "learner must be"),
        (lambda: o2nc.ExponentiatedO2NC([X], OGD(lr=0.1), beta=1.0), ValueError, r"beta must be .*\(0, 1\), got 1.0"),
        (lambda: o2nc.ExponentiatedO2NC([X], OGD(lr=0.1), beta=0), ValueError, "beta"),
        (lambda: o2nc.ExponentiatedO2NC([X], OGD(lr=0.1), beta="x"), TypeError, "beta"),
        (lambda: o2nc.ExponentiatedO2NC([X], OGD(lr=0.1), average="yes"), TypeError, "average"),
        (lambda: o2nc.ExponentiatedO2NC([{"params": [X], "beta": 0.1}], OGD(lr=0.1)), ValueError, "beta is one"),
        (lambda: o2nc.ExponentiatedO2NC([{"params": [X], "lr": -0.1}], OGD(lr=0.1)), ValueError, "lr"),
        (lambda: o2nc.ExponentiatedO2NC([X.sum()], OGD(lr=0.1)), ValueError, "non-leaf"),
    ],
)
def test_bad_arguments(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("c", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_bad_c(c):
    p = torch.nn.Parameter(torch.ones(2))
    opt = o2nc.ScaledSGDM([p], lr=0.1, average=0.9)
    p.grad = torch.ones_like(p)
    opt.step()
    with pytest.raises((ValueError, TypeError), match="c must be"):
        opt.certificate(c)


def test_a_refused_group_is_not_added(make):
    a, b = parameters(shapes=[(3,), (4,)])
    opt = make([a])
    for group in ({"params": [b], "seed": 8}, {"params": [b, b]}, {"params": [b], "lr": -1.0}, {"params": [a]}):
        with pytest.raises(ValueError):
            opt.add_param_group(group)
        assert len(opt.param_groups) == 1


def test_averages_are_asked_for_too_early_or_not_kept():
    opt = o2nc.ScaledSGDM([X], lr=0.1)
    for ask in (opt.certificate, opt.output, lambda: opt.averaged().__enter__(), lambda: opt.progress):
        with pytest.raises(RuntimeError, match="average=None"):
            ask()
    opt = o2nc.ScaledSGDM([X], lr=0.1, average=0.9)
    for ask in (opt.certificate, opt.output, lambda: opt.averaged().__enter__(), lambda: opt.progress):
        with pytest.raises(RuntimeError, match="before the first step"):
            ask()


def test_progress_is_not_there_before_there_is_any():
    """hasattr and inspect look at everything; a property that is not there yet must not stop them."""
    for opt in (o2nc.ScaledSGDM([X], lr=0.1), o2nc.ScaledSGDM([X], lr=0.1, average=0.9)):
        assert not hasattr(opt, "progress")
        assert "progress" not in dict(inspect.getmembers(opt))


def test_advice_that_can_be_followed():
    opt = o2nc.ExponentiatedO2NC([X], OGD(lr=0.1), average=False)
    with pytest.raises(RuntimeError, match="average=False: leave that at True"):
        opt.certificate()


def test_hooks_run_once_per_step():
    """Calling super().step() in a subclass would run them twice once a torch.optim.SGD exists."""
    torch.optim.SGD([X], lr=0.1)
    calls = []
    opt = o2nc.ScaledSGDM([X], lr=0.0)
    opt.register_step_pre_hook(lambda *_: calls.append("pre"))
    opt.register_step_post_hook(lambda *_: calls.append("post"))
    X.grad = torch.ones_like(X)
    opt.step()
    assert calls == ["pre", "post"]


def test_repr_shows_the_factors():
    text = repr(o2nc.ExponentiatedO2NC([X], OGD(lr=0.1), beta=0.9))
    assert "OGD(lr=0.1, decay=0.0, kappa=1)" in text
    assert "Exponential(rate=1.0)" in text


@dataclass(frozen=True)
class Custom:
    """A learner whose init and update are given."""

    start: object
    result: object = None
    lr: float = 0.1

    def init(self, delta):
        return self.start

    def update(self, deltas, grads, states, lrs, beta):
        for delta, g, lr in zip(deltas, grads, lrs, strict=True):
            delta.copy_(-lr * g)
        return self.result


@pytest.mark.parametrize(
    ("learner", "error", "words"),
    [
        (Custom({"average": 0.0}), ValueError, r"must not use the names \['average'\]"),
        (Custom({"m": 0.0, "delta": 0.0}), ValueError, "delta"),
        (Custom(None), TypeError, "init must return a dict"),
        (Custom({}, result=[]), TypeError, "in place and return None"),
    ],
)
def test_mistakes_in_a_learner_are_named(learner, error, words):
    p = torch.nn.Parameter(torch.ones(2))
    opt = o2nc.ExponentiatedO2NC([p], learner)
    p.grad = torch.ones_like(p)
    with pytest.raises(error, match=words):
        opt.step()
    assert p.tolist() == [1, 1]


class NotADataclass:
    lr = 0.1

    def init(self, delta):
        return {}

    def update(self, deltas, grads, states, lrs, beta):
        pass

    def sample(self, seed, step):
        return 1.0

    def weight(self, s):
        return 1.0


def test_factors_must_be_dataclasses():
    """Otherwise their checkpoints could not be plain data."""
    with pytest.raises(TypeError, match="learner must be"):
        o2nc.ExponentiatedO2NC([X], NotADataclass())
    with pytest.raises(TypeError, match="a law is an instance of a dataclass"):
        o2nc.ScaledSGDM([X], scaling=NotADataclass())
    with pytest.raises(TypeError, match="lacks sample, weight"):
        o2nc.ScaledSGDM([X], scaling=Custom({}))


@pytest.mark.parametrize("key", ["weight_decay", "momentum", "nesterov"])
def test_groups_cannot_ask_for_what_is_not_there(key):
    makers = [lambda ps: o2nc.OriginalO2NC(ps, OGD(lr=0.1), period=2)]
    if key != "weight_decay":
        makers.append(lambda ps: o2nc.ExponentiatedO2NC(ps, OGD(lr=0.1)))
    for make in makers:
        with pytest.raises(ValueError, match=f"has no {key}, got 0.1"):
            make([{"params": [X], key: 0.1}])
        make([{"params": [X], key: 0, "name": "body"}])  # nothing asked for, and notes are welcome


def test_a_checkpoint_of_another_optimizer():
    p = torch.nn.Parameter(torch.ones(2))
    ours = o2nc.ExponentiatedO2NC([p], OGD(lr=0.1))
    with pytest.raises(ValueError, match=r"not one of ScaledSGDM.*momentum"):
        o2nc.ScaledSGDM([p], lr=0.1).load_state_dict(ours.state_dict())
    other = o2nc.ExponentiatedO2NC([p], ScaleFree(lr=0.1))
    with pytest.warns(UserWarning, match=r"goes on with learner=OGD\(.*made with ScaleFree"):
        other.load_state_dict(ours.state_dict())
    assert other.param_groups[0]["learner"] == OGD(lr=0.1)
