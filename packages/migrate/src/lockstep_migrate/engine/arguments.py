"""Edits of a call's arguments, each as small as it can be, so that what is inside them may be edited too.

The steps that a table names (column `arguments`):

first=X
    X becomes the first argument.
keyword:K=X
    Adds the keyword unless it is given.
names=a;b;c
    Positional arguments get these keywords; an empty name leaves that one positional.
drop=a;b
    Keywords that the new function does not know are removed; call with them removed means the same.
only=K:V
    The rewrite holds only where keyword K is absent or is the constant V.
most=N
    The rewrite holds only where at most N arguments are given.
cut=N
    Arguments behind the first N are removed, where evaluating them does nothing.
told
    The rewrite holds only where the result is shown to people: printed, logged or put into a text.
call=X
    X takes the place of the whole call, where evaluating its arguments does nothing.
wrap=X
    X is written behind the call.
rename=K:L
    The keyword K becomes L.
missing=K
    The rewrite holds only where the first parameter K is given neither by keyword nor by position.
takes=K
    The rewrite holds only where the parameter K alone is given, by keyword or by position.
called, alone
    The rewrite holds only for a call, or for one that is a statement by itself.

A call with `*` or `**` keeps them; where a step would have to look inside one, `CannotRewriteError` says so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Sequence

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.plan import Edit, Span

_BLANK = re.compile(r"(?:\s|\\\r?\n|#[^\r\n]*)*")
_BEHIND = re.compile(r"(?:\s|\\\r?\n|#[^\r\n]*|\))*")
_COMMENT = re.compile(r"#[^\r\n]*")


class CannotRewriteError(ValueError):
    """The arguments cannot be rewritten; the message is the reason that is shown."""


def insertion(at: int, text: str) -> Edit:
    """An edit that inserts."""
    return Edit(Span(at, at), text)


def opening(scopes: ModuleScopes, call: ast.Call) -> int:
    """Where the first argument would start: behind the opening bracket of a call."""
    at = scopes.span(call.func).end
    while True:
        at = _behind_blank(scopes, at)
        if scopes.source.text[at] == "(":
            return at + 1
        at += 1  # a bracket that closes around the function


def attribute_span(scopes: ModuleScopes, node: ast.Attribute) -> Span:
    """Where the name behind the dot stands."""
    end = scopes.span(node).end
    return Span(end - len(node.attr), end)


def in_order(call: ast.Call, scopes: ModuleScopes) -> list[ast.expr | ast.keyword]:
    """All arguments in the order of the text."""
    return sorted([*call.args, *call.keywords], key=lambda node: scopes.span(node).start)


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword argument of a name."""
    return next((item for item in call.keywords if item.arg == name), None)


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """The argument that a parameter gets, by keyword or by position."""
    item = keyword(call, name)
    if item is not None:
        return item.value
    return call.args[position] if position is not None and position < len(call.args) else None


def given_device(call: ast.Call) -> ast.expr | None:
    """What a call that moves somewhere is given first, or as `device`; methods of other things may take both."""
    return call.args[0] if call.args else argument(call, "device")


def has_stars(call: ast.Call) -> bool:
    """Whether a call takes arguments out of `*` or `**`."""
    return any(isinstance(item, ast.Starred) for item in call.args) or any(
        item.arg is None for item in call.keywords
    )


def takes_only(call: ast.Call, name: str) -> bool:
    """Whether a call gives one parameter, its first, and nothing else."""
    alone = len(call.args) + len(call.keywords) == 1 and not has_stars(call)
    return alone and argument(call, name, 0) is not None


def called(call: ast.Call) -> str:
    """The last name of what a call calls."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def is_constant(node: ast.AST | None, value: object) -> bool:
    """Whether an expression is this constant, such as `True`."""
    return isinstance(node, ast.Constant) and node.value is value


def does_something(node: ast.AST) -> bool:
    """Whether evaluating an expression may do more than give a value; `torch.device("cuda")` does not."""
    harmless = ("device", "int", "str", "current_device", "get_rank", "get_device")
    return any(
        isinstance(inner, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom)
        or (isinstance(inner, ast.Call) and called(inner) not in harmless)
        for inner in ast.walk(node)
    )


_SHOWING = frozenset(
    {"print", "debug", "info", "warning", "error", "log", "write", "echo", "str", "repr", "format"}
)


def is_shown(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether an expression goes into a text and nowhere else."""
    parent = scopes.parents[node]
    if isinstance(parent, ast.Call):
        return node is not parent.func and called(parent) in _SHOWING
    if isinstance(parent, ast.Tuple) or (isinstance(parent, ast.BinOp) and parent.right is node):
        percent = parent if isinstance(parent, ast.BinOp) else scopes.parents[parent]
        return (
            isinstance(percent, ast.BinOp)
            and isinstance(percent.op, ast.Mod)
            and isinstance(percent.left, ast.Constant)
            and isinstance(percent.left.value, str)
            and not (percent is parent and percent.left.value.count("%") > 1)  # is unpacked
        )
    return isinstance(parent, ast.FormattedValue | ast.Expr)


def wrapped(span: Span, function: str) -> list[Edit]:
    """The edits that pass an expression through a function."""
    return [insertion(span.start, f"{function}("), insertion(span.end, ")")]


def renamed_keyword(scopes: ModuleScopes, call: ast.Call, old: str, new: str) -> list[Edit]:
    """The edit that gives an argument another keyword; none where it is not given by keyword."""
    item = keyword(call, old)
    if item is None:
        return []
    start = scopes.span(item).start
    return [Edit(Span(start, start + len(old)), new)]


def first_edit(scopes: ModuleScopes, call: ast.Call, text: str) -> Edit:
    """Insert a first argument."""
    separator = ", " if call.args or call.keywords else ""
    return insertion(opening(scopes, call), text + separator)


def appended(
    scopes: ModuleScopes, call: ast.Call, text: str, gone: Collection[ast.AST] = ()
) -> list[Edit]:
    """The edits that append an argument behind all others that stay."""
    arguments = [item for item in in_order(call, scopes) if item not in gone]
    if not arguments:
        return [insertion(opening(scopes, call), text)]
    end = argument_end(scopes, call, arguments[-1])
    if _is_bare(scopes, call):
        return [insertion(scopes.span(arguments[0]).start, "("), insertion(end, f", {text})")]
    return [insertion(end, f", {text}")]


def removals(scopes: ModuleScopes, call: ast.Call, items: Collection[ast.AST]) -> list[Edit]:
    """Remove arguments, each run of neighbours with the commas that belong to it."""
    arguments = in_order(call, scopes)
    edits, position = [], 0
    while position < len(arguments):
        stop = position
        while stop < len(arguments) and arguments[stop] in items:
            stop += 1
        if stop > position:
            start = argument_start(scopes, call, arguments[position])
            end = argument_end(scopes, call, arguments[stop - 1])
            if stop < len(arguments):
                end = argument_start(scopes, call, arguments[stop])
            elif position > 0:
                start = argument_end(scopes, call, arguments[position - 1])
            edits.append(Edit(Span(start, end), ""))
        position = stop + 1
    return edits


def _is_bare(scopes: ModuleScopes, call: ast.Call) -> bool:
    """Whether the only argument is a generator that has no brackets but the call's."""
    only = call.args[0] if len(call.args) == 1 else None
    return isinstance(only, ast.GeneratorExp) and scopes.span(only).end == scopes.span(call).end


def argument_start(scopes: ModuleScopes, call: ast.Call, node: ast.AST) -> int:
    """Where an argument of a call starts, brackets around it included; of a keyword's value, where that does."""
    arguments, start = in_order(call, scopes), scopes.span(node).start
    if node not in arguments:
        return start
    position = arguments.index(node)
    if not position:
        return min(start, _behind_blank(scopes, opening(scopes, call)))
    comma = _behind_blank(scopes, argument_end(scopes, call, arguments[position - 1]))
    return _behind_blank(scopes, comma + 1)


def argument_end(scopes: ModuleScopes, call: ast.Call, node: ast.AST) -> int:
    """Where an argument of a call ends, brackets around it included; of a keyword's value, where that does."""
    end = scopes.span(node).end
    if any(item.value is node for item in call.keywords):
        return end
    behind = _BEHIND.match(scopes.source.text, end, scopes.span(call).end - 1)
    text = _COMMENT.sub(lambda found: " " * len(found.group()), behind.group() if behind else "")
    return end + text.rfind(")") + 1


def _behind_blank(scopes: ModuleScopes, at: int) -> int:
    blank = _BLANK.match(scopes.source.text, at)
    return blank.end() if blank else at


class ArgumentEdits:
    """Carries the steps of a table out on one call.

    scopes: The module.
    call: The call.
    fill: Fills placeholders of the tables.
    """

    def __init__(self, scopes: ModuleScopes, call: ast.Call, fill: Callable[[str], str]) -> None:
        self._scopes = scopes
        self._call = call
        self._fill = fill
        self._added: list[str] = []
        self._dropped: set[str] = set()
        self._edits: list[Edit] = []

    def carry_out(self, steps: Sequence[str]) -> list[Edit]:
        """The edits for all steps. Raises CannotRewriteError if one of them cannot be carried out."""
        if _is_bare(self._scopes, self._call):
            raise CannotRewriteError("its only argument is a generator without brackets")
        for step in steps:
            operation, _, rest = step.partition("=")
            if operation == "drop":
                self._dropped.update(rest.split(";"))
        for step in steps:
            operation, _, rest = step.partition("=")
            operation, _, key = operation.partition(":")
            _STEPS[operation](self, key, rest)
        return self._edits + self._dropping() + self._appending()

    def behind_first(self, steps: Sequence[str]) -> list[Edit]:
        """The edits for a function that is the first argument of a call, which gives it the others by keyword."""
        end = argument_end(self._scopes, self._call, self._call.args[0])
        added = [step.partition("=")[2] for step in steps if step.startswith("first=")]
        added += [step.partition(":")[2] for step in steps if step.startswith("keyword:")]
        return [insertion(end, "".join(f", {self._fill(text)}" for text in added))]

    def _first(self, key: str, text: str) -> None:
        self._edits.append(first_edit(self._scopes, self._call, self._fill(text)))

    def _keyword(self, key: str, text: str) -> None:
        if keyword(self._call, key) is None:
            if any(item.arg is None for item in self._call.keywords):
                raise CannotRewriteError(f"{key} may be inside the ** of the call")
            self._added.append(f"{key}={self._fill(text)}")

    def _names(self, key: str, text: str) -> None:
        names = text.split(";")
        if len(self._call.args) > len(names):
            raise CannotRewriteError("has more positional arguments than are known")
        for argument, name in zip(self._call.args, names, strict=False):
            if isinstance(argument, ast.Starred):
                raise CannotRewriteError("positional arguments are inside a *")
            if name in self._dropped:
                raise CannotRewriteError(f"gives {name} by position")
            if name:
                start = argument_start(self._scopes, self._call, argument)
                self._edits.append(insertion(start, f"{name}="))

    def _drop(self, key: str, text: str) -> None:
        """Carried out behind all other steps."""

    def _only(self, key: str, text: str) -> None:
        name, _, value = text.partition(":")
        item = keyword(self._call, name)
        if item is not None and self._scopes.text(item.value) != value:
            raise CannotRewriteError(f"holds only with {name}={value}")

    def _wrap(self, key: str, text: str) -> None:
        if keyword(self._call, "device"):
            raise CannotRewriteError("is given a device, which the type for the CPU refuses")
        end = self._scopes.span(self._call).end
        self._edits.append(insertion(end, self._fill(text)))

    def _missing(self, key: str, text: str) -> None:
        if self._call.args or keyword(self._call, text) is not None:
            raise CannotRewriteError("")

    def _most(self, key: str, text: str) -> None:
        if len(in_order(self._call, self._scopes)) > int(text) or has_stars(self._call):
            raise CannotRewriteError("is given arguments that not every device takes")

    def _cut(self, key: str, text: str) -> None:
        gone = in_order(self._call, self._scopes)[int(text) :]
        if has_stars(self._call) or any(map(does_something, gone)):
            raise CannotRewriteError("is given an argument that the device's own does not take")
        self._edits += removals(self._scopes, self._call, gone)

    def _rename(self, key: str, text: str) -> None:
        old, _, new = text.partition(":")
        self._edits += renamed_keyword(self._scopes, self._call, old, new)

    def _takes(self, key: str, text: str) -> None:
        if not takes_only(self._call, text):
            raise CannotRewriteError(f"is given something other than {text}")

    def _called(self, key: str, text: str) -> None:
        """Holds for every call."""

    def _alone(self, key: str, text: str) -> None:
        if not isinstance(self._scopes.parents[self._call], ast.Expr):
            raise CannotRewriteError("its result is used")

    def _told(self, key: str, text: str) -> None:
        if not is_shown(self._scopes, self._call):
            raise CannotRewriteError

    def _whole(self, key: str, text: str) -> None:
        if any(map(does_something, in_order(self._call, self._scopes))):
            raise CannotRewriteError("its arguments are computed by calls")
        alone = isinstance(self._scopes.parents[self._call], ast.Expr)
        new = "pass" if alone and text == "None" else self._fill(text)
        self._edits.append(Edit(self._scopes.span(self._call), new))

    def _dropped_items(self) -> list[ast.keyword]:
        return [item for item in self._call.keywords if item.arg in self._dropped]

    def _dropping(self) -> list[Edit]:
        return removals(self._scopes, self._call, self._dropped_items())

    def _appending(self) -> list[Edit]:
        """Append the added keywords behind the last argument that stays."""
        if not self._added:
            return []
        text = ", ".join(self._added)
        return appended(self._scopes, self._call, text, self._dropped_items())


_STEPS: dict[str, Callable[[ArgumentEdits, str, str], None]] = {
    "first": ArgumentEdits._first,
    "keyword": ArgumentEdits._keyword,
    "names": ArgumentEdits._names,
    "drop": ArgumentEdits._drop,
    "only": ArgumentEdits._only,
    "wrap": ArgumentEdits._wrap,
    "missing": ArgumentEdits._missing,
    "most": ArgumentEdits._most,
    "cut": ArgumentEdits._cut,
    "told": ArgumentEdits._told,
    "rename": ArgumentEdits._rename,
    "takes": ArgumentEdits._takes,
    "called": ArgumentEdits._called,
    "alone": ArgumentEdits._alone,
    "call": ArgumentEdits._whole,
}
