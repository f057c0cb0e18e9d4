"""Names of operators: those of the dispatcher, for the functions of torch's API."""

from __future__ import annotations

import re

_DISPATCHER = re.compile(r"(\w+)::(\w+)(?:\.(\w+))?", re.ASCII)
_DOTTED = re.compile(r"\w+(\.\w+)*", re.ASCII)
_OWN_NAMESPACES = ("linalg", "fft", "special", "sparse", "nested")
"""Modules of torch whose functions have the module in front of their name in the dispatcher."""


def dispatcher_name(name: str) -> str | None:
    """A name as the dispatcher has it, of one that a list gives; None if it is none.

    Examples
    --------
    >>> dispatcher_name("aten.mm.default"), dispatcher_name("add.Tensor"), dispatcher_name("torch.fft.rfft")
    ('aten::mm', 'aten::add.Tensor', 'aten::fft_rfft')
    """
    name = name.strip()
    found = _DISPATCHER.fullmatch(name)
    if found is not None:
        return name.removesuffix(".default")
    if not _DOTTED.fullmatch(name):
        return None
    first, *rest = name.split(".")
    if first == "torch":
        return name_of_api(name) if rest else None
    if first == "aten":
        return f"aten::{'.'.join(rest)}".removesuffix(".default") if 1 <= len(rest) <= 2 else None
    return f"aten::{name}".removesuffix(".default") if len(rest) <= 1 else None


def name_of_api(function: str) -> str:
    """The name, without an overload, that the dispatcher has for a function of torch's API, if it has one.

    Examples
    --------
    >>> name_of_api("torch.nn.functional.silu"), name_of_api("torch.Tensor.__iadd__")
    ('aten::silu', 'aten::add_')
    """
    *modules, last = function.split(".")
    if last.startswith("__") and last.endswith("__"):
        last = last.strip("_")
        if last in _IN_PLACE:
            last = f"{_IN_PLACE[last]}_"
        last = _REFLECTED.get(last, last)
    own = modules[-1] if modules[-1:] and modules[-1] in _OWN_NAMESPACES else ""
    return f"aten::{own}_{last}" if own else f"aten::{last}"


_IN_PLACE = {
    "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "ipow": "pow",
    "ifloordiv": "floor_divide", "imod": "remainder",
}  # fmt: skip
_REFLECTED = {
    "radd": "add", "rsub": "rsub", "rmul": "mul", "truediv": "div", "matmul": "matmul", "rpow": "pow",
    "floordiv": "floor_divide", "mod": "remainder", "invert": "bitwise_not",
}  # fmt: skip
