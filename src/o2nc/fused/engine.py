"""Whether kernels can take a step, and having them take it."""
from typing import Any, NamedTuple
DEVICES = ("cuda",)
class DeviceRule(NamedTuple):
    form: str
    arguments: tuple[Any, ...] = ()
    moves: bool = True
OBSERVE = DeviceRule("o2nc.fused.rules.observe:observe", moves=False)
class Engine:
    has_captured = False
    def take(self, *a): return "no"
    def wait(self): pass
    def forget(self): pass
