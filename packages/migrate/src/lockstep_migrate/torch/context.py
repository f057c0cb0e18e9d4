"""Tell the use of a string by its place."""

from __future__ import annotations

import ast
import enum
import re
from functools import lru_cache

from lockstep.plugin import devices
from lockstep_migrate.engine.arguments import called
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.name_lists import listed_names

_LOOKUPS = frozenset({"get", "pop", "setdefault", "getattr", "hasattr", "setattr", "delattr"})
BY_NAME = listed_names("by name")
_TESTS = listed_names("tests")
_TELLING = listed_names("telling")
_AMP = listed_names("amp")
_KINDS = frozenset({"device_type", "device_types", "choices"})
_REGISTERING = listed_names("registering")
_NAMING = listed_names("naming")
_OTHER_BACKENDS = frozenset({"gloo", "mpi", "ucc"})
_COLUMNS = listed_names("columns")
_FIELDS = frozenset({"__slots__", "__match_args__", "__all__", "_fields"})
_DECLARING = listed_names("declaring")
_PLACES = listed_names("places")
DEVICE_KEY = "a key that may be a device type: rename it together with its look-ups"
_READING = listed_names("reading")
_OTHERS_TABLES = ("sys.modules", "os.environ")
"""What is a key of these is no device."""
TENSOR_TYPE = re.compile(r"torch\.cuda\.(?:sparse\.)?\w+Tensor\Z")
OTHER_DEVICES = frozenset({"gpu", *(one.name for one in devices() if one.name != "cuda")})


class Use(enum.Enum):
    """The use of a string."""

    VALUE = "names the device to place something on"
    TEST = "is compared with, or offered as a choice"
    KEY = "is a key of the project's own"
    STORED = (
        "names where tensors lay when the file was saved: a file from CUDA has this name,"
        " one that the migrated script saves has the new device's"
    )
    READ = (
        "is compared with what a file says: a file from CUDA has this name,"
        " one that the migrated script writes has the new device's"
    )
    DEVICE_KEY = "is a key that may be a device type"
    PATTERN = "is a pattern of a match statement"
    LENGTH = "is compared with a part of a string that is as long as the old name"
    ANNOTATION = "is part of an annotation"
    ELSE = "is no device, as far as can be told from where it stands"
    TEXT = "is text for people"


def use_of(scopes: ModuleScopes, node: ast.AST) -> Use:
    """Return the use of a string."""
    parent = scopes.parents[node]
    if isinstance(parent, ast.Compare):
        both = [parent.left, *parent.comparators]
        if isinstance(parent.ops[0], ast.In | ast.NotIn) and _is_key_of(scopes, node, both[-1]):
            return Use.KEY
        if any(
            scopes.name(one) in _OTHERS_TABLES
            or getattr(one, "attr", "") in ("modules", "environ", "keywords")
            for one in both
        ):
            return Use.KEY
        sliced = any(
            isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Slice) for one in both
        )
        return Use.LENGTH if sliced else _use_in_test(scopes, parent)
    if isinstance(parent, ast.MatchValue) or (
        isinstance(parent, ast.Match) and parent.subject is node
    ):
        return Use.PATTERN
    if isinstance(parent, ast.arg) or node in (
        getattr(parent, "annotation", None),
        getattr(parent, "returns", None),
    ):
        return Use.ANNOTATION
    if isinstance(parent, ast.BinOp) and (
        parent.right is node or isinstance(parent.op, ast.Div | ast.Mult)
    ):
        return Use.ELSE
    if isinstance(parent, ast.Attribute) and parent.attr != "format":
        return Use.ELSE
    if isinstance(parent, ast.Subscript) and _is_beside_other_key(scopes, parent):
        return Use.DEVICE_KEY
    if isinstance(parent, ast.Subscript):
        return Use.ANNOTATION if _is_literal_type(scopes, parent) else Use.KEY
    if isinstance(parent, ast.Dict):
        return _use_in_dict(scopes, parent, node)
    if isinstance(parent, ast.Tuple | ast.List | ast.Set):
        return _use_in_sequence(scopes, parent, node)
    if isinstance(parent, ast.Call):
        return _use_in_call(scopes, parent, node)
    if isinstance(parent, ast.keyword):
        return _use_as_keyword(scopes, parent)
    if isinstance(parent, ast.IfExp | ast.BoolOp | ast.Starred) and not (
        isinstance(parent, ast.IfExp) and parent.test is node
    ):
        return use_of(scopes, parent)
    if isinstance(parent, ast.FormattedValue):
        whole = scopes.parents[parent]
        parts = whole.values if isinstance(whole, ast.JoinedStr) else []
        around = "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
        use = use_of(scopes, whole)
        return use if use is Use.TEXT or re.fullmatch(r"[:\d]*", around) else Use.ELSE
    if isinstance(parent, ast.Raise | ast.Assert):
        return Use.TEXT
    if _is_named_type(scopes, parent, node) or _is_compared_constant(scopes, parent):
        return Use.TEST
    return Use.KEY if _declares_fields(parent) else Use.VALUE


def _is_key_of(scopes: ModuleScopes, text: ast.AST, table: ast.expr) -> bool:
    """Whether something is looked up by a text in what the text is sought in: `"cuda" in state`, `state["cuda"]`."""
    of, key = scopes.text(table), getattr(text, "value", None)
    return text is not table and any(
        isinstance(entry.slice, ast.Constant)
        and entry.slice.value == key
        and scopes.text(entry.value) == of
        for entry in scopes.of(ast.Subscript)
    )


def _is_beside_other_key(scopes: ModuleScopes, entry: ast.Subscript) -> bool:
    """Whether something is put under a key, and under another device beside it: `sizes["cuda"]`, `sizes["cpu"]`."""
    if not isinstance(entry.ctx, ast.Store):
        return False
    of = scopes.text(entry.value)
    return any(
        isinstance(other.ctx, ast.Store)
        and isinstance(other.slice, ast.Constant)
        and other.slice.value in OTHER_DEVICES
        and scopes.text(other.value) == of
        for other in scopes.of(ast.Subscript)
    )


def _declares_fields(parent: ast.AST) -> bool:
    """Whether an assignment names the fields of a class."""
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return any(getattr(target, "id", "") in _FIELDS for target in targets)


def _is_compared_constant(scopes: ModuleScopes, parent: ast.AST) -> bool:
    """Whether a constant is one of several that stand for devices, or is compared by its name with something else.

    Such a name stands for a type of device, also where there is no such device: `CUDA = "cuda"` beside `CPU = "cpu"`,
    a member of an Enum, `device == CUDA`.
    """
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return False
    target = parent.targets[0]
    if not isinstance(target, ast.Name) or not target.id.isupper():
        return False
    block = getattr(scopes.parents[parent], "body", [])
    beside = isinstance(block, list) and any(_is_other_constant(other, parent) for other in block)
    return beside or any(
        isinstance(one, ast.Name) and one.id == target.id
        for compare in scopes.of(ast.Compare)
        if not any(_is_text(side) for side in (compare.left, *compare.comparators))
        for one in (compare.left, *compare.comparators)
    )


def _is_other_constant(other: ast.AST, parent: ast.Assign) -> bool:
    """Whether a statement makes another device or backend a constant, under a name of its own."""
    return (
        isinstance(other, ast.Assign)
        and other is not parent
        and isinstance(other.value, ast.Constant)
        and other.value.value in OTHER_DEVICES | _OTHER_BACKENDS
        and ast.dump(other.targets[0]) != ast.dump(parent.targets[0])
        and isinstance(other.targets[0], ast.Name)
        and other.targets[0].id.lower().endswith(str(other.value.value))
    )


def _is_named_type(scopes: ModuleScopes, parent: ast.AST, node: ast.AST) -> bool:
    """Whether the string goes into something that is called `device_type`: a type, not a place."""
    if isinstance(parent, ast.Assign | ast.AnnAssign):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        return any(_last_name(target) == "device_type" for target in targets)
    if isinstance(parent, ast.arguments):
        return parameter_of(parent, node) == "device_type"
    return False


def parameter_of(arguments: ast.arguments, default: ast.AST) -> str:
    """Return the name of the parameter that has a default; empty if it is none of these."""
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((parameter.arg for parameter, given in pairs if given is default), "")


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript):
        return node.slice.value if _is_text(node.slice) else ""  # type: ignore[attr-defined]
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_literal_type(scopes: ModuleScopes, node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and scopes.text(node.value).endswith("Literal")


def _use_in_dict(scopes: ModuleScopes, parent: ast.Dict, node: ast.AST) -> Use:
    if node not in parent.keys:
        pairs = zip(parent.keys, parent.values, strict=True)
        keys = [key for key, value in pairs if value is node and isinstance(key, ast.Constant)]
        is_type = any(key.value == "device_type" for key in keys)
        return Use.TEST if is_type else Use.VALUE
    above = scopes.parents[parent]
    if isinstance(above, ast.Subscript) and above.value is parent:
        return Use.TEST  # the look-up stands beside it
    if TENSOR_TYPE.match(str(getattr(node, "value", ""))):
        return Use.DEVICE_KEY
    if maps_locations(scopes, parent):
        return Use.STORED
    return Use.DEVICE_KEY if _names_other_device(parent) else Use.KEY


def maps_locations(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether an expression is what `torch.load` maps places by, at once or through a variable."""
    parent = scopes.parents[node]
    if isinstance(parent, ast.keyword):
        return parent.arg == "map_location"
    if isinstance(parent, ast.Call):
        if scopes.name(parent.func) == "torch.serialization.register_package":
            return parent.args[2:3] == [node]
        return scopes.name(parent.func) == "torch.load" and parent.args[1:2] == [node]
    if isinstance(node, ast.FunctionDef):
        name, scope = node.name, scopes.scope(node)
    elif not isinstance(node, ast.Dict | ast.Lambda):
        return False
    elif isinstance(parent, ast.arguments):
        function = scopes.parents[parent]
        first = function.body[0] if isinstance(function, ast.FunctionDef) else node
        name, scope = parameter_of(parent, node), scopes.scope(first)
    else:
        target = parent.targets[0] if isinstance(parent, ast.Assign) else None
        name, scope = getattr(target, "id", ""), scopes.scope(parent)
    bindings = scopes.bindings(name, scope)
    uses = (use for binding in bindings for use in scopes.uses(binding))
    return any(maps_locations(scopes, use) for use in uses)


def location_mapper(scopes: ModuleScopes, node: ast.AST) -> tuple[str, str]:
    """Return the names of storage and location in the function around a node that `torch.load` maps places by.

    Both are empty if there is no such function. The location is a name that stands in the file.
    """
    for above in scopes.ancestors(node):
        if isinstance(above, ast.Lambda | ast.FunctionDef):
            names = [one.arg for one in (*above.args.posonlyargs, *above.args.args)]
            if len(names) == 2 and maps_locations(scopes, above):
                return names[0], names[1]
    return "", ""


def _use_in_test(scopes: ModuleScopes, test: ast.AST) -> Use:
    """The use of a string in a comparison: what a file says of its tensors stays what it was."""
    location = location_mapper(scopes, test)[1]
    if location and any(getattr(one, "id", "") == location for one in ast.walk(test)):
        return Use.STORED
    sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) else [test]
    return Use.READ if any(_is_read_from_file(scopes, side) for side in sides) else Use.TEST


def _is_read_from_file(scopes: ModuleScopes, node: ast.AST, steps: int = 3) -> bool:
    """Whether an expression is an entry of what was read from a file: `checkpoint["device"]`, `saved.get("device")`."""
    inner = False
    if getattr(node, "attr", "") == "type":
        return False  # a tensor of the file says where it is now
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        if isinstance(node, ast.Call) and called(node) in _READING:
            return inner
        inner = inner or isinstance(node, ast.Subscript | ast.Call)
        node = node.func if isinstance(node, ast.Call) else node.value
    bindings = scopes.bindings(node.id, scopes.scope(node)) if isinstance(node, ast.Name) else ()
    values = [one.value for one in bindings if isinstance(one.value, ast.Call | ast.Subscript)]
    whole = any(isinstance(one, ast.Call) and called(one) in _READING for one in values)
    further = values if steps else ()
    return inner and (whole or any(_is_read_from_file(scopes, one, steps - 1) for one in further))


def _use_in_sequence(
    scopes: ModuleScopes, parent: ast.Tuple | ast.List | ast.Set, node: ast.AST
) -> Use:
    above = scopes.parents[parent]
    if _is_declared(scopes, parent):
        return Use.KEY
    if isinstance(above, ast.Subscript) and above.slice is parent:
        if isinstance(above.ctx, ast.Store):
            return Use.DEVICE_KEY
        return Use.ANNOTATION if _is_literal_type(scopes, above) else Use.KEY
    if isinstance(above, ast.Dict) and parent in above.keys:
        return Use.DEVICE_KEY
    if isinstance(above, ast.Compare):
        return _use_in_test(scopes, above)
    if isinstance(above, ast.keyword) and (above.arg in _KINDS or _is_for_types(scopes, above)):
        return Use.TEST
    if isinstance(above, ast.Call) and called(above) in _TESTS:
        return Use.TEST
    return Use.TEST if _names_other_device(parent) else Use.VALUE


def _is_for_types(scopes: ModuleScopes, given: ast.keyword) -> bool:
    """Whether a parameter of a function here takes types, as its default shows: `devices=("cpu", "cuda")`."""
    call = scopes.parents[given]
    function = call.func if isinstance(call, ast.Call) else None
    bindings = (
        scopes.bindings(function.id, scopes.scope(function))
        if isinstance(function, ast.Name)
        else ()
    )
    return any(
        isinstance(default, ast.Tuple | ast.List | ast.Set)
        and parameter_of(one.node.args, default) == given.arg
        and _names_other_device(default)
        for one in bindings
        if isinstance(one.node, ast.FunctionDef)
        for default in (*one.node.args.defaults, *one.node.args.kw_defaults)
    )


def _use_in_call(scopes: ModuleScopes, parent: ast.Call, node: ast.AST) -> Use:
    if scopes.name(parent.func) in _AMP:
        return Use.TEST
    if isinstance(scopes.parents[parent], ast.Raise):
        return Use.TEXT
    if scopes.name(parent.func) == "torch.device":
        return Use.TEST if use_of(scopes, parent) is Use.TEST else Use.VALUE
    function = called(parent)
    if node is parent.func or node not in parent.args:
        return Use.VALUE
    if function in _DECLARING:
        return Use.KEY
    if function in _PLACES and not scopes.name(parent.func).startswith("torch."):
        return Use.ELSE
    place = parent.args.index(node)
    if function in _LOOKUPS and isinstance(parent.func, ast.Attribute) and place == 0:
        return Use.KEY
    if function in BY_NAME:
        return Use.KEY
    if function in _LOOKUPS and isinstance(parent.func, ast.Name) and place == 1:
        return Use.KEY
    if function == "add_argument":
        return Use.KEY
    if function in _TESTS:
        return _use_in_test(scopes, parent)
    if function in _REGISTERING:
        return Use.TEST
    return Use.TEXT if function in _TELLING else Use.VALUE


def _use_as_keyword(scopes: ModuleScopes, parent: ast.keyword) -> Use:
    call = scopes.parents[parent]
    if isinstance(call, ast.ClassDef):
        return Use.DEVICE_KEY  # class Card(Backend, kind="cuda"), which registers itself by it
    if isinstance(call, ast.Call) and scopes.name(call.func) in _AMP:
        return Use.TEST
    if parent.arg in ("help", "description", "msg", "reason", "dest", "metavar"):
        return Use.TEXT
    if parent.arg in _KINDS:
        return Use.TEST
    of_torch = isinstance(call, ast.Call) and scopes.name(call.func).startswith("torch.")
    return Use.KEY if parent.arg in _NAMING | _COLUMNS and not of_torch else Use.VALUE


def _is_declared(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether a sequence names fields of a class, a table or a dictionary."""
    above = scopes.parents[node]
    while isinstance(above, ast.Tuple | ast.List):
        node, above = above, scopes.parents[above]
    if isinstance(above, ast.keyword):
        return above.arg in _COLUMNS
    if isinstance(above, ast.Call):
        return called(above) in _DECLARING
    return _declares_fields(above)


def is_device_key(scopes: ModuleScopes, node: ast.keyword) -> bool:
    """Whether a keyword is a key beside another device's: `dict(cuda="nccl", cpu="gloo")`."""
    call = scopes.parents[node]
    if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "dict":
        return False
    return node.arg == "cuda" and any(other.arg in OTHER_DEVICES for other in call.keywords)


@lru_cache(maxsize=8)
def _names_other_device(parent: ast.Dict | ast.Tuple | ast.List | ast.Set) -> bool:
    """Whether one of a literal's strings is another device; asked for each of its strings, so remembered."""
    nodes = parent.keys if isinstance(parent, ast.Dict) else parent.elts
    return any(isinstance(node, ast.Constant) and node.value in OTHER_DEVICES for node in nodes)
