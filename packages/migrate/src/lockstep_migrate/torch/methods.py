"""Methods and attributes of tensors, modules and streams: `.cuda()`, `.is_cuda`, `.cuda_stream`, `.type(...)`."""

from __future__ import annotations

import ast

from lockstep_migrate.engine.arguments import (
    argument_end,
    argument_start,
    attribute_span,
    called,
    first_edit,
    given_device,
    has_stars,
    insertion,
    is_constant,
    wrapped,
)
from lockstep_migrate.engine.own_names import is_property
from lockstep_migrate.engine.scopes import Bound
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.torch.context import location_mapper, maps_locations
from lockstep_migrate.torch.early import device_function
from lockstep_migrate.torch.receivers import is_own
from lockstep_migrate.torch.table import Action, Entry
from lockstep_migrate.torch.takers import NO_DEVICES, library_of_object
from lockstep_migrate.torch.unit import SCRIPTED, Unit

_POSITIONAL = ("device", "non_blocking", "memory_format")
_DTYPES = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "ByteTensor": "uint8",
    "CharTensor": "int8",
    "ShortTensor": "int16",
    "IntTensor": "int32",
    "LongTensor": "int64",
    "BoolTensor": "bool",
}
_TYPE_PREFIX = "torch.cuda."
_STORAGES = frozenset({"storage", "untyped_storage", "_typed_storage"})
"""What returns a storage, which has a device but not every device's own attribute."""
_ATTRIBUTES = frozenset({"cuda", "cuda_stream", "is_cuda", "type"})
_DEFAULT_TYPE = "set_default_tensor_type"


def find_methods(unit: Unit) -> None:
    """Claim every use of a method or attribute that moves to CUDA or asks for it."""
    scopes = unit.scopes
    for node in scopes.of(ast.Attribute):
        if node.attr not in _ATTRIBUTES or unit.is_claimed(node):
            continue
        if node.attr == "cuda" and not _is_told_with_its_name(unit, node):
            _Move(unit, node).claim()
        elif node.attr == "is_cuda":
            _claim_is_cuda(unit, node)
        elif node.attr == "cuda_stream":
            _claim_stream(unit, node)
        elif node.attr == "type":
            _claim_type(unit, node)
    for pattern in scopes.of(ast.MatchClass):
        if "is_cuda" in pattern.kwd_attrs:
            reason = "asks for CUDA in a pattern: a tensor of another device never fits"
            unit.list(pattern, "methods/is-cuda", reason)
    for definition in scopes.of(ast.FunctionDef):
        if definition.name == "cuda" and not unit.is_claimed(definition):
            _claim_definition(unit, definition)
    if _DEFAULT_TYPE in scopes.source.text:
        for call in scopes.of(ast.Call):
            if scopes.name(call.func) == f"torch.{_DEFAULT_TYPE}" and not unit.is_claimed(call):
                _claim_default_type(unit, call)


def _is_told_with_its_name(unit: Unit, node: ast.Attribute) -> bool:
    """Whether a longer dotted name is claimed that this begins: `torch.backends.cuda.matmul.allow_tf32`."""
    longer = unit.scopes.parents[node]
    while isinstance(longer, ast.Attribute):
        if unit.is_claimed(longer):
            return True
        longer = unit.scopes.parents[longer]
    return unit.is_claimed(longer)


class _Move:
    """One `.cuda`."""

    def __init__(self, unit: Unit, node: ast.Attribute) -> None:
        self._unit = unit
        self._scopes = unit.scopes
        self._node = node
        self._call = self._scopes.call_of(node)

    def claim(self) -> None:
        """Claim it, unless it is `torch.cuda` itself."""
        meanings = self._scopes.meanings(self._node)
        if any(meaning.name == "torch.cuda" for meaning in meanings):
            return
        if any(meaning.name.startswith("torch.") for meaning in meanings):
            self._claim_uncalled()
        elif getattr(self._node.value, "attr", "") == "torch":
            reason = "is reached through another module that imports torch"
            self._list("unfollowed/variable", reason, "torch of this module's own")
        elif any(not m.assigned and m.binding and m.binding.kind is Bound.IMPORT for m in meanings):
            named = any(
                "cuda" in getattr(m.binding.alias, "name", "") for m in meanings if m.binding
            )
            if self._is_of_library() and not named and not isinstance(self._node.ctx, ast.Store):
                reason = "is a library's own name: whether it serves another device cannot be told"
                self._list("leftovers/name", reason, "")
            else:
                self._keep("a name of the module that it is read from")
        elif self._call is None:
            self._claim_uncalled()
        elif self._storage_lambda() is not None:
            self._claim_storage()
        elif self._is_storage() and self._unit.target.method and self._is_index_computed():
            name = self._unit.target.device
            reason = "the index is computed, and may be None"
            self._list("methods/storage", reason, f'"{name}:<index>"')
        elif self._is_storage() and not has_stars(self._called()):
            self._rewrite(self._to_device(), "moves to the device there is")
        elif self._unit.target.method and (
            self._is_of_other_class() or self._unit.is_scripted(self._node)
        ):
            reason = "what a library gives, and TorchScript, may have no method for the device"
            self._rewrite(self._to_device(), reason)
        elif self._unit.target.method:
            # The new method's name serves all: the project's own method is renamed along.
            self._rewrite(
                self._renaming(), f"tensors and modules have .{self._unit.target.method}()"
            )
        else:
            self._claim_call()

    # -- not called

    def _claim_uncalled(self) -> None:
        if not isinstance(self._node.ctx, ast.Load) and self._is_of_library():
            reason = "replaces a method of a library's, which the migrated calls do not call"
            device = self._unit.settings.readable("{device}")
            self._list("methods/replaced", reason, f"the method that moves to {device}")
        elif not isinstance(self._node.ctx, ast.Load):
            self._keep("an attribute of this project's own")
        elif is_own(self._unit, self._node) or self._is_truth_value():
            self._keep("a flag or attribute of this project's own")
        else:
            self._unit.list(
                self._node,
                "methods/cuda-uncalled",
                "the method is passed on, or this is an attribute of another module's",
                replacement="a function that calls .to(device)",
            )

    def _is_of_library(self) -> bool:
        """Whether the attribute is one of a class or module that is imported from outside of the project."""
        own = self._unit.own.modules
        return any(
            not meaning.name.startswith(".") and meaning.name.split(".")[0] not in own | NO_DEVICES
            for meaning in self._scopes.meanings(self._node)
        )

    def _is_index_computed(self) -> bool:
        device = self._device()
        asked = device.func if isinstance(device, ast.Call) else None
        current = asked is not None and self._scopes.name(asked) == "torch.cuda.current_device"
        return device is not None and not isinstance(device, ast.Constant) and not current

    def _is_of_other_class(self) -> bool:
        """Whether the object is what a call of a library other than torch gives, and not a stream or storage."""
        call = self._called()
        plain = not has_stars(call) and not self._unit.own.methods.get("cuda")
        return (
            plain and library_of_object(self._unit, self._node.value) != "" and self._is_droppable()
        )

    def _is_truth_value(self) -> bool:
        parent = self._scopes.parents[self._node]
        if isinstance(parent, ast.If | ast.IfExp | ast.While | ast.Assert):
            return parent.test is self._node
        return isinstance(parent, ast.BoolOp | ast.UnaryOp | ast.Compare)

    # -- called

    def _claim_call(self) -> None:
        own = is_own(self._unit, self._node, called=True)
        if own:
            self._keep("this project's own method")
        elif own is None:
            names = ", ".join(sorted(self._unit.own.methods["cuda"]))
            self._list(
                "methods/cuda-ambiguous",
                f"{names} defines a cuda method, and what this is cannot be told from the source",
                f".to({self._unit.settings.readable('{device}')}) for a tensor or module",
            )
        elif has_stars(self._called()):
            replacement = f".to({self._unit.settings.readable('{device}')})"
            self._list("methods/cuda-star", "the device is inside a * or **", replacement)
        elif self._unit.is_scripted(self._node) and not self._unit.target.device:
            replacement = ".to(device) with the device as an argument"
            self._list("methods/cuda-scripted", SCRIPTED, replacement)
        elif self._unit.target.device and not self._is_droppable():
            self._list(
                "methods/cuda-index",
                f"{self._unit.target.name} has one device, and the index is computed by a call",
                f'.to("{self._unit.target.device}")',
            )
        else:
            other = self._device() if self._unit.target.single else None
            elsewhere = other is not None and not is_constant(other, None) and not _is_first(other)
            reason = (
                "there is one device, number 0" if elsewhere else "moves to the device there is"
            )
            self._rewrite(self._to_device(), reason, differs=elsewhere)

    def _called(self) -> ast.Call:
        assert self._call is not None
        return self._call

    def _device(self) -> ast.expr | None:
        return given_device(self._called())

    def _is_droppable(self) -> bool:
        device = self._device()
        return device is None or not any(
            isinstance(node, ast.Call | ast.Await | ast.NamedExpr | ast.Yield)
            and not (isinstance(node, ast.Call) and self._scopes.name(node.func) == "torch.device")
            for node in ast.walk(device)
        )

    def _renaming(self) -> list[Edit]:
        self._unit.header.need_import_for([self._unit.target.module])
        return [Edit(attribute_span(self._scopes, self._node), self._unit.target.method)]

    def _to_device(self) -> list[Edit]:
        call, device = self._called(), self._device()
        edits = [Edit(attribute_span(self._scopes, self._node), "to")]
        by_name = "device=" if self._is_storage() else ""
        if device is None:
            edits.append(first_edit(self._scopes, call, by_name + self._unit.fill("{device}")))
        else:
            if by_name and device in call.args:
                edits.append(insertion(argument_start(self._scopes, call, device), by_name))
            edits += self._device_edits(call, device)
            if self._unit.target.device and isinstance(device, ast.Call):
                # One edit around that of the call, whose answer goes with it.
                whole = Span(edits[0].span.start, argument_end(self._scopes, call, device))
                edits = [Edit(whole, f"to({by_name}{self._unit.fill('{device}')}")]
        for given, name in zip(call.args[1:], _POSITIONAL[1:], strict=False):
            edits.append(insertion(argument_start(self._scopes, call, given), f"{name}="))
        return edits

    def _device_edits(self, call: ast.Call, device: ast.expr) -> list[Edit]:
        if isinstance(device, ast.Constant) and isinstance(device.value, str):
            return []  # the string is rewritten as every device string is
        scopes = self._scopes
        span = Span(argument_start(scopes, call, device), argument_end(scopes, call, device))
        if self._unit.target.device:
            return [Edit(span, self._unit.fill("{device}"))]
        return wrapped(span, device_function(self._unit, self._node))

    # -- storages, where torch.load moves them

    def _storage_lambda(self) -> ast.Lambda | None:
        """The `lambda storage, location: storage.cuda(0)` of a `torch.load`, whose whole is a device."""
        parent = self._scopes.parents[self._called()]
        if not isinstance(parent, ast.Lambda) or not isinstance(self._node.value, ast.Name):
            return None
        return parent if self._is_storage() and maps_locations(self._scopes, parent) else None

    def _is_storage(self) -> bool:
        """Whether this moves the storage that a function gets from `torch.load`: its `to` takes the device by name."""
        storage = location_mapper(self._scopes, self._node)[0]
        return bool(storage) and getattr(self._node.value, "id", "") == storage

    def _claim_storage(self) -> None:
        function = self._storage_lambda()
        device = self._device()
        assert function is not None
        span = self._scopes.span(function)
        rule = "methods/storage"
        edits = self._storage_edits(function, device)
        if edits:
            reason = "torch.load takes the device itself; storages have no method for every device"
            self._unit.rewrite(self._node, rule, reason, edits, span=span)
        else:
            name = self._unit.target.device
            reason = "the index is computed, and may be None"
            self._unit.list(self._node, rule, reason, span=span, replacement=f'"{name}:<index>"')

    def _storage_edits(self, function: ast.Lambda, device: ast.expr | None) -> list[Edit]:
        """Put the device in the place of the function; what the index is computed from stays in the text."""
        name, span = self._unit.target.device, self._scopes.span(function)
        if not name:
            asking = f"{device_function(self._unit, function)}("
            if device is None:
                return [Edit(span, f"{asking})")]
            index = self._scopes.span(device)
            return [
                Edit(Span(span.start, index.start), asking),
                Edit(Span(index.end, span.end), ")"),
            ]
        if device is None or not self._unit.target.method:
            return [Edit(span, self._unit.fill("{device}"))]
        if isinstance(device, ast.Constant) and isinstance(device.value, int):
            self._unit.header.need_import_for([self._unit.target.module])
            return [Edit(span, f'"{name}:{device.value}"')]
        return []

    # -- claiming

    def _place(self) -> Span:
        """From the dot to the closing bracket."""
        end = self._scopes.span(self._call or self._node).end
        return Span(attribute_span(self._scopes, self._node).start, end)

    def _rewrite(self, edits: list[Edit], reason: str, *, differs: bool = False) -> None:
        place, rule = self._place(), "methods/cuda"
        self._unit.rewrite(self._node, rule, reason, edits, span=place, differs=differs)

    def _list(self, rule: str, reason: str, replacement: str) -> None:
        self._unit.list(self._node, rule, reason, replacement, span=self._place())

    def _keep(self, reason: str) -> None:
        self._unit.keep(self._node, "methods/own", reason)


def _claim_definition(unit: Unit, node: ast.FunctionDef) -> None:
    """A method of the project's own that is called `cuda`: renamed with its calls, or kept with them."""
    is_method = isinstance(unit.scopes.parents[node], ast.ClassDef) and not is_property(node)
    if not is_method or not unit.target.method:
        return
    text, start = unit.scopes.source.text, unit.scopes.span(node).start
    at = text.index("cuda", start)
    span = Span(at, at + len("cuda"))
    edits = [Edit(span, unit.target.method)]
    unit.rewrite(node, "methods/definition", "renamed with every call of it", edits, span=span)


def _is_first(device: ast.expr) -> bool:
    """Whether a device is the first: 0, or a text, which is decided where it stands."""
    return isinstance(device, ast.Constant) and (device.value == 0 or isinstance(device.value, str))


def _is_kept_or_listed(unit: Unit, node: ast.Attribute) -> bool:
    """Claim an attribute that is the project's own, or may be; whether it is claimed."""
    own = is_own(unit, node)
    if own or not isinstance(node.ctx, ast.Load):
        unit.keep(node, "methods/own", "an attribute of this project's own")
    elif own is None:
        reason = "the project defines such an attribute too, and whose this is cannot be told"
        span = attribute_span(unit.scopes, node)
        unit.list(node, "methods/ambiguous", reason, span=span)
    return unit.is_claimed(node)


def _claim_is_cuda(unit: Unit, node: ast.Attribute) -> None:
    if _is_kept_or_listed(unit, node):
        return
    span = attribute_span(unit.scopes, node)
    rule, target = "methods/is-cuda", unit.target
    if unit.scopes.call_of(node) is not None:
        reason = "is called, so it is no tensor's: what a library gives may have no such method"
        unit.list(node, rule, reason, ".device.type", span=span)
        return
    scripted = unit.is_scripted(node)
    if (
        target.is_device
        and not scripted
        and not (isinstance(node.value, ast.Call) and called(node.value) in _STORAGES)
    ):
        unit.header.need_import_for([target.module])
        edits = [Edit(span, target.is_device)]
        unit.rewrite(node, rule, "asks for the target's device", edits, span=span)
    elif unit.is_scripted(node) and not target.device:
        unit.list(node, rule, SCRIPTED, replacement='.device.type != "cpu"', span=span)
    else:
        left, right = _brackets(unit, node)
        edits = [Edit(span, f"device.type == {unit.fill('{type}')}{right}")]
        if left:
            edits.append(insertion(unit.scopes.span(node).start, left))
        unit.rewrite(node, rule, "asks for the accelerator there is", edits, span=span)


def _claim_stream(unit: Unit, node: ast.Attribute) -> None:
    """`torch.cuda.current_stream().cuda_stream`, which libraries for CUDA are given."""
    if _is_kept_or_listed(unit, node):
        return
    reason = "is a handle of CUDA's runtime: streams of another device do not have it, and code for CUDA takes no other"
    row = unit.settings.table.result("torch.cuda.Stream().cuda_stream")
    span = attribute_span(unit.scopes, node)
    unit.list(node, "methods/stream", reason, replacement=row.becomes if row else "", span=span)


def _brackets(unit: Unit, node: ast.AST) -> tuple[str, str]:
    """Brackets around a comparison that takes a plain expression's place, where they are needed."""
    parent = unit.scopes.parents[node]
    loose = (
        ast.If | ast.IfExp | ast.While | ast.Assert | ast.BoolOp | ast.Return | ast.Assign
        | ast.keyword | ast.Expr | ast.AnnAssign | ast.List | ast.Tuple | ast.Dict
    )  # fmt: skip
    negation = isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
    is_argument = isinstance(parent, ast.Call) and node in parent.args
    if isinstance(parent, loose) or negation or is_argument:
        return "", ""
    return "(", ")"


def _claim_type(unit: Unit, node: ast.Attribute) -> None:
    """`x.type(torch.cuda.FloatTensor)`: the device and the dtype in one."""
    call = unit.scopes.call_of(node)
    if call is None or len(call.args) != 1 or call.keywords:
        return
    kind = call.args[0]
    dtype = _dtype(unit, kind)
    if not dtype or _has_tensor_types(unit, dtype):
        return
    entry = _type_row(unit, dtype)
    listed = entry is not None and entry.action is Action.LIST
    edits = [
        Edit(attribute_span(unit.scopes, node), "to"),
        Edit(unit.scopes.span(kind), f"{unit.fill('{device}')}, {unit.fill('torch.' + dtype)}"),
    ]
    place = Span(edits[0].span.start, unit.scopes.span(call).end)
    reason = "device and dtype by their own names"
    if entry is not None and (listed or entry.action is Action.DIFFERS):
        reason = entry.reason
    unit.supersede(
        kind,
        "methods/type",
        reason,
        () if listed else edits,
        span=place,
        replacement=f".to({unit.settings.readable('{device}')}, torch.float32)" if listed else "",
        differs=entry is not None and entry.action is Action.DIFFERS,
    )


def _claim_default_type(unit: Unit, call: ast.Call) -> None:
    """`torch.set_default_tensor_type(torch.cuda.FloatTensor)`."""
    kind = call.args[0] if len(call.args) == 1 else None
    dtype = _dtype(unit, kind)
    if kind is None or not dtype:
        return
    rule = "methods/default-type"
    replacement = (
        f"torch.set_default_device({unit.settings.readable('{device}')}) and"
        f" torch.set_default_dtype(torch.{dtype})"
    )
    if dtype != "float32" or not unit.settings.similar:
        reason = (
            "has no equal: torch.set_default_device leaves torch.Tensor(...) and its kin on the CPU"
        )
        edits = []
    else:
        reason = "risk: similar, not equal; torch.Tensor(...) and its kin stay on the CPU"
        edits = [
            Edit(unit.scopes.span(call.func), unit.fill("torch.set_default_device")),
            Edit(unit.scopes.span(kind), unit.fill("{device}")),
        ]
    span = unit.scopes.span(call)
    unit.supersede(kind, rule, reason, edits, span=span, replacement=replacement)


def _dtype(unit: Unit, kind: ast.AST | None) -> str:
    """The dtype of a CUDA tensor type, given by name or as a string; nothing for anything else."""
    if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
        name = kind.value
    else:
        meanings = unit.scopes.meanings(kind) if kind is not None else ()
        name = next((m.name for m in meanings if not m.assigned), "")
    if not name.startswith(_TYPE_PREFIX):
        return ""
    return _DTYPES.get(name.removeprefix(_TYPE_PREFIX), "")


def _has_tensor_types(unit: Unit, dtype: str) -> bool:
    """Whether the target has tensor types of its own, so that renaming does."""
    entry = _type_row(unit, dtype)
    return entry is not None and entry.action is Action.RENAME and "{module}" in entry.becomes


def _type_row(unit: Unit, dtype: str) -> Entry | None:
    """The row for the CUDA tensor type of a dtype."""
    name = next(name for name, known in _DTYPES.items() if known == dtype)
    return unit.settings.table.lookup(_TYPE_PREFIX + name)
