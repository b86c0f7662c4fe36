"""When kernels take the step, and what is said when they cannot."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

import fused_device as rig
import o2nc
from o2nc.fused import engine
from o2nc.fused.rule import DeviceRule, Layout, Rule, Scalars
from o2nc.optimizers.base import Averaged
from registry import OwnFactor, OwnWindow, step

OGD = rig.LEARNERS[0]
NOTHING, AVERAGES, ALL = "nothing", "averages", "all"
PLAIN, AVERAGED, BOTH = {"scaling": None}, {"average": 0.9}, {"scaling": None, "average": 0.9}
OF_OGD, FUSED = {"learner": OGD}, {"fused": True}
# of each class what kernels take, and with which options
CHOICES = [
    (o2nc.ScaledSGDM, ALL, {}, FUSED, AVERAGED, BOTH | FUSED),
    (o2nc.ScaledSGDM, NOTHING, {"fused": False}, {"foreach": True}, {"foreach": False}, PLAIN, PLAIN | FUSED, BOTH),
    (o2nc.SGD, ALL, AVERAGED | {"scaling": o2nc.Gamma(16)}),
    (o2nc.SGD, AVERAGES, AVERAGED),
    (o2nc.SGD, NOTHING, {}, FUSED, AVERAGED | {"offload": True}),
    (o2nc.AdamW, ALL, FUSED, AVERAGED),
    (o2nc.AdamW, AVERAGES, AVERAGED | {"foreach": True}, AVERAGED | {"fused": False}),
    (o2nc.AdamW, NOTHING, {}, AVERAGED | FUSED | {"offload": True}),
    (o2nc.ExponentiatedO2NC, ALL, OF_OGD, OF_OGD | FUSED),
    (o2nc.ExponentiatedO2NC, NOTHING, OF_OGD | {"fused": False}),
    (o2nc.OriginalO2NC, NOTHING, OF_OGD | {"period": 2}),
]
CASES = [(cls, taken, arguments) for cls, taken, *each in CHOICES for arguments in each]


@pytest.mark.parametrize(("cls", "taken", "arguments"), CASES, ids=str)
def test_what_kernels_take(device, cls, taken, arguments):
    """fused=None has kernels take what they can; without a law SGD's step is torch's own."""
    opt = rig.advance(cls(rig.begin(device), **arguments), (1, 2))
    assert rig.is_fused(opt) == (taken is not NOTHING)
    if rig.is_fused(opt):
        assert opt._engine.tables.rule.moves == (taken is ALL)


def test_adamw_has_the_bits_of_torchs_fused_step_from_the_first_one_on(device):
    """With fused=None, too, and in steps that a late parameter makes eager."""
    runs = []
    for fused in (None, True):
        opt = rig.CASES["AdamW"](rig.begin(device, torch.float32, shapes=rig.FEW), fused=fused)
        for t in range(1, 6):
            rig.advance(opt, [t], missing=[1] if t < 4 else [])
            assert rig.is_fused(opt) == (t not in (1, 4))
            assert opt.param_groups[0]["fused"] is fused
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


def test_a_differentiable_step_is_torchs_own(device):
    params = [p.clone() for p in rig.begin(device)]  # autograd refuses an in-place step on a leaf
    opt = rig.advance(o2nc.ScaledSGDM(params, momentum=0.9, differentiable=True), (1, 2))
    assert not rig.is_fused(opt)


REFUSALS = {
    "gaps": ("views with gaps", lambda ps, fused: o2nc.ScaledSGDM(ps, fused=fused)),
    "complex parameters": ("complex", lambda ps, fused: o2nc.ScaledSGDM(ps, fused=fused)),
    "Gamma": ("law Gamma", lambda ps, fused: o2nc.ScaledSGDM(ps, scaling=o2nc.Gamma(0.5), fused=fused)),
    "a law of one's own": ("law OwnFactor", lambda ps, fused: o2nc.ScaledSGDM(ps, scaling=OwnFactor(), fused=fused)),
    "a window of one's own": ("OwnWindow", lambda ps, fused: o2nc.AdamW(ps, average=OwnWindow(), fused=fused)),
    "a learner of one's own": ("no device form", lambda ps, fused: rig.algorithm_2(ps, OwnFactor(), fused)),
    "a joint norm": ("joint norm", lambda ps, fused: rig.algorithm_2(ps, o2nc.learners.CoinBetting(), fused)),
}


@pytest.mark.parametrize(("reason", "make"), REFUSALS.values(), ids=REFUSALS)
def test_what_has_no_device_form(device, reason, make):
    """fused=True says why, and nothing has changed; fused=None does without."""
    dtype = torch.complex128 if reason == "complex" else torch.float64
    params, others, before = (rig.begin(device, dtype) for _ in range(3))
    if "gaps" in reason:
        for p in (*params, *others):
            p.data = torch.stack([p.data, p.data], -1)[..., 0]
    demanding = make(params, True)
    with pytest.raises(RuntimeError, match=f"fused=True, but the fused step cannot be taken: .*{reason}"):
        rig.advance(demanding, [1])
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert int(demanding.param_groups[0]["o2nc"]["step"]) == 0
    willing, plain = make(params, None), make(others, False)
    for opt in (willing, plain):
        rig.advance(opt, (1, 2, 3))
        assert not rig.is_fused(opt)
    rig.agree(*({str(i): torch.view_as_real(p + 0j) for i, p in enumerate(ps)} for ps in (params, others)))


class Mine(Averaged, torch.optim.SGD):
    """An optimizer of one's own, with a device form that is not bitwise its step."""

    is_linear_in_lr = True
    device_rule = DeviceRule("mine:rule")


def test_a_device_form_that_is_demanded_and_cannot_move(device):
    """Issue: fused=True was ignored without a word."""
    with pytest.raises(RuntimeError, match="form of Mine is not bitwise its own step, and moves only where"):
        rig.advance(Mine(rig.begin(device), lr=0.1, average=0.9, fused=True), [1])


@pytest.fixture
def given(monkeypatch):
    """Let the module of a device form have a function that returns this rule."""
    return lambda rule: monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(rule=lambda: rule))


class Plain(torch.optim.Optimizer):
    """Descends, with none of torch's options, and counts by an integer."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p]["step"] = self.state[p].get("step", 0) + 1
            p.sub_(self.param_groups[0]["lr"] * p.grad)


@pytest.mark.parametrize("is_bitwise", [True, False])
def test_a_device_form_of_a_rule_without_torchs_options(device, given, is_bitwise):
    """Its first step is its own, as every optimizer's."""
    from o2nc.fused.rules import sgd

    numbers = lambda group: Scalars(1.0, 0.0, group["lr"], 0.0, 0.0)  # noqa: E731
    given(Rule(sgd.sgd_coefficients, 2, lambda group: Layout(sgd.plain_update, ()), numbers))
    own = {"is_linear_in_lr": True, "device_rule": DeviceRule("mine:rule", is_bitwise=is_bitwise)}
    params, others = rig.begin(device), rig.begin(device)
    shared = {"average": 0.9, "scaling": o2nc.Jitter(0.5)}
    opt = rig.advance(type("Own", (Averaged, Plain), own)(params, **shared), [1, 2, 3])
    assert rig.is_fused(opt)
    plain = rig.advance(o2nc.extend(Plain(others), **shared), [1, 2, 3])
    assert all(map(torch.allclose, params, others))
    assert int(plain.param_groups[0]["o2nc"]["step"]) == 3


def test_a_slot_that_no_step_creates(device, given):
    """Issue: with a slot that is misspelt every step was the optimizer's own, without a word."""
    from o2nc.fused.rules import sgd

    layout = Layout(sgd.momentum_update, ("mometum_buffer",))
    given(Rule(sgd.sgd_coefficients, 2, lambda group: layout, sgd._scalars))
    params = rig.begin(device)
    opt = rig.advance(Mine(params, lr=0.1, momentum=0.9, scaling=o2nc.Exponential()), [1])
    before = [p.detach().clone() for p in params]
    words = r"mine:rule works on state \['mometum_buffer'\], which no step creates: .* has \['momentum_buffer'\]"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=words):
            rig.advance(opt, [2])
    assert all(map(torch.equal, params, before))


def test_some_parameters_elsewhere(monkeypatch):
    here, elsewhere = ("cuda", "cpu") if rig.CUDA else ("cpu", "meta")
    monkeypatch.setattr(engine, "DEVICES", (here,))
    params = [torch.nn.Parameter(torch.ones(3, device=place)) for place in (here, elsewhere)]
    for make in (rig.CASES["ScaledSGDM"], rig.CASES["ScaleFree"]):
        with pytest.raises(RuntimeError, match=f"some parameters are on {elsewhere}"):
            step(make(params), 1.0)
        assert torch.equal(params[0], torch.ones_like(params[0]))


def test_a_processor_is_no_gpu():
    """fused=True of Algorithm 2 says so where there is no GPU; torch's optimizers have a fused step there."""
    params = rig.begin("cpu")
    with pytest.raises(RuntimeError, match="cpu"):
        rig.advance(rig.algorithm_2(params, OGD), [1])
    for opt in (rig.sgdm(params, momentum=0.9), o2nc.AdamW(params, fused=True, average=0.9)):
        rig.advance(opt, [1, 2])
        assert opt._engine.tables is None


TRITONS = {
    None: r"Triton, which is not installed \(pip install triton\)",
    "3.2.0": r"needs Triton 3\.3 or later, and 3\.2\.0 is installed",
}


@pytest.mark.parametrize("version", TRITONS)
def test_without_triton_or_with_an_old_one(device, monkeypatch, version):
    """fused=True says so, fused=None does without."""
    import triton

    find = importlib.util.find_spec
    if version is None:
        there = lambda name, *a: (name != "triton" and find(name, *a)) or None  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", there)
    else:
        monkeypatch.setattr(triton, "__version__", version)
    params, others = rig.begin(device), rig.begin(device)
    for make in (rig.CASES["ScaledSGDM"], rig.CASES["ScaleFree"]):
        rig.set_noise(params, 1)
        with pytest.raises(RuntimeError, match=TRITONS[version]):
            make(params).step()
    rig.advance(o2nc.ScaledSGDM(params, momentum=0.9), (1, 2))
    rig.advance(o2nc.ScaledSGDM(others, momentum=0.9, foreach=True), (1, 2))
    rig.agree(*({str(i): p.detach() for i, p in enumerate(ps)} for ps in (params, others)))
