"""What survives: parameter groups hold the factors, checkpoints hold plain data.

torch's ``Optimizer.__getstate__`` keeps only ``state``, ``param_groups`` and ``defaults``, so the law, the learner,
the seed and the step counter live in the parameter groups, the same in each. `Persistent` sees to five things:

* the shared entries are the same in all groups, also in one that is added late;
* ``state_dict`` writes laws and learners as plain dictionaries, which ``torch.load(weights_only=True)`` reads;
* ``load_state_dict`` turns them back, and keeps what a checkpoint lacks (one of ``torch.optim.SGD``, say);
* no checkpoint changes a run without a word: see `Persistent.load_state_dict`;
* state keeps its dtype on loading, where torch would cast a float64 V to the parameter's dtype.

While the fused step runs, counters and some numbers of the state are tensors on the device. Checkpoints, and steps of
another kind, have plain numbers in their place, and no state that only steps called off by a GradScaler have seen.
"""

import warnings
from collections import OrderedDict
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

import torch

from o2nc import averaging, checks, learners, scaling
from o2nc.sharding import local
from o2nc.stepping import Compilable
from o2nc.vector import as_numbers, real

_KNOWN = {
    cls.__name__: cls
    for cls in (
        scaling.Exponential,
        scaling.Uniform,
        scaling.Weibull,
        scaling.Gamma,
        learners.OGD,
        learners.BallOGD,
        learners.FTRL,
        learners.AdaGrad,
        learners.ScaleFree,
        learners.CoinBetting,
    )
}
COUNTERS = ("step", "weight_sum", "weight_square_sum", "log_decay")
_NUMBERS = (*averaging.NUMBERS, "last_lr", "decay_weight")  # state that is a plain number where no kernel runs
# ``fresh`` in a parameter's state says what of it no step has touched yet; 3 is all of it
FRESH_AVERAGES, FRESH_BUFFER, BOTH = 1, 2, 3
_NAME = "__name__"  # no field can be called so


def encode(value: Any) -> Any:
    """Return a law or learner as a plain dictionary, anything else as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        members = {f.name: encode(getattr(value, f.name)) for f in fields(value) if f.init}
        return {_NAME: type(value).__name__, **members}
    return value


def decode(key: str, value: Any, live: Any) -> Any:
    """Undo `encode`; ``live`` is the optimizer's own entry, whose class may be one of the user's."""
    if not isinstance(value, dict) or _NAME not in value:
        return value
    members = {k: decode(k, v, getattr(live, k, None)) for k, v in value.items() if k != _NAME}
    cls = type(live) if type(live).__name__ == value[_NAME] else _KNOWN.get(value[_NAME])
    if cls is None:
        raise ValueError(
            f"the checkpoint has {key}={value[_NAME]}(…), which o2nc does not know: "
            f"construct the optimizer with that {key} first, then load"
        )
    return cls(**members)


def land(optimizer: Any) -> None:
    """Turn what lives on the device back into plain numbers, for a step that no kernel takes."""
    if not isinstance(optimizer.param_groups[0].get("step"), torch.Tensor):
        return
    counters, states = plain(optimizer.param_groups[0], dict(optimizer.state))
    for group in optimizer.param_groups:
        group.update(counters)
    for p, kept in states.items():
        if kept is None:
            del optimizer.state[p]
        else:
            optimizer.state[p] = kept


def plain(group: dict[str, Any], states: dict[Any, dict[str, Any]]) -> tuple[dict[str, Any], dict[Any, Any]]:
    """Return counters and states as they are without kernels, waiting for the device once.

    Args:
        group: a parameter group.
        states: of the parameters, by whatever key.

    Returns:
        The counters of the group; the states, with None for a parameter all of whose steps so far were called off.
    """
    keys = [key for key in COUNTERS if key in group]
    entries = [(k, key) for k, s in states.items() for key in ("fresh", *_NUMBERS) if key in s and "fresh" in s]
    numbers = as_numbers([group[key] for key in keys] + [states[k][key] for k, key in entries])
    counters = dict(zip(keys, numbers, strict=False))
    if "step" in counters:
        counters["step"] = int(counters["step"])
    found: dict[Any, dict[str, Any]] = {}
    for (k, key), number in zip(entries, numbers[len(keys) :], strict=True):
        found.setdefault(k, {})[key] = number
    return counters, {k: _begun(state | found[k]) if k in found else state for k, state in states.items()}


def _begun(state: dict[str, Any]) -> dict[str, Any] | None:
    """Return of a parameter's state what a step has touched; None for nothing."""
    fresh = int(state["fresh"])
    gone = {"fresh"}
    if fresh & FRESH_AVERAGES:
        gone.update(averaging.STATE)
    if fresh & FRESH_BUFFER:
        gone.add("momentum_buffer")
    return {key: value for key, value in state.items() if key not in gone} if fresh != BOTH else None


class Persistent(Compilable):
    """The part of an optimizer that keeps its shared entries together and survives a checkpoint."""

    shared: ClassVar[tuple[str, ...]]  # the keys that all parameter groups have in common
    foreign: ClassVar[frozenset[str]] = frozenset()  # the keys that a group must not hope to have obeyed
    needed: ClassVar[tuple[str, ...]] = ("lr",)  # the keys that a checkpoint's groups must have

    def _keeps_dtype(self, key: str) -> bool:
        """Say whether a state entry is ours to keep as saved, rather than torch's to cast."""
        return True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as in torch; seed, law and the like are those of the first group."""
        if isinstance(param_group, dict):
            params = param_group["params"]
            if not isinstance(params, torch.Tensor | set):
                params = param_group["params"] = list(params)
                tensors = [p[1] if isinstance(p, tuple) else p for p in params]
                if len({id(p) for p in tensors}) != len(tensors):
                    raise ValueError("params must not repeat: a parameter appears twice in one group")
            self._refuse_foreign(param_group)
            if "lr" in param_group and not isinstance(param_group["lr"], torch.Tensor):
                checks.non_negative("lr", param_group["lr"])
            self._adopt(param_group, self.param_groups[0] if self.param_groups else self.defaults)
        super().add_param_group(param_group)

    def _adopt(self, group: dict[str, Any], reference: dict[str, Any]) -> None:
        for key in self.shared:
            if key in reference and group.setdefault(key, reference[key]) != reference[key]:
                raise ValueError(
                    f"{key} is one for all parameter groups ({reference[key]!r}), got {group[key]!r} in a group"
                )

    def _share(self, entries: dict[str, Any]) -> None:
        """Give entries to the defaults and to groups that a parent class has already made."""
        self.defaults.update(entries)
        for group in self.param_groups:
            self._adopt(group, self.defaults)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch does, with laws and learners as plain dictionaries."""
        self._keep_listed()
        saved = super().state_dict()
        counters, states = plain(self.param_groups[0], saved["state"])
        groups = [{k: counters.get(k, encode(v)) for k, v in group.items()} for group in saved["param_groups"]]
        params = dict(enumerate(self._listed))
        kept = {i: self._to_saved(params[i], state) for i, state in states.items() if state is not None}
        return {**saved, "state": kept, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned; as in torch, the checkpoint's hyperparameters win, but not without a word.

        A checkpoint of another kind of optimizer is refused. One with another law, learner, seed or average than
        this optimizer was made with wins, with a warning that names both, so that the run goes on as it was. Two
        things stay as they were made: averages that the checkpoint knows nothing of begin with the next step, and
        ``fused``.

        Raises:
            ValueError: it is of another kind of optimizer, or of other parameters.
        """
        # torch calls hooks before and after what it does; here that includes decoding and keeping dtypes
        before, after = self._optimizer_load_state_dict_pre_hooks, self._optimizer_load_state_dict_post_hooks
        state_dict = state_dict.copy()
        for hook in before.values():
            state_dict = hook(self, state_dict) or state_dict
        self._keep_listed()
        groups = self._groups_to_load(state_dict["param_groups"])
        ids = [i for group in groups for i in group["params"]]
        owners = dict(zip(ids, self._listed, strict=False))  # torch says itself when there are more of one
        states = {i: self._from_saved(owners[i], s) if i in owners else s for i, s in state_dict["state"].items()}
        kept = self._kept(owners, states)
        try:
            self._optimizer_load_state_dict_pre_hooks = OrderedDict()
            self._optimizer_load_state_dict_post_hooks = OrderedDict()
            super().load_state_dict({**state_dict, "state": states, "param_groups": groups})
        finally:
            self._optimizer_load_state_dict_pre_hooks = before
            self._optimizer_load_state_dict_post_hooks = after
        for p, key, value in kept:
            self.state[p][key] = value.detach().to(p.device, copy=True)
        self._forget_layouts()
        for post_hook in after.values():
            post_hook(self)

    def _groups_to_load(self, saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a checkpoint's groups, decoded; say what of this optimizer they change, or refuse them."""
        missing = [key for key in self.needed if any(key not in group for group in saved)]
        if missing:
            raise ValueError(f"the checkpoint is not one of {type(self).__name__}: its groups lack {missing}")
        own = {key: self.param_groups[0][key] for key in self.shared}
        groups = [own | {k: decode(k, v, own[k]) if k in own else v for k, v in group.items()} for group in saved]
        for group in groups:
            self._refuse_foreign(group)
        found = groups[0] if groups else own
        if own.get("average") is not None and found["average"] is None:
            warnings.warn(
                f"the checkpoint has no averages: those of average={own['average']!r} begin with the next step",
                stacklevel=4,
            )
            for group in groups:
                group["average"] = own["average"]
        changed = [k for k in self.shared if k not in COUNTERS and k != "scaling_step" and found[k] != own[k]]
        if changed:
            told = ", ".join(f"{key}={found[key]!r} (made with {own[key]!r})" for key in changed)
            warnings.warn(
                f"the checkpoint changes this {type(self).__name__}, which goes on with {told}: "
                "construct it with these values if that is meant",
                stacklevel=4,
            )
        for group, mine in zip(groups, self.param_groups, strict=False):
            if "fused" in mine:  # how a step is carried out, not what it does; a GradScaler has asked the constructor
                group["fused"] = mine["fused"]
        return groups

    def _refuse_foreign(self, group: dict[str, Any]) -> None:
        """Refuse a group that hopes for what this optimizer does not do."""
        for key in self.foreign & group.keys():
            if group[key]:
                raise ValueError(f"{type(self).__name__} has no {key}, got {group[key]!r} in a group")

    def _forget_layouts(self) -> None:
        """Let go of what was laid out for state that is no longer there."""

    def _kept(
        self, owners: dict[Any, torch.Tensor], states: dict[Any, Any]
    ) -> list[tuple[torch.Tensor, str, torch.Tensor]]:
        """Return the saved tensors that are to keep their dtype, with parameter and key; refuse other shapes."""
        kept = []
        for i, p in owners.items():
            shape = real(local(p)).shape
            for key, value in states.get(i, {}).items():
                if isinstance(value, torch.Tensor) and self._keeps_dtype(key):
                    if key in ("delta", *averaging.SHAPED) and value.shape != shape:
                        raise ValueError(
                            f"the checkpoint's {key} of parameter {i} has shape {tuple(value.shape)}, "
                            f"the parameter has {tuple(shape)}: are the parameters in another order?"
                        )
                    kept.append((p, key, value))
        return kept

    def _to_saved(self, p: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """Return a parameter's state as a checkpoint has it."""
        return state

    def _from_saved(self, p: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """Undo `_to_saved`."""
        return state
