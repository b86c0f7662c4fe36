"""How fast at best: the lower bound of Corollary lower-bound, on the hard chain, where nobody is fast."""

import math

import numpy as np
import torch

from o2nc import ExponentiatedO2NC, ScaledSGDM, theory
from o2nc.learners import OGD
from o2nc.problems import hard_instance
from o2nc_experiments.verify.check import Finding, enough, least_of, statement

EPS, DELTA = 0.01, 1e-4
ORACLE = hard_instance(EPS, gap=30.0, smoothness=1.0, noise=1.0)


def steps_to_the_end(lr: float, momentum: float, seed: int, most: int, *, named: bool) -> int:
    """Return after how many queries the last coordinate of the chain has moved; ``most`` if it never did."""
    x = ORACLE.problem.start().requires_grad_()
    optimizer = (
        ScaledSGDM([x], lr=lr * (1 - momentum), momentum=momentum, seed=seed)
        if named
        else ExponentiatedO2NC([x], OGD(lr * (1 - momentum) / momentum), beta=momentum, average=False, seed=seed)
    )
    generator = torch.Generator().manual_seed(seed)
    for t in range(1, most + 1):
        x.grad = ORACLE.sample(x.detach(), generator)
        optimizer.step()
        if x[-1].item() != 0:
            return t
    return most


def constants_hold(seed: int) -> bool:
    """Say whether the chain has the constants it was asked for, and a large gradient until its end."""
    chain, rng = ORACLE.problem, np.random.default_rng(seed)
    width = 2 * 152 * EPS  # of the links
    x = torch.from_numpy(rng.normal(size=(2000, chain.dimension)) * width)
    x[:, -1].clamp_(-width, width)  # the end is not reached
    h = torch.from_numpy(rng.normal(size=x.shape) * 1e-4)
    bend = (chain.gradient(x + h) - chain.gradient(x)).norm(dim=1) / h.norm(dim=1)
    error = ORACLE.sample(x.repeat(20, 1), torch.Generator().manual_seed(seed)) - chain.gradient(x).repeat(20, 1)
    return (
        chain.gap <= 30.0
        and bool(bend.max() <= chain.smoothness * 1.001 <= 1.001 * 1.001)
        and bool(chain.gradient(x).norm(dim=1).min() > 2 * EPS)
        and bool(error.square().sum(1).mean().sqrt() <= ORACLE.noise <= 1 + 1e-9)
    )


@statement("lower-bound", "no fewer than Ω(F*G²c^½ε^{−7/2}) steps")
def lower_bound(seed: int, scale: float) -> Finding:
    """Corollary lower-bound, for zero-respecting algorithms: the end of the chain is not found before `steps`."""
    right = ORACLE.steps(DELTA)
    counts = [
        steps_to_the_end(lr, momentum, seed + i, 6 * right, named=named)
        for i in range(enough(3, scale))
        for lr, momentum, named in ((30.0, 0.5, False), (100.0, 0.5, True), (100.0, 0.9, False))
    ]
    # H = √(cε) and σ = G, as in the proof
    many = [
        hard_instance(eps, gap=1.0, smoothness=math.sqrt(1e4 * eps), noise=1.0).steps(0.5)
        / theory.lower_bound(eps, 1e4, gap=1.0, lipschitz=10.0)
        for eps in (1e-4, 1e-5)
    ]
    measured = (
        f"fewest queries to the end of a chain of {ORACLE.problem.length}, of {len(counts)} runs, against what is "
        f"needed with probability {1 - DELTA}; its steps follow c^½ε^{{−7/2}} to {abs(many[0] / many[1] - 1):.0e}"
    )
    also = constants_hold(seed) and abs(many[0] / many[1] - 1) < 0.02
    return Finding(measured, least_of(counts), right, ">=", also=also)
