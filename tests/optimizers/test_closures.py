"""Closures are handed on to extended optimizers, which may call them several times and at other points."""

import pytest
import torch
from torch import optim

import o2nc
from problem import closure_of
from registry import ours_of


class SAM(optim.Optimizer):
    """Sharpness-aware minimisation: the gradient of another point moves the parameters."""

    def __init__(self, params, lr=0.1, radius=0.1):
        super().__init__(params, {"lr": lr, "radius": radius})

    @torch.no_grad()
    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        grads = [(p, p.grad.clone(), group) for group in self.param_groups for p in group["params"]]
        norm = torch.stack([g.norm() for _, g, _ in grads]).norm()
        for p, g, group in grads:
            p.add_(g, alpha=float(group["radius"] / norm))
        with torch.enable_grad():
            closure()
        for p, g, group in grads:
            p.sub_(g, alpha=float(group["radius"] / norm)).sub_(p.grad, alpha=group["lr"])
        return loss


class Lookahead(optim.Optimizer):
    """Moves, and forgets the gradients, before it calls the closure."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure):
        params = [p for group in self.param_groups for p in group["params"]]
        for p in params:
            p.mul_(0.9)
            p.grad = None
        with torch.enable_grad():
            loss = closure()
        for p in params:
            p.div_(0.9).sub_(p.grad, alpha=self.param_groups[0]["lr"])
        return loss


@pytest.mark.parametrize("cls", [SAM, Lookahead, optim.SGD, optim.Adam])
@pytest.mark.parametrize("window", [None, o2nc.Polynomial(0), o2nc.Polynomial(0, start=1, every=2)], ids=str)
def test_closures_are_handed_on(cls, window):
    """They move as alone, call it as often, return what it returned; x̄ and ḡ are of the iterates themselves."""
    runs = []
    for extended in (True, False):
        p = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
        opt = cls([p], lr=0.1)
        if extended:
            o2nc.extend(opt, average=window, certificate=window is not None)
        calls, xs, losses = [], [], []

        def loss(p=p, calls=calls):
            calls.append(p.detach().clone())
            return (p**2 + p.abs()).sum()

        closure = closure_of(opt, loss)
        for _ in range(6):
            xs.append(p.detach().clone())
            if cls is Lookahead:  # gradients that are there when the step begins
                closure()
            losses.append(opt.step(closure).item())
        runs.append((p.detach(), torch.stack(calls), losses))
        if extended and window is not None:
            counted = torch.stack(xs)[window.start :: window.every]
            with opt.averaged():
                torch.testing.assert_close(p.detach(), counted.mean(0))
            gradients = 2 * counted + counted.sign()
            assert opt.certificate().gradient == pytest.approx(float(gradients.mean(0).norm()), rel=1e-12)
            assert int(ours_of(opt)["step"]) == 6
    assert runs[0][2] == runs[1][2]
    assert all(map(torch.equal, runs[0][:2], runs[1][:2]))


def test_a_closure_with_scaling():
    p = torch.nn.Parameter(torch.tensor([2.0, -1.0], dtype=torch.float64))
    opt = o2nc.random_scaling(optim.SGD([p], lr=0.1), seed=1)
    assert opt.step(closure_of(opt, lambda: (p**2).sum())) == 5
    s = o2nc.Exponential().sample(1, 2)
    torch.testing.assert_close(p.detach(), torch.tensor([2.0, -1.0]).double() * (1 - 0.2 * s))


def test_steps_with_a_closure_are_diagnosed():
    p = torch.nn.Parameter(torch.ones(3))
    opt = o2nc.extend(optim.NAdam([p], lr=1e-3), average=0.9)
    for _ in range(150):
        opt.step(closure_of(opt, lambda: p.square().sum()))
    assert opt.diagnose().verdict != "too early"
