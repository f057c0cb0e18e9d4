"""Which torch function a recorded operator name means: a closed list, for a recording may be hostile.

Only names of tensor operators are resolved: what `torch.overrides` lists as overridable (that is
what the recorder sees), the generated variable functions, and the `aten` operators. Nothing is
looked up in any other module, and nothing that reads files, touches storages, pickles or takes a
function.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from types import MethodDescriptorType
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

Function = Callable[..., Any]

_WORD = re.compile(r"[A-Za-z_]\w*")
_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})

_NEVER = re.compile(
    r"""
    from_file | from_blob | storage | reduce_ex | __reduce__ | setstate | __set__ | __delete__
    | __dlpack | share_memory | register | ^backward$ | retain_grad | requires_grad | module_load
    | ^apply_$ | ^map\d?_$ | ^set_ | ^resize | ^_?cuda | numpy | tolist | ^item$ | data_ptr
    | ^save$ | manual_seed | ^_?warn | _print | setattr | delattr | __class__ | __dict__ | pin_memory
    | ^_nested | names | ^new$ | ^_[a-z]+_(stream|handle) | ^_make_ | ^_to_cpu | as_subclass
    """,
    re.VERBOSE,
)
"""Names that are no arithmetic on tensors: files, memory, pickling, autograd's own settings."""


def function_of(op: str) -> Function | None:
    """Function that a recorded operator name means, or None for what is not on the list.

    Examples
    --------
    >>> function_of("torch.nn.functional.gelu") is torch.nn.functional.gelu
    True
    >>> function_of("os.system"), function_of("torch.load"), function_of("torch.Tensor.numpy")
    (None, None, None)
    """
    namespace, _, name = op.rpartition(".")
    if _NEVER.search(name) or not all(_WORD.fullmatch(part) for part in op.split(".")):
        return None
    if op.startswith("aten."):
        return _aten(op)
    if namespace == "torch.Tensor" and name in _PROPERTIES:
        return lambda tensor: getattr(tensor, name)
    found = _listed().get(op)
    if found is None and namespace == "torch":
        generated = torch._C._VariableFunctions
        found = getattr(generated, name) if name in dir(generated) else None
    if found is None and namespace == "torch.Tensor" and not name.startswith("_"):
        found = vars(torch._C.TensorBase).get(name)
        found = found if isinstance(found, MethodDescriptorType) else None
    if found is None and namespace == "torch.nn.functional":
        found = vars(torch.nn.functional).get(name)
        torchs = getattr(torch._C._VariableFunctions, name, None)  # relu_ is torch's own
        own = getattr(found, "__module__", "") == namespace or found is torchs
        found = found if own else None
    return found if callable(found) else None


@cache
def _listed() -> dict[str, Function]:
    """Overridable functions by the name that the recorder gives them."""
    found: dict[str, Function] = {}
    for functions in get_overridable_functions().values():
        for function in functions:
            name = resolve_name(function)
            if name and not name.endswith(("__get__", "__set__")):
                found.setdefault(name, function)
    return found


def _aten(op: str) -> Function | None:
    """`aten.add.Tensor`: one overload of one packet."""
    parts = op.split(".")
    if len(parts) != 3 or _NEVER.search(parts[1]):
        return None
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{parts[1]}")
    overload = "" if parts[2] == "default" else parts[2]
    if not any(schema.overload_name == overload for schema in schemas):
        return None
    found: Function = getattr(getattr(torch.ops.aten, parts[1]), parts[2])
    return found
