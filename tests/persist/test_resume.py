"""A run that is saved, copied or killed goes on bitwise as the one that was not. No global generator is touched."""

import copy
import io
import itertools
import math
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
from problem import SHAPES, parameters
from registry import FUSED, OURS, TORCH, build, claims, identical, params_of

EVERY_3 = o2nc.Polynomial(3, start=2, every=3)


def extended(name, params, fused=False):
    return o2nc.extend(TORCH[name](params), average=o2nc.Polynomial(3, every=2), certificate=True, seed=5)


def scaled(name, params, fused=False):
    return o2nc.random_scaling(TORCH[name](params), seed=6)


# called with parameters, and with fused=True where kernels are to take the steps
OPTIMIZERS = {name: partial(build, name, fused=False) for name in OURS} | {
    "AdamW every=3": partial(build, "AdamW", average=EVERY_3, fused=False),
    "SGD offload": partial(build, "SGD", average=EVERY_3, offload=True, fused=False),
    "extend(Lion) offload": partial(build, "extend(Lion)", average=EVERY_3, offload=True, fused=False),
    "AdamW x̄ alone": partial(build, "AdamW", certificate=False, fused=False),
    "ScaledSGDM geometric": partial(build, "ScaledSGDM", output="geometric", fused=False),
    "ScaledSGDM, no averages": partial(build, "ScaledSGDM", average=None, scaling=o2nc.Gamma(0.5), fused=False),
    "OriginalO2NC restart": partial(build, "OriginalO2NC", restart=True),
    **{f"extended {name}": partial(extended, name) for name in TORCH},
    **{f"scaled {name}": partial(scaled, name) for name in TORCH},
}
KERNELS = [*FUSED, "extend(Lion)", "AdamW every=3", "AdamW x̄ alone", "ScaledSGDM geometric"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def begin(dtype, device="cpu"):
    return rig.begin(device, dtype, shapes=SHAPES)


def advance(opt, first, last):
    for t in range(first, last + 1):
        opt.param_groups[0]["lr"] = 0.02 * (1 + 0.3 * math.sin(t))
        rig.set_noise(params_of(opt), t)
        opt.step()
    return opt


def checkpoint(opt, step):
    """Return what is to be continued, as a file has it."""
    file = io.BytesIO()
    torch.save({"params": params_of(opt), "optimizer": opt.state_dict(), "step": step}, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def loaded(saved, make):
    """Return a new optimizer that has loaded a checkpoint."""
    opt = make([torch.nn.Parameter(p) for p in saved["params"]])
    opt.load_state_dict(saved["optimizer"])
    return opt


COPIES = {
    "checkpoint": lambda opt, make: loaded(checkpoint(opt, 0), make),
    "deepcopy": lambda opt, make: copy.deepcopy(opt),
    "pickle": lambda opt, make: pickle.loads(pickle.dumps(opt)),
}
every_way = pytest.mark.parametrize("way", COPIES)


def check(make, way, name, start, steps=17):
    """Compare a run, its copy and a run that was not copied; at a step that is random, between two turns as well."""
    stop = random.Random(name + way).randrange(1, steps)
    opt = advance(make(start()), 1, stop)
    other = COPIES[way](opt, make)
    assert type(other) is type(opt)
    identical(claims(advance(opt, stop + 1, steps)), claims(advance(other, stop + 1, steps)))
    advance(other, steps + 1, steps + 2)  # the copy does not write into the original
    identical(claims(opt), claims(advance(make(start()), 1, steps)))
    return other


@every_way
@every_optimizer
def test_a_run_continues_bitwise(name, way):
    """torch drops step hooks silently when it copies an optimizer; here averages and scaling are in the copy."""
    if "Adafactor" in name and torch.cuda.is_available():
        pytest.skip("torch's own copies of Adafactor miss `capturable` where there is a GPU (2.11)")
    of_torch = name.split()[0] in ("extended", "scaled") or "NAdam" in name  # some of torch's load numbers as float32
    for dtype in DTYPES[:1] if of_torch or way != "checkpoint" else DTYPES:
        check(OPTIMIZERS[name], way, name, partial(begin, dtype))


@pytest.mark.some(16)
@every_way
@pytest.mark.parametrize("name", KERNELS)
def test_a_run_by_kernels_continues_bitwise(name, way, device):
    make = partial(OPTIMIZERS[name], fused=True)
    assert rig.is_fused(check(make, way, name, partial(begin, torch.float64, device), steps=6))


@every_optimizer
def test_global_generators_are_untouched(name):
    opt = OPTIMIZERS[name](parameters())
    rig.set_noise(params_of(opt), 1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    for _ in range(6):
        opt.step()
    claims(opt)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


# --- several processes


def train_until_killed(folder):
    """Train without an end, with a new checkpoint after every step."""
    opts = {name: make(begin(torch.float32)) for name, make in OPTIMIZERS.items()}
    for step in itertools.count(1):
        saved = {name: checkpoint(advance(opt, step, step), step) for name, opt in opts.items()}
        torch.save(saved, folder / "new")
        os.replace(folder / "new", folder / "saved.pt")


def go_on(folder):
    """Load what a killed process has saved, continue, and write the new checkpoints."""
    found = torch.load(folder / "saved.pt", weights_only=True)
    for name, saved in found.items():
        step = saved["step"]
        found[name] = checkpoint(advance(loaded(saved, OPTIMIZERS[name]), step + 1, step + 9), step + 9)
    torch.save(found, folder / "continued.pt")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_it_goes_on_bitwise_in_a_new_process(tmp_path):
    """Wherever SIGKILL falls, into the writing of a checkpoint as well."""
    running = subprocess.Popen([sys.executable, __file__, str(tmp_path), "train"])
    try:
        while not (tmp_path / "saved.pt").exists():
            assert running.poll() is None
            time.sleep(0.05)
        time.sleep(random.uniform(0, 0.5))
    finally:
        running.kill()
    assert running.wait() == -signal.SIGKILL
    subprocess.run([sys.executable, __file__, str(tmp_path)], check=True)
    for name, found in torch.load(tmp_path / "continued.pt", weights_only=True).items():
        identical(found, checkpoint(advance(OPTIMIZERS[name](begin(torch.float32)), 1, found["step"]), found["step"]))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    train_until_killed(Path(sys.argv[1])) if sys.argv[2:] else go_on(Path(sys.argv[1]))
