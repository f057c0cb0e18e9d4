"""Device words of libraries that are not torch's: `jax.devices("cuda")`, `xgb.train({"device": "cuda"})`.

A text belongs to a library if it is an argument of a call of that library's, at once, inside a dictionary, or through a
variable. It becomes the library's own word where the target has one (`MigrationTarget.libraries`), else it is listed.
"""

from __future__ import annotations

import ast
import csv
import functools
import re
from collections.abc import Mapping
from importlib import resources

from lockstep_migrate.engine.arguments import called
from lockstep_migrate.engine.scopes import Bound
from lockstep_migrate.plan import Edit
from lockstep_migrate.torch.takers import called_names, library_called, takers
from lockstep_migrate.torch.unit import Unit

_PROVIDER = "ExecutionProvider"
_WORD = re.compile(rf"cuda(?::\d+)?\Z|CUDA{_PROVIDER}\Z")
_BY_TORCH = ("torch", "torchvision", "torchaudio", "transformers", "accelerate", "timm")


@functools.cache
def libraries() -> Mapping[str, str]:
    """Why each library's device words are its own, by the dotted name that its calls start with."""
    text = (resources.files(__package__) / "libraries.csv").read_text(encoding="utf-8")
    return {row["name"]: row["reason"] for row in csv.DictReader(text.splitlines())}


def find_libraries(unit: Unit) -> None:
    """Claim every device word that a library other than torch reads."""
    imported = {
        binding.qualified
        for bindings in unit.scopes.module.bindings.values()
        for binding in bindings
        if binding.kind is Bound.IMPORT
    }
    roots = {name.split(".")[0] for name in imported}
    here = [name for name in libraries() if name.split(".")[0] in roots]
    if not here:
        return
    # Without torch nothing else is there that could read a device.
    only = next((name for name in here if name in roots), "") if roots.isdisjoint(_BY_TORCH) else ""
    for text in unit.scopes.of(ast.Constant):
        if isinstance(text.value, str) and _WORD.match(text.value):
            _find(unit, text, only)
        elif text.value == "gpu":  # no device's name: only a library's own call says that it is one
            _find(unit, text, "")
    for item in unit.scopes.of(ast.keyword):
        call = unit.scopes.parents[item]
        counts = item.arg == "gpus" and isinstance(call, ast.Call)
        if counts and (library := _called_library(unit, call)):  # type: ignore[arg-type]
            unit.list(item, "strings/library", libraries()[library])
    for formatted in unit.scopes.of(ast.JoinedStr):
        if "cuda:{" in unit.text(formatted):
            _find(unit, formatted, only)


def _find(unit: Unit, text: ast.Constant | ast.JoinedStr, only: str) -> None:
    inner = isinstance(unit.scopes.parents[text], ast.Expr | ast.JoinedStr)
    library = "" if inner or unit.is_claimed(text) else _library_of(unit, text) or only
    if library:
        _claim(unit, text, library)


def _claim(unit: Unit, text: ast.Constant | ast.JoinedStr, library: str) -> None:
    word = unit.target.libraries.get(library, "")
    pieces = unit.scopes.pieces(text)
    rule = "strings/library"
    same_kind = word.endswith(_PROVIDER) == unit.text(text).strip("\"'").endswith(_PROVIDER)
    if word and same_kind and len(pieces) == 1 and isinstance(text, ast.Constant):
        unit.rewrite(text, rule, "the library's own word", [Edit(pieces[0].body, word)])
    else:
        unit.list(
            text, rule, libraries()[library], replacement=f'"{word}"' if word and same_kind else ""
        )
    unit.settle(ast.walk(text), text)


def _library_of(unit: Unit, text: ast.AST) -> str:
    """The library that reads a text; empty where it is none that is known."""
    for taker in takers(unit, text):
        if variable := _variable_of(taker):
            root = variable.split("_")[0].lower()  # os.environ["JAX_PLATFORMS"] = "cuda"
            return root if root in libraries() else ""
        sides = [taker.left, *taker.comparators] if isinstance(taker, ast.Compare) else [taker]
        calls = (side for side in sides if isinstance(side, ast.Call))
        if library := next(filter(None, (_called_library(unit, call) for call in calls)), ""):
            return library
    return ""


def _variable_of(setting: ast.AST) -> str:
    """The environment variable that a statement or call sets; empty for anything else."""
    name: ast.AST | None = None
    if isinstance(setting, ast.Assign) and isinstance(setting.targets[0], ast.Subscript):
        name = setting.targets[0].slice
    elif isinstance(setting, ast.Call) and called(setting) in ("setdefault", "putenv", "setenv"):
        name = setting.args[0] if setting.args else None
    text = str(getattr(name, "value", ""))
    return text if text.isupper() else ""


def _called_library(unit: Unit, call: ast.Call) -> str:
    """The library whose function a call calls, whose object's method, or whose object it is given."""
    functions = [call.func]
    others = library_called(unit, call.func) != ""
    for given in (*call.args, *(item.value for item in call.keywords)):
        if isinstance(given, ast.Name) and others:
            found = unit.scopes.bindings(given.id, unit.scopes.scope(given))
            functions += [one.value.func for one in found if isinstance(one.value, ast.Call)]
    for name in (name for function in functions for name in called_names(unit, function)):
        while name:
            if name in libraries():
                return name
            name = name.rpartition(".")[0]
    return ""
