"""CUDA graphs: steps that can be captured are replayed bitwise, those that cannot are refused."""

from functools import partial

import pytest
import torch

import fused_device as rig
import o2nc
from o2nc import learners
from o2nc.fused import engine
from problem import parameters
from registry import advance, params_of

REFUSED = {
    "ScaledSGDM": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, foreach=True),
    "averages alone": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, scaling=None, average=0.9),
    "SGD": lambda ps: o2nc.SGD(ps, lr=0.1, average=0.9),
    "AdamW": lambda ps: o2nc.AdamW(ps, lr=0.1, average=0.9),
    "gamma": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, scaling=o2nc.Gamma(0.5)),
    "Algorithm 2": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(lr=0.1), fused=False),
    "Algorithm 1": lambda ps: o2nc.OriginalO2NC(ps, learners.OGD(lr=0.1), period=2),
    "random_scaling": lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.1)),
    "random_scaling by displacement": lambda ps: o2nc.random_scaling(torch.optim.Rprop(ps, lr=0.1)),
}
REFUSED_ON_A_GPU = {name: REFUSED[name] for name in ("ScaledSGDM", "gamma", "Algorithm 2", "random_scaling")} | {
    "capturable": lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.1, capturable=True)),
    "first step": rig.CASES["ScaledSGDM"],
    "first step of a learner": rig.CASES["ScaleFree"],
}


@pytest.fixture
def capturing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_a_capture_of_the_eager_step_is_refused(make, capturing):
    opt = make(parameters())
    with pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"):
        advance(opt, [1])
    assert all(map(torch.equal, params_of(opt), parameters()))
    assert opt.param_groups[0]["lr"] == 0.1


def test_a_capture_where_nothing_is_drawn(capturing):
    advance(o2nc.SGD(parameters(), lr=0.1), [1])
    advance(o2nc.random_scaling(torch.optim.SGD(parameters(), lr=0.1), scaling=None), [1])


def test_a_step_that_writes_tables_cannot_be_captured(device, monkeypatch):
    """The second step writes them; it says what to do, and nothing has changed."""
    opt = rig.advance(rig.CASES["AdamW"](rig.begin(device)), [1])
    before = rig.saved(opt)
    monkeypatch.setattr(engine, "is_capturing", lambda: True)
    with pytest.raises(RuntimeError, match=r"call step\(\) twice like this before you capture it"):
        rig.advance(opt, [2])
    rig.identical(rig.saved(opt), before)


@pytest.mark.some(4)
@pytest.mark.parametrize("every", [1, 3])
@rig.some("AdamW", "ScaledSGDM", "OGD")
def test_after_a_capture_the_counter_is_the_devices(device, make, every):
    """A graph that is replayed takes steps without the host: which iterates count is not what the host would say."""
    runs = []
    for replays in (4, 0):
        opt = rig.advance(make(rig.begin(device), average=o2nc.Polynomial(3, every=every)), range(1, 6))
        tables = opt._engine.tables
        if replays:
            tables.uploads.captured.append(tables.uploads.table)
        for _ in range(replays):  # as a graph does, with the gradients of the last step
            tables.run(tables.uploads.table, True)
        for _ in range(4 - replays):
            opt.step()
        rig.advance(opt, range(6, 11))
        assert int(opt.param_groups[0]["o2nc"]["step"]) == 14
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


# ---- on a GPU only ----


def kinked_loss(params, targets):
    """Non-smooth, with gradients that depend on where the parameters are."""
    return sum((p - t).abs().sum() + (0.5 * torch.sin(3 * p)).sum() for p, t in zip(params, targets, strict=True))


def train(opt, params, targets):
    opt.zero_grad(set_to_none=True)
    kinked_loss(params, targets).backward()
    opt.step()


def capture(opt, params, targets):
    """One training step as a graph, with gradients allocated inside it."""
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        train(opt, params, targets)
    return graph


def warm_up(opt, params, targets):
    """The eager steps before a capture, on a side stream as torch asks."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train(opt, params, targets)
    torch.cuda.current_stream().wait_stream(stream)


def capturable(make, **options):
    """Parameters, their optimizer with lr on the device, and two sets of targets."""
    params = rig.begin("cuda", torch.float32, shapes=rig.FEW)
    opt = make(params, **options)
    lr = torch.tensor(0.02, device="cuda")
    opt.param_groups[0]["lr"] = lr
    return params, opt, lr, [[torch.full_like(p, v) for p in params] for v in (0.5, -1.0)]


def nadam(params, fused=True, **options):
    """An extended optimizer whose own step can be captured."""
    return o2nc.extend(torch.optim.NAdam(params, capturable=True), certificate=True, **{"average": 0.9} | options)


def sgd(params, fused=True, **options):
    """An SGD whose own step can be captured with lr on the device: by torch's fused kernel."""
    return o2nc.SGD(params, lr=0.02, momentum=0.9, fused=True, certificate=True, **options)


CAPTURED = {name: make for name, make in rig.CASES.items() if name != "extend(Lion)"}
CAPTURED |= {"SGD": sgd, "extend(NAdam)": nadam}
captured_cases = pytest.mark.parametrize("make", CAPTURED.values(), ids=CAPTURED)
windows = pytest.mark.parametrize("every", [1, 3])


# a window, and what is done step by step: a replay of one of two graphs, or the eager step of one of them
ORDERS = {
    "1,000 replays": (partial(o2nc.Discount, 0.9), [0] * 1000),
    "two graphs and eager steps": (partial(o2nc.Polynomial, 3), [0, 1, 1, 2, 0, 3, 1, 0, 2, 2, 2, 2, 1, 0]),
}


@rig.needs_cuda
@windows
@captured_cases
@pytest.mark.parametrize(("window", "order"), ORDERS.values(), ids=ORDERS)
def test_replays_are_eager_steps(device, make, every, window, order):
    """The bits of as many eager steps, the lr changed on the way, whichever iterates count.

    After a replay the host does not know the counter, and must not act as if it did.
    """
    runs = []
    for captured in (True, False):
        params, opt, lr, targets = capturable(make, average=window(every=every))
        warm_up(opt, params, targets[0])
        graphs = [capture(opt, params, target) for target in targets[: len({*order})]] if captured else []
        for t, k in enumerate(order):
            lr.fill_(0.02 / (1 + t // 250))
            graphs[k].replay() if k < len(graphs) else train(opt, params, targets[k % 2])
        assert int(opt.param_groups[0]["o2nc"]["step"]) == 3 + len(order)
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


@rig.needs_cuda
def test_any_number_of_captures(device):
    """In one pool of memory, with an eager step before each, also one in which nothing is new."""
    params, opt, _, (targets, _) = capturable(rig.CASES["ScaledSGDM"])
    others, plain, _, _ = capturable(rig.CASES["ScaledSGDM"])
    for ps in (params, others):
        kinked_loss(ps, targets).backward()  # these gradients stay where they are
    opt.step()
    graphs = []
    for _ in range(8):
        opt.step()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], pool=graphs[0].pool() if len(graphs) > 1 else None):
            opt.step()
        graphs[-1].replay()
    for _ in range(17):
        plain.step()
    rig.agree(rig.facts(opt), rig.facts(plain), tolerance=0)


@rig.needs_cuda
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("name", REFUSED_ON_A_GPU)
def test_a_capture_that_cannot_be_replayed_is_refused(device, name):
    """It would replay one s for ever, and count one step; or create state. An eager step afterwards goes on."""
    params, others = rig.begin("cuda"), rig.begin("cuda")
    opt, plain = REFUSED_ON_A_GPU[name](params), REFUSED_ON_A_GPU[name](others)
    steps = 0 if name.startswith("first") else 1
    for run in (opt, plain):
        rig.advance(run, range(1, steps + 1))
    rig.set_noise(params, 9)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="cannot be captured"), torch.cuda.graph(graph):
        opt.step()
    torch.cuda.synchronize()
    for run in (opt, plain):
        rig.advance(run, [steps + 1])
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


@rig.needs_cuda
@windows
@captured_cases
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_never_waits_for_the_device(device, make, every):
    params, opt, lr, (targets, _) = capturable(make, average=o2nc.Polynomial(3, every=every))
    for rate in (lr, 0.02):
        opt.param_groups[0]["lr"] = rate
        for _ in range(3):
            train(opt, params, targets)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                train(opt, params, targets)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@rig.needs_cuda
@rig.some("AdamW", "ScaledSGDM")
def test_steps_on_another_stream(device, make):
    """The kernels run on the current stream, where the gradients are made."""
    runs = []
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        params, opt, _, (targets, _) = capturable(make)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(20):
                train(opt, params, targets)
        torch.cuda.synchronize()
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)
