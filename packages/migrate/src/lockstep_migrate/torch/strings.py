"""Strings that name the device or its libraries: `"cuda:0"`, `f"cuda:{rank}"`, `"nccl"`, `"CUDA_VISIBLE_DEVICES"`."""

from __future__ import annotations

import ast
import re

from lockstep_migrate.engine.arguments import called, insertion
from lockstep_migrate.engine.literals import Piece
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.torch.compared_settings import compared_setting
from lockstep_migrate.torch.context import BY_NAME, DEVICE_KEY, TENSOR_TYPE, Use, use_of
from lockstep_migrate.torch.early import (
    backend_function,
    device_function,
    lazy_default,
)
from lockstep_migrate.torch.one_device import (
    ONE_DEVICE,
    claim_one_device,
    is_numbered_later,
    joined,
)
from lockstep_migrate.torch.unfollowed import is_unknown_key
from lockstep_migrate.torch.unit import SCRIPTED, Unit
from lockstep_migrate.torch.vocabulary import WORDS

_DEVICE = re.compile(r"cuda(?::(?P<index>\d+))?\Z")
_TEMPLATE = re.compile(r"cuda:?(?:%[sdi]|\{[^{}]*\})?\Z")
_FORMAT = re.compile(r"cuda:\{0?(?::d)?\}\Z")
_BACKEND = re.compile(r"(?:cpu:\w+,)?(?:cuda:)?nccl\Z|cuda:nccl,cpu:\w+\Z", re.IGNORECASE)
_CPU_BACKEND = "gloo"
_NO_COLLECTIVES = (
    "is not possible: no collective backend takes tensors of this device, and gloo refuses them"
)
_BUILTIN_LOOKUPS = frozenset({"getattr", "hasattr", "setattr", "delattr"})
_PLACING = frozenset({"to", "cuda", "device", "set_device", "load", "type"})
_WORDS = re.compile(r"[A-Za-z0-9_]")


def find_strings(unit: Unit) -> None:
    """Claim every string that is a device, a backend, a tensor type or an environment variable."""
    for formatted in unit.scopes.of(ast.JoinedStr):
        _claim_formatted(unit, formatted)
    for node in unit.scopes.of(ast.Constant):
        if (
            isinstance(node.value, str)
            and WORDS.search(node.value)
            and not isinstance(unit.scopes.parents[node], ast.JoinedStr)
            and not is_docstring(unit.scopes, node)
        ):
            _claim_plain(unit, node, node.value)


def is_docstring(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether a string is a statement of its own, and so never used."""
    return isinstance(scopes.parents[node], ast.Expr)


def _claim_plain(unit: Unit, node: ast.Constant, value: str) -> None:
    if unit.is_claimed(node) or unit.header.is_in_helper(node):
        return
    if _DEVICE.match(value):
        _Text(unit, node, "strings/device").claim_device(_DEVICE.match(value)["index"] or "")  # type: ignore[index]
    elif _BACKEND.match(value):
        _Text(unit, node, "strings/backend").claim_backend(value)
    elif TENSOR_TYPE.match(value):
        _Text(unit, node, "strings/tensor-type").claim_tensor_type("cuda")
    elif _TEMPLATE.match(value):
        _Text(unit, node, "strings/device-template").claim_template(value)


class _Text:
    """One plain string on its way to a mention."""

    def __init__(self, unit: Unit, node: ast.Constant, rule: str) -> None:
        self._unit = unit
        self._scopes = unit.scopes
        self._node = node
        self._rule = rule
        self._use = use_of(unit.scopes, _filled(unit.scopes, node))
        self._pieces = unit.scopes.pieces(node)

    # -- kinds

    def claim_device(self, index: str) -> None:
        """`"cuda"` or `"cuda:0"`."""
        use = Use.VALUE if self._use is Use.KEY and index else self._use
        if not self._is_rewritable(use) or self._is_listed_as_key(use):
            return
        if self._is_left_to_the_project(use):
            use = Use.TEST
        single = self._unit.target.single
        whole = joined(self._scopes, self._node) if single else self._node
        if single and index not in ("", "0"):
            self._list(ONE_DEVICE, f'"{self._unit.target.device}"')
        elif whole is not self._node:
            claim_one_device(self._unit, self._node, self._rule, whole)
        elif single and is_numbered_later(self._scopes, self._node):
            self._list(f"gets a number later, and {ONE_DEVICE}", f'"{self._unit.target.device}"')
        elif self._has_target_beside():
            reason = "stands beside the target's own name"
            self._unit.keep(self._node, self._rule, reason)
        elif single and self._first_of_device_call(other=True):
            call = self._scopes.parents[self._node]
            assert isinstance(call, ast.Call)
            text = f'{self._scopes.text(call.func)}("{self._unit.target.device}")'
            claim_one_device(self._unit, self._node, self._rule, call, text)
        elif self._unit.target.device:
            self._replace_inside("cuda", self._unit.target.device)
        elif self._first_of_device_call():
            self._merge_into_device_call()
        elif use is Use.VALUE and (edits := self._lazy_default(f"device({index})")):
            self._rewrite(edits, "the device there is, once the function is called")
        elif use is Use.VALUE:
            function = device_function(self._unit, self._node)
            self._replace(f"{function}({index})", "the device there is")
        elif index:
            text = self._formatted(f"{{{self._unit.fill('{type}')}}}:{index}")
            self._replace(text, "the accelerator there is")
        else:
            self._replace(self._unit.fill("{type}"), "the accelerator there is")

    def claim_backend(self, value: str) -> None:
        """`"nccl"`, `"cpu:gloo,cuda:nccl"`."""
        if not self._is_rewritable(self._use):
            return
        target = self._unit.target
        if target.single and target.backend == _CPU_BACKEND:
            self._list(_NO_COLLECTIVES, '"gloo", and tensors on the CPU around each collective')
        elif target.device:
            self._need_import()
            self._replace_words(
                {"cuda": target.device, "nccl": target.backend, "NCCL": target.backend}
            )
        elif ":" in value:
            device, backend = self._unit.fill("{type}"), self._unit.fill("{backend}")
            text = value.replace("cuda", f"{{{device}}}").replace("nccl", f"{{{backend}}}")
            text = self._formatted(text)
            self._replace(text, "the accelerator there is, with its own backend")
        elif value != "nccl":
            backend = self._unit.settings.readable("{backend}")
            self._list("spells the backend otherwise than torch does", backend)
        elif self._use is Use.VALUE and not self._is_left_to_the_project(self._use):
            if edits := self._lazy_default("backend()"):
                self._rewrite(edits, "the backend of the device there is, once it is called")
                return
            function = backend_function(self._unit, self._node)
            self._replace(f"{function}()", "the backend of the device there is")
        else:
            self._replace(self._unit.fill("{backend}"), "the accelerator's own backend")

    def claim_tensor_type(self, word: str) -> None:
        """`"torch.cuda.FloatTensor"`: every device says such a name of its tensors, and few make tensors by it."""
        if not self._is_rewritable(self._use):
            return
        target = self._unit.target
        named = target.device and target.has_name(f"{target.module}.FloatTensor")
        if self._use is Use.VALUE and not named:
            device = self._unit.settings.readable("{device}")
            reason = "makes tensors of a type by its name, which few devices have"
            self._list(reason, f".to({device}, dtype)")
        elif target.device:
            self._replace_inside(word, target.device)
        elif len(self._pieces) == 1 and not self._pieces[0].prefix:
            start = self._body_offset(word)
            edits = [
                insertion(self._pieces[0].span.start, "f"),
                Edit(Span(start, start + len(word)), f"{{{self._unit.fill('{type}')}}}"),
            ]
            self._rewrite(edits, "the accelerator there is")
        else:
            self._list("is written in several pieces or as raw text")

    def claim_template(self, value: str) -> None:
        """`"cuda:%d" % rank`, `"cuda:{}".format(rank)`, `"cuda:" + str(rank)`."""
        if not self._is_rewritable(self._use):
            return
        whole = _filled(self._scopes, self._node)
        if self._unit.target.single and whole is not self._node:
            claim_one_device(self._unit, self._node, self._rule, whole)
            return
        if self._unit.target.device:
            self._replace_inside("cuda", self._unit.target.device)
            return
        edits = self._template_edits(value)
        if self._use is Use.TEST and edits:
            self._claim_tested_template(value)
        elif edits:
            self._rewrite(edits, "the device there is")
        else:
            device = self._unit.settings.readable("{device}")
            reason = "is filled in somewhere else, or with more than an index"
            self._list(reason, f"{device} with the index as an argument")

    def _claim_tested_template(self, value: str) -> None:
        """A template that is filled in to be compared: the same template with the accelerator's name."""
        rest = value.removeprefix("cuda")
        if "{" in rest:
            rest = rest.replace("{", "{{").replace("}", "}}")
        text = f'f"{{{self._unit.fill("{type}")}}}{rest}"'
        self._replace(text, "the accelerator there is")

    def _has_target_beside(self) -> bool:
        """Whether the target's own device is another of several that are offered or compared."""
        parent = self._scopes.parents[self._node]
        return isinstance(parent, ast.Tuple | ast.List | ast.Set) and any(
            isinstance(other, ast.Constant) and other.value == self._unit.target.device != ""
            for other in parent.elts
        )

    # -- decisions

    def _is_rewritable(self, use: Use) -> bool:
        """Whether the string may be rewritten here; if not, it has been claimed."""
        if use is Use.KEY:
            self._claim_key()
        elif use is Use.TEXT:
            self._unit.keep(self._node, "strings/text", use.value)
        elif setting := compared_setting(self._unit, self._node, use):
            file = self._unit.own.configured[setting]
            self._list(f"is compared with a setting that {file} gives: change both together")
        elif use is Use.PATTERN and not self._unit.target.device:
            self._list("a pattern of a match statement takes no variable", "if with ==")
        elif use is Use.ANNOTATION and not self._unit.target.device:
            self._list("is part of a type, which takes no variable")
        elif use is Use.LENGTH:
            self._list(use.value, ".startswith")
        elif use in (Use.ELSE, Use.STORED, Use.READ):
            self._list(use.value)
        elif use is Use.DEVICE_KEY:
            self._list(DEVICE_KEY)
        elif not self._unit.target.device and self._unit.is_scripted(self._node):
            self._list(SCRIPTED)
        else:
            return True
        return False

    def _claim_key(self) -> None:
        """A key; one that is looked up on torch itself is no key of the project's own."""
        parent = self._scopes.parents[self._node]
        looked_up = parent.args[0] if isinstance(parent, ast.Call) and parent.args else self._node
        if isinstance(parent, ast.Subscript):
            looked_up = parent.value
            if isinstance(looked_up, ast.Call) and looked_up.args:  # vars(torch)["cuda"]
                looked_up = looked_up.args[0]
        if self._scopes.name(looked_up).split(".")[0] == "torch":
            module = self._unit.settings.readable("{module}")
            self._list("is looked up on torch by name", module)
        elif self._is_looked_up(parent) and self._node.value not in self._unit.own.attributes:
            self._list("is looked up by name on something whose class is not known")
        elif is_unknown_key(self._unit, self._node):
            self._list("is looked up by this name, under which the project puts nothing")
        else:
            self._unit.keep(self._node, "strings/own-key", Use.KEY.value)

    def _is_looked_up(self, parent: ast.AST) -> bool:
        """Whether an attribute of this name is asked for, as `getattr` does."""
        if not isinstance(parent, ast.Call):
            return False
        builtin = isinstance(parent.func, ast.Name) and parent.func.id in _BUILTIN_LOOKUPS
        return builtin or called(parent) in BY_NAME

    def _is_left_to_the_project(self, use: Use) -> bool:
        """Whether this is a default that the project takes back itself where CUDA is missing.

        `if args.device == "cuda" and not torch.cuda.is_available()`: the name has to stay what it is compared with.
        """
        parent = self._scopes.parents[self._node]
        is_default = isinstance(parent, ast.keyword) and parent.arg == "default"
        indirect = ast.Assign | ast.AnnAssign | ast.arguments | ast.Dict | ast.Return
        return (
            use is Use.VALUE
            and self._unit.own.falls_back
            and (is_default or isinstance(parent, indirect))
        )

    def _is_listed_as_key(self, use: Use) -> bool:
        """Claim what may be a key that the project looks up elsewhere, such as the name of a registered function."""
        parent = self._scopes.parents[self._node]
        if use is not Use.VALUE or not self._unit.own.looks_up or not isinstance(parent, ast.Call):
            return False
        name = self._scopes.name(parent.func)
        if name.startswith("torch.") or getattr(parent.func, "attr", "") in _PLACING:
            return False
        self._list("may be a key: the project looks things up by this name")
        return True

    def _first_of_device_call(self, *, other: bool = False) -> bool:
        """Whether this is the type in `torch.device("cuda", index)`; with `other` of an index that is not 0."""
        parent = self._scopes.parents[self._node]
        return (
            isinstance(parent, ast.Call)
            and self._scopes.name(parent.func) == "torch.device"
            and len(parent.args) == 2
            and parent.args[0] is self._node
            and not isinstance(parent.args[1], ast.Starred)
            and not (other and self._is_first_device(parent.args[1]))
        )

    def _is_first_device(self, index: ast.expr) -> bool:
        """Whether an index is 0, or becomes so."""
        return getattr(index, "value", None) == 0 or self._unit.is_rewritten(index)

    def _merge_into_device_call(self) -> None:
        parent = self._scopes.parents[self._node]
        assert isinstance(parent, ast.Call)
        start = self._scopes.span(self._node).start
        index = self._scopes.span(parent.args[1])
        edits = [
            Edit(Span(start, index.start), f"{self._function()}("),
            insertion(index.end, ")"),
        ]
        self._rewrite(edits, "the device there is", span=self._scopes.span(parent))

    def _template_edits(self, value: str) -> list[Edit]:
        parent = self._scopes.parents[self._node]
        start = self._scopes.span(self._node).start
        if isinstance(parent, ast.BinOp) and parent.left is self._node:
            return self._operator_edits(parent, value)
        above = self._scopes.parents.get(parent)
        if (
            isinstance(parent, ast.Attribute)
            and parent.attr == "format"
            and _FORMAT.match(value)
            and isinstance(above, ast.Call)
            and len(above.args) == 1
            and not above.keywords
            and not _is_star(above.args[0])
        ):
            index = self._scopes.span(above.args[0])
            return [Edit(Span(start, index.start), f"{self._function()}(")]
        return []

    def _operator_edits(self, operation: ast.BinOp, value: str) -> list[Edit]:
        start = self._scopes.span(self._node).start
        right: ast.expr = operation.right
        function = self._function()
        if isinstance(operation.op, ast.Mod) and value in ("cuda:%d", "cuda:%s", "cuda:%i"):
            if isinstance(right, ast.Tuple):
                if len(right.elts) != 1 or _is_star(right.elts[0]):
                    return []
                inner = self._scopes.span(right.elts[0])
                end = self._scopes.span(right).end
                return [
                    Edit(Span(start, inner.start), f"{function}("),
                    Edit(Span(inner.end, end), ")"),
                ]
        elif isinstance(operation.op, ast.Add) and value == "cuda:":
            if _is_call_of_str(right):
                inner = self._scopes.span(right.args[0])  # type: ignore[attr-defined]
                return [Edit(Span(start, inner.start), f"{function}(")]
        else:
            return []
        whole = self._scopes.span(operation)
        inner = self._scopes.span(right)
        opened = self._scopes.source.text[start : inner.start].count("(")
        if opened:
            return []
        return [Edit(Span(start, inner.start), f"{function}("), insertion(whole.end, ")")]

    # -- edits

    def _function(self) -> str:
        """The function that gives the device at this place."""
        return device_function(self._unit, self._node)

    def _lazy_default(self, call: str) -> list[Edit]:
        """The edits where this is a function's default, for a call of the helper."""
        return lazy_default(self._unit, self._node, f"{self._unit.header.helper}.{call}")

    def _formatted(self, text: str) -> str:
        """An f-string with the quotes of the literal, which may stand inside another f-string."""
        start = self._pieces[0].body.start if self._pieces else 0
        quote = self._scopes.source.text[start - 1] if start else '"'
        return f"f{quote}{text}{quote}"

    def _replace(self, text: str, reason: str) -> None:
        """Put an expression in the place of the whole literal."""
        span = self._scopes.span(self._node)
        if len(self._pieces) > 1 and "#" in self._scopes.text(self._node):
            self._list("is written in several pieces", text)
            return
        source = self._scopes.source.text
        before = source[span.start - 1 : span.start] if span.start else ""
        after = source[span.end : span.end + 1]
        text = (" " if _WORDS.match(before) else "") + text + (" " if _WORDS.match(after) else "")
        self._rewrite([Edit(span, text)], reason)

    def _replace_inside(self, word: str, new: str) -> None:
        self._need_import()
        if any(word in self._body(piece) for piece in self._pieces):
            self._replace_words({word: new})
        else:
            whole = str(self._node.value).replace(word, new)
            self._replace(f'"{whole}"', "the target's own name")

    def _replace_words(self, words: dict[str, str]) -> None:
        edits = [
            Edit(Span(piece.body.start + match.start(), piece.body.start + match.end()), words[match.group()])
            for piece in self._pieces
            for match in re.finditer("|".join(words), self._body(piece))
        ]  # fmt: skip
        self._rewrite(edits, "the target's own name")

    def _body(self, piece: Piece) -> str:
        return self._scopes.source.text[piece.body.start : piece.body.end]

    def _body_offset(self, word: str) -> int:
        return self._pieces[0].body.start + self._body(self._pieces[0]).index(word)

    def _list(self, reason: str, replacement: str = "") -> None:
        self._unit.list(self._node, self._rule, reason, replacement)

    def _need_import(self) -> None:
        self._unit.header.need_import_for([self._unit.target.module])

    def _rewrite(self, edits: list[Edit], reason: str, *, span: Span | None = None) -> None:
        self._unit.rewrite(self._node, self._rule, reason, edits, span=span)


def _claim_formatted(unit: Unit, node: ast.JoinedStr) -> None:
    """An f-string that makes a device, or holds the name of one in its text."""
    if is_docstring(unit.scopes, node):
        return
    pieces = unit.scopes.pieces(node)
    pairs = [(piece, part) for piece in pieces for part in piece.parts]
    pairs = [pair for pair in pairs if pair[1].span.start < pair[1].span.end]
    if not pairs or pairs[0][1].field is not None:
        return
    first, parts = pairs[0][0], [part for _, part in pairs]
    text = unit.scopes.source.text
    head = text[parts[0].span.start : parts[0].span.end]
    if not re.match(r"cuda:?\Z", head):
        return
    use = use_of(unit.scopes, node)
    if use is Use.TEXT:
        unit.keep(node, "strings/text", use.value)
        return
    if use in (Use.LENGTH, Use.ELSE, Use.STORED):
        unit.list(node, "strings/device-format", use.value)
        return
    head_span = Span(parts[0].span.start, parts[0].span.start + 4)
    rule = "strings/device-format"
    if unit.target.single and len(parts) > 1:
        claim_one_device(unit, node, rule, node)
    elif unit.target.device:
        unit.header.need_import_for([unit.target.module])
        unit.rewrite(node, rule, "the target's own name", [Edit(head_span, unit.target.device)])
    elif unit.is_scripted(node):
        unit.list(node, rule, SCRIPTED)
    elif (
        len(parts) == 2
        and head == "cuda:"
        and parts[1].plain
        and parts[1].field
        and "#" not in text[parts[0].span.end : parts[1].span.start]
    ):
        span, field = unit.scopes.span(node), parts[1].span
        function = device_function(unit, node)
        edits = [
            Edit(Span(span.start, field.start), f"{function}("),
            Edit(Span(field.end, span.end), ")"),
        ]
        unit.rewrite(node, rule, "the device there is", edits)
    elif first.formatted or first.prefix.lower() in ("", "r"):
        edits = [Edit(head_span, f"{{{device_function(unit, node)}()}}")]
        if not first.formatted:  # "cuda:" f"{rank:d}"
            edits.insert(0, insertion(first.span.start, "f"))
        unit.rewrite(node, rule, "the device there is", edits)
    else:
        unit.list(node, rule, "is written in several pieces, the first as raw text")


def _filled(scopes: ModuleScopes, node: ast.expr) -> ast.expr:
    """The whole expression that fills a template in: `"cuda:%d" % rank`, `"cuda:{}".format(rank)`."""
    parent = scopes.parents[node]
    if isinstance(parent, ast.BinOp) and parent.left is node:
        return parent
    if isinstance(parent, ast.Attribute) and parent.attr == "format":
        above = scopes.parents[parent]
        return above if isinstance(above, ast.Call) and above.func is parent else node
    return node


def _is_star(node: ast.AST) -> bool:
    return isinstance(node, ast.Starred)


def _is_call_of_str(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "str"
        and len(node.args) == 1
        and not node.keywords
        and not _is_star(node.args[0])
    )
