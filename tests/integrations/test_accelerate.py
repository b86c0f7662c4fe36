"""accelerate prepares an optimizer of o2nc like any other, which stays within reach as ``.optimizer``."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

import o2nc  # noqa: E402
from logged import events_of, forget_accelerators, read  # noqa: E402
from o2nc.logger import CertificateLogger  # noqa: E402
from o2nc.optimizers.wrapped import averaged_optimizer  # noqa: E402
from registry import OURS, claims, identical  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _new_accelerator():
    yield
    forget_accelerators()


def make(name="ScaledSGDM", **settings):
    forget_accelerators()
    accelerator = accelerate.Accelerator(cpu=True, **settings)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = OURS[name](model.named_parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(x, x[:, :1].abs()), batch_size=8, shuffle=True)
    return accelerator, *accelerator.prepare(model, optimizer, schedule, loader)


def train(accelerator, model, optimizer, schedule, loader, epochs=1, clip=1.0):
    for _ in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward((model(x) - y).abs().mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()


@pytest.mark.parametrize(
    ("name", "precision"), [("ScaledSGDM", "no"), ("AdamW", "bf16"), ("extend(Lion)", "no"), ("CoinBetting", "bf16")]
)
def test_a_resumed_run_ends_where_an_unbroken_one_does(name, precision, tmp_path):
    """By save_state and load_state, bitwise, with dropout and shuffling."""
    settings = {"mixed_precision": precision, "gradient_accumulation_steps": 2}
    whole = make(name, **settings)
    train(*whole)
    whole[0].save_state(tmp_path)
    train(*whole, epochs=2)
    resumed = make(name, **settings)
    resumed[0].load_state(tmp_path)
    train(*resumed, epochs=2)
    first, second = (run[2].optimizer for run in (whole, resumed))
    assert first.param_groups[0]["o2nc"]["step"] == 3 * 4
    identical(claims(first), claims(second))


def test_certificate_and_average_are_within_reach(tmp_path):
    """The prepared optimizer will do, and the accelerator is a writer: it hands what is logged to its trackers."""
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    accelerator, model, optimizer, *rest = make(log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("run")
    with CertificateLogger(optimizer, tmp_path / "certificate.csv", every=4, writer=accelerator) as log:
        train(accelerator, model, optimizer, *rest, clip=0.1)
    accelerator.end_training()
    certificate = averaged_optimizer(optimizer).certificate()
    assert averaged_optimizer(optimizer) is optimizer.optimizer
    assert 0 < certificate.gradient <= 0.1  # as it was clipped
    assert list(certificate.by_parameter) == [name for name, _ in model.named_parameters()]
    assert [(row.step, row.certificate) for row in read(log.path)][1:] == [(8, certificate.value)]
    events = events_of(tmp_path)
    assert [event.step for event in events.Scalars("gradient/0.weight")] == [4, 8]
    assert events.Scalars("certificate/value")[-1].value == pytest.approx(certificate.value, rel=1e-6)
    live = [p.detach().clone() for p in model.parameters()]
    with o2nc.averaged(optimizer, model=model):
        accelerator.save_model(model, tmp_path / "averaged")
        average = [p.detach().clone() for p in model.parameters()]
    assert all(map(torch.equal, live, model.parameters()))
    accelerate.load_checkpoint_in_model(model, tmp_path / "averaged")
    assert all(map(torch.equal, average, model.parameters()))
