"""Where one call goes within o2nc: what a reader has to follow.

    python tests/walk.py [AdamW.step]

prints calls, different functions, files and changes of file, of every walk, or all calls of one.
"""

import os
import sys
from itertools import pairwise
from pathlib import Path

import torch

import o2nc
from registry import trained

SOURCE = Path(o2nc.__file__).parent
WALKED = ("SGD", "AdamW", "extend(NAdam)", "ScaledSGDM", "OGD")


def walk(function, *arguments):
    """Return file and function of every call within o2nc that ``function`` makes, in order."""
    calls = []

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        is_function = not frame.f_code.co_name.startswith("<")  # comprehensions are part of theirs
        if event == "call" and is_function and path.is_relative_to(SOURCE):
            calls.append((path.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return calls


def summary(calls):
    """Return the numbers of calls, functions, files and changes of file."""
    files = [file for file, _ in calls]
    changes = sum(a != b for a, b in pairwise(files))
    return {"calls": len(calls), "functions": len({*calls}), "files": len({*files}), "changes": changes}


def walks(name):
    """Return the walks of an optimizer with averages and certificate of three parameters, at its tenth step."""
    opt = trained(name, 9, [torch.nn.Parameter(torch.ones(n)) for n in (3, 4, 5)])
    found = {"step": walk(opt.step)}
    for ask in (opt.certificate, opt.state_dict):
        found[ask.__name__] = walk(ask)
    found["load_state_dict"] = walk(opt.load_state_dict, opt.state_dict())
    return found


if __name__ == "__main__":
    os.environ.setdefault("TRITON_INTERPRET", "1")
    every = {f"{name}.{what}": calls for name in WALKED for what, calls in walks(name).items()}
    for title, calls in every.items():
        print(title, summary(calls))
    for title in sys.argv[1:]:
        for call in every[title]:
            print(*call)
