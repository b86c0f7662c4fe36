"""output() and progress of the paper's optimizers: laws and sums; `o2nc paper verify` has the expectation."""

import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
import twin
from o2nc import learners
from o2nc.averages.reading import has_averages
from problem import flat
from registry import PAPER, build, step

MAKERS = {
    "ScaledSGDM": lambda ps, beta, **options: o2nc.ScaledSGDM(ps, lr=0.0, momentum=beta, average=beta, **options),
    "OGD": lambda ps, beta, **options: o2nc.ExponentiatedO2NC(ps, learners.OGD(0.0), beta=beta, **options),
    "every second": lambda ps, beta, **options: o2nc.ScaledSGDM(
        ps, lr=0.0, average=o2nc.Discount(beta**0.5, start=3, every=2), **options
    ),
    "Algorithm 1": lambda ps, beta, seed, output: o2nc.OriginalO2NC(ps, learners.OGD(0.0), period=2, seed=seed),
}


def geometric(beta, steps):
    """P(n) = (1 − β^n)/N for n < N, and (1 − β^N)/((1 − β)N) for n = N."""
    found = [(1 - beta**n) / steps for n in range(1, steps)]
    return [*found, (1 - beta**steps) / ((1 - beta) * steps)]


def drawn(make, beta, count, steps, **options):
    """Return the number of the average that is the output: x_t = t, so that x̄_n tells n."""
    p = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt = make([p], beta, **options)
    means = []
    for t in range(1, steps + 1):
        with torch.no_grad():
            p.fill_(float(t))
        step(opt, 0.0)
        if has_averages(opt):
            with opt.averaged():
                means += [p.item()] if p.item() not in means else []
    assert len(means) == count
    return means.index(opt.output()[0].item()) + 1


@pytest.mark.parametrize("output", ["uniform", "geometric"])
@pytest.mark.parametrize("kind", MAKERS)
def test_the_output_follows_its_law(kind, output):
    if kind == "Algorithm 1" and output == "geometric":
        pytest.skip("uniform over blocks")
    beta, count, runs = 0.7, 6, 400
    steps = {"every second": 3 + 2 * count, "Algorithm 1": 2 * count}.get(kind, count)
    counts = np.zeros(count)
    for seed in range(runs):
        counts[drawn(MAKERS[kind], beta, count, steps, seed=seed, output=output) - 1] += 1
    uniform = np.full(count, runs / count)
    wanted = uniform if output == "uniform" else runs * np.array(geometric(beta, count))
    assert wanted.sum() == pytest.approx(runs)
    # χ² with 5 degrees of freedom: above 20.5 in one of a thousand
    assert ((counts - wanted) ** 2 / wanted).sum() < 20.5
    assert output == "uniform" or ((counts - uniform) ** 2 / uniform).sum() > 60


@pytest.mark.parametrize("name", [name for name in (*PAPER, "ScaledSGDM geometric") if name != "OriginalO2NC"])
@pytest.mark.parametrize("seed", range(3))
def test_the_output_is_a_copy_of_the_average_of_a_step(name, seed, device):
    """Also of parameters that were absent then; kernels draw the same step."""
    found = []
    for fused in (False, True):
        params = rig.begin(device, shapes=[(3,), (5,), (2,)])
        opt = build(
            name.split(" geo")[0], params, fused, seed=seed, **{"output": "geometric"} if "geo" in name else {}
        )
        xs, candidates = [], []
        for t in range(1, 10):
            rig.set_noise(params, t, [i for i in (1, 2) if t % 3 == i])
            xs.append(flat([p.cpu() for p in params]))
            opt.step()
            candidates.append(twin.weights(0.9, t) @ np.array(xs))
        kept = flat([o.cpu() for o in opt.output()])
        distances = [np.abs(kept - c).max() for c in candidates]
        assert min(distances) < 1e-12
        found.append(np.argmin(distances))
        assert [o.shape for o in opt.output()] == [p.shape for p in params]
        opt.output()[0].zero_()
        assert opt.output()[0].abs().sum() > 0
    assert found[0] == found[1]


# --- the progress


# as a schedule moves them; with Nesterov and without momentum Δ is not told by the buffer
MOMENTA = {4: {"momentum": 0.7}, 6: {"momentum": 0.9, "nesterov": True}, 9: {"momentum": 0.0, "nesterov": False}}


@pytest.mark.some(16)
@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize(
    "law", [o2nc.Exponential(), o2nc.Exponential(2.0), o2nc.Uniform(0, 2), o2nc.Gamma(16)], ids=str
)
@pytest.mark.parametrize("name", [name for name in PAPER if name != "OriginalO2NC"])
def test_progress_is_its_sum(name, law, fused, device):
    """Σ w(s_t)⟨g_t, Δ_t⟩ with Δ = (x_{t+1} − x_t)/s; g is of F + (λ/2)‖x‖² for SGD; zero after a gap."""
    params = rig.begin(device, shapes=[(3, 2), (1025,), (4,)])
    opt = build(name, params, fused, scaling=law, seed=1)
    decay = opt.param_groups[0]["weight_decay"] if opt.couples_decay else 0.0
    xs, gs = [], []
    for t in range(1, 13):
        if "ScaledSGDM" in name:
            opt.param_groups[0].update(MOMENTA.get(t, {}) | {"lr": 0.1 / t})
        rig.set_noise(params, t, {3: [1], 4: [1], 5: [0, 1], 7: [0], 9: [1]}.get(t, []))
        xs.append([p.detach().cpu().clone() for p in params])
        gs.append([None if p.grad is None else p.grad.cpu() + decay * p.detach().cpu() for p in params])
        opt.step()
    exact = 0.0
    for t in range(2, 13):
        s = law.sample(1, t)
        weight = law.weight(s) if getattr(law, "estimates", True) else law.mean
        for x, y, g in zip(xs[t - 2], xs[t - 1], gs[t - 1], strict=True):
            exact += 0.0 if g is None else weight / s * float((g * (y - x)).sum())
    assert opt.progress == pytest.approx(exact, rel=1e-8)
