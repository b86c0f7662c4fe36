"""The fused step on a GPU: compiled for one that is not here, with the host's s, and what only a real one shows."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
from o2nc.scaling import uniform


@rig.needs_triton
@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_kernels_compile_for_a_gpu_that_is_not_here(which, tmp_path):
    """Every kernel for compute capability 9.0, ``all`` with every rule, law and dtype; none spills registers."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, str(Path(__file__).parents[1] / "compile_kernels.py"), which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names = {line.split()[0] for line in lines}
    assert names == {"close_kernel", "open_kernel", "step_kernel"}
    assert len(lines) > {"some": 12, "all": 60}[which]


# ---- s on the device is the host's: the same counter-based numbers from the same seed and step ----


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


# ---- on a GPU only ----


@rig.needs_cuda
def test_more_than_two_to_the_31_elements(device):
    """Offsets are 64 bits wide: every element gets the step of its own gradient."""
    count = 2**31 + 1029
    if torch.cuda.mem_get_info()[0] < 30 << 31:
        pytest.skip("needs 60 GiB of free memory")
    p = torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16, device=device))
    p.grad = torch.empty_like(p)
    blocks = [slice(low, min(low + (1 << 28), count)) for low in range(0, count, 1 << 28)]
    for block in blocks:  # 0 … 126, exact in bfloat16, and so is all that is computed from them
        p.grad[block] = torch.arange(block.start, block.stop, device=device) % 127
    opt = rig.sgdm([p], lr=1.0, momentum=0.5, scaling=None, average=o2nc.Polynomial(0))
    opt.step()
    p.grad.mul_(2)
    opt.step()  # by kernels
    assert rig.is_fused(opt)
    state = opt.state[p]
    for block in blocks:
        g = p.grad[block] / 2
        assert torch.equal(state["momentum_buffer"][block], (2.5 * g.float()).bfloat16())
        assert torch.equal(p[block], (-3.5 * g.float()).bfloat16())
        assert torch.equal(state["o2nc"]["gradient"][block], 1.5 * g.float())
        assert torch.equal(state["o2nc"]["average"][block], -0.5 * g.float())
    whole, rest = divmod(count, 127)
    square = whole * sum(i * i for i in range(127)) + sum(i * i for i in range(rest))
    assert opt.certificate().gradient == pytest.approx(1.5 * square**0.5, rel=1e-6)
    assert opt.certificate().spread == pytest.approx(square / 4, rel=1e-6)
