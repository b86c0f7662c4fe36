"""Hugging Face's Trainer: what it evaluates is what it saves, and checkpoints continue bitwise."""

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed, which the Trainer needs")
pytest.importorskip("tensorboard", reason="tensorboard is not installed")

import o2nc  # noqa: E402
from logged import NAMES, events_of, same, sgdm  # noqa: E402
from o2nc.integrations.transformers import AveragingCallback  # noqa: E402
from o2nc.logger import CertificateLogger  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Config(transformers.PretrainedConfig):
    model_type = "tiny"


class Net(transformers.PreTrainedModel):
    """A network with BatchNorm, and dropout, which makes a run depend on torch's generator."""

    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
        self.post_init()

    def forward(self, x, labels=None):
        return {"loss": (self.net(x)[:, 0] - labels).abs().mean()}


def data(count, seed=0):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return [{"x": row, "labels": row[0].abs()} for row in x]


def batches():
    """Batches for BatchNorm, in an order that torch's generator draws."""
    return torch.utils.data.DataLoader(data(32, 2), batch_size=8, shuffle=True)


def make(folder, make_optimizer=sgdm, callback=True, callbacks=(), batches=None, **more):
    """Return a Trainer of a tiny model with random weights, 12 steps, evaluated and saved at every fourth."""
    torch.manual_seed(0)
    model = Net(Config())
    settings = {"max_steps": 12, "logging_steps": 2, "save_steps": 4, "eval_steps": 4, "eval_strategy": "steps"}
    settings |= {"per_device_train_batch_size": 4, "lr_scheduler_type": "constant", "seed": 3}
    settings |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True}
    given = {"optimizer_cls_and_kwargs": make_optimizer}
    if callable(make_optimizer):
        given = {"optimizers": (make_optimizer(model), None)}
    args = transformers.TrainingArguments(str(folder), **settings | more)
    sets = {"train_dataset": data(40), "eval_dataset": data(8, 1)}
    trainer = transformers.Trainer(model, args, **sets, callbacks=list(callbacks), **given)
    if callback:
        trainer.add_callback(AveragingCallback(trainer, batches))
    return trainer


def metrics(trainer):
    """Return the losses of the evaluations, by step."""
    return {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}


def score(folder, tmp_path):
    """Return the loss of a saved model."""
    trainer = make(tmp_path, callback=False)
    trainer.model = Net.from_pretrained(folder)
    return trainer.evaluate()["eval_loss"]


def timeless(history):
    timed = ("runtime", "per_second", "total_flos")
    return [{k: v for k, v in entry.items() if not any(word in k for word in timed)} for entry in history]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without a stop."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the tests: another number of threads adds up in another order
    trainer = make(tmp_path_factory.mktemp("whole"), batches=batches(), report_to="tensorboard")
    trainer.train()
    torch.set_num_threads(threads)
    return trainer


def test_the_score_is_that_of_the_file(whole, tmp_path):
    """With BatchNorm, to the last digit: of every checkpoint, which is x̄, and of the model after training."""
    found = metrics(whole)
    assert found.keys() == {4, 8, 12}
    for step, loss in found.items():
        folder = Path(whole.args.output_dir, f"checkpoint-{step}")
        assert score(folder, tmp_path) == loss
        kept = torch.load(folder / "optimizer.pt")["state"]
        for k, p in enumerate(Net.from_pretrained(folder).parameters()):
            assert torch.equal(p, kept[k]["o2nc"]["average"])
        state = json.loads((folder / "trainer_state.json").read_text())
        assert [e["eval_loss"] for e in state["log_history"] if "eval_loss" in e][-1] == loss
    assert whole.evaluate()["eval_loss"] == found[12]
    whole.save_model(str(tmp_path / "model"))
    assert score(tmp_path / "model", tmp_path) == found[12]


def test_the_best_is_loaded_and_stops_the_run(tmp_path):
    """x̄ of the best evaluation, and not of the last step; early stopping counts evaluations of x̄."""
    stop = transformers.EarlyStoppingCallback(2, early_stopping_threshold=10.0)
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    trainer = make(tmp_path, batches=batches(), callbacks=[stop], max_steps=40, **best)
    trainer.train()
    found = metrics(trainer)
    assert list(found) == [4, 8, 12]
    assert trainer.state.best_metric == max(found.values()) == found[4]
    assert same(trainer.model.state_dict(), Net.from_pretrained(tmp_path / "checkpoint-4").state_dict())


@pytest.mark.parametrize("checkpoint", [4, 8])
def test_a_resumed_run_ends_where_an_unbroken_one_does(whole, checkpoint, tmp_path):
    """Weights, averages, certificate and history, bitwise."""
    trainer = make(tmp_path, batches=batches())
    trainer.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-{checkpoint}")
    assert same(trainer.model.state_dict(), whole.model.state_dict())
    assert trainer.optimizer.optimizer.certificate() == whole.optimizer.optimizer.certificate()
    now, then = (timeless(run.state.log_history[:-1]) for run in (trainer, whole))
    assert now == then[: len(now)]
    ends = [torch.load(f"{run.args.output_dir}/checkpoint-12/o2nc_iterate.pt") for run in (trainer, whole)]
    assert same(*ends)


def test_the_callback_does_not_change_the_run(whole, tmp_path):
    """x and its statistics are as without it, and the certificate."""
    trainer = make(tmp_path, callback=False)
    trainer.train()
    x = torch.load(f"{whole.args.output_dir}/checkpoint-12/o2nc_iterate.pt")
    assert same(trainer.model.state_dict(), x)
    ours, theirs = (run.optimizer.optimizer.certificate() for run in (whole, trainer))
    assert (ours.value, ours.ess) == (theirs.value, theirs.ess)
    assert list(theirs.by_parameter) == list(range(6))
    assert list(ours.by_parameter) == [name for name, _ in whole.model.named_parameters()]  # from the Trainer's model
    assert not same(x, x | whole.model.state_dict())


def test_certificates_are_logged_after_every_loss(whole):
    history = whole.state.log_history
    at = [k for k, entry in enumerate(history) if "loss" in entry]
    assert [history[k]["step"] for k in at] == [2, 4, 6, 8, 10, 12]
    for k in at:
        assert history[k + 1].keys() >= NAMES
        assert history[k + 1]["step"] == history[k]["step"]
    certificate = whole.optimizer.optimizer.certificate()
    assert history[at[-1] + 1]["certificate/value"] == certificate.value
    events = events_of(Path(whole.args.output_dir, "runs"))
    for name in NAMES:
        found = events.Scalars(f"train/{name}")
        assert [event.value for event in found] == pytest.approx([history[k + 1][name] for k in at], rel=1e-6)


def test_before_the_window_x_is_evaluated_and_saved(tmp_path):
    """With one warning; a run that is resumed from there ends where the unbroken one does."""

    def adamw(model):
        return o2nc.AdamW(model.parameters(), lr=0.01, average=o2nc.Polynomial(3, start=6))

    trainer, resumed = make(tmp_path, adamw), make(tmp_path, adamw)
    with pytest.warns(UserWarning, match="nothing is averaged yet: .*Callback leaves the model at x") as warned:
        trainer.train()
    assert sum("nothing is averaged" in str(w.message) for w in warned) == 1
    for step, loss in metrics(trainer).items():
        assert score(tmp_path / f"checkpoint-{step}", tmp_path) == loss
    resumed.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-4")
    assert same(resumed.model.state_dict(), trainer.model.state_dict())


def test_training_twice(tmp_path):
    """After training the model is x̄: a second train() goes on from x, or not at all."""
    trainer = make(tmp_path)
    trainer.train()
    average = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(RuntimeError, match=r"train\(resume_from_checkpoint=True\) goes on from x"):
        trainer.train()
    trainer.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-8")
    assert same(trainer.model.state_dict(), average)


def test_the_trainer_may_make_the_optimizer(tmp_path):
    """Two groups then, with weight decay and without; accumulation and a log besides; epochs."""
    kwargs = {"lr": 0.1, "momentum": 0.9, "average": 0.9}
    epochs = dict.fromkeys(("eval_strategy", "logging_strategy", "save_strategy"), "epoch")
    more = {"weight_decay": 0.01, "gradient_accumulation_steps": 2, "max_steps": -1, "num_train_epochs": 2} | epochs
    trainer = make(tmp_path, (o2nc.ScaledSGDM, kwargs), **more)
    trainer.create_optimizer()
    log = CertificateLogger(trainer.optimizer, tmp_path / "certificate.csv", every=5)
    trainer.train()
    optimizer = trainer.optimizer.optimizer
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0]
    assert optimizer.param_groups[0]["o2nc"]["step"] == 10
    found = [entry["certificate/value"] for entry in trainer.state.log_history if "certificate/value" in entry]
    assert found[-1] == optimizer.certificate().value
    assert [float(line.split(",")[5]) for line in log.path.read_text().splitlines()[1:]] == found
    assert list(metrics(trainer)) == [5, 10]


def test_an_optimizer_without_averages_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"one of o2nc.s with averages.*got AdamW"):
        make(tmp_path, (torch.optim.AdamW, {"lr": 0.1})).train()
