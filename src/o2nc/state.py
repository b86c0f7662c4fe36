"""What an optimizer keeps per parameter, declared beside its formula.

Checkpoints, shards and devices read the declaration: they know no optimizer and no names of state.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from torch import Tensor


class Kind(Enum):
    """What an entry of the state is."""

    SHAPED = auto()  # of the parameter's shape; of a shard, the part that this process has
    SUM = auto()  # a sum over coordinates, 0-d in float64; of a shard, this process's share of the sum
    NUMBER = auto()  # a plain number, the same on all processes; a 0-d tensor while kernels run
    COUNT = auto()  # likewise, but where torch keeps it as a tensor of float32


class Field(NamedTuple):
    """One entry of the state of a parameter.

    Attributes:
        kind: what it is.
        like: for an entry that may come after the first step, the one that it has shape and dtype of.
        is_torchs: torch made it and may cast it to the parameter's dtype when it is loaded; ours keep theirs.
        on_host: it is in the host's memory wherever the parameter is.
    """

    kind: Kind
    like: str | None = None
    is_torchs: bool = False
    on_host: bool = False


Fields = dict[str, Field]


def fields_of(state: Mapping[str, Any], like: Tensor) -> dict[str, Field]:
    """Return the declaration of state that somebody else has made, such as a learner of the user's own.

    Args:
        state: the state of one parameter.
        like: a tensor of the parameter's shape. A tensor of another shape is the same on all processes.
    """
    kinds = {key: _kind(value, like) for key, value in state.items()}
    return {key: Field(kind) for key, kind in kinds.items() if kind is not None}


def _kind(value: Any, like: Tensor) -> Kind | None:
    if not isinstance(value, Tensor):
        return Kind.NUMBER
    return Kind.SHAPED if value.shape == like.shape and value.dim() else None
