"""Devices that the main script chooses by number: each process has to take its own."""

from __future__ import annotations

import ast

from lockstep_migrate.engine.arguments import called
from lockstep_migrate.plan import Edit
from lockstep_migrate.torch.indices import (
    Number,
    device_numbers,
    drop_number,
    is_inside_lambda,
)
from lockstep_migrate.torch.unit import Unit

_RULE = "distributed/device"


def bind_devices(unit: Unit, local_rank: str) -> None:
    """Let device 0 be the process's own; other numbers are listed.

    A script that is started alone has local rank 0, so that its device stays what it was.
    """
    for number in device_numbers(unit):
        if unit.is_claimed(number.node) or _is_own(number, local_rank) or _goes(unit, number):
            continue
        if number.index == 0 and _bind(unit, number, local_rank):
            continue
        unit.note(
            number.node,
            _RULE,
            "every process would take this device",
            f"{local_rank}, which is 0 in a script that is started alone",
        )


def _bind(unit: Unit, number: Number, local_rank: str) -> bool:
    reason = "each process has a device of its own"
    if drop_number(unit, number, _RULE, reason):
        return True
    if number.is_text or is_inside_lambda(unit, number):
        return False
    unit.rewrite(number.node, _RULE, reason, [Edit(unit.scopes.span(number.node), local_rank)])
    return True


def _goes(unit: Unit, number: Number) -> bool:
    """Whether `.cuda(0)` becomes a device without a number: tensors of the target have no method for it."""
    call = unit.scopes.parents[number.node]
    moves = isinstance(call, ast.Call) and called(call) == "cuda" and number.index == 0
    return moves and bool(unit.target.device) and not unit.target.method


def _is_own(number: Number, local_rank: str) -> bool:
    return isinstance(number.node, ast.Name) and number.node.id == local_rank
