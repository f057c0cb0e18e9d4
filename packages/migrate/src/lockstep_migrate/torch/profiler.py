"""Arguments of torch's profilers that name CUDA: `use_cuda=True`."""

from __future__ import annotations

import ast

from lockstep_migrate.engine.arguments import keyword, removals
from lockstep_migrate.plan import Edit
from lockstep_migrate.torch.unit import Unit

_BY_ACTIVITIES = "torch.profiler.profile"
_PROFILERS = frozenset({_BY_ACTIVITIES, "torch.autograd.profiler.profile"})


def find_profiler_arguments(unit: Unit) -> None:
    """Claim `use_cuda` where it is given to a profiler of torch."""
    for node in unit.scopes.of(ast.Call):
        item = keyword(node, "use_cuda")
        if item is not None and unit.scopes.name(node.func) in _PROFILERS:
            _claim(unit, node, item)


def _claim(unit: Unit, call: ast.Call, item: ast.keyword) -> None:
    rule = "profiler/use-cuda"
    if unit.scopes.name(call.func) == _BY_ACTIVITIES:
        reason = "torch.profiler chooses the device by its activities"
        unit.list(
            item, rule, reason, replacement="activities=torch.profiler.supported_activities()"
        )
        return
    if not isinstance(item.value, ast.Constant):
        reason = "use_device takes the device type, or None"
        device = unit.settings.readable("{type}")
        replacement = f"use_device={device} if ... else None"
        unit.list(item, rule, reason, replacement=replacement)
    elif item.value.value:
        edit = Edit(unit.scopes.span(item), f"use_device={unit.fill('{type}')}")
        unit.rewrite(item, rule, "use_device takes the device type", [edit])
    else:
        edits = removals(unit.scopes, call, [item])
        unit.rewrite(item, rule, "no device is profiled unless one is named", edits)
