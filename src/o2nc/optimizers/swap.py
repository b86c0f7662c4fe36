"""x̄ in place of the parameters, inside a ``with`` block.

The parameters are copied before anything is changed, and restored by one call, which an interrupt cannot split. If an
interrupt ends a block before it has restored them, they are restored when the block's object is freed.
"""

import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from o2nc.averages.reading import readable
from o2nc.persist.batchnorm import Statistics
from o2nc.persist.private import clear_cast_caches, foreach_copy_
from o2nc.persist.shards import reshard
from o2nc.vector import values

SWAPPED: dict[int, "_Backup"] = {}  # backups of the parameters that hold x̄ now, by id(parameter)
_LOCK = threading.RLock()  # guards SWAPPED; acquire an optimizer's own lock first


class _Backup:
    """Copies of one optimizer's parameters while they hold x̄, and which blocks are open."""

    def __init__(self, optimizer: Any, entries: dict[Any, dict[str, Any]]) -> None:
        self.owner, self.blocks = optimizer.state, set[int]()
        self.params = list(entries)
        self.averages = [entry["average"] for entry in entries.values()]
        self.former = [x.clone() for x in values(self.params)]

    def enter(self) -> None:
        SWAPPED.update((id(p), self) for p in self.params)
        foreach_copy_(values(self.params), self.averages)

    def leave(self) -> bool:
        """Restore the parameters; return whether all of them still had their shape."""
        both = zip(values(self.params), self.former, strict=True)  # model.to(…) may have replaced their data
        pairs = [(x, former) for x, former in both if x.shape == former.shape]
        if pairs:
            foreach_copy_([x for x, _ in pairs], [former for _, former in pairs])
        for p in self.params:
            SWAPPED.pop(id(p), None)
        return len(pairs) == len(self.params)


def warn_if_left_out(model: nn.Module, optimizers: Sequence[Any], what: str) -> None:
    """Warn of trainable parameters of the model that none of the optimizers has, unless they hold x̄ already."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {model!r}")
    known = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    trained = [(name, id(p)) for name, p in model.named_parameters() if p.requires_grad]
    missing = [name for name, key in trained if key not in known and key not in SWAPPED]
    if missing:
        warnings.warn(
            f"{what}: {len(missing)} trainable parameters of the model are in none of the optimizers and stay as "
            f"they are: {', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}; "
            "`with o2nc.averaged(opt1, opt2):` takes several optimizers; a copy of the model has other parameters",
            stacklevel=4,
        )


def _refuse_loading(model: nn.Module, *_: Any) -> None:
    if any(id(p) in SWAPPED for p in model.parameters()):  # not in a copy that was made inside the block
        raise RuntimeError(
            "load_state_dict() inside averaged() would replace x̄; Lightning's trainer.test() loads the best "
            "checkpoint unless it is given the model: trainer.test(model, …)"
        )


class Swap:
    """A ``with`` block inside which the parameters of some optimizers are x̄. Make it by ``opt.averaged()``.

    Args:
        optimizers: o2nc optimizers with averages.
        model: a warning names its trainable parameters that none of the optimizers has; weights that FSDP2 has
            gathered are dropped.
        batches: inputs of the model, for BatchNorm statistics of x̄, as in `Statistics.recompute`.
    """

    def __init__(
        self, optimizers: Sequence[Any], model: nn.Module | None = None, batches: Iterable[Any] | None = None
    ) -> None:
        self._is_entered, self._backups = True, list[_Backup]()  # True: `__del__` warns of no block that raises here
        self._statistics: Statistics | None = None
        self._loading: Any = None  # the hook that refuses load_state_dict()
        if batches is not None and model is None:
            raise ValueError("batches are for the BatchNorm layers of a model: pass model=… as well")
        if model is not None:
            warn_if_left_out(model, optimizers, "averaged()")
        self._is_entered, self._optimizers, self._model, self._batches = False, list(optimizers), model, batches

    def __enter__(self) -> None:
        """Put x̄ into the parameters."""
        if self._is_entered:
            raise RuntimeError("this averaged() block was entered before: call averaged() again")
        self._is_entered, has_autograd = True, torch.is_grad_enabled()
        try:
            if self._model is not None:
                reshard(self._model)
                self._loading = self._model.register_load_state_dict_pre_hook(_refuse_loading)
            for optimizer in self._optimizers:
                self._swap(optimizer)
            clear_cast_caches()
            if self._model is not None and self._batches is not None:
                self._statistics = Statistics(self._model)
                self._statistics.recompute(self._batches)
        except BaseException:
            torch.set_grad_enabled(has_autograd)  # an interrupt inside torch's no_grad would leave it off
            self._restore()
            raise

    def _swap(self, optimizer: Any) -> None:
        if optimizer._lock.locked():
            raise RuntimeError("averaged() while step() is running: the parameters are being moved")
        with optimizer._lock, _LOCK:  # an interrupt cannot keep a with block from releasing them
            entries, _ = readable(optimizer, "averaged()")
            held = {SWAPPED[id(p)] for p in entries if id(p) in SWAPPED}
            backup = held.pop() if held else _Backup(optimizer, entries)
            if held or backup.owner is not optimizer.state:
                raise RuntimeError("averaged(): some parameters hold another optimizer's x̄; leave that block first")
            self._backups.append(backup)
            backup.blocks.add(id(self))
            if len(backup.blocks) == 1:
                backup.enter()

    def __exit__(self, *exception: Any) -> None:
        """Restore the parameters."""
        self._restore()

    def _restore(self) -> None:
        """Restore everything, again if KeyboardInterrupt comes in between; raise that afterwards."""
        try:
            self._leave()
        except KeyboardInterrupt:
            self._restore()
            raise

    def _leave(self) -> None:
        """Undo all that `__enter__` did; may be called again after it was interrupted."""
        if self._statistics is not None:
            self._statistics.restore()
            self._statistics = None
        restored = True
        while self._backups:
            with _LOCK:
                backup = self._backups[-1]
                backup.blocks.discard(id(self))
                restored &= bool(backup.blocks) or backup.leave()
                self._backups.pop()
        clear_cast_caches()
        if self._model is not None and self._loading is not None:
            self._loading.remove()
            reshard(self._model)
        if not restored:
            raise RuntimeError("parameters got another shape inside averaged(), and cannot be restored")

    def __del__(self) -> None:
        if not self._is_entered:
            warnings.warn("averaged() does nothing by itself: write `with opt.averaged(): …`", stacklevel=2)
        elif self._backups or self._statistics is not None:  # an interrupt came just before the block could be left
            self._restore()
