"""Fixtures that several files share."""

import os
import random

import pytest
import torch

from fused_device import counted, device, engine, ieee  # noqa: F401

if not torch.cuda.is_available():  # before any kernel is imported: Triton's interpreter runs them on a CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")


# warnings of others about themselves, in the versions that `make test-versions` runs and on GPUs; ours remain errors
THEIRS = (
    r"ignore:The epoch parameter in `scheduler.step\(\)`:UserWarning:torch\.optim\.lr_scheduler",  # SequentialLR, 2.6
    r"ignore:Skipping serialization of skipfiles:UserWarning:torch\.utils\._config_module",  # inductor, 2.6
    r"ignore:.*torch.jit:DeprecationWarning",  # inductor
    # Lightning, the second of torch's pytrees, the third with more cores than two
    r"ignore:GPU available but not used:UserWarning",
    r"ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",
    r"ignore:The '.*_dataloader' does not have many workers",
    # Triton's interpreter up to 3.6, with numpy before 2.4
    r"ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning:triton\.runtime\.interpreter",
)


def pytest_configure(config):
    """Leave the warnings of others alone."""
    for line in THEIRS:
        config.addinivalue_line("filterwarnings", line)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Let the kernels do IEEE arithmetic where they are interpreted, and leave most of many cases to `test-slow`."""
    families = {}
    for item in items:
        if mark := item.get_closest_marker("some"):
            families.setdefault((item.fspath, item.originalname, *mark.args), []).append(item)
        if "device" in getattr(item, "fixturenames", ()):
            item.add_marker(ieee)
    for (_, name, n), cases in families.items():
        for item in random.Random(name).sample(cases, max(len(cases) - n, 0)):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def one_thread():
    """For small tensors: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=[False, True], ids=["eager", "fused"])
def fused(request, device, monkeypatch):  # noqa: F811
    """Whether kernels take the steps."""
    if not request.param:
        monkeypatch.setattr(engine, "DEVICES", ())
    return request.param
