"""Shuffling and augmentation are functions of seed and counter."""

import numpy as np
import pytest
import torch
from scipy import stats

from o2nc.random import words
from o2nc.scaling import uniform
from o2nc_experiments.cifar10.batches import (
    CASES,
    CROP_STREAM,
    MEAN,
    STD,
    augment,
    crops,
    normalise,
    shuffle,
    statistics,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def unsigned(found):
    return [word % 2**64 for word in found.tolist()]


@pytest.mark.parametrize("seed", [0, 7, 2**63, 2**100 + 1])
@pytest.mark.parametrize("step", [1, 2, 390 * 200, 2**62])
def test_draws_are_those_of_the_scalars_in_another_stream(seed, step):
    bits = unsigned(words(seed, torch.tensor([step]), 50, CROP_STREAM)[0])
    expected = [uniform(seed, step, stream=CROP_STREAM, draw=i) for i in range(50)]
    assert [((word >> 12) + 0.5) * 2.0**-52 for word in bits] == expected


def crop_and_flip(image, top, left, mirrored):
    """The slow twin: what happens to one image, (channels, height, width)."""
    framed = np.pad(image, ((0, 0), (4, 4), (4, 4)))
    crop = framed[:, top : top + image.shape[1], left : left + image.shape[2]]
    return crop[:, :, ::-1] if mirrored else crop


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("seed", "step", "shape"), [(0, 0, (70, 3, 32, 32)), (5, 391, (9, 2, 12, 7)), (1, 1, (1, 1, 1, 1))]
)
def test_augment_pads_crops_and_mirrors(seed, step, shape, memory_format):
    images = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, np.uint8))
    images = images.to(memory_format=memory_format)
    found = crops(seed, torch.tensor([step]), len(images))[0]
    out = augment(images, found)
    assert (out.dtype, out.shape) == (images.dtype, images.shape)
    for i, word in enumerate(unsigned(words(seed, torch.tensor([step]), len(images), CROP_STREAM)[0])):
        case = word % 2**63 % 162
        assert case == found[i] < CASES
        np.testing.assert_array_equal(out[i], crop_and_flip(images[i].numpy(), case // 18, case // 2 % 9, case % 2))


def cases(seed, step, n):
    """Return (top, left, mirrored) of n images, read off what became of an image whose pixels are numbered."""
    numbered = torch.arange(144, dtype=torch.int16).reshape(1, 1, 12, 12).expand(n, 1, 12, 12)
    out = augment(numbered, crops(seed, torch.tensor([step]), n)[0]).long()[:, 0, 6, 5:7]
    mirrored = (out[:, 1] < out[:, 0]).long()
    top = out[:, 0] // 12 - 2
    left = out[:, 0] % 12 - torch.where(mirrored == 1, 6, 5) + 4
    return torch.stack([top, left, mirrored], 1)


def test_all_crops_and_flips_are_equally_frequent_and_independent():
    found = cases(seed=3, step=17, n=40_000)
    counts = torch.bincount(found @ torch.tensor([18, 2, 1]), minlength=162)
    assert len(counts) == 162
    assert stats.chisquare(counts).pvalue > 1e-4
    # neighbours in a batch, the same place in the next step, the next seed: pairs are as independent as single ones
    for other in (found.roll(1, 0), cases(3, 18, 40_000), cases(4, 17, 40_000)):
        for k, values in enumerate((9, 9, 2)):
            pairs = torch.bincount(found[:, k] * values + other[:, k], minlength=values**2)
            assert stats.chisquare(pairs).pvalue > 1e-4


def test_crops_are_a_function_of_seed_step_and_position():
    state = torch.get_rng_state()
    found = crops(0, torch.arange(5, 8), 64)
    assert torch.equal(found, crops(0, torch.arange(5, 8), 64))
    assert torch.equal(found[1:, :20], crops(0, torch.arange(6, 8), 20))  # whatever else is drawn
    assert len({tuple(row) for row in [*found.tolist(), *crops(1, torch.arange(5, 8), 64).tolist()]}) == 6
    assert torch.equal(state, torch.get_rng_state())


def test_nothing_reads_the_data_back():
    """Tensors on the device meta have no data: what asks for it, as `item` does, fails there."""
    images, steps = torch.empty(8, 3, 32, 32, dtype=torch.uint8, device="meta"), torch.arange(2, device="meta")
    assert normalise(augment(images, crops(0, steps, 8)[0]), statistics().to("meta")).shape == images.shape
    assert shuffle(0, steps, 100).shape == (2, 100)


def test_normalise():
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(2, 3, 1, 1)
    x = normalise(images, statistics())
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    mean, std = (torch.tensor(c, dtype=torch.float64).reshape(3, 1, 1) for c in (MEAN, STD))
    expected = (images.double() / 255 - mean) / std
    torch.testing.assert_close(x.double(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(images[0, 0].flatten(), torch.arange(256, dtype=torch.uint8))


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 1000, 50_000])
def test_shuffle_is_a_permutation(n):
    (order,) = shuffle(0, torch.tensor([3]), n)
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(n))


def test_shuffle_is_a_function_of_seed_and_epoch():
    order = shuffle(0, torch.tensor([2, 3]), 1000)[1]
    assert torch.equal(order, shuffle(0, torch.tensor([3]), 1000)[0])
    for seed, epoch in [(0, 4), (1, 3), (0, 2), (3, 0)]:
        other = shuffle(seed, torch.tensor([epoch]), 1000)[0]
        assert (order == other).sum() < 10  # one in the mean: the number of fixed points of a random order
        assert abs(np.corrcoef(order, other)[0, 1]) < 0.15


def test_all_orders_are_equally_frequent():
    orders = shuffle(0, torch.arange(4000), 4)
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-4


def test_every_image_comes_to_every_place():
    places = shuffle(1, torch.arange(200), 500).argsort(1)
    counts = torch.stack([(places // 50 == k).sum(0) for k in range(10)])  # of tenths of the epoch, for every image
    statistic = ((counts - 20) ** 2 / 20).sum().item()
    assert stats.chi2(9 * 499).sf(statistic) > 1e-4
