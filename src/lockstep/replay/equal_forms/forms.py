"""Forms that an operator may have out of others: written down, or as torch decomposes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from lockstep.replay.calls.refusals import CannotReplay

_REWRITES = Path(__file__).with_name("rewrites.yaml")
_LISTS_OF_TENSORS = "_foreach_"


@dataclass(frozen=True, slots=True)
class Form:
    """A form of an operator: how it is written in Python, and a function with the operator's own arguments."""

    words: str
    run: Callable[..., Any]


def forms_of(operator: OpOverload) -> Iterator[Form]:
    """Every form that is known of an operator, those that are written down first."""
    name = operator.name()
    for row in _rewrites().get(name, ()):
        yield Form(row["form"], _evaluated(operator, row["form"], row.get("when", "True")))
    alone = _out_of_place(operator)
    if alone is not None:
        yield Form(f"self.copy_({_called(alone)})", _then_copied(alone, kept=False))
        # Backward may need what stood there.
        kept = _called(alone).replace("(self", "(self.clone()", 1)
        yield Form(f"self.copy_({kept})", _then_copied(alone, kept=True))
    single = _of_one_tensor(operator)
    if single is not None:
        yield Form(
            f"{_called(single)} of each tensor in turn",
            _of_each(single, gives=bool(operator._schema.returns)),
        )
    decomposed = decomposition_table.get(operator)
    if decomposed is not None:
        yield Form(f"torch._decomp.decomposition_table[torch.ops.{operator}]", decomposed)
    if operator.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        yield Form(f"torch.ops.{operator}.decompose", operator.decompose)


def written_by(operator: OpOverload) -> frozenset[str]:
    """The arguments that an operator writes to, as a recording names them."""
    return frozenset(
        f"kwargs.{one.name}" if one.kwarg_only else f"args.{at}"
        for at, one in enumerate(operator._schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write
    )


def overload_of(name: str) -> OpOverload | None:
    """The operator of a name such as `aten::add.Tensor`, if this torch has it."""
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space), base, None)
    found = getattr(packet, overload or "default", None)
    return found if isinstance(found, OpOverload) else None


@cache
def _rewrites() -> dict[str, list[dict[str, str]]]:
    rows = yaml.safe_load(_REWRITES.read_text(encoding="utf-8"))
    found: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        found.setdefault(f"aten::{row['operator']}", []).append(row)
    return found


def _evaluated(operator: OpOverload, written: str, when: str) -> Callable[..., Any]:
    """An expression of our own table as a function; its names are those of the operator's arguments."""
    code, holds = (compile(text, str(_REWRITES), "eval") for text in (written, when))
    schema = operator._schema.arguments

    def run(*args: Any, **kwargs: Any) -> Any:
        named = {one.name: one.default_value for one in schema if one.has_default_value()}
        named |= dict(zip((one.name for one in schema), args, strict=False))
        names = {"torch": torch, **named, **kwargs}
        if not eval(holds, names):
            raise CannotReplay(f"the form {written} holds where {when}")
        return eval(code, names)

    return run


def _out_of_place(operator: OpOverload) -> OpOverload | None:
    """`aten::silu` of `aten::silu_`."""
    space, _, rest = operator.name().partition("::")
    base, dot, overload = rest.partition(".")
    if not base.endswith("_") or base.endswith("__") or base.startswith(_LISTS_OF_TENSORS):
        return None
    return overload_of(f"{space}::{base[:-1]}{dot}{overload}")


def _then_copied(operator: OpOverload, *, kept: bool) -> Callable[..., Any]:
    def run(this: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return this.copy_(operator(this.clone() if kept else this, *args, **kwargs))

    return run


def _of_one_tensor(operator: OpOverload) -> OpOverload | None:
    """`aten::add.Scalar` of `aten::_foreach_add.Scalar`; lists of tensors and of numbers are gone through."""
    space, _, rest = operator.name().partition(f"::{_LISTS_OF_TENSORS}")
    if not rest:
        return None
    base, _, overload = rest.partition(".")
    overloads = {"List": ("Tensor", ""), "ScalarList": ("Scalar", "")}.get(overload, (overload, ""))
    named = [f"{space}::{base}.{one}" if one else f"{space}::{base}" for one in overloads]
    return next((found for one in named if (found := overload_of(one)) is not None), None)


def _of_each(operator: OpOverload, *, gives: bool) -> Callable[..., Any]:
    def run(these: Any, *args: Any, **kwargs: Any) -> Any:
        def of(value: Any, at: int) -> Any:
            return value[at] if isinstance(value, (list, tuple)) else value

        made = [
            operator(
                tensor,
                *(of(value, at) for value in args),
                **{key: of(value, at) for key, value in kwargs.items()},
            )
            for at, tensor in enumerate(these)
        ]
        return made if gives else None

    return run


def _called(operator: OpOverload) -> str:
    arguments = ", ".join(one.name for one in operator._schema.arguments if not one.kwarg_only)
    return f"torch.ops.{operator}({arguments})"
