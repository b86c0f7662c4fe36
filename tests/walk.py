"""Where one call goes within o2nc: what a reader has to follow.

    python tests/walk.py

prints calls, different functions, files and changes of file, for a step after the first few and for a certificate.
"""

import os
import sys
from itertools import pairwise
from pathlib import Path

import torch

import o2nc
from o2nc import learners

SOURCE = Path(o2nc.__file__).parent


def walk(function):
    """Return file and function of every call within o2nc that ``function`` makes, in order."""
    calls = []

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        is_function = not frame.f_code.co_name.startswith("<")  # comprehensions are part of theirs
        if event == "call" and is_function and path.is_relative_to(SOURCE):
            calls.append((path.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def summary(calls):
    """Return the numbers of calls, functions, files and changes of file."""
    files = [file for file, _ in calls]
    changes = sum(a != b for a, b in pairwise(files))
    return {"calls": len(calls), "functions": len({*calls}), "files": len({*files}), "changes": changes}


def walks(device="cpu", fused=None):
    """Return what is walked, by name: three parameters, averages, the tenth step."""
    makers = {
        "ScaledSGDM": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.99, fused=fused),
        "ExponentiatedO2NC(OGD)": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(lr=0.1), fused=fused),
    }
    found = {}
    for name, make in makers.items():
        params = [torch.nn.Parameter(torch.ones(n, device=device)) for n in (3, 4, 5)]
        opt = make(params)
        for _ in range(10):
            for p in params:
                p.grad = torch.ones_like(p)
            found[f"{name}.step()"] = walk(opt.step)
        found[f"{name}.certificate()"] = walk(opt.certificate)
    return found


if __name__ == "__main__":
    os.environ.setdefault("TRITON_INTERPRET", "1")
    for title, calls in walks().items():
        print(title, summary(calls))
    if len(sys.argv) > 1:
        for call in walks()[sys.argv[1]]:
            print(*call)
