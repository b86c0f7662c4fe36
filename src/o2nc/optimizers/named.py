"""Our entries in the parameter groups of another optimizer's, under names that it will not use itself."""

from typing import Any

from torch import Tensor

from o2nc import averages

NAMES: dict[str, str] = {
    "seed": "scaling_seed",
    "certificate": "average_certificate",
    "progress": "average_progress",
    "offload": "average_offload",
    "step": "scaling_step",
}
NAMES.update((counter, f"average_{counter}") for counter in averages.COUNTERS)


class Named:
    """A parameter group of another optimizer's, in which our entries have names that it will not use itself.

    Args:
        group: the group.
        params: what stands in the place of its parameters, if anything does.
    """

    def __init__(self, group: dict[str, Any], params: list[Tensor] | None = None) -> None:
        self.group, self.params = group, params

    def __getitem__(self, key: str) -> Any:
        if key == "params" and self.params is not None:
            return self.params
        return self.group[NAMES.get(key, key)]

    def __contains__(self, key: str) -> bool:
        return NAMES.get(key, key) in self.group

    def get(self, key: str, default: Any = None) -> Any:
        """Return an entry, or the default."""
        return self.group.get(NAMES.get(key, key), default)

    def update(self, entries: Any, **others: Any) -> None:
        """Replace entries."""
        for key, value in {**dict(entries), **others}.items():
            self.group[NAMES.get(key, key)] = value
