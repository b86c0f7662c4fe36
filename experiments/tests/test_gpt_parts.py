"""The parts of ``o2nc gpt``: grammar, schedules, windows, schedule-free AdamW, model, data, plans."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from o2nc import Jitter, Uniform
from o2nc_experiments.arms import Schedule
from o2nc_experiments.gpt import data
from o2nc_experiments.gpt.arms import parse
from o2nc_experiments.gpt.data import DataError, beginnings, read
from o2nc_experiments.gpt.model import GPT
from o2nc_experiments.gpt.optimizers import Means, averaged, certificate, make
from o2nc_experiments.gpt.options import Options
from o2nc_experiments.gpt.planning import Goal, Row, Run, least_behind, parts, rounded, runs, wanted
from o2nc_experiments.gpt.results import make_lines, verdict
from o2nc_experiments.gpt.schedule_free import ScheduleFreeAdamW

pytestmark = pytest.mark.usefixtures("one_thread")


# --- grammar


def test_an_arm_has_four_factors():
    arm = parse("adamw(lr=2e-3, beta2=0.99):wsd20~uniform(.75, 1.25)+t^12+0.999")
    assert (arm.optimizer, arm.lr, arm.options["beta2"], arm.options["beta1"]) == ("adamw", 2e-3, 0.99, 0.9)
    assert arm.schedule == Schedule("wsd", 20.0)
    assert arm.law == Uniform(0.75, 1.25)
    assert arm.weights == ("t^12", "0.999", "last")
    assert parse("adamw:linear~jitter(0.25)").law == Jitter(0.25)
    assert parse("schedule-free(beta1=0.95,r=3):constant").weights == ("average",)
    assert parse("nadam:cosine").options["beta1"] == 0.9  # any other of torch's


REFUSED = {
    "adamw": "write OPTIMIZER",
    "adamw:": "write OPTIMIZER",
    "adam:linear": "the optimizer is one of adamw, sgdm, muon",
    "adamw:sometimes": "the schedule is constant, linear",
    "adamw:linear3": "the schedule is constant, linear",
    "adamw:wsd": "the schedule is constant, linear",
    "adamw:wsd100": "a percentage in",
    "adamw:constant+t": "a window is t\\^POWER",
    "adamw:constant+1.0": "a window is t\\^POWER",
    "adamw:constant+t^-1": "a window is t\\^POWER",
    "adamw:constant~normal": "the law is one of exponential",
    "adamw:constant~uniform(1,2,3,4)": "uniform takes low, high, weighted",
    "adamw:constant~jitter(0.1,0.2,0.3)": "jitter takes width, weighted",
    "adamw:constant~jitter": "jitter takes width, weighted, got none",
    "adamw:constant~jitter(0.1,1)": "jitter takes width, weighted, got",
    "adamw:constant~jitter(2)": "width must be a number in",
    "adamw(lr=0):linear": "lr must be a finite number > 0",
    "adamw(0.1):linear": "adamw takes lr=",
    "adamw(momentum=0.9):linear": "adamw takes lr=",
    "adamw(lr=1e999):linear": "finite numbers",
    "adamw(lr=__import__('os')):linear": "write OPTIMIZER",
    "schedule-free:constant+t^12": "an average of its own",
    "adamw:constant" + "+t^1" * 60: "longer than 200",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_arm_is_refused(text):
    with pytest.raises(ValueError, match=REFUSED[text]):
        parse(text)


@pytest.mark.parametrize(
    "name",
    [
        "adamw:constant",
        "sgdm:constant~exponential",
        "scale-free:constant",
        "muon(momentum=0.9):constant",
        "nadam(beta1=0.8):constant~uniform(0.75,1.25)",
        "schedule-free:constant",
    ],
)
def test_every_optimizer_learns_and_averages(name):
    if name.startswith("muon") and not hasattr(torch.optim, "Muon"):
        pytest.skip("needs torch 2.9")
    arm = replace(parse(name), lr=0.02)
    model = GPT(1, 8, 2, 4, 7)
    model.begin_(0)
    average = None if arm.optimizer == "schedule-free" else "t^2"
    optimizers = make(arm, model, average, seed=0)
    tokens = torch.tensor([[1, 2, 3, 4, 5]]).repeat(2, 1)
    losses = []
    for _ in range(30):
        model.zero_grad()
        loss = model(tokens)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    last = [p.detach().clone() for p in model.parameters()]
    with averaged(optimizers):
        assert model(tokens).item() < losses[0]
        assert not all(torch.equal(p, q) for p, q in zip(model.parameters(), last, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), last, strict=True))
    assert losses[-1] < losses[0]
    if average:
        assert certificate(optimizers).spread > 0
        assert len({p for o in optimizers for g in o.param_groups for p in g["params"]}) == len(last)


# --- schedules, against written-out formulas

N, W = 50, 10


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("constant", lambda t: 1.0),
        ("linear", lambda t: (N - t) / (N - W)),
        ("cosine", lambda t: (1 + math.cos(math.pi * (t - W) / (N - W))) / 2),
        ("wsd20", lambda t: 1.0 if t <= 40 else (50 - t) / 10),
        ("wsd10", lambda t: 1.0 if t <= 45 else (50 - t) / 5),
        ("rsqrt", lambda t: math.sqrt(10 / (t + 1))),
        ("rsqrt30", lambda t: 1.0 if t < 30 else math.sqrt(30 / (t + 1))),
    ],
)
def test_schedules(name, formula):
    schedule = parse(f"adamw:{name}").schedule
    found = [schedule.factor(t, N, W) for t in range(N)]
    assert found[:W] == pytest.approx([(t + 1) / W for t in range(W)])
    assert found[W:] == pytest.approx([formula(t) for t in range(W, N)])
    trunk = schedule.trunk
    if trunk is not None:  # what is shared is the same, and no step more could be
        fork = schedule.fork(N)
        assert found[:fork] == [trunk.factor(t, 10 * N, W) for t in range(fork)]
        assert schedule.decays == (fork < N)


# --- windows


@pytest.mark.parametrize("text", ["t^0", "t^4", "t^12", "0.9"])
def test_means_are_those_of_the_weights(text):
    """Weights Γ(t + r)/Γ(t), which grow like t^r, or β^{n−t}; sums in float64."""
    x = torch.zeros(3)
    iterates = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    means = Means([x], [text])
    for iterate in iterates:
        x.copy_(iterate)
        means.add_()
    t = torch.arange(1, 41, dtype=torch.float64)
    if text.startswith("t^"):
        r = float(text[2:])
        weights = torch.exp(torch.lgamma(t + r) - torch.lgamma(t) - math.lgamma(40 + r) + math.lgamma(40))
    else:
        weights = float(text) ** (40 - t)
    expected = (weights[:, None] * iterates.double()).sum(0) / weights.sum()
    torch.testing.assert_close(means.means[text][0].double(), expected, rtol=1e-5, atol=1e-6)
    with means.averaged(text):
        torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(x, iterates[-1])


@pytest.mark.parametrize("text", ["t^12", "0.9"])
def test_a_further_mean_is_what_the_library_would_keep(text):
    model = GPT(1, 8, 2, 4, 7)
    model.begin_(0)
    (optimizer,) = make(parse("adamw(lr=0.01):constant"), model, text, seed=0)
    means = Means(list(model.parameters()), [text])
    for _ in range(25):
        model.zero_grad()
        model(torch.tensor([[1, 2, 3, 4, 5]])).backward()
        means.add_()
        optimizer.step()
    with optimizer.averaged():
        for p, mean in zip(model.parameters(), means.means[text], strict=True):
            torch.testing.assert_close(p.detach(), mean, rtol=1e-5, atol=1e-6)


# --- schedule-free AdamW


@pytest.mark.parametrize(("beta1", "r", "decay"), [(0.9, 0.0, 0.1), (0.95, 3.0, 0.0)])
def test_schedule_free_is_the_published_algorithm(beta1, r, decay):
    """In float64, from the text: z, x and y, step by step, with a warm-up; F(y) = ½‖y − 1‖⁴."""
    torch.manual_seed(0)
    start = torch.randn(4, dtype=torch.float64)
    p = torch.nn.Parameter(start.clone())
    opt = ScheduleFreeAdamW([p], lr=0.1, beta1=beta1, beta2=0.95, eps=1e-8, weight_decay=decay, r=r)
    z, x, v, total = start.clone(), start.clone(), torch.zeros(4, dtype=torch.float64), 0.0
    for t in range(1, 21):
        lr = 0.1 * min(1.0, t / 5)
        opt.param_groups[0]["lr"] = lr
        y = (1 - beta1) * z + beta1 * x
        torch.testing.assert_close(p.detach(), y, rtol=1e-12, atol=1e-12)
        g = 2 * (y - 1) * ((y - 1) ** 2).sum()
        p.grad = g.clone()
        opt.step()
        v = 0.95 * v + 0.05 * g**2
        z = z - lr * (g / ((v / (1 - 0.95**t)).sqrt() + 1e-8) + decay * y)
        weight = t**r * lr**2  # lr rises, so it is the largest so far
        total += weight
        x = (1 - weight / total) * x + weight / total * z
        with opt.averaged():
            torch.testing.assert_close(p.detach(), x, rtol=1e-12, atol=1e-12)


def test_schedule_free_refuses_numbers_by_name():
    with pytest.raises(ValueError, match=r"beta1 must be in \[0, 1\], got 1.5"):
        ScheduleFreeAdamW([torch.nn.Parameter(torch.zeros(1))], beta1=1.5)


# --- the model


def test_the_usual_model_has_33_million_parameters():
    with torch.device("meta"):
        model = GPT(8, 512, 8, 512, 8192)
    assert sum(p.numel() for p in model.parameters()) == 33_554_432
    assert model.flops(512) == 6 * (33_554_432 - 8192 * 512) + 12 * 8 * 512 * 512


def test_it_does_not_look_ahead_and_knows_the_order():
    model = GPT(2, 16, 2, 8, 11)
    model.begin_(0)
    tokens = torch.randint(11, (1, 9), generator=torch.Generator().manual_seed(1))

    def logits(tokens):
        seen = []
        handle = model.head.register_forward_hook(lambda *given: seen.append(given[-1]))
        model(tokens)
        handle.remove()
        return seen[0]

    changed = tokens.clone()
    changed[0, 5] = (tokens[0, 5] + 1) % 11
    before, after = logits(tokens), logits(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])
    swapped = tokens[:, [1, 0, *range(2, 9)]]
    assert not torch.allclose(logits(swapped)[:, 4], before[:, 4])


def test_a_seed_is_the_weights():
    model = GPT(1, 8, 2, 4, 7)
    model.begin_(3)
    first = [p.detach().clone() for p in model.parameters()]
    model.begin_(4)
    assert not torch.equal(first[0], model.embedding.weight)
    model.begin_(3)
    assert all(torch.equal(p, q) for p, q in zip(first, model.parameters(), strict=True))
    assert abs(model(torch.randint(7, (64, 5))).item() - math.log(7)) < 0.1  # it knows nothing yet


# --- data


def test_texts_of_a_folder_are_held_out_whole(tmp_path):
    for i in range(40):
        (tmp_path / f"{i}.txt").write_text(f"text {i:02}, " * 3)
    (tmp_path / "picture.png").write_bytes(bytes(range(256)))
    (tmp_path / ".hidden").write_text("not read")
    corpus = data.load(tmp_path)
    assert corpus.left_out == 1
    texts = [part.split(b"\0")[1:] for part in (corpus.train.tobytes(), corpus.held_out.tobytes())]
    assert [len(part) for part in texts] == [38, 2]
    assert sorted(texts[0] + texts[1]) == sorted((f"text {i:02}, " * 3).encode() for i in range(40))
    assert data.load(tmp_path).digest == corpus.digest
    (tmp_path / "long.txt").write_text("x" * 10_000)
    corpus = data.load(tmp_path)
    assert len(corpus.held_out) >= len(corpus.train) / 20  # files are not all alike


def test_tokens_are_16_bit_numbers(tmp_path):
    np.arange(1000, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(50, dtype="<u2").tofile(tmp_path / "val.bin")
    corpus = data.load(tmp_path)
    assert (len(corpus.train), len(corpus.held_out), corpus.vocabulary) == (1000, 50, 1024)
    alone = data.load(tmp_path / "train.bin")
    assert (len(alone.train), len(alone.held_out)) == (950, 50)
    assert alone.held_out[0] == 950


def write(path, contents):
    path.write_bytes(contents)
    return path


BAD = {
    "missing": (lambda at: at / "nothing", "is not there"),
    "empty file": (lambda at: write(at / "a.txt", b""), "is empty"),
    "empty folder": (lambda at: at, "has no files"),
    "binary": (lambda at: write(at / "a.txt", bytes(range(256))), "is no text in UTF-8"),
    "binary folder": (lambda at: write(at / "a.o", b"\x7fELF\0\0").parent, "none of its 1 files is a text"),
    "odd tokens": (lambda at: write(at / "a.bin", b"abc"), "has 3 bytes"),
    "no tokens": (lambda at: write(at / "a.bin", b""), "is empty"),
    "no held-out tokens": (lambda at: write(at / "train.bin", b"ab" * 99).parent, "val.bin"),
    "short": (lambda at: write(at / "a.txt", b"short text" * 10), "5 tokens held out, and --context 64 needs 65"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused(case, tmp_path):
    make_it, said = BAD[case]
    with pytest.raises(DataError, match=said):
        data.load(make_it(tmp_path)).check(64)


def test_every_piece_is_read_once_before_any_is_read_again():
    begins = beginnings(101, 10, 4, 5, seed=0)
    assert begins.shape == (5, 4)
    flat = begins.flatten().tolist()
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(0, 100, 10))
    assert torch.equal(beginnings(101, 10, 4, 3, seed=0), begins[:3])  # a shorter run is the beginning of a longer
    assert not torch.equal(beginnings(101, 10, 4, 5, seed=1), begins)
    rows = read(torch.arange(101, dtype=torch.int32), begins[0], 10)
    assert torch.equal(rows, begins[0][:, None] + torch.arange(11))


# --- plans


def goal(*names, horizons=(250, 500, 1000, 2000, 4000), seeds=(0,), **options):
    return Goal([parse(name) for name in names], horizons, seeds, **options)


def test_decays_branch_off_one_trunk():
    planned = runs(wanted(goal("adamw:constant+t^12", "adamw:wsd20", "adamw:wsd10", "adamw:constant+t^4"), []))
    assert len(planned) == 1
    assert planned[0].steps == 4000 + 1550 + 775
    assert set(planned[0].windows) == {"t^12", "t^4"}
    assert runs(wanted(goal("adamw:wsd20"), []))[0].steps == 3200 + 1550


def test_what_differs_shares_nothing():
    names = [
        "adamw:linear",
        "adamw:cosine",
        "adamw:rsqrt",
        "adamw(beta2=0.99):constant",
        "adamw:constant~exponential",
    ]
    planned = runs(wanted(goal(*names), []))
    assert [run.steps for run in planned] == [*(2 * [250, 500, 1000, 2000, 4000]), 4000, 4000, 4000]


def pretended(run: Run, best):
    """Rows of a run in which the loss grows with the distance of lr from the best."""
    for leg in run.legs:
        for i, weights in enumerate(leg.arm.weights):
            distance = abs(math.log(leg.lr / best(leg)))
            yield Row(*leg.key, weights, 1 + distance + i / 100)


def carried_out(goal, best):
    rows, made = [], []
    while legs := wanted(goal, rows):
        run = runs(legs)[0]
        made.append(run)
        rows += pretended(run, best)
        assert len(made) < 100
    return rows, made


def test_learning_rates_are_chosen_on_another_seed():
    asked = goal(
        "adamw:constant+t^8+t^12", "adamw:linear", horizons=(50, 100), seeds=(0, 1), sweep=(1e-3, 2e-3, 4e-3), tune=7
    )
    rows, _ = carried_out(asked, lambda leg: 4e-3 if leg.horizon == 50 and leg.arm.schedule.decays else 2e-3)
    tried = {(row.arm, row.lr, row.horizon) for row in rows if row.seed == 7}
    assert len(tried) == 12
    reported = {(row.arm, row.horizon, row.seed, row.lr) for row in rows if row.seed != 7}
    one, each = (arm.name for arm in asked.arms)
    assert reported == {
        *((one, h, seed, 2e-3) for h in (50, 100) for seed in (0, 1)),
        *((each, 50, seed, 4e-3) for seed in (0, 1)),
        *((each, 100, seed, 2e-3) for seed in (0, 1)),
    }


@pytest.mark.parametrize("sweep", [(), (2e-3,), (1e-3, 2e-3)])
def test_the_verdict_says_where_no_learning_rate_was_tuned(sweep):
    asked = goal("adamw:constant+t^8", "adamw:linear", horizons=(50,), seeds=(0, 1), sweep=sweep)
    rows, _ = carried_out(asked, lambda leg: 2e-3)
    said = verdict(asked, make_lines(asked, rows))
    assert said.startswith("adamw:constant, x̄ by t^8 at lr 0.00")
    assert ("No learning rate was tuned" in said) is (len(sweep) < 2)


def test_a_grid_grows_until_its_best_is_inside():
    asked = goal("adamw:linear", horizons=(50, 100), sweep=(1.0, 2.0), tune=7, widen=3, relative=True)
    rows, _ = carried_out(asked, lambda leg: 8e-3 if leg.horizon == 50 else 1e-4)
    tried = {h: sorted({row.lr for row in rows if row.seed == 7 and row.horizon == h}) for h in (50, 100)}
    assert tried[50] == [rounded(1e-3 * 2**k) for k in range(5)]
    assert tried[100] == [rounded(1e-3 * 2**k) for k in range(-3, 2)]  # three more, no further
    assert {row.lr for row in rows if row.seed == 0} == {8e-3, 1.25e-4}


def test_one_horizon_alone_does_not_decide_for_all():
    name = "adamw:constant+t^12"
    asked = goal(name, horizons=(50, 100, 200), sweep=(1e-3, 2e-3, 4e-3), tune=7)
    table = {1e-3: (3.00, 3.00, 2.00), 2e-3: (3.01, 2.50, 2.01), 4e-3: (3.05, 2.00, 2.05)}
    rows = [
        Row(name, lr, 7, h, weights, loss)
        for lr, losses in table.items()
        for h, loss in zip(asked.horizons, losses, strict=True)
        for weights in ("t^12", "last")
    ]
    assert {leg.lr for leg in wanted(asked, rows)} == {1e-3}  # 4e-3 has the least mean


def test_a_run_that_diverged_is_never_chosen():
    asked = goal("adamw:linear", horizons=(50,), sweep=(1e-3, 2e-3), tune=7)
    rows = [Row("adamw:linear", 1e-3, 7, 50, "last", 3.0), Row("adamw:linear", 2e-3, 7, 50, "last", None)]
    assert [leg.lr for leg in wanted(asked, rows)] == [1e-3]


def test_what_diverged_in_the_end_is_not_chosen_for_its_beginning():
    fast, slow, none = [2.0, 1.5, math.inf], [2.5, 2.0, 1.5], [math.inf] * 3
    assert least_behind({"fast": fast, "slow": slow, "none": none}) == "slow"
    assert least_behind({"none": none, "fast": fast}) == "fast"
    assert least_behind({"a": none, "b": none}) == "a"  # the least learning rate, from which a grid goes on
    assert least_behind({"a": [1.0], "b": [1.0]}) == "a"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"horizons": "10"}, "longer than the warm-up of 20 steps"),
        ({"horizons": "1e3"}, "--horizons takes whole numbers"),
        ({"seeds": "-1"}, "--seeds takes whole numbers"),
        ({"sweep": "beta1=0.9"}, "--sweep takes lr="),
        ({"sweep": "lr=x1,2"}, "--sweep takes lr="),
        ({"sweep": "lr=-1"}, "--sweep takes lr="),
        ({"sweep": "lr=1e-3", "tune": 0}, "--tune 0 must not be one of --seeds"),
        ({"tune": 9}, "need a grid"),
        ({"sweep": "lr=1e-3,2e-3", "widen": 1}, "--widen needs a seed"),
        ({"width": 30, "heads": 4}, "--width 30 must be a multiple of twice --heads 4"),
        ({"batch": 100}, "--batch 100 must be a multiple of --context 64"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Options(**options).goal("cpu")


def test_each_horizon_may_have_its_own_learning_rate():
    together, apart = (goal("adamw:constant+t^4", horizons=(200, 400), each=each) for each in (False, True))
    (arm,) = together.arms
    assert parts(together, arm) == [(200, 400)]
    assert parts(apart, arm) == [[200], [400]]
