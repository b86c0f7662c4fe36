"""Fixtures that several files share."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """For small tensors: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
