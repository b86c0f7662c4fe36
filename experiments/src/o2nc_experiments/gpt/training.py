"""The one model of a process: trained by run after run, compiled once for all of them.

A run begins with weights drawn in place, so that no run needs another compiled function. Tokens, batches and losses
are on the device; the host waits for it only where a number is written down.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils._pytree import tree_map_only

from o2nc_experiments.gpt.arms import LAST, OWN, Arm
from o2nc_experiments.gpt.data import Corpus, beginnings, read, to_device
from o2nc_experiments.gpt.model import GPT
from o2nc_experiments.gpt.optimizers import Certificate, Means, averaged, certificate, make
from o2nc_experiments.gpt.options import Settings
from o2nc_experiments.processes import World

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bfloat16 operations per second, by the makers


class Trainer:
    """Model, data and what is compiled of them.

    Args:
        corpus: tokens.
        settings: sizes.
        device: where to train: in bfloat16 and compiled on a GPU, in float32 on a CPU.
        world: the processes that share every batch.
        compiled: whether to compile; None does so on a GPU.
    """

    def __init__(
        self,
        corpus: Corpus,
        settings: Settings,
        device: torch.device,
        world: World = World(),
        *,
        compiled: bool | None = None,
    ) -> None:
        self.settings, self.device, self.world = settings, device, world
        sizes = (settings.layers, settings.width, settings.heads, settings.context, corpus.vocabulary)
        self.model = GPT(*sizes).to(device)
        self.train_tokens, held_out = (to_device(tokens, device) for tokens in (corpus.train, corpus.held_out))
        pieces = min(settings.evaluated, len(held_out) - 1) // settings.context
        begins = torch.arange(pieces, device=device) * settings.context
        batches = begins.split(settings.rows)
        whole = [part for part in batches if len(part) == settings.rows] or list(batches)  # one shape for all
        self.evaluated = sum(part.numel() for part in whole) * settings.context
        self.held_out = [read(held_out, part, settings.context) for part in whole[world.rank :: world.size]]
        first, size = world.share(settings.rows)
        self.mine = slice(first, first + size)  # of the rows of a batch
        if device.type == "cuda" if compiled is None else compiled:
            self.model.compile(dynamic=False)
        self.whole = world.wrap(self.model)
        self.graph: torch.cuda.CUDAGraph | None = None  # of one forward and backward pass

    @property
    def parameters(self) -> int:
        """How many there are."""
        return sum(p.numel() for p in self.model.parameters())

    def autocast(self) -> Any:
        """Return the context that the model is evaluated in."""
        on_gpu = self.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if on_gpu else nullcontext()

    def warm_up(self) -> float:
        """Compile, capture, and return how many seconds that took."""
        begun = perf_counter()
        self.model.begin_(0)
        batch = self.read(torch.zeros(self.settings.rows, dtype=torch.int64, device=self.device))
        self.backward(batch)
        if self.device.type == "cuda" and self.world.size == 1:
            self._capture(batch)
        else:
            self.model.zero_grad()
        self.evaluate()
        return perf_counter() - begun

    def _capture(self, batch: Tensor) -> None:
        """Record forward pass, backward pass and clipping, which cost the host more than a small model the device."""
        self.batch = batch.clone()
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._backward(self.batch)
        torch.cuda.current_stream().wait_stream(side)
        self.model.zero_grad()  # gradients that the graph makes stay where they are
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.loss = self._backward(self.batch)
        self.graph = graph

    def read(self, begins: Tensor) -> Tensor:
        """Return this process's rows of the batch whose rows begin there."""
        return read(self.train_tokens, begins[self.mine], self.settings.context)

    def backward(self, batch: Tensor) -> Tensor:
        """Make gradients, clipped, and return the loss; nothing waits for the device."""
        if self.graph is None:
            self.model.zero_grad()
            return self._backward(batch)
        self.batch.copy_(batch)
        self.graph.replay()
        return self.loss.clone()

    def _backward(self, batch: Tensor) -> Tensor:
        with self.autocast():
            loss = self.whole(batch)
        loss.backward()
        clip_grad_norm_(self.model.parameters(), self.settings.clip)
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the mean loss on what is held out."""
        with self.autocast():
            losses = [self.model(batch).double() * len(batch) for batch in self.held_out]
        total = self.world.sum_(sum(losses, torch.zeros((), dtype=torch.float64, device=self.device)))
        return float(total) * self.settings.context / self.evaluated

    @property
    def peak(self) -> float | None:
        """Tokens per second if the device did nothing but the model's arithmetic, None where that is not known."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        peak = next((peak for key, peak in PEAKS.items() if key in name), None)
        return peak and peak / self.model.flops(self.settings.context)


class Progress(NamedTuple):
    """How far a run is, and what is known there.

    Attributes:
        step: of the run.
        loss: on the batches since the last one, before each step.
        certificate: None where there are no averages.
    """

    step: int
    loss: float
    certificate: Certificate | None


class Training:
    """A run under way: the trainer's model with an optimizer, at some step.

    Args:
        trainer: whose model is begun anew.
        arm: optimizer and law.
        lr: in place of the arm's own.
        seed: of the weights, the batches and s: two arms of one seed begin alike.
        windows: of the averages; the first is the optimizer's own.
        steps: the longest that it may go.
    """

    def __init__(self, trainer: Trainer, arm: Arm, lr: float, seed: int, windows: Sequence[str], steps: int) -> None:
        self.trainer, self.arm = trainer, arm
        model, settings = trainer.model, trainer.settings
        model.begin_(seed)
        self.own = windows[0] if windows else None
        self.optimizers = make(replace(arm, lr=lr), model, self.own, seed)
        self.base = [[float(group["lr"]) for group in o.param_groups] for o in self.optimizers]
        self.means = Means(list(model.parameters()), windows[1:])
        sizes = (len(trainer.train_tokens), settings.context, settings.rows)
        self.begins = beginnings(*sizes, steps, seed).to(trainer.device)
        self.losses: list[Tensor] = []
        self.step = 0

    def advance(self, factor: float) -> None:
        """Make a step at this multiple of lr."""
        trainer = self.trainer
        self.losses.append(trainer.backward(trainer.read(self.begins[self.step])))
        self.means.add_()
        for optimizer, base in zip(self.optimizers, self.base, strict=True):
            for group, lr in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr * factor
            optimizer.step()
        self.step += 1

    def report(self) -> Progress:
        """Wait for the device, and return what is known."""
        world = self.trainer.world
        loss = float(world.sum_(torch.stack(self.losses).double().mean())) / world.size if self.losses else math.nan
        self.losses = []
        return Progress(self.step, loss, self.certificate())

    def certificate(self) -> Certificate | None:
        """Return what the optimizer's own averages say, None where there are none."""
        return certificate(self.optimizers) if self.own else None

    @contextmanager
    def put(self, weights: str) -> Iterator[None]:
        """Put these weights into the model inside a ``with`` block."""
        if weights == LAST:
            yield
        elif weights in (self.own, OWN):
            with averaged(self.optimizers):
                yield
        else:
            with self.means.averaged(weights):
                yield

    def evaluate(self, weights: str) -> float:
        """Return the loss of these weights on what is held out."""
        with self.put(weights):
            return self.trainer.evaluate()

    def state(self) -> dict[str, Any]:
        """Return a copy of all that is needed to go on, which the next steps leave alone."""
        found = {
            "step": self.step,
            "model": self.trainer.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "means": self.means.state_dict(),
            "losses": self.losses,
        }
        return tree_map_only(Tensor, Tensor.clone, found)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.step = state["step"]
        self.trainer.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.means.load_state_dict(state["means"])
        self.losses = [loss.to(self.trainer.device) for loss in state["losses"]]
