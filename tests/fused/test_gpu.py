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
@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_kernels_compile_for_a_gpu_that_is_not_here(which, tmp_path):
    """Every kernel for compute capability 9.0, ``all`` with every rule, law and dtype; none spills registers."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, str(Path(__file__).parents[1] / "compile_kernels.py"), which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    names = {line.split()[0] for line in lines}
    assert names == {"close_kernel", "open_kernel", "step_kernel"}
    assert len(lines) > {"some": 12, "all": 60}[which]


# ---- on a GPU only ----


def kinked_loss(params, targets):
    """Non-smooth, with gradients that depend on where the parameters are."""
    return sum((p - t).abs().sum() + (0.5 * torch.sin(3 * p)).sum() for p, t in zip(params, targets, strict=True))


def train(opt, params, targets):
    opt.zero_grad(set_to_none=True)
    kinked_loss(params, targets).backward()
    opt.step()


def capture(opt, params, targets, pool=None):
    """One training step as a graph, with gradients allocated inside it."""
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph, pool=pool):
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


CAPTURED = {name: make for name, make in rig.CASES.items() if name != "extend(Lion)"} | {"extend(NAdam)": nadam}
captured_cases = pytest.mark.parametrize("make", CAPTURED.values(), ids=CAPTURED)
windows = pytest.mark.parametrize("every", [1, 3])


@rig.needs_cuda
@windows
@captured_cases
def test_replays_are_eager_steps(device, make, every):
    """1,000 replays, the lr changed on the way: the bits of 1,000 eager steps, whichever iterates count."""
    runs = []
    for captured in (True, False):
        params, opt, lr, (targets, _) = capturable(make, average=o2nc.Discount(0.9, every=every))
        warm_up(opt, params, targets)
        graph = capture(opt, params, targets) if captured else None
        for k in range(1000):
            lr.fill_(0.02 / (1 + k // 250))
            graph.replay() if graph is not None else train(opt, params, targets)
        assert int(opt.param_groups[0]["o2nc"]["step"]) == 1003
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


@rig.needs_cuda
@windows
@captured_cases
def test_two_graphs_and_eager_steps_between_replays(device, make, every):
    """The host does not know the counter then, and must not act as if it did."""
    runs = []
    for captured in (True, False):
        params, opt, _, targets = capturable(make, average=o2nc.Polynomial(3, every=every))
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
        params, opt, _, (targets, _) = capturable(rig.CASES["ScaledSGDM"])
        warm_up(opt, params, targets)
        graphs = []
        for _ in range(3 if captured else 0):
            graphs.append(capture(opt, params, targets, pool=graphs[0].pool() if graphs else None))
        for k in range(9):
            graphs[k % 3].replay() if captured else train(opt, params, targets)
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)


@rig.needs_cuda
def test_any_number_of_captures(device):
    """With an eager step before each, also one in which nothing is new."""
    params, opt, _, (targets, _) = capturable(rig.CASES["ScaledSGDM"])
    others, plain, _, _ = capturable(rig.CASES["ScaledSGDM"])
    for ps in (params, others):
        kinked_loss(ps, targets).backward()  # these gradients stay where they are
    opt.step()
    graphs = []
    for _ in range(8):
        opt.step()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            opt.step()
        graphs[-1].replay()
    for _ in range(17):
        plain.step()
    rig.agree(rig.facts(opt), rig.facts(plain), tolerance=0)


REFUSED = {
    "foreach": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, foreach=True),
    "gamma": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, scaling=o2nc.Gamma(0.5)),
    "Algorithm 2": lambda ps: o2nc.ExponentiatedO2NC(ps, rig.LEARNERS[0], fused=False),
    "random_scaling": lambda ps: o2nc.random_scaling(torch.optim.SGD(ps, lr=0.1)),
    "capturable": lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.1, capturable=True)),
    "first step": rig.CASES["ScaledSGDM"],
    "first step of a learner": rig.CASES["ScaleFree"],
}


@rig.needs_cuda
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("name", REFUSED)
def test_a_capture_that_cannot_be_replayed_is_refused(device, name):
    """It would replay one s for ever, and count one step; or create state. An eager step afterwards goes on."""
    params, others = rig.begin("cuda"), rig.begin("cuda")
    opt, plain = REFUSED[name](params), REFUSED[name](others)
    steps = 0 if name.startswith("first") else 1
    for run, ps in ((opt, params), (plain, others)):
        rig.advance(run, ps, range(1, steps + 1))
    rig.set_noise(params, 9)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="cannot be captured"), torch.cuda.graph(graph):
        opt.step()
    torch.cuda.synchronize()
    for run, ps in ((opt, params), (plain, others)):
        rig.advance(run, ps, [steps + 1])
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


@rig.needs_cuda
@windows
@rig.cases
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
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("learner", rig.LEARNERS, ids=str)
def test_learners_on_a_gpu_and_on_a_cpu(device, learner, dtype, tolerance):
    runs = []
    for place in ("cuda", "cpu"):
        params = rig.begin(place, dtype, shapes=[*rig.FEW, (70_000,)])
        opt = rig.algorithm_2(params, learner, place == "cuda", scaling=o2nc.Weibull(0.8))
        runs.append(rig.facts(rig.advance(opt, params, range(1, 21))))
    rig.agree(*runs, tolerance=tolerance)


@rig.needs_cuda
@rig.cases
def test_optimizers_on_a_gpu_and_on_a_cpu(device, make):
    runs = []
    for place in ("cuda", "cpu"):
        params = rig.begin(place, shapes=[*rig.FEW, (70_000,)])
        runs.append(rig.facts(rig.advance(make(params, place == "cuda"), params, range(1, 21))))
    rig.agree(*runs, tolerance=1e-11)


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


@rig.needs_cuda
def test_more_than_two_to_the_31_elements(device):
    """Offsets are 64 bits wide: every element gets the step of its own gradient."""
    count = 2**31 + 1029
    if torch.cuda.mem_get_info()[0] < 30 << 31:
        pytest.skip("needs 60 GiB of free memory")
    p = torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16, device=device))
    p.grad = torch.empty_like(p)
    blocks = [slice(low, min(low + (1 << 28), count)) for low in range(0, count, 1 << 28)]
    for block in blocks:  # 0 … 126, exact in bfloat16, and so is all that is computed from them
        p.grad[block] = torch.arange(block.start, block.stop, device=device) % 127
    opt = rig.sgdm([p], lr=1.0, momentum=0.5, scaling=None, average=o2nc.Polynomial(0))
    opt.step()
    p.grad.mul_(2)
    opt.step()  # by kernels
    assert rig.is_fused(opt)
    state = opt.state[p]
    for block in blocks:
        g = p.grad[block] / 2
        assert torch.equal(state["momentum_buffer"][block], (2.5 * g.float()).bfloat16())
        assert torch.equal(p[block], (-3.5 * g.float()).bfloat16())
        assert torch.equal(state["o2nc"]["gradient"][block], 1.5 * g.float())
        assert torch.equal(state["o2nc"]["average"][block], -0.5 * g.float())
    whole, rest = divmod(count, 127)
    square = whole * sum(i * i for i in range(127)) + sum(i * i for i in range(rest))
    assert opt.certificate().gradient == pytest.approx(1.5 * square**0.5, rel=1e-6)
    assert opt.certificate().spread == pytest.approx(square / 4, rel=1e-6)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_several_devices(device):
    """Each has its own tables and counters."""
    runs = []
    for places in (("cuda:0", "cuda:1"), ("cuda:0", "cuda:0")):
        params = [rig.begin(place, shapes=[shape])[0] for place, shape in zip(places, ((3, 2), (1025,)), strict=True)]
        runs.append(rig.facts(rig.advance(rig.CASES["ScaledSGDM"](params), params, range(1, 6))))
    rig.agree(*runs, tolerance=0)


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
