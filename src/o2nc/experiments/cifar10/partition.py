"""A GPU divided among trials, so that one's convolutions run beside another's passes over memory.

Kernels of several streams take turns on the whole device. When every trial has multiprocessors of its own (a "green
context" of the driver), those that wait for memory no longer hold up those that compute, and small grids waste less.
"""

import ctypes
from typing import Any

import torch

_SM = 1  # CU_DEV_RESOURCE_TYPE_SM
_ANY_NUMBER = 1  # CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING: not only multiples of 8
_DEFAULT_STREAM = 1  # CU_GREEN_CTX_DEFAULT_STREAM, the only kind there is
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_RESOURCE = 144  # bytes of a CUdevResource


def streams(trials: int, device: torch.device) -> list[Any]:
    """Return a stream for each of so many trials, with equal parts of a GPU where the driver can do that.

    They last as long as the process. On a CPU there are none: None stands for each.
    """
    if device.type != "cuda":
        return [None] * trials
    try:
        return divide(trials, device)
    except RuntimeError:
        return [torch.cuda.Stream(device) for _ in range(trials)]


def divide(parts: int, device: torch.device) -> list[Any]:
    """Return one stream for each of so many equal parts of a GPU's multiprocessors.

    Raises:
        RuntimeError: the driver cannot do it.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuDeviceGetDevResource  # noqa: B018  # drivers from CUDA 12.4 on have it
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"this driver cannot divide a GPU: {error}") from None

    def call(name: str, *arguments: Any) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} answered {code}")

    torch.cuda.synchronize(device)  # so that the primary context is there
    number = torch.cuda.current_device() if device.index is None else device.index
    whole, split = (ctypes.create_string_buffer(count * _RESOURCE) for count in (1, parts))
    call("cuDeviceGetDevResource", number, whole, _SM)
    each = torch.cuda.get_device_properties(device).multi_processor_count // parts
    made = ctypes.c_uint(parts)
    call("cuDevSmResourceSplitByCount", split, ctypes.byref(made), whole, None, _ANY_NUMBER, each // 2 * 2)
    if made.value < parts:
        raise RuntimeError(f"this GPU cannot be divided into {parts} parts, but into {made.value}")
    found = []
    for i in range(parts):
        description, context, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        call("cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(split, i * _RESOURCE), 1)
        call("cuGreenCtxCreate", ctypes.byref(context), description, number, _DEFAULT_STREAM)
        call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, _NON_BLOCKING, 0)
        found.append(torch.cuda.ExternalStream(stream.value, device=device))
    return found
