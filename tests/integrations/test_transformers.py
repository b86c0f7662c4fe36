"""Hugging Face's Trainer: certificates in its logs, x̄ to evaluate and save, checkpoints that continue to the bit."""

import copy
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed, which the Trainer needs")
pytest.importorskip("tensorboard", reason="tensorboard is not installed")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

import o2nc  # noqa: E402
from o2nc.integrations.transformers import CertificateCallback, averaged  # noqa: E402
from o2nc.logger import CertificateLogger  # noqa: E402
from registry import OURS  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = transformers.GPT2Config(
    vocab_size=31, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)  # its dropout makes a run depend on torch's generator
NAMES = {f"certificate/{key}" for key in ("value", "gradient", "spread", "progress", "ess")}


def data(count):
    tokens = torch.randint(31, (count, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in tokens]


def sgdm(model):
    return OURS["ScaledSGDM"](model.parameters())


def make(folder, make_optimizer=sgdm, callback=True, **more):
    """Return a Trainer of a tiny model with random weights."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(CONFIG)
    settings = {
        "max_steps": 12,
        "logging_steps": 2,
        "save_steps": 4,
        "per_device_train_batch_size": 4,
        "lr_scheduler_type": "cosine",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 3,
    }
    asked = {key: more.pop(key) for key in ("c", "evaluate", "save") if key in more}
    if make_optimizer is None:
        given = {"optimizer_cls_and_kwargs": more.pop("optimizer_cls_and_kwargs")}
    else:
        given = {"optimizers": (make_optimizer(model), None)}
    args = transformers.TrainingArguments(str(folder), **settings | more)
    trainer = transformers.Trainer(model, args, train_dataset=data(40), eval_dataset=data(8), **given)
    if callback:
        trainer.add_callback(CertificateCallback(trainer, **asked))
    return trainer


def bits(trainer):
    optimizer = trainer.optimizer.optimizer
    with optimizer.averaged():
        average = copy.deepcopy(list(trainer.model.parameters()))
    return [*trainer.model.parameters(), *average]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def timeless(history):
    timed = ("runtime", "per_second")
    return [{k: v for k, v in entry.items() if not any(word in k for word in timed)} for entry in history]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without a stop, with all that the callback can do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the tests: another number of threads adds up in another order
    folder = tmp_path_factory.mktemp("whole")
    more = {"eval_strategy": "steps", "eval_steps": 4, "report_to": "tensorboard"}
    trainer = make(folder, c=2.0, evaluate=True, save=True, **more)
    trainer.train()
    torch.set_num_threads(threads)
    return trainer


def test_certificates_are_in_the_history_after_every_loss(whole):
    history = whole.state.log_history
    at = [k for k, entry in enumerate(history) if "loss" in entry]
    assert [history[k]["step"] for k in at] == [2, 4, 6, 8, 10, 12]
    for k in at:
        assert history[k + 1].keys() >= NAMES
        assert history[k + 1]["step"] == history[k]["step"]
    last = history[at[-1] + 1]
    certificate = whole.optimizer.optimizer.certificate(c=2.0)
    assert last["certificate/value"] == certificate.value
    assert last["certificate/progress"] == whole.optimizer.optimizer.progress
    assert certificate.gradient <= 1  # the Trainer clips at 1


def test_certificates_are_in_tensorboard(whole):
    (folder,) = Path(whole.args.output_dir, "runs").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    logged = [entry for entry in whole.state.log_history if "certificate/value" in entry]
    for name in NAMES:
        found = events.Scalars(f"train/{name}")
        assert [event.step for event in found] == [2, 4, 6, 8, 10, 12]
        assert [event.value for event in found] == pytest.approx([entry[name] for entry in logged], rel=1e-6)
    assert len(events.Scalars("eval/averaged_loss")) == 3


@pytest.mark.parametrize("checkpoint", [4, 8])
def test_a_resumed_run_ends_where_an_unbroken_one_does(whole, checkpoint, tmp_path):
    """Weights, averages, certificate and history, to the bit."""
    trainer = make(tmp_path, c=2.0, evaluate=True, eval_strategy="steps", eval_steps=4)
    trainer.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-{checkpoint}")
    assert same(bits(trainer), bits(whole))
    assert trainer.optimizer.optimizer.certificate() == whole.optimizer.optimizer.certificate()
    now, then = (
        [entry for entry in timeless(run.state.log_history) if "total_flos" not in entry] for run in (trainer, whole)
    )
    assert now == then


def test_the_callback_does_not_change_the_run(whole, tmp_path):
    """Evaluations at x̄ put everything back, torch's generator included."""
    trainer = make(tmp_path, callback=False, eval_strategy="steps", eval_steps=4)
    trainer.train()
    assert same(bits(trainer), bits(whole))


def test_evaluations_at_the_average(whole, tmp_path):
    live = copy.deepcopy(list(whole.model.parameters()))
    with averaged(whole):
        found = whole.evaluate(metric_key_prefix="eval_averaged")["eval_averaged_loss"]
    assert same(whole.model.parameters(), live)
    other, optimizer = make(tmp_path, callback=False), whole.optimizer.optimizer
    for p, q in zip(other.model.parameters(), whole.model.parameters(), strict=True):
        p.data = optimizer.state[q]["o2nc"]["average"]
    assert other.evaluate()["eval_loss"] == found
    during = [entry["eval_averaged_loss"] for entry in whole.state.log_history if "eval_averaged_loss" in entry]
    assert during[2] == found
    ordinary = [entry["eval_loss"] for entry in whole.state.log_history if "eval_loss" in entry]
    assert len(ordinary) == 3
    assert ordinary != during[:3]


def test_the_averaged_model_is_saved(whole, tmp_path):
    with averaged(whole):
        whole.save_model(str(tmp_path / "model"))
        average = copy.deepcopy(list(whole.model.parameters()))
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    assert same(loaded.parameters(), average)
    inside = transformers.GPT2LMHeadModel.from_pretrained(f"{whole.args.output_dir}/checkpoint-12/averaged")
    assert same(inside.parameters(), average)
    earlier = f"{whole.args.output_dir}/checkpoint-4"
    state = torch.load(f"{earlier}/optimizer.pt")["state"]
    loaded = transformers.GPT2LMHeadModel.from_pretrained(f"{earlier}/averaged")
    assert same(loaded.parameters(), [state[k]["o2nc"]["average"] for k in range(len(state))])


def test_the_trainer_may_make_the_optimizer(tmp_path):
    """Two groups then, with weight decay and without, and no names; accumulation and a log besides."""
    kwargs = {"lr": 0.1, "momentum": 0.9, "average": 0.9}
    trainer = make(
        tmp_path,
        None,
        optimizer_cls_and_kwargs=(o2nc.ScaledSGDM, kwargs),
        weight_decay=0.01,
        gradient_accumulation_steps=2,
        max_steps=4,
    )
    trainer.create_optimizer()
    log = CertificateLogger(trainer.optimizer, tmp_path / "certificate.csv", every=2)
    trainer.train()
    optimizer = trainer.optimizer.optimizer
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0]
    assert optimizer.param_groups[0]["o2nc"]["step"] == 4
    found = [entry["certificate/value"] for entry in trainer.state.log_history if "certificate/value" in entry]
    assert found[-1] == optimizer.certificate().value
    assert [float(line.split(",")[3]) for line in log.path.read_text().splitlines()[1:]] == found


def test_nothing_is_logged_before_there_is_something(tmp_path):
    """OriginalO2NC's first block is complete after 5 steps."""
    learner = o2nc.learners.BallOGD(lr=0.1, radius=0.1)
    trainer = make(
        tmp_path,
        lambda model: o2nc.OriginalO2NC(model.parameters(), learner, period=5),
        max_steps=8,
        evaluate=True,
        save=True,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
    )
    trainer.train()
    steps = [entry["step"] for entry in trainer.state.log_history if "certificate/value" in entry]
    assert steps == [6, 8]
    assert not (tmp_path / "checkpoint-4" / "averaged").exists()
    assert (tmp_path / "checkpoint-6" / "averaged").exists()


def test_epochs(tmp_path):
    more = dict.fromkeys(("eval_strategy", "logging_strategy"), "epoch") | {"save_strategy": "no"}
    trainer = make(tmp_path, max_steps=-1, num_train_epochs=2, evaluate=True, **more)
    trainer.train()
    history = trainer.state.log_history
    for name in ("loss", "certificate/value", "eval_loss", "eval_averaged_loss"):
        assert [entry["step"] for entry in history if name in entry] == [10, 20]


class Stops(transformers.TrainerCallback):
    """Stops the training when an average was evaluated."""

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        control.should_training_stop |= "eval_averaged_loss" in metrics


def test_other_callbacks_may_stop_the_run_when_an_average_was_evaluated(tmp_path):
    trainer = make(tmp_path, evaluate=True, eval_strategy="steps", eval_steps=4)
    trainer.add_callback(Stops())
    trainer.train()
    assert trainer.state.global_step == 4
    history = trainer.state.log_history
    assert [sum(name in entry for entry in history) for name in ("eval_loss", "eval_averaged_loss")] == [1, 1]


def test_a_search_has_folders_of_its_own(tmp_path, monkeypatch):
    trainer = make(tmp_path, save=True, max_steps=4)
    monkeypatch.setattr(trainer, "_get_output_dir", lambda trial: str(tmp_path / "run-7"))
    trainer.train()
    assert (tmp_path / "run-7" / "checkpoint-4" / "averaged").is_dir()
    assert not (tmp_path / "checkpoint-4").exists()


def test_refusals(tmp_path):
    with pytest.raises(TypeError, match=r"one of o2nc.s with averages.*got AdamW"):
        make(tmp_path, None, optimizer_cls_and_kwargs=(torch.optim.AdamW, {"lr": 0.1})).train()
    with pytest.raises(ValueError, match="keeps no averages"):
        make(tmp_path, None, optimizer_cls_and_kwargs=(o2nc.ScaledSGDM, {"lr": 0.1})).train()
    with pytest.raises(ValueError, match="c must be a finite number > 0"):
        make(tmp_path, c=-1.0)
    with pytest.raises(TypeError, match="save must be True or False"):
        make(tmp_path, save="folder")
