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
from pathlib import Path

import numpy as np
import pytest
import torch

import o2nc
from problem import parameters, set_gradients
from registry import OURS, TORCH, claims, identical, params_of, same

EVERY_3 = o2nc.Polynomial(3, start=2, every=3)
OPTIMIZERS = OURS | {
    "AdamW every=3": lambda ps: OURS["AdamW"](ps, average=EVERY_3),
    "SGD offload": lambda ps: OURS["SGD"](ps, average=EVERY_3, offload=True),
    "AdamW x̄ alone": lambda ps: OURS["AdamW"](ps, certificate=False),
    "ScaledSGDM geometric": lambda ps: OURS["ScaledSGDM"](ps, output="geometric"),
    "ScaledSGDM, no averages": lambda ps: OURS["ScaledSGDM"](ps, average=None, scaling=o2nc.Gamma(0.5)),
    "OriginalO2NC restart": lambda ps: OURS["OriginalO2NC"](ps, restart=True),
    "random_scaling(Rprop)": lambda ps: o2nc.random_scaling(TORCH["Rprop"](ps), seed=6),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
STEPS = 17


def advance(opt, first, last):
    params = params_of(opt)
    for t in range(first, last + 1):
        opt.param_groups[0]["lr"] = 0.02 * (1 + 0.3 * math.sin(t))
        set_gradients(params, t)
        opt.step()
    return opt


def checkpoint(opt, step):
    """Return what is to be continued, as a file has it."""
    file = io.BytesIO()
    torch.save({"params": params_of(opt), "optimizer": opt.state_dict(), "step": step}, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def continued(name, saved, last, dtype):
    """Load a checkpoint into a new optimizer, and go on."""
    opt = OPTIMIZERS[name](parameters(dtype))
    with torch.no_grad():
        for p, x in zip(params_of(opt), saved["params"], strict=True):
            p.copy_(x)
    opt.load_state_dict(saved["optimizer"])
    return advance(opt, saved["step"] + 1, last)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@every_optimizer
def test_a_checkpoint_continues_bitwise(name, dtype):
    if "NAdam" in name and dtype != torch.float32:
        pytest.skip("torch's NAdam loads a float32 number of its state in the parameter's dtype")
    opt, step = OPTIMIZERS[name](parameters(dtype)), random.Random(name).randrange(1, STEPS)
    advance(opt, 1, step)
    saved = checkpoint(opt, step)
    same(claims(advance(opt, step + 1, STEPS)), claims(continued(name, saved, STEPS, dtype)))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))], ids=["deep", "pickle"]
)
@every_optimizer
def test_copies_continue_bitwise(name, copied):
    opt = advance(OPTIMIZERS[name](parameters(torch.float32)), 1, 8)
    other = copied(opt)
    same(claims(advance(opt, 9, STEPS)), claims(advance(other, 9, STEPS)))
    advance(other, STEPS + 1, STEPS + 2)  # the copy does not write into the original
    same(claims(opt), claims(advance(OPTIMIZERS[name](parameters(torch.float32)), 1, STEPS)))


@every_optimizer
def test_global_generators_are_untouched(name):
    opt = OPTIMIZERS[name](parameters())
    set_gradients(params_of(opt), 1)
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
    opts = {name: make(parameters(torch.float32)) for name, make in OPTIMIZERS.items()}
    for step in itertools.count(1):
        saved = {name: checkpoint(advance(opt, step, step), step) for name, opt in opts.items()}
        torch.save(saved, folder / "new")
        os.replace(folder / "new", folder / "saved.pt")


def go_on(folder):
    """Load what a killed process has saved, continue, and write the new checkpoints."""
    found = torch.load(folder / "saved.pt", weights_only=True)
    opts = {name: continued(name, saved, saved["step"] + 9, torch.float32) for name, saved in found.items()}
    torch.save(
        {name: checkpoint(opt, found[name]["step"] + 9) for name, opt in opts.items()}, folder / "continued.pt"
    )


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
        unbroken = checkpoint(advance(OPTIMIZERS[name](parameters(torch.float32)), 1, found["step"]), found["step"])
        identical(found, unbroken)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    train_until_killed(Path(sys.argv[1])) if sys.argv[2:] else go_on(Path(sys.argv[1]))
