"""Uses of a call's result: `torch.cuda.get_device_properties(0).major`, `x.double()`.

The rows stand in the tables of names, `function().attribute` for a result, `.method()` for a method of anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep_migrate.engine.arguments import attribute_span
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.torch.doubles import double_items, reaches_no_device
from lockstep_migrate.torch.table import Action, Entry
from lockstep_migrate.torch.unit import Unit


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
    """Claim what rows speak of wherever it stands: a method, a keyword's value (`dtype=float`), a type as a text."""
    if not unit.settings.table.loose:
        return
    for item in unit.scopes.of(ast.keyword):
        function = getattr(unit.scopes.parents[item], "func", item)
        if unit.scopes.name(function).startswith("torch."):
            name = f".{item.arg}={getattr(item.value, 'id', '')}"
            _list_row(unit, item, name, asked=item.value)
    for text in unit.scopes.of(ast.Constant):
        if isinstance(text.value, str):
            _list_row(unit, text, text.value)
    if (doubles := unit.settings.table.lookup("torch.from_numpy")) is not None:
        for returned in double_items(unit):
            reason = "a loader makes tensors of double precision of this, which Apple's GPU does not have"
            unit.list(returned, doubles.rule, reason, ".astype(np.float32)")
    for node in unit.scopes.of(ast.Attribute):
        if unit.scopes.call_of(node) is not None and node.attr not in unit.own.methods:
            span = attribute_span(unit.scopes, node)
            _list_row(unit, node, f".{node.attr}()", span=span)


def _list_row(
    unit: Unit, node: ast.AST, name: str, *, asked: ast.AST | None = None, span: Span | None = None
) -> None:
    """List a place if a row has its name."""
    table = unit.settings.table
    entry = table.lookup(name) if name in table.loose else None
    reached = entry is not None and not reaches_no_device(unit, entry, asked or node)
    if entry is not None and reached and not unit.is_claimed(node):
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
