"""`--visible-device`: the environment chooses the device, and the script takes the first that it sees.

Every accelerator's software has a variable that says which devices a process sees (`CUDA_VISIBLE_DEVICES`,
`ASCEND_RT_VISIBLE_DEVICES`, ...), and numbers those from 0. So a number that is written in the script goes, and is said
with the variable that takes its place; a variable that the script sets itself becomes a default.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from lockstep_migrate.engine.arguments import keyword
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.torch.indices import (
    Number,
    device_numbers,
    drop_number,
    is_inside_lambda,
)
from lockstep_migrate.torch.unit import Unit

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_OPTION = re.compile(r"--?(?:gpus?|gpu[-_]?ids?|devices?|device[-_]?ids?|cuda[-_]?device)\Z")
_PARALLEL = (
    "torch.distributed.init_process_group",
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.DataParallel",
)


def find_visible_device(unit: Unit) -> None:
    """Claim every place that chooses a device by its number or by a variable."""
    numbers = list(device_numbers(unit))
    written = sorted({number.index for number in numbers if number.index is not None})
    for number in numbers:
        if unit.is_claimed(number.node):
            continue
        if number.index is not None and len(written) > 1:
            _list_several(unit, number, written)
        else:
            _claim_number(unit, number)
    for node in unit.scopes.nodes:
        if isinstance(node, ast.Assign):
            _claim_variable(unit, node)
        elif isinstance(node, ast.Call):
            _list_call(unit, node)


def _claim_number(unit: Unit, number: Number) -> None:
    if number.index is None:
        reason = f"counts among the devices that the process sees: leave it 0, and start with {_launch(unit, 'N')}"
        unit.note(number.node, "visible/number", reason)
        return
    if number.index == 0:
        return  # the first device already
    launch = _launch(unit, str(number.index))
    text = unit.scopes.text(number.node)
    reason = f"the first device that the process sees; {text} is now chosen by {launch}"
    if drop_number(unit, number, "visible/number", reason):
        return
    if number.is_text or is_inside_lambda(unit, number):
        reason = f"names a device that the process may not see; start with {launch}"
        unit.note(number.node, "visible/number", reason)
        return
    edits = [Edit(unit.scopes.span(number.node), "0")]
    unit.rewrite(number.node, "visible/number", reason, edits)


def _list_several(unit: Unit, number: Number, written: Sequence[int]) -> None:
    """One of several devices: without its number, all would be the same."""
    numbers = ", ".join(map(str, written))
    reason = (
        f"the script uses several devices ({numbers}): they would become one; start with "
        f"{_launch(unit, numbers.replace(' ', ''))}, and number them from 0"
    )
    unit.note(number.node, "visible/number", reason)


def _launch(unit: Unit, index: str) -> str:
    """The line that starts a script on a device."""
    names = unit.target.environment
    if unit.target.device and _VARIABLE not in names:
        return "nothing else, as there is one device"
    return f"{names.get(_VARIABLE, _VARIABLE)}={index} python ..."


def _claim_variable(unit: Unit, node: ast.Assign) -> None:
    """`os.environ["CUDA_VISIBLE_DEVICES"] = "3"` overrules who starts the script."""
    target = node.targets[0]
    if len(node.targets) != 1 or not isinstance(target, ast.Subscript):
        return
    names = (_VARIABLE, unit.target.environment.get(_VARIABLE, _VARIABLE))
    key = target.slice
    if unit.scopes.name(target.value) != "os.environ":
        return
    if not isinstance(key, ast.Constant) or key.value not in names:
        return
    place, inner, value = (unit.scopes.span(item) for item in (target.value, key, node.value))
    text = unit.scopes.source.text
    if text[place.end : inner.start].strip() != "[" or "(" in text[inner.end : value.start]:
        reason = "overrules the environment; it is written so that no edit fits"
        unit.note(node, "visible/variable", reason, "os.environ.setdefault")
        return
    edits = [
        Edit(Span(place.end, inner.start), ".setdefault("),
        Edit(Span(inner.end, value.start), ", "),
        Edit(Span(value.end, value.end), ")"),
    ]
    reason = "holds where the environment does not say otherwise"
    unit.rewrite(node, "visible/variable", reason, edits)


def _list_call(unit: Unit, call: ast.Call) -> None:
    name = unit.scopes.name(call.func)
    if name in _PARALLEL:
        reason = (
            f"{name.rpartition('.')[2]} uses many devices: a process that sees one of them must take number 0, "
            "not its rank; let it see all, or each process one"
        )
        unit.note(call, "visible/distributed", reason)
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
        flags = [item.value for item in call.args if isinstance(item, ast.Constant)]
        if any(isinstance(flag, str) and _OPTION.match(flag) for flag in flags):
            _list_option(unit, call)


def _list_option(unit: Unit, call: ast.Call) -> None:
    """An option such as `--gpu`, whose number would be looked up among what is visible."""
    item = keyword(call, "default")
    value = item.value if item else None
    if isinstance(value, ast.Constant) and isinstance(value.value, str) and ":" in value.value:
        return  # the string is claimed itself
    reason = f"counts among the devices that the process sees: leave it out, and start with {_launch(unit, 'N')}"
    number = isinstance(value, ast.Constant) and type(value.value) is int and value.value > 0
    unit.note(call, "visible/option", reason, "default=0" if number else "")
