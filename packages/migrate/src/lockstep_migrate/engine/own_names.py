"""The names that a project defines itself, so that no rule takes them for the device's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

from lockstep_migrate.engine.tree import parts_of

_FLAG = re.compile(r"--?(?P<name>\w[\w-]*)\Z")
_WATCHED = frozenset({"cuda", "cuda_stream", "is_cuda", "double", "record_stream"})
_WATCHED_PACKAGES = frozenset({"torch", "apex"})
_PROPERTIES = frozenset({"property", "cached_property", "setter", "getter", "deleter"})
_DEVICE_WORD = re.compile(r"cuda|nccl|cudnn|cublas|nvtx|nvml|nvidia|gpu", re.IGNORECASE)
_DEVICE_TEXT = re.compile(r"cuda(?::\d+)?\Z")
_ASKING = frozenset({"startswith", "endswith", "find", "count", "partition", "split"})
_DEVICE_LIKE = re.compile(
    r"(?:^|_)(?:device|dev|kind|place|accel\w*)(?:_|\Z)|\Atype\Z", re.IGNORECASE
)
"""What projects call the name of a device."""
_GPU = re.compile(r"/?gpu(?::\d+)?\Z", re.IGNORECASE)
_HOLDING = (ast.Tuple, ast.List, ast.Set, ast.IfExp, ast.BoolOp, ast.Starred)
_NOWHERE = PurePosixPath("module.py")
_OWNERS = ("fields", "methods")
"""Which names of what is defined are each given with the classes that define them."""


@dataclass(frozen=True, slots=True)
class OwnNames:
    """Names with the old device's words in them that a project defines itself.

    methods: Methods by name, each with the classes that define it: `{"cuda": {"Batch"}}`.
    attributes: Attributes, flags, fields and dictionary keys: `--cuda` gives `cuda`.
    exports: What the project's modules import at their top, by dotted name: `{"utils.autocast":
        "torch.cuda.amp.autocast"}`.
    chooses_cards: Whether the project chooses its devices by the environment: they must not be asked for earlier.
    forks: Whether the project copies its process: the devices must not be asked for before.
    compiled: The functions and classes that the project compiles as a whole, and those that they call.
    imported: The modules that files of the project import, by their last names.
    falls_back: Whether the project itself tests at once that a device is CUDA's and whether CUDA is there, and then
        goes on.
    looks_up: Whether the project looks something up by the key `"cuda"`.
    modules: The files and folders of the project that can be imported, by their last names.
    configured: Settings that a file of the project gives the old device, each with that file: `{"device":
        "train.yaml"}`.
    fields: Attributes by name, each with the classes that give them: `{"is_cuda": {"Batch"}}`.
    given: Every name with a word of the device in it that the project gives something: variables, attributes, keys,
        flags.
    keys: Keys with a word of the device in them that the project puts something under.
    asked: Keys and attributes with a word of the device in them that the project asks for.
    carriers: Attributes and flags that are given the device's name as a text: `--mover`, `default="cuda"`.
    device_modules: Variables and attributes that stand for the device's module: `self.lib = torch.cuda`.
    asks_for_gpu: Whether the project compares something with the word `"gpu"`, or looks something up by it.
    reads_names: Whether the project reads how classes are called: `cls.__name__`.
    gpu_words: Texts such as `"MULTI_GPU"` that the project gives something, or puts something under.
    moves_as_is: Whether the project names a device, and nowhere chooses a precision as it moves a tensor there.
    requested: What modules of the project import from other ones of its own: `utils.autocast`, by the module's last
        name.
    """

    methods: Mapping[str, frozenset[str]] = field(default_factory=dict)
    attributes: frozenset[str] = frozenset()
    exports: Mapping[str, str] = field(default_factory=dict)
    chooses_cards: bool = False
    falls_back: bool = False
    looks_up: bool = False
    requested: frozenset[str] = frozenset()
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    configured: Mapping[str, str] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()
    forks: bool = False
    imported: frozenset[str] = frozenset()
    compiled: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    carriers: frozenset[str] = frozenset()
    device_modules: frozenset[str] = frozenset()
    asks_for_gpu: bool = False
    gpu_words: frozenset[str] = frozenset()
    reads_names: bool = False
    moves_as_is: bool = False

    def has_module(self, dotted: str) -> bool:
        """Whether a module's dotted name is of the project: both its first and its last name are."""
        parts = dotted.split(".")
        return {parts[0], parts[-1]} <= self.modules


def own_names(tree: ast.Module, path: PurePosixPath = _NOWHERE) -> OwnNames:
    """Names that a module defines itself and that could be mistaken for the device's.

    Flags (`add_argument("--cuda")`), attributes that are assigned, fields and methods of classes, keys of dictionaries,
    keywords of calls, and what the module imports at its top.
    """
    gathered = _Gathered()
    waiting: list[ast.AST] = [tree]
    for node in waiting:  # grows as it is read
        gathered.take(node)
        waiting.extend(parts_of(node))
    watched = {
        name: frozenset(found) for name, found in gathered.methods.items() if name in _WATCHED
    }
    exports = gathered.exports(path)
    attributes = frozenset(gathered.attributes & _WATCHED)
    return OwnNames(
        watched,
        attributes,
        exports,
        falls_back=gathered.falls_back,
        looks_up=gathered.looks_up,
        requested=frozenset(gathered.requested),
        fields=gathered.fields() if attributes else {},
        given=frozenset(gathered.given()),
        keys=frozenset(name for name in gathered.keys if _DEVICE_WORD.search(name)),
        asked=frozenset(name for name in gathered.asked if _DEVICE_WORD.search(name)),
        carriers=frozenset(gathered.carriers),
        device_modules=frozenset(gathered.device_modules),
        asks_for_gpu=gathered.asks_for_gpu,
        gpu_words=frozenset(gathered.gpu_words),
        reads_names="__name__" in gathered.asked,
    )


@dataclass(slots=True)
class _Gathered:
    """What one walk over a module finds."""

    methods: dict[str, set[str]] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    imported: dict[str, str] = field(default_factory=dict)
    bound: set[str] = field(default_factory=set)
    falls_back: bool = False
    looks_up: bool = False
    requested: set[str] = field(default_factory=set)
    classes: list[ast.ClassDef] = field(default_factory=list)
    carriers: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    device_modules: set[str] = field(default_factory=set)
    asks_for_gpu: bool = False
    gpu_words: set[str] = field(default_factory=set)
    compared: set[int] = field(default_factory=set)
    """The nodes of comparisons, which give nothing."""
    torches: set[str] = field(default_factory=lambda: {"torch"})

    def given(self) -> set[str]:
        """The names with a word of the device in them that something is given."""
        names = {*self.methods, *self.attributes, *self.bound}
        return {name for name in names if _DEVICE_WORD.search(name)}

    def fields(self) -> dict[str, frozenset[str]]:
        """The watched attributes that classes give themselves."""
        found: dict[str, set[str]] = {}
        for owner in self.classes:
            for node in ast.walk(owner):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    names = [node.attr] if getattr(node.value, "id", "") in ("self", "cls") else []
                elif node in owner.body:
                    names = _declared(node)
                else:
                    names = []
                for name in _WATCHED.intersection(names):
                    found.setdefault(name, set()).add(owner.name)
        return {name: frozenset(owners) for name, owners in found.items()}

    def take(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                self.bound.add(node.id)
        elif isinstance(node, ast.Attribute):
            (self.attributes if isinstance(node.ctx, ast.Store) else self.asked).add(node.attr)
        elif isinstance(node, ast.arg):
            self.bound.add(node.arg)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self._assignment(node)
        elif isinstance(node, ast.Call):
            self.attributes |= _flags(node)
            self.asked |= {
                one.value
                for one in node.args
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
            self.keys |= {item.arg for item in node.keywords if item.arg and _makes_keys(node)}
            if any(
                item.arg in ("default", "choices") and _holds_device(item.value)
                for item in node.keywords
            ):
                self.carriers |= _flags(node) - {item.arg for item in node.keywords}
            self.asks_for_gpu |= getattr(node.func, "attr", "") in _ASKING and _names_gpu(node.args)
        elif isinstance(node, ast.BoolOp):
            self.falls_back |= _falls_back(node)
        elif isinstance(node, ast.Compare):
            self.asks_for_gpu |= _names_gpu([node.left, *node.comparators])
            self.compared.update(map(id, ast.walk(node)))
        elif isinstance(node, ast.Constant):
            if (
                isinstance(node.value, str)
                and "_GPU" in node.value
                and id(node) not in self.compared
            ):
                self.gpu_words.add(node.value)
        elif isinstance(node, ast.MatchValue):
            self.asks_for_gpu |= _names_gpu([node.value])
        elif isinstance(node, ast.Subscript):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(node.slice, ast.Tuple) and isinstance(node.ctx, ast.Store):
                self.keys |= _texts(node.slice.elts)
            self.looks_up |= _holds_device(node.slice)
            self.asks_for_gpu |= _names_gpu([node.slice])
            if isinstance(node.ctx, ast.Load) and isinstance(key, str):
                self.asked.add(key)
            if isinstance(node.ctx, ast.Store) and isinstance(key, str):
                self.attributes.add(key)
                self.keys.add(key)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.bound.add(node.name)
            last = node.body[-1]
            if isinstance(last, ast.Return) and last.value and self._is_device_module(last.value):
                self.device_modules.add(node.name)
        elif isinstance(node, ast.Dict):
            keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            self.attributes.update(key for key in keys if isinstance(key, str))
            self.keys.update(key for key in keys if isinstance(key, str))
            self.asks_for_gpu |= any(_GPU.match(str(key)) for key in keys)
            for several in node.keys:
                self.keys |= _texts(several.elts) if isinstance(several, ast.Tuple) else set()
        elif isinstance(node, ast.ImportFrom):
            self._import(node)
        elif isinstance(node, ast.Import):
            renamed = {one.asname: one.name for one in node.names if one.asname}
            self.torches |= {name for name, whole in renamed.items() if whole == "torch"}
            self.device_modules |= {
                name for name, whole in renamed.items() if whole == "torch.cuda"
            }

    def _assignment(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {getattr(one, "attr", "") or getattr(one, "id", "") for one in targets} - {""}
        if node.value is not None and _holds_device(node.value):
            self.carriers |= names
        if isinstance(node.value, ast.AST) and self._is_device_module(node.value):
            self.device_modules |= names

    def _is_device_module(self, node: ast.AST) -> bool:
        """Whether an expression stands for the device's module: `torch.cuda`, `import_module("torch.cuda")`."""
        if isinstance(node, ast.IfExp):
            return self._is_device_module(node.body) or self._is_device_module(node.orelse)
        if isinstance(node, ast.Attribute):
            return node.attr == "cuda" and getattr(node.value, "id", "") in self.torches
        if isinstance(node, ast.Subscript):
            looked_up, key = node.value, node.slice
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            looked_up, key = node.args[:2]
        elif isinstance(node, ast.Call) and node.args:
            looked_up = key = node.args[0]
        else:
            return False
        of_torch = any(getattr(part, "id", "") in self.torches for part in ast.walk(looked_up))
        if isinstance(key, ast.JoinedStr) and key.values:  # sys.modules[f"torch.{kind}"]
            return getattr(key.values[0], "value", "") == "torch."
        if of_torch and key is not looked_up and not isinstance(key, ast.Constant):
            last = getattr(key, "attr", "") or getattr(key, "id", "")
            return _DEVICE_LIKE.search(last) is not None  # getattr(torch, args.device)
        name = getattr(key, "value", None)
        return name == "torch.cuda" or (name == "cuda" and of_torch and key is not looked_up)

    def _import(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or module.split(".")[0] not in _WATCHED_PACKAGES:
            last = module.rpartition(".")[2]
            self.requested.update(f"{last}.{alias.name}" for alias in node.names)
        else:
            for alias in node.names:
                name, full = alias.asname or alias.name, f"{module}.{alias.name}"
                self.imported[name] = full
                if full == "torch.cuda":
                    self.device_modules.add(name)

    def _class(self, node: ast.ClassDef) -> None:
        self.bound.add(node.name)
        self.classes.append(node)
        for item in node.body:
            self.attributes.update(_declared(item))
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(item):
                self.methods.setdefault(item.name, set()).add(node.name)

    def exports(self, path: PurePosixPath) -> dict[str, str]:
        """What other modules can import from this one although it only imports it, under every name of this module.

        A name that the module binds in another way too is its own.
        """
        parts = [part for part in path.with_suffix("").parts if part != "__init__"]
        modules = [".".join(parts[start:]) for start in range(len(parts))]
        return {
            f"{module}.{name}": full
            for module in modules
            for name, full in self.imported.items()
            if name not in self.bound
        }


def _texts(nodes: Iterable[ast.expr]) -> set[str]:
    """The texts among some expressions."""
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return {value for value in values if isinstance(value, str)}


def _names_gpu(nodes: Iterable[ast.expr]) -> bool:
    """Whether one of some expressions is the word `"gpu"`, or holds it."""
    parts = (part for node in nodes for part in ast.walk(node))
    return any(isinstance(part, ast.Constant) and _GPU.match(str(part.value)) for part in parts)


def _makes_keys(call: ast.Call) -> bool:
    """Whether a call puts something under its keywords: `dict(cuda=...)`, `options.update(cuda=...)`."""
    return (getattr(call.func, "attr", "") or getattr(call.func, "id", "")) in ("dict", "update")


def _holds_device(node: ast.expr) -> bool:
    """Whether a value is a text that names the device, or one of several that it may be."""
    if isinstance(node, _HOLDING):
        return any(
            _holds_device(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)
        )
    return isinstance(node, ast.Constant) and _DEVICE_TEXT.match(str(node.value)) is not None


def _declared(item: ast.AST) -> list[str]:
    """The attributes that a statement of a class declares: its properties and what it assigns."""
    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
        return [item.name] if is_property(item) else []
    targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def merged_own(parts: Iterable[OwnNames]) -> OwnNames:
    """What several modules define together."""
    merged: dict[str, Any] = {}
    for part in parts:
        for one in fields(OwnNames):
            new = getattr(part, one.name)
            old = merged.get(one.name, type(new)())
            if one.name in _OWNERS:
                new = {**old, **{name: old.get(name, frozenset()) | new[name] for name in new}}
            else:
                new = {**old, **new} if isinstance(new, Mapping) else old | new
            merged[one.name] = new
    return OwnNames(**merged)


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method is read like an attribute."""
    return any(
        getattr(decorator, "attr", getattr(decorator, "id", "")) in _PROPERTIES
        for decorator in node.decorator_list
    )


def _falls_back(node: ast.BoolOp) -> bool:
    """Whether a test asks at once for the name of the device and whether CUDA is there."""
    named = available = False
    for inner in ast.walk(node):
        if isinstance(inner, ast.Compare | ast.Call):
            parts = [*ast.iter_child_nodes(inner)]
            named |= any(
                isinstance(part, ast.Constant)
                and isinstance(part.value, str)
                and part.value.startswith(("cuda", "nccl"))
                for part in parts
            )
        available |= isinstance(inner, ast.Attribute) and inner.attr == "is_available"
    return named and available


def _flags(call: ast.Call) -> set[str]:
    """The attributes that a parser of command lines makes of a call's flags, and keywords of own calls."""
    found = {item.arg for item in call.keywords if item.arg}
    for argument in call.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            match = _FLAG.match(argument.value)
            if match:
                found.add(match["name"].replace("-", "_"))
    return found
