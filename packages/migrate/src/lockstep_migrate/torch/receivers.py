"""Whose attribute is it? `x.is_cuda` is a tensor's, unless `x` is of a class of the project's own that has one."""

from __future__ import annotations

import ast
import re

from lockstep_migrate.engine.scopes import Binding, ModuleScopes
from lockstep_migrate.engine.statements import assigned_to
from lockstep_migrate.engine.tree import is_own_attribute
from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.torch.unit import Unit

SETTINGS = re.compile(
    r".*(?:arg|args|opt|opts|option|options|cfg|config|conf|flags|hparams|hps|settings|params)\Z",
    re.IGNORECASE,
)
"""What scripts call what they read from the command line."""
_OF_TENSORS = listed_names("of tensors")


def is_setting(node: ast.Attribute) -> bool:
    """Whether an attribute is read of what a script calls its settings: `args.no_cuda`."""
    value = node.value
    last = getattr(value, "attr", "") or getattr(value, "id", "")
    return SETTINGS.match(last) is not None


def is_own(unit: Unit, node: ast.Attribute, *, called: bool = False) -> bool | None:
    """Whether an attribute is one that the project defines itself; `None` where that cannot be told."""
    own = unit.own
    owners = own.methods.get(node.attr, frozenset())
    if not called:
        owners |= own.fields.get(node.attr, frozenset())
    flag = not called and node.attr in own.attributes
    if not owners and not flag:
        return False
    return _Receiver(unit.scopes, owners, flag=flag).is_own(node)


class _Receiver:
    """What stands before the dot."""

    def __init__(self, scopes: ModuleScopes, owners: frozenset[str], *, flag: bool) -> None:
        self._scopes = scopes
        self._owners = owners
        self._flag = flag

    def is_own(self, node: ast.Attribute) -> bool | None:
        value = node.value
        last = getattr(value, "attr", "") or getattr(value, "id", "")
        if self._flag and SETTINGS.match(last):
            return True
        if isinstance(value, ast.Name) and value.id in ("self", "cls"):
            around = self._scopes.class_of(value)
            bases = self._base_names(value)
            return around is not None and bool(({around.name} | bases) & self._owners)
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "super":
            return bool(self._base_names(node) & self._owners)
        if is_own_attribute(value):
            return self._attribute_owner(value)
        if isinstance(value, ast.Call):
            return self._calls_owner(value)
        return self._assigned_owner(value) if isinstance(value, ast.Name) else None

    def _base_names(self, node: ast.AST) -> frozenset[str]:
        """The classes that the class around inherits from, by their last names."""
        around = self._scopes.class_of(node)
        bases = around.bases if around else []
        return frozenset(self._scopes.text(base).rpartition(".")[2] for base in bases)

    def _attribute_owner(self, value: ast.expr) -> bool:
        """Whether `self.x` was given an instance of an owner; what never was is a tensor or module of torch."""
        given = assigned_to(self._scopes, value)
        return any(isinstance(one, ast.Call) and self._calls_owner(one) for one in given)

    def _calls_owner(self, call: ast.Call) -> bool | None:
        if self._scopes.name(call.func).startswith("torch."):
            return False
        if getattr(call.func, "attr", "") in ("parse_args", "parse_known_args"):
            return self._flag or None
        last = self._scopes.text(call.func).rpartition(".")[2]
        if last in self._owners:
            return True
        is_class = last[:1].isupper() and isinstance(call.func, ast.Name)
        return False if is_class else None

    def _assigned_owner(self, name: ast.Name) -> bool | None:
        bindings = [
            binding
            for binding in self._scopes.bindings(name.id, self._scopes.scope(name))
            if _root(binding.value) != name.id  # x = x.cuda()
        ]
        known = {self._bound_owner(binding) for binding in bindings}
        return known.pop() if len(known) == 1 else None

    def _bound_owner(self, binding: Binding) -> bool | None:
        if _is_tensor(binding.value):
            return False
        if isinstance(binding.value, ast.Call):
            return self._calls_owner(binding.value)
        annotation = getattr(binding.node, "annotation", None)
        if annotation is None:
            return None
        if self._scopes.name(annotation).startswith("torch."):
            return False
        last = self._scopes.text(annotation).strip("\"'").rpartition(".")[2]
        return True if last in self._owners else None


def _is_tensor(value: ast.AST | None) -> bool:
    """Whether only a tensor gives such a value: `x[:n, :]`, `x.contiguous()`."""
    if isinstance(value, ast.Subscript):
        parts = value.slice.elts if isinstance(value.slice, ast.Tuple) else []
        return any(isinstance(part, ast.Slice) or _is_ellipsis(part) for part in parts)
    function = value.func if isinstance(value, ast.Call) else None
    return isinstance(function, ast.Attribute) and (
        function.attr in _OF_TENSORS or _is_tensor(function.value)
    )


def _is_ellipsis(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _root(node: ast.AST | None) -> str:
    """The name that a chain of methods starts with: `x` of `x.to(d).half()`."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "id", "")
