"""Double precision, which Apple's GPU does not have: which dtypes, conversions and arrays may come to the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from lockstep_migrate.engine.arguments import argument, called, keyword
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import assigned_to, siblings
from lockstep_migrate.engine.tree import is_own_attribute
from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.torch.table import Entry
from lockstep_migrate.torch.takers import called_names
from lockstep_migrate.torch.unit import Unit

_DOUBLES = re.compile(
    r"float64|\.astype\((?:float|['\"](?:double|float|f8)['\"])\)"
    r"|\bimread\((?!.*(?:astype|dtype|float32)).*/\s*\d"
    r"|\.step\("  # the rewards of an environment
    r"|\.numpy\(\).*[<>=].*\)\.(?:mean|std)\("  # of what is true
    r"|\b(?:np|numpy)\.(?:zeros|ones|empty|linspace|eye|identity|full|loadtxt|genfromtxt|"
    r"hanning|hamming|blackman|bartlett|kaiser|logspace|geomspace|"
    r"random\.(?:rand|randn|random|uniform|normal|standard_normal))\((?!.*dtype)"
    r"|\b(?:np|numpy)\.(?:as)?array\((?=[^a-zA-Z]*\d\.|\s*[a-zA-Z_]\w*(?:\.\w+)*\s*\))(?!.*dtype)"
    r"|\b(?:np|numpy)\.arange\([^)]*(?:\d\.|\)\s*/)",
    re.DOTALL,
)
_TABLE = re.compile(r"\.values\b(?!\()|\.to_numpy\(")
"""The numbers of a table, which are of double precision unless that is chosen."""
_IN_DOUBLES = listed_names("in doubles")
_WHOLE_RESULTS = re.compile(r"predict\w*|labels?|fit_predict|score|inverse_transform")
_MOVING = frozenset({"to", "cuda"})
_CHOSEN = re.compile(
    r"dtype|astype\(|float(?:16|32)|int\d*\b|bool|\b(?:im)?read\w*\(|label|index|indices|mask|token|\bids?\b|arg(?:max|min|sort|where)"
    r"|permutation|choice|nonzero|return_distance=False|arange\([^./]*\)\Z|\.shape|len\("
)
"""What says of an array that it is none of double precision."""
_KEEPING = listed_names("keeping")
_NAMED = listed_names("named")
_DOUBLE_NAME = re.compile(r"float64|double|\bf8\b|\((?:dtype=)?float[),]|\bd\b")
_BESIDE_NUMBERS = listed_names("beside numbers")
_ARRAYS = re.compile(r"\b(?:numpy|pandas|scipy|sklearn)\b")
_OF_NUMPY = re.compile(r"\b(?:np|numpy)\.")
_SINGLE = re.compile(r"dtype|float(?:16|32)|half|single")
_WHOLE = re.compile(r"[\w.]+\([\s\d,\[\]()-]*\)")
"""An array of whole numbers: `np.array([1, 2])`."""
_STEPS = 6
_DATA_SET = "torch.utils.data.TensorDataset"
_PLACED_BY = listed_names("placed by")
_HELD_BY = listed_names("held by")
_MOVES = re.compile(r"\.(?:to|cuda)\([^()]*\)?")
_ON_CPU = frozenset({"cpu", "numpy"})
_PLAIN = frozenset({"item", "tolist"})
_PLACES = re.compile(r"device|cuda|\.to\(")
_CONVERSIONS = frozenset({"to", "type", "astype"})
_ASKING = listed_names("asking")
_CONVERTED_FIRST = re.compile(
    r"\.(?:float|half|bfloat16)\(\)\.(?:to|cuda)\(|\.to\([^()]*(?:float32|dtype=)"
)
"""A tensor that is moved is converted before, or on the way."""
_CONVERTING = re.compile(
    r"\.(?:float|half|bfloat16|long|int|bool|type)\(|dtype|torch\.(?:float|half|bfloat|int|long)"
)


def converts_first(text: str) -> bool:
    """Whether a module chooses a precision as it moves a tensor, or before."""
    return _CONVERTED_FIRST.search(text) is not None


def may_return_doubles(text: str) -> bool:
    """Whether a module may hold a data set of arrays."""
    return "__getitem__" in text and _ARRAYS.search(text) is not None


def holds_doubles(unit: Unit, entry: Entry, call: ast.Call | None) -> bool:
    """Whether a call makes a tensor of NumPy's double precision that is moved at once, and nothing converts it.

    With `given` in the row an array that the function is given counts too: NumPy's precision is double unless chosen.
    """
    if call is None or not call.args or keyword(call, "dtype"):
        return False
    placed = keyword(call, "device") is not None  # at once: what converts it comes too late
    moved = placed or (_is_moved(unit, call) and not _converts(unit, call))
    unless_chosen = "given" in entry.arguments
    return moved and _may_be_double(unit, call.args[0], unless_chosen=unless_chosen)


def _may_be_double(unit: Unit, node: ast.AST, *, unless_chosen: bool, steps: int = _STEPS) -> bool:
    """Whether an expression is an array of double precision.

    `unless_chosen`: NumPy's arrays of which nothing tells the precision count, too.
    """
    text = unit.text(node)
    if isinstance(node, ast.Call) and called(node) in _NAMED:
        chosen = text[len(unit.text(node.func)) :] if called(node) == "astype" else called(node)
        return _DOUBLE_NAME.search(chosen) is not None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _OF_NUMPY.search(text):
        return not _SINGLE.search(text)  # also of whole numbers
    if isinstance(node, ast.Call) and _computes_in_doubles(unit, node):
        return _CHOSEN.search(re.sub(r"\bread\w*\(", "(", text)) is None
    if _DOUBLES.search(text) or _CHOSEN.search(text) or not steps:
        return _DOUBLES.search(text) is not None
    if _TABLE.search(text):
        return True
    inner: list[ast.AST] = []
    if isinstance(node, ast.Name):
        inner = _latest(unit, node, _given_to(unit, node))
        texts = [
            unit.text(one)
            for one in inner
            if isinstance(one, ast.expr)
            and not (isinstance(one, ast.Call) and _computes_in_doubles(unit, one))
        ]
        if any(_CHOSEN.search(one) and not _DOUBLES.search(one) for one in texts):
            return False
    elif is_own_attribute(node):
        inner = [*assigned_to(unit.scopes, node)]
    elif isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        inner = [node.value] if not _is_later_result(node) else []
    elif isinstance(node, ast.BinOp):
        inner = [node.left, node.right]
        if unless_chosen and isinstance(node.op, ast.Div):
            return True
    elif isinstance(node, ast.arg):
        return unless_chosen
    elif isinstance(node, ast.Call) and (given := _returned(unit, node)):
        inner = given
    elif isinstance(node, ast.Call):
        name = unit.scopes.name(node.func)
        if isinstance(node.func, ast.Attribute) and not name and called(node) in _KEEPING:
            inner = [node.func.value]
        elif not name or (name.startswith("numpy.") and not _WHOLE.fullmatch(text)):
            inner = [*node.args]
            if unless_chosen:
                return True
        elif name in ("enumerate", "zip", "reversed", "list"):
            inner = [*node.args]
    return any(
        _may_be_double(unit, one, unless_chosen=unless_chosen, steps=steps - 1) for one in inner
    )


def double_items(unit: Unit) -> Iterator[ast.expr]:
    """What the data sets of a module return in double precision: a loader makes tensors of it as they are."""
    for function in unit.scopes.of(ast.FunctionDef) if unit.own.moves_as_is else ():
        for part in ast.walk(function) if function.name == "__getitem__" else ():
            given = part.value if isinstance(part, ast.Return) else None
            for one in getattr(given, "elts", [given]):
                whole = one.value if isinstance(one, ast.Subscript) else one
                of_torch = isinstance(whole, ast.Call) and unit.scopes.name(whole.func)
                if whole and not of_torch and _may_be_double(unit, whole, unless_chosen=False):
                    yield one


def _computes_in_doubles(unit: Unit, call: ast.Call) -> bool:
    """Whether a call is one of a library's that returns numbers in double precision, such as a scaler's."""
    roots = {name.split(".")[0] for name in called_names(unit, call.func)}
    return bool(roots & _IN_DOUBLES) and not _WHOLE_RESULTS.fullmatch(called(call))


def _given_to(unit: Unit, name: ast.Name) -> list[ast.AST]:
    """What a variable is given: values, what a loop over it runs over, or the parameter that it is."""
    found: list[ast.AST] = []
    for binding in unit.scopes.bindings(name.id, unit.scopes.scope(name)):
        source = binding.value or unit.scopes.statement(binding.node)
        if isinstance(binding.node, ast.arg):
            found.append(binding.node)
        elif _is_beside_numbers(unit, binding.node, source):
            continue
        elif isinstance(source, ast.For | ast.Assign):
            found.append(source.iter if isinstance(source, ast.For) else source.value)
        elif isinstance(source, ast.expr):
            found.append(source)
    return found


def _latest(unit: Unit, name: ast.Name, given: list[ast.AST]) -> list[ast.AST]:
    """What a variable was given last in the block that reads it, where that says it alone: else everything."""
    block = siblings(unit.scopes, unit.scopes.statement(name))
    start = unit.scopes.span(name).start
    here = [
        one
        for one in given
        if isinstance(one, ast.expr)
        and isinstance(unit.scopes.statement(one), ast.Assign)
        and unit.scopes.statement(one) in block
        and unit.scopes.span(unit.scopes.statement(one)).end < start
    ]
    return [max(here, key=lambda one: unit.scopes.span(one).start)] if here else given


def _is_beside_numbers(unit: Unit, name: ast.AST, source: ast.AST) -> bool:
    """Whether a variable takes a later result of a search: `distances, indices = tree.query(points)`."""
    results = getattr(unit.scopes.parents[name], "elts", [])
    value = source.value if isinstance(source, ast.Assign) else source
    return name in results[1:] and isinstance(value, ast.Call) and called(value) in _BESIDE_NUMBERS


def _is_later_result(node: ast.AST) -> bool:
    """Whether a later result of a search is asked for: `tree.query(points)[1]`."""
    call = node.value if isinstance(node, ast.Subscript) else None
    at = getattr(node.slice, "value", 0) if isinstance(node, ast.Subscript) else 0
    return isinstance(call, ast.Call) and called(call) in _BESIDE_NUMBERS and at != 0


def _returned(unit: Unit, call: ast.Call) -> list[ast.AST]:
    """What a function of the module returns that a call calls, each of several values by itself."""
    if not isinstance(call.func, ast.Name):
        return []
    functions = [
        one.node for one in unit.scopes.bindings(call.func.id, unit.scopes.scope(call.func))
    ]
    returns = [
        part.value
        for one in functions
        if isinstance(one, ast.FunctionDef)
        for part in ast.walk(one)
        if isinstance(part, ast.Return) and part.value is not None
    ]
    return [part for one in returns for part in getattr(one, "elts", [one])]


def _chain(unit: Unit, node: ast.AST) -> ast.AST:
    """The whole chain of attributes and calls that begins with a node: `x.to(d).view(3)` of `x`."""
    while isinstance(above := unit.scopes.parents[node], ast.Attribute | ast.Call):
        if isinstance(above, ast.Call) and above.func is not node:
            break
        node = above
    return node


def _converts(unit: Unit, node: ast.AST) -> bool:
    """Whether the chain behind a node chooses a precision before it moves anything."""
    behind = unit.text(_chain(unit, node))[len(unit.text(node)) :]
    moves = (one for one in _MOVES.finditer(behind) if not _CONVERTING.search(one[0]))
    moved = next(moves, None)
    return _CONVERTING.search(behind, 0, moved.start() if moved else len(behind)) is not None


def _is_moved(unit: Unit, node: ast.AST, steps: int = 1) -> bool:
    """Whether a tensor is moved at once, given to a function of the project's, or a variable's that is moved."""
    whole = _chain(unit, node)
    inner = whole
    while inner is not node and isinstance(inner, ast.Attribute | ast.Call):
        if isinstance(inner, ast.Attribute) and inner.attr in _MOVING:
            return True
        inner = inner.value if isinstance(inner, ast.Attribute) else inner.func
    parent = unit.scopes.parents[whole]
    while isinstance(parent, ast.Tuple | ast.List | ast.Dict):
        parent = unit.scopes.parents[parent]
    if isinstance(parent, ast.Return | ast.Yield):
        around = (one for one in unit.scopes.ancestors(parent) if isinstance(one, ast.FunctionDef))
        name = getattr(next(around, None), "name", "")
        return "getitem" in name or "collate" in name
    if isinstance(parent, ast.Call):
        name = unit.scopes.name(parent.func)
        if called(parent) in _HELD_BY:
            return _places_anything(unit.scopes)
        return name == _DATA_SET or (called(parent) in _PLACED_BY and not name)
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    if not isinstance(target, ast.Name) or not steps:
        return False
    bindings = unit.scopes.bindings(target.id, unit.scopes.scope(target))
    uses = [use for one in bindings for use in unit.scopes.uses(one) if use is not target]
    converted = any(_converts(unit, use) and _gives(unit, use, target.id) for use in uses)
    return not converted and any(_is_moved(unit, use, steps - 1) for use in uses)


def _gives(unit: Unit, use: ast.AST, name: str) -> bool:
    """Whether a statement gives a variable what it makes of it: `x = x.float()`."""
    statement = unit.scopes.statement(use)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(getattr(one, "id", "") == name for one in targets)


def reaches_no_device(unit: Unit, entry: Entry, node: ast.AST) -> bool:
    """Whether a row speaks of values on the device alone, and a dtype or conversion is none of them."""
    if "beside" in entry.arguments and not _places_anything(unit.scopes):
        return True
    return "placed" in entry.arguments and _stays_away(unit, node)


def _stays_away(unit: Unit, node: ast.AST) -> bool:
    """Whether a dtype or a conversion never reaches the device.

    It is compared, asked about, of a value on the CPU, or in a test without a device.
    """
    test = unit.test_around(node)
    if test is not None and not _PLACES.search(unit.text(test)):
        return True
    whole = unit.scopes.call_of(node) or node
    chain: ast.AST = node
    while isinstance(chain, ast.Attribute | ast.Call):
        if isinstance(chain, ast.Attribute) and chain.attr in _ON_CPU | _PLAIN:
            return True
        chain = chain.func if isinstance(chain, ast.Call) else chain.value
    first = whole.args[0] if isinstance(whole, ast.Call) and whole.args else None
    if isinstance(first, ast.Call) and called(first) == "cpu":
        return True
    below, converted = whole, whole is not node
    for above in unit.scopes.ancestors(whole):
        if isinstance(above, ast.IfExp) and unit.text(node) in unit.text(above.test):
            return True  # double precision where that is asked for
        if isinstance(above, ast.Compare | ast.stmt | ast.comprehension):
            return isinstance(above, ast.Compare)
        if isinstance(above, ast.Dict):
            return "device" not in (getattr(key, "value", None) for key in above.keys)
        if isinstance(above, ast.Attribute) and above.attr in _ON_CPU | _PLAIN:
            return not converted  # x.double().cpu() is converted where it is
        if isinstance(above, ast.Call) and below is not above.func:
            device = argument(above, "device")
            if called(above) in _ASKING or _is_cpu(unit.scopes, device):
                return True
            if device is not None:
                return False
            converted = called(above) in _CONVERSIONS
        below = above
    return False


def _is_cpu(scopes: ModuleScopes, device: ast.expr | None) -> bool:
    if isinstance(device, ast.Call) and scopes.name(device.func) == "torch.device" and device.args:
        device = device.args[0]
    return isinstance(device, ast.Constant) and device.value == "cpu"


@lru_cache(maxsize=1)
def _places_anything(scopes: ModuleScopes) -> bool:
    """Whether a module places tensors somewhere: `device=`, `.to(device)`, `.cuda()`."""
    return any(_places(scopes, call) for call in scopes.of(ast.Call))


def _places(scopes: ModuleScopes, call: ast.Call) -> bool:
    name = called(call)
    if name in ("cuda", "set_default_device"):
        return True
    given = argument(call, "device", 0 if name == "to" else None)
    if given is None or _is_cpu(scopes, given):
        return False
    of_torch = scopes.name(given).startswith("torch.")  # x.to(torch.float16)
    return not of_torch and "dtype" not in scopes.text(given)
