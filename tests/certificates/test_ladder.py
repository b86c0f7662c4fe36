"""`Ladder`: it comes down at kinks, stays where the run travels, goes up again, resumes bitwise."""

import copy
from itertools import pairwise

import pytest
import torch
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, LinearLR, LRScheduler, SequentialLR, StepLR

import o2nc
from o2nc.certificates.displacement import displacements, measure
from o2nc.certificates.ladder import HIGH, SURE
from problem import noise, parameters
from registry import OURS, TORCH, advance, checkpoint, identical, loaded, params_of


def sgd(size, at=0.0, **options):
    x = torch.nn.Parameter(torch.full((size,), at, dtype=torch.float64))
    return o2nc.SGD([x], **{"lr": 0.1, "momentum": 0.9, "average": o2nc.Polynomial(12)} | options)


def follow(opt, ladder, steps, gradient):
    """Step with the gradients that a function of step and x gives; yield every step when it is taken."""
    (x,) = opt.param_groups[0]["params"]
    for t in range(steps):
        x.grad = gradient(t, x.detach())
        opt.step()
        ladder.step()
        yield t


def kink(steps, schedule=o2nc.Ladder, minimum=lambda t: 0.0):
    """Run SGD on Σ|x − minimum|; return the optimizer, the schedule and all learning rates."""
    opt = sgd(20, 3.0)
    ladder = schedule(opt)
    lrs = [opt.param_groups[0]["lr"] for _ in follow(opt, ladder, steps, lambda t, x: (x - minimum(t)).sign())]
    return opt, ladder, lrs


def test_it_comes_down_at_a_kink_and_f_with_it():
    opt, ladder, lrs = kink(1000)
    assert isinstance(ladder, LRScheduler)
    assert ladder.get_last_lr() == [lrs[-1]]
    assert lrs[-1] == 0.1 * 2.0**-ladder.rung < 1e-4
    with opt.averaged():
        assert opt.param_groups[0]["params"][0].abs().max() < 1e-3


def test_it_leaves_a_run_alone_that_travels_or_walks():
    for slope in (0.0, 1.0):
        ladder = o2nc.Ladder(opt := sgd(200))
        for _ in follow(opt, ladder, 1000, lambda t, x: slope + noise(t, 200)):  # noqa: B023
            assert ladder.get_last_lr() == [0.1]
        assert ladder.displacement > 0.5


@pytest.mark.parametrize("drift", [0.0, 0.07])
def test_a_run_that_hops_around_a_moving_point_is_left_alone(drift):
    """Over a tenth of the run both are between the thresholds; only the longer past tells them apart."""
    ladder, seen = o2nc.Ladder(opt := sgd(50)), set()
    for t in follow(opt, ladder, 2000, lambda t, x: 0.2 * (x - drift * t) + noise(t, 50)):
        if t >= 500:
            seen.add(ladder.displacement)
    assert min(seen) > SURE
    assert min(seen) < HIGH
    assert ladder.rung == 0 if drift else ladder.rung > 2


def test_the_past_is_thinned_evenly_and_judged_by_its_halves():
    """What is compared, from all iterates at the kept steps."""
    ladder = o2nc.Ladder(opt := sgd(30))
    (x,) = opt.param_groups[0]["params"]
    iterates = [x.detach().clone()]
    iterates += [x.detach().clone() for _ in follow(opt, ladder, 777, lambda t, x: 0.05 * x + noise(t, 30))]

    def displacement(steps):
        measured = measure([iterates[step] for step in steps], [x])
        return displacements(steps, measured, [0.9])[0]

    steps = [step for step, _ in ladder._past]
    distances = [b - a for a, b in pairwise(steps)]
    assert 55 < len(steps) <= 64
    assert min(distances) > 0
    assert max(distances) < 3 * 0.9 * 777 / 64
    assert abs(steps[0] - 777 / 10) < 12
    assert 777 - 12 < steps[-1] <= 777
    middle = len(steps) // 2
    whole, *halves = map(displacement, (steps[::2], steps[:middle], steps[middle:]))
    assert ladder._look_back() == pytest.approx((whole, *halves))


def test_it_moves_by_several_rungs_where_it_is_sure_but_never_above_its_start():
    """A minimum that is hopped around, and is then far away: half of the halvings are taken back, and half again."""
    _, _, lrs = kink(1500, minimum=lambda t: 0.0 if t < 400 else 10_000.0)
    factors = [b / a for a, b in pairwise(lrs)]
    assert factors[:399].count(0.25) > 5
    assert 0.125 not in factors
    assert [f for f in factors[450:] if f != 1] == [256.0, 16.0, 4.0, 2.0, 2.0]
    assert lrs[-1] == 0.1 == max(lrs)


def test_a_run_that_hops_while_it_slides_comes_back_once_the_past_shows_it():
    """Across a valley in 20 coordinates, and along it: in a window it seems to hop in one place."""
    ladder, along = o2nc.Ladder(opt := sgd(21, 0.03)), torch.arange(21) == 0
    taken = follow(opt, ladder, 500, lambda t, x: torch.where(along, -0.12, x.sign()))
    seen = [(ladder.rung, ladder.displacement) for _ in taken]
    assert max(j for _, j in seen[200:]) < SURE
    assert {rung for rung, _ in seen[200:400]} == {3}
    assert ladder.rung == 0


def test_nothing_moves_nothing_changes():
    """As when all parameters are frozen."""
    ladder = o2nc.Ladder(opt := sgd(3))
    list(follow(opt, ladder, 100, lambda t, x: None))
    assert ladder.get_last_lr() == [0.1]


# torch's NAdam loads a number of its state in another precision
@pytest.mark.parametrize(
    "name", [*(name for name in OURS if "NAdam" not in name), "torch SGD fused", "torch AdamW maximize"]
)
def test_resume_is_bitwise_with_every_optimizer(name):
    """Saved in the midst of a window, through a file."""

    def make(params):
        opt = TORCH[name[6:]](params) if name.startswith("torch ") else OURS[name](params)
        return opt, o2nc.Ladder(opt)

    def train(opt, ladder, begin, end):
        for t in range(begin, end):
            advance(opt, [t])
            ladder.step()
        return params_of(opt), opt.state_dict(), ladder.state_dict()

    again = make(parameters())
    train(*again, 0, 130)
    resumed = loaded(checkpoint(*again), make)
    identical(train(*make(parameters()), 0, 420), train(*resumed, 130, 420))


def test_a_state_that_was_taken_does_not_change_as_the_run_goes_on():
    _, ladder, _ = kink(50)
    state = ladder.state_dict()
    before = copy.deepcopy(state)
    for _ in range(20):
        ladder.optimizer.step()
        ladder.step()
    identical(state, before)


def linear(opt):
    return LinearLR(opt, start_factor=0.1, total_iters=60)


def sequential(warm_up, ladder_first=False):
    """Return how to make a warm-up of 60 steps and then a Ladder, and in which order they are made."""

    def schedule(opt):
        if ladder_first:
            ladder = o2nc.Ladder(opt)
            return SequentialLR(opt, [warm_up(opt), ladder], [60])
        return SequentialLR(opt, [warm_up(opt), o2nc.Ladder(opt)], [60])

    return schedule


WARM_UPS = {
    "linear": sequential(linear),
    "linear, made after": sequential(linear, ladder_first=True),
    "lambda": sequential(lambda opt: LambdaLR(opt, lambda t: min(1.0, (t + 1) / 60))),
    "chained": lambda opt: ChainedScheduler([linear(opt), o2nc.Ladder(opt)], opt),
}


@pytest.mark.parametrize("name", WARM_UPS)
def test_a_warm_up_comes_before_it(name):
    """Its start is then where the warm-up ends: it comes down from there, goes up again to it and not above."""
    _, _, lrs = kink(1000, WARM_UPS[name])
    assert lrs[:59] == sorted(lrs[:59])
    assert lrs[58] > 0.09
    assert max(lrs) <= 0.1 * (1 + 1e-12)
    assert lrs[-1] < 1e-4
    _, _, lrs = kink(2500, WARM_UPS[name], minimum=lambda t: 0.0 if t < 600 else 10_000.0)
    assert min(lrs[100:]) < 0.01
    assert lrs[-1] == max(lrs)
    assert max(lrs) == pytest.approx(0.1, rel=1e-12)


def test_it_goes_on_from_a_step_without_its_state():
    """As torch's do: its start is ``initial_lr``, and its first window begins there."""
    opt = sgd(20, lr=0.01)
    opt.param_groups[0]["initial_lr"] = 0.1
    ladder = o2nc.Ladder(opt, last_epoch=100)
    list(follow(opt, ladder, 500, lambda t, x: torch.ones_like(x)))
    assert ladder.get_last_lr() == [0.01]  # J is that of a line: nothing was halved that could be doubled
    assert (ladder._starts, ladder.displacement > HIGH) == ([0.1], True)


@pytest.mark.parametrize("resumes", [False, True])
def test_its_start_is_the_learning_rate_when_it_is_made(resumes):
    """Another scheduler has lowered it before, from torch's ``initial_lr`` of 0.1."""
    opt = sgd(20, 3.0)
    earlier = StepLR(opt, step_size=1, gamma=0.1)
    opt.step()
    earlier.step()
    ladder = o2nc.Ladder(opt)
    assert opt.param_groups[0]["initial_lr"] == 0.1
    list(follow(opt, ladder, 800, lambda t, x: x.sign()))
    assert ladder.rung > 1
    opt.param_groups[0]["lr"] = 0.005  # more rungs to climb than lie between this and the start
    if resumes:
        state, ladder = ladder.state_dict(), o2nc.Ladder(opt)
        ladder.load_state_dict(state)
    lrs = [opt.param_groups[0]["lr"] for _ in follow(opt, ladder, 1700, lambda t, x: (x - 10_000.0).sign())]
    assert max(lrs) == lrs[-1] == pytest.approx(0.01)


def test_groups_keep_their_proportions():
    a, b = (torch.nn.Parameter(torch.full((5,), 2.0)) for _ in range(2))
    opt = torch.optim.SGD([{"params": [a]}, {"params": [b], "lr": torch.tensor(0.02)}], lr=0.1, momentum=0.5)
    ladder = o2nc.Ladder(opt)
    for _ in range(500):
        a.grad, b.grad = a.detach().sign(), b.detach().sign()
        opt.step()
        ladder.step()
    assert ladder.rung > 2
    expected = [start * 2.0**-ladder.rung for start in (0.1, 0.02)]
    assert [float(lr) for lr in ladder.get_last_lr()] == pytest.approx(expected)


def test_lr_never_rises_above_its_start_whoever_changes_it():
    ladder = o2nc.Ladder(opt := sgd(3, 2.0, momentum=0.0))
    for t in follow(opt, ladder, 1000, lambda t, x: x.sign() if t < 500 else torch.ones_like(x)):
        if t == 499:
            assert ladder.rung > 0
            opt.param_groups[0]["lr"] = 0.1
        if t == 510:
            opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(5, dtype=torch.float64))], "lr": 0.03})
        assert all(group["lr"] <= start for group, start in zip(opt.param_groups, (0.1, 0.03), strict=False))


@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_steps_with_an_epoch_count_like_those_without():
    ladder = o2nc.Ladder(opt := sgd(20, 3.0))
    (x,) = opt.param_groups[0]["params"]
    for t in range(1, 301):
        x.grad = x.detach().sign()
        opt.step()
        ladder.step(t)
    assert opt.param_groups[0]["lr"] == kink(300)[2][-1] < 0.1
