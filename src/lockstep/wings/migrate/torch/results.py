"""Uses of a call's result: `torch.cuda.get_device_properties(0).major`, `x.double()`.

The rows stand in the tables of names, `function().attribute` for a result, `.method()` for a method of anything.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lockstep.wings.migrate.engine.arguments import argument, attribute_span, called, keyword
from lockstep.wings.migrate.plan import Edit
from lockstep.wings.migrate.torch.table import Action, Entry
from lockstep.wings.migrate.torch.unit import Unit


def find_results(unit: Unit) -> None:
    """Claim what is read of the results that the tables know; a listed one takes its call along, unchanged."""
    if not unit.settings.table.results:
        return
    for node, value, asked in _asked(unit):
        if unit.is_claimed(node):
            continue
        calls = list(_calls(unit, value))
        entries = [_entry(unit, call, asked) for call in calls]
        found = next((entry for entry in entries if entry is not None), None)
        if found is not None:
            _claim(unit, node, found, calls)
        elif not calls and isinstance(node, ast.Attribute):
            _claim_anywhere(unit, node)


def _claim_anywhere(unit: Unit, node: ast.Attribute) -> None:
    """A field that a result has, asked of something that cannot be told, in a module that calls the function."""
    function, entry = unit.settings.table.anywhere.get(node.attr, ("", None))
    if entry is not None and isinstance(node.ctx, ast.Load) and node.attr not in unit.own.fields:
        names = (unit.scopes.name(call.func) for call in unit.scopes.of(ast.Call))
        known = unit.scopes.name(node.value)  # sys.version_info.major
        if not known and function in names:
            unit.list(node, entry.rule, entry.reason, span=attribute_span(unit.scopes, node))


def find_method_rows(unit: Unit) -> None:
    """Claim the methods that rows speak of, whatever has them, and keywords with such a value: `dtype=float`."""
    table = unit.settings.table
    for item in unit.scopes.of(ast.keyword) if table.methods else ():
        name = f"{item.arg}={getattr(item.value, 'id', '')}"
        entry = table.lookup(f".{name}") if name in table.methods else None
        of_torch = unit.scopes.name(getattr(unit.scopes.parents[item], "func", item)).startswith(
            "torch."
        )
        if entry is not None and of_torch and not stays_away(unit, item.value):
            instead = unit.settings.readable(entry.becomes)
            unit.list(item, entry.rule, entry.reason, replacement=instead)
    for node in unit.scopes.of(ast.Attribute) if table.methods else ():
        name = f"{node.attr}()" if unit.scopes.call_of(node) is not None else ""
        own = node.attr in unit.own.methods
        if name in table.methods and not unit.is_claimed(node) and not own:
            entry = table.lookup(f".{name}")
            if entry is not None and not stays_away(unit, node):
                span = attribute_span(unit.scopes, node)
                instead = unit.settings.readable(entry.becomes)
                unit.list(node, entry.rule, entry.reason, replacement=instead, span=span)


def _asked(unit: Unit) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    """Each place that asks something of a value: the place, the value and what is asked."""
    for attribute in unit.scopes.of(ast.Attribute):
        yield attribute, attribute.value, attribute.attr
    for subscript in unit.scopes.of(ast.Subscript):
        yield subscript, subscript.value, "[]"
    for statement in unit.scopes.of(ast.Assign):
        if isinstance(statement.targets[0], ast.Tuple | ast.List):
            yield statement.targets[0], statement.value, "[]"
    for compare in unit.scopes.of(ast.Compare):
        for side in (compare.left, *compare.comparators):
            yield compare, side, "[]"


def _calls(unit: Unit, value: ast.expr) -> Iterator[ast.Call]:
    """The calls that a value may come from: itself, or what its variable is given."""
    if isinstance(value, ast.Call):
        yield value
    elif isinstance(value, ast.Name):
        for binding in unit.scopes.bindings(value.id, unit.scopes.scope(value)):
            item = unit.scopes.parents.get(binding.node)
            given = item.context_expr if isinstance(item, ast.withitem) else binding.value
            if isinstance(given, ast.Call):
                yield given


def _entry(unit: Unit, call: ast.Call, asked: str) -> Entry | None:
    table = unit.settings.table
    names = [meaning.name for meaning in unit.scopes.meanings(call.func)]
    known = (name for name in names if name in table.results)
    return next((entry for name in known if (entry := table.result(f"{name}().{asked}"))), None)


def _claim(unit: Unit, node: ast.AST, entry: Entry, calls: list[ast.Call]) -> None:
    instead = unit.settings.readable(entry.becomes)
    if entry.action is Action.KEEP:
        unit.keep(node, entry.rule, entry.reason)
    elif entry.action is Action.LIST or not isinstance(node, ast.Attribute):
        unit.list(node, entry.rule, entry.reason, replacement=instead)
        for call in (
            calls if "alone" not in entry.arguments else ()
        ):  # half of it on the new device would be worse than none
            if not unit.scopes.span(node).contains(unit.scopes.span(call)):
                reason = f"is asked for what the device does not have: {entry.reason}"
                unit.list(call.func, entry.rule, reason, replacement=instead)
            unit.settle(ast.walk(call), node)
    else:
        span = attribute_span(unit.scopes, node)
        differs = entry.action is Action.DIFFERS
        edits = [Edit(span, entry.becomes)]
        unit.rewrite(node, entry.rule, entry.reason, edits, span=span, differs=differs)


_DOUBLES = re.compile(
    r"float64|\.astype\((?:float|['\"]double['\"])\)"
    r"|\.step\("  # the rewards of an environment
    r"|(?:np|numpy)\.(?:zeros|ones|empty|linspace|eye|full|random\.(?:rand|randn|uniform|normal))\((?!.*dtype)"
)
_LEAVING = frozenset({"cpu", "numpy", "item", "tolist"})
_PLACES = re.compile(r"device|cuda|\.to\(")
_MOVING = frozenset({"to", "cuda"})
_CONVERTING = re.compile(
    r"\.(?:float|half|bfloat16|long|int|bool|type)\(|dtype|torch\.(?:float|half|bfloat|int|long)"
)


def holds_doubles(unit: Unit, call: ast.Call | None) -> bool:
    """Whether a call makes a tensor of NumPy's double precision that is moved at once, and nothing converts it."""
    if call is None or not call.args or keyword(call, "dtype"):
        return False
    given = call.args[0]
    texts = [unit.text(given)]
    if isinstance(given, ast.Name):
        bindings = unit.scopes.bindings(given.id, unit.scopes.scope(given))
        given_by = [binding.value or unit.scopes.statement(binding.node) for binding in bindings]
        texts += [unit.text(one) for one in given_by if isinstance(one, ast.expr | ast.Assign)]
    whole: ast.AST = call
    moved = keyword(call, "device") is not None
    while isinstance(above := unit.scopes.parents[whole], ast.Attribute | ast.Call):
        if isinstance(above, ast.Call) and above.func is not whole:
            break
        moved |= isinstance(above, ast.Attribute) and above.attr in _MOVING
        whole = above
    behind = unit.text(whole)[len(unit.text(call)) :]
    return moved and any(map(_DOUBLES.search, texts)) and not _CONVERTING.search(behind)


def stays_away(unit: Unit, node: ast.AST) -> bool:
    """Whether a dtype or a conversion never reaches the device: compared, on the CPU, or in a test without a device."""
    test = unit.test_around(node)
    if test is not None and not _PLACES.search(unit.text(test)):
        return True
    whole = unit.scopes.call_of(node) or node
    chain: ast.AST = node
    while isinstance(chain, ast.Attribute | ast.Call):
        if isinstance(chain, ast.Attribute) and chain.attr in _LEAVING:
            return True
        chain = chain.func if isinstance(chain, ast.Call) else chain.value
    for above in unit.scopes.ancestors(whole):
        if isinstance(above, ast.Call) and called(above) in ("finfo", "assertEqual"):
            return True
        if isinstance(above, ast.IfExp) and unit.text(node) in unit.text(above.test):
            return True  # double precision where that is asked for
        if isinstance(above, ast.Compare | ast.Dict | ast.stmt | ast.comprehension):
            return isinstance(above, ast.Compare | ast.Dict)
        if isinstance(above, ast.Attribute) and above.attr in _LEAVING:
            return True
        device = argument(above, "device") if isinstance(above, ast.Call) else None
        if isinstance(device, ast.Constant) and device.value == "cpu":
            return True
    return False
