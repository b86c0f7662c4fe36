"""Handwritten digits: a small network with kinks, trained by SGD with momentum and by the same with random scaling.

The 1797 images of 8×8 pixels come with scikit-learn (the test part of UCI's *Optical Recognition of Handwritten
Digits*). ReLU and max-pooling make the loss neither convex nor smooth. There is no BatchNorm: the loss is a function
of the weights alone, and x̄ can be evaluated as it is. The two arms of a seed begin with the same weights and see the
same batches; the one difference is ``scaling``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import o2nc
from o2nc_experiments import classification
from o2nc_experiments.classification import Epoch, best, by_arm, certificate, last, written
from o2nc_experiments.tables import Table, plural, signed

PLAIN, SCALED = "sgdm", "sgdm+exponential"
ARMS: dict[str, o2nc.Law | None] = {PLAIN: None, SCALED: o2nc.Exponential()}
NAMES = {PLAIN: "SGDM", SCALED: "scaled SGDM"}  # as they are shown
# as in the paper's experiment on CIFAR-10, with smaller batches for fewer images; nothing was tuned
LR, MOMENTUM, WEIGHT_DECAY, BATCH = 0.01, 0.9, 5e-4, 32
AVERAGE = 0.99  # up to 199 effective iterates, under five epochs
CHANNELS = (16, 32)
C = 0.1  # the price of spread: ‖ḡ‖ and cV are then of about one size while the weights travel
TEST = 4  # one in so many images
NOTE = (
    "train, test: the best of each trial's epochs; last: its last epoch's; x̄: the averaged weights then; "
    "mean ± standard deviation (n − 1) over the trials"
)


@dataclass(frozen=True)
class Digits:
    """Normalised images of shape (n, 1, 8, 8), and what they show."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor


def load() -> Digits:
    """Return the images; the test set is the last quarter of every digit's, in the order of the file.

    The file seems to go from writer to writer: the last images are harder than those of a random split, where the
    network has seen most hands in training.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = torch.tensor(bunch.images, dtype=torch.float32)[:, None], torch.tensor(bunch.target)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        (at,) = (labels == digit).nonzero(as_tuple=True)
        test[at[len(at) - len(at) // TEST :]] = True
    deviation, mean = torch.std_mean(images[~test])
    images = (images - mean) / deviation
    return Digits(images[~test], labels[~test], images[test], labels[test])


def network() -> nn.Module:
    """Return two convolutions with ReLU and max-pooling, and a linear layer."""
    first, second = CHANNELS
    return nn.Sequential(
        nn.Conv2d(1, first, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * second, 10),
    )


def trials(seeds: Sequence[int]) -> list[tuple[str, int]]:
    """Return arm and seed of every trial, in order: the arms of a seed follow each other."""
    return [(arm, seed) for seed in seeds for arm in ARMS]


def train(
    arm: str, seed: int, epochs: int, data: Digits, progress: Callable[[Epoch], object] = lambda row: None
) -> list[Epoch]:
    """Make one trial, one line of `trials`; the seed is that of the initial weights, the images' order, and s."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = network()
    optimizer = o2nc.ScaledSGDM(
        model.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY, scaling=ARMS[arm], seed=seed, average=AVERAGE
    )
    order = torch.Generator().manual_seed(seed)
    used = len(data.train) // BATCH * BATCH  # a few images, others in every epoch, make no whole batch and sit out
    rows = []
    for epoch in range(1, epochs + 1):
        begun = perf_counter()
        lr = 0.5 * LR * (1 + math.cos(math.pi * (epoch - 1) / epochs))
        optimizer.param_groups[0]["lr"] = lr
        losses = right = 0.0
        batches = torch.randperm(len(data.train), generator=order)[:used].view(-1, BATCH)
        for batch in batches:
            loss, hits = judge(model, data.train[batch], data.train_labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses += loss.item()
            right += hits
        trained = losses / len(batches), right / used
        tested = evaluate(model, data)
        certificate = optimizer.certificate(C)
        with optimizer.averaged():
            averaged = evaluate(model, data)
        known = certificate.gradient, certificate.spread, optimizer.progress
        rows.append(Epoch(arm, seed, epoch, lr, *trained, *tested, *known, *averaged, perf_counter() - begun))
        progress(rows[-1])
    return rows


def judge(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """Return the mean loss, and how many answers are right."""
    logits = model(images)
    return cross_entropy(logits, labels), int((logits.argmax(dim=1) == labels).sum())


@torch.no_grad()
def evaluate(model: nn.Module, data: Digits) -> tuple[float, float]:
    """Return loss and accuracy on the test set."""
    loss, right = judge(model, data.test, data.test_labels)
    return loss.item(), right / len(data.test)


def named(rows: Sequence[Epoch]) -> list[Epoch]:
    """Return the rows with the arms' names as they are shown."""
    return [row._replace(arm=NAMES[row.arm]) for row in rows]


def table(rows: Sequence[Epoch]) -> Table:
    """Return Table 1's rows for the digits."""
    return classification.table(named(rows), c=C, notes=NOTE)


def summary(rows: Sequence[Epoch], images: int) -> str:
    """Return what was seen on so many test images, in a sentence per line, over the seeds that both arms have."""
    rows = paired(rows)
    if not rows:
        return ""
    plain, scaled = (best(rows)[arm].test_accuracy for arm in ARMS)
    lasts = last(rows, C)[SCALED]
    assert lasts.average_accuracy is not None
    seeds = len({row.seed for row in rows})
    return (
        f"On the digits the best test accuracy is {written(plain, 1e2)} % without and "
        f"{written(scaled, 1e2)} % with scaling. Seed by seed, scaling changes test accuracy by "
        f"{difference(rows)} ({plural(seeds, 'seed')}; one image is {100 / images:.2f}).\n"
        f"With scaling the certificate ‖ḡ‖ + {C:g}V went {course(rows)}. The averaged weights x̄ then read "
        f"{written(lasts.average_accuracy, 1e2)} % of the test images and the last weights "
        f"{written(lasts.test_accuracy, 1e2)} %."
    )


def paired(rows: Sequence[Epoch]) -> list[Epoch]:
    """Return the rows of the seeds that both arms have."""
    both = set.intersection(*({row.seed for row in rows if row.arm == arm} for arm in ARMS))
    return [row for row in rows if row.seed in both]


def difference(rows: Sequence[Epoch]) -> str:
    """Return what scaling changes of the test accuracy in points, over the seeds of paired rows."""
    trials = list(zip(*(by_arm(rows)[arm] for arm in ARMS), strict=True))

    def change(read: Callable[[list[Epoch]], float]) -> str:
        found = [100 * (read(scaled) - read(plain)) for plain, scaled in trials]
        return signed(mean(found)) + (f" ± {stdev(found):.2f}" if len(found) > 1 else "")

    best = change(lambda trial: max(row.test_accuracy for row in trial))
    return f"{best} points at its best and by {change(lambda trial: trial[-1].test_accuracy)} at the end"


def course(rows: Sequence[Epoch]) -> str:
    """Return from where to where the certificate went with scaling."""
    found = [(row.epoch, v) for row in rows if row.arm == SCALED and (v := certificate(row, C)) is not None]
    first, end = (mean(v for epoch, v in found if epoch == at) for at in (min(found)[0], max(found)[0]))
    return f"from {first:.2g} after the first epoch to {end:.2g} after the last"
