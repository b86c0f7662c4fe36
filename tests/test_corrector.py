"""The corrector's price along a run: the logger's numbers against all iterates of the run, in float64."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

import o2nc
from logged import read
from o2nc.integrations.matplotlib import plot
from o2nc.learners import OGD, BallOGD, ScaleFree
from o2nc.logger import CertificateLogger

pytestmark = pytest.mark.usefixtures("one_thread")

LAW = o2nc.Gamma(4.0)
OPTIMIZERS = {
    "sgdm": lambda ps: o2nc.ScaledSGDM(ps, lr=0.05, momentum=0.9, average=0.9, scaling=LAW, seed=3),
    "sgdm, weight decay": lambda ps: o2nc.ScaledSGDM(
        ps, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1, average=0.99, scaling=o2nc.Jitter(0.5)
    ),
    "ogd": lambda ps: o2nc.ExponentiatedO2NC(ps, OGD(lr=0.05, decay=0.3), beta=0.9, scaling=LAW, seed=5),
    "scale-free": lambda ps: o2nc.ExponentiatedO2NC(ps, ScaleFree(lr=0.02), scaling=LAW, weight_decay=0.1),
    "adamw": lambda ps: o2nc.AdamW(ps, lr=0.02, average=o2nc.Polynomial(3), scaling=LAW, seed=2),
    "extended": lambda ps: o2nc.extend(torch.optim.Adam(ps, lr=0.02), average=0.9, scaling=LAW, seed=9),
    "of mean 2": lambda ps: o2nc.ScaledSGDM(ps, lr=0.05, momentum=0.9, average=0.9, scaling=o2nc.Gamma(4.0, 0.5)),
}


def run(name, steps, **options):
    """A run in float64 with a log: the logger's rows; every x, and every gradient's norm."""
    ps = [torch.nn.Parameter(torch.linspace(-1, 1, n, dtype=torch.float64)) for n in (5, 3)]
    opt = OPTIMIZERS[name](ps)
    flat = lambda xs: torch.cat([x.detach().flatten() for x in xs]).numpy().copy()  # noqa: E731
    points, norms = [flat(ps)], [0.0]
    with CertificateLogger(opt, **options) as log:
        for t in range(steps):
            noise = torch.Generator().manual_seed(t)
            for p in ps:
                p.grad = p.detach().sign() + torch.randn(p.shape, dtype=p.dtype, generator=noise)
            norms.append(np.linalg.norm(flat([p.grad for p in ps])))
            opt.step()
            points.append(flat(ps))
    return opt, read(log.path), np.array(points), norms


def changes(opt, points):
    """E s·‖Δ_{t+1} − Δ_t‖ by t, from the text: Δ_{t+1} = (x_{t+1} − x_t)/s_{t+1}, and s_{t+1} moves in call t."""
    group = opt._groups[0]
    law, seed = group["scaling"], group["seed"]
    deltas = [(points[t] - points[t - 1]) / law.sample(seed, t + 1) for t in range(1, len(points))]
    return {t + 2: law.mean * np.linalg.norm(b - a) for t, (a, b) in enumerate(pairwise(deltas))}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_is_measured_if_every_step_is_logged(name, tmp_path):
    opt, rows, points, norms = run(name, 12, path=tmp_path / "c.csv", every=1, corrector=True)
    price, known = opt._groups[0]["scaling"].price, changes(opt, points)
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [math.isnan(row["corrector"]) for row in rows] == [True, True, *[False] * 10]  # three iterates are needed
    for row in rows[2:]:
        step = int(row["step"])
        assert row["lipschitz"] == pytest.approx(max(norms[3 : step + 1]))
        assert row["corrector"] == pytest.approx(row["lipschitz"] * price * known[step], rel=1e-7)


@pytest.mark.parametrize("name", ["sgdm", "adamw", "extended"])
@pytest.mark.parametrize("every", [2, 3, 7])
def test_one_step_of_every_window_is_measured(name, every, tmp_path):
    opt, rows, points, _ = run(name, 43, path=tmp_path / "c.csv", every=every, corrector=2.5)
    price, known = opt._groups[0]["scaling"].price, changes(opt, points)
    places = []
    for row in rows[1:]:
        assert row["lipschitz"] == 2.5
        near = {t: 2.5 * price * known[t] for t in range(int(row["step"]) - every + 1, int(row["step"]) + 1)}
        places.append(min(near, key=lambda t: abs(near[t] - row["corrector"])))
        assert row["corrector"] == pytest.approx(near[places[-1]], rel=1e-7)
    assert len({place % every for place in places}) > 1  # not always the same one of them


def test_places_are_uniform():
    """So that the window's length times what is measured is an unbiased estimate of the window's sum."""
    opt = OPTIMIZERS["sgdm"]([torch.nn.Parameter(torch.zeros(1))])
    corrector = o2nc.logger.Corrector(opt, 5, None)
    ends = np.array([corrector._end(opt, window) for window in range(1, 5001)])
    assert ((ends - 1) // 5 + 1 == np.arange(1, 5001)).all()
    counts = np.bincount((ends - 1) % 5)
    assert abs(counts - 1000).max() < 5 * math.sqrt(800)


def test_looks_at_three_steps_of_a_window_and_keeps_nothing_between():
    opt = OPTIMIZERS["sgdm"]([torch.nn.Parameter(torch.zeros(4))])
    corrector = o2nc.logger.Corrector(opt, 100, None)
    step, looked = 0, []
    while step < 2000:
        step = corrector.next(opt, step)
        looked.append(step)
    assert len(looked) <= 3 * 20 + 3
    ends = {corrector._end(opt, window) for window in range(1, 22)}
    assert set(looked) <= {end - i for end in ends for i in range(3)}
    corrector.look(opt, looked[4])
    lonely = next(end for end in sorted(ends) if end + 1 not in looked and end + 2 not in looked)
    corrector.look(opt, lonely)
    assert corrector._x is corrector._delta is None


def test_the_run_is_the_same_and_nothing_is_written_unless_asked(tmp_path):
    _, rows, measured, _ = run("sgdm", 9, path=tmp_path / "a.csv", every=2, corrector=True)
    _, plain, unmeasured, _ = run("sgdm", 9, path=tmp_path / "b.csv", every=2)
    assert (measured == unmeasured).all()
    assert [{k: v for k, v in row.items() if k in plain[0]} for row in rows] == plain
    assert rows[0].keys() - plain[0].keys() == {"lipschitz", "corrector"}
    with pytest.raises(ValueError, match="not a log of certificates"):  # the files have other columns
        run("sgdm", 1, path=tmp_path / "b.csv", every=2, corrector=True)


@pytest.mark.parametrize("fused", [None, True])
def test_steps_called_off_by_a_grad_scaler(fused, tmp_path):
    """They are none; and G is of gradients without the scale."""
    x = torch.nn.Parameter(torch.ones(4))
    opt = o2nc.ScaledSGDM([x], lr=0.1, momentum=0.9, average=0.9, fused=fused, scaling=LAW)
    points, scaler = [x.detach().clone().numpy()], torch.amp.GradScaler("cpu", init_scale=64.0)
    with CertificateLogger(opt, tmp_path / "c.csv", every=1, corrector=True) as log:
        for off in (True, False, True, True, False, True, False, False, True, False):
            opt.zero_grad()
            scaler.scale(x.sum() * (torch.inf if off else 3.0)).backward()
            scaler.step(opt)
            scaler.update()
            if not off:
                points.append(x.detach().clone().numpy())
    rows, known = read(log.path), changes(opt, np.array(points, dtype=np.float64))
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    for row in rows[2:]:
        assert row["lipschitz"] == pytest.approx(6)
        assert row["corrector"] == pytest.approx(6 * LAW.price * known[int(row["step"])], rel=1e-4)


def test_a_checkpoint_begins_anew(tmp_path):
    """What was kept of the iterates is of another run."""
    x = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = OPTIMIZERS["sgdm"]([x])

    def step():
        x.grad = x.detach().sign()
        opt.step()

    with CertificateLogger(opt, tmp_path / "c.csv", every=1, corrector=True) as log:
        for _ in range(4):
            step()
        saved = opt.state_dict()
        step()
        opt.load_state_dict(saved)
        with torch.no_grad():
            x.add_(100.0)
        for _ in range(3):
            step()
    rows = read(log.path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [math.isnan(row["corrector"]) for row in rows] == [True, True, False, False, True, True, False]
    assert rows[-1]["corrector"] < 1


def test_writer_and_picture(tmp_path):
    found = []

    class Writer:
        def add_scalar(self, tag, value, step):
            found.append((tag, value, step))

    _, rows, *_ = run("adamw", 40, path=tmp_path / "c.csv", every=4, corrector=True, writer=Writer())
    told = [value for tag, value, _ in found if tag == "certificate/corrector"]
    assert told == pytest.approx([row["corrector"] for row in rows], nan_ok=True)
    figure = plot(tmp_path / "c.csv")
    (line,) = (line for line in figure.axes[1].lines if "corrector" in str(line.get_label()))
    bounds = np.cumsum([4 * np.nan_to_num(row["corrector"]) for row in rows])
    assert line.get_ydata() == pytest.approx(bounds)


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (OPTIMIZERS["sgdm"], {"corrector": 0.0}, ValueError, "corrector must be a finite number > 0, got 0.0"),
        (OPTIMIZERS["sgdm"], {"corrector": "yes"}, TypeError, "corrector"),
        (
            lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, average=0.9, scaling=None),
            {"corrector": True},
            ValueError,
            "without scaling the price is infinite",
        ),
        (
            lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, average=0.9, scaling=o2nc.Uniform(weighted=True)),
            {"corrector": True},
            ValueError,
            "law without weights",
        ),
        (
            lambda ps: o2nc.OriginalO2NC(ps, BallOGD(lr=0.1, radius=0.1), period=7),
            {"corrector": True},
            ValueError,
            "random scaling by a law",
        ),
    ],
)
def test_refused(make, options, error, words, tmp_path):
    with pytest.raises(error, match=words):
        CertificateLogger(make([torch.nn.Parameter(torch.zeros(2))]), tmp_path / "c.csv", **options)
    assert not (tmp_path / "c.csv").exists()


def test_the_price_bounds_what_the_progress_misses():
    """The theorem along a run: F(x_N) − F(x_0) is Σ⟨∇F, Δ⟩ up to G·L·(Σ‖Δ_{t+1} − Δ_t‖ + ‖Δ_N‖), in the mean."""
    law, b, lr, steps, runs = o2nc.Gamma(4.0), 0.5, 0.4, 30, 400
    x = np.zeros(runs) + 0.1
    start, m, delta = x.copy(), np.zeros(runs), np.zeros(runs)
    said, moved = np.zeros(runs), np.zeros(runs)
    slope = lambda y: np.where(np.floor(2 * y) % 2 == 0, 1.0, -1.0)  # noqa: E731  # a zigzag of period 1
    value = lambda y: 0.5 - np.abs(np.mod(y, 1) - 0.5)  # noqa: E731
    for t in range(1, steps + 1):
        g = slope(x)
        said += g * delta
        m = b * m + g
        moved += np.abs(-lr * m - delta) if t > 1 else 0.0
        delta = -lr * m
        x = x + np.array([law.sample(k, t + 1) for k in range(runs)]) * delta
    said += slope(x) * delta
    miss = value(x) - value(start) - said
    bound = law.price * (moved + np.abs(delta))
    assert abs(miss.mean()) > 5 * miss.std() / math.sqrt(runs)  # there is something to pay for
    assert abs(miss.mean()) <= bound.mean()
