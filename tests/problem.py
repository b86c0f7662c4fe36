"""A small non-smooth problem over several tensors, which many files share."""

import torch

SHAPES = [(3, 2), (4,), (), (1, 5)]


def parameters(dtype=torch.float64, *, shapes=SHAPES):
    """The same start in every dtype, rounded to it."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.complex128 if dtype.is_complex else torch.float64
    return [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=kind).to(dtype)) for s in shapes]


def set_gradients(params, step):
    """Gradient of Σ|x| + ¼ sin 3x, plus noise that depends only on the step and the parameter's place."""
    for i, p in enumerate(params):
        kind = torch.complex128 if p.is_complex() else torch.float64
        x, z = p.detach().to(kind), noise(1000 * step + i, *p.shape, dtype=kind)
        p.grad = (x.sgn() + 0.75 * torch.cos(3 * x) + 0.3 * z).to(p.dtype)


def network(dtype=torch.float32):
    """Return a small network, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(dtype)


def noise(seed, *shape, dtype=torch.float64):
    """Return normal numbers, the same for the same seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def flat(tensors):
    """All of them as one float64 vector."""
    return torch.cat([t.detach().double().reshape(-1) for t in tensors]).numpy().copy()


def delta_of(opt, p):
    """Return the update Δ that was last played for a parameter: kept, or told by the learner's other state."""
    entry = opt.state[p]["o2nc"]
    return entry["delta"] if "delta" in entry else opt._learner.last_updates([entry])[0]


def closure_of(opt, loss):
    """Return a closure for ``step``, which computes the gradients of ``loss()`` anew."""

    def closure():
        opt.zero_grad()
        found = loss()
        found.backward()
        return found

    return closure
