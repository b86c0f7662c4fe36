"""Compile every kernel for a GPU that need not be here; print each with its registers and what it spills.

    python tests/compile_kernels.py [some | all]

``all`` takes every rule, law and dtype, and a minute. A kernel that spills more than it may fails.

Not a test by itself: `fused/test_gpu.py` runs it in a process of its own, where Triton's interpreter is off.
"""

import itertools
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import fused_device as rig
import o2nc
from o2nc.fused import engine, launch

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {torch.int64: "*i64", torch.int32: "*i32", torch.float64: "*fp64", torch.float32: "*fp32"}
CUOBJDUMP = Path(os.path.dirname(triton.__file__)) / "backends/nvidia/bin/cuobjdump"
SPILLED = 16  # bytes of a thread: with few elements in float32 none, elsewhere a number or two
compiled = {}
current = ""  # what is being compiled


def compile_only(self):
    """Stand in for a launch."""
    names = self.kernel.arg_names
    assert list(self.compiled_in) == names[len(self.arguments) :], "compiled-in arguments are out of order"
    signature, constants = {}, {}
    for i, (name, value) in enumerate(zip(names, (*self.arguments, *self.compiled_in.values()), strict=True)):
        if name in self.compiled_in:
            signature[name], constants[(i,)] = "constexpr", value
        else:
            signature[name] = POINTERS[value.dtype] if isinstance(value, torch.Tensor) else "i32"
    key = self.kernel.__name__, str({name: getattr(v, "__name__", v) for name, v in self.compiled_in.items()})
    if key not in compiled:
        source = ASTSource(self.kernel, signature, constants)
        found = triton.compile(source, target=TARGET, options={"num_warps": self.warps} | launch.EXACT | self.options)
        compiled[key] = registers, stack = usage(found.asm["cubin"])
        print(f"{key[0]:15} {registers:4} registers, {stack:3} bytes spilled: {current}")
        assert key[0] == "open_kernel" or stack <= SPILLED, f"{current}: {key[0]} spills {stack} bytes"


def usage(cubin):
    """Return the registers and the bytes of stack that a thread takes."""
    if not CUOBJDUMP.exists():
        return 0, 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return tuple(map(int, re.search(r"REG:(\d+) STACK:(\d+)", done.stdout).groups()))


def compile_for(name, make, dtype=torch.float32):
    """Take two steps; the first is not the kernels'."""
    global current
    current = f"{name}, {str(dtype).removeprefix('torch.')}"
    rig.advance(make(rig.begin("cpu", dtype, shapes=[(700,), (3, 4)])), (1, 2))


def main():
    engine.DEVICES = ("cuda", "cpu")
    launch.Launch.__call__ = compile_only
    adamw, every_8 = partial(rig.CASES["AdamW"], average=0.9), o2nc.Polynomial(12, every=8)
    compile_for("AdamW", partial(adamw, certificate=False))
    compile_for("AdamW, certificate", adamw)
    compile_for("AdamW between two that count", partial(adamw, average=every_8))
    compile_for("averages alone", partial(rig.CASES["extend(Lion)"], average=0.9, certificate=False))
    compile_for("averages alone, certificate", rig.CASES["extend(Lion)"])
    compile_for("momentum", rig.CASES["ScaledSGDM"])
    compile_for("ScaleFree", rig.CASES["ScaleFree"])
    compile_for("OGD", rig.CASES["OGD"], torch.bfloat16)
    if sys.argv[1:] == ["some"]:
        return
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for (name, make), average in itertools.product(rig.CASES.items(), (None, 0.99)):
            compile_for(f"{name}, average={average}", partial(make, average=average), dtype)
        for learner in rig.LEARNERS:
            compile_for(f"{learner}, decay", partial(rig.algorithm_2, learner=learner, weight_decay=0.1), dtype)
        for amsgrad in (False, True):
            adamw = partial(rig.CASES["AdamW"], average=0.9, certificate=False, amsgrad=amsgrad)
            compile_for(f"AdamW, amsgrad={amsgrad}, x̄", adamw, dtype)
    for law in (None, *rig.LAWS):  # only the opening knows the law
        compile_for(f"momentum, {law}", partial(rig.CASES["ScaledSGDM"], scaling=law))


if __name__ == "__main__":
    main()
