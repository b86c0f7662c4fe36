"""random_scaling(optimizer): any torch optimizer, in place, and its copies."""

import copy
import io
import pickle

import pytest
import torch

import o2nc
from problem import parameters, set_gradients

LAW = o2nc.Exponential()
OPTIMIZERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.02, momentum=0.9, weight_decay=0.1),
    "SGD fused": lambda ps: torch.optim.SGD(ps, lr=0.02, momentum=0.9, fused=True),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=0.02, weight_decay=0.1),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=0.02, weight_decay=0.1),
    "AdamW tensor lr": lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(0.02, dtype=torch.float64)),
    "AdamW foreach": lambda ps: torch.optim.AdamW(ps, lr=0.02, foreach=True),
    "NAdam": lambda ps: torch.optim.NAdam(ps, lr=0.02, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam": lambda ps: torch.optim.RAdam(ps, lr=0.02),
    "Adamax": lambda ps: torch.optim.Adamax(ps, lr=0.02),
    "Adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.02, lr_decay=0.1),
    "Adadelta": lambda ps: torch.optim.Adadelta(ps, lr=0.5),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, lr=0.02, momentum=0.5),
    "ASGD": lambda ps: torch.optim.ASGD(ps, lr=0.02),
    "Rprop": lambda ps: torch.optim.Rprop(ps, lr=0.02),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.02),
}


class Home(torch.optim.AdamW):
    """A user's optimizer, to which nothing about lr is known."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * min(group["lr"], 0.01))


@pytest.fixture(params=[*OPTIMIZERS, "Home"])
def make(request):
    return OPTIMIZERS.get(request.param, lambda ps: Home(ps, lr=0.02))


def states_equal(a, b):
    for x, y in zip(a.state.values(), b.state.values(), strict=True):
        for key in x:
            assert torch.equal(torch.as_tensor(x[key]), torch.as_tensor(y[key]))


def test_update_is_scaled(make):
    """x_{t+1} = x_t + s_{t+1}·(what the optimizer would have added), from the same state."""
    params = parameters()
    opt = o2nc.random_scaling(make(params), seed=9)
    for t in range(1, 8):
        set_gradients(params, t)
        twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
        plain = make(twins)
        for p, twin in zip(params, twins, strict=True):
            twin.grad = p.grad.clone()
            plain.state[twin] = copy.deepcopy(opt.state[p])
        before = [p.detach().clone() for p in params]
        plain.step()
        opt.step()
        s = LAW.sample(9, t + 1)
        for p, twin, x in zip(params, twins, before, strict=True):
            torch.testing.assert_close(p.detach() - x, s * (twin.detach() - x), rtol=1e-9, atol=1e-14)
            assert torch.equal(p.grad, twin.grad)
        states_equal(opt, plain)
    assert float(opt.param_groups[0]["lr"]) == pytest.approx(float(make(parameters()).param_groups[0]["lr"]))


def test_it_is_the_same_object_of_the_same_class(make):
    inner = make(parameters())
    name, cls = type(inner).__name__, type(inner)
    opt = o2nc.random_scaling(inner)
    assert opt is inner
    assert isinstance(opt, cls)
    assert type(opt).__name__ == name


def test_scaled_sgd_two_ways():
    a, b = parameters(), parameters()
    wrapped = o2nc.random_scaling(torch.optim.SGD(a, lr=0.02, momentum=0.9), seed=4)
    ours = o2nc.ScaledSGDM(b, lr=0.02, momentum=0.9, seed=4)
    for t in range(1, 10):
        set_gradients(a, t)
        set_gradients(b, t)
        wrapped.step()
        ours.step()
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def copies(opt, make):
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    loaded = o2nc.random_scaling(
        make([torch.nn.Parameter(p.detach().clone()) for p in opt.param_groups[0]["params"]]), seed=5
    )
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    return {"deepcopy": copy.deepcopy(opt), "pickle": pickle.loads(pickle.dumps(opt)), "state_dict": loaded}


def test_copies_are_scaled_too(make):
    """torch drops step hooks silently when it copies an optimizer."""
    params = parameters(torch.float32)  # torch's own NAdam does not resume exactly in float64
    opt = o2nc.random_scaling(make(params), seed=5)
    if isinstance(opt, torch.optim.Adafactor) and torch.cuda.is_available():
        pytest.skip("torch's own copies of Adafactor miss `capturable` where there is a GPU (2.11)")
    for t in range(1, 4):
        set_gradients(params, t)
        opt.step()
    others = copies(opt, make)
    for t in range(4, 7):
        set_gradients(params, t)
        opt.step()
        for other in others.values():
            theirs = other.param_groups[0]["params"]
            set_gradients(theirs, t)
            other.step()
    for name, other in others.items():
        for p, q in zip(params, other.param_groups[0]["params"], strict=True):
            assert torch.equal(p, q), name
        assert other.param_groups[0]["scaling_step"] == 6


def test_hooks_run_once():
    calls = []
    params = parameters()
    opt = torch.optim.AdamW(params, lr=0.1)
    opt.register_step_post_hook(lambda *_: calls.append("user"))
    opt = copy.deepcopy(o2nc.random_scaling(opt))
    opt.register_step_post_hook(lambda *_: calls.append("copy"))
    set_gradients(opt.param_groups[0]["params"], 1)
    opt.step()
    assert calls == ["copy"]  # torch drops the user's hook from the copy; ours is there once
    assert opt.param_groups[0]["scaling_step"] == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_schedulers_see_the_unscaled_lr(when):
    params, twins = parameters(), parameters()
    opt = torch.optim.AdamW(params, lr=0.1)
    if when == "before":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    opt = o2nc.random_scaling(opt)
    if when == "after":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
    plain = torch.optim.AdamW(twins, lr=0.1)
    plain_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(plain, 10)
    for t in range(1, 9):
        set_gradients(params, t)
        set_gradients(twins, t)
        for o, s in ((opt, scheduler), (plain, plain_scheduler)):
            o.step()
            s.step()
        assert opt.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    assert not torch.equal(params[0], twins[0])


def test_a_closures_gradients_count():
    p = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    opt = o2nc.random_scaling(torch.optim.SGD([p], lr=0.1), seed=1)

    def closure():
        opt.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert opt.step(closure) == 5
    torch.testing.assert_close(p.detach(), torch.tensor([2.0, -1.0]).double() * (1 - 0.2 * LAW.sample(1, 2)))


def test_lbfgs_is_refused_and_left_alone():
    """Its curvature pairs are of the steps that it thinks it made: 9.0 in place of 0.047 after eight of them."""
    opt = torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="must not be LBFGS"):
        o2nc.random_scaling(opt)
    assert type(opt) is torch.optim.LBFGS


def test_a_wrapper_of_an_optimizer_is_refused_and_left_alone():
    class Wrapper(torch.optim.Optimizer):
        """As accelerate has one: what it is asked for it looks up in the optimizer inside."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

        @property
        def defaults(self):
            return self.optimizer.defaults

    inside = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
    wrapper = Wrapper(inside)
    with pytest.raises(ValueError, match="apply random_scaling first, then wrap"):
        o2nc.random_scaling(wrapper)
    assert type(wrapper) is Wrapper
    assert type(inside) is torch.optim.SGD
    assert "scaling" not in inside.param_groups[0]


def test_steps_without_gradients_consume_nothing(make):
    params = parameters()
    opt = o2nc.random_scaling(make(params))
    if isinstance(opt, Home):
        with pytest.raises(TypeError):
            opt.step()
    else:
        opt.step()
    assert opt.param_groups[0]["scaling_step"] == 0


def test_an_error_in_a_step_leaves_lr_repaired():
    params = parameters()
    opt = o2nc.random_scaling(torch.optim.AdamW(params, lr=0.1))
    params[0].grad = torch.zeros_like(params[0]).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        opt.step()
    assert opt.param_groups[0]["scaling_step"] == 0
    set_gradients(params, 1)
    opt.step()
    assert opt.param_groups[0]["lr"] == 0.1


def test_overflow_of_a_grad_scaler_consumes_nothing():
    p = torch.nn.Parameter(torch.ones(3))
    opt = o2nc.random_scaling(torch.optim.AdamW([p], lr=0.1, fused=True))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor, step in ((1.0, 1), (float("inf"), 1), (1.0, 2)):
        before = p.detach().clone()
        opt.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(opt)
        scaler.update()
        assert opt.param_groups[0]["scaling_step"] == step
        assert torch.equal(p, before) == (factor == float("inf"))


def test_no_law_leaves_it_alone():
    a, b = parameters(), parameters()
    opt, plain = o2nc.random_scaling(torch.optim.AdamW(a), scaling=None), torch.optim.AdamW(b)
    for t in range(1, 4):
        set_gradients(a, t)
        set_gradients(b, t)
        opt.step()
        plain.step()
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda ps: o2nc.random_scaling(o2nc.random_scaling(torch.optim.SGD(ps))), ValueError, "already"),
        (lambda ps: o2nc.random_scaling(o2nc.ScaledSGDM(ps)), ValueError, "ScaledSGDM"),
        (lambda ps: o2nc.random_scaling(ps), TypeError, "optimizer must be"),
        (lambda ps: o2nc.random_scaling(torch.optim.SGD), TypeError, "optimizer must be"),
        (lambda ps: o2nc.random_scaling(torch.optim.SGD(ps), scaling="exp"), TypeError, "scaling"),
        (lambda ps: o2nc.random_scaling(torch.optim.SGD(ps), seed=-1), ValueError, "seed"),
        (lambda ps: o2nc.random_scaling(torch.optim.SGD(ps, differentiable=True)), ValueError, "differentiable"),
    ],
)
def test_bad_arguments(call, error, words):
    with pytest.raises(error, match=words):
        call(parameters())


def test_a_refused_optimizer_is_left_as_it_was():
    opt = torch.optim.SGD(parameters())
    with pytest.raises(ValueError):
        o2nc.random_scaling(opt, seed=-1)
    assert type(opt) is torch.optim.SGD
    assert "scaling" not in opt.param_groups[0]


def test_schedules_that_move_betas():
    """OneCycleLR: the schedule says what it says to AdamW itself, and a step is one with lr·s set by hand."""
    params, twins = parameters(), parameters()
    opt, plain = o2nc.random_scaling(torch.optim.AdamW(params, lr=0.02), seed=9), torch.optim.AdamW(twins, lr=0.02)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=10) for o in (opt, plain)]
    seen = set()
    for t in range(1, 9):
        set_gradients(params, t)
        set_gradients(twins, t)
        group = plain.param_groups[0]
        lr, group["lr"] = group["lr"], group["lr"] * LAW.sample(9, t + 1)
        opt.step()
        plain.step()
        group["lr"] = lr
        for schedule in schedules:
            schedule.step()
        assert all(map(torch.equal, params, twins))
        assert all(opt.param_groups[0][key] == group[key] for key in ("lr", "betas"))
        seen.add(group["betas"])
    assert len(seen) > 4
