"""The fused step on a GPU: kernels compiled for one that is not here, and what only a real one shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fused_device as rig
import o2nc

# ---- compiling ----


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
