"""`certify` where torch.set_default_device says another device; of optimizers see persist/test_resume.py."""

import pytest
import torch

import o2nc
from o2nc import problems

NOWHERE = torch.device("meta")  # a tensor made there by mistake holds no numbers, and breaks what it touches


@pytest.mark.parametrize("dimension", [3, 9])  # fewer and more than there are iterates
@pytest.mark.parametrize(
    "weights", ["exponential", "optimal", [1, 2, 3, 4, 5, 6]], ids=["exponential", "optimal", "own"]
)
def test_certify_makes_its_tensors_where_the_iterates_are(weights, dimension):
    problem = problems.DoubleWell(dimension)
    generator = torch.Generator().manual_seed(0)
    iterates = list(0.01 * torch.randn(6, dimension, dtype=torch.float64, generator=generator))
    here = o2nc.certify(problem.gradient, iterates, c=10.0, weights=weights)
    with NOWHERE:
        there = o2nc.certify(problem.gradient, iterates, c=10.0, weights=weights)
        promised = there.goldstein(1.0, lipschitz=problem.lipschitz)
    assert there.value == here.value
    assert torch.equal(there.point, here.point)
    assert torch.equal(promised.point, here.goldstein(1.0, lipschitz=problem.lipschitz).point)
