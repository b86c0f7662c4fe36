"""Every recipe of docs/recipes*.md runs as written, in a folder of its own, and does what it says."""

import importlib.util
import math
import os
import re
import shlex
import subprocess
import sys
from functools import partial
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
    SAYS.get(name, has_stepped)(namespace)


def begun():
    """What a recipe begins with, once more."""
    with torch.random.fork_rng():
        names = {}
        exec(compile(*blocks(OPENING), "docs/recipes.md", "exec"), names)
    return names


def same(state, model):
    """Return whether a state dict, whole or of some names, is that of a model."""
    return all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())


def has_stepped(names, times=8):
    """So often, by default with every batch; and there is an average."""
    optimizers = names.get("opts", {}).values() or [names[key] for key in ("opt", "muon", "adamw") if key in names]
    optimizers = [getattr(opt, "optimizer", opt) for opt in optimizers]  # accelerate's wrapper
    assert {int(opt.param_groups[0]["o2nc"]["step"]) for opt in optimizers} == {times}
    for opt in optimizers:
        with opt.averaged():
            pass


def clips(names):
    assert names["opt"].certificate().gradient <= 0.1


def keeps_groups(names):
    first, second = names["opt"].param_groups
    assert (first["lr"], first["weight_decay"]) == (1e-3, 0.1)
    assert (second["lr"], second["weight_decay"]) == (2e-3, 0)


def ends_at_zero(names):
    has_stepped(names)
    assert names["opt"].param_groups[0]["lr"] < 1e-12


def has_two_averages(names):
    assert names["opt"].param_groups[0]["lr"] == pytest.approx(0.01)
    with names["opt"].averaged():
        assert not same(names["swa"].module.state_dict(), names["model"])


def is_as_before(names):
    model, saved = names["model"], torch.load("averaged.pt")
    assert model.training
    assert model[1].num_batches_tracked == len(names["batches"])
    with names["opt"].averaged():
        assert same({name: saved[name] for name, _ in model.named_parameters()}, model)
    assert not torch.equal(saved["1.running_mean"], model[1].running_mean)  # with the statistics of x̄


def has_float32_averages(names):
    for p in names["model"].parameters():
        assert (p.dtype, names["opt"].state[p]["o2nc"]["average"].dtype) == (torch.bfloat16, torch.float32)


def joins_late(names):
    late, *others = (part.ess for part in names["opt"].certificate().by_parameter.values())
    assert names["opt"].certificate().ess == late < min(others) / 2


def leaves_a_log(names):
    assert len(Path("certificate.csv").read_text().splitlines()) == 1 + 8
    assert len(Path("certificate.layers.csv").read_text().splitlines()) == 1 + 8 * 4
    assert Path("certificate.png").read_bytes().startswith(b"\x89PNG")
    assert list(Path("runs").iterdir())


def ships_the_best(names):
    assert same(type(names["model"]).from_pretrained("gpt/best").state_dict(), names["model"])
    assert names["trainer"].evaluate()["eval_loss"] == names["trainer"].state.best_metric


def is_prepared(names):
    has_stepped(names, 4)
    assert Path("averaged").is_dir()
    assert Path("accelerated").is_dir()
    assert len(Path("certificate.csv").read_text().splitlines()) == 1 + 2
    assert list(Path("runs", "run").iterdir())


def is_monitored(names):
    assert f"{names['best'].best_model_score:.4f}" in names["best"].best_model_path


def ships_the_average(names):
    has_stepped(names)
    assert names["opt"].param_groups[0]["lr"] == pytest.approx(1e-2)
    with names["opt"].averaged():
        assert same(torch.load("averaged.pt"), names["model"])


def exports(names):
    with names["opt"].averaged():
        assert same(names["shipped"].state_dict(), names["model"])


def keeps_the_best(names):
    names["model"].load_state_dict(torch.load("best.pt"))
    with torch.no_grad():
        assert names["loss_of"](names["model"](names["data"]), names["target"]).item() == names["best"]
    assert torch.load("last.pt")["optimizer"]["param_groups"][0]["o2nc"]["step"] == 40


def teaches(names):
    assert not same(names["teacher"].state_dict(), names["model"])
    with names["opt"].averaged():
        assert same(names["teacher"].state_dict(), names["model"])


def samples(names):
    from safetensors.torch import load_file

    assert names["sampled"].isfinite().all()
    with names["opt"].optimizer.averaged():
        assert same(load_file("pipeline/model.safetensors"), names["unet"])


def is_decided_afterwards(names):
    has_stepped(names, 64)
    assert o2nc.posthoc(names["snapshots"], 8).error < 0.03


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


# the other recipes have stepped with every batch
SAYS = {
    "Gradient accumulation": partial(has_stepped, times=2),
    "Clipping": clips,
    "Parameter groups": keeps_groups,
    "Learning-rate schedules": ends_at_zero,
    "Ship the average": ships_the_average,
    "Export to safetensors": exports,
    "The best checkpoint": keeps_the_best,
    "Mean teacher": teaches,
    "A diffusion model": samples,
    "A window chosen afterwards": is_decided_afterwards,
    "AdamW as a learner": moves_as_adamw,
    "torch.optim.swa_utils": has_two_averages,
    "BatchNorm": is_as_before,
    "bfloat16 parameters": has_float32_averages,
    "torch.compile": ends_at_zero,
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


def alone(layers, steps, warm_up=0, clip=math.inf, **options):
    """Do what a script does, in this process; yield certificate and loss at x̄ after every so many steps."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(*layers())
        data = torch.randn(256, next(model.parameters()).shape[1])
    window = o2nc.Polynomial(12, start=warm_up)
    opt = o2nc.AdamW(model.parameters(), average=window, certificate=True, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1, 0.1 + 0.9 * n / warm_up) if warm_up else 1)
    while True:
        for _ in range(steps):
            opt.zero_grad()
            model(data).abs().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            opt.step()
            schedule.step()
        with torch.no_grad(), opt.averaged():
            yield opt.certificate().value, model(data).abs().mean().item()


def two_layers():
    return nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)


def blocks_of_layers():
    return *(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2)), nn.Linear(16, 1)


needs_torchrun = pytest.mark.skipif(
    not torch.distributed.is_available() or sys.platform != "linux", reason="needs gloo and torchrun"
)


@needs_torchrun
def test_ddp(tmp_path):
    (lines,) = launch("DistributedDataParallel", tmp_path)
    found = dict(re.findall(r"rank (\d): (\d\.\d+)", "".join(lines)))  # both may have written to one line
    assert found.keys() == {"0", "1"}
    assert found["0"] == found["1"]
    assert float(found["0"]) == pytest.approx(next(alone(two_layers, 50, lr=1e-3))[0], rel=1e-5)


TWINS = {
    "FSDP2": (25, 1e-5, {"layers": two_layers, "lr": 1e-3}),
    "A pretraining loop": (
        *(20, 1e-3),
        {"layers": blocks_of_layers, "lr": 3e-3, "weight_decay": 0.1, "warm_up": 5, "clip": 1.0},
    ),
}


@pytest.mark.slow
@needs_torchrun
@needs_fsdp2
@pytest.mark.parametrize("name", TWINS)
def test_sharded_scripts_and_what_they_resume(name, tmp_path):
    steps, tolerance, options = TWINS[name]
    twin = alone(steps=steps, **options)
    for k, lines in enumerate(launch(name, tmp_path), 1):
        # gloo may print, too
        ((step, value, loss),) = re.findall(r"step (\d+): (\S+), loss at x̄ (\S+)", "\n".join(lines))
        assert int(step) == k * steps
        assert (float(value), float(loss)) == pytest.approx(next(twin), rel=tolerance)
    assert k == 2


def test_all_recipes_are_tested():
    scripts = {name for name, text in ALL.items() if any(map(is_script, blocks(text)))}
    assert scripts == {"DistributedDataParallel", "FSDP2", "A pretraining loop"}
    assert SAYS.keys() <= set(IN_PROCESS)


@pytest.mark.parametrize("page", OPENINGS)
def test_the_contents_link_to_every_recipe(page):
    links = set(re.findall(r"\]\(#([^)]+)\)", OPENINGS[page]))
    names = [name for name, text in RECIPES[page].items() if blocks(text) or page.endswith("distributed.md")]
    names += ["Which window?"] if page == "docs/recipes.md" else []
    assert links == {re.sub(r"[^\w\- ]", "", name).lower().replace(" ", "-") for name in names}


def test_the_pages_begin_alike():
    assert blocks(OPENING) == blocks(OPENINGS["docs/recipes-trainers.md"])
