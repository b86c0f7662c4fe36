"""extend(optimizer): averages and a certificate around any torch optimizer, which moves as it would without."""

import abc
import copy
import inspect
import io
import math
import pickle

import pytest
import torch
import torch._dynamo.testing
from torch import optim

import fused_device as rig
import o2nc
from o2nc.optimizers.extend import _KEPT
from o2nc.optimizers.extended import Extended
from problem import EXTENDED, parameters, set_gradients
from test_windows import WINDOWS, weights

OPTIMIZERS = {
    "SGD": lambda ps: optim.SGD(ps, lr=0.02, momentum=0.9, weight_decay=0.1),
    "SGD plain": lambda ps: optim.SGD(ps, lr=0.02),
    "Adam": lambda ps: optim.Adam(ps, lr=0.02, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda ps: optim.AdamW(ps, lr=0.02, weight_decay=0.1),
    "AdamW fused": lambda ps: optim.AdamW(ps, lr=0.02, fused=True),
    "AdamW maximize": lambda ps: optim.AdamW(ps, lr=torch.tensor(0.02), maximize=True),
    "NAdam": lambda ps: optim.NAdam(ps, lr=0.02),
    "RAdam": lambda ps: optim.RAdam(ps, lr=0.02),
    "Adamax": lambda ps: optim.Adamax(ps, lr=0.02),
    "Adagrad": lambda ps: optim.Adagrad(ps, lr=0.02),
    "Adadelta": lambda ps: optim.Adadelta(ps, lr=0.5),
    "RMSprop": lambda ps: optim.RMSprop(ps, lr=0.02, momentum=0.5),
    "ASGD": lambda ps: optim.ASGD(ps, lr=0.02),
    "Rprop": lambda ps: optim.Rprop(ps, lr=0.02),
    "Adafactor": lambda ps: optim.Adafactor(ps, lr=0.02),
}
if hasattr(optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda ps: optim.Muon([p for p in ps if p.dim() == 2], lr=0.02)


class Lion(optim.Optimizer):
    """An optimizer from outside, with state in an order and under names of its own."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(
            params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "step": 0, "weight_sum": 7.0}
        )

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is None
        for group in self.param_groups:
            group["step"] += 1  # names that are ours, too
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["average"] = None  # goes on only if nobody has been here before
                    del state["average"]
                    state["m"] = torch.zeros_like(p)
                low, high = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(low * state["m"] + (1 - low) * p.grad))
                state["m"].lerp_(p.grad, 1 - high)


OPTIMIZERS["Lion"] = Lion
EVERY = pytest.mark.parametrize("name", OPTIMIZERS)


class Flaky(optim.RMSprop):
    """An optimizer whose steps fail when they are told to."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            self.fails = False
            raise MemoryError
        return super().step(closure)


def attempt(opt, params, t):
    """Step, once more if it fails."""
    rig.set_noise(params, t)
    try:
        opt.step()
    except MemoryError:
        opt.step()


def steps(opt, params, count, first=1):
    xs, gs = [], []
    used = [p for group in opt.param_groups for p in group["params"]]
    for t in range(first, first + count):
        set_gradients(params, t)
        xs.append(torch.cat([p.detach().flatten() for p in used]))
        gs.append(torch.cat([p.grad.flatten() for p in used]))
        opt.step()
    return torch.stack(xs), torch.stack(gs)


def step_both(first, second, count):
    """Step two optimizers along; their parameters stay the same to the bit."""
    for t in range(1, count + 1):
        step_once(first, second, t)


def step_once(first, second, t):
    for opt, params in (first, second):
        set_gradients(params, t)
        opt.step()
    assert all(map(torch.equal, first[1], second[1]))


@EVERY
def test_it_moves_as_it_would_alone(name):
    a, b = parameters(torch.float32), parameters(torch.float32)
    opt = o2nc.extend(OPTIMIZERS[name](a), average=o2nc.Polynomial(3))
    plain = OPTIMIZERS[name](b)
    step_both((opt, a), (plain, b), 11)
    for p, q in zip(a, b, strict=True):
        for key, value in plain.state.get(q, {}).items():
            assert torch.equal(torch.as_tensor(opt.state[p][key]), torch.as_tensor(value)), key


@pytest.mark.some(34)
@EVERY
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_averages_are_the_sums(name, window):
    params = parameters()
    opt = o2nc.extend(OPTIMIZERS[name](params), average=window)
    xs, gs = steps(opt, params, 15)
    if "maximize" in name:
        gs = -gs
    p = weights(window, 15)
    mean, gradient = p @ xs, p @ gs
    found = opt.certificate(2.0)
    assert found.gradient == pytest.approx(float(gradient.norm()), rel=1e-10)
    assert found.spread == pytest.approx(float(p @ (xs - mean).square().sum(1)), rel=1e-9)
    assert found.ess == pytest.approx(float(1 / p.square().sum()), rel=1e-10)
    used = [p for group in opt.param_groups for p in group["params"]]
    with opt.averaged():
        torch.testing.assert_close(torch.cat([q.detach().flatten() for q in used]), mean, rtol=1e-12, atol=1e-13)
    slopes = (gs[1:] * (xs[1:] - xs[:-1])).sum()
    assert opt.progress == pytest.approx(float(slopes), rel=1e-9)


def test_progress_with_scaling_is_of_the_unscaled_update():
    params = parameters()
    opt = o2nc.extend(optim.AdamW(params, lr=0.02), average=0.9, scaling=o2nc.Exponential(), seed=3)
    xs, gs = steps(opt, params, 10)
    s = torch.tensor([o2nc.Exponential().sample(3, t) for t in range(2, 11)], dtype=torch.float64)
    slopes = (gs[1:] * (xs[1:] - xs[:-1])).sum(1) / s
    assert opt.progress == pytest.approx(float(slopes.sum()), rel=1e-9)


@EVERY
def test_scaling_is_that_of_random_scaling(name):
    a, b = parameters(), parameters()
    both = o2nc.extend(OPTIMIZERS[name](a), average=0.9, scaling=o2nc.Exponential(), seed=2)
    alone = o2nc.random_scaling(OPTIMIZERS[name](b), seed=2)
    step_both((both, a), (alone, b), 5)


def copies(opt, make):
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    groups = opt.param_groups
    own = [torch.nn.Parameter(p.detach().clone()) for group in groups for p in group["params"]]
    loaded = o2nc.extend(make(own), average=o2nc.Polynomial(3), seed=5)
    loaded.load_state_dict(torch.load(buffer, weights_only=True))
    return {"deepcopy": copy.deepcopy(opt), "pickle": pickle.loads(pickle.dumps(opt)), "state_dict": loaded}


@EVERY
def test_copies_go_on_to_the_bit(name):
    params = parameters(torch.float32)
    opt = o2nc.extend(OPTIMIZERS[name](params), average=o2nc.Polynomial(3), seed=5)
    if isinstance(opt, optim.Adafactor) and torch.cuda.is_available():
        pytest.skip("torch's own copies of Adafactor miss `capturable` where there is a GPU (2.11)")
    used = [p for group in opt.param_groups for p in group["params"]]
    steps(opt, params, 4)
    others = copies(opt, OPTIMIZERS[name])
    for t in range(5, 9):
        set_gradients(params, t)
        for other in others.values():
            for p, q in zip(used, (p for group in other.param_groups for p in group["params"]), strict=True):
                q.grad = p.grad.clone()
            other.step()
        opt.step()
    for kind, other in others.items():
        theirs = [p for group in other.param_groups for p in group["params"]]
        assert all(map(torch.equal, used, theirs)), kind
        assert other.certificate() == opt.certificate()
        assert all(map(torch.equal, other.output(), opt.output()))
        assert other.progress == opt.progress


def test_a_closure_is_called_once_and_its_gradients_count():
    p = torch.nn.Parameter(torch.tensor([2.0, -1.0]))
    opt = o2nc.extend(optim.Adam([p], lr=0.1), average=0.9)
    calls = []

    def closure():
        calls.append(p.detach().clone())
        opt.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert opt.step(closure) == 5
    assert len(calls) == 1
    assert opt.certificate().gradient == pytest.approx(math.sqrt(20))


@pytest.mark.parametrize("when", ["before", "after"])
def test_schedulers(when):
    params, twins = parameters(), parameters()
    opt, plain = optim.AdamW(params, lr=0.1), optim.AdamW(twins, lr=0.1)
    make = optim.lr_scheduler.OneCycleLR
    if when == "before":
        schedule = make(opt, max_lr=0.1, total_steps=20)
    opt = o2nc.extend(opt, average=0.9)
    if when == "after":
        schedule = make(opt, max_lr=0.1, total_steps=20)
    other = make(plain, max_lr=0.1, total_steps=20)
    for t in range(1, 9):
        for o, s, ps in ((opt, schedule, params), (plain, other, twins)):
            set_gradients(ps, t)
            o.step()
            s.step()
    assert all(map(torch.equal, params, twins))
    assert opt.certificate().ess > 1


def test_hooks_run_once():
    seen = []
    params = parameters()
    opt = optim.AdamW(params)
    opt.register_step_pre_hook(lambda *_: seen.append("before"))
    o2nc.extend(opt, average=0.9).register_step_post_hook(lambda *_: seen.append("after"))
    set_gradients(params, 1)
    opt.step()
    assert seen == ["before", "after"]


def test_nothing_asked_for_changes_nothing():
    a, b = parameters(), parameters()
    opt = o2nc.extend(optim.AdamW(a))
    step_both((opt, a), (optim.AdamW(b), b), 3)
    with pytest.raises(RuntimeError, match=r"pass average=o2nc.Polynomial\(12\)"):
        opt.certificate()


@pytest.mark.parametrize("scaling", [None, o2nc.Exponential()], ids=["plain", "scaled"])
def test_averages_that_are_switched_off_are_put_away(scaling):
    a, b = parameters(), parameters()
    opt = o2nc.extend(optim.AdamW(a, lr=0.02), average=0.9, scaling=scaling, seed=4)
    alone = o2nc.random_scaling(optim.AdamW(b, lr=0.02), scaling, seed=4)
    for t in range(1, 7):
        if t == 4:
            opt.param_groups[0]["average"] = None
        step_once((opt, a), (alone, b), t)
    assert all(state.keys() == {"step", "exp_avg", "exp_avg_sq"} for state in opt.state.values())
    with pytest.raises(RuntimeError, match=r"pass average=o2nc.Polynomial\(12\)"):
        opt.certificate()


def test_what_is_not_wanted_is_not_kept():
    params = parameters()
    kept = {}
    for certificate in (True, False):
        for progress in (True, False):
            opt = o2nc.extend(optim.SGD(params, lr=0.1), average=0.9, certificate=certificate, progress=progress)
            steps(opt, params, 3)
            state = opt.state[params[0]]
            shaped = {key for key, v in state.items() if isinstance(v, torch.Tensor) and v.shape == params[0].shape}
            kept[certificate, progress] = shaped - {"output"}
            with opt.averaged():
                pass
            if not certificate:
                with pytest.raises(RuntimeError, match="certificate=True"):
                    opt.certificate()
            if not progress:
                with pytest.raises(RuntimeError, match="progress=True"):
                    _ = opt.progress
    assert kept == {
        (True, True): {"average", "gradient", "previous"},
        (True, False): {"average", "gradient"},
        (False, True): {"average", "previous"},
        (False, False): {"average"},
    }


def test_grad_scaler_overflow_consumes_nothing():
    p = torch.nn.Parameter(torch.ones(3))
    opt = o2nc.extend(optim.AdamW([p], lr=0.1, fused=True), average=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor, count in ((1.0, 1), (float("inf"), 1), (1.0, 2)):
        opt.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(opt)
        scaler.update()
        assert opt.param_groups[0]["scaling_step"] == count
        assert opt.certificate().gradient == pytest.approx(math.sqrt(3))  # unscaled
    assert opt.certificate().ess == pytest.approx(1 / float(weights(0.9, 2).square().sum()))


def test_a_parameter_without_a_gradient_now_and_then():
    params = parameters()
    opt = o2nc.extend(optim.Adam(params, lr=0.02), average=0.8)
    xs, gs = [], []
    for t in range(1, 12):
        set_gradients(params, t)
        if t % 3 == 0:
            params[0].grad = None
        xs.append(torch.cat([p.detach().flatten() for p in params]))
        gs.append(torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in params]))
        opt.step()
    p = weights(0.8, 11)
    xs, gs = torch.stack(xs), torch.stack(gs)
    assert opt.certificate().gradient == pytest.approx(float((p @ gs).norm()), rel=1e-10)
    with opt.averaged():
        torch.testing.assert_close(torch.cat([q.detach().flatten() for q in params]), p @ xs)


@pytest.mark.parametrize("name", ["NAdam", *EXTENDED])
def test_compiled_it_is_one_graph_and_the_same_run(name):
    def make():
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        if name in EXTENDED:
            return model, EXTENDED[name](model.parameters())
        return model, o2nc.extend(OPTIMIZERS[name](model.parameters()), average=o2nc.Polynomial(2))

    runs = []
    torch._dynamo.reset()
    for compiled in (False, True):
        model, opt = make()

        count = torch._dynamo.testing.CompileCounter()
        step = torch.compile(opt.step, backend=count, fullgraph=True) if compiled else opt.step
        for t in range(6):
            opt.zero_grad()
            model(torch.ones(2, 4)).abs().sum().backward()
            opt.param_groups[0]["lr"] = 0.1 / (t + 1)
            step()
        if compiled:
            assert count.frame_count == 1
        runs.append((model.weight.detach().clone(), opt.certificate()))
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda ps: o2nc.extend(o2nc.extend(optim.SGD(ps), average=0.9), average=0.9), ValueError, "already"),
        (lambda ps: o2nc.extend(o2nc.ScaledSGDM(ps), average=0.9), ValueError, "ScaledSGDM"),
        (lambda ps: o2nc.extend(optim.LBFGS(ps), average=0.9), ValueError, "several gradients per step"),
        (lambda ps: o2nc.extend(ps, average=0.9), TypeError, "optimizer must be"),
        (lambda ps: o2nc.extend(optim.SGD(ps), average=2), ValueError, "average must be"),
        (lambda ps: o2nc.extend(optim.SGD(ps), average=0.9, scaling=3), TypeError, "scaling"),
        (lambda ps: o2nc.extend(optim.SGD(ps), average=0.9, seed=1.5), TypeError, "seed"),
        (lambda ps: o2nc.extend(optim.SGD(ps), average=0.9, certificate=1), TypeError, "certificate"),
        (lambda ps: o2nc.extend(optim.SGD(ps, differentiable=True), average=0.9), ValueError, "differentiable"),
    ],
)
def test_bad_arguments(call, error, words):
    with pytest.raises(error, match=words):
        call(parameters())


def test_an_optimizer_that_uses_our_names_is_refused_and_left_alone():
    class Other(optim.SGD):
        def _move(self):
            """What would become ours."""

    opt = Other(parameters())
    with pytest.raises(ValueError, match=r"names of its own that extend needs: \['_move'\]"):
        o2nc.extend(opt, average=0.9)
    assert type(opt) is Other


@pytest.mark.parametrize("name", ["names", "output", "progress", "_watchers", "_eager_cache", "_observed"])
def test_names_that_an_optimizer_has_given_itself_count_as_well(name):
    opt = optim.SGD(parameters())
    setattr(opt, name, 0)
    before = dict(vars(opt))
    with pytest.raises(ValueError, match=rf"names of its own that extend needs: \['{name}'\]"):
        o2nc.extend(opt, average=0.9)
    assert vars(opt) == before


def test_all_that_is_set_on_an_optimizer_is_known_as_ours(device):
    found = set()
    for options in ({"average": 0.9}, {"average": 0.9, "offload": 2}):
        params = rig.begin(device)
        opt = Flaky(params)
        before = {*vars(opt), "fails"}
        o2nc.extend(opt, scaling=o2nc.Jitter(0.5), **options)
        for t in range(1, 4):
            attempt(opt, params, t)
        opt.fails = True
        with pytest.raises(MemoryError):
            opt.step()
        found |= vars(opt).keys() - before
    assert found | {"_clock"} == {*_KEPT}


def test_what_cannot_be_extended_can_be_later(monkeypatch):
    params = parameters()
    opt = optim.SGD(params, lr=0.1)
    before = dict(vars(opt))

    def refuse(self):
        raise ValueError("only a part")

    with monkeypatch.context() as patch:
        patch.setattr(Extended, "_refuse_partial", refuse)
        with pytest.raises(ValueError, match="only a part"):
            o2nc.extend(opt, average=0.9)
    assert vars(opt) == before
    steps(o2nc.extend(opt, average=0.9), params, 2)


def test_a_class_that_python_cannot_replace_is_refused_and_left_alone():
    class Base(abc.ABC, optim.Optimizer):
        """As some packages have it."""

    class Other(Base):
        def step(self, closure=None):
            """Do nothing."""

    opt = Other(parameters(), {"lr": 0.1})
    with pytest.raises(ValueError, match="laid out otherwise"):
        o2nc.extend(opt, average=0.9)
    assert type(opt) is Other
    assert "scaling" not in opt.param_groups[0]


@pytest.mark.parametrize("make", [lambda ps: o2nc.extend(optim.SGD(ps, lr=0.1), average=0.9), EXTENDED["AdamW"]])
def test_sparse_gradients_are_refused_and_nothing_is_done(make):
    table = torch.nn.Embedding(4, 2, sparse=True)
    opt = make(table.parameters())
    before = table.weight.detach().clone()
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        opt.step()
    assert torch.equal(before, table.weight)
    assert opt.param_groups[0]["scaling_step"] == 0


@pytest.mark.parametrize("failing", [1, 4])
@pytest.mark.parametrize(
    "options", [{"average": None}, {"average": 0.9}, {"average": 0.9, "offload": 3}], ids=["none", "beside", "host"]
)
@pytest.mark.parametrize("kernels", [False, True])
def test_a_step_that_fails_takes_its_iterate_in_once(kernels, options, failing, device, monkeypatch):
    if not kernels:
        monkeypatch.setattr(rig.engine, "DEVICES", ())
    runs = []
    for flaky in (False, True):
        params = rig.begin(device, torch.float64)
        opt = o2nc.extend(Flaky(params, lr=0.02), scaling=o2nc.Jitter(0.5), **options)
        for t in range(1, 8):
            opt.fails = flaky and t == failing
            attempt(opt, params, t)
        runs.append((opt, params))
    (a, xs), (b, ys) = runs
    assert all(map(torch.equal, xs, ys))
    rig.identical(rig.saved(a), rig.saved(b))


def test_after_a_failed_step_other_gradients_may_come():
    params = parameters()
    opt = o2nc.extend(Flaky(params, lr=0.02), average=0.9)
    opt.fails = True
    set_gradients(params, 1)
    with pytest.raises(MemoryError):
        opt.step()
    for t in range(1, 5):
        set_gradients(params, t)
        params[1].grad = None if t == 1 else params[1].grad
        opt.step()
        assert opt.param_groups[0]["average_averaged"] == t
    assert opt.certificate().gradient > 0


def test_after_a_failed_step_a_checkpoint_is_loaded():
    params = parameters()
    opt = o2nc.extend(Flaky(params, lr=0.02), average=0.9)
    steps(opt, params, 3)
    saved = copy.deepcopy(opt.state_dict())
    opt.fails = True
    with pytest.raises(MemoryError):
        opt.step()
    opt.load_state_dict(saved)
    steps(opt, params, 1, first=4)
    assert opt.param_groups[0]["average_averaged"] == 4


@pytest.mark.parametrize("make", [EXTENDED["AdamW"], lambda ps: o2nc.extend(optim.RAdam(ps), average=0.9)])
def test_before_the_first_step_there_is_nothing_to_ask_for(make):
    """And nothing is lost by having asked, saved or loaded."""
    params, twins = parameters(), parameters()
    opt, other = make(params), make(twins)
    for ask in (opt.certificate, opt.output, lambda: opt.averaged().__enter__(), lambda: opt.progress):
        with pytest.raises(RuntimeError, match=r"before the first step\(\)"):
            ask()
    assert not opt.state
    opt.load_state_dict(other.state_dict())
    step_both((opt, params), (other, twins), 3)
    assert opt.certificate() == other.certificate()


def test_an_optimizer_with_state_is_extended_from_its_next_step_on():
    params, twins = parameters(), parameters()
    opt, plain = optim.RAdam(params, lr=0.02), optim.RAdam(twins, lr=0.02)
    step_both((opt, params), (plain, twins), 4)
    o2nc.extend(opt, average=o2nc.Polynomial(3))
    with pytest.raises(RuntimeError, match=r"before the first step\(\)"):
        opt.certificate()
    xs, gs = steps(opt, params, 5, first=5)
    p = weights(o2nc.Polynomial(3), 5)
    assert opt.certificate().gradient == pytest.approx(float((p @ gs).norm()), rel=1e-10)
    with opt.averaged():
        torch.testing.assert_close(torch.cat([q.detach().flatten() for q in params]), p @ xs)


def test_a_start_beyond_the_run_is_said():
    params = parameters()
    opt = o2nc.AdamW(params, average=o2nc.Polynomial(12, start=100))
    steps(opt, params, 5)
    for ask in (opt.certificate, opt.output, lambda: opt.averaged().__enter__()):
        with pytest.raises(RuntimeError, match="begin after 100 steps"):
            ask()


def test_every_optimizer_of_torch_is_here():
    names = {name for name, cls in vars(optim).items() if inspect.isclass(cls) and issubclass(cls, optim.Optimizer)}
    here = {type(make(parameters())).__name__ for make in OPTIMIZERS.values()}
    assert names - {"Optimizer", "LBFGS", "SparseAdam"} <= here


@pytest.mark.some(5)
@pytest.mark.parametrize("name", ["SGD plain", "AdamW", "Rprop", "Adafactor", "Lion"])
@pytest.mark.parametrize("progress", [False, True])
def test_a_kernel_takes_the_iterates_in(name, progress, device):
    """The same averages as without, while the optimizer moves as it would alone."""
    shapes = [(5, 3), (4,)]
    runs = {}
    for fused in (False, True):
        params = rig.begin(device, torch.float64, shapes=shapes)
        opt = o2nc.extend(
            OPTIMIZERS[name](params), average=o2nc.Polynomial(3), scaling=o2nc.Jitter(0.5), progress=progress
        )
        if not fused:
            opt._engine.take = lambda step: "not here"
        for t in range(1, 9):
            rig.set_noise(params, t)
            if t in (4, 5):
                params[1].grad = None
            opt.step()
        assert isinstance(opt.param_groups[0]["scaling_step"], torch.Tensor) == fused
        runs[fused] = opt, params
    (a, xs), (b, ys) = runs.values()
    assert all(map(torch.equal, xs, ys))
    assert a.certificate().value == pytest.approx(b.certificate().value, rel=1e-10)
    if progress:
        assert a.progress == pytest.approx(b.progress, rel=1e-9)
    for x, y in zip(a.output(), b.output(), strict=True):
        torch.testing.assert_close(x, y)
    saved = b.state_dict()
    assert all(group["scaling_step"] == 8 for group in saved["param_groups"])
    for key, value in a.state_dict()["state"][0].items():
        torch.testing.assert_close(torch.as_tensor(saved["state"][0][key]), torch.as_tensor(value))


def test_a_log_of_an_extended_optimizer(tmp_path):
    params = parameters()
    opt = o2nc.extend(optim.RAdam(params), average=o2nc.Polynomial(3, start=2), progress=False)
    with o2nc.CertificateLogger(opt, tmp_path / "log.csv", every=1):
        steps(opt, params, 5)
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["3", "4", "5"]
    assert "nan" in rows[1]
    alone = o2nc.extend(optim.RAdam(params), average=0.9, certificate=False)
    with pytest.raises(ValueError, match="certificate=False"):
        o2nc.CertificateLogger(alone, tmp_path / "other.csv")
