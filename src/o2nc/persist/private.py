"""Everything of torch's that has no public name and that o2nc cannot do without, in one place.

All of it is there in torch 2.6, 2.8, 2.11, 2.13 and 2.15; docs/versions.md says which tests were run on which. What
differs between them is settled here:

* ``torch._foreach_*``: one call for a list of tensors. torch's own optimizers are made of them; none is public.
* ``disable_dynamo``: `torch.compiler.disable` imports the compiler when it decorates, which takes a second; this does
  so when something is compiled.
* ``not_captured``: `torch.library.custom_op` is public, but takes tags only since 2.8, as a sequence up to 2.11.
* ``same_pointers``: torch's check of the inputs of its CUDA graphs, faster than a loop in Python; None if it is gone.
* ``BatchNorm``: the class of all BatchNorm layers.
* ``clear_cast_caches``: autocast and `torch.nn.utils.parametrize.cached` keep weights that were computed from the
  parameters, and would not notice that x̄ took their place.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import _compile
from torch.nn.modules import batchnorm
from torch.nn.utils import parametrize

BatchNorm = batchnorm._BatchNorm
disable_dynamo = _compile._disable_dynamo
foreach_add_ = torch._foreach_add_
foreach_addcmul_ = torch._foreach_addcmul_
foreach_clamp_min_ = torch._foreach_clamp_min_
foreach_copy_ = torch._foreach_copy_
foreach_div_ = torch._foreach_div_
foreach_mul_ = torch._foreach_mul_
foreach_norm = torch._foreach_norm
foreach_sqrt = torch._foreach_sqrt

not_captured: Any = {"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}
same_pointers: Callable[..., bool] | None = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)


def clear_cast_caches() -> None:
    """Drop weights that autocast and parametrizations have computed from the parameters and kept."""
    torch.clear_autocast_cache()
    if parametrize._cache_enabled:
        parametrize._cache.clear()
