"""AdamW as torch's fused kernel has it since 2.11, rounding included; slots m, v, and for amsgrad the largest v."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from o2nc.fused.kernels import LR, SCALARS
from o2nc.fused.rule import Layout, Rule, Scalars


def count_and_powers_(out: Tensor, scalars: Tensor, group_of: Tensor, counts: Tensor, gradients: Tensor) -> None:
    """Count this step of the parameters that have gradients; set β₁^t, β₂^t in float64, then in float32.

    By torch, whose fused step has the same power; those of Triton and of a host round otherwise. ``out`` has four
    rows, and a column for every parameter as ``group_of``, ``counts`` (torch's ``step``) and ``gradients`` have, the
    addresses, 0 for none.
    """
    counts.add_(gradients != 0)
    betas = scalars.view(-1, SCALARS.value)[:, LR.value + 1 : LR.value + 3][group_of].T
    torch.pow(betas, counts.double(), out=out[:2])
    out[2:].copy_(torch.pow(betas.float(), counts))


@triton.jit
def root_of(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)  # as IEEE has it


@triton.jit
def ratio_of(a, b):
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def adamw_coefficients(group, kept, prepared, s, constants):
    lr, beta1, beta2, eps, decay = group
    power1, power2, low1, low2 = prepared
    # for parameters of float32 and below torch does this in float32, too
    low_first = (1 - low1.to(tl.float32)).to(tl.float64)
    low_root = root_of(1 - low2.to(tl.float32)).to(tl.float64)
    return -lr, (beta1, beta2, eps, lr * s, decay, 1 - power1, root_of(1 - power2), low_first, low_root), kept


@triton.jit
def update_with(x, g, m, v, most, own, AMSGRAD: tl.constexpr):
    """Return x, m, v, and the largest v."""
    beta1, beta2, eps, move, decay = own[0:5]
    first, root = own[7:9] if x.dtype == tl.float32 else own[5:7]
    square = g * g
    m = tl.fma(beta1, m, tl.fma(-beta1, g, g))
    v = tl.fma(beta2, v, tl.fma(-beta2, square, square))
    most = tl.maximum(most, v) if AMSGRAD else v
    x = tl.fma(-(move * decay), x, x)
    below = ratio_of(root_of(most), tl.zeros_like(most) + root) + eps
    return x - ratio_of(ratio_of(move, first) * m, below), m, v, most


@triton.jit
def adamw_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    x, m, v, most = update_with(x, g, slots[0], slots[1], slots[1], own, False)
    return x, g, (m, v)


@triton.jit
def amsgrad_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    x, m, v, most = update_with(x, g, slots[0], slots[1], slots[2], own, True)
    return x, g, (m, v, most)


def _layout(group: dict[str, Any]) -> Layout:
    if group["amsgrad"]:
        return Layout(amsgrad_update, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
    return Layout(adamw_update, ("exp_avg", "exp_avg_sq"))


def _scalars(group: dict[str, Any]) -> Scalars:
    sign = -1.0 if group["maximize"] else 1.0
    beta1, beta2 = group["betas"]
    return Scalars(sign, 0.0, group["lr"], beta1, beta2, group["eps"], group["weight_decay"])


def adamw() -> Rule:
    """Return the rule of torch.optim.AdamW."""
    options: dict[str, Any] = {"prepare": count_and_powers_, "count": "step", "block": 256, "registers": 64}
    return Rule(adamw_coefficients, 9, _layout, _scalars, **options)
