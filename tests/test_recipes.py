"""Every Python block of README and docs/ runs as written, and does what its page says.

The blocks of a page run in order, in one module and in an empty folder; every recipe of docs/recipes*.md runs by
itself, after the first block of the page; its scripts run under torchrun.
"""

import importlib.util
import math
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import o2nc
from logged import forget_accelerators
from pages import PAGES, anchor, blocks, sections
from processes import needs_fsdp2, torchrun

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPES = {page: sections(page) for page in PAGES if page.startswith("docs/recipes")}
OPENING = RECIPES["docs/recipes.md"][0]
SECTIONS = {name: text for _, own in RECIPES.values() for name, text in own.items() if blocks(text)}
SCRIPTS = {name: text for name, text in SECTIONS.items() if blocks(text, "sh")}
CODE = {page: blocks(text) for page, text in PAGES.items() if blocks(text) and page not in RECIPES}
CODE |= {name: blocks(OPENING) + blocks(text) for name, text in SECTIONS.items() if name not in SCRIPTS}
NEEDED = {
    "docs/tutorial.md": ["matplotlib"],
    "docs/gpt.md": ["o2nc_experiments"],
    "A log of certificates": ["tensorboard"],
    "Hugging Face transformers": ["transformers", "accelerate"],
    "accelerate": ["accelerate", "tensorboard"],
    "A diffusion model": ["accelerate"],
    "Export to safetensors": ["safetensors"],
    "Lightning": ["lightning"],
}
ABSENT = {
    "docs/performance-appendix.md": "" if torch.cuda.is_available() else "needs a GPU",
    "Muon": "" if hasattr(torch.optim, "Muon") else "torch has no Muon before 2.9",
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs blocks in an empty folder; it returns their module, with the lines they print."""
    monkeypatch.chdir(tmp_path)
    page = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", page)  # where a compiler looks for its names (torch 2.6)

    def run(parts):
        for part in parts:
            exec(compile(part, "page", "exec"), vars(page))
        page.printed = capsys.readouterr().out.splitlines()
        return page

    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield run
    if "accelerate" in sys.modules:
        forget_accelerators()
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.mark.parametrize("name", CODE)
def test_code_runs(name, run, monkeypatch):
    missing = [package for package in NEEDED.get(name, ()) if importlib.util.find_spec(package) is None]
    if reason := ABSENT.get(name) or (missing and f"{missing} not installed"):
        pytest.skip(reason)
    if name == "docs/gpt.md":  # which adds an arm
        from o2nc_experiments import gpt

        monkeypatch.setattr(gpt, "ARMS", dict(gpt.ARMS))
    page = run(CODE[name])
    if name in SAYS:
        assert SAYS[name](page) is not False
    elif name in SECTIONS:
        has_stepped(page)


def has_stepped(page, times=8):
    """Check the number of steps, by default one with every batch, and that there is an average."""
    found = [getattr(value, "optimizer", value) for value in vars(page).values()]  # accelerate's wrapper
    found += getattr(page, "opts", {}).values()
    found = [opt for opt in found if isinstance(opt, torch.optim.Optimizer) and "o2nc" in opt.param_groups[0]]
    assert {int(opt.param_groups[0]["o2nc"]["step"]) for opt in found} == {times}
    for opt in found:
        with opt.averaged():
            pass


def same(state, model):
    """Return whether the values of a state dict, whole or of some names, are those of a model."""
    return all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())


def is_average(state, page):
    """Return whether a state dict holds x̄ of ``page.model``."""
    with page.opt.averaged():
        return same(state, page.model)


def readme_says(page):
    last, mean = map(float, page.printed)
    assert last == pytest.approx(1.3, abs=0.1)
    assert mean == pytest.approx(1.15, abs=0.05)
    assert page.weights.keys() == page.model.state_dict().keys()
    page.loss(32).backward()
    page.opt.step()


def tutorial_says(page):
    assert page.printed[1:3] == ["True", "True"]  # shipped, and resumed, bitwise
    last, mean = ({row[0]: row[k] for row in page.course} for k in (1, 2))
    assert f"{last[1600]:.2f} and {mean[1600]:.2f}" in PAGES["docs/tutorial.md"]
    assert len(page.ends) == 4
    assert all(mean[steps] < min(last[steps], loss + 0.03) for steps, loss in page.ends)
    assert Path("tutorial.png").exists()
    assert page.model.training


def certificate_says(page):
    before, after, exact, best = found = page.before, page.after, page.exact, page.best
    assert before.spread > 10 * after.spread
    assert after.spread > exact.spread
    assert exact.gradient > after.gradient / 2  # it is not noise
    assert best.value < exact.value
    assert before.ess == pytest.approx(199, rel=1e-3)
    printed = re.findall(r"# (‖ḡ‖ .*)", PAGES["docs/certificate.md"])
    for text, certificate in zip(printed, found, strict=True):  # the last digits depend on the processor
        numbers, its = (list(map(float, re.findall(r"[\d.]+", str(line)))) for line in (text, certificate))
        assert numbers == pytest.approx(its, rel=0.01)


def statistics_are_of_the_average(page):
    saved = torch.load("averaged.pt")
    assert page.model.training
    assert page.model[1].num_batches_tracked == len(page.batches)
    assert is_average({name: saved[name] for name, _ in page.model.named_parameters()}, page)
    assert not torch.equal(saved["1.running_mean"], page.model[1].running_mean)


def joins_late(page):
    late, *others = (part.ess for part in page.opt.certificate().by_parameter.values())
    assert page.opt.certificate().ess == late < min(others) / 2


def keeps_the_best(page):
    page.model.load_state_dict(torch.load("best.pt"))
    with torch.no_grad():
        assert page.loss_of(page.model(page.data), page.target).item() == page.best
    assert torch.load("last.pt")["optimizer"]["param_groups"][0]["o2nc"]["step"] == 40


def leaves_a_log(page):
    assert len(Path("certificate.csv").read_text().splitlines()) == 1 + 8
    assert list(Path("runs").iterdir())


def ships_the_best(page):
    assert same(type(page.model).from_pretrained("gpt/best").state_dict(), page.model)
    assert page.trainer.evaluate()["eval_loss"] == page.trainer.state.best_metric


def is_prepared(page):
    has_stepped(page, 4)
    assert Path("averaged").is_dir()
    assert Path("accelerated").is_dir()
    assert len(Path("certificate.csv").read_text().splitlines()) == 1 + 2
    assert list(Path("runs", "run").iterdir())


def samples(page):
    from safetensors.torch import load_file

    assert page.sampled.isfinite().all()
    with page.opt.optimizer.averaged():
        assert same(load_file("pipeline/model.safetensors"), page.unet)


def ends_at_zero(page):
    has_stepped(page)
    return page.opt.param_groups[0]["lr"] < 1e-12


# what pages and recipes say of themselves: checks that raise, or return False; other recipes step with every batch
SAYS = {
    "README.md": readme_says,
    "docs/tutorial.md": tutorial_says,
    "docs/certificate.md": certificate_says,
    "docs/learner.md": lambda r: sum("bound" in line for line in r.printed) == 8 and r.opt is r.theirs,
    "docs/performance-appendix.md": lambda r: has_stepped(r, 5),
    "docs/api/theory.md": lambda r: (
        r.printed[0].startswith("E‖∇F(x̄)‖_c <= ") and r.printed[-1] == "168894" and r.plan.bound < 0.12
    ),
    "Ship the average": lambda r: has_stepped(r) or is_average(torch.load("averaged.pt"), r),
    "Export to safetensors": lambda r: is_average(r.shipped.state_dict(), r),
    "The best checkpoint": keeps_the_best,
    "BatchNorm": statistics_are_of_the_average,
    "Mean teacher": lambda r: is_average(r.teacher.state_dict(), r) and not same(r.teacher.state_dict(), r.model),
    "A window chosen afterwards": lambda r: has_stepped(r, 64) or o2nc.posthoc(r.snapshots, 8).error < 0.03,
    "Gradient accumulation": lambda r: has_stepped(r, 2),
    "Clipping": lambda r: r.opt.certificate().gradient <= 0.1,
    "Parameter groups": lambda r: (
        [(group["lr"], group["weight_decay"]) for group in r.opt.param_groups] == [(1e-3, 0.1), (2e-3, 0)]
    ),
    "Freezing": joins_late,
    "Learning-rate schedules": ends_at_zero,
    "bfloat16 parameters": lambda r: all(
        (p.dtype, state["o2nc"]["average"].dtype) == (torch.bfloat16, torch.float32)
        for p, state in r.opt.state.items()
    ),
    "torch.compile": ends_at_zero,
    "torch.optim.swa_utils": lambda r: (
        math.isclose(r.opt.param_groups[0]["lr"], 0.01) and not is_average(r.swa.module.state_dict(), r)
    ),
    "A log of certificates": leaves_a_log,
    "Lightning": lambda r: f"{r.best.best_model_score:.4f}" in r.best.best_model_path,
    "Hugging Face transformers": ships_the_best,
    "accelerate": is_prepared,
    "A diffusion model": samples,
}


def launch(name, folder):
    """Write a recipe's script, run its commands one after the other, and yield what each prints."""
    (script,) = blocks(SCRIPTS[name])
    # torch's threads may abort a process that ends in the ordinary way, also one without o2nc (torch 2.13, gloo)
    (folder / script.split()[1]).write_text(script + "\nimport os, sys\n\nsys.stdout.flush()\nos._exit(0)\n")
    for line in "".join(blocks(SCRIPTS[name], "sh")).splitlines():
        *command, processes, file = shlex.split(line, comments=True)
        assert command == ["torchrun", "--standalone", "--nproc-per-node"]
        yield torchrun(file, processes=int(processes))[0]


def alone(widths, steps, warm_up=0, clip=math.inf, **options):
    """Do what a script does, in this process; yield certificate and loss at x̄ after every so many steps."""
    torch.manual_seed(0)
    linear = [nn.Linear(*sizes) for sizes in pairwise(widths)]
    model = nn.Sequential(*(part for layer in linear for part in (layer, nn.ReLU())))[:-1]
    data = torch.randn(256, widths[0])
    opt = o2nc.AdamW(model.parameters(), average=o2nc.Polynomial(12, start=warm_up), certificate=True, **options)
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


PRETRAINING = {"weight_decay": 0.1, "warm_up": 5, "clip": 1.0}
TWINS = {
    "DistributedDataParallel": {"widths": (10, 32, 1), "steps": 50, "lr": 1e-3},
    "FSDP2": {"widths": (10, 32, 1), "steps": 25, "lr": 1e-3},
    "A pretraining loop": {"widths": (16, 16, 16, 1), "steps": 20, "lr": 3e-3} | PRETRAINING,
}
LONG = [pytest.param(name, marks=[pytest.mark.slow, needs_fsdp2]) for name in ("FSDP2", "A pretraining loop")]


@pytest.mark.skipif(not torch.distributed.is_available() or sys.platform != "linux", reason="needs gloo and torchrun")
@pytest.mark.parametrize("name", ["DistributedDataParallel", *LONG])
def test_scripts_do_what_one_process_does(name, tmp_path, monkeypatch):
    """Also those that go on with what another number of processes has saved."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        for printed, (value, loss) in zip(launch(name, tmp_path), alone(**TWINS[name]), strict=False):
            found = [float(number) for number in re.findall(r"\d\.\d+(?:e-\d+)?", printed)]  # gloo may print, too
            if name == "DistributedDataParallel":  # its two ranks print the certificate, and may write to one line
                assert found == [pytest.approx(value, rel=1e-5), found[0]]
            else:
                assert found == pytest.approx([value, loss], rel=1e-5 if name == "FSDP2" else 1e-3)


def test_what_is_said_is_of_recipes_that_there_are():
    assert {*SAYS, *NEEDED, *ABSENT} <= CODE.keys()
    assert SCRIPTS.keys() == TWINS.keys()


@pytest.mark.parametrize("page", RECIPES)
def test_pages_begin_alike_and_link_to_their_recipes(page):
    opening, own = RECIPES[page]
    assert blocks(opening) == ([] if "distributed" in page else blocks(OPENING))
    names = [name for name, text in own.items() if blocks(text) or name in ("Which window?", "What is tested")]
    assert set(re.findall(r"\]\(#([^)]+)\)", opening)) == {anchor(name) for name in names}
