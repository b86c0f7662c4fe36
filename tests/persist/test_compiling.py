"""torch.compile sees a step as one node: nothing is frozen, nothing is compiled anew, and the bits are the same."""

import copy
import io
import warnings
import weakref

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.lr_scheduler import CosineAnnealingLR

import o2nc
from o2nc.learners import OGD, AdaGrad, BallOGD, CoinBetting, ScaleFree
from problem import EXTENDED

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # torch's own: a schedule wraps a step that was compiled before, a compiler looks at everything
    pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]
STEPS = 200
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")  # on a GPU the fused step is compiled

OPTIMIZERS = {
    "sgdm": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.9),
    "sgdm, nesterov, own average": lambda ps: o2nc.ScaledSGDM(ps, 0.1, 0.9, 0, 1e-3, True, average=0.99),
    "sgdm, tensor lr": lambda ps: o2nc.ScaledSGDM(ps, lr=torch.tensor(0.1), momentum=0.9, average=0.99),
    "sgdm, no scaling": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, scaling=None),
    "ogd": lambda ps: o2nc.ExponentiatedO2NC(ps, OGD(lr=0.1), beta=0.9),
    "ogd, no averages": lambda ps: o2nc.ExponentiatedO2NC(ps, OGD(lr=0.1), beta=0.9, average=False),
    "adagrad, uniform": lambda ps: o2nc.ExponentiatedO2NC(ps, AdaGrad(lr=0.01), scaling=o2nc.Uniform()),
    "coin betting, gamma": lambda ps: o2nc.ExponentiatedO2NC(ps, CoinBetting(), scaling=o2nc.Gamma(1.5)),
    "scale-free": lambda ps: o2nc.ExponentiatedO2NC(ps, ScaleFree(lr=0.01), beta=0.9),
    "original": lambda ps: o2nc.OriginalO2NC(ps, BallOGD(lr=0.1, radius=0.1), period=7),
    "AdamW, scaled": lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.01)),
    "ASGD, scaled": lambda ps: o2nc.random_scaling(torch.optim.ASGD(ps, lr=0.01)),
    **EXTENDED,
}


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        data = torch.randn(16, 4)
    model = model.to(DEVICE)
    return model, OPTIMIZERS[name](model.parameters()), data.to(DEVICE)


def train(model, optimizer, data, step, steps):
    schedule = CosineAnnealingLR(optimizer, STEPS)
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).abs().mean().backward()
        step()
        schedule.step()


def everything(model, optimizer):
    """All tensors and numbers that make up the run."""
    return [*model.state_dict().values(), *torch.utils._pytree.tree_leaves(optimizer.state_dict())]


def same(a, b):
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True))


@pytest.mark.some(5)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_graph_for_a_whole_schedule_and_the_same_bits(name):
    counter = CompileCounterWithBackend("inductor")
    model, optimizer, data = make(name)
    train(model, optimizer, data, torch.compile(optimizer.step, fullgraph=True, backend=counter), STEPS)
    assert counter.frame_count == 1
    assert counter.op_count == 3  # the step, between the two ends of no_grad
    twin, eager, data = make(name)
    train(twin, eager, data, eager.step, STEPS)
    assert same(everything(model, optimizer), everything(twin, eager))


def test_the_whole_training_step_compiles_once():
    """torch breaks the graph at zero_grad and backward; the step is in the rest of it, and nothing comes anew."""
    counter = CompileCounterWithBackend("inductor")
    model, optimizer, data = make("sgdm")

    def learn():
        optimizer.zero_grad()
        model(data).abs().mean().backward()
        optimizer.step()

    compiled, schedule = torch.compile(learn, backend=counter), CosineAnnealingLR(optimizer, STEPS)
    made = []
    for _ in range(STEPS):
        compiled()
        schedule.step()
        made.append(counter.frame_count)
    assert made[0] == made[-1]
    twin, eager, data = make("sgdm")
    train(twin, eager, data, eager.step, STEPS)
    for x, y in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(x, y)  # forward and backward are compiled, too: in another order of sums
    assert optimizer.certificate().value == pytest.approx(eager.certificate().value, rel=1e-4)


def test_a_parameter_without_a_gradient_is_left_out():
    x, y = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = o2nc.ScaledSGDM([x, y], lr=0.1, average=0.9)
    step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    x.grad = torch.ones(3)
    step()
    assert (x != 1).all()
    assert (y == 1).all()
    y.grad = torch.ones(3)
    step()
    assert (y != 1).all()
    assert torch.equal(x.grad, torch.ones(3))


def test_hooks_run_once_and_closures_are_called():
    x = torch.nn.Parameter(torch.ones(3))
    optimizer = o2nc.ScaledSGDM([x], lr=0.1)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(len(seen)))

    def closure():
        optimizer.zero_grad()
        loss = x.abs().sum()
        loss.backward()
        return loss

    assert torch.compile(optimizer.step, backend="aot_eager")(closure).item() == 3
    assert seen == [0]
    assert (x < 1).all()


@pytest.mark.parametrize("way", ["deepcopy", "checkpoint"])
@pytest.mark.parametrize("name", ["sgdm", "AdamW, scaled"])
def test_copies_and_checkpoints_of_compiled_runs_go_on(name, way):
    model, optimizer, data = make(name)
    train(model, optimizer, data, torch.compile(optimizer.step, backend="aot_eager"), 5)
    if way == "deepcopy":
        model, optimizer = copy.deepcopy((model, optimizer))
    else:
        file = io.BytesIO()
        torch.save((model.state_dict(), optimizer.state_dict()), file)
        model, optimizer, data = make(name)
        for object_, state in zip((model, optimizer), torch.load(io.BytesIO(file.getvalue())), strict=True):
            object_.load_state_dict(state)
    twin, eager = copy.deepcopy((model, optimizer))
    step = torch.compile(lambda: type(optimizer).step(optimizer), backend="aot_eager")
    train(model, optimizer, data, step, 5)
    train(twin, eager, data, lambda: type(eager).step(eager), 5)
    assert same(everything(model, optimizer), everything(twin, eager))


def test_a_late_group_is_stepped():
    x, y = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = o2nc.ScaledSGDM([x], lr=0.1)
    step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    x.grad, y.grad = torch.ones(3), torch.ones(3)
    step()
    optimizer.add_param_group({"params": [y]})
    step()
    assert (y < 1).all()


def test_parameters_exchanged_by_hand_are_noticed():
    x, y = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = o2nc.ScaledSGDM([x], lr=0.1)
    step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    x.grad, y.grad = torch.ones(3), torch.ones(3)
    step()
    optimizer.param_groups[0]["params"] = [y]
    with pytest.raises(RuntimeError, match="changed by hand"):
        step()
    assert (y == 1).all()
    step()
    assert (y < 1).all()


def test_parameters_that_were_exchanged_are_let_go():
    """Before the next step: a model that was sharded may not fit a second time."""
    x, y = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer, gone = o2nc.ScaledSGDM([x], lr=0.1), weakref.ref(x)
    optimizer.param_groups[0]["params"] = [y]
    del x
    assert gone() is None
    y.grad = torch.ones(3)
    optimizer.step()
    assert (y < 1).all()


def test_copies_that_a_compiler_hands_over_are_written():
    """As `torch.compile` may do when it takes mutation out of a graph: what was handed over is copied back after."""
    x = torch.nn.Parameter(torch.ones(3))
    optimizer = o2nc.ScaledSGDM([x], lr=0.1)
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
    assert same(*found)


def test_the_operator_keeps_torchs_rules():
    x = torch.nn.Parameter(torch.ones(3))
    optimizer = o2nc.ScaledSGDM([x], lr=0.1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.library.opcheck(
            torch.ops.o2nc.step.default, ([x.detach()], [torch.ones(3)], [0], id(optimizer)), test_utils="test_schema"
        )
