"""torch's own company: groups, schedules, hooks, mixed precision."""

import copy
from functools import partial

import pytest
import torch
from torch.optim import SGD, lr_scheduler, swa_utils
from torch.optim.optimizer import register_optimizer_step_post_hook

import o2nc
from problem import network, noise
from registry import OURS, TORCH, claims, descend, identical, ours_of, step

pytestmark = pytest.mark.usefixtures("one_thread")
every_optimizer = pytest.mark.parametrize("name", OURS)


make = partial(network, torch.float64)


def loss_of(model, t, dtype=torch.float64):
    """Return the loss of step t."""
    x = noise(t, 24, 4).to(dtype)
    return (model(x) - x[:, :1]).abs().mean()


def groups_of(model):
    return [
        {"params": model[0].parameters(), "lr": 0.05, "weight_decay": 0.1},
        {"params": model[2].parameters(), "lr": 0.2, "momentum": 0.5},
    ]


def test_groups_keep_their_own_lr_decay_and_momentum():
    """Without scaling it is SGD to the bit; with it, SGD whose learning rates are all multiplied by the same s_n."""
    law = o2nc.Exponential()
    for scaling in (None, law):
        model, twin = make(), make()
        optimizer = o2nc.ScaledSGDM(groups_of(model), lr=1.0, momentum=0.9, scaling=scaling, seed=7, average=0.9)
        reference = SGD(groups_of(twin), lr=1.0, momentum=0.9)
        rates = [group["lr"] for group in reference.param_groups]
        for t in range(10):
            for group, lr in zip(reference.param_groups, rates, strict=True):
                group["lr"] = lr if scaling is None else lr * law.sample(7, t + 2)
            for m, o in ((model, optimizer), (twin, reference)):
                descend(o, lambda: loss_of(m, t))  # noqa: B023
        assert all(map(torch.equal, model.parameters(), twin.parameters()))


def test_the_certificate_sees_every_groups_weight_decay():
    model = make()
    optimizer = o2nc.ScaledSGDM(groups_of(model), lr=1.0, average=0.9)
    decay = 0.1 * torch.cat([p.detach().flatten() for p in model[0].parameters()]).norm()
    step(optimizer, 0.0)
    certificate = optimizer.certificate()
    assert certificate.gradient == pytest.approx(float(decay), rel=1e-12)
    assert [part.gradient for part in certificate.by_parameter.values()][2:] == [0, 0]


SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 12),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 4), lr_scheduler.CosineAnnealingLR(o, 12)], [4]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.02, anneal_epochs=6),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 30),
}
SCHEDULED = {
    "SGD": lambda ps, lr: o2nc.SGD(ps, lr, 0.9, average=0.9),
    "extend(SGD)": lambda ps, lr: o2nc.extend(SGD(ps, lr, 0.9), 0.9, certificate=True),
}


@pytest.mark.parametrize("lr", ["a number", "a tensor"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", SCHEDULED)
def test_schedules_do_what_they_do_to_sgd(name, schedule, lr):
    """The same learning rates, momenta and weights, bitwise, in a run that is resumed after 9 of 20 steps."""

    def trained(optimizer_of):
        def begin():
            model = make()
            optimizer = optimizer_of(model.parameters(), torch.tensor(0.1) if lr == "a tensor" else 0.1)
            return model, optimizer, SCHEDULES[schedule](optimizer)

        found, things = [], begin()
        for t in range(20):
            if t == 9:
                saved, things = [copy.deepcopy(thing.state_dict()) for thing in things], begin()
                for thing, state in zip(things, saved, strict=True):
                    thing.load_state_dict(state)
            model, optimizer, made = things
            descend(optimizer, lambda: loss_of(model, t))  # noqa: B023
            made.step(*([1.0] if schedule == "ReduceLROnPlateau" else []))
            found.append([(float(group["lr"]), group["momentum"]) for group in optimizer.param_groups])
        return found, [p.detach() for p in model.parameters()]

    identical(trained(SCHEDULED[name]), trained(lambda ps, lr: SGD(ps, lr, 0.9)))


@every_optimizer
def test_hooks_of_all_kinds_run_once(name):
    model = make()
    optimizer = OURS[name](model.parameters())
    seen = []
    for kind in ("step", "state_dict", "load_state_dict"):
        for when in ("pre", "post"):
            getattr(optimizer, f"register_{kind}_{when}_hook")(lambda *_, name=f"{when} {kind}": seen.append(name))
    everyones = register_optimizer_step_post_hook(lambda *_: seen.append("after any"))
    descend(optimizer, lambda: loss_of(model, 0))
    everyones.remove()
    optimizer.load_state_dict(optimizer.state_dict())
    assert sorted(seen[1:3]) == ["after any", "post step"]
    saving, loading = (["pre " + what, "post " + what] for what in ("state_dict", "load_state_dict"))
    assert seen[:1] + seen[3:] == ["pre step", *saving, *loading]


SCALED = OURS | {
    "SGD fused": lambda ps: OURS["SGD"](ps, fused=True),
    "ScaledSGDM fused": lambda ps: OURS["ScaledSGDM"](ps, fused=True),
    "ScaledSGDM fused, no averages": lambda ps: OURS["ScaledSGDM"](ps, fused=True, average=None),
    "random_scaling(AdamW)": lambda ps: o2nc.random_scaling(TORCH["AdamW"](ps)),
    "random_scaling(AdamW fused)": lambda ps: o2nc.random_scaling(TORCH["AdamW fused"](ps)),
    "AdamW every=3": lambda ps: OURS["AdamW"](ps, average=o2nc.Polynomial(3, every=3)),
}


@pytest.mark.parametrize("name", SCALED)
def test_an_overflow_consumes_nothing(name):
    """A run whose GradScaler skips steps ends bitwise where the run without those batches ends."""

    def trained(overflows):
        model = network()
        optimizer = SCALED[name](model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000, backoff_factor=0.5)
        for t in range(10):
            for overflow in (True, False) if t in overflows else (False,):
                optimizer.zero_grad()
                scale = torch.inf if overflow else 1.0
                scaler.scale(loss_of(model, t, torch.float32) * scale).backward()
                scaler.step(optimizer)
                scaler.update()
        assert int(ours_of(optimizer)["step"]) == 10
        return claims(optimizer)

    identical(trained({0, 3, 7}), trained(set()))  # scales are powers of two, so unscaling is exact
