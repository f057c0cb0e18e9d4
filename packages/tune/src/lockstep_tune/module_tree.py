"""The modules of a profile as a tree: the time of each by itself, and with all modules below it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lockstep_tune.profile import Operator, Phase, Profile

_NAMES = {Phase.OPTIMIZER: "(optimizer)", Phase.DATA: "(data)"}


@dataclass(slots=True)
class ModuleTime:
    """The time of a module in a step, with all modules below it.

    path: Its path; `(optimizer)`, `(data)` and `(script)` for what is in no module.
    phases_us: Microseconds by phase: on the device where it runs there, else on the host with the Python before it.
    allocated_bytes, flops: Of a step.
    calls: Operators that Python calls.
    """

    path: str
    phases_us: dict[Phase, float] = field(default_factory=lambda: defaultdict(float))
    allocated_bytes: float = 0.0
    flops: float = 0.0
    calls: float = 0.0

    @property
    def total_us(self) -> float:
        """Microseconds of a step."""
        return sum(self.phases_us.values())

    @property
    def depth(self) -> int:
        """How many modules it is below."""
        return self.path.count(".") + 1 if self.path else 0


def module_tree(profile: Profile) -> list[ModuleTime]:
    """Return the modules of a profile, each before those below it, slower ones first."""
    found: dict[str, ModuleTime] = {}
    for one in profile.operators:
        for path in _paths_above(place_of(one)):
            module = found.setdefault(path, ModuleTime(path))
            module.phases_us[one.phase] += own_us(one)
            module.allocated_bytes += one.allocated_bytes
            module.flops += one.flops
            module.calls += one.calls if one.outermost else 0.0
    return list(_in_order(found, ""))


def own_us(one: Operator) -> float:
    """Microseconds that an operator adds to a step: those of the device, or of the host and the Python before it."""
    return one.self_device_us or one.self_host_us + one.python_us


def place_of(one: Operator) -> str:
    """The module that an operator is listed under."""
    return one.module or _NAMES.get(one.phase, "(script)")


def _paths_above(path: str) -> Iterator[str]:
    parts = path.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _in_order(found: dict[str, ModuleTime], above: str) -> Iterable[ModuleTime]:
    below = [path for path in found if path.rpartition(".")[0] == above]
    for path in sorted(below, key=lambda path: -found[path].total_us):
        yield found[path]
        if path:
            yield from _in_order(found, path)
