"""torch's own company: accumulation, clipping, groups, schedules, SWA, hooks, torch.func, precision, DDP, FSDP2."""

import copy
import os
import sys

import pytest
import torch
from test_windows import weights as weights_of
from torch import nn
from torch.optim import SGD, lr_scheduler, swa_utils
from torch.optim.optimizer import register_optimizer_step_post_hook

import o2nc
from o2nc.learners import OGD, AdaGrad, BallOGD
from problem import EXTENDED
from processes import torchrun
from twin import law_weights

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIMIZERS = {
    "sgdm": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.95),
    "sgdm, average == momentum": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.9),
    "sgdm, nesterov": lambda ps: o2nc.ScaledSGDM(ps, 0.1, 0.9, 0, 1e-3, True, average=0.95),
    "ogd": lambda ps: o2nc.ExponentiatedO2NC(ps, OGD(lr=0.1), beta=0.9),
    "adagrad": lambda ps: o2nc.ExponentiatedO2NC(ps, AdaGrad(lr=0.02), beta=0.9, scaling=o2nc.Uniform()),
    "original": lambda ps: o2nc.OriginalO2NC(ps, BallOGD(lr=0.1, radius=0.1), period=3),
    **EXTENDED,
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def make(dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to(dtype)


def batch(step, dtype=torch.float64):
    x = torch.randn(24, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return x.to(dtype)


def loss_of(model, x):
    return (model(x) - x[:, :1]).abs().mean()


def summary(model, optimizer):
    """Return all that a user can see of a run, as tensors."""
    certificate = optimizer.certificate()
    with optimizer.averaged():
        average = [p.detach().clone() for p in model.parameters()]
    numbers = [certificate.gradient, certificate.spread, certificate.ess, optimizer.progress]
    return [*(p.detach().clone() for p in model.parameters()), *average, torch.tensor(numbers, dtype=torch.float64)]


def difference(a, b):
    return max(float((x - y).detach().abs().max()) for x, y in zip(a, b, strict=True))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def run(name, steps=10, dtype=torch.float64, **how):
    """Train plainly and return the summary; ``before`` is called with the model before every step."""
    model = make(dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    before = how.get("before", lambda model: None)
    for step in range(steps):
        model.zero_grad()  # the optimizer may not have all parameters
        loss_of(model, batch(step, dtype)).backward()
        before(model)
        optimizer.step()
    return summary(model, optimizer)


# --- accumulation, clipping, groups


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@every_optimizer
def test_micro_batches_add_up_to_a_batch(name, dtype, tolerance):
    model = make(dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    for step in range(10):
        optimizer.zero_grad()
        for part in batch(step, dtype).chunk(4):
            (loss_of(model, part) / 4).backward()
        optimizer.step()
    assert difference(summary(model, optimizer), run(name, dtype=dtype)) < tolerance


@every_optimizer
def test_clipped_gradients_are_what_is_certified(name):
    """ḡ is a mean of gradients of norm <= clip, and so is its norm (weight decay comes on top of it)."""
    clip = 0.05
    clipped = run(name, before=lambda model: nn.utils.clip_grad_norm_(model.parameters(), clip))
    plain = run(name)
    assert clipped[-1][0] <= (clip if name != "sgdm, nesterov" else clip + 0.01)
    assert plain[-1][0] > clip + 0.01
    by_hand = make()
    optimizer = OPTIMIZERS[name](by_hand.parameters())
    for step in range(10):
        gradients = torch.autograd.grad(loss_of(by_hand, batch(step)), list(by_hand.parameters()))
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        for p, g in zip(by_hand.parameters(), gradients, strict=True):
            p.grad = g * min(1.0, clip / (float(norm) + 1e-6))
        optimizer.step()
    assert difference(summary(by_hand, optimizer), clipped) < 1e-12


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
        for step in range(10):
            for group, lr in zip(reference.param_groups, rates, strict=True):
                group["lr"] = lr if scaling is None else lr * law.sample(7, step + 2)
            for m, o in ((model, optimizer), (twin, reference)):
                o.zero_grad()
                loss_of(m, batch(step)).backward()
                o.step()
        assert same(model.parameters(), twin.parameters())


def test_the_certificate_sees_every_groups_weight_decay():
    model = make()
    optimizer = o2nc.ScaledSGDM(groups_of(model), lr=1.0, average=0.9)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    before = [p.detach().clone() for p in model[0].parameters()]
    optimizer.step()
    certificate = optimizer.certificate()
    decay = 0.1 * torch.cat([p.flatten() for p in before]).norm()
    assert certificate.gradient == pytest.approx(float(decay), rel=1e-12)
    assert [part.gradient for part in certificate.by_parameter.values()][2:] == [0, 0]


# --- schedules

CYCLE = {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3, "cycle_momentum": False}
ONE_CYCLE = {"max_lr": 0.1, "total_steps": 30, "cycle_momentum": False}
SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda k: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 4),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [3, 7]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 5),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 8),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 15, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 12),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 4), lr_scheduler.CosineAnnealingLR(o, 12)], [4]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 5), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, **CYCLE),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, **ONE_CYCLE),
    "SWALR": lambda o: swa_utils.SWALR(o, swa_lr=0.02, anneal_epochs=6),
}
MOMENTUM_TOO = {
    "CyclicLR, momentum": lambda o: lr_scheduler.CyclicLR(o, **CYCLE | {"cycle_momentum": True}),
    "OneCycleLR, momentum": lambda o: lr_scheduler.OneCycleLR(o, **ONE_CYCLE | {"cycle_momentum": True}),
}
SCHEDULED = {
    "sgdm": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.95),
    "sgdm, tensor lr": lambda ps: o2nc.ScaledSGDM(ps, lr=torch.tensor(0.1), momentum=0.9, average=0.95),
    "ogd": lambda ps: o2nc.ExponentiatedO2NC(ps, OGD(lr=0.1), beta=0.9),
}


def test_all_schedules_of_torch_are_here():
    assert set(lr_scheduler.__all__) - {"LRScheduler"} == SCHEDULES.keys() - {"SWALR"}


def rates_of(optimizer, schedule, steps, begin=0, model=None):
    """Train, and return what the groups' lr and momentum were at every step."""
    found = []
    for step in range(begin, begin + steps):
        found.append([(float(group["lr"]), group.get("momentum")) for group in optimizer.param_groups])
        optimizer.zero_grad()
        loss = loss_of(model, batch(step))
        loss.backward()
        optimizer.step()
        schedule.step(*([1.0] if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else []))
    return found


@pytest.mark.some(17)
@pytest.mark.parametrize(
    ("schedule", "kind"),
    [(s, kind) for kind in SCHEDULED for s in (*SCHEDULES, *(MOMENTUM_TOO if kind != "ogd" else ()))],
)
def test_schedules_say_what_they_say_to_sgd(schedule, kind):
    """The same learning rates as with torch.optim.SGD, without a stop and after one."""
    plan = (SCHEDULES | MOMENTUM_TOO)[schedule]

    def begin(optimizer_of):
        model = make()
        optimizer = optimizer_of(model.parameters())
        return model, optimizer, plan(optimizer)

    def unbroken(optimizer_of):
        model, optimizer, made = begin(optimizer_of)
        return rates_of(optimizer, made, 20, model=model), model, optimizer

    def stopped(optimizer_of):
        model, optimizer, made = begin(optimizer_of)
        rates = rates_of(optimizer, made, 9, model=model)
        saved = copy.deepcopy([thing.state_dict() for thing in (model, optimizer, made)])
        model, optimizer, made = begin(optimizer_of)
        for thing, state in zip((model, optimizer, made), saved, strict=True):
            thing.load_state_dict(state)
        return rates + rates_of(optimizer, made, 11, 9, model), model, optimizer

    def only(rates):  # a learner has no momentum
        return [[values[:1] if kind == "ogd" else values for values in groups] for groups in rates]

    def sgd(params):
        return SGD(params, lr=torch.tensor(0.1) if "tensor" in kind else 0.1, momentum=0.9)

    expected, expected_after = unbroken(sgd)[0], stopped(sgd)[0]
    rates, *whole = unbroken(SCHEDULED[kind])
    assert only(rates) == only(expected)
    rates, *parts = stopped(SCHEDULED[kind])
    assert only(rates) == only(expected_after)
    if expected_after == expected:  # SequentialLR does not find back to a tensor's rates in torch 2.6
        assert same(summary(*parts), summary(*whole))
    else:
        assert (schedule, kind) == ("SequentialLR", "sgdm, tensor lr")


# --- swa_utils


def test_averaged_model_with_the_same_weights_is_the_same_average():
    """AveragedModel told of x_n before step n, with γ_n = (1 − β)/(1 − β^n), holds x̄_n."""
    beta, model = 0.95, make()
    optimizer = o2nc.ScaledSGDM(model.parameters(), lr=0.1, momentum=0.9, average=beta)
    swa = swa_utils.AveragedModel(
        model, avg_fn=lambda mean, x, n: mean + (1 - beta) / (1 - beta ** (int(n) + 1)) * (x - mean)
    )
    for step in range(20):
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        swa.update_parameters(model)
        optimizer.step()
    with optimizer.averaged():
        assert difference(swa.module.parameters(), model.parameters()) < 1e-12


def test_update_bn_finds_the_statistics_that_recalibrated_finds():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).double()
    optimizer = o2nc.ScaledSGDM(model.parameters(), lr=0.1, average=0.9)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        optimizer.step()
    live = [b.clone() for b in model.buffers()]
    with optimizer.averaged():
        copied = copy.deepcopy(model)
        swa_utils.update_bn([batch(step) for step in range(3)], copied)
        with o2nc.recalibrated(model, [batch(step) for step in range(3)]):
            assert same(model.buffers(), copied.buffers())
    assert same(model.buffers(), live)


# --- hooks


@every_optimizer
def test_hooks_of_all_kinds_run_once(name):
    model = make()
    optimizer = OPTIMIZERS[name](model.parameters())
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.register_state_dict_pre_hook(lambda *_: seen.append("saving"))
    optimizer.register_state_dict_post_hook(lambda *_: seen.append("saved"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: seen.append("loading"))
    optimizer.register_load_state_dict_post_hook(lambda *_: seen.append("loaded"))
    everyones = register_optimizer_step_post_hook(lambda *_: seen.append("after any"))
    loss_of(model, batch(0)).backward()
    optimizer.step()
    everyones.remove()
    optimizer.load_state_dict(optimizer.state_dict())
    assert sorted(seen[1:3]) == ["after", "after any"]
    assert seen[:1] + seen[3:] == ["before", "saving", "saved", "loading", "loaded"]


def test_a_step_inside_backward_is_the_step_after_it():
    """One optimizer per parameter, stepping as soon as its gradient is there: the same s_n for all, as it is of seed
    and n only.
    """
    model, twin = make(), make()
    optimizers = {p: o2nc.ScaledSGDM([p], lr=0.1, momentum=0.9, average=0.9, seed=3) for p in model.parameters()}

    def step_now(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_now)
    together = o2nc.ScaledSGDM(twin.parameters(), lr=0.1, momentum=0.9, average=0.9, seed=3)
    for step in range(10):
        loss_of(model, batch(step)).backward()
        together.zero_grad()
        loss_of(twin, batch(step)).backward()
        together.step()
    assert difference(model.parameters(), twin.parameters()) < 1e-14
    spread = sum(optimizer.certificate().spread for optimizer in optimizers.values())
    assert spread == pytest.approx(together.certificate().spread, rel=1e-12)


# --- torch.func


@every_optimizer
def test_gradients_of_torch_func(name):
    model = make()
    optimizer = OPTIMIZERS[name](model.parameters())

    def loss(parameters, x):
        return (torch.func.functional_call(model, parameters, (x,)) - x[:, :1]).abs().mean()

    for step in range(10):
        parameters = dict(model.named_parameters())
        gradients = torch.func.grad(loss)(parameters, batch(step))
        for key, p in parameters.items():
            p.grad = gradients[key].detach()
        optimizer.step()
    assert difference(summary(model, optimizer), run(name)) < 1e-12


def test_functional_call_sees_the_average_without_a_swap():
    model = make()
    optimizer = OPTIMIZERS["sgdm"](model.parameters())
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        optimizer.step()
    average = {key: optimizer.state[p]["average"] for key, p in model.named_parameters()}
    outside = torch.func.functional_call(model, average, (batch(9),))
    with optimizer.averaged():
        assert torch.equal(model(batch(9)), outside)


# --- mixed precision


SCALED = OPTIMIZERS | {
    "sgdm, fused": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.95, fused=True),
    "sgdm, fused, no averages": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, fused=True),
    "AdamW, scaled": lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.01)),
    "AdamW, scaled, fused": lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.01, fused=True)),
}


@pytest.mark.parametrize("name", SCALED)
def test_an_overflow_consumes_nothing(name):
    """A run whose GradScaler calls steps off ends where the run without those batches ends, to the bit."""

    def trained(overflows):
        model = make(torch.float32)
        optimizer = SCALED[name](model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000, backoff_factor=0.5)
        for step in range(10):
            for overflow in (True, False) if step in overflows else (False,):
                optimizer.zero_grad()
                scale = torch.inf if overflow else 1.0
                scaler.scale(loss_of(model, batch(step, torch.float32)) * scale).backward()
                scaler.step(optimizer)
                scaler.update()
        group = optimizer.param_groups[0]
        assert group.get("step", group.get("scaling_step")) == 10
        return [p.detach() for p in model.parameters()] if name not in OPTIMIZERS else summary(model, optimizer)

    assert same(trained({0, 3, 7}), trained(set()))  # scales are powers of two, so unscaling is exact


@every_optimizer
def test_autocast_leaves_parameters_and_averages_in_float32(name):
    model = make(torch.float32)
    optimizer = OPTIMIZERS[name](model.parameters())
    for step in range(10):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert model(batch(step, torch.float32)).dtype == torch.bfloat16
            loss = loss_of(model, batch(step, torch.float32))
        loss.backward()
        optimizer.step()
    for p in optimizer.param_groups[0]["params"]:
        assert p.dtype == optimizer.state[p]["average"].dtype == torch.float32
    plain = run(name, dtype=torch.float32)
    assert difference(summary(model, optimizer)[:-1], plain[:-1]) < 0.1


@every_optimizer
def test_bfloat16_parameters_have_a_float32_average(name):
    """x̄ is the weighted mean of the iterates as they were, to float32's precision."""
    model = make(torch.bfloat16)
    optimizer = OPTIMIZERS[name](model.parameters())
    iterates, averaged = [], optimizer.param_groups[0]["params"]
    for step in range(60):
        iterates.append([p.detach().double() for p in averaged])
        optimizer.zero_grad()
        loss_of(model, batch(step, torch.bfloat16)).backward()
        optimizer.step()
    if name == "original":
        iterates, weights = iterates[-3:], [1 / 3] * 3
    else:
        group = optimizer.param_groups[0]
        law, seed = group["scaling"], group.get("seed", group.get("scaling_seed"))
        weights = weights_of(group["average"], 60, law and list(law_weights(law, seed, 60)))
    key = "block_average" if name == "original" else "average"
    for k, p in enumerate(averaged):
        mean = sum(w * x[k] for w, x in zip(weights, iterates, strict=True))
        assert p.dtype == torch.bfloat16
        assert optimizer.state[p][key].dtype == torch.float32
        assert float((optimizer.state[p][key] - mean).abs().max()) < 1e-5
    saved = [p.detach().clone() for p in model.parameters()]
    with optimizer.averaged():  # rounded once, on the way into the parameters
        for p in averaged:
            assert torch.equal(p, optimizer.state[p][key].to(torch.bfloat16))
    assert same(model.parameters(), saved)


# --- several processes


def evaluated(mesh=None):
    """Return the losses at x̄ and at x, twice in turn; with FSDP2 if there is a mesh, as the recipe does it."""
    model = make()
    if mesh is not None:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh)
    optimizer = OPTIMIZERS["sgdm"](model.parameters())
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, batch(step)).backward()
        optimizer.step()
    found = []

    def evaluate():
        with torch.no_grad():
            found.append(loss_of(model, batch(9)).item())
        if mesh is not None:
            model.reshard()  # otherwise the next forward pass would use the weights of this one

    for _ in range(2):
        with optimizer.averaged():
            evaluate()
        evaluate()
    return found


WORKER = """
import os, sys, torch
sys.path.insert(0, sys.argv[2])
from processes import NO_FSDP2
from test_integrations_torch import OPTIMIZERS, batch, evaluated, loss_of, make, summary
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
found = {}
for name, optimizer_of in OPTIMIZERS.items():
    model = make()
    optimizer = optimizer_of(model.parameters())
    ddp = DistributedDataParallel(model)
    for step in range(10):
        optimizer.zero_grad()
        loss_of(ddp, batch(step)[rank::size]).backward()
        optimizer.step()
    found[name] = summary(model, optimizer)
found["evaluated"] = evaluated(None if NO_FSDP2 else init_device_mesh("cpu", (size,)))
torch.save(found, f"{sys.argv[1]}/{rank}.pt")
distributed.barrier()
os._exit(0)
"""


@pytest.mark.skipif(not torch.distributed.is_available() or sys.platform != "linux", reason="needs gloo and torchrun")
def test_two_processes_with_half_batches_are_one_with_the_whole(tmp_path):
    """Nothing but gradients is communicated: s_n is known to every rank, and all ranks agree to the bit."""
    (tmp_path / "worker.py").write_text(WORKER)
    torchrun(tmp_path / "worker.py", tmp_path, os.path.dirname(__file__))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name in OPTIMIZERS:
        assert same(first[name], second[name])
        assert difference(first[name], run(name)) < 1e-13
    losses = evaluated()
    assert losses[:2] == losses[2:]
    assert losses[0] != losses[1]
    assert first["evaluated"] == second["evaluated"] == pytest.approx(losses, rel=1e-12)
