"""Arguments that speak of devices without naming one: `pin_memory`, `map_location`, `device_ids`."""

from __future__ import annotations

import ast

from lockstep.migrate.arguments import attribute_span, keyword
from lockstep.migrate.unit import Unit

_KEPT = {
    "pin_memory": "page-locked memory serves whatever accelerator there is",
    "pin_memory_device": "takes the device that it is given",
    "map_location": "takes the device that it is given",
    "device_ids": "numbers of the accelerator's own devices; None for a module on the CPU",
    "output_device": "a number of the accelerator's own devices; None for a module on the CPU",
}
_LOADERS = frozenset({"torch.load", "torch.hub.load_state_dict_from_url", "torch.jit.load"})
_LOCATION_AT = 1


def find_keywords(unit: Unit) -> None:
    """Claim arguments and methods that work on every device, and loads that depend on where a file was saved."""
    for node in unit.scopes.nodes:
        if isinstance(node, ast.keyword) and node.arg in _KEPT:
            if not unit.is_claimed(node.value):
                unit.keep(node, f"keywords/{node.arg}", _KEPT[node.arg])
        elif isinstance(node, ast.Attribute) and node.attr == "pin_memory":
            span = attribute_span(unit.scopes, node)
            unit.keep(node, "keywords/pin_memory", _KEPT["pin_memory"], span=span)
        elif isinstance(node, ast.Call) and unit.scopes.name(node.func) in _LOADERS:
            _claim_load(unit, node)


def _claim_load(unit: Unit, call: ast.Call) -> None:
    """`torch.load(path)`: what was saved on CUDA asks for CUDA again."""
    stars = any(isinstance(argument, ast.Starred) for argument in call.args)
    stars = stars or any(item.arg is None for item in call.keywords)
    if len(call.args) > _LOCATION_AT or keyword(call, "map_location") or stars:
        return
    device = unit.settings.readable("{device}")
    unit.list(
        call,
        "keywords/load",
        "puts tensors back where they were saved: a checkpoint from CUDA asks for CUDA again",
        replacement=f"map_location={device}",
    )
