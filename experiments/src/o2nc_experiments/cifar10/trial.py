"""One training run: a model, an optimizer, a seed.

Images, order, crops, metrics and learning rate are tensors on the device. A step takes nothing from the host, so that
on a GPU it is one CUDA graph, and the host only waits at the end of an epoch, for the numbers of its row.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from time import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_map_only

from o2nc.optimizers.base import CertifiedOptimizer
from o2nc.torch_support.batchnorm import recalibrated
from o2nc_experiments.cifar10.arms import Arm
from o2nc_experiments.cifar10.augment import augment, crops, normalise
from o2nc_experiments.cifar10.feed import EVALUATED, Feed, Images, take
from o2nc_experiments.cifar10.replay import Replay
from o2nc_experiments.cifar10.rows import Row
from o2nc_experiments.cifar10.settings import Settings
from o2nc_experiments.cifar10.team import Team
from o2nc_experiments.resnet import ResNet18, layout

RECALIBRATED = 5  # batches as large as the evaluated ones, for BatchNorm at x̄


def judge(model: nn.Module, images: Tensor, labels: Tensor, tally: Tensor) -> Tensor:
    """Return the mean loss; add the sum of the losses and the number of right answers to the tally."""
    logits = model(images)
    loss = cross_entropy(logits, labels)
    right = (logits.detach().argmax(dim=1) == labels).sum()
    tally += torch.stack((loss.detach().double() * len(labels), right.double()))
    return loss


def learn(model: nn.Module, images: Images, feed: Feed, first: int, size: int, tally: Tensor) -> Tensor:
    """Return the loss of the next batch."""
    return judge(model, *take(images, feed, first, size), tally)


@cache
def compiled(function: Any) -> Any:
    """Compile a function once for all trials: they differ in tensors only."""
    # the many small kernels (casts of weights, ends of reductions) in few launches
    return torch.compile(function, dynamic=False, options={"combo_kernels": True})


class Trial:
    """A model in training.

    Args:
        arm: the optimizer.
        seed: of the initial weights, the images' order and crops, and s: two arms of one seed begin alike.
        settings: of the run.
        images: of `to_device`.
        team: the processes that share every batch.
        fast: on a GPU, compile and capture (a team launches its kernels one by one).
    """

    def __init__(
        self, arm: Arm, seed: int, settings: Settings, images: Images, team: Team = Team(), *, fast: bool = True
    ) -> None:
        device = images.train.device
        self.arm, self.seed, self.settings = arm, seed, settings
        self.images, self.team, self.device = images, team, device
        fast = fast and team.size == 1 and device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            model = ResNet18(width=settings.width, norm=team.norm)
        self.model = model.to(device, images.statistics.dtype, memory_format=layout(device))  # type: ignore[call-overload]
        self.whole = team.wrap(self.model)
        self.optimizer = arm.make(self.model.parameters(), settings.average, seed, device)
        self.base = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.feed = Feed.make(len(images.train), settings.batch, device)
        self.trained = torch.zeros(2, dtype=torch.float64, device=device)
        self.tested = torch.zeros_like(self.trained)
        self.epoch = 0
        self.begun = 0.0
        self.learn: Any = compiled(learn) if fast else learn
        self.judge: Any = compiled(judge) if fast else judge
        self.in_graph = fast and arm.on_device
        self.backward = Replay(self._backward, self.optimizer.zero_grad, device, captured=fast)
        self.evaluate = Replay(self._evaluate, lambda: None, device, captured=fast)

    @property
    def finished(self) -> bool:
        """Whether all epochs are over."""
        return self.epoch >= self.settings.epochs

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on, at the end of an epoch."""
        return {
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of that, which the next steps leave alone."""
        with self.here():
            copied = tree_map_only(Tensor, Tensor.clone, self.state())
        if self.stream is not None:
            self.stream.synchronize()  # for whoever reads it on another one
        return copied

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there; before the first step."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]

    def here(self) -> AbstractContextManager[Any]:
        """Return the context that work of this trial has to be launched in."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def half(self) -> AbstractContextManager[Any]:
        """Return the context that the model is evaluated in.

        On a GPU convolutions are made in bfloat16; weights, BatchNorm and the loss stay float32.
        """
        kind = self.device.type
        # without autocast's cache, which must not outlive a capture; no weight is used twice, so it saves nothing
        return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False)

    def begin_epoch(self) -> int:
        """Prepare an epoch and return how many steps it has."""
        epoch = self.epoch
        self.begun = time()
        with self.here():
            self.feed.fill_(self.seed, epoch, self.settings)
            self.trained.zero_()
            for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
                lr = base * self.settings.factor(epoch)
                if not self.in_graph:
                    group["lr"] = lr
                elif isinstance(group["lr"], Tensor) and group["lr"].device == self.device:
                    group["lr"].fill_(lr)  # the graph reads it here
                else:
                    group["lr"] = torch.tensor(lr, device=self.device)
        self.model.train()
        return self.steps_of(epoch)

    def step(self) -> None:
        """Launch a step."""
        with self.here():
            self.backward()
            if not self.in_graph:
                self._optimize()

    def _backward(self) -> None:
        first, size = self.team.share(self.settings.batch)
        with self.half():
            loss = self.learn(self.whole, self.images, self.feed, first, size, self.trained)
        loss.backward()
        self.feed.advance_()
        if self.in_graph:
            self._optimize()

    @torch.no_grad()
    def _optimize(self) -> None:
        if self.arm.penalty:
            params = list(self.model.parameters())
            torch._foreach_add_([p.grad for p in params], params, alpha=self.arm.penalty)
        self.optimizer.step()

    @torch.no_grad()
    def _evaluate(self) -> None:
        self.tested.zero_()
        with self.half():
            for images, labels in self.images.tests:
                self.judge(self.model, images, labels, self.tested)

    def launch_evaluation(self) -> None:
        """Launch the evaluation of the iterate."""
        self.model.eval()
        with self.here():
            self.evaluate()

    def end_epoch(self) -> Row:
        """Wait for the epoch, evaluate x̄ if that is due, and return the epoch's row."""
        images = self.steps_of(self.epoch) * self.settings.batch
        lr = self.base[0] * self.settings.factor(self.epoch)
        self.epoch += 1
        with self.here():
            trained = self._means(self.trained, images)
            tested = self._means(self.tested, self.images.test_size)
            averages = self._averages()
        if self.stream is not None:
            self.stream.synchronize()  # the weights are back in their places for whoever reads them
        seconds = time() - self.begun
        return Row(self.arm.name, self.seed, self.epoch, lr, *trained, *tested, *averages, seconds)  # type: ignore[arg-type, call-arg]

    def steps_of(self, epoch: int) -> int:
        """Return how many steps an epoch has."""
        n = len(self.images.train)
        return self.settings.steps(epoch + 1, n) - self.settings.steps(epoch, n)

    def _means(self, tally: Tensor, count: int) -> tuple[float, float]:
        """Return loss and accuracy, on average over the images of all processes."""
        loss, right = self.team.sum_(tally.clone()).tolist()
        return loss / count, right / count

    def _averages(self) -> tuple[float | None, ...]:
        """Return gradient, spread and progress, then loss and accuracy of x̄, as far as there are any."""
        optimizer = self.optimizer
        if not isinstance(optimizer, CertifiedOptimizer):
            return (None,) * 5
        certificate = optimizer.certificate()
        known = (certificate.gradient, certificate.spread, optimizer.progress)
        if not self.settings.averages_are_due(self.epoch):
            return (*known, None, None)
        with optimizer.averaged(), self.half(), recalibrated(self.whole, self._typical_batches()):
            self.evaluate()
            return (*known, *self._means(self.tested, self.images.test_size))

    def _typical_batches(self) -> Iterator[Tensor]:
        """Yield some batches of training images, augmented as in training."""
        images, device, n = self.images, self.device, len(self.images.train)
        size = min(EVALUATED, n)
        first, part = self.team.share(size)
        for i in range(min(RECALIBRATED, n // size)):
            mine = slice(first, first + part)
            at = self.feed.order[i * size :][mine]
            cases = crops(self.seed, torch.tensor([i], device=device), size)[0, mine]
            yield normalise(augment(images.train[at], cases), images.statistics)
