"""Unusual use that once gave wrong numbers, half-done steps or obscure errors."""

import copy
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import o2nc
from o2nc import learners
from problem import delta_of


def zeros(*shape, dtype=torch.float32):
    return torch.nn.Parameter(torch.zeros(*shape, dtype=dtype))


@pytest.mark.parametrize("size", [2**14, 2**14 + 1])
def test_a_whole_group_without_gradients_for_one_step(size):
    """The layout of the averages must notice that another one was used in between."""
    a, b = zeros(4, dtype=torch.float64), zeros(size, dtype=torch.float64)
    opt = o2nc.ScaledSGDM([{"params": [a]}, {"params": [b]}], lr=0.1, momentum=0.9, average=0.8)
    xs = []
    for t in range(6):
        a.grad = torch.zeros_like(a)
        generator = torch.Generator().manual_seed(t)
        b.grad = None if t == 3 else torch.randn(size, generator=generator, dtype=torch.float64)
        xs.append(b.detach().numpy().copy())
        opt.step()
    p = 0.8 ** np.arange(5, -1, -1.0)
    p /= p.sum()
    x = np.array(xs)
    assert opt.certificate().spread == pytest.approx(p @ ((x - p @ x) ** 2).sum(1), rel=1e-11)


def test_state_that_is_reset_or_replaced_by_hand():
    a, b = zeros(2), zeros(2)
    opt = o2nc.ExponentiatedO2NC([a, b], learners.OGD(0.1), beta=0.9)
    for t in range(8):
        if t == 3:
            del opt.state[b]
        if t == 5:
            opt.state[a]["progress"] = torch.zeros((), dtype=torch.float64)
        a.grad, b.grad = torch.ones(2), torch.ones(2)
        opt.step()
    assert opt.certificate().by_parameter[1].spread > 0
    assert opt.state[a]["progress"] < 0


def test_conjugated_gradients():
    """Autograd hands back lazily conjugated gradients of complex parameters."""
    for make in (
        lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.9),
        lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(0.1)),
        lambda ps: o2nc.OriginalO2NC(ps, learners.OGD(0.1), period=1),
    ):
        a = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
        (a.conj() * (1 + 2j)).real.sum().backward()
        assert a.grad.is_conj()
        opt = make([a])
        opt.step()
        assert opt.certificate().gradient == pytest.approx(15**0.5, rel=1e-6)


def test_numpy_integers_as_seeds():
    a, b = zeros(3), zeros(3)
    opts = [o2nc.ScaledSGDM([a], lr=0.1, seed=np.int64(3)), o2nc.ScaledSGDM([b], lr=0.1, seed=3)]
    for _ in range(3):
        for opt, p in zip(opts, (a, b), strict=True):
            p.grad = torch.ones(3)
            opt.step()
    assert torch.equal(a, b)
    law = o2nc.Exponential()
    assert law.sample(np.uint64(7), np.int32(2)) == law.sample(7, 2)


class Sub(torch.optim.SGD):
    """Calls super().step(), which runs the hooks a second time once a torch.optim.SGD exists."""

    def step(self, closure=None):
        return super().step(closure)


def test_random_scaling_of_a_subclass_that_calls_super():
    torch.optim.SGD([zeros(1)])
    p = zeros(1)
    opt = o2nc.random_scaling(Sub([p], lr=1.0))
    for n in (1, 2):
        before = p.item()
        p.grad = torch.ones(1)
        opt.step()
        assert p.item() - before == pytest.approx(-o2nc.Exponential().sample(0, n + 1), rel=1e-6)
        assert opt.param_groups[0]["scaling_step"] == n


def test_random_scaling_and_a_closure_that_raises():
    p = zeros(1)
    opt = o2nc.random_scaling(torch.optim.Adam([p], lr=1.0))

    def closure():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opt.step(closure)
    assert opt.param_groups[0]["lr"] == 1.0
    assert opt.param_groups[0]["scaling_step"] == 0
    p.grad = torch.ones(1)
    opt.step()
    assert opt.param_groups[0]["lr"] == 1.0


def test_random_scaling_by_displacement():
    a, b = zeros(1), torch.nn.Parameter(torch.tensor([1.0, float("inf")]))
    a.grad, b.grad = torch.ones(1), torch.ones(2)
    a.requires_grad_(False)  # torch moves a frozen parameter that has a gradient left over
    o2nc.random_scaling(torch.optim.Rprop([a, b], lr=0.1)).step()
    s = o2nc.Exponential().sample(0, 2)
    assert a.item() == pytest.approx(-0.1 * s)
    assert b.tolist() == pytest.approx([1 - 0.1 * s, float("inf")])


def test_random_scaling_refuses_a_checkpoints_groups_and_leaves_the_optimizer_alone():
    p = zeros(1)
    plain = torch.optim.SGD([p], lr=1.0)
    plain.load_state_dict(o2nc.random_scaling(torch.optim.SGD([p], lr=1.0)).state_dict())
    with pytest.raises(ValueError, match="apply random_scaling first, then load"):
        o2nc.random_scaling(plain)
    assert type(plain) is torch.optim.SGD


def test_absent_gradients_are_zeros_to_the_learner():
    """Otherwise the joint sums lose their shares, and coin betting its promise Reg_n(0) <= ε."""
    params = [zeros(1, dtype=torch.float64) for _ in range(12)]
    opt = o2nc.OriginalO2NC(params, learners.CoinBetting(wealth=1.0), period=10**6)
    for p in params:
        for _ in range(11):
            opt.zero_grad()
            delta = delta_of(opt, p).item() if opt.state.get(p) else 0.0
            p.grad = torch.tensor([1.0 if delta > 0 else -1.0], dtype=torch.float64)
            opt.step()
    assert opt.progress <= 1.0

    results = []
    for absent in (None, torch.zeros(1)):
        a, b = zeros(1), zeros(1)
        opt = o2nc.ExponentiatedO2NC([a, b], learners.ScaleFree(0.1, diagonal=False), beta=0.9, scaling=None)
        for t in range(6):
            a.grad = torch.full((1,), 0.3)
            b.grad = torch.ones(1) if t < 3 else absent
            opt.step()
        results.append(delta_of(opt, a).item())
    assert results[0] == pytest.approx(results[1])


@pytest.mark.parametrize(
    "learner",
    [learners.BallOGD(0.1, 1.0), learners.FTRL(0.1, radius=1.0), learners.CoinBetting(), learners.BallAdaGrad(0.1)],
    ids=str,
)
def test_gradients_whose_squares_overflow(learner):
    p = zeros(10)
    opt = o2nc.ExponentiatedO2NC([p], learner, scaling=None)
    for size in (0.1, 1e20, 0.1):
        p.grad = torch.full((10,), size)
        opt.step()
    assert p.isfinite().all()
    assert (p < 0).all()


def test_hooks_of_load_state_dict():
    p = zeros(2)
    opt, other = (o2nc.ScaledSGDM([p], lr=0.1, average=0.9) for _ in range(2))
    for _ in range(2):
        p.grad = torch.ones(2)
        opt.step()
    seen = []

    def before(_, saved):
        seen.append(saved["param_groups"][0]["scaling"])
        saved = copy.deepcopy(saved)
        saved["state"][0]["average"].fill_(7)
        return saved

    other.register_load_state_dict_pre_hook(before)
    other.register_load_state_dict_post_hook(lambda opt: opt.state[p]["spread"].fill_(3))
    other.load_state_dict(opt.state_dict())
    assert seen == [{"__name__": "Exponential", "rate": 1.0}]
    assert other.state[p]["average"].tolist() == [7, 7]
    assert other.state[p]["spread"] == 3
    other.load_state_dict(opt.state_dict())
    assert len(seen) == 2  # the hooks are still there


@dataclass(frozen=True)
class Clip:
    """A learner that holds another, has a field called name and one that the constructor does not take."""

    base: learners.OGD
    name: str = "mine"
    derived: float = field(default=1.0, init=False)

    @property
    def lr(self):
        return self.base.lr

    def init(self, delta):
        return self.base.init(delta)

    def update(self, deltas, grads, states, lrs, beta):
        self.base.update(deltas, [g.clamp(-1, 1) for g in grads], states, lrs, beta)


def test_checkpoints_of_nested_factors_and_of_notes_in_groups():
    make = lambda: o2nc.ExponentiatedO2NC(  # noqa: E731
        [{"params": [zeros(2)], "tag": {"__name__": "encoder"}}], Clip(learners.OGD(0.1, decay=0.5))
    )
    opt, other = make(), make()
    other.load_state_dict(opt.state_dict())
    assert other.param_groups[0]["learner"] == Clip(learners.OGD(0.1, decay=0.5))
    assert other.param_groups[0]["tag"] == {"__name__": "encoder"}


def test_a_checkpoint_in_another_order():
    a, b = zeros(3), zeros(5)
    opt = o2nc.ScaledSGDM([a, b], lr=0.1, average=0.9)
    a.grad, b.grad = torch.ones(3), torch.ones(5)
    opt.step()
    other = o2nc.ScaledSGDM([b, a], lr=0.1, average=0.9)
    with pytest.raises(ValueError, match="another order"):
        other.load_state_dict(opt.state_dict())
    assert not other.state


def test_names_that_repeat():
    modules = [torch.nn.Linear(2, 2) for _ in range(2)]
    opt = o2nc.ScaledSGDM([{"params": list(m.named_parameters())} for m in modules], average=0.9)
    for m in modules:
        for p in m.parameters():
            p.grad = torch.ones_like(p)
    opt.step()
    parts = opt.certificate().by_parameter
    assert list(parts) == ["weight", "bias", 2, 3]
    assert sum(c.gradient**2 for c in parts.values()) == pytest.approx(12)


def test_nesterov_without_momentum():
    p = zeros(2)
    opt = o2nc.ScaledSGDM([p], lr=0.1, momentum=0.9, nesterov=True, average=0.9, scaling=None)
    opt.param_groups[0]["momentum"] = 0
    p.grad = torch.ones(2)
    opt.step()
    assert p.tolist() == pytest.approx([-0.1, -0.1])


def test_restart_reaches_absent_parameters():
    a, b = zeros(2), zeros(2)
    opt = o2nc.OriginalO2NC([a, b], learners.FTRL(0.1, radius=1.0), period=2, restart=True)
    for t in range(2):
        a.grad, b.grad = torch.ones(2), None if t else torch.ones(2)
        opt.step()
    assert opt.state[b]["momentum"].tolist() == [0, 0]


def test_a_block_forgets_infinities():
    p = zeros(2)
    opt = o2nc.OriginalO2NC([p], learners.BallOGD(0.1, 1.0), period=2, restart=True)
    for t in range(6):
        p.grad = torch.full((2,), float("inf") if t == 1 else 1.0)
        opt.step()
        with torch.no_grad():
            p.nan_to_num_()
    assert np.isfinite(opt.certificate().value)


def test_laws_at_the_edge():
    law = o2nc.Gamma(0.01)
    assert all(np.isfinite(law.weight(law.sample(0, n))) for n in range(1, 3000))
    torch.set_flush_denormal(True)  # as some versions of torch's compiler do
    try:
        assert np.isfinite(law.weight(0.0))
    finally:
        torch.set_flush_denormal(False)
    with torch.device("meta"):
        assert o2nc.Gamma(1.5).weight(0.3) > 0
    with pytest.raises(ValueError, match="shape"):
        o2nc.Weibull(0.005)


def test_averaged_restores_the_others_when_one_cannot_be():
    a, b = zeros(2), zeros(2)
    opt = o2nc.ScaledSGDM([a, b], lr=0.1, average=0.9)
    for _ in range(3):
        a.grad, b.grad = torch.ones(2), torch.ones(2)
        opt.step()
    before = b.detach().clone()
    with pytest.raises(RuntimeError), opt.averaged():
        a.data = torch.zeros(5)
    assert torch.equal(b, before)
    a.data, a.grad = torch.zeros(2), torch.ones(2)
    opt.step()


def test_averages_that_begin_in_mid_run():
    p = zeros(2)
    opt = o2nc.ExponentiatedO2NC([p], learners.OGD(0.1), average=False)
    for t in range(6):
        if t == 3:
            opt.param_groups[0]["average"] = 0.9
        p.grad = torch.ones(2)
        opt.step()
    assert opt.certificate().gradient == pytest.approx(2**0.5)
