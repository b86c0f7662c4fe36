"""Arms: every optimizer with every law by name, or a refusal that names it; settings: every image once per epoch."""

import itertools
import math

import pytest
import torch
from torch.optim import AdamW

from cifar10_made import CPU, images, train_by_hand
from o2nc import Exponential, ExponentiatedO2NC, Gamma, Jitter, ScaledSGDM, Uniform, Weibull, learners
from o2nc_experiments.cifar10.arms import DEFAULTS, LEARNERS, parse
from o2nc_experiments.cifar10.batches import Batches
from o2nc_experiments.cifar10.names import OPTIMIZERS, TABLE
from o2nc_experiments.cifar10.options import Settings
from o2nc_experiments.cifar10.training import Trial
from o2nc_experiments.laws import LAWS
from problem import flat, parameters, set_gradients

pytestmark = pytest.mark.usefixtures("one_thread")

BASES = ["sgdm", "adamw", "ogd", "ball-ogd", "ftrl", "adagrad", "ball-adagrad", "scale-free", "coin-betting"]
EVERY = [base + law for base in BASES for law in ("", "+exponential", "+uniform", "+jitter", "+weibull", "+gamma")]


def make(text, average=0.99, seed=0):
    """An arm's optimizer, and what it is for."""
    params = parameters()
    return params, parse(text).make(iter(params), average, seed, CPU)


def steps(params, optimizer, n):
    for t in range(1, n + 1):
        set_gradients(params, t)
        optimizer.step()
    return flat(params)


# --- what can be asked for


def test_the_lists_are_whole():
    assert list(DEFAULTS) == list(OPTIMIZERS) == BASES
    assert ["", *LAWS] == [name.partition("+")[2] for name in EVERY[:6]]
    assert set(LEARNERS) == set(BASES[2:])
    assert TABLE == ("sgdm", "sgdm+exponential")


@pytest.mark.parametrize("text", EVERY)
def test_every_optimizer_with_every_law_makes_steps(text):
    params, optimizer = make(text)
    start = flat(params)
    end = steps(params, optimizer, 5)
    assert (end != start).all()
    assert abs(end).max() < 1e3
    averages = parse(text).averages
    assert averages == (not text.startswith("adamw"))
    if averages:
        assert math.isfinite(optimizer.certificate().value)
        assert math.isfinite(optimizer.progress)


@pytest.mark.parametrize("base", BASES)
def test_the_law_and_the_seed_matter_and_nothing_else_is_random(base):
    found = {}
    for law, seed in itertools.product(("", "+exponential", "+uniform", "+jitter", "+gamma"), (0, 7)):
        runs = [steps(*make(base + law, seed=seed), 4) for _ in range(2)]
        assert (runs[0] == runs[1]).all()
        found[law, seed if law else None] = runs[0].tobytes()
    assert len(set(found.values())) == 9


def test_the_arms_of_table_1_are_sgd_with_the_papers_numbers():
    """Section 6: learning rate 0.01, momentum 0.9, weight decay 5·10⁻⁴; s ~ Exp(1)."""
    plain, scaled = (make(text, seed=3) for text in TABLE)
    twins = parameters()
    sgd = torch.optim.SGD(twins, lr=0.01, momentum=0.9, weight_decay=5e-4)
    assert (steps(*plain, 9) == steps(twins, sgd, 9)).all()
    twins = parameters()
    sgd = torch.optim.SGD(twins, lr=0.01, momentum=0.9, weight_decay=5e-4)
    for t in range(1, 10):
        set_gradients(twins, t)
        sgd.param_groups[0]["lr"] = 0.01 * Exponential().sample(3, t + 1)
        sgd.step()
    assert (steps(*scaled, 9) == flat(twins)).all()


def test_adamw_is_torchs():
    twins = parameters()
    found = steps(*make("adamw(lr=0.02,weight_decay=0.3)"), 5)
    assert (found == steps(twins, AdamW(twins, lr=0.02, weight_decay=0.3), 5)).all()
    twins = parameters()
    adamw = AdamW(twins, weight_decay=0.05)
    for t in range(1, 6):
        set_gradients(twins, t)
        adamw.param_groups[0]["lr"] = 1e-3 * Uniform().sample(0, t + 1)
        adamw.step()
    assert (steps(*make("adamw+uniform"), 5) == flat(twins)).all()


@pytest.mark.parametrize(
    ("text", "group"),
    [
        (
            "sgdm(lr=0.5, momentum=0.25,weight_decay=0,nesterov=True)+weibull(shape=1.25,scale=3)",
            {"lr": 0.5, "momentum": 0.25, "weight_decay": 0, "nesterov": True, "scaling": Weibull(1.25, 3)},
        ),
        ("sgdm()", DEFAULTS["sgdm"] | {"scaling": None}),
        ("sgdm+jitter", {"scaling": Jitter(0.25)}),
        ("sgdm( momentum = 0.5 )+gamma( )", {"lr": 0.01, "momentum": 0.5, "scaling": Gamma(1.5)}),
        ("adamw(lr=1e-2)", {"lr": 0.01, "weight_decay": 0.05}),
        ("adamw(weight_decay=1)+uniform(high=4)", {"weight_decay": 1, "scaling": Uniform(0, 4)}),
        (
            "ogd(lr=3,decay=0.5,kappa=2,beta=0.5)+exponential(rate=2)",
            {"learner": learners.OGD(3, 0.5, 2), "lr": 3, "beta": 0.5, "average": 0.5, "scaling": Exponential(2)},
        ),
        ("ball-ogd(radius=7)", {"learner": learners.BallOGD(lr=0.011, radius=7), "beta": 0.9}),
        ("ftrl(decay=2)+gamma(shape=1.75)", {"learner": learners.FTRL(0.011, 2), "scaling": Gamma(1.75)}),
        ("adagrad(diagonal=False)", {"learner": learners.AdaGrad(2e-4, diagonal=False)}),
        ("scale-free(lr=1e-3,radius=0.5)", {"learner": learners.ScaleFree(1e-3, radius=0.5), "lr": 1e-3}),
        ("coin-betting(wealth=2)", {"learner": learners.CoinBetting(wealth=2, lipschitz=5.0)}),
    ],
)
def test_options_reach_the_optimizer(text, group):
    arm = parse(text)
    _, optimizer = make(text, average=0.75, seed=11)
    found = optimizer.param_groups[0]
    assert arm.name.replace(" ", "") == text.replace(" ", "")
    assert {key: found[key] for key in group} == group
    assert found.get("seed", found.get("scaling_seed", 11)) == 11
    if isinstance(optimizer, ScaledSGDM):
        assert found["average"] == 0.75


def test_weight_decay_is_the_optimizers_or_the_trainers_never_both():
    for base in BASES:
        arm = parse(f"{base}(weight_decay=0.25)")
        _, optimizer = make(arm.name)
        own = 0.0 if isinstance(optimizer, ExponentiatedO2NC) else optimizer.param_groups[0]["weight_decay"]
        assert (own, arm.penalty) in ((0.25, 0.0), (0.0, 0.25)), base
        assert bool(arm.penalty) == (base in LEARNERS)


@pytest.mark.parametrize("law", ["", "+exponential", "+exponential(rate=2)"])
def test_ogd_with_a_penalty_is_sgdm_with_coupled_weight_decay(law):
    """Learner OGD, κ = 1: torch's momentum β and lr βη, at a schedule of η too; the averages see the same gradient.

    Only laws of constant weight: with another the learner is given w(s)·g, which SGD is not.
    """
    settings, small = Settings(epochs=3, batch=16, average=0.8, width=2), images(40, 10, dtype=torch.float64)
    texts = [f"ogd(lr=0.05,beta=0.8,weight_decay=0.1){law}", f"sgdm(lr=0.04,momentum=0.8,weight_decay=0.1){law}"]
    ours, theirs = (Trial(parse(text), 0, settings, small) for text in texts)
    for first, second in zip(train_by_hand(ours), train_by_hand(theirs), strict=True):
        for name in ("train_loss", "test_loss", "gradient", "spread", "progress", "average_loss"):
            assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-7), name
        assert second.lr == pytest.approx(0.8 * first.lr)
    torch.testing.assert_close(*(list(t.model.parameters()) for t in (ours, theirs)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("text", [*BASES[3:-1], "coin-betting(wealth=0.01)"])
def test_a_learners_penalty_is_that_of_the_loss(text):
    """The gradient of F + (wd/2)‖x‖², by autograd, to the same learner."""
    settings, small = Settings(epochs=1, batch=20, width=2), images(40, 10, dtype=torch.float64)
    name, _, options = text.partition("(")
    arm = parse(f"{name}(weight_decay=0.5{',' + options if options else ')'}+uniform")
    ours = Trial(arm, 0, settings, small)
    theirs = Trial(parse(f"{name}(weight_decay=0{',' + options if options else ')'}+uniform"), 0, settings, small)
    theirs.learn = lambda *given: _penalised(ours_learn(*given), theirs.model, 0.5)
    ours_learn = ours.learn
    rows = [train_by_hand(trial)[0] for trial in (ours, theirs)]
    for name in ("test_loss", "gradient", "spread", "progress"):
        assert getattr(rows[0], name) == pytest.approx(getattr(rows[1], name), rel=1e-9), name
    torch.testing.assert_close(*(list(t.model.parameters()) for t in (ours, theirs)), rtol=0, atol=1e-11)


def _penalised(loss, model, strength):
    return loss + strength / 2 * sum(p.square().sum() for p in model.parameters())


@pytest.mark.parametrize("text", EVERY)
def test_what_can_be_captured(text):
    base, _, law = text.partition("+")
    assert parse(text).on_device == (not law if base == "adamw" else law != "gamma")


# --- what cannot

BAD = [
    *("", " ", "\n", "\x00", "+", "+exponential", "()", "(lr=1)", "sgd", "SGDM", "Sgdm", "sgdmx"),
    *("sgdm+", "sgdm+normal", "sgdm+Exponential", "sgdm exponential", "sgdm-exponential"),
    *("sgdm+exponential+uniform", "sgdm++exponential", "exponential", "sgdm+sgdm", "sgdm,adamw", "-", "--help"),
    *("sgdm(", "sgdm)", "sgdm(lr=1", "sgdm(lr=1))", "sgdm((lr=1))", "sgdm(lr=(1))", "sgdm((((((", "sgdm()()"),
    *("sgdm(0.1)", "sgdm(lr)", "sgdm(lr=)", "sgdm(=1)", "sgdm(,)", "sgdm(lr:0.1)", "sgdm(lr=1 momentum=0)"),
    *("sgdm(lr=0.1)exponential", "sgdm(lr=0.1)+exponential(", "sgdm{lr=0.1}", "sgdm[lr=0.1]", "sgdm(lr=1;2)"),
    *("sgdm(lr=nan)", "sgdm(lr=inf)", "sgdm(lr=-inf)", "sgdm(lr=1e400)", "sgdm(lr=-1e999)", "sgdm(lr=1j)"),
    *("sgdm(lr=None)", "sgdm(lr='0.1')", "sgdm(lr=b'1')", "sgdm(lr=[1])", "sgdm(lr={1:2})", "sgdm(lr=...)"),
    *("sgdm(lr=-0.1)", "sgdm(momentum=-1)", "sgdm(weight_decay=-1)", "adamw(lr=-1)", "adamw(weight_decay=-0.5)"),
    *("sgdm(nesterov=True,momentum=0)", "sgdm(lr=True)", "sgdm(betas=1)", "sgdm(params=1)", "sgdm(seed=1)"),
    *("sgdm(dampening=0.5)", "sgdm(scaling=1)", "sgdm(self=1)", "sgdm(__class__=1)", "adamw(momentum=0.9)"),
    *("ogd(beta=1)", "ogd(beta=0)", "ogd(kappa=3)", "ogd(lr=-1)", "ogd(decay=-1)", "ogd(momentum=0.9)"),
    *("ball-ogd(radius=0)", "ball-ogd(radius=-1)", "adagrad(diagonal=1)", "scale-free(diagonal=0)"),
    *("coin-betting(lr=1)", "coin-betting(wealth=0)", "coin-betting(lipschitz=-1)", "ftrl(radius=0)"),
    *("sgdm+exponential(rate=0)", "sgdm+exponential(rate=-1)", "sgdm+exponential(shape=1)", "sgdm+uniform(low=3)"),
    *("sgdm+uniform(high=0)", "sgdm+weibull(shape=0)", "sgdm+gamma(scale=-1)", "sgdm+gamma(rate=1)"),
    *("ｓｇｄｍ", "sgdм", "sgdm＋exponential", "sgdm（lr=1）", "sgdm(lr=０.1)", "sgdm(lr=½)", "sgdm(λ=1)", "\ud800"),
]
HOSTILE = [
    *("sgdm(lr=__import__('os').system('true'))", "sgdm(lr=exec('1'))", "__import__('os')", "sgdm(lr=lambda: 1)"),
    *("sgdm(lr=[x for x in 'a'])", "sgdm(lr=1 if 1 else 2)", "sgdm(lr=(1).__class__)", "sgdm(lr=print)", "sgdm(*[])"),
    *("sgdm(**{'lr': 1})", "sgdm(lr:=1)", "sgdm(lr=f'{1}')", "sgdm(lr=1)\nimport os", "sgdm(lr=2**9**9)"),
    *("; rm -rf ~", "../../sgdm", "sgdm/../../x", "sgdm\x00(lr=1)", "sgdm(lr=\x00)", "sgdm(lr=1)\x00", "%s%n", "{0}"),
]
HUGE = {
    "many digits": "sgdm(lr=" + "9" * 5000 + ")",
    "beyond all floats": "sgdm(lr=1" + "0" * 400 + ")",
    "beyond all floats, in the law": "sgdm+exponential(rate=1" + "0" * 400 + ")",
    "a long name": "s" * 100_000,
    "brackets": "sgdm(lr=" + "[" * 5000 + "]" * 5000 + ")",
    "minuses": "sgdm(lr=" + "-" * 5000 + "1)",
    "more minuses": "sgdm(lr=" + "-" * 100_000 + "1)",
    "a long sum": "sgdm(lr=" + "1+" * 50_000 + "1)",
    "parentheses": "sgdm" + "(" * 50_000,
    "laws": "sgdm" + "+exponential" * 10_000,
    "keys": "sgdm(" + ",".join(f"k{i}=1" for i in range(10_000)) + ")",
    "a law without mean": "sgdm+weibull(shape=1e-307)",
}


@pytest.mark.parametrize("text", [*BAD, *HOSTILE], ids=ascii)
def test_refusals_name_the_arm(text):
    with pytest.raises(ValueError) as info:
        parse(text)
    assert str(info.value).startswith(f"arm {text!r}: ")
    assert "\n" not in str(info.value)
    assert len(str(info.value)) < len(repr(text)) + 160


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_huge_names_are_refused_too(text):
    with pytest.raises(ValueError, match=r"^arm "):
        parse(text)


@pytest.mark.parametrize("base", BASES)
def test_weight_decay_is_checked_whoever_applies_it(base):
    with pytest.raises(ValueError, match="weight_decay"):
        parse(f"{base}(weight_decay=-5)")


def test_an_option_given_twice_is_refused():
    with pytest.raises(ValueError, match=r"^arm "):
        parse("sgdm(lr=1,lr=2)")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sgd", "one of sgdm, adamw, ogd, ball-ogd, ftrl, adagrad, ball-adagrad, scale-free, coin-betting"),
        ("sgdm(betas=1)", "sgdm has no betas, but lr, momentum, weight_decay, nesterov"),
        ("ogd(momentum=1)", "ogd has no momentum, but lr, decay, kappa, beta, weight_decay"),
        ("sgdm+normal", "one of exponential, uniform, jitter, weibull, gamma"),
        ("sgdm(lr=nan)", "finite numbers"),
        ("sgdm(lr=-1)", "learning rate: -1"),
        ("sgdm+uniform(low=3)", "a finite number > low = 3"),
        ("SGDM", "in small letters"),
        ("sgdm+exponential(shape=1)", "exponential has no shape, but rate"),
        ("sgdm+gamma(mean=1)", "gamma has no mean, but shape, scale"),
        ("sgdm(lr=0.1", "a closing parenthesis is missing"),
        ("sgdm+weibull(shape=1.5", "a closing parenthesis is missing"),
        ("sgdm(momentum=2)", "momentum must be a number in [0, 1), got 2"),
        ("sgdm(momentum=1)", "momentum must be a number in [0, 1), got 1"),
    ],
)
def test_refusals_say_what_can_be_asked_for(text, said):
    with pytest.raises(ValueError) as info:
        parse(text)
    assert said in str(info.value)


# --- settings


@pytest.mark.parametrize(
    ("n", "batch", "epochs"),
    [(12, 4, 3), (10, 4, 7), (10, 3, 9), (10, 7, 10), (10, 10, 4), (11, 10, 21), (7, 1, 3), (5, 2, 2), (50, 49, 100)],
)
def test_every_image_is_seen_exactly_once_per_epoch(n, batch, epochs):
    """Strung together, the batches are one random order of all images after another."""
    settings, feed = Settings(epochs=epochs, batch=batch), Batches.make(n, batch, CPU)
    seen, turns = [], []
    for epoch in range(epochs):
        feed.fill_(3, epoch, settings)
        count = settings.steps(epoch + 1, n) - settings.steps(epoch, n)
        assert n // batch <= count <= len(feed.cases)
        for turn in range(count):
            assert feed.turn.item() == turn
            at = feed.position + torch.arange(batch)
            assert at[0] < n  # a batch belongs to the epoch that it begins in
            assert at[-1] < len(feed.order)
            seen += feed.order[at].tolist()
            turns.append(tuple(feed.cases[feed.turn].flatten().tolist()))
            feed.advance_()
    assert 0 <= len(seen) - n * epochs < batch
    whole = [seen[n * e : n * (e + 1)] for e in range(epochs)]
    assert all(sorted(part) == list(range(n)) for part in whole)
    if n > 9:
        assert len(set(map(tuple, whole))) == epochs  # in another order each time
    if batch > 2:
        assert len(set(turns)) == len(turns)  # and cropped otherwise


def test_a_feed_is_a_function_of_seed_and_epoch():
    """However it got there: so a run goes on from an epoch's number alone."""
    settings = Settings(epochs=5, batch=7)
    one, other = (Batches.make(30, 7, CPU) for _ in range(2))
    for epoch in range(4):
        one.fill_(1, epoch, settings)
        one.advance_()
    one.fill_(1, 3, settings)
    other.fill_(1, 3, settings)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    other.fill_(2, 3, settings)
    assert not torch.equal(one.order, other.order)
    assert not torch.equal(one.cases, other.cases)
    other.fill_(1, 2, settings)
    assert torch.equal(one.order[:30], other.order[30:])  # the next epoch's order is this one's next


def test_the_papers_run_has_78_125_steps():
    settings = Settings()
    assert (settings.epochs, settings.batch, settings.average, settings.width) == (200, 128, 0.999, 64)
    assert settings.steps(0, 50_000) == 0
    assert settings.steps(200, 50_000) == 78_125 == 200 * 50_000 / 128
    assert {settings.steps(e + 1, 50_000) - settings.steps(e, 50_000) for e in range(200)} == {390, 391}


def test_the_learning_rate_is_a_cosine():
    """From 1 in the first epoch, a half in the middle, towards 0 at the end."""
    schedule = parse("sgdm").schedule
    factors = [schedule.factor(e, 200, 0) for e in range(200)]
    assert factors[0] == 1
    assert factors[100] == pytest.approx(0.5)
    assert factors[50] == pytest.approx((2 + math.sqrt(2)) / 4)
    assert 0 < factors[199] < 1e-4
    assert factors == sorted(factors, reverse=True)
    assert all(a + b == pytest.approx(1) for a, b in zip(factors[1:], factors[:0:-1], strict=True))
    assert schedule.factor(0, 1, 0) == 1


@pytest.mark.parametrize(
    ("epochs", "due"), [(1, [1]), (3, [1, 2, 3]), (10, range(1, 11)), (21, [*range(2, 21, 2), 21])]
)
def test_averages_are_evaluated_about_ten_times_and_at_the_end(epochs, due):
    settings = Settings(epochs=epochs)
    assert [e for e in range(1, epochs + 1) if settings.averages_are_due(e)] == list(due)
    assert [e for e in range(1, 201) if Settings().averages_are_due(e)] == list(range(20, 201, 20))
