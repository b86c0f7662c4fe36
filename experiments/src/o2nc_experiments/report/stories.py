"""Who tells the story of a record."""

from importlib import import_module
from typing import Any

from o2nc_experiments.report.story import Story

KINDS = {
    "demo": "o2nc_experiments.demo.story",
    "verify": "o2nc_experiments.verify.story",
    "rates": "o2nc_experiments.rates_story",
    "cifar10": "o2nc_experiments.cifar10.story",
    "bench": "o2nc_experiments.bench.story",
}


def kind_of(record: Any) -> str | None:
    """Return which command made a record, None if none of ours did.

    Example:
        >>> kind_of({"circumstances": {"command": "o2nc verify --seed 0"}})
        'verify'
    """
    try:
        command = record["circumstances"]["command"].split()
    except (TypeError, KeyError, AttributeError):
        return None
    return command[1] if len(command) > 1 and command[0] == "o2nc" and command[1] in KINDS else None


def tell(record: dict[str, Any]) -> Story:
    """Return the story of a record of ours."""
    kind = kind_of(record)
    assert kind is not None
    return import_module(KINDS[kind]).tell(record)
