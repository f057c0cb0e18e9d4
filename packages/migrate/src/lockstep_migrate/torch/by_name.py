"""What is looked up by a device's name that only a variable holds, and device texts that are taken apart.

`getattr(x, place)()` calls the method that is called like the device, which few devices have; `place[5:]` counts the
letters of the old name.
"""

from __future__ import annotations

import ast
import re

from lockstep_migrate.engine.arguments import called, insertion, keyword
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.torch.context import parameter_of
from lockstep_migrate.torch.unit import Unit

_DEVICE = re.compile(r"cuda(?::|\Z)")
_NAMES = re.compile(
    r"(?:.*_)?(?:device|dev|place|accelerator)(?:_(?:type|name|str))?\Z", re.IGNORECASE
)
_LOOKUPS = frozenset({"getattr", "hasattr", "setattr", "delattr"})
_LENGTHS = (4, 5)
"""The letters of `cuda` and of `cuda:`."""


def find_by_name(unit: Unit) -> None:
    """Claim look-ups by a device's name, and texts of a device of which letters are counted."""
    timed = unit.target.single and "cuda.Event" in unit.scopes.source.text
    for call in unit.scopes.of(ast.Call):
        looked_up = call.func
        _claim_looked_up(unit, call)
        _claim_put_together(unit, call)
        _claim_beginning(unit, call)
        if (
            isinstance(looked_up, ast.Call)
            and getattr(looked_up.func, "id", "") == "getattr"
            and len(looked_up.args) > 1
            and _may_be_device(unit.scopes, looked_up.args[1])
            and not (unit.target.device and unit.target.method)
        ):
            unit.list(
                looked_up,
                "methods/by-name",
                "calls the method that is named like the device, which not every device has",
                ".to(...) of the device",
            )
        _claim_device_id(unit, call)
        if (
            timed
            and called(call) in ("record", "wait")
            and call.args
            and not unit.scopes.name(call.func)
        ):
            reason = "events of this device take no stream"
            unit.list(call.func, "methods/event", reason, f"{called(call)}()")
    for part in unit.scopes.of(ast.Subscript):
        _claim_put_together(unit, part)
        if (
            "cuda" in unit.own.keys
            and isinstance(part.ctx, ast.Load)
            and isinstance(part.slice, ast.Name)
            and _runs_over_devices(unit.scopes, part.slice)
        ):
            unit.list(part, "methods/by-name", "is looked up by a name that may be the device's")
        if _counts_letters(part) and (
            _is_device_text(unit.scopes, part.value) or _is_tested(unit, part.value)
        ):
            reason = "counts the letters of the old name, and the new one may have fewer or more"
            unit.list(part, "strings/letters", reason, 'partition(":")')


def _is_tested(unit: Unit, node: ast.expr) -> bool:
    """Whether the module asks of an expression whether it begins with the old name."""
    return any(
        called(call) == "startswith"
        and isinstance(call.func, ast.Attribute)
        and unit.text(call.func.value) == unit.text(node)
        and any(_DEVICE.match(str(getattr(given, "value", ""))) for given in call.args)
        for call in unit.scopes.of(ast.Call)
    )


def _claim_put_together(unit: Unit, node: ast.Call | ast.Subscript) -> None:
    """`getattr(self, "_get_" + name)` in a project that has a `_get_cuda`: the text and that name change together."""
    if isinstance(node, ast.Subscript):
        tables = isinstance(node.value, ast.Call) and called(node.value) in (
            "globals",
            "locals",
            "vars",
        )
        name = node.slice if tables else None
    else:
        name = node.args[1] if called(node) in _LOOKUPS and len(node.args) > 1 else None
    parts = list(ast.walk(name)) if isinstance(name, ast.BinOp | ast.JoinedStr) else []
    texts = [str(part.value) for part in parts if isinstance(part, ast.Constant) and part.value]
    of_device = [
        one
        for one in unit.own.given
        if "cuda" in one.lower() and texts and all(map(one.__contains__, texts))
    ]
    if of_device:
        reason = (
            f"is looked up by a name that is put together, as the project's {min(of_device)} may be"
        )
        unit.list(node, "methods/by-name", reason)


def _claim_looked_up(unit: Unit, call: ast.Call) -> None:
    """`getattr(torch.backends, name)` of a name that may be the device's; torch itself has a module for each device."""
    if getattr(call.func, "id", "") not in _LOOKUPS or len(call.args) < 2:
        return
    of = unit.scopes.name(call.args[0])
    parent = unit.scopes.parents[call]
    is_method = isinstance(parent, ast.Call) and parent.func is call and not of.startswith("torch.")
    if of == "torch" or (is_method and unit.target.device and unit.target.method):
        return
    if not isinstance(call.args[1], ast.Constant) and (
        _is_carrier(unit, call.args[1]) or _is_device_text(unit.scopes, call.args[1])
    ):
        reason = "is looked up by a name that may be the device's"
        unit.list(call, "methods/by-name", reason)


def _claim_beginning(unit: Unit, call: ast.Call) -> None:
    """`device.type.startswith("cud")`: the first letters of the old name."""
    first = call.args[0] if called(call) == "startswith" and call.args else None
    of = call.func.value if isinstance(call.func, ast.Attribute) else call
    name = getattr(of, "attr", "") or getattr(of, "id", "")
    letters = getattr(first, "value", "")
    if (
        first is not None
        and letters in ("c", "cu", "cud")
        and (name == "type" or _NAMES.match(name))
    ):
        unit.list(first, "strings/letters", "is how the old name begins, and the new one does not")


def _is_carrier(unit: Unit, node: ast.expr) -> bool:
    """Whether an expression is an attribute that the project gives a device's name: `args.mover`."""
    return isinstance(node, ast.Attribute) and node.attr in unit.own.carriers


def _claim_device_id(unit: Unit, call: ast.Call) -> None:
    """`init_process_group(device_id=...)`, which takes a device with a number."""
    if unit.scopes.name(call.func) != "torch.distributed.init_process_group":
        return
    given = keyword(call, "device_id")
    if (
        given is not None
        and not unit.target.device
        and isinstance(given.value, ast.Call | ast.Constant)
    ):
        test = unit.fill("torch.accelerator.is_available()")
        edit = insertion(unit.scopes.span(given).end, f" if {test} else None")
        reason = "the CPU has no number, and needs none"
        unit.rewrite(given, "keywords/device_id", reason, [edit])
    if given is not None and unit.target.single:
        reason = (
            "takes a device with a number and a backend of its own, and this device has neither"
        )
        unit.list(given, "keywords/device_id", reason, "leave it out")


def _may_be_device(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether an expression that is no plain text may hold the name of a device."""
    if isinstance(node, ast.Constant):
        return False
    name = getattr(node, "attr", "") or getattr(node, "id", "")
    return _NAMES.match(name) is not None or _is_device_text(scopes, node)


def _is_device_text(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether an expression is a text that names a device, at once, of a device, or by a variable."""
    if isinstance(node, ast.Name):
        bindings = scopes.bindings(node.id, scopes.scope(node))
        values = [one.value or _default(scopes, one.node) for one in bindings]
        values += [part for one in bindings for part in _looped(scopes, one.node)]
        return any(
            one is not None and not isinstance(one, ast.Name) and _is_device_text(scopes, one)
            for one in values
        )
    if isinstance(node, ast.IfExp):
        return _is_device_text(scopes, node.body) or _is_device_text(scopes, node.orelse)
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and node.args:
        return getattr(node.args[0], "attr", getattr(node.args[0], "id", "")) == "device"
    if isinstance(node, ast.BinOp):
        return _is_device_text(scopes, node.left)
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and _is_device_text(scopes, node.values[0])
    return isinstance(node, ast.Constant) and _DEVICE.match(str(node.value)) is not None


def _runs_over_devices(scopes: ModuleScopes, node: ast.Name) -> bool:
    """Whether a variable runs over texts that name the device."""
    bindings = scopes.bindings(node.id, scopes.scope(node))
    over = [text for one in bindings for text in _looped(scopes, one.node)]
    return any(_is_device_text(scopes, text) for text in over)


def _looped(scopes: ModuleScopes, target: ast.AST) -> list[ast.expr]:
    """The texts that a loop runs over: `for name in ("cudnn", "cuda")`."""
    loop = scopes.parents.get(target)
    over = loop.iter if isinstance(loop, ast.For | ast.comprehension) else None
    return over.elts if isinstance(over, ast.Tuple | ast.List | ast.Set) else []


def _default(scopes: ModuleScopes, parameter: ast.AST) -> ast.expr | None:
    """The default of a parameter."""
    arguments = scopes.parents.get(parameter)
    if not isinstance(parameter, ast.arg) or not isinstance(arguments, ast.arguments):
        return None
    given = (*arguments.defaults, *filter(None, arguments.kw_defaults))
    return next((one for one in given if parameter_of(arguments, one) == parameter.arg), None)


def _counts_letters(node: ast.Subscript) -> bool:
    """Whether a part of a text is taken that begins or ends behind `cuda` or `cuda:`."""
    ends = [node.slice.lower, node.slice.upper] if isinstance(node.slice, ast.Slice) else []
    return any(isinstance(end, ast.Constant) and end.value in _LENGTHS for end in ends)
