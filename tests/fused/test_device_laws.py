"""s on the device is the host's: the same counter-based numbers from the same seed and step."""

import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
from o2nc.scaling import uniform


def drawn(device, law, seed, step):
    """The s of one step: at lr 1 from 0 against the gradient −1 it is where the parameter arrives."""
    p = torch.nn.Parameter(torch.zeros((), dtype=torch.float64, device=device))
    opt = rig.sgdm([p], lr=1.0, scaling=law, seed=seed)
    settings = opt.param_groups[0]["o2nc"]
    settings["step"].fill_(step - 2)
    p.grad = -torch.ones_like(p)
    opt.step()
    assert rig.is_fused(opt)  # without momentum and averages there is no state to create
    assert int(settings["step"]) == step - 1
    return p.item()


SEEDS = [0, 1, 12345, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**200 + 7]
STEPS = [2, 3, 1000, 2**31 - 1, 2**31, 2**31 + 1, 2**33 + 5, 2**53 + 1, 2**62]


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_numbers_are_the_hosts_to_the_bit(device, seed):
    for step in STEPS if seed in (0, 2**63) else STEPS[:3]:
        assert drawn(device, o2nc.Uniform(0, 1), seed, step) == uniform(seed, step)
        assert drawn(device, o2nc.Jitter(0.25), seed, step) == o2nc.Jitter(0.25).sample(seed, step)


@pytest.mark.parametrize("seed", [0, 2**63])
def test_s_is_the_hosts_up_to_a_logarithm(device, seed):
    """Exp within one unit in the last place; Weibull and Gamma, which take more functions, within 1e-14."""
    for step in range(2, 12):
        s = o2nc.Exponential().sample(seed, step)
        assert abs(drawn(device, o2nc.Exponential(), seed, step) - s) <= np.spacing(s)
        for law in (o2nc.Weibull(0.8), o2nc.Gamma(16)):
            assert drawn(device, law, seed, step) == pytest.approx(law.sample(seed, step), rel=1e-14)
