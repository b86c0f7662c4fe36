"""An online learner played alone, without an optimizer around it."""

import numpy as np
import torch


def play(learner, gradient, beta, lrs=None, *, shapes=((2,), (), (1, 2)), dtype=torch.float64):
    """Return g_1, …, g_n and Δ_1, …, Δ_{n+1}, a row each, all tensors in one vector.

    ``gradient`` is a function of t and Δ_t, or has a row for each t; ``lrs`` has an lr, or one per tensor, each t, by
    default the learner's own.
    """
    lrs = [learner.lr] * len(gradient) if lrs is None else lrs
    deltas = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    states, gs, played = [learner.init(delta) for delta in deltas], [], [flat(deltas)]
    for t, lr in enumerate(lrs, 1):
        gs.append(gradient(t, played[-1]) if callable(gradient) else gradient[t - 1])
        parts = torch.as_tensor(gs[-1]).to(dtype).split([delta.numel() for delta in deltas])
        grads = [part.reshape(delta.shape) for part, delta in zip(parts, deltas, strict=True)]
        learner.update(deltas, grads, states, lr if isinstance(lr, list) else [lr] * len(deltas), beta)
        played.append(flat(deltas))
    return np.array(gs), np.array(played)


def flat(deltas):
    return torch.cat([delta.reshape(-1) for delta in deltas]).numpy()
