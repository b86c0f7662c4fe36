"""Fixtures that several files share."""

import os

import pytest
import torch

from fused_device import counted, device  # noqa: F401

if not torch.cuda.is_available():  # before any kernel is imported: Triton's interpreter runs them on a CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def one_thread():
    """For small tensors: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
