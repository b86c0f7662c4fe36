"""Weight decay and maximisation with online learners, and learners that keep no Δ, against their formulas."""

import pytest
import torch

import fused_device as rig
import o2nc
from o2nc import learners
from problem import delta_of

LR, DECAY, BETA = 0.05, 0.3, 0.9
LEARNERS = [
    learners.OGD(LR),
    learners.BallOGD(LR, radius=0.02),
    learners.AdaGrad(LR, diagonal=True),
    learners.FTRL(LR, radius=0.1),
    learners.ScaleFree(LR),
    learners.ScaleFree(LR, radius=0.1, beta2=0.97),
    learners.ScaleFree(LR, diagonal=False, beta2=0.97),
    learners.CoinBetting(wealth=0.5, lipschitz=20.0),
]


def gradients(steps, sizes, seed=0):
    chance = torch.Generator().manual_seed(seed)
    return [[torch.randn(size, generator=chance, dtype=torch.float64) for size in sizes] for _ in range(steps)]


def twin(learner, xs, gs, law, seed, decay, sign):
    """Return iterates and Σ⟨g, Δ⟩ of x ← x + s(Δ − lr·λx), written out; g is what the learner is given."""
    xs = [x.clone() for x in xs]
    deltas = [torch.zeros_like(x) for x in xs]
    states = [learner.init(delta) for delta in deltas]
    whole = [torch.zeros_like(x) for x in xs]
    progress = 0.0
    for t, g in enumerate(gs, 1):
        g = [sign * part for part in g]
        # Exp(1) has weight 1: the progress is Σ⟨g_t, Δ_t⟩ with all that was added, decay included
        progress += float(sum((part * d).sum() for part, d in zip(g, whole, strict=True)))
        learner.update(deltas, g, states, [learner.lr] * len(xs), BETA)
        whole = [delta - learner.lr * decay * x for delta, x in zip(deltas, xs, strict=True)]
        s = law.sample(seed, t + 1)
        xs = [x + s * d for x, d in zip(xs, whole, strict=True)]
    return xs, progress


@pytest.mark.some(12)
@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_the_step_is_written_out(learner, decay, maximize, fused, device):
    place = device if fused else "cpu"
    params = rig.begin(place, torch.float64, shapes=[(5, 3), (4,)])
    law, steps = o2nc.Exponential(), 15
    options = {"beta": BETA, "seed": 7, "weight_decay": decay, "maximize": maximize, "fused": fused}
    opt = o2nc.ExponentiatedO2NC(params, learner, scaling=law, average=0.8, **options)
    gs = gradients(steps, [p.shape for p in params])
    begin = [p.detach().cpu().clone() for p in params]
    for g in gs:
        for p, part in zip(params, g, strict=True):
            p.grad = part.to(p.device)
        opt.step()
    assert rig.is_fused(opt) == fused
    xs, progress = twin(learner, begin, gs, law, 7, decay, -1.0 if maximize else 1.0)
    for p, x in zip(params, xs, strict=True):
        torch.testing.assert_close(p.detach().cpu(), x, rtol=1e-10, atol=1e-12)
    assert opt.progress == pytest.approx(progress, rel=1e-9, abs=1e-11)
    mean = [torch.zeros_like(part) for part in gs[0]]
    for n, g in enumerate(gs, 1):  # ḡ is of what the learner saw, without the decay
        gamma = (1 - 0.8) / (1 - 0.8**n)
        mean = [m + gamma * ((-part if maximize else part) - m) for m, part in zip(mean, g, strict=True)]
    norm = sum(float(m.square().sum()) for m in mean) ** 0.5
    assert opt.certificate(1.0).gradient == pytest.approx(norm, rel=1e-9)


def test_scale_free_replaces_adamw():
    """β₁ = β, β₂ its own, decay and all: ``ScaleFree`` is AdamW without ε and without bias correction."""
    x = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))
    y = x.detach().clone()
    lr, decay, beta1, beta2 = 0.01, 0.1, 0.9, 0.95
    scale = ((1 - beta2) ** 0.5) / (1 - beta1)  # Adam's m and v have their 1 − β inside
    learner = learners.ScaleFree(lr / scale, beta2=beta2)
    opt = o2nc.ExponentiatedO2NC(
        [x], learner, beta=beta1, scaling=None, weight_decay=decay * scale, average=o2nc.Polynomial(12)
    )
    m, v = torch.zeros_like(y), torch.zeros_like(y)
    for (g,) in gradients(40, [(6,)]):
        x.grad = g
        opt.step()
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        y = y - lr * decay * y - lr * m / v.sqrt()
    torch.testing.assert_close(x.detach(), y, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
def test_scale_free_keeps_two_buffers(fused, device):
    (p,) = rig.begin(device if fused else "cpu", torch.float32, shapes=[(50, 20)])
    opt = o2nc.ExponentiatedO2NC([p], learners.ScaleFree(LR), average=False, fused=fused)
    rig.advance(opt, [p], range(1, 4))
    shaped = [key for key, value in opt.state[p].items() if getattr(value, "shape", ()) == p.shape]
    assert sorted(shaped) == ["momentum", "sum_squares"]
    whole = o2nc.ExponentiatedO2NC([p], learners.ScaleFree(LR), fused=fused)
    rig.advance(whole, [p], range(1, 4))
    shaped = [key for key, value in whole.state[p].items() if getattr(value, "shape", ()) == p.shape]
    assert sorted(shaped) == ["average", "gradient", "momentum", "output", "sum_squares"]  # the output on the host


@pytest.mark.parametrize("radius", [float("inf"), 0.1])
def test_checkpoints_that_have_the_update_go_on(radius):
    """One of before Δ was left out: the same iterates to the bit, the same progress."""
    ours, theirs = (rig.begin("cpu", torch.float64) for _ in range(2))
    learner = learners.ScaleFree(LR, radius=radius)
    opt, other = (o2nc.ExponentiatedO2NC(ps, learner, beta=BETA) for ps in (ours, theirs))
    for step in range(1, 5):
        for o, ps in ((opt, ours), (other, theirs)):
            rig.set_noise(ps, step)
            o.step()
    saved = opt.state_dict()
    for state, p in zip(saved["state"].values(), ours, strict=True):
        state["delta"] = delta_of(opt, p).clone()
        del state["lead"]
    loaded = o2nc.ExponentiatedO2NC(ours, learner, beta=BETA)
    loaded.load_state_dict(saved)
    for step in range(5, 9):
        for o, ps in ((loaded, ours), (other, theirs)):
            rig.set_noise(ps, step)
            o.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert loaded.progress == pytest.approx(other.progress, rel=1e-12)
    assert all("delta" not in state for state in loaded.state.values())


def test_groups_have_a_decay_of_their_own():
    x, y = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    groups = [{"params": [x]}, {"params": [y], "weight_decay": 0.0}]
    opt = o2nc.ExponentiatedO2NC(groups, learners.OGD(0.1), scaling=None, weight_decay=0.5)
    for p in (x, y):
        p.grad = torch.zeros(3)
    opt.step()
    assert torch.equal(y, torch.ones(3))
    torch.testing.assert_close(x.detach(), torch.full((3,), 0.95))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"weight_decay": -1}, ValueError),
        ({"weight_decay": float("nan")}, ValueError),
        ({"maximize": 1}, TypeError),
    ],
)
def test_bad_input(options, error):
    with pytest.raises(error, match=next(iter(options))):
        o2nc.ExponentiatedO2NC([torch.nn.Parameter(torch.ones(2))], learners.OGD(0.1), **options)


def test_maximize_is_one_for_all_groups():
    groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "maximize": True}]
    with pytest.raises(ValueError, match="maximize is one for all"):
        o2nc.ExponentiatedO2NC(groups, learners.OGD(0.1))
