"""Advice on the dtype of class numbers: the NPU's losses compute with int32."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep.wings.migrate.advice.advisor import Advisor
from lockstep.wings.migrate.advice.loading import copies
from lockstep.wings.migrate.advice.loops import BatchLoop
from lockstep.wings.migrate.engine.arguments import called, insertion
from lockstep.wings.migrate.engine.scopes import ModuleScopes

_RULE = "advice/int32-targets"
_LOSS_CLASSES = frozenset({"torch.nn.CrossEntropyLoss", "torch.nn.NLLLoss"})
_LOSS_FUNCTIONS = frozenset({"torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss"})
_NEEDS_INT64 = frozenset(
    {"gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "one_hot", "embedding"}
)


def find_class_targets(advisor: Advisor) -> None:
    """Advise on each batch's class numbers, where they are copied to the device and given to a loss."""
    if not advisor.holds(_RULE):
        return
    losses = _loss_names(advisor.scopes)
    for loop in advisor.batch_loops:
        targets = set(_targets(advisor.scopes, loop, losses))
        for call in copies(advisor.scopes, loop):
            _advise(advisor, call, targets)


def _advise(advisor: Advisor, call: ast.Call, targets: set[str]) -> None:
    function = call.func
    if (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id in targets
    ):
        name = function.value.id
        if not _names_the_device(call):
            advisor.suggest(_RULE, call, f"{name}.to(torch.int32)")
            return
        cast = f".to({advisor.spelled('torch.int32', _RULE)})"
        edit = insertion(advisor.scopes.span(function.value).end, cast)
        advisor.offer(_RULE, advisor.scopes.span(call), f"{name}{cast}", [edit])


def _names_the_device(call: ast.Call) -> bool:
    """Whether a call copies to the device and nowhere else: a variable may as well name the CPU."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return True
    given = [*call.args, *(item.value for item in call.keywords if item.arg == "device")]
    return all(isinstance(value, ast.Constant | ast.JoinedStr) for value in given)


def _loss_names(scopes: ModuleScopes) -> set[str]:
    """What a module calls its losses over classes, wherever it makes them: functions take them as parameters."""
    names: set[str] = set()
    for node in scopes.of(ast.Assign):
        if any(
            isinstance(part, ast.Call) and scopes.name(part.func) in _LOSS_CLASSES
            for part in _receivers(node.value)
        ):
            names.update(scopes.text(target) for target in node.targets)
    return names


def _receivers(node: ast.expr) -> Iterator[ast.expr]:
    """`nn.CrossEntropyLoss().cuda()`: the call, and what it is called on."""
    while isinstance(node, ast.Call):
        yield node
        if not isinstance(node.func, ast.Attribute):
            return
        node = node.func.value


def _targets(scopes: ModuleScopes, loop: BatchLoop, losses: set[str]) -> Iterator[str]:
    """Parts of a batch whose every use in the loop takes int32: a loss, and arithmetic."""
    needs_int64 = set(_needing_int64(scopes, loop))
    for node in ast.walk(loop.node):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        names = {meaning.name for meaning in scopes.meanings(node.func)}
        is_loss = scopes.text(node.func) in losses or (names and names <= _LOSS_FUNCTIONS)
        target = node.args[1]
        if is_loss and isinstance(target, ast.Name) and target.id in loop.batch - needs_int64:
            yield target.id


def _needing_int64(scopes: ModuleScopes, loop: BatchLoop) -> Iterator[str]:
    for node in ast.walk(loop.node):
        inside: list[ast.AST] = []
        if isinstance(node, ast.Subscript):
            inside = [node.slice]
        elif isinstance(node, ast.Call):
            inside = [*node.args, *node.keywords] if called(node) in _NEEDS_INT64 else []
        for part in inside:
            for name in ast.walk(part):
                if isinstance(name, ast.Name):
                    yield name.id
