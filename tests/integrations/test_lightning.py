"""Lightning's Trainer: certificates in its logs, validation at x̄, checkpoints that continue to the bit."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="lightning is not installed")
pytest.importorskip("tensorboard", reason="tensorboard is not installed")

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import o2nc
from o2nc.integrations.lightning import CertificateCallback, averaged
from registry import OURS, claims
from registry import same as assert_same

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # Lightning's own: of torch's pytrees, of loaders without workers (with more cores than two), of a folder of ours
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
NAMES = {f"certificate/{key}" for key in ("value", "gradient", "spread", "progress", "ess")}


def data(seed):
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :1].abs())


def sgdm(module):
    return OURS["ScaledSGDM"](module.named_parameters())


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
        return (self(batch[0]) - batch[1]).abs().mean()

    def training_step(self, batch, _):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss(batch))
        self.validated.append([t.detach().clone() for t in self.net.state_dict().values()])
        if self.fails and not self.trainer.sanity_checking:
            raise RuntimeError("on purpose")

    def configure_optimizers(self):
        return self.make_optimizer(self)


class Resumable(DataLoader):
    """A loader in a fixed order that goes on where it was, as Lightning asks for."""

    at = 0

    def __iter__(self):
        begin = self.at
        for k, batch in enumerate(super().__iter__()):
            if k >= begin:
                self.at = (k + 1) % len(self)
                yield batch

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def fit(folder, module=None, callback=None, *, epochs=2, ckpt_path=None, checkpoints=(), **more):
    """Fit a module, 8 batches an epoch."""
    module = module or Tiny()
    settings = {
        "log_every_n_steps": 3,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=[*([callback] if callback else []), *checkpoints],
        **settings | more,
    )
    trainer.fit(module, Resumable(data(0), batch_size=8), DataLoader(data(1), batch_size=32), ckpt_path=ckpt_path)
    return module, trainer


def events_of(folder):
    (run,) = Path(folder, "lightning_logs").iterdir()
    return EventAccumulator(str(run)).Reload()


def everything(module, trainer):
    (optimizer,) = trainer.optimizers
    averages = [optimizer.state[p]["o2nc"]["average"] for p in module.parameters()]
    return [*module.state_dict().values(), *averages]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_certificates_are_logged_where_lightning_logs(tmp_path):
    _, trainer = fit(tmp_path, callback=CertificateCallback(c=2.0), log_every_n_steps=4)
    (optimizer,) = trainer.optimizers
    assert optimizer.param_groups[0]["o2nc"]["step"] == 16
    certificate = optimizer.certificate(c=2.0)
    assert float(trainer.callback_metrics["certificate/value"]) == pytest.approx(certificate.value, rel=1e-6)
    events = events_of(tmp_path)
    for name in NAMES:
        assert [event.step for event in events.Scalars(name)] == [event.step for event in events.Scalars("loss")]
        assert len(events.Scalars(name)) == 4
    assert events.Scalars("certificate/gradient")[-1].value == pytest.approx(certificate.gradient, rel=1e-6)
    assert events.Scalars("certificate/progress")[-1].value == pytest.approx(optimizer.progress, rel=1e-5)


class Every(Tiny):
    """Optimized by hand, with every second batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, k):
        optimizer, loss = self.optimizers(), self.loss(batch)
        self.log("loss", loss)
        self.manual_backward(loss)
        if k % 2:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("by_hand", [True, False])
def test_accumulated_gradients_are_logged_once_per_step(by_hand, tmp_path, monkeypatch):
    asked, certificate = [], o2nc.ScaledSGDM.certificate
    monkeypatch.setattr(o2nc.ScaledSGDM, "certificate", lambda *args: asked.append(args) or certificate(*args))
    module, more = (Every(), {}) if by_hand else (None, {"accumulate_grad_batches": 2})
    _, trainer = fit(tmp_path, module, CertificateCallback(), log_every_n_steps=4 if by_hand else 2, **more)
    assert trainer.optimizers[0].param_groups[0]["o2nc"]["step"] == 8
    assert len(asked) == 4
    found, losses = ([e.step for e in events_of(tmp_path).Scalars(name)] for name in ("certificate/value", "loss"))
    assert found == losses
    _, trainer = fit(tmp_path / "silent", callback=CertificateCallback(), log_every_n_steps=0)
    assert "certificate/value" not in trainer.callback_metrics


@pytest.mark.parametrize(("name", "at"), [("ScaledSGDM", 8), ("AdamW", 6), ("extend(Lion)", 11), ("OriginalO2NC", 6)])
def test_a_resumed_run_ends_where_an_unbroken_one_does(name, at, tmp_path):
    """From checkpoints within an epoch and at its end, bitwise."""

    def run(ckpt_path=None):
        keep = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=1, save_top_k=-1, filename="{step}")
        module = Tiny(lambda module: OURS[name](module.named_parameters()))
        callback = CertificateCallback(averaged=True)
        return fit(tmp_path, module, callback, checkpoints=[keep], epochs=3, ckpt_path=ckpt_path)

    whole = run()
    module, trainer = run(tmp_path / "kept" / f"step={at}.ckpt")
    assert trainer.optimizers[0].param_groups[0]["o2nc"]["step"] == 24
    assert same(module.state_dict().values(), whole[0].state_dict().values())
    assert_same(claims(trainer.optimizers[0]), claims(whole[1].optimizers[0]))


def test_validation_is_at_the_average_and_checkpoints_are_not(tmp_path):
    keep = ModelCheckpoint(tmp_path / "kept", monitor="val_loss", save_top_k=-1, filename="{step}")
    module, trainer = fit(tmp_path, callback=CertificateCallback(averaged=True), checkpoints=[keep])
    sanity, first, last = module.validated[0], module.validated[2], module.validated[-1]
    names = list(module.net.state_dict())
    saved = torch.load(tmp_path / "kept" / "step=8.ckpt")
    state = saved["optimizer_states"][0]["state"]
    parameters = [k for k, name in enumerate(names) if "running" not in name and "batches" not in name]
    assert same([first[k] for k in parameters], [state[i]["o2nc"]["average"] for i in range(len(state))])
    live = [saved["state_dict"][f"net.{names[k]}"] for k in parameters]
    assert not same([first[k] for k in parameters], live)
    assert same(sanity, Tiny().net.state_dict().values())  # nothing is averaged before the first step
    (optimizer,) = trainer.optimizers
    assert same([last[k] for k in parameters], [optimizer.state[p]["o2nc"]["average"] for p in module.parameters()])
    plain = fit(tmp_path / "plain")
    assert same(everything(module, trainer), everything(*plain))


def test_statistics_are_made_for_the_average(tmp_path):
    """From a loader that draws from torch's generator, which the run does not notice."""
    batches = DataLoader(data(2), batch_size=16, shuffle=True)
    states = []
    for callback in (CertificateCallback(averaged=True), CertificateCallback(averaged=True, batches=batches)):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module, trainer = fit(tmp_path / str(len(states)), callback=callback)
            states.append([torch.get_rng_state(), *everything(module, trainer)])
    assert same(*states)
    at = list(module.net.state_dict()).index("1.running_mean")
    with averaged(trainer), o2nc.recalibrated(module, DataLoader(data(2), batch_size=64)):
        expected = module.net[1].running_mean.clone()
    torch.testing.assert_close(module.validated[-1][at], expected)  # a mean over batches of one size: in any order
    assert not torch.allclose(module.net[1].running_mean, expected)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "bf16-mixed"])
def test_statistics_in_other_precisions(precision, tmp_path):
    batches = DataLoader(data(2), batch_size=16)
    module, _ = fit(tmp_path, callback=CertificateCallback(averaged=True, batches=batches), precision=precision)
    at = list(module.net.state_dict()).index("1.running_mean")
    assert not torch.equal(module.validated[-1][at], module.net[1].running_mean)


def test_what_is_asked_of_validate_is_validated(tmp_path):
    """A checkpoint's weights, not the averages that the optimizer of an earlier fit has."""
    keep = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=4, save_top_k=-1, filename="{step}")
    module, trainer = fit(tmp_path, callback=CertificateCallback(averaged=True), checkpoints=[keep])
    path = tmp_path / "kept" / "step=4.ckpt"
    trainer.validate(module, DataLoader(data(1), batch_size=32), ckpt_path=path, verbose=False)
    assert same(module.validated[-1], torch.load(path)["state_dict"].values())


def test_an_error_in_a_validation_leaves_the_live_weights(tmp_path):
    module = Tiny(fails=True)
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(tmp_path, module, CertificateCallback(averaged=True, batches=DataLoader(data(2), batch_size=16)))
    plain, _ = fit(tmp_path / "plain", epochs=1)
    assert same(module.net.state_dict().values(), plain.net.state_dict().values())
    assert not same(module.validated[-1], plain.net.state_dict().values())


def test_the_wrapper_that_lightning_hands_out(tmp_path):
    """It is of a class made from ours: it answers like the optimizer itself, and refuses what that refuses."""
    module, trainer = fit(tmp_path)
    (optimizer,), wrapper = trainer.optimizers, module.optimizers()
    assert wrapper is not optimizer
    assert wrapper.certificate() == optimizer.certificate()
    live = copy.deepcopy(module.net.state_dict())
    with o2nc.averaged(wrapper, model=module):
        assert not same(module.net.state_dict().values(), live.values())
    assert same(module.net.state_dict().values(), live.values())
    for outer, inner in ((wrapper, optimizer), (optimizer, wrapper)):
        with outer.averaged(), pytest.raises(RuntimeError, match=r"step\(\) inside averaged"):
            inner.step()


def test_the_average_is_saved(tmp_path):
    module, trainer = fit(tmp_path, callback=CertificateCallback())
    live = copy.deepcopy(module.net.state_dict())
    with averaged(trainer):
        trainer.save_checkpoint(tmp_path / "averaged.ckpt", weights_only=True)
        average = copy.deepcopy(module.net.state_dict())
    assert same(module.net.state_dict().values(), live.values())
    loaded = Tiny.load_from_checkpoint(tmp_path / "averaged.ckpt")
    assert same(loaded.net.state_dict().values(), average.values())
    assert not same(average.values(), live.values())


def test_a_validation_without_a_fit_is_left_alone(tmp_path):
    module = Tiny()
    callback = CertificateCallback(averaged=True, batches=DataLoader(data(2), batch_size=16))
    trainer = Trainer(
        default_root_dir=tmp_path, accelerator="cpu", callbacks=[callback], enable_progress_bar=False, logger=False
    )
    trainer.validate(module, DataLoader(data(1), batch_size=32), verbose=False)
    assert same(module.validated[0], Tiny().net.state_dict().values())


class Two(Every):
    """One optimizer for each half."""

    def configure_optimizers(self):
        halves = (self.net[0].parameters(), self.net[3].parameters())
        return [OURS["AdamW"](halves[0]), OURS["OriginalO2NC"](halves[1], period=5)]

    def training_step(self, batch, _):
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        for optimizer in self.optimizers():
            optimizer.step()


def test_two_optimizers(tmp_path):
    _, trainer = fit(tmp_path, Two(), CertificateCallback(averaged=True), log_every_n_steps=4)
    first, second = trainer.optimizers
    events = events_of(tmp_path)
    found = events.Scalars("certificate/value/0"), events.Scalars("certificate/value/1")
    assert [len(f) for f in found] == [4, 3]  # no block is complete after 4 steps
    for optimizer, f in zip((first, second), found, strict=True):
        assert f[-1].value == pytest.approx(optimizer.certificate().value, rel=1e-6)


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="c must be a finite number > 0"):
        CertificateCallback(c=0.0)
    with pytest.raises(ValueError, match="pass averaged=True as well"):
        CertificateCallback(batches=[torch.ones(2, 4)])
    with pytest.raises(ValueError, match="batches must be there for every validation"):
        CertificateCallback(averaged=True, batches=iter([torch.ones(2, 4)]))
    with pytest.raises(TypeError, match=r"one of o2nc.s with averages.*got SGD"):
        fit(tmp_path, Tiny(lambda module: torch.optim.SGD(module.parameters())), CertificateCallback())
    with pytest.raises(ValueError, match="keeps no averages"):
        fit(tmp_path, Tiny(lambda module: o2nc.ScaledSGDM(module.parameters())), CertificateCallback())
