"""Where the fused step is tested, on whom, and what two runs must share.

On a GPU where there is one (`make test-gpu`), else through Triton's interpreter.
"""

import copy
import importlib.metadata
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

import o2nc
from o2nc.fused import engine
from o2nc.optimizers.base import Averaged
from problem import noise, parameters
from registry import FUSED, INF, LAWS, build, claims, identical, params_of  # noqa: F401
from registry import LEARNERS as ALL_LEARNERS

CUDA = torch.cuda.is_available()
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a GPU")


def without_triton():
    """Say what Triton is missing, if it is; conftest.py chooses its interpreter later, so it is not imported here."""
    wanted = "needs Triton {}.{}".format(*engine.OLDEST_TRITON)
    try:
        there = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return wanted
    return "" if tuple(map(int, there.split(".")[:2])) >= engine.OLDEST_TRITON else f"{wanted}, {there} is here"


NO_TRITON = without_triton()
needs_triton = pytest.mark.skipif(bool(NO_TRITON), reason=NO_TRITON)


@pytest.fixture
def device(monkeypatch, one_thread):
    """The device on which the kernels run here."""
    if NO_TRITON:
        pytest.skip(NO_TRITON)
    if not CUDA:
        monkeypatch.setattr(engine, "DEVICES", ("cuda", "cpu"))
        _hasten(monkeypatch)
    _note_answers(monkeypatch)
    return "cuda" if CUDA else "cpu"


def _hasten(monkeypatch):
    """Make Triton's interpreter twice as fast, without what it does again and again in every function and operation.

    It replaces the language in every function that a kernel calls, not once per launch; it lists all dtypes to find
    one; it computes integers once more, with more bits, to see that they did not overflow.
    """
    from triton import language
    from triton.runtime import interpreter

    replace_language, is_there = interpreter._patch_lang, language.core.is_builtin
    no_change = SimpleNamespace(restore=lambda: None)  # the language is left to whoever has replaced it

    @cache
    def languages(function):
        return [v for v in function.__globals__.values() if v is language or v is language.core]

    def replace_once(function):
        missing = any(is_there(found.load) for found in languages(function))
        return replace_language(function) if missing else no_change

    look_up, known = interpreter._get_np_dtype, {}

    def find_dtype(dtype):
        name = dtype.scalar.name
        if name not in known:
            known[name] = look_up(dtype)
        return known[name]

    unchecked = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    monkeypatch.setattr(interpreter, "_patch_lang", replace_once)
    monkeypatch.setattr(interpreter, "_get_np_dtype", find_dtype)
    monkeypatch.setattr(interpreter.interpreter_builder, "options", unchecked)


def _note_answers(monkeypatch):
    """Keep what the engine said to the last step that it was asked to take."""
    take, step = engine.Engine.take, Averaged._step

    def asking(self, *arguments):
        self._engine.answer = "it was not asked"
        return step(self, *arguments)

    def noted(self, *arguments):
        self.answer = "an error was raised"
        self.answer = take(self, *arguments)
        return self.answer

    monkeypatch.setattr(engine.Engine, "take", noted)
    monkeypatch.setattr(Averaged, "_step", asking)


def is_fused(opt):
    """Whether kernels took the last step, or the averages' part of it."""
    return getattr(opt._engine, "answer", "") is None


def compare(work, tolerance=1e-12):
    """Assert that a run says the same with and without kernels; ``work(fused)`` returns its optimizer."""
    ours = work(True)
    assert is_fused(ours), ours._engine.answer
    found = facts(ours)
    with patch.object(engine, "DEVICES", ()):
        agree(found, facts(work(False)), tolerance)


@pytest.fixture
def counted(monkeypatch, device):
    """How often tables were laid out and uploaded."""
    from o2nc.fused.uploads import Uploads

    counts = {"layouts": 0, "uploads": 0}
    write, upload = engine.Engine._write, Uploads.upload

    def laying_out(self, *arguments):
        reason = write(self, *arguments)
        counts["layouts"] += reason is None
        return reason

    def uploading(self, *arguments):
        before = self.known
        table = upload(self, *arguments)
        counts["uploads"] += self.known is not before
        return table

    monkeypatch.setattr(engine.Engine, "_write", laying_out)
    monkeypatch.setattr(Uploads, "upload", uploading)
    return counts


def begin(device, dtype=torch.float64, shapes=((3, 2), (4,))):
    """The same parameters on every device."""
    return [torch.nn.Parameter(p.detach().to(device)) for p in parameters(dtype, shapes=shapes)]


def set_noise(params, step, missing=(), scale=1.0):
    """Give gradients that depend on nothing but the step and the parameter's place, and none to the missing."""
    for i, p in enumerate(params):
        g = noise(1000 * step + i, *p.shape) * scale
        p.grad = None if i in missing else g.to(p.dtype).to(p.device)


def advance(opt, steps, missing=()):
    """Take these steps, in which the missing parameters have no gradients; no gradient is written to."""
    for t in steps:
        set_noise(params_of(opt), t, missing)
        before = [(p, p.grad.clone()) for p in params_of(opt) if p.grad is not None]
        opt.step()
        assert all(torch.equal(p.grad, g) for p, g in before), ".grad was written to"
    return opt


def facts(opt):
    """Return what `claims` says, by name, in float64; shards are made whole."""
    found = claims(opt)
    if certificate := found.pop("certificate", None):
        parts = (certificate, *certificate.by_parameter.values())
        found["certificate"] = [[part.gradient, part.spread, part.value, part.ess] for part in parts]
    leaves = {keystr(path): torch.as_tensor(leaf) for path, leaf in tree_flatten_with_path(found)[0]}
    whole = {path: leaf.full_tensor() if hasattr(leaf, "full_tensor") else leaf for path, leaf in leaves.items()}
    return {path: leaf.detach().to("cpu", torch.float64, copy=True) for path, leaf in whole.items()}


def agree(ours, theirs, tolerance=1e-12):
    """Assert that two runs say the same within rounding, or to the bit with tolerance 0."""
    assert ours.keys() == theirs.keys(), f"only one of them has {sorted(ours.keys() ^ theirs.keys())}"
    for key, value in ours.items():
        message = partial("{}: {}".format, key)
        torch.testing.assert_close(value, theirs[key], rtol=tolerance, atol=tolerance, equal_nan=True, msg=message)


def saved(opt):
    """Return a copy of the checkpoint, without what says how a step is taken."""
    found = copy.deepcopy(opt.state_dict())
    for group in found["param_groups"]:
        group |= dict.fromkeys(("fused", "foreach"))
    return found


# the interpreter computes with numpy, which warns where IEEE arithmetic is meant: min(1, D/0) is 1
ieee = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered:RuntimeWarning")

# programs take chunks of 1024 elements, in blocks of 512
SIZES = [(), (0,), (1,), (3, 5), (511,), (512,), (513,), (1023,), (1024,), (1025,), (2049,), (2, 3, 2, 1)]
FEW = [(3, 2), (), (1025,)]

# what kernels do: all of the step, or for SGD without a law and for extended optimizers the averages alone
LEARNERS = [
    learner for learner in ALL_LEARNERS if getattr(learner, "elementwise", False) and hasattr(learner, "device_rule")
]
CASES = {name: partial(build, name) for name in (*FUSED, "extend(Lion)")}


def some(*names):
    """Run a test with some of the optimizers; ``make(params, fused, **options)`` builds one."""
    return pytest.mark.parametrize("make", [CASES[name] for name in names], ids=names)


cases = some(*CASES)


def sgdm(params, fused=True, **options):
    """Return a `ScaledSGDM` by kernels, or by torch's foreach."""
    engine = {"fused": True} if fused else {"foreach": True}
    return o2nc.ScaledSGDM(params, **({"lr": 0.05} | options), **engine)


def algorithm_2(params, learner, fused=True, **options):
    """Return an `ExponentiatedO2NC` by kernels, or without."""
    return o2nc.ExponentiatedO2NC(params, learner, **({"beta": 0.9} | options), fused=fused)
