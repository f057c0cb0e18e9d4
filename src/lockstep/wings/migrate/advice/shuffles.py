"""Advice on channel shuffles: a permutation of channels is one `index_select`.

Channels `(groups, channels_per_group)` that are transposed and flattened are channels in the order that
`arange(channels).view(groups, channels_per_group).t().flatten()` counts them. Views, transposition and copy become one
operator. The form is found by what it does, whatever its function is called.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from lockstep.wings.migrate.advice.advisor import Advisor
from lockstep.wings.migrate.advice.chains import (
    Chain,
    Steps,
    is_reshape,
    receiver,
    shape_of,
    swaps_groups,
    whole_number,
)
from lockstep.wings.migrate.engine.scopes import ModuleScopes
from lockstep.wings.migrate.plan import Edit, Span

_RULE = "advice/channel-shuffle"
_OPERATOR_RULE = "advice/channel-shuffle-operator"
_OPERATORS = frozenset(
    {
        "torch.nn.ChannelShuffle",
        "torch.nn.functional.channel_shuffle",
        "torch.channel_shuffle",
        "torch.native_channel_shuffle",
    }
)
_SIZE = re.compile(r"\w+(?:\.data)?\.(?:size\(-?\d\)|shape\[-?\d\])")
_LINE_END = re.compile(r"[ \t]*(?:\r\n|\r|\n)")
_MINIMUM = 4
"""Axes of a tensor whose channels are in groups: batch, group, channel of the group, place."""


def advise_shuffle(advisor: Advisor, chain: Chain) -> bool:
    """Advise on a chain if it is a channel shuffle.

    Returns
    -------
    bool
        Whether it is one.
    """
    scopes = advisor.scopes
    steps = Steps(scopes, chain.permuted)
    grouped = steps.back(receiver(scopes, chain.permuted))
    if not isinstance(grouped, ast.Call) or not is_reshape(scopes, grouped):
        return False
    before, after = shape_of(scopes, grouped), shape_of(scopes, chain.result)
    tensor = receiver(scopes, grouped)
    if (
        len(before) < _MINIMUM
        or len(after) != len(before) - 1
        or not swaps_groups(scopes, chain.permuted, len(before))
        or not isinstance(tensor, ast.Name)
        or not _keeps_the_rest(scopes, tensor, before, after)
    ):
        return False
    statements = (*steps.passed, *chain.statements)
    text = _index_select(advisor, tensor.id, before[1], before[2])
    unused = _unused(scopes, (*statements, chain.result), before[1:3])
    gone = (*unused, *statements)
    edits = [Edit(scopes.span(chain.result), text), *(_removal(scopes, s) for s in gone)]
    first = statements[0] if statements else chain.result
    span = Span(scopes.span(first).start, scopes.span(chain.result).end)
    advisor.offer(_RULE, span, text, edits, kept=before[1:3])
    return True


def advise_operator(advisor: Advisor, node: ast.Call) -> None:
    """Advise on torch's own channel shuffle."""
    if advisor.scopes.name(node.func) not in _OPERATORS:
        return
    advisor.suggest(
        _OPERATOR_RULE,
        node,
        "x.index_select(1, torch.arange(x.shape[1], dtype=torch.int32, device=x.device)"
        ".view(groups, -1).t().flatten())",
    )


def _index_select(advisor: Advisor, tensor: str, groups: ast.expr, channels: ast.expr) -> str:
    arange, int32 = (advisor.spelled(f"torch.{name}", _RULE) for name in ("arange", "int32"))
    text = advisor.migrated
    return (
        f"{tensor}.index_select(1, {arange}({tensor}.shape[1], dtype={int32},"
        f" device={tensor}.device).view({text(groups)}, {text(channels)}).t().flatten())"
    )


def _keeps_the_rest(
    scopes: ModuleScopes, tensor: ast.Name, before: list[ast.expr], after: list[ast.expr]
) -> bool:
    """Whether all axes but the channels are those of the tensor itself, before and after."""
    sizes = _Sizes(scopes, tensor, len(after))
    outer = [(0, before[0], after[0])]
    outer += [(axis, before[axis + 1], after[axis]) for axis in range(2, len(after))]
    return all(sizes.is_axis(one, axis) and sizes.is_axis(two, axis) for axis, one, two in outer)


class _Sizes:
    """What the sizes of one tensor are called.

    Parameters
    ----------
    scopes
        The module.
    tensor
        The tensor, where it is read.
    dimensions
        How many axes it has.
    """

    def __init__(self, scopes: ModuleScopes, tensor: ast.Name, dimensions: int) -> None:
        self._scopes = scopes
        self._tensor = tensor
        self._dimensions = dimensions

    def is_axis(self, node: ast.expr, axis: int) -> bool:
        """Whether an expression is the tensor's size along an axis."""
        if isinstance(node, ast.Name):
            return self._is_assigned(node, axis)
        return self._is_read(node, axis, node)

    def _is_assigned(self, node: ast.Name, axis: int) -> bool:
        bindings = self._scopes.bindings(node.id, self._scopes.scope(node))
        if len(bindings) != 1:
            return False
        binding = bindings[0].node
        parent = self._scopes.parents.get(binding)
        if isinstance(parent, ast.Tuple | ast.List):
            assign = self._scopes.parents.get(parent)
            if not isinstance(assign, ast.Assign):
                return False
            if isinstance(assign.value, ast.Tuple | ast.List):
                value = bindings[0].value
                return value is not None and self._is_read(value, axis, assign)
            position = parent.elts.index(binding)  # type: ignore[arg-type]
            return (
                position == axis
                and len(parent.elts) == self._dimensions
                and self._is_shape(assign.value, assign)
            )
        value = bindings[0].value
        return value is not None and self._is_read(value, axis, node=binding)

    def _is_read(self, value: ast.expr, axis: int, node: ast.AST) -> bool:
        """`x.size(0)`, `x.shape[0]`."""
        index: ast.expr | None = None
        if isinstance(value, ast.Subscript) and self._is_shape(value.value, node):
            index = value.slice
        elif (
            isinstance(value, ast.Call)
            and len(value.args) == 1
            and isinstance(value.func, ast.Attribute)
            and value.func.attr == "size"
            and self._is_tensor(value.func.value, node)
        ):
            index = value.args[0]
        number = whole_number(index) if index is not None else None
        return number is not None and number % self._dimensions == axis

    def _is_shape(self, value: ast.expr, node: ast.AST) -> bool:
        """`x.size()`, `x.shape`, `x.data.size()`."""
        if isinstance(value, ast.Call):
            function = value.func
            if value.args or not isinstance(function, ast.Attribute) or function.attr != "size":
                return False
            return self._is_tensor(function.value, node)
        return (
            isinstance(value, ast.Attribute)
            and value.attr == "shape"
            and self._is_tensor(value.value, node)
        )

    def _is_tensor(self, value: ast.expr, node: ast.AST) -> bool:
        """Whether this is the tensor, not bound again between the two places."""
        if isinstance(value, ast.Attribute) and value.attr == "data":
            value = value.value
        if not isinstance(value, ast.Name) or value.id != self._tensor.id:
            return False
        spans = self._scopes.span
        low, high = sorted((spans(node).start, spans(self._tensor).start))
        scope = self._scopes.scope(self._tensor)
        if scope is not self._scopes.scope(value) or self._loops(node) != self._loops(self._tensor):
            return False
        return not any(
            low < spans(binding.node).start < high
            and self._statement(binding.node) is not self._statement(self._tensor)
            for binding in self._scopes.bindings(value.id, scope)
        )

    def _loops(self, node: ast.AST) -> list[ast.AST]:
        """The loops around a place: a size that is read outside of one may be that of an earlier turn's tensor."""
        return [n for n in self._scopes.ancestors(node) if isinstance(n, ast.For | ast.While)]

    def _statement(self, node: ast.AST) -> ast.AST:
        return self._scopes.statement(node) if isinstance(node, ast.expr) else node


def _unused(
    scopes: ModuleScopes, replaced: Sequence[ast.AST], kept: Sequence[ast.AST]
) -> list[ast.stmt]:
    """Statements that name a size, such as `h = x.size(2)`, which nothing reads once these nodes are replaced."""
    staying = {id(node) for part in kept for node in ast.walk(part)}
    going = [node for part in replaced for node in ast.walk(part) if id(node) not in staying]
    reads = dict.fromkeys(node for node in going if isinstance(node, ast.Name))
    found: dict[ast.stmt, None] = {}
    for node in reads:
        bindings = scopes.bindings(node.id, scopes.scope(node))
        statement = scopes.parents.get(bindings[0].node) if len(bindings) == 1 else None
        if (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and _SIZE.fullmatch(scopes.text(statement.value))
            and all(use in reads for use in scopes.uses(bindings[0]))
        ):
            found[statement] = None
    return list(found)


def _removal(scopes: ModuleScopes, statement: ast.stmt) -> Edit:
    """Remove a statement: its whole line where it is alone on it."""
    span, text = scopes.span(statement), scopes.source.text
    start = scopes.source.line_start(span.start)
    end = _LINE_END.match(text, span.end)
    if end and not text[start : span.start].strip():
        return Edit(Span(start, end.end()), "")
    separator = re.compile(r"[ \t]*;[ \t]*").match(text, span.end)
    if separator:
        return Edit(Span(span.start, separator.end()), "")
    return Edit(span, "pass")
