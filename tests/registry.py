"""What the tests run over: optimizers of ours and of torch, windows, laws, learners.

An entry of `OURS` is called with parameters and options: ``OURS["AdamW"](params, average=0.9, seed=3)``. All keep
averages and a certificate unless told otherwise.
"""

import copy
import io
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import optim
from torch.utils._pytree import keystr, tree_flatten_with_path

import o2nc
from o2nc import learners
from o2nc.averages.reading import has_averages
from problem import parameters, set_gradients

INF = float("inf")

WINDOWS = [
    o2nc.Discount(0.9),
    o2nc.Discount(0.9, start=4, every=3),
    o2nc.Polynomial(0),
    o2nc.Polynomial(3, every=8),
    o2nc.Polynomial(12, every=3),
    o2nc.Polynomial(2.5, start=7),
]
LAWS = [
    o2nc.Exponential(),
    o2nc.Exponential(2.0),
    o2nc.Uniform(0, 2),
    o2nc.Weibull(0.8),
    o2nc.Jitter(0.25),
    o2nc.Weibull(2.5),
    o2nc.Gamma(16),
]
LEARNERS = [
    learners.OGD(lr=0.05, decay=0.3),
    learners.OGD(lr=0.05, decay=0.3, kappa=2),
    learners.BallOGD(lr=0.05, radius=0.02, decay=0.1),
    learners.BallOGD(lr=0.05, radius=INF),
    learners.FTRL(lr=0.05, decay=0.2),
    learners.FTRL(lr=0.05, decay=0.2, radius=0.1),
    learners.AdaGrad(lr=0.05, decay=0.1),
    learners.AdaGrad(lr=0.05, kappa=2),
    learners.AdaGrad(lr=0.05, decay=0.1, diagonal=True),
    learners.AdaGrad(lr=0.05, kappa=2, diagonal=True),
    learners.ScaleFree(lr=0.05),
    learners.ScaleFree(lr=0.05, radius=0.1),
    learners.ScaleFree(lr=0.05, diagonal=False),
    learners.ScaleFree(lr=0.05, diagonal=False, radius=0.05),
    learners.CoinBetting(wealth=0.5, lipschitz=20.0),
    learners.BallAdaGrad(lr=0.05),
]


@dataclass(frozen=True)
class OwnWindow(o2nc.Window):
    """A window of a user's own."""

    start: int = 0
    every: int = 1

    def gamma(self, n):
        return 4 / (n + 4)  # also of the first, which is the average whatever its γ is


@dataclass(frozen=True)
class OwnFactor:
    """A law and a learner of a user's own, with a learner in it, a field called name, and one that is no argument."""

    base: learners.OGD = learners.OGD(0.05)  # noqa: RUF009 (it is frozen)
    name: str = "mine"
    derived: float = field(default=1.0, init=False)

    @property
    def lr(self):
        return self.base.lr

    def sample(self, seed, step):
        return 0.5 + step % 2

    def weight(self, s):
        return 1.0

    def init(self, delta):
        return self.base.init(delta)

    def update(self, deltas, grads, states, lrs, beta):
        self.base.update(deltas, [g.clamp(-1, 1) for g in grads], states, lrs, beta)


class Lion(optim.Optimizer):
    """An optimizer from outside, with a state under names that are ours, too, and of which nothing is known."""

    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1):
        ours = {"step": 0, "seed": 7.0, "nesterov": True, "dampening": 0.0}  # in name only, or torch's SGD's
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay} | ours)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["step"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:  # nobody was here before
                    state["average"] = torch.zeros_like(p)
                low, high = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(low * state["average"] + (1 - low) * p.grad))
                state["average"].lerp_(p.grad, 1 - high)
        return loss


class Sub(optim.SGD):
    """Calls super().step(), which runs the hooks a second time once a torch.optim.SGD exists."""

    def step(self, closure=None):
        return super().step(closure)


# torch's optimizers, and two from outside: what `extend` is given
TORCH = {
    "SGD": lambda ps: optim.SGD(ps, lr=0.02, momentum=0.9, weight_decay=0.1),
    "SGD plain": lambda ps: optim.SGD(ps, lr=0.02),
    "SGD fused": lambda ps: optim.SGD(ps, lr=0.02, momentum=0.9, fused=True),
    "Adam": lambda ps: optim.Adam(ps, lr=0.02, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda ps: optim.AdamW(ps, lr=0.02, weight_decay=0.1),
    "AdamW foreach": lambda ps: optim.AdamW(ps, lr=0.02, foreach=True),
    "AdamW fused": lambda ps: optim.AdamW(ps, lr=0.02, fused=True),
    "AdamW maximize": lambda ps: optim.AdamW(ps, lr=torch.tensor(0.02, dtype=torch.float64), maximize=True),
    "NAdam": lambda ps: optim.NAdam(ps, lr=0.02, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam": lambda ps: optim.RAdam(ps, lr=0.02),
    "Adamax": lambda ps: optim.Adamax(ps, lr=0.02),
    "Adagrad": lambda ps: optim.Adagrad(ps, lr=0.02, lr_decay=0.1),
    "Adadelta": lambda ps: optim.Adadelta(ps, lr=0.5),
    "RMSprop": lambda ps: optim.RMSprop(ps, lr=0.02, momentum=0.5),
    "ASGD": lambda ps: optim.ASGD(ps, lr=0.02),
    "Rprop": lambda ps: optim.Rprop(ps, lr=0.02),
    "Adafactor": lambda ps: optim.Adafactor(ps, lr=0.02),
    "Lion": Lion,
    "SGD from outside": lambda ps: Sub(params_of(optim.SGD(ps)), lr=0.02, momentum=0.9),
}
if hasattr(optim, "Muon"):
    TORCH["Muon"] = lambda ps: optim.Muon([p for p in ps if p.dim() == 2], lr=0.02)

_SETTINGS = {"average": o2nc.Polynomial(3), "certificate": True, "seed": 5}
_PAPER = {"average": 0.9, "seed": 5}


def extended(name, ps, **options):
    return o2nc.extend(TORCH[name](ps), **_SETTINGS | options)


def _learned(learner, **defaults):
    return partial(o2nc.ExponentiatedO2NC, learner=learner, **_PAPER | {"beta": 0.9} | defaults)


# every optimizer of ours; those of the paper have output() and progress, and always a certificate
EXTENDED = {f"extend({name})": partial(extended, name) for name in ("NAdam", "Rprop", "Lion")}
PAPER = {
    "ScaledSGDM": partial(o2nc.ScaledSGDM, lr=0.02, momentum=0.9, **_PAPER),
    "ScaledSGDM plain": partial(o2nc.ScaledSGDM, lr=0.02, scaling=o2nc.Uniform(0, 2), **_PAPER),
    "ScaledSGDM Nesterov": partial(o2nc.ScaledSGDM, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.1, **_PAPER),
    "OGD": _learned(LEARNERS[0]),
    "FTRL": _learned(LEARNERS[5], scaling=o2nc.Weibull(1.2)),
    "AdaGrad": _learned(LEARNERS[6], weight_decay=0.1),
    "ScaleFree": _learned(LEARNERS[10]),
    "CoinBetting": _learned(LEARNERS[14]),
    "OriginalO2NC": partial(o2nc.OriginalO2NC, learner=learners.BallOGD(lr=0.02, radius=0.1), period=3, seed=5),
}
OURS = {
    "SGD": partial(o2nc.SGD, lr=0.02, momentum=0.9, weight_decay=0.1, **_SETTINGS),
    "AdamW": partial(o2nc.AdamW, lr=0.02, weight_decay=0.1, **_SETTINGS),
    "AdamW scaled": partial(o2nc.AdamW, lr=0.02, amsgrad=True, scaling=o2nc.Jitter(0.25), **_SETTINGS),
    **EXTENDED,
    **PAPER,
}
JOINT = ("FTRL", "AdaGrad", "CoinBetting")  # their learners have a joint norm, and no device form
FUSED = [name for name in OURS if name not in (*EXTENDED, *JOINT, "OriginalO2NC")]  # their fused=True is a kernel
WINDOWED = [name for name in OURS if name != "OriginalO2NC"]  # they take any window


def build(name, params, fused=True, **options):
    """Return an optimizer whose steps kernels take, or do not; without kernels an extended one needs no devices."""
    fused = None if fused and name == "SGD" else fused  # torch's own fails where a parameter joins late (2.13)
    return OURS[name](params, **({"fused": fused} if name in FUSED else {}) | options)


_EVERY_3 = o2nc.Polynomial(3, start=2, every=3)
# those of ours, and what else they can be told; called with parameters, and fused=True where kernels are to step
VARIANTS = {name: partial(build, name, fused=False) for name in OURS} | {
    "AdamW every=3": partial(build, "AdamW", fused=False, average=_EVERY_3),
    "AdamW x̄ alone": partial(build, "AdamW", fused=False, certificate=False),
    "AdamW offload": partial(build, "AdamW", fused=False, average=_EVERY_3, offload=True),
    "AdamW scaled, no averages": partial(build, "AdamW scaled", fused=False, average=None),
    "SGD, nothing of ours": partial(build, "SGD", fused=False, average=None, certificate=False),
    "extend(Lion) offload": partial(build, "extend(Lion)", average=_EVERY_3, offload=True),
    "extend(Rprop) scaled": partial(build, "extend(Rprop)", scaling=o2nc.Jitter(0.5)),
    "ScaledSGDM geometric": partial(build, "ScaledSGDM", fused=False, output="geometric"),
    "ScaledSGDM, no averages": partial(build, "ScaledSGDM", fused=False, average=None, scaling=o2nc.Gamma(0.5)),
    "OriginalO2NC restart": partial(build, "OriginalO2NC", restart=True),
    "OGD, own factors": partial(_learned(OwnFactor()), scaling=OwnFactor(), average=OwnWindow(start=1, every=3)),
}


def params_of(opt):
    """Return the parameters in the order of the groups."""
    return [p for group in opt.param_groups for p in group["params"]]


def ours_of(opt, p=None):
    """Return our entries of a parameter's state, or of the first group."""
    return opt.param_groups[0]["o2nc"] if p is None else opt.state[p]["o2nc"]


def advance(opt, steps):
    """Take these steps on the problem of problem.py."""
    for t in steps:
        set_gradients(params_of(opt), t)
        opt.step()
    return opt


def step(opt, *gradients):
    """Take a step with a gradient for each parameter, or one number for all; a number is a tensor full of it."""
    params = params_of(opt)
    for p, g in zip(params, gradients * (len(params) if len(gradients) == 1 else 1), strict=True):
        p.grad = torch.full_like(p, g) if isinstance(g, float) else g
    opt.step()


def descend(opt, loss, steps=1):
    """Take steps down a loss."""
    for _ in range(steps):
        opt.zero_grad()
        loss().backward()
        opt.step()


def trained(make, n=7, params=None, **options):
    """Return an optimizer after n steps; ``make`` is one, or its name."""
    make = OURS[make] if isinstance(make, str) else make
    return advance(make(parameters(torch.float32) if params is None else params, **options), range(1, n + 1))


def snapshot(opt):
    """Return copies of the state and of the parameters."""
    return copy.deepcopy((opt.state_dict(), params_of(opt)))


def checkpoint(opt, *others):
    """Return what is to be continued, of an optimizer and perhaps its schedule, as a file has it."""
    file, states = io.BytesIO(), [part.state_dict() for part in (opt, *others)]
    torch.save({"params": params_of(opt), "states": states}, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def loaded(saved, make):
    """Return what ``make`` makes of parameters, an optimizer or several things, after they loaded a checkpoint."""
    made = make([torch.nn.Parameter(p) for p in saved["params"]])
    for part, state in zip(made if isinstance(made, tuple) else (made,), saved["states"], strict=True):
        part.load_state_dict(state)
    return made


def asks(opt):
    """Return functions that ask for all that an optimizer knows of its run."""
    found = [
        opt.certificate,
        lambda: opt.averaged().__enter__(),
        lambda: opt.averaged_state_dict(torch.nn.Linear(1, 1)),
    ]
    return found + ([opt.output, lambda: opt.progress] if hasattr(type(opt), "output") else [])


def claims(opt):
    """Return all that an optimizer says of its run, as copies: to compare two runs bitwise."""
    params = params_of(opt)
    found = {"step": int(ours_of(opt)["step"]), "x": [p.detach().clone() for p in params]}
    if hasattr(opt, "progress"):
        found["progress"] = opt.progress
    if not has_averages(opt):
        return found
    if ours_of(opt)["certificate"]:
        found["certificate"] = opt.certificate(0.7)
    if hasattr(opt, "output"):
        found["output"] = opt.output()
    with opt.averaged():
        found["average"] = [p.detach().clone() for p in params]
    return found


def identical(ours, theirs):
    """Assert that two nested structures of tensors and plain values are the same, bitwise; keys in any order."""
    ours, theirs = ({keystr(path): leaf for path, leaf in tree_flatten_with_path(tree)[0]} for tree in (ours, theirs))
    assert ours.keys() == theirs.keys(), f"only one of them has {sorted(ours.keys() ^ theirs.keys())}"
    for path, value in ours.items():
        if isinstance(value, torch.Tensor):
            assert value.dtype == theirs[path].dtype, path
            assert torch.equal(value, theirs[path]), path
        else:
            assert value == theirs[path], path
