"""Every recipe of docs/recipes*.md runs as written, in a folder of its own, and does what it says."""

import importlib.util
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import o2nc
from pages import PAGES, blocks
from processes import needs_fsdp2

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # torch's own, in a compiler
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    # Lightning's own: of torch's pytrees, of loaders without workers (with more cores than two)
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
]

OPENINGS, RECIPES = {}, {}
for page in ("docs/recipes.md", "docs/recipes-trainers.md", "docs/recipes-distributed.md"):
    OPENINGS[page], *sections = re.split(r"^## ", PAGES[page], flags=re.MULTILINE)
    RECIPES[page] = dict(section.split("\n", 1) for section in sections)
OPENING, ALL = OPENINGS["docs/recipes.md"], {name: text for own in RECIPES.values() for name, text in own.items()}
NEEDED = {
    "A log of certificates": ("tensorboard", "matplotlib"),
    "Hugging Face transformers": ("transformers", "accelerate"),
    "accelerate": ("accelerate", "tensorboard"),
    "A diffusion model": ("accelerate",),
    "Export to safetensors": ("safetensors",),
    "Lightning": ("lightning",),
}


def is_script(block):
    return re.match(r"# \w+\.py\n", block) is not None


@pytest.fixture
def namespace(tmp_path, monkeypatch):
    """What a recipe begins with, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    recipe = ModuleType("recipe")
    monkeypatch.setitem(sys.modules, "recipe", recipe)  # where a compiler looks for its names (torch 2.6)
    names = vars(recipe)
    with torch.random.fork_rng():
        exec(compile(*blocks(OPENING), "docs/recipes.md", "exec"), names)
        yield names
    if sys.modules.get("accelerate"):
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


IN_PROCESS = [name for name, text in ALL.items() if blocks(text) and not any(map(is_script, blocks(text)))]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_recipe(name, namespace):
    for package in NEEDED.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if name == "Muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has no Muon before 2.9")
    for block in blocks(ALL[name]):
        exec(compile(block, name, "exec"), namespace)
    if name == "torch.compile":
        torch._dynamo.reset()
    SAYS[name](namespace)


def optimizer_of(names):
    return getattr(names["opt"], "optimizer", names["opt"])


def begun():
    """What a recipe begins with, once more."""
    with torch.random.fork_rng():
        names = {}
        exec(compile(*blocks(OPENING), "docs/recipes.md", "exec"), names)
    return names


def accumulates(names):
    assert int(optimizer_of(names).param_groups[0]["o2nc"]["step"]) == 2
    twin = begun()
    opt = o2nc.AdamW(twin["model"].parameters(), lr=1e-3, average=o2nc.Polynomial(12), certificate=True)
    for half in (slice(0, 128), slice(128, 256)):
        opt.zero_grad()
        twin["loss_of"](twin["model"](twin["data"][half]), twin["target"][half]).backward()
        opt.step()
    for x, y in zip(names["model"].parameters(), twin["model"].parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6)


def clips(names):
    assert names["opt"].certificate().gradient <= 0.1


def keeps_groups(names):
    first, second = names["opt"].param_groups
    assert (first["lr"], first["weight_decay"]) == (1e-3, 0.1)
    assert (second["lr"], second["weight_decay"]) == (2e-3, 0)


def ends_at_zero(names):
    assert names["opt"].param_groups[0]["lr"] < 1e-12


def steps_with_every_batch(names):
    optimizers = names["opts"].values() if "opts" in names else [names["opt"]]
    assert {int(opt.param_groups[0]["o2nc"]["step"]) for opt in optimizers} == {len(names["batches"])}


def has_two_averages(names):
    assert names["opt"].param_groups[0]["lr"] == pytest.approx(0.01)
    with names["opt"].averaged():
        averages = zip(names["swa"].module.parameters(), names["model"].parameters(), strict=True)
        assert not any(torch.equal(x, y) for x, y in averages)


def is_as_before(names):
    assert names["model"].training
    assert names["model"][1].num_batches_tracked == len(names["batches"])
    saved = torch.load("averaged.pt")  # with the statistics of x̄
    assert torch.equal(saved["0.weight"], names["opt"].state[names["model"][0].weight]["o2nc"]["average"])
    assert not torch.equal(saved["1.running_mean"], names["model"][1].running_mean)


def is_as_without_a_scaler(names):
    steps_with_every_batch(names)
    twin = begun()
    opt = o2nc.AdamW(twin["model"].parameters(), lr=1e-3, average=o2nc.Polynomial(12), certificate=True)
    for x, y in twin["batches"]:
        opt.zero_grad()
        twin["loss_of"](twin["model"](x), y).backward()
        nn.utils.clip_grad_norm_(twin["model"].parameters(), 1.0)
        opt.step()
    for x, y in zip(names["model"].parameters(), twin["model"].parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-3)  # computed in float16
    assert names["opt"].certificate().value == pytest.approx(opt.certificate().value, rel=1e-2)


def has_float32_averages(names):
    for p in names["model"].parameters():
        assert (p.dtype, names["opt"].state[p]["o2nc"]["average"].dtype) == (torch.bfloat16, torch.float32)


def is_scheduled_and_compiled(names):
    steps_with_every_batch(names)
    ends_at_zero(names)


def joins_late(names):
    by = names["opt"].certificate().by_parameter
    name = next(iter(dict(names["model"].named_parameters())))
    late, *others = by[name].ess, *(part.ess for key, part in by.items() if key != name)
    assert names["opt"].certificate().ess == late < min(others) / 2


def leaves_a_log(names):
    assert len(Path("certificate.csv").read_text().splitlines()) == 1 + 8
    assert len(Path("certificate.layers.csv").read_text().splitlines()) == 1 + 8 * 4
    assert Path("certificate.png").read_bytes().startswith(b"\x89PNG")
    assert list(Path("runs").iterdir())


def ships_the_best(names):
    trainer = names["trainer"]
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(losses) == 4
    saved = type(names["model"]).from_pretrained("gpt/best")
    assert all(map(torch.equal, saved.parameters(), names["model"].parameters()))
    assert trainer.evaluate()["eval_loss"] == trainer.state.best_metric == min(losses)


def is_prepared(names):
    assert int(optimizer_of(names).param_groups[0]["o2nc"]["step"]) == 4
    assert Path("averaged").is_dir()
    assert Path("accelerated").is_dir()
    assert len(Path("certificate.csv").read_text().splitlines()) == 1 + 2
    assert list(Path("runs", "run").iterdir())


def is_monitored(names):
    best = names["best"]
    state = torch.load(best.best_model_path)["state_dict"]
    module = names["Regression"]()
    module.load_state_dict(state)
    losses = [names["loss_of"](module.eval()(x), y).item() for x, y in names["loader"]]
    assert sum(losses) / len(losses) == pytest.approx(float(best.best_model_score), rel=1e-6)
    assert f"{best.best_model_score:.4f}" in best.best_model_path


def ships_the_average(names):
    opt, model = names["opt"], names["model"]
    assert opt.param_groups[0]["lr"] == pytest.approx(1e-2)
    saved = torch.load("averaged.pt")
    with opt.averaged():
        assert all(torch.equal(saved[key], value) for key, value in model.state_dict().items())


def exports(names):
    with names["opt"].averaged():
        assert all(map(torch.equal, names["shipped"].parameters(), names["model"].parameters()))


def keeps_the_best(names):
    names["model"].load_state_dict(torch.load("best.pt"))
    with torch.no_grad():
        assert names["loss_of"](names["model"](names["data"]), names["target"]).item() == names["best"]
    assert torch.load("last.pt")["optimizer"]["param_groups"][0]["o2nc"]["step"] == 40


def teaches(names):
    with names["opt"].averaged():
        assert all(map(torch.equal, names["teacher"].parameters(), names["model"].parameters()))
    assert not any(map(torch.equal, names["teacher"].parameters(), names["model"].parameters()))


def samples(names):
    assert names["sampled"].isfinite().all()
    from safetensors.torch import load_file

    saved = load_file("pipeline/model.safetensors")
    with optimizer_of(names).averaged():
        assert all(torch.equal(saved[name], p) for name, p in names["unet"].named_parameters())


def is_extended(names):
    assert isinstance(names["opt"], torch.optim.RAdam)
    assert names["opt"].certificate().ess > 1


def mean_by_hand(optimizers, twin, every=1):
    """Run the recipe with torch's optimizers; return x̄ by t^12, ‖ḡ‖ and V of iterates 1, 1 + every, …"""
    params, steps = list(twin["model"].parameters()), []
    for x, y in twin["batches"]:
        gs = torch.autograd.grad(twin["loss_of"](twin["model"](x), y), params)
        steps.append([torch.cat([v.detach().double().ravel() for v in whole]) for whole in (params, gs)])
        for p, g in zip(params, gs, strict=True):
            p.grad = g
        for opt in optimizers:
            opt.step()
    xs, gs = map(torch.stack, zip(*steps[::every], strict=True))
    weights = torch.zeros(len(xs), 1, dtype=torch.float64)
    for n in range(1, len(xs) + 1):
        weights *= 1 - 13 / (n + 12)
        weights[n - 1] = 13 / (n + 12)
    mean = (weights * xs).sum(0)
    return mean, (weights * gs).sum(0).norm().item(), (weights * (xs - mean) ** 2).sum().item()


def is_of_the_whole_model(names):
    """Both averages together are x̄ of the model, and both certificates make its own in the way that is said."""
    twin = begun()
    matrices, others = ([p for p in twin["model"].parameters() if (p.dim() == 2) is m] for m in (True, False))
    mean, gradient, spread = mean_by_hand(
        [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-2)], twin
    )
    opts = names["muon"], names["adamw"]
    with opts[0].averaged(), opts[1].averaged():
        found = torch.cat([p.detach().double().ravel() for p in names["model"].parameters()])
    torch.testing.assert_close(found, mean, rtol=0, atol=1e-6)
    first, second = (opt.certificate() for opt in opts)
    assert math.hypot(first.gradient, second.gradient) == pytest.approx(gradient, rel=1e-5)
    assert first.spread + second.spread == pytest.approx(spread, rel=1e-5)


def takes_every_fourth(names):
    twin = begun()
    mean, gradient, spread = mean_by_hand([torch.optim.AdamW(twin["model"].parameters(), lr=1e-2)], twin, every=4)
    with names["opt"].averaged():
        found = torch.cat([p.detach().double().ravel() for p in names["model"].parameters()])
    torch.testing.assert_close(found, mean, rtol=0, atol=1e-6)
    certificate = names["opt"].certificate()
    assert (certificate.gradient, certificate.spread) == pytest.approx((gradient, spread), rel=1e-5)


def is_decided_afterwards(names):
    """x̄ of the two powers that there were is found again, and a power between as a third track would have it."""
    twin = begun()
    opt = o2nc.AdamW(twin["model"].parameters(), lr=1e-2, average=o2nc.Polynomial(8))
    for n in range(1, 65):
        x, y = twin["batches"][n % len(twin["batches"])]
        opt.zero_grad()
        twin["loss_of"](twin["model"](x), y).backward()
        opt.step()
    found = o2nc.posthoc(names["snapshots"], 8)
    assert found.error < 0.03
    with opt.averaged():
        for name, p in twin["model"].named_parameters():
            torch.testing.assert_close(found.values[name], p.detach(), rtol=0, atol=2e-3)
    last = names["snapshots"][-1]
    again = o2nc.posthoc(names["snapshots"], last.window.power).values
    assert all(torch.allclose(again[name], value, atol=1e-5) for name, value in last.values.items())


def moves_as_adamw(names):
    """The steps of AdamW without its bias corrections, from the same gradients."""
    twin = begun()
    params = list(twin["model"].parameters())
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in params]
    for x, y in twin["batches"]:
        gs = torch.autograd.grad(twin["loss_of"](twin["model"](x), y), params)
        for p, g, (m, v) in zip(params, gs, moments, strict=True):
            m.lerp_(g, 0.1)
            v.lerp_(g**2, 0.05)
            with torch.no_grad():
                p.sub_(1e-3 * (0.1 * p + torch.where(m == 0, 0.0, m / v.sqrt())))
    for p, q in zip(names["model"].parameters(), params, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


SAYS = {
    "Gradient accumulation": accumulates,
    "Clipping": clips,
    "Parameter groups": keeps_groups,
    "Learning-rate schedules": ends_at_zero,
    "Ship the average": ships_the_average,
    "Export to safetensors": exports,
    "The best checkpoint": keeps_the_best,
    "Mean teacher": teaches,
    "A diffusion model": samples,
    "A window chosen afterwards": is_decided_afterwards,
    "Any optimizer": is_extended,
    "Muon": is_of_the_whole_model,
    "Averages in the host's memory": takes_every_fourth,
    "AdamW as a learner": moves_as_adamw,
    "Hooks": steps_with_every_batch,
    "torch.func": steps_with_every_batch,
    "torch.optim.swa_utils": has_two_averages,
    "BatchNorm": is_as_before,
    "Autocast and GradScaler": is_as_without_a_scaler,
    "bfloat16 parameters": has_float32_averages,
    "torch.compile": is_scheduled_and_compiled,
    "Freezing": joins_late,
    "A log of certificates": leaves_a_log,
    "Hugging Face transformers": ships_the_best,
    "accelerate": is_prepared,
    "Lightning": is_monitored,
}


# --- scripts


def launch(name, folder):
    """Write a recipe's script, run its commands one after the other, and return what they print."""
    (script,) = (block for block in blocks(ALL[name]) if is_script(block))
    # torch's threads may abort a process that ends in the ordinary way, also one without o2nc (torch 2.13, gloo)
    (folder / script.split()[1]).write_text(script + "\nimport os, sys\n\nsys.stdout.flush()\nos._exit(0)\n")
    printed = []
    for line in "".join(blocks(ALL[name], "sh")).splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "torchrun"
        command = [sys.executable, "-m", "torch.distributed.run", *arguments]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        printed.append(done.stdout.splitlines())
    return printed


def alone(steps):
    """Do what the scripts do, in this process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
        data = torch.randn(256, 10)
    opt = o2nc.AdamW(model.parameters(), lr=1e-3, average=o2nc.Polynomial(12), certificate=True)
    for _ in range(steps):
        opt.zero_grad()
        model(data).abs().mean().backward()
        opt.step()
    with torch.no_grad(), opt.averaged():
        return opt.certificate().value, model(data).abs().mean().item()


needs_torchrun = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform != "linux", reason="needs gloo and torchrun"
)


@needs_torchrun
def test_ddp(tmp_path):
    (lines,) = launch("DistributedDataParallel", tmp_path)
    found = dict(re.findall(r"rank (\d): (\d\.\d+)", "".join(lines)))  # both may have written to one line
    assert found.keys() == {"0", "1"}
    assert found["0"] == found["1"]
    assert float(found["0"]) == pytest.approx(alone(50)[0], rel=1e-5)


@pytest.mark.slow
@needs_torchrun
@needs_fsdp2
def test_fsdp(tmp_path):
    for steps, lines in zip((25, 50), launch("FSDP2", tmp_path), strict=True):
        # gloo may print, too
        ((step, value, loss),) = re.findall(r"step (\d+): (\S+), loss at x̄ (\S+)", "\n".join(lines))
        assert int(step) == steps
        assert (float(value), float(loss)) == pytest.approx(alone(steps), rel=1e-5)


@pytest.mark.slow
@needs_torchrun
@needs_fsdp2
def test_pretraining(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2)), nn.Linear(16, 1))
        data = torch.randn(256, 16)
    opt = o2nc.AdamW(
        model.parameters(), lr=3e-3, weight_decay=0.1, average=o2nc.Polynomial(12, start=5), certificate=True
    )
    warm_up = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.1, total_iters=5)
    for steps, lines in zip((20, 40), launch("A pretraining loop", tmp_path), strict=True):
        for _ in range(20):
            opt.zero_grad()
            model(data).abs().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            warm_up.step()
        ((step, value, loss),) = re.findall(r"step (\d+): (\S+), loss at x̄ (\S+)", "\n".join(lines))
        assert int(step) == steps
        assert float(value) == pytest.approx(opt.certificate().value, rel=1e-3)
        with torch.no_grad(), opt.averaged():
            assert float(loss) == pytest.approx(model(data).abs().mean().item(), rel=1e-3)


def test_all_recipes_are_tested():
    scripts = {name for name, text in ALL.items() if any(map(is_script, blocks(text)))}
    assert scripts == {"DistributedDataParallel", "FSDP2", "A pretraining loop"}
    assert SAYS.keys() == set(IN_PROCESS)


@pytest.mark.parametrize("page", OPENINGS)
def test_the_contents_link_to_every_recipe(page):
    links = set(re.findall(r"\]\(#([^)]+)\)", OPENINGS[page]))
    names = [name for name, text in RECIPES[page].items() if blocks(text) or page.endswith("distributed.md")]
    names += ["Which window?"] if page == "docs/recipes.md" else []
    assert links == {re.sub(r"[^\w\- ]", "", name).lower().replace(" ", "-") for name in names}


def test_the_pages_begin_alike():
    assert blocks(OPENING) == blocks(OPENINGS["docs/recipes-trainers.md"])
