"""One training run: a model, an optimizer, a seed.

Images, order, crops, metrics and learning rate are tensors on the device. A step takes nothing from the host, so that
on a GPU it is one CUDA graph, and the host only waits at the end of an epoch, for the numbers of its row.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from time import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_map_only

from o2nc import recalibrated
from o2nc_experiments.cifar10.arms import Arm
from o2nc_experiments.cifar10.batches import EVALUATED, Batches, Images, augment, crops, next_batch, normalise
from o2nc_experiments.cifar10.options import Settings
from o2nc_experiments.classification import Epoch
from o2nc_experiments.classification.resnet import autocast, make_resnet
from o2nc_experiments.processes import World

WARM_UP = 3  # calls of a function before it is captured
RECALIBRATED = 5  # batches as large as the evaluated ones, for BatchNorm at x̄


def judge(model: nn.Module, images: Tensor, labels: Tensor, tally: Tensor) -> Tensor:
    """Return the mean loss; add the sum of the losses and the number of right answers to the tally."""
    logits = model(images)
    loss = cross_entropy(logits, labels)
    right = (logits.detach().argmax(dim=1) == labels).sum()
    tally += torch.stack((loss.detach().double() * len(labels), right.double()))
    return loss


def learn(model: nn.Module, images: Images, batches: Batches, first: int, size: int, tally: Tensor) -> Tensor:
    """Return the loss of the next batch."""
    return judge(model, *next_batch(images, batches, first, size), tally)


@cache
def compiled(function: Any) -> Any:
    """Compile a function once for all trials: they differ in tensors only."""
    # the many small kernels (casts of weights, ends of reductions) in few launches
    return torch.compile(function, dynamic=False, options={"combo_kernels": True})


class Replay:
    """A function without arguments, launched as one CUDA graph from its fourth call on.

    The first calls do the work for real, so nothing has to be undone: they compile, choose kernels and make the
    optimizer's state. The work takes all that changes from tensors on the device and leaves its results there;
    ``before`` is called before it as long as it is not captured, and once before the capture, for which the current
    stream must not be the default one. On a CPU nothing is captured.
    """

    def __init__(
        self, work: Callable[[], object], before: Callable[[], object], device: torch.device, *, captured: bool = True
    ) -> None:
        self.work, self.before = work, before
        self.patience = WARM_UP if captured and device.type == "cuda" else -1
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Do the work, or have it done."""
        if self.graph is not None:
            self.graph.replay()
            return
        self.before()
        if self.patience:
            self.patience -= 1
            self.work()
            return
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # other trials' work goes on on their streams meanwhile
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self.work()
        self.graph = graph
        self.graph.replay()


class Trial:
    """A model in training.

    The seed is that of the initial weights, the images' order and crops, and s: two arms of one seed begin alike.
    x̄ is evaluated ten times, and after as many epochs as ``horizons`` has. ``fast`` is to compile and capture on a
    GPU; several processes launch their kernels one by one.
    """

    def __init__(
        self,
        arm: Arm,
        seed: int,
        settings: Settings,
        images: Images,
        world: World = World(),
        horizons: Sequence[int] = (),
        *,
        fast: bool = True,
    ) -> None:
        device = images.train.device
        self.arm, self.seed, self.horizons = arm, seed, horizons
        self.settings = replace(settings, epochs=arm.epochs(settings.epochs))
        self.images, self.world, self.device = images, world, device
        fast = fast and world.size == 1 and device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.model: Any = make_resnet(settings.width, seed, device, images.statistics.dtype, world.batch_norm)
        self.whole = world.wrap(self.model)
        self.autocast: Callable[[], AbstractContextManager[Any]] = partial(autocast, device)
        self.optimizer = arm.make(self.model.parameters(), settings.average, seed, device)
        self.base = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.batches = Batches.make(len(images.train), settings.batch, device)
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
        return {"epoch": self.epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of that, which the next steps leave alone."""
        with self.on_stream():
            copied = tree_map_only(Tensor, Tensor.clone, self.state())
        if self.stream is not None:
            self.stream.synchronize()  # for whoever reads it on another one
        return copied

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there; before the first step."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]

    def on_stream(self) -> AbstractContextManager[Any]:
        """Return the context that work of this trial has to be launched in."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def begin_epoch(self) -> int:
        """Prepare an epoch and return how many steps it has."""
        epoch = self.epoch
        self.begun = time()
        with self.on_stream():
            self.batches.fill_(self.seed, epoch, self.settings)
            self.trained.zero_()
            for group, base in zip(self.optimizer.param_groups, self.base, strict=True):
                lr = base * self._factor(epoch)
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
        with self.on_stream():
            self.backward()
            if not self.in_graph:
                self._optimize()

    def _backward(self) -> None:
        first, size = self.world.share(self.settings.batch)
        with self.autocast():
            loss = self.learn(self.whole, self.images, self.batches, first, size, self.trained)
        loss.backward()
        self.batches.advance_()
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
        with self.autocast():
            for images, labels in self.images.tests:
                self.judge(self.model, images, labels, self.tested)

    def launch_evaluation(self) -> None:
        """Launch the evaluation of the iterate."""
        self.model.eval()
        with self.on_stream():
            self.evaluate()

    def end_epoch(self) -> Epoch:
        """Wait for the epoch, evaluate x̄ if that is due, and return the epoch's row."""
        images = self.steps_of(self.epoch) * self.settings.batch
        lr = self.base[0] * self._factor(self.epoch)
        self.epoch += 1
        with self.on_stream():
            trained = self._means(self.trained, images)
            tested = self._means(self.tested, self.images.test_size)
            averages = self._averages()
        if self.stream is not None:
            self.stream.synchronize()  # the weights are back in their places for whoever reads them
        seconds = time() - self.begun
        return Epoch(self.arm.name, self.seed, self.epoch, lr, *trained, *tested, *averages, seconds)  # type: ignore[arg-type, call-arg]

    def _factor(self, epoch: int) -> float:
        """Return what the learning rate is multiplied by in an epoch, counted from 0."""
        return self.arm.schedule.factor(epoch, self.settings.epochs, 0)

    def steps_of(self, epoch: int) -> int:
        """Return how many steps an epoch has."""
        n = len(self.images.train)
        return self.settings.steps(epoch + 1, n) - self.settings.steps(epoch, n)

    def _means(self, tally: Tensor, count: int) -> tuple[float, float]:
        """Return loss and accuracy, on average over the images of all processes."""
        loss, right = self.world.sum_(tally.clone()).tolist()
        return loss / count, right / count

    def _averages(self) -> tuple[float | None, ...]:
        """Return gradient, spread and progress, then loss and accuracy of x̄, as far as there are any."""
        optimizer: Any = self.optimizer
        if not self.arm.averages:
            return (None,) * 5
        certificate = optimizer.certificate()
        known = (certificate.gradient, certificate.spread, optimizer.progress)
        if not (self.settings.averages_are_due(self.epoch) or self.epoch in self.horizons):
            return (*known, None, None)
        with optimizer.averaged(), self.autocast(), recalibrated(self.whole, self._typical_batches()):
            self.evaluate()
            return (*known, *self._means(self.tested, self.images.test_size))

    def _typical_batches(self) -> Iterator[Tensor]:
        """Yield some batches of training images, augmented as in training."""
        images, device, n = self.images, self.device, len(self.images.train)
        size = min(EVALUATED, n)
        first, part = self.world.share(size)
        for i in range(min(RECALIBRATED, n // size)):
            mine = slice(first, first + part)
            at = self.batches.order[i * size :][mine]
            cases = crops(self.seed, torch.tensor([i], device=device), size)[0, mine]
            yield normalise(augment(images.train[at], cases), images.statistics)
