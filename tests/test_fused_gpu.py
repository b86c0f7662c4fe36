"""The fused step on a GPU: kernels compiled for one that is not here, and what only a real one shows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fused_device as rig
import o2nc

# ---- compiling ----


@rig.needs_triton
@pytest.mark.parametrize(
    ("which", "least"), [("some", 10), pytest.param("all", 60, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_kernels_compile_for_a_gpu_that_is_not_here(which, least, tmp_path):
    """Every kernel for compute capability 9.0; ``all`` with every rule, law and dtype."""
    here = Path(__file__).parent
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, str(here / "compile_kernels.py"), which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *names, count = done.stdout.split()
    assert names == ["close_kernel", "measure_kernel", "open_kernel", "step_kernel", "total_kernel"]
    assert int(count) > least


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


def capturable(make):
    """Parameters, their optimizer with lr on the device, and two sets of targets."""
    params = rig.begin("cuda", torch.float32, shapes=rig.FEW)
    opt = make(params)
    lr = torch.tensor(0.02, device="cuda")
    opt.param_groups[0]["lr"] = lr
    return params, opt, lr, [[torch.full_like(p, v) for p in params] for v in (0.5, -1.0)]


@rig.needs_cuda
@rig.cases
def test_replays_are_eager_steps(device, make):
    """1,000 replays, the lr changed on the way: the bits of 1,000 eager steps."""
    runs = []
    for captured in (True, False):
        params, opt, lr, (targets, _) = capturable(make)
        warm_up(opt, params, targets)
        graph = capture(opt, params, targets) if captured else None
        for k in range(1000):
            lr.fill_(0.02 / (1 + k // 250))
            graph.replay() if graph is not None else train(opt, params, targets)
        assert int(opt.param_groups[0]["step"]) == 1003
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


@rig.needs_cuda
@rig.cases
def test_two_graphs_and_eager_steps_between_replays(device, make):
    runs = []
    for captured in (True, False):
        params, opt, _, targets = capturable(make)
        warm_up(opt, params, targets[0])
        graphs = [capture(opt, params, t) for t in targets] if captured else [None, None]
        for k in (0, 1, 1, 2, 0, 3, 1, 0, 2, 2, 2, 2, 1, 0):
            if k < 2 and captured:
                graphs[k].replay()
            else:
                train(opt, params, targets[k % 2])
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


@rig.needs_cuda
def test_graphs_may_share_a_pool(device):
    runs = []
    for captured in (True, False):
        params, opt, _, (targets, _) = capturable(rig.CASES["momentum"])
        warm_up(opt, params, targets)
        graphs, pool = [], None
        for _ in range(3 if captured else 0):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                train(opt, params, targets)
            pool = graph.pool()
            graphs.append(graph)
        for k in range(9):
            graphs[k % 3].replay() if captured else train(opt, params, targets)
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


@rig.needs_cuda
def test_any_number_of_captures(device):
    """With an eager step before each, also one in which nothing is new."""
    params, opt, _, (targets, _) = capturable(rig.CASES["momentum"])
    others, plain, _, _ = capturable(rig.CASES["momentum"])
    for ps in (params, others):
        kinked_loss(ps, targets).backward()  # these gradients stay where they are
    graphs = []
    for _ in range(8):
        opt.step()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            opt.step()
        graphs[-1].replay()
    for _ in range(16):
        plain.step()
    rig.agree(rig.facts(opt), rig.facts(plain), tolerance=0)


@rig.needs_cuda
@rig.some("momentum", "adam")
def test_a_first_step_cannot_be_captured(device, make):
    """It says so, and an eager step afterwards is a first step."""
    params, opt, _, (targets, _) = capturable(make)
    kinked_loss(params, targets).backward()
    graph, dummy = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")

    def attempt():
        with torch.cuda.graph(graph):
            dummy.add_(1)  # an empty graph would be warned of
            opt.step()

    with pytest.raises(RuntimeError, match=r"call step\(\) once like this before you capture it"):
        attempt()
    others, plain, _, _ = capturable(make)
    train(opt, params, targets)
    train(plain, others, targets)
    rig.agree(rig.facts(opt), rig.facts(plain), tolerance=0)


@rig.needs_cuda
@rig.cases
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_never_waits_for_the_device(device, make):
    params, opt, lr, (targets, _) = capturable(make)
    for rate in (lr, 0.02):
        opt.param_groups[0]["lr"] = rate
        train(opt, params, targets)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                train(opt, params, targets)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@rig.needs_cuda
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("learner", rig.LEARNERS, ids=str)
def test_gpu_against_cpu(device, learner, dtype, tolerance):
    """Kernels on the GPU, foreach on the CPU: every learner within rounding."""
    runs = []
    for place in ("cuda", "cpu"):
        params = rig.begin(place, dtype, shapes=[*rig.FEW, (70_000,)])
        opt = rig.algorithm_2(params, learner, place == "cuda", scaling=o2nc.Weibull(0.8))
        runs.append(rig.facts(rig.advance(opt, params, range(1, 21))))
    rig.agree(*runs, tolerance=tolerance)


@rig.needs_cuda
@rig.some("momentum", "shared buffer", "nesterov", "no momentum", "no average")
def test_sgdm_gpu_against_cpu(device, make):
    runs = []
    for place in ("cuda", "cpu"):
        params = rig.begin(place, shapes=[*rig.FEW, (70_000,)])
        runs.append(rig.facts(rig.advance(make(params, place == "cuda"), params, range(1, 21))))
    rig.agree(*runs, tolerance=1e-11)


@rig.needs_cuda
def test_steps_on_another_stream(device):
    """The kernels run on the current stream, where the gradients are made."""
    runs = []
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        params, opt, _, (targets, _) = capturable(rig.CASES["momentum"])
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(20):
                train(opt, params, targets)
        torch.cuda.synchronize()
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


@rig.needs_cuda
def test_more_than_two_to_the_31_elements(device):
    """Offsets are 64 bits wide: every element gets the step of its own gradient."""
    count = 2**31 + 1029
    if torch.cuda.mem_get_info()[0] < 30 << 31:
        pytest.skip("needs 60 GiB of free memory")
    p = torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16, device=device))
    p.grad = torch.empty_like(p)
    for low in range(0, count, 1 << 28):  # 0 … 126, exact in bfloat16
        high = min(low + (1 << 28), count)
        p.grad[low:high] = torch.arange(low, high, device=device) % 127
    opt = rig.sgdm([p], lr=1.0, momentum=0.9, scaling=None, average=0.9)
    opt.step()
    state = opt.state[p]
    for low in range(0, count, 1 << 28):
        block = slice(low, min(low + (1 << 28), count))
        assert torch.equal(p[block], -p.grad[block])
        assert torch.equal(state["momentum_buffer"][block], p.grad[block])
        assert torch.equal(state["gradient"][block], p.grad[block].float())
        assert not state["average"][block].any()
    whole, rest = divmod(count, 127)
    square = whole * sum(i * i for i in range(127)) + sum(i * i for i in range(rest))
    assert opt.certificate().gradient == pytest.approx(square**0.5, rel=1e-6)
    assert opt.certificate().spread == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_several_devices(device):
    """Each has its own tables and counters; a learner with a joint norm is refused."""
    runs = []
    for places in (("cuda:0", "cuda:1"), ("cuda:0", "cuda:0")):
        params = [rig.begin(place, shapes=[shape])[0] for place, shape in zip(places, ((3, 2), (1025,)), strict=True)]
        runs.append(rig.facts(rig.advance(rig.CASES["momentum"](params), params, range(1, 6))))
        opt = rig.CASES["coin"](params)
        if places[0] != places[1]:
            with pytest.raises(RuntimeError, match="on several devices"):
                rig.advance(opt, params, [1])
    rig.agree(*runs, tolerance=0)


@rig.needs_cuda
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize(
    "make",
    [
        lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, foreach=True),
        lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, scaling=o2nc.Gamma(0.5)),
        lambda ps: o2nc.ExponentiatedO2NC(ps, rig.LEARNERS[0], fused=False),
        lambda ps: o2nc.random_scaling(torch.optim.SGD(ps, lr=0.1)),
        lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.1, capturable=True)),
    ],
    ids=["foreach", "gamma", "exponentiated", "random_scaling", "capturable"],
)
def test_a_capture_off_the_fused_path_is_refused(make):
    """It would replay one s for ever, and count one step."""
    params = rig.begin("cuda")
    opt = make(params)
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"), torch.cuda.graph(graph):
        opt.step()
    torch.cuda.synchronize()
    opt.step()


@rig.needs_cuda
def test_with_cuda_as_the_default_device():
    torch.set_default_device("cuda")
    try:
        params = [torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(()))]
        opt = o2nc.ScaledSGDM(params, lr=0.1, momentum=0.9, average=0.9, fused=True)
        for _ in range(4):
            for p in params:
                p.grad = torch.ones_like(p)
            opt.step()
        assert opt.certificate().value > 0
        opt.load_state_dict(opt.state_dict())
        opt.step()
    finally:
        torch.set_default_device(None)
