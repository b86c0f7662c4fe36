"""Compile every kernel for a GPU that need not be here; print how many there were.

    python tests/compile_kernels.py [some | all]

``all`` takes every rule, law and dtype, and a minute.

Not a test by itself: `test_fused_gpu.py` runs it in a process of its own, where Triton's interpreter is off.
"""

import itertools
import sys

import torch
import triton
from o2nc.backends.triton import engine, launches
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import o2nc
from fused_device import begin, set_noise
from o2nc import learners

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {torch.int64: "*i64", torch.int32: "*i32", torch.float64: "*fp64", torch.float32: "*fp32"}
OTHERS = (torch.float64, torch.bfloat16, torch.float16)
LEARNERS = (
    learners.OGD(0.01, decay=0.3),
    learners.BallOGD(0.01, radius=0.05, decay=0.1),
    learners.FTRL(0.01, decay=0.2),
    learners.FTRL(0.01, radius=0.05),
    learners.AdaGrad(0.01),
    learners.AdaGrad(0.01, diagonal=True),
    learners.BallAdaGrad(0.01),
    learners.ScaleFree(0.01),
    learners.ScaleFree(0.01, radius=0.05),
    learners.ScaleFree(0.01, diagonal=False),
    learners.CoinBetting(),
)
compiled = set()


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
        triton.compile(source, target=TARGET, options={"num_warps": self.warps} | self.options)
        compiled.add(key)


def step(make, dtype, scaled=False):
    params = begin("cpu", dtype, shapes=[(700,), (3, 4)])
    opt = make(params)
    if scaled:
        opt.found_inf, opt.grad_scale = torch.tensor(0.0), torch.tensor(1.0)
    set_noise(params, 1)
    opt.step()


def observe(progress):
    """An extended optimizer: its first step is not the kernel's."""
    params = begin("cpu", torch.float32, shapes=[(700,), (3, 4)])
    opt = o2nc.extend(torch.optim.SGD(params, lr=0.1), average=0.9, progress=progress)
    for t in (1, 2):
        set_noise(params, t)
        opt.step()


def sgdm(**options):
    return lambda ps: o2nc.ScaledSGDM(ps, lr=0.01, fused=True, **options)


def o2nc_with(learner, **options):
    return lambda ps: o2nc.ExponentiatedO2NC(ps, learner, beta=0.95, fused=True, **options)


def main():
    engine.DEVICES = ("cuda", "cpu")
    launches.Launch.__call__ = compile_only
    for learner in (learners.ScaleFree(0.01, radius=0.05), learners.CoinBetting()):
        step(o2nc_with(learner), torch.bfloat16)
    step(sgdm(momentum=0.9, average=0.99), torch.float32)
    step(lambda ps: o2nc.AdamW(ps, average=o2nc.Polynomial(12), fused=True), torch.float32)
    if sys.argv[1:] != ["some"]:
        compile_all()
    print(*sorted({name for name, _ in compiled}), len(compiled))


def compile_all():
    for momentum, nesterov, average in itertools.product((0, 0.9), (False, True), (None, 0.99, 0.9)):
        if momentum or not nesterov:
            step(sgdm(momentum=momentum, nesterov=nesterov, average=average), torch.float32)
    for learner in LEARNERS:
        step(o2nc_with(learner), torch.float32)
    for learner in LEARNERS[-3:]:
        step(o2nc_with(learner, average=False), torch.float32)
    for dtype in OTHERS:  # a dtype changes loads, stores and the width of the arithmetic
        step(sgdm(momentum=0.9, average=0.99), dtype)
        for learner in LEARNERS if dtype == torch.bfloat16 else LEARNERS[-3:]:
            step(o2nc_with(learner), dtype)
    for dtype, amsgrad, average in itertools.product((torch.float32, *OTHERS), (False, True), (None, 0.9)):
        step(lambda ps, a=amsgrad, w=average: o2nc.AdamW(ps, amsgrad=a, average=w, fused=True), dtype)
    for progress in (False, True):
        observe(progress)
    # only the opening knows the law
    for law in (None, o2nc.Uniform(), o2nc.Weibull(2.5), o2nc.Gamma(4)):
        step(sgdm(momentum=0.9, average=0.99, scaling=law), torch.float32)
    for make in (sgdm(momentum=0.9, average=0.99), o2nc_with(learners.CoinBetting())):
        step(make, torch.float32, scaled=True)


if __name__ == "__main__":
    main()
