"""Lightning's Trainer: what it validates is what it saves, and checkpoints continue bitwise."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="lightning is not installed")
pytest.importorskip("tensorboard", reason="tensorboard is not installed")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

import o2nc
from logged import NAMES, events_of, same, sgdm
from o2nc.certificates.diagnosis import VERDICTS
from o2nc.integrations.lightning import AveragingCallback
from problem import noise
from registry import OURS, claims, identical

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # Lightning's own, of a folder of ours
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:.*was called without a model. The best model of the previous `fit` call"),
]


def data(seed):
    x = noise(seed, 64, 4, dtype=torch.float32)
    return TensorDataset(x, x[:, :1].abs())


def shuffled():
    """Batches for BatchNorm, in an order that torch's generator draws."""
    return DataLoader(data(2), batch_size=16, shuffle=True)


class Tiny(LightningModule):
    """A network with BatchNorm, that remembers at which weights and statistics it was validated."""

    def __init__(self, make_optimizer=sgdm, fails=False):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.make_optimizer, self.fails, self.validated = make_optimizer, fails, []

    def forward(self, x):
        return self.net(x)

    def loss(self, batch):
        return (self.net(batch[0]) - batch[1]).abs().mean()

    def training_step(self, batch, _):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss(batch))
        self.validated.append(copy.deepcopy(self.net.state_dict()))
        if self.fails and not self.trainer.sanity_checking:
            raise RuntimeError("on purpose")

    test_step = validation_step

    def configure_optimizers(self):
        return self.make_optimizer(self)


VAL = DataLoader(data(1), batch_size=32)


def fit(folder, module=None, callback=None, *, epochs=2, ckpt_path=None, checkpoints=(), **more):
    """Fit a module, 8 batches an epoch."""
    module = module or Tiny()
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary"), False)
    options = {"log_every_n_steps": 3, "accelerator": "cpu", "max_epochs": epochs, "default_root_dir": folder}
    callbacks = [*([callback] if callback else []), *checkpoints]
    trainer = Trainer(callbacks=callbacks, **options | quiet | more)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trainer.fit(module, DataLoader(data(0), batch_size=8), VAL, ckpt_path=ckpt_path)
        module.drawn = torch.get_rng_state()
    return module, trainer


def score(state):
    """Return the validation loss of a model file, as Lightning prints it."""
    module = Tiny()
    module.load_state_dict(state)
    with torch.no_grad():
        return torch.stack([module.eval().loss(batch) for batch in VAL]).mean().item()


@pytest.mark.parametrize("at_train_end", [True, False])
@pytest.mark.parametrize("weights_only", [True, False])
def test_the_score_in_the_name_is_that_of_the_file(weights_only, at_train_end, tmp_path):
    """With BatchNorm, to the last digit: of every file, and of the best, which trainer.test() loads."""
    options = {"save_weights_only": weights_only, "save_on_train_epoch_end": at_train_end, "save_top_k": -1}
    keep = ModelCheckpoint(tmp_path / "kept", "{val_loss:.7f}-{step}", monitor="val_loss", **options)
    callback = AveragingCallback(shuffled())
    module, trainer = fit(tmp_path, callback=callback, checkpoints=[keep], epochs=4)
    x = callback.state_dict()["iterate"]
    files = {path: re.findall(r"val_loss=(\S+)-step", path.name) for path in (tmp_path / "kept").iterdir()}
    assert len(files) == 4
    for path, (printed,) in files.items():
        state = torch.load(path)["state_dict"]
        assert f"{score(state):.7f}" == printed
        assert ("callbacks" in torch.load(path)) != weights_only
    assert f"{trainer.test(dataloaders=VAL, verbose=False)[0]['val_loss']:.7f}" == min(p for (p,) in files.values())
    assert same(callback.state_dict()["iterate"], x)  # of the run, not of the file that was tested
    assert same(module.validated[-1], {k.removeprefix("net."): v for k, v in module.state_dict().items()})


@pytest.mark.filterwarnings("ignore:nothing is averaged yet")  # in OriginalO2NC's first block
@pytest.mark.parametrize("name", ["ScaledSGDM", "AdamW", "extend(Lion)", "OriginalO2NC"])
def test_a_resumed_run_ends_where_an_unbroken_one_does(name, tmp_path):
    """Bitwise; and x as without the callback."""

    def run(folder, ckpt_path=None, callback=None):
        keep = ModelCheckpoint(tmp_path / folder, every_n_train_steps=1, save_top_k=-1, filename="{step}")
        module = Tiny(lambda module: OURS[name](module.named_parameters()))
        module, trainer = fit(tmp_path, module, callback, checkpoints=[keep], epochs=3, ckpt_path=ckpt_path)
        assert trainer.optimizers[0].param_groups[0]["o2nc"]["step"] == 24
        trainer.save_checkpoint(tmp_path / folder / "end.ckpt")
        end = torch.load(tmp_path / folder / "end.ckpt")
        found = claims(trainer.optimizers[0])
        del found["x"]  # which is x̄ after fit with the callback
        kept = end["callbacks"].get("AveragingCallback", {"iterate": end["state_dict"]})
        return end["state_dict"], kept["iterate"], found

    average, x, found = run("kept", callback=AveragingCallback(shuffled()))
    resumed = run("resumed", tmp_path / "kept" / "step=8.ckpt", AveragingCallback(shuffled()))
    undisturbed = run("plain")
    assert same(resumed[1], x)
    assert same(undisturbed[0], undisturbed[0] | x)
    assert not same(average, average | x)
    identical(resumed[2], found)
    identical(undisturbed[2], found)


def test_after_fit_the_module_holds_the_average(tmp_path):
    """Its statistics, too; the run does not notice what is drawn for them."""
    module, trainer = fit(tmp_path, callback=AveragingCallback(shuffled()))
    plain, other = fit(tmp_path / "plain")
    assert torch.equal(module.drawn, plain.drawn)
    with o2nc.averaged(*other.optimizers, model=plain, batches=DataLoader(data(2), batch_size=64)):
        expected = copy.deepcopy(plain.state_dict())
    found, mean = module.state_dict(), expected["net.1.running_mean"]
    torch.testing.assert_close(module.net[1].running_mean, mean)  # over batches of one size: in any order
    assert not torch.allclose(plain.net[1].running_mean, mean, rtol=1e-3)
    assert all(torch.equal(found[name], value) for name, value in expected.items() if "net.1" not in name)
    tested = trainer.validate(module, VAL, verbose=False)[0]["val_loss"]
    assert tested == pytest.approx(score(module.state_dict()))
    assert list(other.optimizers[0].certificate().by_parameter) == list(range(6))
    assert "net.0.weight" in trainer.optimizers[0].certificate().by_parameter  # from the module


def test_before_the_window_x_is_validated_and_saved(tmp_path):
    """With one warning; a run that is resumed from there ends where the unbroken one does."""

    def run(folder, ckpt_path=None):
        module = Tiny(lambda module: o2nc.AdamW(module.parameters(), lr=0.01, average=o2nc.Polynomial(3, start=10)))
        keep = ModelCheckpoint(tmp_path / folder, monitor="val_loss", save_top_k=-1, filename="{step}-{val_loss:.7f}")
        fit(tmp_path, module, AveragingCallback(), checkpoints=[keep], epochs=3, ckpt_path=ckpt_path)
        return module, sorted((tmp_path / folder).glob("*.ckpt"))

    with pytest.warns(UserWarning, match="nothing is averaged yet.* leaves the model at x") as warned:
        whole, (_, _, first) = run("whole")  # of the steps 16, 24, 8
    assert sum("nothing is averaged" in str(w.message) for w in warned) == 1
    assert f"val_loss={score(torch.load(first)['state_dict']):.7f}" in first.stem
    assert same(run("resumed", first)[0].state_dict(), whole.state_dict())


class Every(Tiny):
    """Optimized by hand, with every second batch."""

    automatic_optimization = False

    def training_step(self, batch, k):
        optimizer, loss = self.optimizers(), self.loss(batch)
        self.log("loss", loss)
        self.manual_backward(loss)
        if k % 2:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["plain", "accumulated", "by hand"])
def test_verdict_and_certificate_are_logged_where_lightning_logs(kind, tmp_path):
    """Once per step of the optimizer."""
    module, every = Every() if kind == "by hand" else Tiny(), 2 if kind == "accumulated" else 4
    batches = 2 if kind == "accumulated" else 1
    _, trainer = fit(tmp_path, module, AveragingCallback(), log_every_n_steps=every, accumulate_grad_batches=batches)
    optimizer, events = trainer.optimizers[0], events_of(tmp_path / "lightning_logs")
    assert optimizer.param_groups[0]["o2nc"]["step"] == (16 if kind == "plain" else 8)
    steps, certificate = [event.step for event in events.Scalars("loss")], optimizer.certificate()
    found = {name: events.Scalars(name) for name in NAMES}
    assert [[event.step for event in scalars] for scalars in found.values()] == [steps] * len(NAMES)
    assert len(steps) == 4
    assert found["certificate/gradient"][-1].value == pytest.approx(certificate.gradient, rel=1e-6)
    assert found["certificate/value"][-1].value == pytest.approx(certificate.value, rel=1e-6)
    assert found["run/verdict"][-1].value == VERDICTS.index(optimizer.diagnose().verdict)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "bf16-mixed"])
def test_other_precisions(precision, tmp_path):
    module, plain = (fit(tmp_path, callback=c, precision=precision)[0] for c in (AveragingCallback(shuffled()), None))
    assert not torch.equal(module.validated[-1]["1.running_mean"], plain.validated[-1]["1.running_mean"])


def test_an_error_in_a_validation_leaves_the_iterate(tmp_path):
    module = Tiny(fails=True)
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(tmp_path, module, AveragingCallback(shuffled()))
    plain, _ = fit(tmp_path / "plain", epochs=1)
    assert same(module.net.state_dict(), plain.net.state_dict())
    assert not same(module.validated[-1], plain.net.state_dict())


def test_the_wrapper_that_lightning_hands_out(tmp_path):
    """It is of a class made from ours: it answers like the optimizer itself, and refuses what that refuses."""
    module, trainer = fit(tmp_path)
    (optimizer,), wrapper = trainer.optimizers, module.optimizers()
    assert wrapper is not optimizer
    assert wrapper.certificate() == optimizer.certificate()
    live = copy.deepcopy(module.net.state_dict())
    with o2nc.averaged(wrapper, model=module):
        assert not same(module.net.state_dict(), live)
    assert same(module.net.state_dict(), live)
    for outer, inner in ((wrapper, optimizer), (optimizer, wrapper)):
        with outer.averaged(), pytest.raises(RuntimeError, match=r"step\(\) inside averaged"):
            inner.step()


def test_a_checkpoint_is_not_loaded_over_the_average(tmp_path):
    """trainer.test() without a model loads the best checkpoint, which is x without the callback."""
    module, trainer = fit(tmp_path, checkpoints=[ModelCheckpoint(tmp_path / "kept", monitor="val_loss")])
    with o2nc.averaged(*trainer.optimizers, model=module):
        trainer.test(module, VAL, verbose=False)
        copied = copy.deepcopy(module)
        with pytest.raises(RuntimeError, match="would replace x̄"):
            trainer.test(dataloaders=VAL, verbose=False)
    assert same(module.validated[-1], copied.net.state_dict())
    copied.load_state_dict(module.state_dict())
    module.load_state_dict(copied.state_dict())


class Two(Every):
    """One optimizer for each half; neither has a certificate of the whole."""

    def configure_optimizers(self):
        halves = (self.net[:2].parameters(), self.net[3].parameters())
        first = o2nc.AdamW(halves[0], lr=0.01, average=0.9)  # certificate=False
        return [first, OURS["OriginalO2NC"](halves[1], period=5)]

    def training_step(self, batch, _):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        for optimizer in self.optimizers():
            optimizer.step()


def test_two_optimizers_one_without_a_certificate(tmp_path):
    module, trainer = fit(tmp_path, Two(), AveragingCallback(), log_every_n_steps=4)
    tags = events_of(tmp_path / "lightning_logs").Tags()["scalars"]
    assert ("certificate/value/0" in tags, "certificate/value/1" in tags) == (False, True)
    for optimizer in trainer.optimizers:
        before = copy.deepcopy(module.state_dict())
        with optimizer.averaged():
            assert same(module.state_dict(), before)  # both are x̄ already


def test_refusals(tmp_path):
    headless = type("Headless", (Tiny,), {"forward": LightningModule.forward})
    with pytest.raises(ValueError, match="batches must be there for every evaluation"):
        AveragingCallback(iter([torch.ones(2, 4)]))
    for module, words in (
        (Tiny(lambda module: torch.optim.SGD(module.parameters())), r"one of o2nc.s with averages.*got SGD"),
        (Tiny(lambda module: o2nc.ScaledSGDM(module.parameters())), "keeps no averages"),
        (headless(), r"Headless has no forward\(\): define one"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            fit(tmp_path, module, AveragingCallback(shuffled()))
