"""One trial against a slow twin; what is written in a row; what an evaluation must leave alone."""

import copy
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from cifar10_made import CPU, SMALL, bits, data, images, timeless, train_by_hand
from o2nc import Exponential, Uniform, recalibrated
from o2nc_experiments.cifar10 import batches
from o2nc_experiments.cifar10 import training as trial_module
from o2nc_experiments.cifar10.arms import DEFAULTS, parse
from o2nc_experiments.cifar10.batches import MEAN, STD, crops, normalise, shuffle, statistics, to_device
from o2nc_experiments.cifar10.batches import augment as augmented
from o2nc_experiments.cifar10.options import Settings
from o2nc_experiments.cifar10.training import Trial
from o2nc_experiments.classification import Epoch
from o2nc_experiments.classification.resnet import ResNet18
from problem import flat
from twin import averages

pytestmark = pytest.mark.usefixtures("one_thread")


def make(arm="sgdm+exponential", seed=0, settings=SMALL, **more):
    return Trial(parse(arm), seed, settings, images(**more))


def at_a_time(monkeypatch, images):
    """Evaluate so many images at once, where it is usually a thousand."""
    for module in (batches, trial_module):
        monkeypatch.setattr(module, "EVALUATED", images)


def whole(trial):
    """All that training changes."""
    return bits([trial.model.state_dict(), trial.optimizer.state_dict()])


# --- the twin


def prepare(pixels, cases=None):
    """Crop and mirror every image as its case says, and scale it: (n, 3, 32, 32) in float64, pixel by pixel."""
    out = np.zeros(pixels.shape)
    for i, image in enumerate(pixels):
        if cases is not None:
            top, left, mirrored = cases[i] // 18, cases[i] // 2 % 9, cases[i] % 2
            image = np.pad(image, ((0, 0), (4, 4), (4, 4)))[:, top : top + 32, left : left + 32]
            image = image[:, :, ::-1] if mirrored else image
        for channel in range(3):
            mean, std = (float(np.float32(255 * numbers[channel])) for numbers in (MEAN, STD))
            out[i, channel] = (image[channel].astype(float) - mean) / std
    return torch.from_numpy(out)


def evaluated(model, pixels, labels):
    """Mean loss and accuracy of a model in evaluation mode, image by image."""
    model.eval()
    with torch.no_grad():
        logits = model(prepare(pixels.numpy()))
    losses = [-row.log_softmax(0)[label].item() for row, label in zip(logits, labels.tolist(), strict=True)]
    right = [int(row.argmax()) == label for row, label in zip(logits, labels.tolist(), strict=True)]
    return math.fsum(losses) / len(losses), sum(right) / len(right)


def twin(made, settings, seed, lr, momentum, decay, nesterov, law, together):
    """SGD with momentum on CIFAR-10, written openly: yields the model and the numbers of a row after every epoch."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = ResNet18(width=settings.width).double()
    params = list(model.parameters())
    n, batch = len(made.train_images), settings.batch
    orders = [shuffle(seed, torch.tensor([e]), n)[0].tolist() for e in range(settings.epochs + 1)]
    seen = [image for order in orders for image in order]
    buffers = [torch.zeros_like(p) for p in params]
    xs, gs, scalars = [], [], []
    for epoch in range(settings.epochs):
        rate = lr * (1 + math.cos(math.pi * epoch / settings.epochs)) / 2
        losses, right = [], []
        while len(xs) * batch < (epoch + 1) * n:
            step = len(xs)
            at = seen[step * batch : (step + 1) * batch]
            inputs = prepare(made.train_images[at].numpy(), crops(seed, torch.tensor([step]), batch)[0].tolist())
            labels = made.train_labels[at]
            model.train()
            logits = model(inputs)
            each = -logits.log_softmax(1)[range(batch), labels]
            grads = torch.autograd.grad(each.mean(), params)
            losses += each.tolist()
            right += (logits.argmax(1) == labels).tolist()
            xs.append(flat(params))
            s = 1.0 if law is None else law.sample(seed, step + 2)
            scalars.append(s)
            with torch.no_grad():
                grads = [g + decay * p for g, p in zip(grads, params, strict=True)]
                gs.append(flat(grads))
                for p, g, b in zip(params, grads, buffers, strict=True):
                    b.copy_(momentum * b + g)
                    p -= s * rate * (g + momentum * b if nesterov else b)
        # Σ w(s_t)⟨g_t, Δ_t⟩, where Δ_t = (x_t − x_{t−1})/s_t
        moves = [(b - a) / s for a, b, s in zip(xs, xs[1:], scalars, strict=False)]
        weights = [1.0 if law is None else law.weight(s) for s in scalars]
        progress = sum(w * g @ d for w, g, d in zip(weights, gs[1:], moves, strict=False))
        reweighted = [1.0] * len(xs)  # no law is weighted unless it is asked to
        x_mean, g_mean, spread, _ = averages(xs, gs, settings.average, reweighted)
        average = copy.deepcopy(model)
        nn.utils.vector_to_parameters(torch.from_numpy(x_mean), average.parameters())
        calibrate(average, made, seed, orders[epoch], together)
        yield (
            model,
            x_mean,
            {
                "lr": rate,
                "train_loss": math.fsum(losses) / len(losses),
                "train_accuracy": sum(right) / len(right),
                **dict(zip(("test_loss", "test_accuracy"), evaluated(model, *made[2:4]), strict=True)),
                "gradient": np.linalg.norm(g_mean),
                "spread": spread,
                "progress": progress,
                **dict(zip(("average_loss", "average_accuracy"), evaluated(average, *made[2:4]), strict=True)),
            },
        )


def calibrate(model, made, seed, order, together):
    """Give every BatchNorm the mean statistics of the first whole batches of the epoch, at most five."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    size = min(together, len(order))
    found = []
    for i in range(min(5, len(order) // size)):
        at = order[i * size : (i + 1) * size]
        inputs = prepare(made.train_images[at].numpy(), crops(seed, torch.tensor([i]), size)[0].tolist())
        for norm in norms:
            norm.momentum = 1.0  # the statistics are those of the last batch
        model.train()
        with torch.no_grad():
            model(inputs)
        found.append([(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms])
    for norm, each in zip(norms, zip(*found, strict=True), strict=True):
        norm.running_mean.copy_(torch.stack([mean for mean, _ in each]).mean(0))
        norm.running_var.copy_(torch.stack([variance for _, variance in each]).mean(0))


@pytest.mark.parametrize(
    ("arm", "options", "law", "together"),
    [
        ("sgdm(lr=0.05)", (0.05, 0.9, 5e-4, False), None, 1000),
        ("sgdm+exponential", (0.01, 0.9, 5e-4, False), Exponential(), 15),
        ("sgdm(momentum=0.7,weight_decay=0.1,nesterov=True)+uniform", (0.01, 0.7, 0.1, True), Uniform(), 1000),
    ],
)
def test_a_trial_is_what_is_written_openly(arm, options, law, together, monkeypatch):
    """In float64, with batches that go on across epochs; evaluated all at once, or 15 and 2 images at a time."""
    at_a_time(monkeypatch, together)
    settings, made, seed = Settings(epochs=2, batch=16, average=0.9, width=2), data(40, 17), 5
    trial = Trial(parse(arm), seed, settings, to_device(made, CPU, dtype=torch.float64))
    count = 0
    for model, x_mean, numbers in twin(made, settings, seed, *options, law, together):
        (row,) = train_by_hand(trial, 1)
        count += 1
        assert (row.arm, row.seed, row.epoch) == (arm, seed, count)
        for ours, theirs in zip(trial.model.state_dict().items(), model.state_dict().items(), strict=True):
            assert ours[0] == theirs[0]
            torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=1e-10, msg=ours[0])
        found = flat([trial.optimizer.state[p]["average"] for p in trial.model.parameters()])
        np.testing.assert_allclose(found, x_mean, rtol=0, atol=1e-11)
        assert {name: getattr(row, name) for name in numbers} == pytest.approx(numbers, rel=1e-9)
    assert count == 2
    assert trial.finished


# --- rows


def test_the_columns_are_what_they_say(monkeypatch):
    """Certificate and progress are the optimizer's; x̄ is measured with BatchNorm's statistics made anew."""
    at_a_time(monkeypatch, 30)
    trial = make(settings=SMALL, train=80, test=31)
    for _ in range(2):
        (row,) = train_by_hand(trial, 1)
        optimizer, model, own = trial.optimizer, trial.model, trial.images
        certificate = optimizer.certificate()
        assert (row.gradient, row.spread) == (certificate.gradient, certificate.spread)
        assert row.progress == optimizer.progress
        order = shuffle(0, torch.tensor([row.epoch - 1]), 80)[0]
        typical = [
            normalise(
                augmented(own.train[order[i * 30 : i * 30 + 30]], crops(0, torch.tensor([i]), 30)[0]), statistics()
            )
            for i in range(2)
        ]
        made = data(80, 31)
        with optimizer.averaged(), recalibrated(model, typical), torch.no_grad():
            # in parts of the same size: convolutions of another one may round otherwise
            logits = [model.eval()(normalise(part, statistics())) for part in made.test_images.split(30)]
        right = (torch.cat(logits).argmax(1) == made.test_labels).sum().item()
        assert row.average_accuracy == right / 31
        losses = [
            nn.functional.cross_entropy(*pair, reduction="sum").item()
            for pair in zip(logits, made.test_labels.split(30), strict=True)
        ]
        assert row.average_loss == pytest.approx(sum(losses) / 31, rel=1e-6)
        assert row.average_loss != row.test_loss


@pytest.mark.parametrize("arm", ["sgdm", "adamw+gamma", "coin-betting(wealth=0.01)+weibull"])
def test_averages_are_in_every_row_or_ten_or_none(arm):
    settings = Settings(epochs=21, batch=8, width=1)
    rows = train_by_hand(make(arm, settings=settings, train=8, test=4))
    assert [row.epoch for row in rows] == list(range(1, 22))
    due = [] if arm.startswith("adamw") else [*range(2, 21, 2), 21]
    assert [row.epoch for row in rows if row.average_accuracy is not None] == due
    assert [row.epoch for row in rows if row.average_loss is not None] == due
    for name in ("gradient", "spread", "progress"):
        assert all((getattr(row, name) is None) == (not due) for row in rows)
    base = make(arm).base[0]
    assert [row.lr for row in rows] == [base * (1 + math.cos(math.pi * e / 21)) / 2 for e in range(21)]
    assert all(0 <= row.train_accuracy <= 1 and 0 <= row.test_accuracy <= 1 and row.seconds > 0 for row in rows)


def test_the_learning_rate_reaches_the_optimizer():
    for arm in ("sgdm", "adamw(lr=0.5)+uniform", "ogd+exponential", "coin-betting"):
        trial = make(arm, settings=Settings(epochs=4, batch=8, width=1), train=8, test=4)
        base = trial.optimizer.param_groups[0]["lr"]
        for epoch in range(4):
            assert trial.begin_epoch() == 1
            assert trial.optimizer.param_groups[0]["lr"] == base * (1 + math.cos(math.pi * epoch / 4)) / 2
            trial.step()
            trial.launch_evaluation()
            trial.end_epoch()


@pytest.mark.parametrize("base", DEFAULTS)
def test_a_trial_that_diverges_goes_on_to_its_end(base):
    options = "wealth=1e20" if base == "coin-betting" else "lr=1e20"
    rows = train_by_hand(make(f"{base}({options})+exponential"))
    assert [row.epoch for row in rows] == [1, 2, 3]
    assert all(0 <= row.test_accuracy <= 1 for row in rows)
    if base in ("sgdm", "adamw"):
        assert not math.isfinite(rows[-1].train_loss)


# --- what an evaluation must leave alone


@pytest.mark.parametrize("arm", ["sgdm+exponential", "scale-free+uniform", "adamw"])
def test_evaluation_changes_nothing(arm):
    trial = make(arm)
    for _ in range(2):
        for _ in range(trial.begin_epoch()):
            trial.step()
        assert all(module.training for module in trial.model.modules())
        before = whole(trial)
        place = bits(list(trial.batches))
        trial.launch_evaluation()
        assert whole(trial) == before
        trial.end_epoch()
        assert whole(trial) == before
        assert bits(list(trial.batches)) == place
        assert all(module.momentum == 0.1 for module in trial.model.modules() if isinstance(module, nn.BatchNorm2d))


def test_training_is_the_same_whether_averages_are_evaluated_or_not(monkeypatch):
    first = make()
    rows = train_by_hand(first)
    monkeypatch.setattr(Settings, "averages_are_due", lambda self, epoch: False)
    second = make()
    others = train_by_hand(second)
    assert whole(first) == whole(second)
    blank = {"average_loss": None, "average_accuracy": None}
    assert [row._replace(**blank) for row in timeless(rows)] == timeless(others)
    assert rows[0].average_loss is not None


# --- seeds


def test_arms_of_one_seed_begin_alike():
    trials = [make(arm, seed=4) for arm in ("sgdm", "sgdm+exponential", "adamw", "ball-ogd+gamma")]
    start = [bits(trial.model.state_dict()) for trial in trials]
    assert all(other == start[0] for other in start)
    losses = []
    for trial in trials:
        trial.begin_epoch()
        trial.step()
        losses.append(trial.trained.tolist())
    assert all(loss == losses[0] for loss in losses)  # the same first batch, cropped alike
    for trial in trials[1:]:
        assert all(torch.equal(a, b) for a, b in zip(trial.batches, trials[0].batches, strict=True))
        assert bits(trial.model.state_dict()) != bits(trials[0].model.state_dict())


def test_seeds_differ_in_weights_order_crops_and_scalars():
    one, two = (make(seed=seed) for seed in (0, 1))
    weights = [[p for p in trial.model.parameters() if p.dim() > 1] for trial in (one, two)]
    assert not any(torch.equal(a, b) for a, b in zip(*weights, strict=True))
    for trial in (one, two):
        trial.begin_epoch()
    assert not torch.equal(one.batches.order, two.batches.order)
    assert not torch.equal(one.batches.cases, two.batches.cases)
    groups = [trial.optimizer.param_groups[0] for trial in (one, two)]
    assert [group["seed"] for group in groups] == [0, 1]


def test_a_seed_is_all_that_matters():
    """Whatever the global generators say, and they say afterwards what they would have said before."""
    rows = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        random.seed(noise)
        np.random.seed(noise)  # noqa: NPY002  # the global one is what is meant
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()  # noqa: NPY002
        trial = make(seed=2**62)
        rows.append((timeless(train_by_hand(trial)), whole(trial)))
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1:] == (random.getstate(), np.random.get_state()[1].tobytes())  # noqa: NPY002
    assert rows[0] == rows[1]


def test_a_row_has_a_value_per_column():
    (row,) = train_by_hand(make("adamw"), 1)
    assert len(row) == len(Epoch._fields)
    assert [type(value) for value in row] == [str, int, int, *[float] * 5, *[type(None)] * 5, float]
