"""torch.compile sees a step as one node: nothing is frozen, nothing is recompiled, and the bits are the same."""

import copy

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.lr_scheduler import CosineAnnealingLR

import o2nc
from problem import closure_of, network, noise
from registry import OURS, VARIANTS, identical

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # torch's own: a schedule wraps a step that was compiled before, a compiler looks at everything
    pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on a GPU the fused step is compiled
OPTIMIZERS = {
    **VARIANTS,
    **OURS,
    "ScaledSGDM, tensor lr": lambda ps: OURS["ScaledSGDM"](ps, lr=torch.tensor(0.1)),
    "random_scaling(ASGD)": lambda ps: o2nc.random_scaling(torch.optim.ASGD(ps, lr=0.01)),
}
SAMPLE = ("AdamW", "extend(Lion)", "ScaledSGDM Nesterov", "CoinBetting", "AdamW offload")


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(name):
    model, data = network().to(DEVICE), noise(0, 16, 4, dtype=torch.float32).to(DEVICE)
    return model, OPTIMIZERS[name](model.parameters()), data


def train(model, optimizer, data, step, steps=50):
    schedule = CosineAnnealingLR(optimizer, 50)
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).abs().mean().backward()
        step()
        schedule.step()


def same(*runs):
    """Assert that all tensors and numbers of two runs are the same."""
    identical(*([model.state_dict(), optimizer.state_dict()] for model, optimizer in runs))


def two(make=lambda ps: OURS["ScaledSGDM"](ps), known=1):
    """Return two parameters with gradients, an optimizer that knows one of them or both, and its compiled step."""
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for p in params:
        p.grad = torch.ones(3)
    optimizer = make(params[:known])
    return *params, optimizer, torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS]
)
def test_one_graph_for_a_whole_schedule_and_the_same_bits(name):
    counter = CompileCounterWithBackend("inductor")
    model, optimizer, data = make(name)
    train(model, optimizer, data, torch.compile(optimizer.step, fullgraph=True, backend=counter))
    assert counter.frame_count == 1
    assert counter.op_count == 3  # the step, between the two ends of no_grad
    twin, eager, data = make(name)
    train(twin, eager, data, eager.step)
    same((model, optimizer), (twin, eager))


@pytest.mark.parametrize("name", ["ScaledSGDM", "extend(Lion)"])
def test_copies_of_compiled_runs_go_on(name):
    model, optimizer, data = make(name)
    train(model, optimizer, data, torch.compile(optimizer.step, backend="aot_eager"), 5)
    runs = [copy.deepcopy((model, optimizer)) for _ in range(2)]
    for (twin, other), compiled in zip(runs, (True, False), strict=True):
        step = lambda other=other: type(other).step(other)  # noqa: E731
        train(twin, other, data, torch.compile(step, backend="aot_eager") if compiled else step, 5)
    same(*runs)


def test_a_parameter_without_a_gradient_is_left_out():
    x, y, _, step = two(known=2)
    y.grad = None
    step()
    assert (x != 1).all()
    assert (y == 1).all()
    y.grad = torch.ones(3)
    step()
    assert (y != 1).all()
    assert torch.equal(x.grad, torch.ones(3))


@pytest.mark.parametrize("name", ["ScaledSGDM", "extend(Lion)"])
def test_hooks_run_once_and_closures_are_called(name):
    x = torch.nn.Parameter(torch.ones(3))
    optimizer, seen = OURS[name]([x]), []
    optimizer.register_step_post_hook(lambda *_: seen.append(len(seen)))
    closure = closure_of(optimizer, lambda: x.abs().sum())
    assert torch.compile(optimizer.step, backend="aot_eager")(closure).item() == 3
    assert seen == [0]
    assert (x < 1).all()
    assert optimizer.certificate().gradient > 0


def test_a_late_group_is_stepped():
    _, y, optimizer, step = two()
    step()
    optimizer.add_param_group({"params": [y]})
    step()
    assert (y < 1).all()


def test_parameters_exchanged_by_hand_are_noticed():
    _, y, optimizer, step = two()
    step()
    optimizer.param_groups[0]["params"] = [y]
    with pytest.raises(RuntimeError, match="other parameters than when step"):
        step()
    assert (y == 1).all()
    step()
    assert (y < 1).all()


def test_copies_that_a_compiler_hands_over_are_written():
    """As `torch.compile` may do when it takes mutation out of a graph: what was handed over is copied back after."""
    x = torch.nn.Parameter(torch.ones(3))
    optimizer = OURS["SGD"]([x])
    given = torch.full((3,), 2.0)
    torch.ops.o2nc.step([given], [torch.ones(3)], [0], id(optimizer))
    assert torch.equal(given, x)
    assert (x > 1).all()
    assert (x < 2).all()
    assert x.grad is None


def test_autograd_goes_through_a_differentiable_step():
    """Outside the graph: a node is nothing that autograd can look into."""
    found = []
    rate_too = TORCH >= (2, 7)  # torch's SGD cannot before
    for compiled in (False, True):
        w, lr = torch.ones(3, requires_grad=True), torch.tensor(0.1, requires_grad=rate_too)
        x = w * 1.0
        optimizer = o2nc.ScaledSGDM([x], lr=lr, momentum=0.9, differentiable=True)
        x.grad = torch.ones(3)
        (torch.compile(optimizer.step, backend="aot_eager") if compiled else optimizer.step)()
        found.append(torch.autograd.grad(x.sum(), [w, lr] if rate_too else [w]))
    assert all(map(torch.equal, *found))
