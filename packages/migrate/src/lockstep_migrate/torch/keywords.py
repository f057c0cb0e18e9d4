"""Arguments that speak of devices without naming one: `pin_memory`, `map_location`, `device_ids`."""

from __future__ import annotations

import ast
import re

from lockstep_migrate.engine.arguments import (
    argument,
    attribute_span,
    called,
    has_stars,
    insertion,
    is_constant,
    keyword,
    removals,
)
from lockstep_migrate.engine.statements import siblings
from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.plan import Edit
from lockstep_migrate.torch.one_device import ONE_DEVICE
from lockstep_migrate.torch.unit import Unit

_KEPT = {
    "pin_memory": "page-locked memory serves whatever accelerator there is",
    "pin_memory_device": "takes the device that it is given",
    "map_location": "takes the device that it is given",
    "device_ids": "numbers of the accelerator's own devices; None for a module on the CPU",
    "output_device": "a number of the accelerator's own devices; None for a module on the CPU",
}
_GUARDED = (
    "chooses by whether CUDA is there: with None, tensors go back where they were saved, which fails for a checkpoint"
    " from CUDA on another device, and is right for one that this device saved"
)
_NUMBERED = frozenset({"device_ids", "output_device"})
_PLAIN = ast.List | ast.Name | ast.Attribute | ast.Constant | ast.Subscript | ast.Call
_PARALLEL = listed_names("parallel")
_LOADERS = frozenset({"torch.load", "torch.hub.load_state_dict_from_url", "torch.jit.load"})
_LOCATION_AT = 1
_CUDA = re.compile(r"cuda|gpu|is_available", re.IGNORECASE)
_LOOPS = ast.For | ast.While
_BY_ACTIVITIES = "torch.profiler.profile"
_PROFILERS = frozenset({_BY_ACTIVITIES, "torch.autograd.profiler.profile"})


def find_keywords(unit: Unit) -> None:
    """Claim arguments and methods that work on every device, and loads that depend on where a file was saved."""
    for item in unit.scopes.of(ast.keyword):
        if item.arg in _KEPT and not unit.is_claimed(item.value):
            _claim_keyword(unit, item, item.arg)
    for node in unit.scopes.of(ast.Attribute):
        if node.attr == "pin_memory":
            span = attribute_span(unit.scopes, node)
            unit.keep(node, "keywords/pin_memory", _KEPT["pin_memory"], span=span)
    for call in unit.scopes.of(ast.Call):
        if unit.scopes.name(call.func) in _LOADERS:
            _claim_load(unit, call)


def _claim_keyword(unit: Unit, node: ast.keyword, name: str) -> None:
    """Keep the argument; the neutral form gives a module on the CPU no device numbers, which it would refuse."""
    rule, call = f"keywords/{name}", unit.scopes.parents[node]
    wrapped = isinstance(call, ast.Call) and any(
        meaning.name in _PARALLEL for meaning in unit.scopes.meanings(call.func)
    )
    if name == "map_location" and _may_be_none(unit, node.value):
        unit.list(
            node, rule, _GUARDED, replacement=f"map_location={unit.settings.readable('{device}')}"
        )
        return
    numbers = name in _NUMBERED and not is_constant(node.value, None)
    if numbers and wrapped and isinstance(node.value, _PLAIN) and not unit.target.device:
        test = unit.fill("torch.accelerator.is_available()")
        edit = insertion(unit.scopes.span(node).end, f" if {test} else None")
        reason = "DistributedDataParallel takes no device numbers for a module on the CPU"
        unit.rewrite(node, rule, reason, [edit])
    elif (
        numbers
        and unit.target.single
        and not set(re.findall(r"\w+", unit.text(node.value))) <= {"0"}
    ):
        unit.list(node, rule, ONE_DEVICE, replacement=f"{name}=None")
    else:
        unit.keep(node, rule, _KEPT[name])


def _may_be_none(unit: Unit, given: ast.AST) -> bool:
    """Whether a place to load to is None by an answer about CUDA, at once or through a variable."""
    if isinstance(given, ast.Name):
        bindings = unit.scopes.bindings(given.id, unit.scopes.scope(given))
        return any(
            isinstance(one.value, ast.IfExp) and _may_be_none(unit, one.value) for one in bindings
        )
    if not isinstance(given, ast.IfExp):
        return False
    sides = (given.body, given.orelse)
    return any(is_constant(side, None) for side in sides) and bool(
        _CUDA.search(unit.text(given.test))
    )


def _is_saved_before(unit: Unit, load: ast.Call) -> bool:
    """Whether a statement, or a loop such as that of the epochs, always runs before a load and saves to its path."""
    path = _path(unit, load.args[0]) if load.args else ""
    around = [*unit.scopes.ancestors(load)]
    for call in unit.scopes.of(ast.Call) if path else ():
        before = unit.scopes.span(call).end < unit.scopes.span(load).start
        if before and called(call) == "save" and path in (_path(unit, one) for one in call.args):
            whole = unit.scopes.statement(call)
            loops = [one for one in unit.scopes.ancestors(whole) if isinstance(one, _LOOPS)]
            if any(one in around for always in (whole, *loops) for one in _beside(unit, always)):
                return True
    return False


def _beside(unit: Unit, statement: ast.stmt) -> list[ast.stmt]:
    """The block that runs a statement whenever it runs: that of the `with` which it is in."""
    while isinstance(above := unit.scopes.parents[statement], ast.With):
        statement = above
    return siblings(unit.scopes, statement)


def _path(unit: Unit, given: ast.AST) -> str:
    """What is written for a path, of an opened file that of its name; empty where it may change on the way."""
    if not isinstance(given, ast.Name):
        return unit.text(given)
    bindings = unit.scopes.bindings(given.id, unit.scopes.scope(given))
    for above in unit.scopes.ancestors(given):
        for item in above.items if isinstance(above, ast.With) else ():
            if getattr(item.optional_vars, "id", "") == given.id:
                opened = item.context_expr
                return unit.text(opened.args[0]) if getattr(opened, "args", ()) else ""  # type: ignore[attr-defined]
    return given.id if len(bindings) == 1 else ""


def _claim_load(unit: Unit, call: ast.Call) -> None:
    """`torch.load(path)`: what was saved on CUDA asks for CUDA again."""
    if has_stars(call) or argument(call, "map_location", _LOCATION_AT):
        return
    if _is_saved_before(unit, call):
        unit.keep(call, "keywords/load", "reads what this very run has saved before")
        return
    device = unit.settings.readable("{device}")
    unit.list(
        call,
        "keywords/load",
        "puts tensors back where they were saved: a checkpoint from CUDA asks for CUDA again",
        replacement=f"map_location={device}",
    )


def find_profiler_arguments(unit: Unit) -> None:
    """Claim `use_cuda` where it is given to a profiler of torch."""
    for node in unit.scopes.of(ast.Call):
        item = keyword(node, "use_cuda")
        if item is not None and unit.scopes.name(node.func) in _PROFILERS:
            _claim_profiler(unit, node, item)


def _claim_profiler(unit: Unit, call: ast.Call, item: ast.keyword) -> None:
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
